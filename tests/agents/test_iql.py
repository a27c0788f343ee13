"""IQL against float64 NumPy written from the paper and the authors' code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import Transition
from rljax.agents import bc, iql
from rljax.learning import registry
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SPEC

CONFIG = iql.Config(**value_learning.SIZES, value_lr=3e-2)
# With biases of 0, an observation of 0 moves the last layer alone.
PROBE = {"initialisation": "torch"}


def example() -> Any:
    return SPEC, dataclasses.replace(CONFIG, decay_steps=10.0, dropout=0.1), reference.transitions()


class Reference(value_learning.Networks):
    """Equations 5 to 7 of arXiv:2110.06169 in the order of the authors' code."""

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        q, old = reference.smallest(self.targets, observation, action)[0], self.value
        metrics = self.fit_value(observation, q)
        judge = self.value if self.config.values == "new" else old
        v, next_v = (value_learning.state_values(judge, x) for x in (observation, successor))
        metrics |= self.imitate(observation, action, q - v, key, step)
        y = reward + self.config.discount * alive * next_v
        return metrics | self.fit_critics(observation, action, y)


CASES = {
    "default": {},
    "CORL": {"values": "old"},
    "CORL on hopper-medium": {"values": "old", "policy": "deterministic", "target_rate": 0.05},
    "antmaze": {"expectile": 0.9, "inverse_temperature": 10.0},
    "adroit": {"inverse_temperature": 0.5, "dropout": 0.4},
    "bounded weights and std": {"inverse_temperature": 2.0, "max_weight": 1.05, "log_std_max": 0.0},
    "decay, three critics": {"decay_steps": 3.0, "num_critics": 3, "discount": 0.5},
}

update = jax.jit(iql.update)
value_loss = jax.jit(iql.value_loss)
actor_loss = jax.jit(iql.actor_loss)
act = jax.jit(iql.act, static_argnames="explore")


def fresh(config: iql.Config) -> iql.State:
    """Values lie among the critics'."""
    state = reference.state(iql, SPEC, config)
    state.value.parameters.params["output"]["bias"] -= 0.2
    return state


def constant(v: Any) -> Any:
    return lambda observation: jnp.full((observation.shape[0], 1), v)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    value_learning.assert_updates_equal(update, fresh(config), config, Reference)


def test_the_cases_bound_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **CASES["bounded weights and std"])
    batch = reference.transitions()
    state = fresh(config)
    assert 0.0 < (np.asarray(state.actor.parameters.log_std) > config.log_std_max).mean() < 1.0
    q = state.target_critic(batch.observation, batch.action).min(axis=0)
    advantage = np.asarray(q - state.value(batch.observation)[:, 0])
    assert 0.0 < (advantage > 0.0).mean() < 1.0
    assert 0.0 < (np.exp(config.inverse_temperature * advantage) > config.max_weight).mean() < 1.0


def test_losses_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(
        reward=np.asarray([1.0, 2.0], np.float32), terminated=np.array([False, True])
    )
    config = dataclasses.replace(
        CONFIG, expectile=0.75, discount=0.5, inverse_temperature=1.0, max_weight=3.0
    )
    # u = (4, -2) - 1 = (3, -3):  (0.75 9 + 0.25 9) / 2
    loss = iql.value_loss(constant(1.0), jnp.array([4.0, -2.0]), batch, config)[0]
    np.testing.assert_allclose(loss, 4.5, rtol=1e-6)
    # y = (1 + 0.5 6, 2);  errors (1, 0) and (-2, 3):  1 / 2 + 13 / 2
    critic: Any = lambda observation, action: jnp.array([[5.0, 2.0], [2.0, 5.0]])  # noqa: E731
    loss, metrics = iql.critic_loss(critic, jnp.array([6.0, 9.0]), batch, config)
    np.testing.assert_allclose(
        [loss, metrics["critic/target"], metrics["critic/q"]], [7.0, 3.0, 3.5], rtol=1e-6
    )
    # w = (3, e^-1), e^2 being above the bound;  |mu - a|^2 = (0.25, 1)
    batch = batch.replace(action=np.array([[0.5, 0.0], [0.0, -1.0]], np.float32))
    mean: Any = lambda observation, dropout: jnp.zeros((2, 2))  # noqa: E731
    loss = iql.actor_loss(networks.Actor(mean, None), jnp.array([2.0, -1.0]), batch, KEY, config)[0]
    np.testing.assert_allclose(loss, (0.75 + np.exp(-1.0)) / 2.0, rtol=1e-6)


def least(share: float) -> float:
    """The constant V that L(V) wants for q = 0, 1, ..., 9, by Newton's method."""
    q, batch = jnp.arange(10.0), reference.transitions(0, 10)
    config = dataclasses.replace(CONFIG, expectile=share)
    slope = jax.grad(lambda v: iql.value_loss(constant(v), q, batch, config)[0])
    v = jnp.asarray(4.5)
    for _ in range(20):
        v = v - slope(v) / jax.grad(slope)(v)
    return float(v)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 4.5), (0.999999, 9.0), (0.000001, 0.0)])
def test_expectile_is_the_mean_in_the_middle_and_the_extremes_at_the_ends(
    share: float, expected: float
) -> None:
    np.testing.assert_allclose(least(share), expected, atol=1e-3)


def test_expectile_balances_what_is_above_and_below() -> None:
    v, q = least(0.7), np.arange(10.0)
    above, below = np.maximum(q - v, 0.0).sum(), np.maximum(v - q, 0.0).sum()
    np.testing.assert_allclose(0.7 * above, 0.3 * below, rtol=1e-4)


def test_weights_grow_with_the_advantage_up_to_their_bound() -> None:
    config = dataclasses.replace(CONFIG, policy="deterministic")
    actor, batch = fresh(config).actor.parameters, reference.transitions()
    losses = (actor_loss(actor, jnp.full(5, x), batch, KEY, config) for x in (-1, 0, 1, 9))
    weights = [metrics["actor/weight"] for _, metrics in losses]
    np.testing.assert_allclose(weights, [np.exp(-3.0), 1.0, np.exp(3.0), 100.0], rtol=1e-5)


def test_without_inverse_temperature_it_clones() -> None:
    config = dataclasses.replace(CONFIG, inverse_temperature=0.0)
    state, batch = fresh(config), reference.transitions()
    loss = actor_loss(state.actor.parameters, jnp.arange(5.0), batch, KEY, config)[0]
    cloning = bc.Config(loss="log_prob", hidden=(8, 8))
    actor = networks.Actor(state.actor.parameters.mean, state.actor.parameters.log_std)
    cloned = bc.actor_loss(actor, batch, KEY, cloning)[0]
    np.testing.assert_allclose(loss, cloned, rtol=1e-6)


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_no_action_but_the_datas_is_judged() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    other = state.replace(actor=jax.tree.map(lambda x: x + 1.0, state.actor))
    new, moved = (update(x, batch, KEY, 0, CONFIG)[0] for x in (state, other))
    assert trees.equal(*((x.critic, x.value, x.target_critic) for x in (new, moved)))


@pytest.mark.parametrize("values", ["new", "old"])
def test_which_value_judges(values: Any) -> None:
    config = dataclasses.replace(CONFIG, values=values)
    state, batch = fresh(config), reference.transitions()
    still = dataclasses.replace(config, value_lr=0.0)
    moving, resting = (update(state, batch, KEY, 0, x)[1] for x in (config, still))
    assert (moving["critic/target"] == resting["critic/target"]) == (values == "old")
    assert (moving["actor/advantage"] == resting["actor/advantage"]) == (values == "old")


def test_rate_falls_to_zero_as_a_cosine() -> None:
    value_learning.assert_rate_falls_to_zero_as_a_cosine(
        iql, update, fresh(CONFIG), CONFIG, "critic", "value"
    )


def test_begins_orthogonal_with_the_authors_gain() -> None:
    state = jax.jit(iql.init, static_argnums=1)(KEY, SPEC, CONFIG)
    networks = (state.actor.parameters.mean, state.value.parameters)
    kernels = [network.params["output"]["kernel"] for network in networks]
    for kernel in (*kernels, *state.critic.parameters.params["members"]["output"]["kernel"]):
        singular = np.linalg.svd(np.asarray(kernel), compute_uv=False)
        np.testing.assert_allclose(singular, np.sqrt(2.0), rtol=1e-4)
    np.testing.assert_array_equal(state.actor.parameters.log_std, np.zeros(2))


@pytest.mark.parametrize("policy", ["gaussian", "deterministic"])
def test_act_explores_around_the_mean_within_bounds(policy: Any) -> None:
    config = dataclasses.replace(CONFIG, policy=policy, exploration_noise=0.7)
    state, seen = fresh(config), reference.transitions(9, 6).observation
    mean, *log_std = reference.actor(state.actor)
    mean = np.tanh(reference.forward(mean, np.asarray(seen, np.float64))[0])
    std = np.exp(log_std[0]) if log_std else 0.7
    value_learning.assert_explores_around(mean, std, act, state, seen, config)


def test_ogbenchs_preset_normalises_v_and_critics_as_fqls_code() -> None:
    """seohongpark/fql 719d044, utils/networks.py: a LayerNorm behind each GELU, of `value_def` and
    `critic_def` (agents/iql.py: layer_norm=True) and not of the actor (actor_layer_norm=False).
    """
    config = dataclasses.replace(
        registry.preset("iql", iql, "ogbench/cube-single-play-singletask-v0"), hidden=(8, 8, 8)
    )
    state: Any = iql.init(KEY, SPEC, config)
    assert not [name for name in state.actor.parameters.mean.params if name.startswith("norm")]
    seen, action = np.random.default_rng(0).normal(size=(2, 5, 3))

    def fqls(params: Any, x: np.ndarray) -> np.ndarray:
        for i in range(3):
            x = x @ params[f"hidden_{i}"]["kernel"] + params[f"hidden_{i}"]["bias"]
            x = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
            x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
        return (x @ params["output"]["kernel"] + params["output"]["bias"])[:, 0]

    value = fqls(state.value.parameters.params, seen)
    np.testing.assert_allclose(state.value(seen)[:, 0], value, rtol=1e-4, atol=1e-5)
    both = np.concatenate([seen, action[:, :2]], axis=1)
    for i, q in enumerate(state.critic(seen, action[:, :2])):
        member = jax.tree.map(lambda x, i=i: x[i], state.critic.parameters.params["members"])
        np.testing.assert_allclose(q, fqls(member, both), rtol=1e-4, atol=1e-5)
