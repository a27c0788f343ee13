"""MuJoCo's tasks on MJX, compared with Gymnasium's own."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks import mjx
from scripts.checks import parity_mjx

tasks = pytest.mark.parametrize("task", mjx.TASKS)


def gymnasiums(task: str) -> Any:
    return gymnasium.make(f"{task}-v5").unwrapped


@tasks
def test_spec_is_gymnasiums(task: str) -> None:
    environment, theirs = envs.make(f"rljax/{task}"), gymnasium.make(f"{task}-v5")
    assert environment.spec.observation_shape == theirs.observation_space.shape
    assert (environment.spec.action_size,) == theirs.action_space.shape
    assert theirs.spec is not None
    assert environment.spec.max_episode_steps == theirs.spec.max_episode_steps
    assert mjx.MJX(f"rljax/{task}").dt == pytest.approx(gymnasiums(task).dt)


@pytest.mark.slow_after(1)
@tasks
def test_episodes_begin_as_gymnasiums(task: str) -> None:
    environment, theirs = mjx.MJX(f"rljax/{task}"), gymnasiums(task)
    ours = np.asarray(
        jax.vmap(lambda key: environment.reset(key)[0])(jax.random.split(jax.random.key(0), 2000))
    )
    first = np.stack([theirs.reset(seed=seed)[0] for seed in range(2000)])
    np.testing.assert_allclose(
        ours.mean(axis=0), first.mean(axis=0), atol=0.1 * environment.task.noise
    )
    np.testing.assert_allclose(ours.std(axis=0), first.std(axis=0), rtol=0.08)
    # The fourth moment tells a uniform distribution (1.8) from a normal one (3).
    np.testing.assert_allclose(kurtosis(ours), kurtosis(first), atol=0.5)


def kurtosis(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(axis=0)
    return np.mean(centred**4, axis=0) / np.mean(centred**2, axis=0) ** 2


@pytest.mark.learn
@tasks
def test_health_and_observation_are_gymnasiums(task: str) -> None:
    environment, theirs = mjx.MJX(f"rljax/{task}"), gymnasiums(task)
    generator = np.random.default_rng(0)
    healthy = []
    for _ in range(300):
        qpos = theirs.init_qpos + generator.normal(0, 0.4, theirs.model.nq)
        qvel = generator.normal(0, generator.choice([1.0, 30.0, 60.0]), theirs.model.nv)
        theirs.set_state(qpos, qvel)
        healthy.append(task == "HalfCheetah" or bool(theirs.is_healthy))
        assert bool(environment._healthy(jnp.asarray(qpos), jnp.asarray(qvel))) == healthy[-1]
        observation = environment._observation(jnp.asarray(qpos), jnp.asarray(qvel))
        np.testing.assert_allclose(observation, theirs._get_obs(), rtol=1e-6)
    assert task == "HalfCheetah" or 0 < np.mean(healthy) < 1, "both kinds of state were seen"


@pytest.mark.learn
@pytest.mark.parametrize("task", ["HalfCheetah", "Hopper", "Walker2d"])
def test_steps_are_gymnasiums(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_mjx, "STEPS", 10)
    recording = parity_mjx.recorded(task, starts=16)
    observation, reward, terminated = parity_mjx.replayed(task, recording, np.float32)
    np.testing.assert_allclose(observation[:, 0], recording["observation"][:, 0], atol=1e-2)
    np.testing.assert_allclose(reward[:, 0], recording["reward"][:, 0], atol=1e-3)
    error = parity_mjx.apart(recording, observation, reward, terminated)
    assert np.median(error["observation"][:, -1]) < 1e-4
    assert np.median(error["reward"][:, -1]) < 1e-5
    assert error["ends"].mean() > 0.9


def test_velocities_have_limits() -> None:
    environment = mjx.MJX("rljax/velocity/Hopper")
    assert environment.spec.name == "rljax/velocity/Hopper"
    assert [part.name for part in environment.spec.signals] == ["cost"]
    assert (
        mjx.MJX("rljax/velocity/Hopper").limit,
        mjx.MJX("rljax/Hopper").spec.signals,
    ) == (0.7402, ())
    assert "rljax/velocity/Walker2d" in envs.names()["rljax"]


@pytest.mark.learn
def test_speed_costs() -> None:
    environment = mjx.MJX("rljax/velocity/Hopper")
    _, state = environment.reset(jax.random.key(0))
    step = jax.jit(environment.step)
    costs = []
    for speed in (0.0, 3.0):
        moving = state.replace(qvel=state.qvel.at[0].set(speed))
        *_, info = step(jax.random.key(0), moving, jnp.zeros(3))
        assert info["cost"] == float(info["x_velocity"] > 0.7402)
        costs.append(float(info["cost"]))
    assert costs == [0.0, 1.0]
