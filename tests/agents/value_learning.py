"""Agents that learn values from batches, in float64 NumPy, and what their tests share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from tests.agents import reference, trees

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "batch_size": 5,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "target_rate": 0.1,
}
KEY = jax.random.key(0)


def arrays(batch: Transition) -> tuple[np.ndarray, ...]:
    """Observations, actions, successors, rewards, and 0 where a row terminates."""
    parts = (batch.observation, batch.action, batch.next_observation, batch.reward)
    return tuple(np.asarray(x, np.float64) for x in (*parts, ~np.asarray(batch.terminated)))


def state_values(value: Any, observation: np.ndarray) -> np.ndarray:
    """V(s) [B] of layers of `reference.mlp` or `norms`."""
    if isinstance(value[0], list):
        return reference.forward_norms(value, observation)[:, 0]
    return reference.forward(value, observation)[0][:, 0]


def linear_errors(
    critics: Any, observation: np.ndarray, action: np.ndarray, y: np.ndarray, limit: float
) -> tuple[np.ndarray, np.ndarray, float, Any]:
    """Errors e^2, or t (2 |e| - t) beyond t, and values [C, B]; the share beyond; gradients by
    dQ = 2 clip(e, +-t) / B.
    """
    inputs, values, gradients = np.concatenate([observation, action], axis=-1), [], []
    for critic in critics:
        q, rows = reference.forward(critic, inputs)
        values.append(q[:, 0])
        change = 2.0 * np.clip(q - y[:, None], -limit, limit) / len(y)
        gradients.append(reference.backward(critic, rows, change)[0])
    error = np.abs(np.stack(values) - y)
    linear = error > limit
    losses = np.where(linear, limit * (2.0 * error - limit), error**2)
    return losses, np.stack(values), float(linear.mean()), gradients


class Networks:
    """Those of a State, as far as it has them."""

    def __init__(
        self, state: Any, config: Any, actor: Any = reference.actor, value: Any = reference.mlp
    ) -> None:
        self.config, self.actor = config, actor(state.actor)
        self.actor_adam = reference.Adam(config.actor_lr)
        self.parts = {"actor": actor}
        if hasattr(state, "value"):
            self.value, self.value_adam = value(state.value), reference.Adam(config.value_lr)
            self.parts["value"] = value
        if hasattr(state, "critic"):
            self.critics, self.targets = map(reference.critics, (state.critic, state.target_critic))
            self.critic_adam = reference.Adam(config.critic_lr)

    def fit_value(self, observation: np.ndarray, q: np.ndarray) -> dict[str, float]:
        """Move V to an expectile of q [B]: arXiv:2110.06169, equation 5."""
        loss, v, gradient = reference.expectile(self.value, observation, q, self.config.expectile)
        self.value = self.value_adam.step(self.value, gradient)
        return {"value/loss": loss, "value/v": v.mean()}

    def fit_critics(
        self, observation: np.ndarray, action: np.ndarray, y: np.ndarray, weight: Any = 1.0
    ) -> dict[str, float]:
        """Move the critics towards y [B], and their targets after them."""
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y, weight)
        self.move_critics(gradient)
        return {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

    def move_critics(self, gradient: Any) -> None:
        self.critics = self.critic_adam.step(self.critics, gradient)
        self.targets = reference.towards(self.critics, self.targets, self.config.target_rate)

    def imitate(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        advantage: np.ndarray,
        key: jax.Array,
        step: int,
        squashed: bool = True,
    ) -> dict[str, float]:
        """Weigh actions by advantages [B]: arXiv:2110.06169, equation 7, and its code."""
        config = self.config
        weight = np.minimum(np.exp(config.inverse_temperature * advantage), config.max_weight)
        distance, gradient = reference.imitation(
            self.actor, observation, action, weight, config, key, squashed
        )
        self.actor_adam.rate = reference.cosine(config.actor_lr, step, config.decay_steps)
        self.actor = self.actor_adam.step(self.actor, gradient)
        return {
            "actor/loss": (weight * distance).mean(),
            "actor/advantage": advantage.mean(),
            "actor/weight": weight.mean(),
        }


class NormalisedNetworks(Networks):
    """Of hari-sikchi/DVL: V may be normalised; its gradient is by differences."""

    def __init__(self, state: Any, config: Any) -> None:
        super().__init__(state, config, value=reference.norms)

    def exponent(self, surplus: np.ndarray) -> np.ndarray:
        return np.minimum(surplus / self.config.temperature, self.config.max_exponent)

    def reverse_kl(self, surplus: np.ndarray, largest: float) -> np.ndarray:
        """Of each surplus; `largest` is `max_z`, which is detached."""
        z = self.exponent(surplus)
        return np.exp(z - largest) - z * np.exp(-largest) - np.exp(-largest)

    def move_value(self, loss: Callable[[np.ndarray], float], observation: np.ndarray) -> float:
        """Move V down a loss of its values; that loss."""

        def of(layers: Any) -> float:
            return loss(state_values(layers, observation))

        before, gradient = of(self.value), reference.differences(of, self.value)
        self.value = self.value_adam.step(self.value, gradient)
        return before


# The names of a State's networks in a reference, where they differ.
NAMES = {"critic": "critics", "target_critic": "targets", "average_actor": "average"}


def assert_updates_equal(
    update: Any,
    state: Any,
    config: Any,
    make: Any,
    steps: int = 4,
    batches: Callable[[int], Transition] = reference.transitions,
    **parts: Any,
) -> Any:
    """Metrics, and in the end networks, are those of `make(state, config)`, which is returned.

    `parts` says what reads networks other than critics, where that has no `parts`.
    """
    expected = make(state, config)
    for step in range(steps):
        batch, key = batches(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    critics = {x: reference.critics for x in ("critic", "target_critic") if hasattr(state, x)}
    for name, read in (critics | (parts or expected.parts)).items():
        actual = read(getattr(state, name))
        reference.assert_same(actual, getattr(expected, NAMES.get(name, name)), name)
    return expected


def assert_only_termination_cuts_the_bootstrap(update: Any, state: Any, config: Any) -> None:
    batch, never, always = reference.transitions(), np.zeros(5, bool), np.ones(5, bool)

    def target(terminated: np.ndarray, truncated: np.ndarray) -> Any:
        ended = batch.replace(terminated=terminated, truncated=truncated)
        return update(state, ended, KEY, 0, config)[1]["critic/target"]

    assert target(never, always) == target(never, never)
    np.testing.assert_allclose(target(always, never), batch.reward.mean(), rtol=1e-6)


def assert_rate_falls_to_zero_as_a_cosine(
    module: Any, update: Any, state: Any, config: Any, *others: str
) -> None:
    """The actor's; `others` go on learning."""
    config = dataclasses.replace(config, decay_steps=100.0)
    rates = [module.actor_rate(jnp.asarray(step), config) for step in (0, 50, 100, 150)]
    np.testing.assert_allclose(np.asarray(rates), [1e-2, 0.5e-2, 0.0, 0.0], rtol=1e-5, atol=1e-9)
    for step, moves in ((99, True), (100, False)):
        new = update(state, reference.transitions(), KEY, step, config)[0]
        for part, expected in (("actor", moves), *((x, True) for x in others)):
            both = (getattr(x, part).parameters for x in (state, new))
            assert trees.equal(*both) != expected, part


def assert_explores_around(
    mean: np.ndarray, std: Any, act: Any, state: Any, observation: Any, config: Any
) -> None:
    """Actions are the mean [B, A], or drawn around it, within bounds that matter."""
    noise = std * np.asarray(jax.random.normal(KEY, mean.shape))
    for explore, expected in ((False, mean), (True, mean + noise)):
        actual, extras = act(state, observation, KEY, config, explore=explore)
        np.testing.assert_allclose(actual, np.clip(expected, -1.0, 1.0), rtol=1e-4, atol=1e-5)
        assert extras == {}
    assert 0.0 < (np.abs(actual) == 1.0).mean() < 1.0
