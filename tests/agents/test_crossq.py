"""CrossQ against float64 written from the paper and the authors' description, with its own
networks.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import crossq
from tests.agents import batch_norms as networks
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = crossq.Config(
    hidden=(8, 8), critic_hidden=(8, 8), batch_size=5, policy_delay=2, init_temperature=0.3
)
KEY = jax.random.key(0)
# So that entropy hardly weighs.
# Rates fall: without targets, values go on moving with their batches. The replay keeps all rows:
# critics forget the values of actions that it no longer has, and the actor goes there.
PROBE: dict[str, Any] = {
    "replay_size": 12_000,
    "critic_hidden": (64, 64),
    "rate_schedule": "linear",
    "rate_updates": 2_500.0,
    "batch_size": 256,
    "renormed_after": 500,
    "init_temperature": 1e-3,
    "learn_temperature": False,
}


def example() -> tuple[EnvSpec, crossq.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class Expected:
    """The authors' update, step by step, before renormalisation begins."""

    def __init__(self, state: crossq.State) -> None:
        actor, critic = state.actor.parameters, state.critic.parameters
        self.actor, self.critic = actor.params, networks.members(critic.params)
        self.actor_moments = networks.without_passes(actor.collections["batch_stats"])
        moments = networks.members(critic.collections["batch_stats"])
        self.moments = [networks.without_passes(each) for each in moments]
        self.log_alpha = state.log_temperature.parameters
        adam = optax.adam(1e-3, b1=0.5)
        self.optimisers = {"actor": adam, "critic": adam, "log_alpha": optax.adam(1e-3)}
        self.states = {
            name: optimiser.init(getattr(self, name)) for name, optimiser in self.optimisers.items()
        }

    def move(self, name: str, gradient: Any) -> None:
        changes, self.states[name] = self.optimisers[name].update(gradient, self.states[name])
        setattr(self, name, optax.apply_updates(getattr(self, name), changes))

    def values(self, critics: Any, rows: Any, train: bool) -> tuple[Any, list[Any]]:
        pairs = [
            networks.forward(critic, moments, rows, train, before=False)
            for critic, moments in zip(critics, self.moments, strict=True)
        ]
        return jnp.stack([output[:, 0] for output, _ in pairs]), [after for _, after in pairs]

    def update(self, batch: Transition, key: Any, step: int) -> None:
        key_critic, key_actor = jax.random.split(key)
        number = len(batch.reward)
        inputs = (self.actor, self.actor_moments, batch.next_observation)
        output, _ = networks.forward(*inputs, train=False, before=False)
        action, log_prob = networks.policy(output, key_critic, -20.0)
        rows = [
            jnp.concatenate([batch.observation, batch.action], axis=1),
            jnp.concatenate([batch.next_observation, action], axis=1),
        ]

        def critic_loss(critics: Any) -> tuple[Any, Any]:
            values, after = self.values(critics, jnp.concatenate(rows), train=True)
            soft = values[:, number:].min(axis=0) - jnp.exp(self.log_alpha) * log_prob
            y = batch.reward + 0.99 * (1.0 - batch.terminated) * soft
            error = jax.lax.stop_gradient(y) - values[:, :number]
            return 0.5 * (error**2).mean(axis=1).sum(), after

        gradient, self.moments = jax.grad(critic_loss, has_aux=True)(self.critic)
        self.move("critic", gradient)
        if (step + 1) % 2:
            return

        def actor_loss(actor: Any) -> tuple[Any, Any]:
            inputs = (actor, self.actor_moments, batch.observation)
            output, after = networks.forward(*inputs, train=True, before=False)
            action, log_prob = networks.policy(output, key_actor, -20.0)
            rows = jnp.concatenate([batch.observation, action], axis=1)
            q = self.values(self.critic, rows, train=False)[0].min(axis=0)
            loss = (jnp.exp(self.log_alpha) * log_prob - q).mean()
            return loss, (after, -log_prob.mean())

        gradient, (self.actor_moments, entropy) = jax.grad(actor_loss, has_aux=True)(self.actor)
        self.move("actor", gradient)
        self.move("log_alpha", jnp.exp(self.log_alpha) * (entropy + 2.0))  # the target is -A


@pytest.mark.slow
def test_updates_equal_the_authors() -> None:
    """In float64, since Adam makes a step of any rounding error along a direction without slope."""
    with jax.enable_x64():
        state = networks.exact(crossq.init(KEY, SPEC, CONFIG))
        expected, update = Expected(state), jax.jit(crossq.update)
        for step in range(4):
            batch = networks.exact(reference.transitions(step, size=6))
            state, _ = update(state, batch, jax.random.key(step), step, CONFIG)
            expected.update(batch, jax.random.key(step), step)
    actor, critic = state.actor.parameters, state.critic.parameters
    moments = networks.members(critic.collections["batch_stats"])
    for actual, theirs in (
        (actor.params, expected.actor),
        (networks.without_passes(actor.collections["batch_stats"]), expected.actor_moments),
        (state.log_temperature.parameters, expected.log_alpha),
        *zip(networks.members(critic.params), expected.critic, strict=True),
        *zip(map(networks.without_passes, moments), expected.moments, strict=True),
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8), actual, theirs
        )


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(crossq.update), crossq.init(KEY, SPEC, CONFIG), CONFIG
    )
