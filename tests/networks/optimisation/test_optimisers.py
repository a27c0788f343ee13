"""Optimisers by settings against float64 NumPy, written from the papers and PyTorch's pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent, networks
from rljax.agents import iql, ppo, sac
from rljax.learning import configuration, schedules
from rljax.learning.settings import Settings
from rljax.networks import WithSchedule
from rljax.networks.layers import Network
from rljax.networks.optimisation import optimisers

START = np.array([0.5, -1.5, 2.0])
SLOPES = np.array([[0.3, -0.1, 4.0], [0.2, 0.5, -3.0], [-0.7, 0.1, 0.2], [0.1, 0.1, -0.1]])


@agent.config
class Config(WithSchedule):
    """Settings of optimisers alone."""


def moved(config: Config, rate: float = 0.1, steps: Any = None, **options: Any) -> np.ndarray:
    """The parameters after a step along each of SLOPES."""
    trained = networks.trained(jnp.asarray(START, jnp.float32), rate, config)
    for step, slope in enumerate(SLOPES):
        optimiser = networks.optimiser(rate, step if steps is None else steps, config, **options)
        trained = trained.apply(optimiser, jnp.asarray(slope, jnp.float32))
    return np.asarray(trained.parameters)


def adam_by_hand(rate: float, decay: float = 0.0, limit: float = np.inf) -> np.ndarray:
    """Kingma and Ba, algorithm 1; decay as in Loshchilov and Hutter, algorithm 2."""
    x, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for t, slope in enumerate(SLOPES, 1):
        slope = slope * min(1.0, limit / np.linalg.norm(slope))
        m = 0.9 * m + 0.1 * slope
        v = 0.999 * v + 0.001 * slope**2
        direction = (m / (1.0 - 0.9**t)) / (np.sqrt(v / (1.0 - 0.999**t)) + 1e-8)
        x = x - rate * (direction + decay * x)
    return x


def rmsprop_by_hand(rate: float, decay: float) -> np.ndarray:
    """PyTorch's RMSprop, alpha 0.99 and epsilon 1e-8, beside decoupled weight decay."""
    x, v = START.copy(), np.zeros(3)
    for slope in SLOPES:
        v = 0.99 * v + 0.01 * slope**2
        x = x - rate * (slope / (np.sqrt(v) + 1e-8) + decay * x)
    return x


def test_adam_with_decoupled_weight_decay_and_a_limit_of_gradients() -> None:
    np.testing.assert_allclose(moved(Config()), adam_by_hand(0.1), rtol=1e-5)
    np.testing.assert_allclose(
        moved(Config(weight_decay=0.3, max_grad_norm=1.5)), adam_by_hand(0.1, 0.3, 1.5), rtol=1e-5
    )
    np.testing.assert_array_equal(moved(Config(max_grad_norm=0.0)), moved(Config()))


def test_rmsprop_and_gradient_descent() -> None:
    config = Config(optimiser="rmsprop", weight_decay=0.2)
    np.testing.assert_allclose(moved(config, 0.01), rmsprop_by_hand(0.01, 0.2), rtol=1e-5)
    by_hand = START - 0.01 * SLOPES.sum(axis=0)
    np.testing.assert_allclose(moved(Config(optimiser="sgd"), 0.01), by_hand, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "step", "share"),
    [
        ("linear", 0, 1.0),
        ("linear", 50, 0.2 + 0.8 * 0.75),
        ("linear", 500, 0.2),
        ("cosine", 50, 0.2 + 0.8 * 0.5 * (1.0 + np.cos(np.pi * 0.25))),
        ("cosine", 200, 0.2),
        ("constant", 50, 1.0),
    ],
)
def test_rates_follow_the_schedule(kind: Any, step: int, share: float) -> None:
    config = Config(rate_schedule=kind, rate_end=0.2, rate_updates=200.0)
    assert optimisers.scheduled(3.0, step, config) == pytest.approx(3.0 * share)
    np.testing.assert_allclose(moved(config, 0.1, step), adam_by_hand(0.1 * share), rtol=1e-5)


def test_a_schedule_spans_the_updates_of_the_run() -> None:
    """Not the steps before the first update; those of a data set and of a stage after it."""

    def updates(module: Any, settings: Settings, **config: Any) -> Any:
        config = module.Config(rate_schedule="linear", **config)
        return schedules.in_steps(module, config, settings).rate_updates

    in_environment = Settings("sac", "Pendulum-v1", steps=5_000)
    assert updates(sac, in_environment, warmup_steps=1_000, num_updates=2) == 8_000.0
    assert updates(sac, in_environment, warmup_steps=1_000, rate_updates=70.0) == 70.0
    from_data = Settings("iql", "Pendulum-v1", steps=5_000, data="data.npz")
    assert updates(iql, from_data) == 5_000.0
    assert updates(iql, from_data.__class__(**{**vars(from_data), "then_online": 500})) == 5_500.0
    assert not hasattr(ppo.Config(), "rate_schedule"), "decay_steps is PPO's schedule"
    without_run = moved(Config(rate_schedule="linear"))
    np.testing.assert_array_equal(without_run, moved(Config()))


def test_weight_decay_leaves_statistics_of_networks_alone() -> None:
    network = Network({"w": jnp.ones(2)}, None, collections={"batch_stats": {"m": jnp.ones(2)}})  # type: ignore[arg-type]
    config = Config(optimiser="sgd", weight_decay=0.5)
    zero = jax.tree.map(jnp.zeros_like, network)
    trained = networks.trained(network, 0.1, config)
    after = trained.apply(networks.optimiser(0.1, 0, config), zero).parameters
    np.testing.assert_allclose(after.params["w"], 0.95)
    np.testing.assert_array_equal(after.collections["batch_stats"]["m"], 1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [({"weight_decay": -0.1}, "weight-decay"), ({"rate_end": 1.5}, "rate-end")],
)
def test_numbers_out_of_range_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agent.check_types(Config(**value))
    with pytest.raises(ValueError, match="adam, radam, rmsprop"):
        configuration.replace(sac.Config(), {"optimiser": "adamw"}, "--config")


def settings(**changes: Any) -> SimpleNamespace:
    """Rollouts of 10 steps, in a decay of 40."""
    usual = {"learning_rate": 2.0, "decay_steps": 40.0, "num_envs": 2, "num_steps": 5}
    return SimpleNamespace(**usual | changes)


def test_a_rate_falls_to_nothing_and_stays_there() -> None:
    decayed = [float(optimisers.decayed(settings(), rollouts)) for rollouts in (0, 1, 3, 4, 9)]
    np.testing.assert_allclose(decayed, [2.0, 1.5, 0.5, 0.0, 0.0])
    large = settings(num_envs=2**8, num_steps=2**8, decay_steps=1e6)
    assert optimisers.decayed(large, jnp.int32(2**15 + 1)) == 0.0, "beyond 2^31 steps"


def test_a_rate_without_decay_stays_as_it_is() -> None:
    assert optimisers.decayed(settings(decay_steps=None), 7) == 2.0


def test_a_number_goes_from_one_to_another() -> None:
    numbers = [float(optimisers.linear(0.8, 0.2, steps, 100.0)) for steps in (0, 50, 100, 1_000)]
    np.testing.assert_allclose(numbers, [0.8, 0.5, 0.2, 0.2], rtol=1e-6)
