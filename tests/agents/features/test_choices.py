"""BC, IQL and RIQL with discrete actions, against float64 NumPy with gradients by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax

from rljax.agent import EnvSpec, Transition
from rljax.agents import bc, iql, riql
from rljax.networks.policies import Imitation
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY

ACTIONS = 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
SEVERAL = EnvSpec("test/Several-v0", (3,), 5, discrete=True, choices=(3, 2))
SMALL = {**value_learning.SIZES, "normalise_observations": False}
VALUES = SMALL | {"value_lr": 3e-2, "num_critics": 2, "decay_steps": 3.0}
AGENTS: dict[str, tuple[Any, Any]] = {
    "bc": (bc, bc.Config(**{x: SMALL[x] for x in SMALL if x not in ("critic_lr", "target_rate")})),
    "iql": (iql, iql.Config(**VALUES)),
    "riql": (riql, riql.Config(**VALUES, huber_sigma=1.5)),
}
OLD = dataclasses.replace(AGENTS["iql"][1], values="old")
CASES = AGENTS | {"iql, values before their step": (iql, OLD)}
agents = pytest.mark.parametrize("name", AGENTS)


def likelihood(actor: reference.MLP, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    """-log pi(a|s) [B] of a softmax, or the sum over several actions [B, 2]."""
    logits = reference.forward(actor, observation)[0]
    if action.ndim == 1:
        return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(action)), action]
    each = zip(np.split(logits, [SEVERAL.choices[0]], axis=1), action.T, strict=True)
    return sum(np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(a)), a] for x, a in each)  # pyright: ignore


def batch_of(spec: EnvSpec, seed: int) -> Transition:
    if not spec.choices:
        return reference.choices(spec.action_size, seed)
    action = np.random.default_rng(seed).integers(spec.choices, size=(5, 2))
    return reference.transitions(seed, 5).replace(action=np.asarray(action, np.int32))


class Reference(value_learning.Networks):
    """Imitation, which IQL and RIQL weigh by advantages."""

    def __init__(self, module: Any, state: Any, config: Any) -> None:
        super().__init__(state, config, lambda actor: reference.mlp(actor.parameters.mean))
        self.module = module

    def clone(self, observation: np.ndarray, action: np.ndarray, weight: Any, step: int) -> float:
        """Move the actor; its loss."""

        def loss(actor: reference.MLP) -> float:
            return float((weight * likelihood(actor, observation, action)).mean())

        before = loss(self.actor)
        self.actor_adam.rate = reference.cosine(self.config.actor_lr, step, self.config.decay_steps)
        self.actor = self.actor_adam.step(self.actor, reference.differences(loss, self.actor))
        return before

    def update(self, batch: Transition, step: int) -> dict[str, float]:
        config, row = self.config, np.arange(len(batch.reward))
        observation, _, successor, reward, alive = value_learning.arrays(batch)
        action = np.asarray(batch.action)
        if self.module is bc:
            return {"actor/loss": self.clone(observation, action, 1.0, step)}
        robust = self.module is riql

        def taken(critics: Any) -> np.ndarray:
            if action.ndim == 2:
                one_hot = [np.eye(number)[action[:, i]] for i, number in enumerate(SEVERAL.choices)]
                inputs = np.concatenate([observation, *one_hot], axis=1)
                return np.stack([reference.forward(critic, inputs)[0][:, 0] for critic in critics])
            outputs = [reference.forward(critic, observation)[0] for critic in critics]
            return np.stack([q[row, action] for q in outputs])

        each = taken(self.targets)
        q = np.quantile(each, config.quantile, axis=0) if robust else each.min(axis=0)
        old = self.value
        losses = {"value/loss": self.fit_value(observation, q)["value/loss"]}
        judge = old if robust or config.values == "old" else self.value
        v, next_v = (value_learning.state_values(judge, x) for x in (observation, successor))
        weight = np.minimum(np.exp(config.inverse_temperature * (q - v)), config.max_weight)
        losses["actor/loss"] = self.clone(observation, action, weight, step)
        y = reward + config.discount * alive * next_v

        def critic_loss(critics: Any) -> float:
            error = np.abs(taken(critics) - y)
            if not robust:
                return float((error**2).mean(axis=1).sum())
            limit = config.huber_sigma**-2.0
            huber = np.where(error < limit, error**2 / (2.0 * limit), error - limit / 2.0)
            return float(huber.mean())

        losses["critic/loss"] = critic_loss(self.critics)
        self.move_critics(reference.differences(critic_loss, self.critics))
        return losses


@pytest.mark.parametrize(
    ("case", "spec"),
    [*((case, SPEC) for case in CASES), *((case, SEVERAL) for case in AGENTS)],
    ids=str,
)
def test_updates_equal_float64(case: str, spec: EnvSpec) -> None:
    module, config = CASES[case]
    module.check(spec, config)
    state = reference.state(module, spec, config)
    expected, update = Reference(module, state, config), jax.jit(module.update)
    for step in range(3):
        batch = batch_of(spec, step)
        state, metrics = update(state, batch, KEY, step, config)
        losses = expected.update(batch, step)
        reference.assert_metrics({name: metrics[name] for name in losses}, losses)
    reference.assert_same(reference.mlp(state.actor.parameters.mean), expected.actor, "actor")
    if module is not bc:
        reference.assert_same(reference.mlp(state.value), expected.value, "value")
        reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
        targets = reference.critics(state.target_critic)
        reference.assert_same(targets, expected.targets, "target_critic")


@agents
@pytest.mark.parametrize("spec", [SPEC, SEVERAL], ids=["one", "several"])
def test_acts_by_the_policy(name: str, spec: EnvSpec) -> None:
    """Several actions are chosen side by side."""
    module, config = AGENTS[name]
    state, observation = reference.state(module, spec, config), reference.observed()[:2]
    actor = state.actor.parameters
    assert actor.log_std is None
    logits = reference.forward(reference.mlp(actor.mean), np.asarray(observation, np.float64))[0]
    parts = np.split(logits, np.cumsum(spec.choices)[:-1], axis=1) if spec.choices else [logits]
    act, many = jax.jit(module.act, static_argnames="explore"), 5_000
    for explore in (True, False):
        seen = np.broadcast_to(observation, (many, 2, 3))
        action, extras = act(state, seen, KEY, config, explore=explore)
        expected = ((many, 2, *spec.action_shape), np.int32, {})
        assert (action.shape, action.dtype, extras) == expected
        for i, part in enumerate(parts):
            chosen = np.eye(part.shape[1])[np.asarray(action).reshape(many, 2, -1)[..., i]]
            p = softmax(part, axis=1) if explore else np.eye(part.shape[1])[part.argmax(axis=1)]
            np.testing.assert_allclose(chosen.mean(axis=0), p, atol=0.03 if explore else 0.0)


@pytest.mark.parametrize("name", ["iql", "riql"])
def test_values_are_those_of_the_action(name: str) -> None:
    module, config = AGENTS[name]
    state, batch = reference.state(module, SPEC, config), reference.choices(ACTIONS)
    observation = np.asarray(batch.observation, np.float64)
    each = [reference.forward(x, observation)[0] for x in reference.critics(state.critic)]
    expected = np.mean(each, axis=0)[np.arange(5), np.asarray(batch.action)]
    value = module.value(state, batch.observation, batch.action, config)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@agents
def test_dropout_also_serves_discrete_actions(name: str) -> None:
    module, config = AGENTS[name]
    config = dataclasses.replace(config, dropout=0.5)
    actor = reference.state(module, SPEC, config).actor.parameters
    batch, policy = reference.choices(ACTIONS), Imitation.of(config)
    losses = [
        float(policy.distance(actor, batch.observation, batch.action, key).mean())
        for key in jax.random.split(KEY, 3)
    ]
    assert len(set(losses)) == 3
