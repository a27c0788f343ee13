"""SimbaV2 against float64 written from the paper, with its own networks.

scripts/updates/compare_simbav2.py compares it with the authors' code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.agent import EnvSpec, Transition, check
from rljax.agents import simbav2
from tests.agents import batch_norms, distributional, hyperspheres, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = simbav2.Config(
    hidden=(8,),
    critic_hidden=(6, 6),
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
    bins=11,
    rate_updates=10.0,
    init_temperature=0.3,
)
KEY = jax.random.key(0)
# So that entropy hardly weighs, rewards keep their size, and classes hold all returns.
PROBE: dict[str, Any] = {
    "critic_hidden": (32, 32),
    "init_temperature": 1e-3,
    "learn_temperature": False,
    "normalise_rewards": False,
    "normalise_observations": False,
    "v_min": -15.0,
    "v_max": 15.0,
    "num_updates": 1,
}
CASES: dict[str, dict[str, Any]] = {"two critics": {}, "one critic": {"num_critics": 1}}


def example() -> tuple[EnvSpec, simbav2.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class Expected:
    """The learner of the paper's section 4 and algorithm, step by step."""

    def __init__(self, state: simbav2.State, config: simbav2.Config) -> None:
        self.config = config
        self.head = distributional.Categorical(config.bins, config.v_min, config.v_max)
        self.actor = state.actor.parameters.params
        self.critic = self.members(state.critic.parameters.params)
        self.target = self.members(state.target_critic.params)
        self.log_alpha = state.log_temperature.parameters
        self.optimisers = {
            name: optax.adam(optax.linear_schedule(rate, 0.5 * rate, 10))
            for name, rate in (("actor", 1e-2), ("critic", 2e-2), ("log_alpha", 3e-2))
        }
        self.states = {
            name: optimiser.init(getattr(self, name)) for name, optimiser in self.optimisers.items()
        }

    def members(self, params: Any) -> list[Any]:
        number = self.config.num_critics
        return [jax.tree.map(lambda x, c=c: x[c], params["member"]) for c in range(number)]

    def move(self, name: str, gradient: Any) -> None:
        changes, self.states[name] = self.optimisers[name].update(gradient, self.states[name])
        moved = optax.apply_updates(getattr(self, name), changes)
        if name == "actor":
            moved = hyperspheres.projected(moved)
        if name == "critic":
            moved = [hyperspheres.projected(critic) for critic in moved]
        setattr(self, name, moved)

    def outputs(self, critics: Any, observation: Any, action: Any) -> Any:
        rows = jnp.concatenate([observation, action], axis=1)
        return jnp.stack([hyperspheres.forward(critic, rows, 2, 1) for critic in critics])

    def policy(self, actor: Any, observation: Any, key: Any) -> tuple[Any, Any]:
        return hyperspheres.policy(hyperspheres.forward(actor, observation, 1, 2), key)

    def update(self, batch: Transition, key: Any) -> dict[str, Any]:
        key_actor, key_critic = jax.random.split(key)
        alpha, config = jnp.exp(self.log_alpha), self.config

        def actor_loss(actor: Any) -> tuple[Any, Any]:
            action, log_prob = self.policy(actor, batch.observation, key_actor)
            outputs = self.outputs(self.critic, batch.observation, action)
            values = (jax.nn.softmax(outputs) @ self.head.support).min(axis=0)
            return (alpha * log_prob - values).mean(), -log_prob.mean()

        (loss, entropy), gradient = jax.value_and_grad(actor_loss, has_aux=True)(self.actor)
        metrics = {"actor/loss": loss, "temperature/loss": alpha * (entropy + 1.0)}
        self.move("actor", gradient)
        self.move("log_alpha", alpha * (entropy + 1.0))  # the target is -A / 2 = -1

        action, log_prob = self.policy(self.actor, batch.next_observation, key_critic)
        nexts = np.asarray(self.outputs(self.target, batch.next_observation, action))
        alive = config.discount * (1.0 - np.asarray(batch.terminated))
        step = (np.asarray(batch.reward), alive, np.asarray(jnp.exp(self.log_alpha) * log_prob))
        masses, more = self.head.target(nexts, "smallest", *step)

        def critic_loss(critics: Any) -> Any:
            outputs = self.outputs(critics, batch.observation, batch.action)
            return -(masses * jax.nn.log_softmax(outputs)).sum(axis=-1).mean(axis=1).sum()

        loss, gradient = jax.value_and_grad(critic_loss)(self.critic)
        self.move("critic", gradient)
        rate = config.target_rate
        self.target = jax.tree.map(
            lambda new, old: rate * new + (1.0 - rate) * old, self.critic, self.target
        )
        return metrics | more | {"critic/loss": loss}


@pytest.mark.slow
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64():
        state = batch_norms.exact(simbav2.init(KEY, SPEC, config))
        expected, update = Expected(state, config), jax.jit(simbav2.update)
        for step in range(4):
            batch = batch_norms.exact(reference.transitions(step, size=6))
            key = jax.random.key(step)
            state, metrics = update(state, batch, key, step, config)
            for name, number in expected.update(batch, key).items():
                np.testing.assert_allclose(metrics[name], number, rtol=1e-6, err_msg=name)
    for actual, theirs in (
        (state.actor.parameters.params, expected.actor),
        (state.log_temperature.parameters, expected.log_alpha),
        (expected.members(state.critic.parameters.params), expected.critic),
        (expected.members(state.target_critic.params), expected.target),
    ):
        reference.assert_close(actual, theirs, rtol=1e-6, atol=1e-8)


def test_weights_into_units_have_length_1_and_those_of_targets_do_not() -> None:
    state = simbav2.init(KEY, SPEC, CONFIG)
    moved = jax.jit(simbav2.update)(state, reference.transitions(), KEY, 0, CONFIG)[0]
    lengths = {"actor": [], "critic": [], "target_critic": []}
    for name, each in lengths.items():
        network = getattr(moved, name)
        params = getattr(network, "parameters", network).params
        for path, x in jax.tree_util.tree_leaves_with_path(params):
            if path[-1].key == "kernel":
                each.extend(np.linalg.norm(x, axis=-2).ravel())
    np.testing.assert_allclose(lengths["actor"] + lengths["critic"], 1.0, rtol=1e-5)
    assert min(lengths["target_critic"]) < 1.0 - 1e-5


def test_only_termination_cuts_the_bootstrap() -> None:
    config = dataclasses.replace(CONFIG, value_head="squared")
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(simbav2.update), simbav2.init(KEY, SPEC, config), config
    )


@pytest.mark.parametrize("widths", [(), (8, 6)])
def test_blocks_have_one_width(widths: tuple[int, ...]) -> None:
    config = dataclasses.replace(CONFIG, critic_hidden=widths)
    with pytest.raises(ValueError, match=r"^--config\.critic-hidden is .*each residual block"):
        check(simbav2, SPEC, config)
