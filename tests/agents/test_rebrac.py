"""ReBRAC against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import rebrac
from rljax.training import registry
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "batch_size": 5,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "target_rate": 0.1,
}
CONFIG = rebrac.Config(**SIZES, actor_penalty=0.6, critic_penalty=0.7)
PLAIN = dataclasses.replace(CONFIG, layer_norm=False)  # as the reference's networks
KEY = jax.random.key(0)
HAS = np.array([True, False, True, True, False])


def example() -> tuple[EnvSpec, rebrac.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, transitions()


def transitions(seed: int = 0, size: int = 5) -> Transition:
    """A batch in which some rows have a next action."""
    known = np.random.default_rng(seed + 100).uniform(-1, 1, (size, 2)).astype(np.float32)
    extras = {
        "next_action": jnp.asarray(known),
        "has_next_action": jnp.asarray(np.resize(HAS, size)),
    }
    return reference.transitions(seed, size).replace(extras=extras)


class Reference:
    """ReBRAC in float64, from equations 5 and 6 of arXiv:2305.09836 and algorithm 1 of
    arXiv:1802.09477.
    """

    def __init__(self, state: rebrac.State, config: rebrac.Config) -> None:
        self.config = config
        self.actor, self.target_actor = (
            reference.mlp(state.actor),
            reference.mlp(state.target_actor),
        )
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.actor_adam, self.critic_adam = (
            reference.Adam(config.actor_lr),
            reference.Adam(config.critic_lr),
        )

    def target(self, batch: Transition, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """y [B] and the penalties [B] in it."""
        config = self.config
        following = np.asarray(batch.next_observation, np.float64)
        limit = config.target_noise_clip
        action = np.tanh(reference.forward(self.target_actor, following)[0])
        action = np.clip(action + np.clip(config.target_noise * noise, -limit, limit), -1.0, 1.0)
        next_q = reference.smallest(self.targets, following, action)[0]
        apart = np.square(action - np.asarray(batch.extras["next_action"], np.float64)).sum(axis=1)
        penalty = config.critic_penalty * apart * np.asarray(batch.extras["has_next_action"])
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        return np.asarray(batch.reward, np.float64) + config.discount * alive * (
            next_q - penalty
        ), penalty

    def update(self, batch: Transition, noise: np.ndarray, step: int) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        config, observation = self.config, np.asarray(batch.observation, np.float64)
        y, penalty = self.target(batch, noise)
        data = np.asarray(batch.action, np.float64)
        loss, q, gradient = reference.squared_errors(self.critics, observation, data, y)
        self.critics = self.critic_adam.step(self.critics, gradient)
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}
        metrics["critic/penalty"] = penalty.mean()

        if (step + 1) % config.policy_delay == 0:
            # m = tanh(u), dm/du = 1 - m^2:  dL/dm = (2 beta_1 (m - a) - lambda dq/dm) / B, q the
            # smallest value
            output, inputs = reference.forward(self.actor, observation)
            action = np.tanh(output)
            q, slope = reference.smallest(self.critics, observation, action)
            scale = 1.0 / np.abs(q).mean()
            fallen = np.interp(step, (config.decay_begin, config.decay_end), (0.0, 1.0))
            beta = config.actor_penalty * (1.0 - fallen * (1.0 - config.penalty_end))
            change = (
                (1.0 - action**2) * (2.0 * beta * (action - data) - scale * slope) / len(action)
            )
            self.actor = self.actor_adam.step(
                self.actor, reference.backward(self.actor, inputs, change)[0]
            )
            self.target_actor = reference.towards(self.actor, self.target_actor, config.target_rate)
            self.targets = reference.towards(self.critics, self.targets, config.target_rate)
            imitation = np.square(action - data).sum(axis=1).mean()
            metrics |= {"actor/loss": beta * imitation - scale * q.mean()}
            metrics |= {"actor/imitation": imitation, "actor/value_scale": scale}
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "no delay, three critics, a falling penalty": {
        "policy_delay": 1,
        "num_critics": 3,
        "penalty_end": 0.2,
        "decay_begin": 0.5,
        "decay_end": 2.5,
    },
    "noise that clips": {"target_noise": 0.8, "target_noise_clip": 0.3, "discount": 0.5},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(rebrac.update)


def fresh(config: rebrac.Config) -> rebrac.State:
    """A State to start from."""
    return reference.state(rebrac, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(PLAIN, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = transitions(step), jax.random.key(step)
        noise = np.asarray(jax.random.normal(key, batch.action.shape), np.float64)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, noise, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(reference.mlp(state.target_actor), expected.target_actor, "target_actor")


def metrics(batch: Transition, **changes: Any) -> Any:
    """Those of a first update."""
    config = dataclasses.replace(PLAIN, **changes)
    return update(fresh(config), batch, KEY, 0, config)[1]


def test_the_penalty_is_of_known_next_actions_and_of_what_goes_on() -> None:
    batch = transitions()
    none = batch.replace(extras={**batch.extras, "has_next_action": jnp.zeros(5, bool)})
    assert metrics(none)["critic/penalty"] == 0.0
    assert metrics(none)["critic/target"] == metrics(batch, critic_penalty=0.0)["critic/target"]
    ended = batch.replace(terminated=jnp.ones(5, bool))
    np.testing.assert_allclose(metrics(ended)["critic/target"], batch.reward.mean(), rtol=1e-6)
    assert metrics(batch)["critic/target"] < metrics(none)["critic/target"]
    never = batch.replace(terminated=jnp.zeros(5, bool))
    cut = never.replace(truncated=jnp.ones(5, bool))
    assert metrics(cut)["critic/target"] == metrics(never)["critic/target"], "a limit is no end"


def test_the_actor_follows_the_smallest_critic() -> None:
    batch, state = transitions(), fresh(PLAIN)
    actor_loss = jax.jit(rebrac.actor_loss)
    step = jnp.zeros((), jnp.int32)
    raised = []
    for member in range(2):
        other = jax.tree.map(lambda x: np.asarray(x).copy(), state.critic)
        other.parameters.params["members"]["output"]["bias"][member] += 100.0
        changed = state.replace(critic=other)
        metrics = actor_loss(state.actor.parameters, changed, batch, step, PLAIN)[1]
        raised.append(metrics["actor/value_scale"])
    values = np.asarray(
        state.critic(batch.observation, rebrac.policy(state.actor, batch.observation))
    )
    np.testing.assert_allclose(raised, 1.0 / np.abs(values[::-1]).mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize("updates", [100, 1_000])
def test_the_actors_penalty_falls_online_as_corls(updates: int) -> None:
    """CORL's finetune/rebrac.py, with as many updates online as offline, which the preset is for:
    actor_bc_coef *= max(min_decay_coef, lin_coef).
    """
    changes = registry.preset_online("rebrac", None, "d4rl/pen-cloned-v1")
    plain = dataclasses.replace(CONFIG, **changes)
    config = rebrac.schedule(plain, 2.0 * updates)
    for i in range(0, 2 * updates, 7):
        min_decay_coef, lin_coef = 0.5, (updates + updates - i + 0) / updates
        expected = max(min_decay_coef, lin_coef) if i >= updates else 1.0
        share = rebrac.penalty_share(jnp.int32(i), config)
        np.testing.assert_allclose(share, expected, rtol=1e-5)
    assert rebrac.penalty_share(jnp.int32(9), rebrac.schedule(CONFIG, 10.0)) == 1.0


def test_only_critics_are_normalised_and_after_the_activation() -> None:
    state = fresh(CONFIG)
    assert {name for name in state.actor.parameters.params if "norm" in name.lower()} == set()
    members = state.critic.parameters.params["members"]
    scale = {name: x["scale"] for name, x in members.items() if "scale" in x}
    assert len(scale) == len(CONFIG.hidden)
    assert state.critic.parameters.module.layer_norm == "last"


def test_batches_have_the_next_action_offline_and_online() -> None:
    declared: Any = rebrac.experience(rebrac.Config())
    assert declared.columns == declared.online.columns == (buffers.NextAction(),)
    assert (declared.batch_size, declared.online.batch_size) == (1024, 1024)
