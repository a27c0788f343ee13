"""The agents of docs/examples: nothing outside their files knows them, and they do what their equations say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import datasets, load
from rljax.agent import EnvSpec
from rljax.runs import records, run
from rljax.training import registry
from tests import fakes, small_runs
from tests.agents import reference

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SPEC = EnvSpec("test/Example-v0", (3,), 2)
KEY = jax.random.key(0)


def example(name: str) -> Any:
    """An example's module."""
    return registry.load_agent(str(EXAMPLES / f"{name}.py"))


def test_nothing_outside_their_files_knows_the_examples() -> None:
    """What it costs to add CrossQ and ReBRAC: no line elsewhere."""
    root = EXAMPLES.parents[1]
    for folder in ("rljax", "agents", "envs"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text().lower()
            assert "rebrac.py" not in text, path
            assert "crossq.py" not in text, path


def test_critics_of_rebrac_are_penalised_for_other_next_actions() -> None:
    rebrac = example("rebrac")
    config = rebrac.Config(hidden=(8, 8), batch_size=5, critic_penalty=0.7)
    state, batch = jax.jit(rebrac.init, static_argnums=1)(KEY, SPEC, config), reference.transitions()
    generator = np.random.default_rng(3)
    known, has = generator.uniform(-1, 1, (5, 2)).astype(np.float32), np.array([True, False, True, True, False])
    batch = batch.replace(extras={"next_action": jnp.asarray(known), "has_next_action": jnp.asarray(has)})
    loss, _ = jax.jit(rebrac.critic_loss)(state.critic, state, batch, KEY, config)

    noise = np.clip(0.2 * np.asarray(jax.random.normal(KEY, (5, 2)), np.float64), -0.5, 0.5)
    action = np.clip(np.tanh(np.asarray(state.target_actor(batch.next_observation), np.float64)) + noise, -1, 1)
    next_q = np.asarray(state.target_critic(batch.next_observation, jnp.asarray(action, jnp.float32)), np.float64)
    penalty = np.where(has, 0.7 * np.square(action - known).sum(axis=-1), 0.0)
    alive = 1.0 - np.asarray(batch.terminated, np.float64)
    target = np.asarray(batch.reward, np.float64) + 0.99 * alive * (next_q.min(axis=0) - penalty)
    q = np.asarray(state.critic(batch.observation, batch.action), np.float64)
    np.testing.assert_allclose(loss, np.square(q - target).mean(axis=-1).sum(), rtol=1e-5)


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


@pytest.mark.learn
def test_rebrac_learns_from_a_data_set(tmp_path: Path) -> None:
    data = datasets.write(fakes.recorded("Pendulum-v1"), tmp_path / "data.npz")
    config = {"hidden": (16,), "batch_size": 32}
    out = run.train(
        str(EXAMPLES / "rebrac.py"), "Pendulum-v1", 200, data=str(data), config=config, out=tmp_path / "run",
        **small_runs.EVERY,
    )  # fmt: skip
    assert json.loads((out / "summary.json").read_text())["complete"]
    assert records.read(out, "metrics")[-1]["critic/penalty"][0] > 0
