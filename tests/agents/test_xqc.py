"""XQC against float64 written from the paper and the authors' description, with its own networks.

scripts/updates/compare_xqc.py compares it with the authors' code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import xqc
from tests.agents import batch_norms as networks
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = xqc.Config(
    hidden=(8, 8),
    critic_hidden=(8, 8),
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
    bins=11,
    policy_delay=2,
    rate_updates=10.0,
    init_temperature=0.3,
)
KEY = jax.random.key(0)
# The next batch normalisation takes every constant off.
WITHOUT_SLOPE = ("['norm_input']['shift']",)
# So that entropy hardly weighs, and rewards keep their size.
PROBE: dict[str, Any] = {
    "critic_hidden": (32, 32),
    "init_temperature": 1e-3,
    "learn_temperature": False,
    "normalise_rewards": False,
    "v_min": -15.0,
    "v_max": 15.0,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "the authors' CrossQ": {"value_head": "squared", "norm_place": "after", "unit_norm": False},
}


def example() -> tuple[EnvSpec, xqc.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class Expected:
    """The authors' learner, step by step."""

    def __init__(self, state: xqc.State, config: xqc.Config) -> None:
        self.config = config
        self.support = np.linspace(config.v_min, config.v_max, config.bins)
        actor, critic = state.actor.parameters, state.critic.parameters
        self.actor, self.actor_moments = actor.params, actor.collections["batch_stats"]
        self.critic, self.moments = (
            networks.members(critic.params),
            networks.members(critic.collections["batch_stats"]),
        )
        self.target = networks.members(state.target_critic.params)
        self.log_alpha = state.log_temperature.parameters
        # Their schedules count the steps of each optimiser, and the actor's rests between them.
        self.optimisers = {
            name: optax.adam(optax.linear_schedule(rate, 0.1 * rate, 10))
            for name, rate in (("actor", 1e-2), ("critic", 2e-2), ("log_alpha", 3e-2))
        }
        self.states = {
            name: optimiser.init(getattr(self, name)) for name, optimiser in self.optimisers.items()
        }

    def run(self, params: Any, moments: Any, x: Any, train: bool) -> tuple[Any, Any]:
        return networks.forward(params, moments, x, train, self.config.norm_place == "before")

    def value(self, outputs: Any) -> Any:
        if self.config.value_head == "squared":
            return outputs[:, 0]
        return jax.nn.softmax(outputs) @ self.support

    def move(self, name: str, gradient: Any) -> None:
        changes, self.states[name] = self.optimisers[name].update(gradient, self.states[name])
        moved = optax.apply_updates(getattr(self, name), changes)
        if self.config.unit_norm and name != "log_alpha":
            moved = jax.tree_util.tree_map_with_path(
                lambda path, x: x / np.sqrt((x**2).sum(axis=0)) if path[-1].key == "kernel" else x,
                moved,
            )
        setattr(self, name, moved)

    def critic_loss(self, critics: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        config, number = self.config, len(batch.reward)
        output, _ = self.run(self.actor, self.actor_moments, batch.next_observation, train=False)
        action, log_prob = networks.policy(output, key, -10.0)
        rows = [
            jnp.concatenate([batch.observation, batch.action], axis=1),
            jnp.concatenate([batch.next_observation, action], axis=1),
        ]
        rows = jnp.concatenate(rows)
        nexts = [
            self.run(c, m, rows, True)[0][number:]
            for c, m in zip(self.target, self.moments, strict=True)
        ]
        values = jnp.stack([self.value(x) for x in nexts])
        passes = [self.run(c, m, rows, True) for c, m in zip(critics, self.moments, strict=True)]
        alive = config.discount * (1.0 - batch.terminated)
        cost = jnp.exp(self.log_alpha) * log_prob
        if config.value_head == "squared":
            y = batch.reward + alive * (values.min(axis=0) - cost)
            losses = [0.5 * ((out[:number, 0] - y) ** 2).mean() for out, _ in passes]
        else:
            lowest = values.argmin(axis=0)
            p = jax.nn.softmax(jnp.stack(nexts)[lowest, np.arange(number)])
            masses = self.projected(*map(np.asarray, (p, batch.reward, alive, cost)))
            losses = [
                -(masses * jax.nn.log_softmax(out[:number])).sum(axis=1).mean() for out, _ in passes
            ]
        return sum(losses), [moments for _, moments in passes]

    def projected(self, p: Any, reward: Any, alive: Any, cost: Any) -> np.ndarray:
        """C51's algorithm 1, atom by atom, with the entropy in each atom."""
        low, high = self.config.v_min, self.config.v_max
        masses, width = np.zeros(p.shape), self.support[1] - self.support[0]
        for row in range(len(p)):
            for j, z in enumerate(self.support):
                y = np.clip(reward[row] + alive[row] * (z - cost[row]), low, high)
                b = (y - low) / width
                place = min(int(np.floor(b)), p.shape[1] - 2)
                masses[row, place] += p[row, j] * (place + 1 - b)
                masses[row, place + 1] += p[row, j] * (b - place)
        return masses

    def update(self, batch: Transition, key: Any, step: int) -> None:
        key_critic, key_actor = jax.random.split(key)
        gradient, moments = jax.grad(self.critic_loss, has_aux=True)(self.critic, batch, key_critic)
        self.move("critic", gradient)
        self.moments = moments
        rate = self.config.target_rate
        self.target = jax.tree.map(
            lambda new, old: rate * new + (1.0 - rate) * old, self.critic, self.target
        )

        def actor_loss(actor: Any) -> tuple[Any, Any]:
            output, after = self.run(actor, self.actor_moments, batch.observation, train=True)
            action, log_prob = networks.policy(output, key_actor, -10.0)
            rows = jnp.concatenate([batch.observation, action], axis=1)
            q = [
                self.value(self.run(c, m, rows, False)[0])
                for c, m in zip(self.critic, self.moments, strict=True)
            ]
            loss = (jnp.exp(self.log_alpha) * log_prob - jnp.stack(q).min(axis=0)).mean()
            return loss, (after, -log_prob.mean())

        gradient, (self.actor_moments, entropy) = jax.grad(actor_loss, has_aux=True)(self.actor)
        if step % self.config.policy_delay == 0:
            self.move("actor", gradient)
            self.move("log_alpha", jnp.exp(self.log_alpha) * (entropy + 1.0))  # target -A/2 = -1


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    """In float64, since Adam makes a step of any rounding error along a direction without slope."""
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64():
        state = networks.exact(xqc.init(KEY, SPEC, config))
        expected, update = Expected(state, config), jax.jit(xqc.update)
        for step in range(4):
            batch = networks.exact(reference.transitions(step, size=6))
            key = jax.random.key(step)
            state, metrics = update(state, batch, key, step, config)
            expected.update(batch, key, step)
    for actual, theirs in (
        (state.actor.parameters.params, expected.actor),
        (state.actor.parameters.collections["batch_stats"], expected.actor_moments),
        (state.log_temperature.parameters, expected.log_alpha),
        *zip(networks.members(state.critic.parameters.params), expected.critic, strict=True),
        *zip(networks.members(state.target_critic.params), expected.target, strict=True),
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8), actual, theirs
        )
    assert np.isfinite(metrics["critic/loss"])


def test_weights_into_units_have_length_1_at_all_times() -> None:
    state = xqc.init(KEY, SPEC, CONFIG)
    moved = jax.jit(xqc.update)(state, reference.transitions(), KEY, 0, CONFIG)[0]
    for network in (state.actor, moved.actor, state.critic, moved.critic):
        params = network.parameters.params.get("member", network.parameters.params)
        for name in ("hidden_0", "hidden_1", "output"):
            lengths = np.linalg.norm(params[name]["kernel"], axis=-2)
            np.testing.assert_allclose(lengths, 1.0, rtol=1e-5)


def test_only_termination_cuts_the_bootstrap() -> None:
    config = dataclasses.replace(CONFIG, value_head="squared")
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(xqc.update), xqc.init(KEY, SPEC, config), config
    )
