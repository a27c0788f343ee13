"""The comparison of CRL-online with its authors' files, whose place small files of ours take here:
an actor-critic step, from the authors' description, without norms.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.updates.goals import compare_crl_online
from scripts.updates.goals.compare_crl_online import SMALL

CASE = {"depth": 3, "skip": 1}


def hidden(module: Any, x: Any) -> Any:
    """Layers, of which each but the first is added to what went into it."""
    for i in range(module.network_depth):
        y = nn.swish(nn.Dense(module.network_width)(x))
        x = x + y if i else y
    return x


class Encoder(nn.Module):
    """Hidden layers and an output."""

    repr_dim: int = 8
    network_width: int = 16
    network_depth: int = 3
    skip_connections: int = 1
    use_ln: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = hidden(self, x)
        return nn.Dense(self.repr_dim)(x)


class Actor(nn.Module):
    """The same with two heads."""

    action_size: int
    network_width: int = 16
    network_depth: int = 3
    skip_connections: int = 1
    use_ln: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = hidden(self, x)
        mean, u = nn.Dense(self.action_size)(x), nn.Dense(self.action_size)(x)
        return mean, -5.0 + 3.5 * (jnp.tanh(u) + 1.0)


def update_actor_and_alpha(config: Any, networks: Any, rows: Any, learner: Any, key: Any) -> Any:
    goal = rows.extras["future_state"][:, config["goal_indices"]]
    state = rows.observation[:, : config["state_size"]]
    critic, alpha = learner.critic_state.params, learner.alpha_state.params

    def loss(params: Any) -> Any:
        seen = jnp.concatenate([state, goal], axis=1)
        mean, log_std = networks["actor"].apply(params, seen)
        raw = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
        slope = jnp.log(1.0 - jnp.tanh(raw) ** 2 + 1e-6)
        log_prob = (jax.scipy.stats.norm.logpdf(raw, mean, jnp.exp(log_std)) - slope).sum(axis=1)
        both = jnp.concatenate([state, jnp.tanh(raw)], axis=1)
        x = networks["sa_encoder"].apply(critic["sa_encoder"], both)
        y = networks["g_encoder"].apply(critic["g_encoder"], goal)
        energy = -jnp.sqrt(((x - y) ** 2).sum(axis=1) + 1e-6)
        return (jnp.exp(alpha["log_alpha"]) * log_prob - energy).mean(), log_prob.mean()

    (value, log_prob), slope = jax.value_and_grad(loss, has_aux=True)(learner.actor_state.params)
    excess = jnp.exp(alpha["log_alpha"]) * (-log_prob - config["target_entropy"])
    new = learner.alpha_state.apply_gradients(grads={"log_alpha": excess})
    actor = learner.actor_state.apply_gradients(grads=slope)
    losses = {"actor_loss": value, "alpha_loss": excess}
    return learner.replace(actor_state=actor, alpha_state=new), losses


def update_critic(config: Any, networks: Any, rows: Any, learner: Any, key: Any) -> Any:
    state, goal = jnp.split(rows.observation, [config["state_size"]], axis=1)

    def loss(params: Any) -> Any:
        both = jnp.concatenate([state, rows.action], axis=1)
        x = networks["sa_encoder"].apply(params["sa_encoder"], both)[:, None]
        y = networks["g_encoder"].apply(params["g_encoder"], goal)
        logits = -jnp.sqrt(((x - y) ** 2).sum(axis=-1) + 1e-6)
        sums = jax.nn.logsumexp(logits, axis=1)
        value = (sums - jnp.diag(logits) + config["logsumexp_penalty_coeff"] * sums**2).mean()
        return value, (logits, sums.mean())

    state_of = learner.critic_state
    (value, (logits, sums)), slope = jax.value_and_grad(loss, has_aux=True)(state_of.params)
    own, number = jnp.diag(logits).mean(), len(logits)
    losses = {
        "critic_loss": value,
        "logsumexp": sums,
        "logits_pos": own,
        "logits_neg": (logits.mean() * number - own) / (number - 1),
        "categorical_accuracy": (logits.argmax(axis=1) == jnp.arange(number)).mean(),
    }
    return learner.replace(critic_state=state_of.apply_gradients(grads=slope)), losses


@pytest.fixture(autouse=True)
def their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = (update_actor_and_alpha, update_critic)
    files = {
        "networks": types.SimpleNamespace(Actor=Actor, Encoder=Encoder),
        "losses": types.SimpleNamespace(**{loss.__name__: loss for loss in losses}),
    }
    monkeypatch.setattr(compare_crl_online, "module", lambda peer, name: files[name])
    monkeypatch.setattr(compare_crl_online, "exact", lambda tree: tree)  # float32 is enough


def test_updates_of_the_same_equations_are_the_same() -> None:
    """In float32, with their density."""
    results = compare_crl_online.compared(Path(), 2, (CASE, True))
    networks = ("actor", "of_actions", "of_goals", "log_temperature")
    assert set(results) == {*compare_crl_online.LOSSES, *(f"parameters/{x}" for x in networks)}
    assert max(results.values()) < 1e-3
    worse = compare_crl_online.compared(Path(), 2, (CASE | {"contrast": "backward"}, True))
    assert worse["critic/loss"] > 1e-2
    assert worse["parameters/of_goals"] > 1e-2


def test_batches_hold_goals_of_later_states() -> None:
    (one, first), (other, _) = compare_crl_online.batches(2, 6, SMALL)
    state, _, goals = SMALL
    later = first.extras["future_state"][:, goals]
    np.testing.assert_array_equal(one.observation, first.observation)
    np.testing.assert_array_equal(one.observation[:, state:], later)
    np.testing.assert_array_equal(one.extras["is_goal"], [[0.0] * state + [1.0] * 2] * 6)
    assert not np.array_equal(one.observation, other.observation)
