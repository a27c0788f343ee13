"""Other projects' files see the recorded rows and Gymnasium's environment where they expect D4RL and old Gym."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from tests.helpers.counting import ROWS, recorded

ROOT = Path(__file__).parents[2]
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
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    found = importlib.import_module("reference_offline")
    for name in ("d4rl", "gym", "gym.wrappers", "wandb", "torch.utils.tensorboard", "reference"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return found


def test_a_file_learns_from_the_recorded_rows_and_plays_its_environment(script: Any, tmp_path: Path) -> None:
    rows = recorded("Pendulum-v1").transitions.replace(terminated=np.arange(ROWS) == 9)
    data = tmp_path / "data.hdf5"
    datasets.write(datasets.Dataset("data", rows, "Pendulum-v1", (-1000.0, 0.0), None, {}), data)
    (tmp_path / "other.py").write_text(FILE)
    kept = script.Recorded(data)
    script.install(kept)
    script.execute(tmp_path / "other.py", [], {"episodes": 2}, 64)
    seen = sys.modules["reference"].SEEN
    np.testing.assert_array_equal(seen["observations"], rows.observation)
    np.testing.assert_array_equal(seen["terminals"], rows.terminated)
    assert (seen["score"], seen["widths"]) == (1.0, [3, 64, 64])
    assert kept.terminal_reward == 2 * rows.reward[9], "in the unit from which the file's agent learns"
    (evaluation,) = kept.evaluations
    assert (evaluation["updates"], len(evaluation["returns"]), evaluation["terminal_value"]) == (7, 2, None)
    assert max(evaluation["returns"]) < 0
    assert 0 < evaluation["began"] < evaluation["ended"] <= kept.seconds


def test_without_terminal_rows_there_is_no_value_of_ends(script: Any, tmp_path: Path) -> None:
    data = tmp_path / "data.hdf5"
    datasets.write(datasets.Dataset("data", recorded("Pendulum-v1").transitions, "Pendulum-v1", None, None, {}), data)
    kept = script.Recorded(data)
    kept.serve()
    assert kept.terminal_reward is None
    assert kept.mean_value([len], np.array([], int)) is None


def test_a_field_that_is_not_there_is_named(script: Any, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("class TrainConfig:\n    seed = 0\n")
    with pytest.raises(SystemExit, match=r"^error: TrainConfig of other\.py has no field 'sed'\.$"):
        script.execute(tmp_path / "other.py", [], {"sed": 1}, None)


def test_values_are_means_over_critics_and_rows(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoGrad:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    torch: Any = types.ModuleType("torch")
    torch.float32, torch.no_grad = np.float32, NoGrad
    torch.as_tensor = lambda x, dtype: np.asarray(x, dtype)
    monkeypatch.setitem(sys.modules, "torch", torch)
    kept = object.__new__(script.Recorded)
    kept.served = {"observations": np.arange(6.0)[:, None], "actions": np.ones((6, 1))}
    twins = types.SimpleNamespace(both=lambda o, a: (o + a, o + 3 * a))  # means 4 and 6
    assert kept.mean_value([twins, lambda o, a: 2 * o], np.array([2, 4])) == pytest.approx((4 + 6 + 6) / 3)
