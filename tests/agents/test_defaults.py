"""Each agent learns a task that has no preset with the defaults of its file, in about a minute of one core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.runs import run
from rljax.training import registry
from tests import reach

# Environment steps: warm-ups are long, and learning takes a few thousand updates.
ONLINE = {
    "sac": 13_000,
    "td3": 29_000,
    "dsact": 13_000,
    "sac_discrete": 13_000,
    "ppo": 80_000,
    "dqn": 60_000,
    "stream_ac": 100_000,
    "stream_q": 100_000,
    "stream_sarsa": 100_000,
}
DISCRETE = {"cql_discrete", "dqn", "sac_discrete", "stream_q", "stream_sarsa"}
FROM_DATA = {  # updates
    "bc": 1_500,
    "td3_bc": 3_000,
    "iql": 2_000,
    "riql": 2_000,
    "cql": 500,
    "cql_discrete": 10_000,
    "edac": 2_000,
    "dql": 1_500,
    "ofql": 1_000,
    "ifql": 500,
    "fql": 800,
}
OTHERS = {"gciql", "stream_td"}  # which have tests of their own below
LEARNT = -6.0  # a third of the way from the best return to that of uniform actions; the data's mean is -9


def environment(agent: str) -> str:
    """The task, in a file of its own."""
    return f"{reach.__file__}:{'ReachDiscrete' if agent in DISCRETE else 'Reach'}"


def final(out: Path) -> float:
    """The mean return of the last policies of a run."""
    return json.loads((out / "summary.json").read_text())["final"]["mean"]


def test_every_agent_has_its_budget() -> None:
    assert set(ONLINE) | set(FROM_DATA) | OTHERS == set(registry.names())


@pytest.mark.parametrize("agent", [*ONLINE, *FROM_DATA, *sorted(OTHERS)])
def test_no_preset_applies(agent: str) -> None:
    module: Any = registry.load_agent(agent)
    assert registry.preset(agent, module, environment(agent), "reach.npz") == module.Config()


@pytest.mark.learn
@pytest.mark.parametrize("agent", ONLINE)
def test_defaults_learn_in_an_environment(agent: str, tmp_path: Path) -> None:
    steps = ONLINE[agent]
    out = run.train(agent, environment(agent), steps, seeds=2, out=tmp_path / "run", eval_every=steps, eval_episodes=30)
    assert final(out) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize("agent", FROM_DATA)
def test_defaults_learn_from_data(agent: str, tmp_path: Path) -> None:
    recorded = reach.choices if agent in DISCRETE else reach.journeys
    data, updates = str(recorded(tmp_path / "reach.npz")), FROM_DATA[agent]
    settings: dict[str, Any] = {"seeds": 2, "data": data, "eval_every": updates, "eval_episodes": 30}
    out = run.train(agent, environment(agent), updates, out=tmp_path / "run", **settings)
    assert final(out) >= LEARNT


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["bc", "iql"])
def test_defaults_learn_from_choices(agent: str, tmp_path: Path) -> None:
    """From data with discrete actions, of which half are uniform: their mean return is -5.0."""
    settings: dict[str, Any] = {"seeds": 2, "data": str(reach.choices(tmp_path / "reach.npz")), "eval_episodes": 30}
    task = f"{reach.__file__}:ReachDiscrete"
    out = run.train(agent, task, 1_500, out=tmp_path / "run", eval_every=1_500, **settings)
    assert final(out) >= -3.2


@pytest.mark.learn
def test_defaults_learn_to_reach_goals_from_walks(tmp_path: Path) -> None:
    data = str(reach.walks(tmp_path / "reach.npz"))
    out = run.train("gciql", "none", 400, data=data, seeds=2, out=tmp_path / "run", eval_every=400)
    policy, generator = rljax.load(out), np.random.default_rng(1)
    position, goal = generator.uniform(-1, 1, (2, 200, 2)).astype(np.float32)
    before = np.linalg.norm(position - goal, axis=1).mean()
    for _ in range(reach.LIMIT):
        position = reach.moved(position, policy(np.concatenate([position, goal], axis=1)), np).astype(np.float32)
    assert np.linalg.norm(position - goal, axis=1).mean() < before / 3


@pytest.mark.learn
def test_defaults_learn_the_values_of_uniform_actions(tmp_path: Path) -> None:
    """A uniform walk that begins far from its goal stays far from it for some time."""
    out = run.train("stream_td", environment("stream_td"), 100_000, seeds=2, out=tmp_path / "run", eval_every=100_000)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    errors = np.array([json.loads(line)["critic/error"] for line in lines])  # [lines, 2]
    assert (errors[-10:].mean(axis=0) < 0.5 * errors[:2].mean(axis=0)).all()
