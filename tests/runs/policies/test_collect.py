"""What is recorded of a run is what happened, in order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import datasets, envs
from rljax.agents import sac, sac_lagrangian
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.cli import data
from rljax.learning import plan
from rljax.learning.drivers.driver import TRAIN, environment_seeds
from rljax.runs import records, run
from rljax.runs.policies import collect
from tests.helpers import replay_buffers, small_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose replay of 150 rows has wrapped."""
    out = tmp_path_factory.mktemp("runs") / "sac"
    return small_runs.train(
        "sac", "Pendulum-v1", 200, out, {"replay_size": 150, "batch_size": 16}, seeds=2
    )


def replayed(seed: int, actions: np.ndarray) -> tuple[list[Any], list[float]]:
    """Successors and rewards of Pendulum for actions in [-1, 1], episodes included."""
    environment = gymnasium.make("Pendulum-v1")
    environment.reset(seed=seed)
    successors, rewards = [], []
    for action in actions:
        observation, reward, terminated, truncated, _ = environment.step(2 * action)
        successors.append(observation)
        rewards.append(float(reward))
        if terminated or truncated:
            environment.reset()
    return successors, rewards


@pytest.mark.slow
@pytest.mark.parametrize("source", ["policy", "exploring", "random"])
def test_played_episodes_are_the_environments(trained: Path, source: Any) -> None:
    dataset = collect.record(trained, steps=500, source=source, num_envs=2, seed=3)
    assert dataset.num == 500
    assert dataset.env == "Pendulum-v1"
    assert dataset.lengths().tolist() == [200, 50, 200, 50], (
        "environment by environment, the last episode cut"
    )
    rows = dataset.transitions
    for env, seed in enumerate(environment_seeds(3, TRAIN, number=2)):
        part = slice(250 * env, 250 * (env + 1))
        successors, rewards = replayed(seed, np.asarray(rows.action[part]))
        np.testing.assert_allclose(rows.next_observation[part], successors, atol=1e-6)
        np.testing.assert_allclose(rows.reward[part], rewards, rtol=1e-5)
    assert not [finding for finding in datasets.check(dataset) if finding.severity == "error"]
    spread = np.unique(np.asarray(rows.action)).size
    assert spread > 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "lengths"), [(403, [200, 2, 200, 1]), (5, [2, 2, 1]), (2, [1, 1]), (1, [1])]
)
def test_no_more_is_recorded_than_was_asked_for(
    trained: Path, steps: int, lengths: list[int]
) -> None:
    num_envs = 2 if steps > 5 else 3
    dataset = collect.record(trained, steps=steps, num_envs=num_envs, source="random")
    assert dataset.num == steps
    assert dataset.lengths().tolist() == lengths
    assert dataset.last[-1], "a cut is an end"
    found = [finding.name for finding in datasets.check(dataset)]
    assert "successors_do_not_follow" not in found
    assert "open_end" not in found


@pytest.mark.slow
def test_same_seed_records_the_same(trained: Path) -> None:
    first, second = (
        collect.record(trained, steps=100, source="exploring", seed=5) for _ in range(2)
    )
    np.testing.assert_array_equal(first.transitions.action, second.transitions.action)
    other = collect.record(trained, steps=100, source="exploring", seed=6)
    assert np.any(other.transitions.action != first.transitions.action)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [0, 1])
def test_a_replay_is_what_the_learner_has_seen_last(trained: Path, learner: int) -> None:
    dataset = collect.record(trained, source="replay", learner=learner)
    rows = dataset.transitions
    assert dataset.num == 150
    assert dataset.lengths().tolist() == [150], "step 200 is the episode's last"
    assert bool(rows.truncated[-1])
    np.testing.assert_array_equal(rows.observation[1:], rows.next_observation[:-1])
    shorter = collect.record(trained, source="replay", learner=learner, steps=60)
    np.testing.assert_array_equal(shorter.transitions.action, rows.action[:60])
    assert bool(shorter.transitions.truncated[-1]), "a cut is an end"


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In two environments of the program; the replay of 450 rows has wrapped in their second
    episodes.
    """
    out = tmp_path_factory.mktemp("runs") / "inside"
    changes = {"replay_size": 450, "batch_size": 16, "num_envs": 2}
    return small_runs.train("sac", "rljax/Pendulum", 500, out, changes)


@pytest.mark.learn
def test_a_replay_of_environments_inside_the_program(inside: Path, tmp_path: Path) -> None:
    path = tmp_path / "replay.npz"
    data.main(["record", str(inside), str(path), "--from", "replay", "--steps", "449"])
    dataset = datasets.load(str(path))
    assert (dataset.num, dataset.env) == (449, "rljax/Pendulum")
    assert dataset.lengths().tolist() == [175, 50, 175, 49], (
        "environment by environment, from step 25 on"
    )
    rows = dataset.transitions
    inner = np.flatnonzero(~dataset.last)
    np.testing.assert_allclose(
        rows.observation[inner + 1], rows.next_observation[inner], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(dataset.action_bounds, [[-1], [1]])
    cos, sin, speed = np.asarray(rows.observation).T
    torque = 2 * np.asarray(rows.action)[:, 0]
    reward = -(np.arctan2(sin, cos) ** 2 + 0.1 * speed**2 + 0.001 * torque**2)
    np.testing.assert_allclose(rows.reward, reward, rtol=1e-4, atol=1e-4)


@pytest.mark.learn
@pytest.mark.parametrize("source", ["policy", "exploring", "random"])
def test_environments_inside_the_program_are_not_played(inside: Path, source: Any) -> None:
    message = (
        r"is 'rljax/Pendulum', inside the program, .* Record what the learner stored .*: "
        r"--from replay"
    )
    with pytest.raises(ValueError, match=message):
        collect.record(inside, source=source)


def test_provenance_says_whose_it_is(trained: Path) -> None:
    dataset = collect.record(trained, steps=20, learner=1, seed=9)
    assert dataset.provenance["agent"] == "sac"
    assert dataset.provenance["training_seed"] == 1
    assert dataset.provenance["training_step"] == 200
    assert dataset.provenance["config"]["replay_size"] == 150
    assert dataset.max_episode_steps == 200


@pytest.mark.learn
def test_actions_that_nobody_took_are_counted(tmp_path: Path) -> None:
    settings = {"batch_size": 4, "warmup_steps": 4}
    out = small_runs.train(
        "dqn", "CartPole-v1", 8, tmp_path / "dqn", settings, without_updates=True
    )
    for source, path in (("random", tmp_path / "one.npz"), ("replay", tmp_path / "one.hdf5")):
        data.main(["record", str(out), str(path), "--steps", "1", "--from", source])
        again = datasets.load(str(path))
        assert (again.num, again.action_size) == (1, 2)
    both = datasets.join(
        [datasets.load(str(tmp_path / name)) for name in ("one.npz", "one.hdf5")], "both"
    )
    assert both.provenance["num_actions"] == 2


def test_references_are_those_of_the_task(trained: Path) -> None:
    assert collect.record(trained, steps=20).reference is None
    assert datasets.reference("Hopper-v5") == (-20.272305, 3234.3)
    assert datasets.reference("HalfCheetah-v5") == (-280.178953, 12135.0)


def test_parts_are_joined_with_their_ends(trained: Path) -> None:
    parts = [
        collect.record(trained, steps=30, num_envs=1, seed=seed, name=str(seed)) for seed in (0, 1)
    ]
    both = datasets.join(parts, "both")
    assert both.num == 60
    assert both.lengths().tolist() == [30, 30]
    assert [part["name"] for part in both.provenance["parts"]] == ["0", "1"]
    np.testing.assert_array_equal(both.transitions.reward[30:], parts[1].transitions.reward)


def test_written_and_read_back(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recorded.hdf5"
    data.main(
        ["record", str(trained), str(path), "--steps", "400", "--envs", "2", "--from", "random"]
    )
    assert "400 transitions, return" in capsys.readouterr().out
    again = datasets.load(str(path))
    found = again.transitions
    expected = collect.record(trained, steps=400, num_envs=2, source="random").transitions
    for name in ("observation", "reward", "terminated", "truncated", "next_observation"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.action, expected.action, atol=1e-6)
    assert again.env == "Pendulum-v1"
    data.main(["check", str(path)])
    data.main(["convert", str(path), str(tmp_path / "best.npz"), "--top", "0.5"])
    assert datasets.load(str(tmp_path / "best.npz")).num == 200
    data.main(["info", str(path), "--output", str(tmp_path / "info.png")])
    assert (tmp_path / "info.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source": "expert"},
            r"--from is 'expert', it must be one of policy, exploring, random, replay",
        ),
        ({"steps": 0}, r"--steps is 0"),
        ({"learner": 2}, r"no learner 2: the run has 2"),
        ({"learner": 2, "source": "replay"}, r"no learner 2: the run has 2"),
    ],
)
def test_what_cannot_be_recorded(trained: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collect.record(trained, **changes)


@pytest.mark.learn
def test_what_has_no_replay(tmp_path: Path) -> None:
    out = small_runs.train("ppo", "Pendulum-v1", 100, tmp_path / "ppo")
    with pytest.raises(ValueError, match="has no replay: its agent learns from a rollout"):
        collect.record(out, source="replay")


def test_signals_are_recorded_and_reach_agents_from_data(tmp_path: Path) -> None:
    """Row by row; agents get those that they ask for."""
    hosted, generator = envs.make_hosted("velocity/HalfCheetah-v5", 2), np.random.default_rng(0)
    chosen: list[np.ndarray] = []

    def choose(observation: Any, time: Any) -> np.ndarray:
        del time
        chosen.append(collect.random_actions(generator, hosted.spec, observation))
        return chosen[-1]

    rows = collect.roll_out(hosted, choose, 60, 0)
    hosted.close()
    plain: Any = gymnasium.make("velocity/HalfCheetah-v5")
    plain.reset(seed=environment_seeds(0, TRAIN, number=2)[1])
    expected = [plain.step(action[1])[4]["cost"] for action in chosen]
    np.testing.assert_array_equal(rows.extras["cost"][30:], expected)
    cost = np.arange(60.0, dtype=np.float32)  # random actions are never too fast
    rows = rows.replace(extras={"cost": cost})
    bounds = (-np.ones(6, np.float32), np.ones(6, np.float32))
    dataset = datasets.OfflineDataset("a", rows, "velocity/HalfCheetah-v5", None, bounds, {})
    path = str(datasets.write_archive(dataset, tmp_path / "a.npz"))
    loaded = datasets.load(path)
    mixed, others = (agent.experience(agent.Config()) for agent in (sac_lagrangian, sac))
    assert plan.prepared(loaded, others)[0].extras == {}
    np.testing.assert_array_equal(plan.prepared(loaded, mixed)[0].extras["cost"], cost)
    without = datasets.write_archive(
        dataclasses.replace(dataset, transitions=rows.replace(extras={})), tmp_path / "b.npz"
    )
    with pytest.raises(
        ValueError, match=r"agent 'sac_lagrangian' learns from the signal 'cost', and .* gives none"
    ):
        run.train(
            "sac_lagrangian",
            "velocity/HalfCheetah-v5",
            100,
            data=str(without),
            out=tmp_path / "run",
        )


@pytest.mark.slow
def test_the_signals_of_a_replay_are_recorded() -> None:
    # [P, E, ...]
    rows = jax.tree.map(jnp.asarray, replay_buffers.transitions(replay_buffers.numbered(0, 2)))
    shape = rows.reward.shape
    replay = ReplayBuffer.create(rows.replace(extras={"cost": rows.reward, "time": rows.reward}), 6)
    for step in range(4):  # of 6 rows in all
        extras = {
            name: step + 10.0 * jnp.ones(shape) * jnp.arange(shape[1]) for name in ("cost", "time")
        }
        replay = replay.add(rows.replace(extras=extras))
    found = collect.of_ring(replay.of_learner(0), 2, 6, ("cost",)).extras
    np.testing.assert_array_equal(found.pop("cost"), [1, 2, 3, 11, 12, 13])
    assert found == {}


@pytest.mark.learn
def test_an_agent_with_signals_learns_from_data_beside_its_environment(tmp_path: Path) -> None:
    first = small_runs.train(
        "sac", "velocity/HalfCheetah-v5", 100, tmp_path / "first", {"batch_size": 16}
    )
    path = datasets.write_archive(
        collect.record(first, steps=80, num_envs=2, source="random"), tmp_path / "a.npz"
    )
    changes = {"batch_size": 16, "warmup_steps": 20}
    out = small_runs.train(
        "sac_lagrangian",
        "velocity/HalfCheetah-v5",
        60,
        tmp_path / "second",
        changes,
        data=str(path),
    )
    lines = records.read(out, "metrics")
    assert np.isfinite(lines[-1]["cost/multiplier"]).all()
    replay = collect.record(out, steps=60, source="replay")
    assert [signal.name for signal in replay.spec.signals] == ["cost"]
