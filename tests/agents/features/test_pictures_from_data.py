"""Agents learn from recorded pictures, dictionaries and several actions.

A lamp is lit in one of three columns of `tests.environments.every_space`, and an episode ends after
five right actions. Chance needs the whole time limit of 12 steps for four of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets, envs
from rljax.cli import data as commands
from rljax.runs import records, run
from rljax.runs.policies import collect
from tests.environments import every_space
from tests.helpers import small_runs

pytestmark = pytest.mark.filterwarnings("ignore:.*observes a Dict")
STEPS, SMALL = 1_500, {"hidden": (32,), "batch_size": 64, "encoder": "small"}


def expert(hosted: Any, observation: Any) -> np.ndarray:
    """The right column, read from the picture; a second action does not matter."""
    picture = observation["camera/left"] if isinstance(observation, dict) else observation
    width = picture.shape[2] // every_space.COLUMNS
    columns = [
        picture[:, :, i * width : (i + 1) * width].mean(axis=(1, 2, 3))
        for i in range(every_space.COLUMNS)
    ]
    lit = np.argmax(columns, axis=0).astype(np.int32)
    return np.stack([lit, 0 * lit], axis=1) if hosted.spec.choices else lit


def written(path: Path, shows: str, takes: str, plays_well: bool) -> str:
    """Data of the expert, or of random actions."""
    hosted = envs.make_hosted(every_space.name(shows, takes), 10)
    generator = np.random.default_rng(0)

    def choose(observation: Any, step: np.ndarray) -> np.ndarray:
        del step
        if plays_well:
            return expert(hosted, observation)
        return collect.random_actions(generator, hosted.spec, observation)

    transitions = collect.roll_out(hosted, choose, STEPS, seed=1)
    choices = list(hosted.spec.choices)
    known = {"choices": choices} if choices else {"num_actions": every_space.COLUMNS}
    hosted.close()
    dataset = datasets.OfflineDataset("made", transitions, None, None, None, known)
    return str(datasets.write(dataset, path))


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "shows", "takes", "updates"),
    [
        ("bc", "picture", "one", 150),
        ("bc", "dictionary", "several", 150),
        ("iql", "dictionary", "several", 400),
        ("cql_discrete", "picture", "masked", 300),
    ],
)
def test_learns_what_the_pictures_show(
    agent: str, shows: str, takes: str, updates: int, tmp_path: Path
) -> None:
    data = written(tmp_path / "data.npz", shows, takes, plays_well=agent == "bc")
    changes: dict[str, dict[str, Any]] = {
        "bc": {"actor_lr": 1e-3},
        "iql": {
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "value_lr": 1e-3,
            "discount": 0.5,
            "inverse_temperature": 10.0,
        },
        "cql_discrete": {"critic_lr": 1e-3, "target_every": 50, "penalty_weight": 0.1},
    }
    out = run.train(
        agent,
        every_space.name(shows, takes),
        updates,
        config=SMALL | {"reward_transform": "none"} | changes[agent],
        data=data,
        out=tmp_path / "run",
        log_every=updates,
        eval_every=updates,
        eval_episodes=10,
        seeds=2,
    )
    lines = records.read(out, "evaluations")
    last = [line for line in lines if line["step"] == updates]
    assert len(last) == 2
    for line in last:
        assert np.mean(line["returns"]) > every_space.RIGHT - 0.5
        # Chance needs twice as many steps.
        assert np.mean(line["lengths"]) < every_space.RIGHT + 1.5


@pytest.mark.learn
@pytest.mark.parametrize("source", ["exploring", "replay"])
def test_a_run_is_recorded_and_learnt_from(source: str, tmp_path: Path) -> None:
    """From the file beside new experience."""
    name = every_space.name("dictionary", "one")
    config = {
        "batch_size": 8,
        "warmup_steps": 16,
        "replay_size": 60,
        "encoder": "small",
        "num_envs": 2,
    }
    first = small_runs.train("dqn", name, 100, tmp_path / "first", config, eval_episodes=1)
    path, options = tmp_path / "made.hdf5", ["--steps", "50", "--envs", "2"]
    commands.main(["record", str(first), str(path), "--from", source, *options])
    dataset = datasets.load(str(path))
    assert (dataset.num, dataset.env) == (50, name)
    assert not [finding for finding in datasets.check(dataset) if finding.severity == "error"]
    second, data = tmp_path / "second", str(path)
    small_runs.train("dqn", name, 40, second, config, data=data, eval_episodes=1)
    assert records.read_summary(second)["complete"]
