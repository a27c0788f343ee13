"""DecQN against float64 written from the paper and the authors' code, with networks of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import decqn
from tests.agents import batch_norms, reference
from tests.agents.layer_norms import forward, members

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = decqn.Config(
    hidden=(6, 5),
    batch_size=5,
    learning_rate=1e-2,
    n_step=1,
    target_rate=0.5,
    target_every=1,
    bins=3,
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "learning_rate": 3e-3,
    "n_step": 1,
    "num_steps": 1,
    "target_every": 20,
    "target_rate": 1.0,
    "prioritised": 0.0,
    "bins": 21,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "bang-bang, one critic, limited gradient": {
        "bins": 2,
        "num_critics": 1,
        "max_grad_norm": 0.05,
    },
}
init = jax.jit(decqn.init, static_argnums=1)


def example() -> tuple[EnvSpec, decqn.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


def outputs(params: Any, observation: Any) -> Any:
    """Values [B, A, K]."""
    return forward(params, observation).reshape(len(observation), 2, -1)


def targets(critics: Any, old: Any, batch: Any, config: decqn.Config) -> list[np.ndarray]:
    """y of each critic, row by row."""
    rows = []
    values: Any = sum(np.asarray(outputs(each, batch.next_observation)) for each in old) / len(old)
    for critic in critics:
        own = np.asarray(outputs(critic, batch.next_observation))
        best = own.argmax(axis=-1)
        y = np.zeros(len(values))
        for i in range(len(y)):
            next_value = 0.5 * sum(values[i, d, best[i, d]] for d in range(2))
            alive = config.discount * (1.0 - float(batch.terminated[i]))
            y[i] = float(batch.reward[i]) + alive * next_value
        rows.append(y)
    return rows


def loss(critics: Any, batch: Any, y: Any, config: decqn.Config) -> Any:
    """Huber's loss of each critic, added."""
    places = np.linspace(-1.0, 1.0, config.bins)
    distance = np.abs(np.asarray(batch.action)[..., None] - places)
    index = distance.argmin(axis=-1)
    total = 0.0
    for critic, target in zip(critics, y, strict=True):
        q = outputs(critic, batch.observation)
        taken = [q[np.arange(len(q)), d, index[:, d]] for d in range(2)]
        error = jnp.abs(0.5 * (taken[0] + taken[1]) - target)
        total += jnp.where(error < 1.0, 0.5 * error**2, error - 0.5).mean()
    return total


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_paper(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64():
        state, update = batch_norms.exact(init(KEY, SPEC, config)), jax.jit(decqn.update)
        critics = members(state.critic.parameters.params)
        old, limit = members(state.target_critic.params), changes.get("max_grad_norm", 40.0)
        adam = optax.chain(optax.clip_by_global_norm(limit), optax.adam(1e-2))
        moments = adam.init(critics)
        for step in range(4):
            batch = batch_norms.exact(reference.transitions(step, size=6))
            state, metrics = update(state, batch, KEY, step, config)
            y = targets(critics, old, batch, config)
            expected, gradient = jax.value_and_grad(loss)(critics, batch, y, config)
            changed, moments = adam.update(gradient, moments)
            critics = optax.apply_updates(critics, changed)
            old = jax.tree.map(lambda new, last: 0.5 * (new + last), critics, old)
            np.testing.assert_allclose(metrics["critic/loss"], expected, rtol=1e-6)
    for actual, theirs in (
        (members(state.critic.parameters.params), critics),
        (members(state.target_critic.params), old),
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9), actual, theirs
        )


def test_actions_are_the_best_bins_of_each_dimension() -> None:
    state, observation = init(KEY, SPEC, CONFIG), reference.transitions().observation
    values = np.max(
        [outputs(each, observation) for each in members(state.critic.parameters.params)], axis=0
    )
    action, _ = decqn.act(state, observation, KEY, CONFIG, explore=False)
    np.testing.assert_allclose(action, values.argmax(axis=-1) - 1.0)


def test_a_share_of_bins_is_uniform_in_each_dimension() -> None:
    state, config = init(KEY, SPEC, CONFIG), dataclasses.replace(CONFIG, epsilon=0.3)
    observation = jnp.zeros((20_000, 3))
    greedy, _ = decqn.act(state, observation, KEY, config, explore=False)
    action, _ = decqn.act(state, observation, KEY, config, explore=True)
    differs = np.asarray(action != greedy)
    np.testing.assert_allclose(differs.mean(axis=0), 0.3 * 2.0 / 3.0, atol=0.02)
    both = differs.all(axis=1).mean()
    np.testing.assert_allclose(both, 0.2**2, atol=0.01)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(decqn.update), init(KEY, SPEC, CONFIG), CONFIG
    )
