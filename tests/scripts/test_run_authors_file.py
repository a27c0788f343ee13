"""Other projects' files see the recorded rows and Gymnasium's environment where they expect D4RL
and old Gym.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from scripts.checks import run_authors_file, watch_authors_file
from scripts.checks.authors import pairs
from tests.helpers.counting import ROWS, recorded

FILE = """
import d4rl
import gym
import wandb


class TrainConfig:
    episodes = 1


class Trainer:
    total_it = 7


class Network:
    def __init__(self, inputs, hidden_dim=256, depth=2):
        self.widths = [inputs] + [hidden_dim] * depth


def train(config):
    env = gym.wrappers.TransformObservation(gym.make("hopper-medium-v2"), lambda x: 0 * x)
    env.seed(0)  # before there is an agent
    data = d4rl.qlearning_dataset(env)
    data["rewards"] *= 2
    trainer = Trainer()
    wandb.log({"loss": 0})
    env.seed(3)
    for _ in range(config.episodes):
        observation, done = env.reset(), False
        while not done:
            observation, _, done, _ = env.step(env.action_space.low)
            assert not observation.any()
    SEEN.update(data, score=env.get_normalized_score(0.0), widths=Network(3).widths)


SEEN = {}
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script. What it changes for other projects' files is put back."""
    for name in ("d4rl", "gym", "gym.wrappers", "wandb", "torch.utils.tensorboard", "reference"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return run_authors_file


def test_a_file_learns_from_the_recorded_rows_and_plays_its_environment(
    script: Any, tmp_path: Path
) -> None:
    rows = recorded("Pendulum-v1").transitions.replace(terminated=np.arange(ROWS) == 9)
    data = tmp_path / "data.hdf5"
    datasets.write(
        datasets.OfflineDataset("data", rows, "Pendulum-v1", (-1000.0, 0.0), None, {}), data
    )
    (tmp_path / "other.py").write_text(FILE)
    recording = script.Recorded(data)
    script.install(recording)
    script.execute(tmp_path / "other.py", [], {"episodes": 2}, 64)
    served = sys.modules["reference"].SEEN
    np.testing.assert_array_equal(served["observations"], rows.observation)
    np.testing.assert_array_equal(served["terminals"], rows.terminated)
    assert (served["score"], served["widths"]) == (1.0, [3, 64, 64])
    assert recording.terminal_reward == 2 * rows.reward[9], (
        "in the unit from which the file's agent learns"
    )
    (evaluation,) = recording.evaluations
    assert (evaluation["updates"], len(evaluation["returns"]), evaluation["terminal_value"]) == (
        7,
        2,
        None,
    )
    assert max(evaluation["returns"]) < 0
    assert 0 < evaluation["began"] < evaluation["ended"] <= recording.seconds


def test_without_terminal_rows_there_is_no_value_of_ends(script: Any, tmp_path: Path) -> None:
    data = tmp_path / "data.hdf5"
    datasets.write(
        datasets.OfflineDataset(
            "data", recorded("Pendulum-v1").transitions, "Pendulum-v1", None, None, {}
        ),
        data,
    )
    recording = script.Recorded(data)
    recording.serve()
    assert recording.terminal_reward is None
    assert recording.mean_value([len], np.array([], int)) is None


def test_a_field_that_is_not_there_is_named(script: Any, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("class TrainConfig:\n    seed = 0\n")
    with pytest.raises(SystemExit, match=r"^error: TrainConfig of other\.py has no field 'sed'\.$"):
        script.execute(tmp_path / "other.py", [], {"sed": 1}, None)


def test_values_are_means_over_critics_and_rows(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoGrad:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    torch: Any = types.ModuleType("torch")
    torch.float32, torch.no_grad = np.float32, NoGrad
    torch.as_tensor = lambda x, dtype: np.asarray(x, dtype)
    monkeypatch.setitem(sys.modules, "torch", torch)
    recording = object.__new__(script.Recorded)
    recording.served = {"observations": np.arange(6.0)[:, None], "actions": np.ones((6, 1))}
    twins = types.SimpleNamespace(both=lambda o, a: (o + a, o + 3 * a))  # means 4 and 6
    assert recording.mean_value([twins, lambda o, a: 2 * o], np.array([2, 4])) == pytest.approx(
        (4 + 6 + 6) / 3
    )


def test_what_a_file_does_is_kept_as_arrays(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data, rng = tmp_path / "data.hdf5", np.random.default_rng(0)
    datasets.write(
        datasets.OfflineDataset(
            "data", recorded("Pendulum-v1").transitions, "Pendulum-v1", None, None, {}
        ),
        data,
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "other.py").write_text("class Learner: ...\n")
    losses = {"critic_loss": ("critic/loss", 1.0), "one+other": ("actor/loss", 1.0)}
    pair = pairs.Pair("project/other.py", "Learner", {}, losses, "--updates {updates}", {})
    monkeypatch.setitem(pairs.PAIRS, "td3_bc", pair)

    def watch(module: Any, pair: Any, rows: Any) -> watch_authors_file.Watched:
        assert module.Learner
        assert sys.argv == ["project/other.py", "--updates", "200"]
        batches = [[rows["observations"][:4], rows["actions"][:4]]] * 2
        updates = [{"critic_loss": 1.0}, {"critic_loss": 2.0, "one": 3.0, "other": 4.0}]
        return watch_authors_file.Watched(
            {"a": rng.normal(size=3)}, {"a": np.ones(3)}, batches, updates, [{}, {}]
        )

    monkeypatch.setitem(watch_authors_file.WATCHERS, "torch", watch)
    out = tmp_path / "out.npz"
    monkeypatch.setattr(sys, "argv", ["watch", "td3_bc", str(data), str(tmp_path), str(out)])
    watch_authors_file.main()
    with np.load(out) as arrays:
        assert arrays["actions"].shape == (2, 4, 1)
        np.testing.assert_array_equal(arrays["loss/critic_loss"], [1.0, 2.0])
        np.testing.assert_array_equal(arrays["loss/one+other"], [np.nan, 7.0])
        assert {"first/a", "last/a", "observations"} <= set(arrays)
