"""The agents of docs/examples: nothing outside their files knows them, and they do what their equations say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import load
from rljax.agent import EnvSpec
from rljax.runs import run
from rljax.training import registry
from tests.agents import reference
from tests.helpers import small_runs

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
SPEC = EnvSpec("test/Example-v0", (3,), 2)
KEY = jax.random.key(0)


def example(name: str) -> Any:
    """An example's module."""
    return registry.load_agent(str(EXAMPLES / f"{name}.py"))


def test_nothing_outside_their_files_knows_the_examples() -> None:
    """What it costs to add CrossQ: no line elsewhere."""
    root = EXAMPLES.parents[1]
    for folder in ("rljax", "agents", "envs"):
        for path in (root / folder).rglob("*.py"):
            assert "crossq.py" not in path.read_text().lower(), path


@pytest.mark.slow
def test_critics_of_crossq_are_normalised_over_both_halves_of_the_batch() -> None:
    crossq = example("crossq")
    config = crossq.Config(hidden=(8,), batch_size=5, momentum=0.5)
    state, batch = jax.jit(crossq.init, static_argnums=1)(KEY, SPEC, config), reference.transitions()
    key, _ = jax.random.split(KEY)  # as `update` does
    _, (moved, _) = jax.jit(crossq.critic_loss)(state.critic, state, batch, key, config)
    policy = jax.jit(lambda actor, seen: crossq.policy(actor(seen)).sample_and_log_prob(seed=key))
    next_action, _ = policy(state.actor, batch.next_observation)
    halves = (batch.observation, batch.action), (batch.next_observation, next_action)
    inputs = np.concatenate([np.concatenate(half, axis=-1) for half in halves])
    first = moved.collections["batch_stats"]["Normalised_0"]["BatchNorm_0"]
    np.testing.assert_allclose(first["mean"], 0.5 * inputs.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(first["var"], 0.5 + 0.5 * inputs.var(axis=0), rtol=1e-4)

    new, _ = jax.jit(crossq.update)(state, batch, KEY, jnp.asarray(0), config)
    for leaf, expected in zip(*map(jax.tree.leaves, (new.critic.collections, moved.collections)), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-6, err_msg="Adam moves no statistics")
    assert any(
        np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (new.critic.params, state.critic.params)), strict=True)
    )


@pytest.mark.learn
def test_crossq_is_stopped_and_resumed_with_its_statistics(tmp_path: Path) -> None:
    config = {"hidden": (16,), "batch_size": 32, "warmup_steps": 50, "replay_size": 300}
    file, how = str(EXAMPLES / "crossq.py"), {"seeds": 2, "config": config, **small_runs.EVERY}
    whole = run.train(file, "rljax/Pendulum", 200, out=tmp_path / "whole", **how)
    half = run.train(file, "rljax/Pendulum", 100, out=tmp_path / "half", **how)
    run.resume(half, 200)
    small_runs.assert_same(whole, half)
    assert any("batch_stats" in place for place in small_runs.arrays(whole))
    assert np.abs(load(whole)(np.zeros(3))).max() <= 1.0
