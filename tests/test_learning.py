"""Agents learn a real task in minutes, through both drivers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljax import run


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["sac", "td3", "dsact"])
@pytest.mark.parametrize("env", ["Pendulum-v1", "rljax/Pendulum"])
def test_swings_the_pendulum_up(agent: str, env: str, tmp_path: Path) -> None:
    out = run.train(agent, env, 10_000, seeds=1, out=tmp_path / "run", eval_every=2_500, eval_episodes=10)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["best"]["mean"] >= -200, summary["best"]


@pytest.mark.learn
@pytest.mark.parametrize(
    ("env", "steps", "solved"),
    [("Pendulum-v1", 100_000, -200), ("rljax/Pendulum", 100_000, -200), ("CartPole-v1", 60_000, 475)],
)
def test_learns_on_policy(env: str, steps: int, solved: float, tmp_path: Path) -> None:
    out = run.train("ppo", env, steps, seeds=1, out=tmp_path / "run", eval_every=steps // 8, eval_episodes=10)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["best"]["mean"] >= solved, summary["best"]
