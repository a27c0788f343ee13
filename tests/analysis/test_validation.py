"""Losses on data that a run has not learnt from, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from agents import iql
from rljax import cli, datasets
from rljax.analysis import validation
from rljax.runs import run
from rljax.runs.policies import loading
from rljax.runs.records import Recorder
from tests.cli import commands
from tests.environments import reach

SMALL = {
    "hidden": (8,),
    "batch_size": 16,
    "decay_steps": None,
    "reward_transform": "times_4_minus_2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training data, other data, a run of IQL and one of BC on the first."""
    path = tmp_path_factory.mktemp("validation")
    data = str(reach.journeys(path / "train.npz", episodes=20))
    reach.journeys(path / "other.npz", episodes=5)
    reach.choices(path / "choices.npz", episodes=5)
    for agent, config in (("iql", SMALL), ("bc", {"hidden": (8,), "batch_size": 16})):
        run.train(agent, "none", 20, data=data, seeds=2, config=config, out=path / agent)
    return path


@pytest.mark.slow
def test_losses_are_those_of_the_policy_and_its_critics(folder: Path) -> None:
    data = datasets.load(str(folder / "other.npz"))
    found = validation.losses(folder / "iql", data, discount=0.9)
    chosen = rljax.load(folder / "iql")
    policies = loading.load_all(folder / "iql")
    agent, config = jax.tree.map(lambda x: x[0], (policies.state, policies.config))
    state = agent.state
    rows = {
        name: np.asarray(getattr(data.transitions, name), np.float64)
        for name in ("reward", "terminated", "action")
    }
    action = chosen(np.asarray(data.transitions.observation), normalised=True)
    assert found["validation/action"] == pytest.approx(
        np.square(action - rows["action"]).mean(), rel=1e-5
    )
    following = np.asarray(data.transitions.next_observation)
    then: Any = chosen(following, normalised=True)
    after, value = (
        np.asarray(iql.value(state, *pair, config), np.float64)
        for pair in (
            (following, then),
            (data.transitions.observation, data.transitions.action),
        )
    )
    target = 4.0 * rows["reward"] - 2.0 + 0.9 * (1.0 - rows["terminated"]) * after
    assert found["validation/error"] == pytest.approx(np.square(value - target).mean(), rel=1e-4)
    assert set(validation.losses(folder / "bc", data, 0.9)) == {"validation/action"}, (
        "BC has no critics"
    )


@pytest.mark.slow
def test_data_of_other_spaces_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"the policy of '.*iql' was trained with "):
        validation.losses(folder / "iql", datasets.load(str(folder / "choices.npz")), 0.9)


@pytest.mark.slow
def test_the_smallest_loss_is_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(folder / "other.npz")
    found = {
        name: validation.losses(folder / name, datasets.load(data), 0.99) for name in ("iql", "bc")
    }
    best = min(found, key=lambda name: found[name]["validation/action"])
    for name in found:
        with Recorder(folder / name) as recorder:
            recorder.evaluation(
                {"step": 20, "learner": 0, "seed": 0, "returns": [1.0 if name == best else 0.0]}
            )
    cli.main(["select", str(folder), "--validation", data])
    shown = capsys.readouterr().out
    assert f"| validation/action | 2 | {best} | 1.0 | 1.0 | 0.00 | 1.00 |" in shown
    assert "validation/error" not in shown
    words = ["select", folder, "--validation", data, "--discount", 2]
    assert "--discount is 2, it must be in [0, 1]" in commands.refused(words, capsys)
