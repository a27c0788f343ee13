"""`exploration` of agents for continuous actions: noise that lasts."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.agent import first_memory
from rljax.networks import noise
from rljax.runs import run
from rljax.runs.policies import loading
from tests.agents import reference, trees
from tests.helpers import small_runs

NAMES = ["sac", "dsact", "td3"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", NAMES)
def test_actions_have_the_noise_that_lasts(name: str) -> None:
    module = importlib.import_module(f"rljax.agents.{name}")
    tests = importlib.import_module(f"tests.agents.test_{name}")
    spec, config, _ = tests.example()
    assert module.remember(spec, config) is None, "white noise needs no memory"
    config = dataclasses.replace(config, exploration="held")
    state = reference.state(module, spec, config)
    act = jax.jit(module.act, static_argnames="explore")
    seen = np.asarray(reference.transitions().observation)[:4]
    held = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)), jnp.float32)
    memory: Any = noise.Held(held, jnp.array([0, 1, 2, 0], jnp.int32))

    mean, _, same = act(state, seen, jax.random.key(0), config, explore=False, memory=memory)
    assert same is not None
    assert all(
        np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (same, memory)), strict=True)
    )
    np.testing.assert_array_equal(
        act(state, seen, jax.random.key(0), config, explore=False)[0], mean
    )

    action, _, after = act(state, seen, jax.random.key(1), config, explore=True, memory=memory)
    np.testing.assert_array_equal(after.noise[1:3], held[1:3])
    assert np.all(np.asarray(after.noise)[[0, 3]] != np.asarray(held)[[0, 3]])
    np.testing.assert_array_equal(after.left[1:3], [0, 1])
    if name == "td3":
        expected = np.clip(
            np.asarray(mean) + config.exploration_noise * np.asarray(after.noise), -1.0, 1.0
        )
    else:
        output = np.asarray(state.actor(seen), np.float64)
        log_std = np.clip(output[:, 2:], config.log_std_min, config.log_std_max)
        expected = np.tanh(output[:, :2] + np.exp(log_std) * np.asarray(after.noise, np.float64))
    trees.assert_close(action, expected)


@pytest.mark.learn
def test_runs_resume_with_the_noise_that_lasts(tmp_path: Path) -> None:
    config = {"exploration": "pink"}
    small_runs.train("sac", "rljax/Pendulum", 200, tmp_path / "whole", config, seeds=2)
    small_runs.train("sac", "rljax/Pendulum", 100, tmp_path / "half", config, seeds=2)
    run.resume(tmp_path / "half", 200)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")

    policies = loading.load_all(tmp_path / "half")
    assert not policies.remembers
    memory: Any = first_memory(policies.module, policies.spec, policies.config)
    assert memory.parts.shape == (6, 1), "the time limit of 200 steps"
    loaded = rljax.load(tmp_path / "half")
    seen = np.zeros(3, np.float32)
    assert loaded(seen) == loaded(seen), "no history is needed without exploration"
    explored = [loaded(seen, explore=True, step=step)[0] for step in range(60)]
    drawn = [loaded(seen, explore=True)[0] for _ in range(60)]
    assert np.abs(np.diff(explored)).mean() < 0.8 * np.abs(np.diff(drawn)).mean(), (
        "pink noise moves less in a step"
    )
