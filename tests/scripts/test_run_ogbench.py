"""The runner of OGBench's own agents, with small stand-ins for its files."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from scripts.checks import run_ogbench

FILES = {
    "hyperparameters.sh": """
python main.py --env_name=maze-small-stitch-v0 --agent=agents/gcbc.py
python main.py --env_name=maze-small-stitch-v0 --agent=agents/gcivl.py --agent.alpha=10.0
""",
    "agents/__init__.py": "from agents.gcivl import Agent\nagents = {'gcivl': Agent}\n",
    "agents/gcivl.py": """
class Agent:
    def __init__(self, config, updates):
        self.config, self.updates = config, updates

    @classmethod
    def create(cls, seed, observations, actions, config):
        assert (seed, observations.shape, actions.shape) == (3, (1, 2), (1, 1))
        return cls(config, 0)

    def update(self, batch):
        assert len(batch["observations"]) == self.config["batch_size"] == 4
        return Agent(self.config, self.updates + 1), {}


def get_config():
    return {
        "dataset_class": "GoalData",
        "batch_size": 1024,
        "actor_hidden_dims": (512, 512, 512),
        "value_hidden_dims": (512, 512, 512),
        "alpha": 3.0,
    }
""",
    "utils/__init__.py": "",
    "utils/datasets.py": """
class Dataset(dict):
    @classmethod
    def create(cls, **rows):
        return cls(rows)


class GoalData:
    def __init__(self, rows, config):
        self.rows = rows

    def sample(self, size):
        return {name: x[:size] for name, x in self.rows.items()}
""",
    "utils/evaluation.py": """
def evaluate(agent, environment, task_id, config, num_eval_episodes):
    assert (environment, num_eval_episodes) == ("the maze", 2)
    assert config["alpha"] == 10.0 and config["value_hidden_dims"] == (5, 5)
    return {"success": float(agent.updates >= task_id)}, [], []
""",
}


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout, and its package; its modules are forgotten again."""
    for name, text in FILES.items():
        path = tmp_path / "peer" / "impls" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    mazes = {"maze-small-stitch-v0": "the maze"}
    package: Any = types.ModuleType("ogbench")
    package.make_env_and_datasets = lambda name, env_only: mazes[name]
    tools: Any = types.ModuleType("ogbench.utils")
    tools.load_dataset = lambda path: dict(np.load(path))
    others = [x for x in sys.modules if x.partition(".")[0] not in ("agents", "utils")]
    modules = {name: sys.modules[name] for name in others}
    modules |= {"ogbench": package, "ogbench.utils": tools}
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_ogbench, "PACKAGES", ("numpy",))
    with mock.patch.dict(sys.modules, modules, clear=True):
        yield tmp_path / "peer"


@pytest.fixture
def run(command: Any, peer: Path) -> Callable[[str], dict[str, Any]]:
    """Trains an agent, and reads what was written."""
    data, out = peer.parent / "maze-small-stitch-v0.npz", peer.parent / "out.json"
    np.savez(data, observations=np.zeros((9, 2)), actions=np.zeros((9, 1)))

    def train(agent: str) -> dict[str, Any]:
        words = f"--peer {peer} --updates 5 --eval-every 2 --episodes 2 --hidden 5 5"
        words += " --batch-size 4 --seed 3"
        command(run_ogbench, agent, data, out, *words.split())
        return json.loads(out.read_text())

    return train


def test_trains_with_the_authors_settings_and_writes_each_evaluation(run: Any) -> None:
    outcome = run("gcivl")
    assert outcome["settings"] == {"alpha": 10.0}
    assert outcome["data"] == "maze-small-stitch-v0.npz"
    scores = [(x["updates"], x["success"]) for x in outcome["evaluations"]]
    assert scores == [(2, [1.0, 1.0, 0.0, 0.0, 0.0]), (4, [1.0, 1.0, 1.0, 1.0, 0.0])]


def test_an_agent_without_a_command_is_refused(run: Any) -> None:
    message = r"^error: hyperparameters\.sh has no command of hiql for maze-small-stitch-v0\.$"
    with pytest.raises(SystemExit, match=message):
        run("hiql")
