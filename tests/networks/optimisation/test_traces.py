"""Eligibility traces and ObGD."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.networks.optimisation import traces
from tests.networks.reference import assert_close

DISCOUNT, DECAY, KAPPA = 0.99, 0.8, 2.0


class Reference:
    """Algorithms 1 (ObGD) and 3 (adaptive) of arXiv:2410.14606."""

    def __init__(self, size: int, adaptive: bool, rate: float) -> None:
        self.weights, self.trace, self.moment = np.zeros(size), np.zeros(size), np.zeros(size)
        self.adaptive, self.rate, self.steps = adaptive, rate, 0

    def step(self, gradient: np.ndarray, error: float, reset: bool) -> None:
        self.steps += 1
        self.trace = DISCOUNT * DECAY * self.trace + gradient
        direction = self.trace
        if self.adaptive:
            self.moment = 0.999 * self.moment + 0.001 * (error * self.trace) ** 2
            direction = self.trace / np.sqrt(self.moment / (1 - 0.999**self.steps) + 1e-8)
        bound = self.rate * KAPPA * max(abs(error), 1.0) * np.abs(direction).sum()
        self.weights = self.weights + self.rate / max(bound, 1.0) * error * direction
        if reset:
            self.trace = np.zeros_like(self.trace)


def made(adaptive: bool, rate: float = 1.0) -> optax.GradientTransformationExtraArgs:
    return (traces.adaptive_obgd if adaptive else traces.obgd)(KAPPA, DISCOUNT, DECAY, rate)


def split(vectors: Any) -> dict[str, Any]:
    """A layer of vectors [..., 40]."""
    kernel = vectors[..., :35].reshape(*vectors.shape[:-1], 7, 5)
    return {"kernel": kernel, "bias": vectors[..., 35:]}


@pytest.mark.learn
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("rate", [1.0, 1e-3])
def test_a_thousand_steps_equal_the_paper(adaptive: bool, rate: float) -> None:
    generator, size = np.random.default_rng(0), 40
    optimiser, reference = made(adaptive, rate), Reference(size, adaptive, rate)
    scales = 10.0 ** generator.uniform(-2, 1, size=(1_000, 1))
    gradients = generator.normal(size=(1_000, size)) * scales
    errors, resets = generator.normal(size=1_000) * 3.0, generator.random(1_000) < 0.05

    @jax.jit
    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        params, state = carry
        gradient, error, reset = inputs
        change, state = optimiser.update(gradient, state, error=error, reset=reset)
        params = optax.apply_updates(params, change)
        return (params, state), (params, state.trace)

    params = split(jnp.zeros(size))
    numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (split(gradients), errors))
    inputs = (*numbers, jnp.asarray(resets))
    _, (found, found_traces) = jax.lax.scan(step, (params, optimiser.init(params)), inputs)
    for t in range(1_000):
        reference.step(gradients[t], errors[t], resets[t])
        atol = 2e-5 * np.abs(reference.weights).max()
        now, traces_now = jax.tree.map(lambda x, t=t: x[t], (found, found_traces))
        assert_close(now, split(reference.weights), rtol=1e-3, atol=atol)
        assert_close(traces_now, split(reference.trace), rtol=1e-4, atol=1e-4)
    assert resets.sum() > 20


def overshoot(optimiser: optax.GradientTransformationExtraArgs) -> float:
    """The largest change of a prediction, in multiples of its error."""
    generator = np.random.default_rng(1)
    weights, largest = jnp.zeros(20), 0.0
    state, update = optimiser.init(weights), jax.jit(optimiser.update)
    for t in range(500):
        features = generator.uniform(-1, 1, 20) * 10.0 ** generator.uniform(-1, 0)
        features = jnp.asarray(features, jnp.float32)
        error = jnp.float32(generator.normal() * 10.0 ** generator.uniform(-1, 3))
        change, state = update(features, state, error=error, reset=jnp.asarray(t % 50 == 49))
        weights = weights + change
        largest = max(largest, float(jnp.abs(features @ change) / jnp.abs(error)))
    return largest


def test_bounded_steps_never_overshoot_on_linear_problems() -> None:
    assert overshoot(made(False)) <= 1.0 / KAPPA
    assert overshoot(traces.obgd(0.0, DISCOUNT, DECAY)) > 1.0, "the problems do not show it"


def test_traces_equal_the_forward_view() -> None:
    # With weights that stand still, an episode's traces add up to the errors of lambda-returns.
    generator, length, rate = np.random.default_rng(2), 12, 1e-4
    features, rewards = generator.normal(size=(length + 1, 3)), generator.normal(size=length)
    weights = generator.normal(size=3)
    values = features @ weights
    values[length] = 0.0  # terminated
    errors = rewards + DISCOUNT * values[1:] - values[:-1]
    returns, expected = 0.0, np.zeros(3)
    for t in reversed(range(length)):
        mixed = (1 - DECAY) * values[t + 1] + DECAY * (returns if t < length - 1 else values[t + 1])
        returns = rewards[t] + DISCOUNT * mixed
        expected += (returns - values[t]) * features[t]
    optimiser = traces.obgd(0.0, DISCOUNT, DECAY, rate)
    state, total = optimiser.init(jnp.zeros(3)), np.zeros(3)
    for t in range(length):
        gradient, error = jnp.asarray(features[t], jnp.float32), jnp.float32(errors[t])
        end = jnp.asarray(t == length - 1)
        change, state = optimiser.update(gradient, state, error=error, reset=end)
        total += np.asarray(change, np.float64) / rate
    np.testing.assert_allclose(total, expected, rtol=1e-4)
    np.testing.assert_array_equal(state.trace, np.zeros(3))


def test_the_bound_is_over_all_parameters() -> None:
    optimiser = traces.obgd(KAPPA, DISCOUNT, DECAY)
    parts = {"one": jnp.ones(4), "other": jnp.ones((2, 3))}
    change, _ = optimiser.update(
        parts, optimiser.init(parts), error=jnp.float32(5.0), reset=jnp.asarray(False)
    )
    for leaf in jax.tree.leaves(change):
        np.testing.assert_allclose(leaf, 5.0 / (KAPPA * 5.0 * 10.0), rtol=1e-6)
