"""TD7 against float64 written from the paper and its authors' code, with its own networks.

scripts/updates/compare_td7.py compares it with the authors' code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Step, Transition
from rljax.agents import td7
from tests.agents import reference
from tests.agents.batch_norms import exact

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = td7.Config(
    hidden=(8, 8, 8),
    encoder_hidden=(8, 8),
    embedding_size=6,
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    encoder_lr=3e-2,
    target_every=2,
    least_priority=0.05,
    warmup_steps=4,
)
KEY = jax.random.key(0)
# Episodes of a probe are too few and too random to be assessed.
PROBE: dict[str, Any] = {
    "hidden": (32, 32, 32),
    "encoder_hidden": (32, 32),
    "embedding_size": 32,
    "encoder_lr": 3e-3,
    "target_every": 25,
    "checkpoints": False,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "from data": {"offline": True, "least_priority": 0.5},
}

update = jax.jit(td7.update)


def example() -> tuple[EnvSpec, td7.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


def critics(state: td7.State, observation: Any, action: Any) -> Any:
    """The critics' values [C, ...], for tests that all agents share."""
    return state.fixed_encoder.values(state.critic, observation, action)


def members(params: Any) -> list[Any]:
    """The parameters of both critics."""
    return [jax.tree.map(lambda x, c=c: x[c], params["members"]) for c in range(2)]


def unit(x: Any) -> Any:
    return x / jnp.abs(x).mean(axis=1, keepdims=True)


def dense(layer: Any, x: Any) -> Any:
    return x @ layer["kernel"] + layer["bias"]


def mlp(layers: Any, x: Any, activation: Any) -> Any:
    for i in range(2):
        x = activation(dense(layers[f"hidden_{i}"], x))
    return dense(layers["output"], x)


def embed(encoder: Any, observation: Any) -> Any:
    return unit(mlp(encoder["state"]["layers"], observation, jax.nn.elu))


def embed_pair(encoder: Any, embedding: Any, action: Any) -> Any:
    return mlp(encoder["pair"], jnp.concatenate([embedding, action], axis=1), jax.nn.elu)


def act(actor: Any, observation: Any, embedding: Any) -> Any:
    x = jnp.concatenate([unit(dense(actor["first"], observation)), embedding], axis=1)
    return jnp.tanh(mlp(actor["layers"], x, jax.nn.relu))


def q(critic: Any, observation: Any, action: Any, pair: Any, embedding: Any) -> Any:
    x = unit(dense(critic["first"], jnp.concatenate([observation, action], axis=1)))
    return mlp(critic["layers"], jnp.concatenate([x, pair, embedding], axis=1), jax.nn.elu)[:, 0]


def fresh(config: td7.Config) -> td7.State:
    return jax.jit(td7.init, static_argnums=1)(KEY, SPEC, config)


def parts_of(state: td7.State) -> dict[str, Any]:
    """What the authors' agent has, by their names."""

    def encoder(part: Any) -> Any:
        return {"state": part.of_state.params, "pair": part.of_pair.params}

    return {
        "actor": state.actor.parameters.params,
        "critic": members(state.critic.parameters.params),
        "encoder": encoder(state.encoder.parameters),
        "actor_target": state.target_actor.params,
        "critic_target": members(state.target_critic.params),
        "fixed": encoder(state.fixed_encoder),
        "fixed_target": encoder(state.past_encoder),
        "range": tuple(state.clip_range),
        "seen": tuple(state.seen_range),
    }


ADAM = {"actor": optax.adam(1e-2), "critic": optax.adam(2e-2), "encoder": optax.adam(3e-2)}


def expected(
    parts: Any, moments: Any, batch: Transition, noise: Any, is_due: bool, config: td7.Config
) -> tuple[Any, Any, Any]:
    """The authors' `train`, and the priorities [B] before their exponent."""
    parts, moments = dict(parts), dict(moments)
    s, a, following = batch.observation, batch.action, batch.next_observation
    least = config.least_priority

    def move(name: str, loss: Any) -> None:
        gradient = jax.grad(loss)(parts[name])
        changes, moments[name] = ADAM[name].update(gradient, moments[name])
        parts[name] = optax.apply_updates(parts[name], changes)

    goal = embed(parts["encoder"], following)
    move("encoder", lambda x: ((embed_pair(x, embed(x, s), a) - goal) ** 2).mean())

    z = embed(parts["fixed_target"], following)
    noise = jnp.clip(0.2 * noise, -0.5, 0.5)
    action = jnp.clip(act(parts["actor_target"], following, z) + noise, -1.0, 1.0)
    pair = embed_pair(parts["fixed_target"], z, action)
    nexts = [q(x, following, action, pair, z) for x in parts["critic_target"]]
    bounded = jnp.clip(jnp.minimum(*nexts), *parts["range"])
    target = batch.reward + 0.99 * (1.0 - batch.terminated) * bounded
    low, high = parts["seen"]
    parts["seen"] = jnp.minimum(low, target.min()), jnp.maximum(high, target.max())
    fixed = embed(parts["fixed"], s)

    def values(critics: Any, action: Any) -> Any:
        pair = embed_pair(parts["fixed"], fixed, action)
        return jnp.stack([q(x, s, action, pair, fixed) for x in critics])

    def critic_loss(critics: Any) -> Any:
        error = abs(values(critics, a) - target)
        return jnp.where(error < least, 0.5 * error**2, least * error).sum(axis=0).mean()

    priority = jnp.maximum(abs(values(parts["critic"], a) - target).max(axis=0), least)
    move("critic", critic_loss)

    def actor_loss(actor: Any) -> Any:
        action = act(actor, s, fixed)
        value = values(parts["critic"], action)
        pull = 0.1 * jax.lax.stop_gradient(abs(value).mean()) if config.offline else 0.0
        return -value.mean() + pull * ((action - a) ** 2).mean()

    if is_due:
        move("actor", actor_loss)
        parts |= {"actor_target": parts["actor"], "critic_target": parts["critic"]}
        parts |= {"fixed_target": parts["fixed"], "fixed": parts["encoder"]}
        parts["range"] = parts["seen"]
    return parts, moments, priority


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    """Six updates with three copies, so that the copies of copies are in use."""
    config = dataclasses.replace(CONFIG, **changes)
    reference_update = jax.jit(expected, static_argnums=(4, 5))
    with jax.enable_x64():
        state = exact(fresh(config))
        parts = parts_of(state)
        moments = {name: adam.init(parts[name]) for name, adam in ADAM.items()}
        for step in range(6):
            batch = exact(reference.transitions(step, size=6))
            batch = batch.replace(extras={"row": jnp.arange(6), "weight": jnp.ones(6)})
            key = jax.random.key(step)
            noise = jnp.asarray(reference.noise(key, (6, 2)))
            state, metrics = update(state, batch, key, step, config)
            due = step % 2 == 1
            parts, moments, priority = reference_update(parts, moments, batch, noise, due, config)
            np.testing.assert_allclose(metrics["priorities"], priority, rtol=1e-9)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-10),
            parts_of(state),
            parts,
        )
    assert np.ptp(priority) > 0.0, "some errors are small, others are not"
    assert parts["range"][0] < parts["range"][1]


def test_only_termination_cuts_the_bootstrap() -> None:
    state = fresh(CONFIG).replace(clip_range=jnp.asarray([-9.0, 9.0]))
    reference.assert_only_termination_cuts_the_bootstrap(update, state, CONFIG)


def test_bounds_of_targets_are_those_until_the_last_copy() -> None:
    """Nothing is bootstrapped before the first copy: the range is [0, 0] at first."""
    state, batch = fresh(CONFIG), reference.transitions()
    rewards = np.asarray(batch.reward)
    for step in range(2):
        state, metrics = update(state, batch, KEY, step, CONFIG)
        np.testing.assert_allclose(metrics["critic/target"], rewards.mean(), rtol=1e-6)
    np.testing.assert_array_equal(state.clip_range, [rewards.min(), rewards.max()])
    np.testing.assert_array_equal(state.seen_range, state.clip_range)


def ended(length: int, total: float) -> Step:
    """An episode that ends in one environment."""
    return Step(
        observation=None,
        next_observation=None,
        reward=jnp.zeros(1),
        terminated=jnp.ones(1, bool),
        truncated=jnp.zeros(1, bool),
        episode_return=jnp.full(1, total),
        episode_length=jnp.full(1, length, jnp.int32),
    )


def test_the_best_candidate_is_evaluated_and_the_next_explores() -> None:
    state = fresh(CONFIG)
    moved = update(state, reference.transitions(), KEY, 1, CONFIG)[0]
    observation = jnp.ones((2, 3))

    def acts(state: td7.State, explore: bool) -> Any:
        still = dataclasses.replace(CONFIG, exploration_noise=0.0)
        return np.asarray(td7.act(state, observation, KEY, still, explore)[0])

    # Learning alone changes no action.
    for explore in (False, True):
        np.testing.assert_array_equal(acts(moved, explore), acts(state, explore))
    # The episode began in the warm-up of 4 steps.
    early = td7.review(moved, ended(5, 3.0), jnp.asarray(8), CONFIG)
    np.testing.assert_array_equal(acts(early, True), acts(state, True))
    first = td7.review(moved, ended(5, 3.0), jnp.asarray(9), CONFIG)
    second = td7.review(first, ended(5, 4.0), jnp.asarray(14), CONFIG)
    dropped = td7.review(first, ended(5, 2.0), jnp.asarray(14), CONFIG)
    assert not np.array_equal(acts(first, True), acts(state, True))
    np.testing.assert_array_equal(acts(first, False), acts(state, False))
    np.testing.assert_array_equal(acts(second, False), acts(first, True))
    np.testing.assert_array_equal(acts(dropped, False), acts(state, False))
    assert float(dropped.assessment.best_worst) == 3.0  # type: ignore[union-attr]


def test_from_data_the_policy_learnt_so_far_acts() -> None:
    config = dataclasses.replace(CONFIG, offline=True)
    state = fresh(config)
    assert state.assessment is None
    moved = update(state, reference.transitions(), KEY, 1, config)[0]
    actions = [td7.act(x, jnp.ones((2, 3)), KEY, config, False)[0] for x in (state, moved)]
    assert not np.array_equal(*actions)
    declared = td7.experience(config)
    assert isinstance(declared, buffers.Dataset)
    assert isinstance(declared.draw, buffers.PrioritisedRows)
