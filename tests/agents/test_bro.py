"""BRO against float64 written from the paper, with its own networks.

scripts/updates/compare_bro.py compares it with the authors' code.
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
from rljax.agents import bro
from tests.agents import batch_norms, distributional, hyperspheres, reference
from tests.networks.reference import dense

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = bro.Config(
    hidden=(8,),
    critic_hidden=(6, 6),
    batch_size=5,
    quantiles=7,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    optimism_lr=4e-2,
    weight_decay=0.1,
    target_rate=0.1,
    init_temperature=0.3,
    reset_at=(),
)
KEY = jax.random.key(0)
# So that entropy hardly weighs.
PROBE: dict[str, Any] = {
    "critic_hidden": (32, 32),
    "quantiles": 10,
    "init_temperature": 1e-3,
    "learn_temperature": False,
    "num_updates": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "quantiles": {},
    "mean values, the smaller target": {"value_head": "squared", "target_value": "smallest"},
}


def example() -> tuple[EnvSpec, bro.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


def normed(x: Any, part: Any) -> Any:
    """arXiv:1607.06450, with Flax's epsilon."""
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
    return x * part["scale"] + part["bias"]


def bronet(params: Any, x: Any, blocks: int) -> Any:
    """Figure 4 of the paper, with a last layer, whose bias may be missing."""
    torso, output = params["torso"], params["output"]

    def layer(x: Any, name: str) -> Any:
        return normed(dense(x, torso[f"hidden_{name}"]), torso[f"norm_{name}"])

    x = jnp.maximum(layer(x, "input"), 0.0)
    for i in range(blocks):
        x = x + layer(jnp.maximum(layer(x, f"{i}_0"), 0.0), f"{i}_1")
    return x @ output["kernel"] + output.get("bias", 0.0)


class Expected:
    """The learner of the paper's algorithm 1, step by step."""

    def __init__(self, state: bro.State, config: bro.Config) -> None:
        self.config = config
        self.actor, self.optimist = state.actor.parameters.params, state.optimist.parameters.params
        self.critic = self.members(state.critic.parameters.params)
        self.target = self.members(state.target_critic.params)
        self.log_alpha = state.log_temperature.parameters
        self.weights = dict(state.weights.parameters)
        slow = {"log_alpha": optax.adam(3e-2, b1=0.5), "weights": optax.adam(4e-2, b1=0.5)}
        self.optimisers = slow | {
            name: optax.adamw(rate, weight_decay=0.1)
            for name, rate in (("actor", 1e-2), ("optimist", 1e-2), ("critic", 2e-2))
        }
        self.states = {
            name: optimiser.init(getattr(self, name)) for name, optimiser in self.optimisers.items()
        }

    def members(self, params: Any) -> list[Any]:
        return [jax.tree.map(lambda x, c=c: x[c], params["member"]) for c in range(2)]

    def move(self, name: str, gradient: Any) -> None:
        before = getattr(self, name)
        changes, self.states[name] = self.optimisers[name].update(
            gradient, self.states[name], before
        )
        setattr(self, name, optax.apply_updates(before, changes))

    def outputs(self, critics: Any, observation: Any, action: Any) -> Any:
        """[C, B, K], of one number too."""
        rows = jnp.concatenate([observation, action], axis=1)
        return jnp.stack([bronet(critic, rows, 2) for critic in critics])

    def gaussian(self, actor: Any, observation: Any) -> tuple[Any, Any]:
        mean, raw = jnp.split(bronet(actor, observation, 1), 2, axis=-1)
        return mean, jnp.exp(-10.0 + 12.0 * (1.0 + jnp.tanh(raw)) / 2.0)

    def target_and_losses(self, batch: Any, key: Any) -> tuple[Any, Any]:
        """The target's mean, and the loss as a function of the critics."""
        config = self.config
        output = bronet(self.actor, batch.next_observation, 1)
        action, log_prob = hyperspheres.policy(output, key)
        nexts = self.outputs(self.target, batch.next_observation, action)
        cost = jnp.exp(self.log_alpha) * log_prob
        alive = config.discount * (1.0 - batch.terminated)
        if config.value_head == "squared":
            y = batch.reward + alive * (nexts[..., 0].min(axis=0) - cost)
            return y, lambda q: ((q[..., 0] - y) ** 2).mean(axis=1).sum()
        y = batch.reward[:, None] + alive[:, None] * (nexts.mean(axis=0) - cost[:, None])
        tau = jnp.asarray(distributional.Quantile(config.quantiles, 1.0).tau)

        def loss(q: Any) -> Any:
            u = y[:, None, :] - q[..., None]  # [C, B, i, j]
            huber = jnp.where(jnp.abs(u) <= 1.0, 0.5 * u**2, jnp.abs(u) - 0.5)
            return (
                (jnp.abs(tau[:, None] - (u < 0.0)) * huber)
                .mean(axis=3)
                .sum(axis=2)
                .mean(axis=1)
                .sum()
            )

        return y, loss

    def update(self, batch: Transition, key: Any) -> dict[str, Any]:
        keys = jax.random.split(key, 3)
        observation, alpha = batch.observation, jnp.exp(self.log_alpha)
        target, loss_of = self.target_and_losses(batch, keys[0])
        loss, gradient = jax.value_and_grad(
            lambda critics: loss_of(self.outputs(critics, observation, batch.action))
        )(self.critic)
        metrics = {"critic/loss": loss, "critic/target": target.mean()}
        self.move("critic", gradient)
        rate = self.config.target_rate
        self.target = jax.tree.map(
            lambda new, old: rate * new + (1.0 - rate) * old, self.critic, self.target
        )

        def actor_loss(actor: Any) -> tuple[Any, Any]:
            action, log_prob = hyperspheres.policy(bronet(actor, observation, 1), keys[1])
            q = self.outputs(self.critic, observation, action).mean(axis=(0, 2))
            return (alpha * log_prob - q).mean(), -log_prob.mean()

        (loss, entropy), gradient = jax.value_and_grad(actor_loss, has_aux=True)(self.actor)
        metrics |= {"actor/loss": loss, "actor/entropy": entropy}
        self.move("actor", gradient)

        bounds = {
            name: jnp.exp(-10.0 + 17.5 * (1.0 + jnp.tanh(x)) / 2.0)
            for name, x in self.weights.items()
        }

        def optimist_loss(optimist: Any) -> tuple[Any, Any]:
            mean, std = self.gaussian(self.actor, observation)
            shifted = mean + bronet(optimist, jnp.concatenate([observation, mean], axis=1), 1)
            inner = 0.75 * std
            action = jnp.tanh(shifted + inner * jnp.asarray(reference.noise(keys[2], mean.shape)))
            q = self.outputs(self.critic, observation, action)
            spread = jnp.abs(q[0] - q[1]) / 2.0
            # The divergence of Gaussians, whose stds are compared before the factor 0.75.
            ratio = (inner / 0.75) / std
            kl = -jnp.log(ratio) + (ratio**2 + ((shifted - mean) / std) ** 2) / 2.0 - 0.5
            kl = kl.sum(axis=-1).mean()
            upper = (q.mean(axis=0) + bounds["optimism"] * spread).mean()
            return bounds["kl_weight"] * kl - upper, kl

        (loss, kl), gradient = jax.value_and_grad(optimist_loss, has_aux=True)(self.optimist)
        metrics |= {"optimist/loss": loss, "optimist/kl": kl}
        self.move("optimist", gradient)
        self.move("log_alpha", alpha * (entropy + 1.0))  # the target is -A / 2 = -1
        slope = {
            name: weight * 17.5 / 2.0 * (1.0 - jnp.tanh(self.weights[name]) ** 2)
            for name, weight in bounds.items()
        }
        excess = kl / 2.0 - 0.05
        signs = {"optimism": excess, "kl_weight": -excess}
        self.move("weights", {name: slope[name] * signs[name] for name in slope})
        return metrics | {f"optimist/{name}": weight for name, weight in bounds.items()}


@pytest.mark.slow
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64():
        state = batch_norms.exact(bro.init(KEY, SPEC, config))
        expected, update = Expected(state, config), jax.jit(bro.update)
        for step in range(4):
            batch = batch_norms.exact(reference.transitions(step, size=6))
            key = jax.random.key(step)
            state, metrics = update(state, batch, key, step, config)
            for name, number in expected.update(batch, key).items():
                np.testing.assert_allclose(metrics[name], number, rtol=1e-6, err_msg=name)
    for actual, theirs in (
        (state.actor.parameters.params, expected.actor),
        (state.optimist.parameters.params, expected.optimist),
        (state.log_temperature.parameters, expected.log_alpha),
        (state.weights.parameters, expected.weights),
        (expected.members(state.critic.parameters.params), expected.critic),
        (expected.members(state.target_critic.params), expected.target),
    ):
        reference.assert_close(actual, theirs, rtol=1e-6, atol=1e-8)


def test_the_optimist_explores_and_the_policy_is_evaluated() -> None:
    state, act = bro.init(KEY, SPEC, CONFIG), jax.jit(bro.act, static_argnames="explore")
    far = jax.tree.map(lambda x: x + 1.0, state.optimist.parameters)
    other = state.replace(optimist=state.optimist.replace(parameters=far))
    observation = reference.transitions().observation
    for explore in (True, False):
        actions = [
            act(each, observation, KEY, CONFIG, explore=explore)[0] for each in (state, other)
        ]
        assert np.any(np.asarray(actions[0]) != np.asarray(actions[1])) == explore
    mean, _ = np.split(np.asarray(state.actor(observation)), 2, axis=-1)
    np.testing.assert_allclose(actions[0], np.tanh(mean), rtol=1e-6)


def test_all_that_is_learnt_begins_anew() -> None:
    config = dataclasses.replace(CONFIG, reset_at=(2,))
    fresh, update = bro.init(KEY, SPEC, config), jax.jit(bro.update)
    moved, _ = update(fresh, reference.transitions(), KEY, 0, config)
    assert reference.moved(fresh.weights, moved.weights)
    renewed, _ = update(moved, reference.transitions(), KEY, 1, config)
    for name in ("log_temperature", "weights"):
        reference.assert_close(getattr(renewed, name), getattr(fresh, name))
    reference.assert_close(renewed.critic.parameters, renewed.target_critic)
    assert reference.moved(renewed.critic.parameters, fresh.critic.parameters), "drawn anew"


def test_only_termination_cuts_the_bootstrap() -> None:
    config = dataclasses.replace(CONFIG, value_head="squared")
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(bro.update), bro.init(KEY, SPEC, config), config
    )
