"""ResFiT against float64 NumPy written from its authors' code, all gradients by differences; and
runs beside another run's policy.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.agent import Base, Transition, require_acting
from rljax.agents import resfit, td3
from rljax.networks.inputs import Raw
from rljax.runs.policies import loading
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SPEC
from tests.helpers import small_runs
from tests.runs import parts, test_run_offline

CONFIG = resfit.Config(
    hidden=(6, 6),
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    target_rate=0.1,
    layer_norm=False,
    num_critics=3,
    n_step=1,
    policy_delay=1,
    critic_updates=0,
    residual_scale=0.3,
    exploration_noise=0.4,
    weight_decay=None,
    initialisation="torch",
)
DECAYED = dataclasses.replace(CONFIG, weight_decay=0.01)
OF_BASE = td3.Config(hidden=(8,))
PROBE: dict[str, Any] = {
    **{"layer_norm": False, "num_critics": 2, "n_step": 1, "num_updates": 1},
    **{"residual_scale": 1.0, "policy_delay": 1, "critic_updates": 0, "actor_lr": 1e-3},
    **{"critic_lr": 1e-3, "exploration_noise": 0.2},
}


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def base() -> Base:
    """A fresh TD3."""
    state = td3.init(jax.random.key(7), SPEC, OF_BASE)
    return Base(state, OF_BASE, td3, SPEC, Raw(), None)


def beside_base(config: resfit.Config) -> resfit.State:
    """A State with a target that differs from its actor, which corrects something."""
    state = reference.state(resfit, SPEC, config)
    return resfit.use_base(state, base(), config)


class Reference:
    """Critics, the corrections and their targets."""

    def __init__(self, state: resfit.State, config: resfit.Config) -> None:
        self.config = config
        self.base = reference.mlp(base().state.actor)
        self.learnt = {
            "critic": reference.critics(state.critic),
            "actor": reference.mlp(state.actor),
        }
        self.targets = {
            "critic": reference.critics(state.target_critic),
            "actor": reference.mlp(state.target_actor),
        }
        rates = {"critic": config.critic_lr, "actor": config.actor_lr}
        self.adams = {name: reference.Adam(rate) for name, rate in rates.items()}
        self.rates = rates

    def based(self, observation: np.ndarray) -> np.ndarray:
        return np.tanh(reference.forward(self.base, observation)[0])

    def residual(self, actor: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        inputs = np.concatenate([observation, action], axis=-1)
        return self.config.residual_scale * np.tanh(reference.forward(actor, inputs)[0])

    def values(self, critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.stack([reference.value(x, observation, action)[0] for x in critics])

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        config = self.config
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        _, key_noise, key_subset = jax.random.split(jax.random.split(key)[0], 3)
        e = config.exploration_noise * reference.noise(key_noise, action.shape)
        e = np.clip(e, -config.target_noise_clip, config.target_noise_clip)
        b = self.based(successor)
        following = np.clip(b + self.residual(self.targets["actor"], successor, b) + e, -1, 1)
        chosen = jax.random.choice(
            key_subset, config.num_critics, (config.min_critics or 1,), replace=False
        )
        q = self.values(self.targets["critic"], successor, following)[np.asarray(chosen)]
        y = reward + config.discount * alive * q.min(axis=0)

        def critic_loss(critics: Any) -> float:
            distance = np.abs(self.values(critics, observation, action) - y).mean(axis=0)
            return float(np.square(distance).mean())

        b = self.based(observation)

        def actor_loss(actor: Any) -> float:
            corrected = np.clip(b + self.residual(actor, observation, b), -1.0, 1.0)
            return -float(self.values(self.learnt["critic"], observation, corrected).mean())

        metrics = {
            "critic/loss": critic_loss(self.learnt["critic"]),
            "critic/q": float(self.values(self.learnt["critic"], observation, action).mean()),
            "critic/target": float(y.mean()),
        }
        self.move("critic", critic_loss)
        metrics["actor/loss"] = actor_loss(self.learnt["actor"])
        correction = self.residual(self.learnt["actor"], observation, b)
        metrics["actor/residual"] = float(np.abs(correction).mean())
        self.move("actor", actor_loss)
        return metrics

    def move(self, name: str, loss: Any) -> None:
        gradient = reference.differences(loss, self.learnt[name])
        gradient = reference.limited(gradient, self.config.max_grad_norm)
        decay = self.rates[name] * (self.config.weight_decay or 0.0)
        old = self.learnt[name]
        moved = self.adams[name].step(old, gradient)
        self.learnt[name] = jax.tree.map(lambda new, x: new - decay * x, moved, old)
        self.targets[name] = reference.towards(
            self.learnt[name], self.targets[name], self.config.target_rate
        )


update = jax.jit(resfit.update)


def test_updates_equal_the_authors() -> None:
    state = beside_base(DECAYED)
    expected = Reference(state, DECAYED)
    for step in range(2):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, DECAYED)
        reference.assert_metrics(metrics, expected.update(batch, key))
    reference.assert_same(reference.critics(state.critic), expected.learnt["critic"], "critic")
    reference.assert_same(reference.mlp(state.actor), expected.learnt["actor"], "actor")
    reference.assert_same(reference.critics(state.target_critic), expected.targets["critic"])
    reference.assert_same(reference.mlp(state.target_actor), expected.targets["actor"])
    assert state.base is not None
    assert trees.equal(state.base.state, base().state)


def test_updates_take_the_stored_actions_of_a_base_that_remembers() -> None:
    batch, update = reference.transitions(), jax.jit(resfit.update)
    act = lambda observation: td3.act(base().state, observation, KEY, OF_BASE, False)[0]  # noqa: E731
    stored = {"base_action": act(batch.observation)}
    stored["next_base_action"] = act(batch.next_observation)
    state = beside_base(CONFIG)
    expected, _ = update(state, batch, KEY, 0, CONFIG)
    remembering = state.replace(base=base().replace(remembers=True, state=None))
    after, _ = update(remembering, batch.replace(extras=stored), KEY, 0, CONFIG)
    trees.assert_close(after.replace(base=None), expected.replace(base=None))


def test_plays_the_base_at_first_and_within_its_bounds() -> None:
    state, observation = beside_base(CONFIG), jnp.asarray(reference.observed())
    orthogonal = dataclasses.replace(CONFIG, initialisation="orthogonal")
    fresh = resfit.use_base(resfit.init(KEY, SPEC, orthogonal), base(), CONFIG)
    expected = td3.act(base().state, observation, KEY, OF_BASE, False)[0]
    np.testing.assert_array_equal(resfit.act(fresh, observation, KEY, CONFIG, False)[0], expected)
    warm = resfit.act(fresh, observation, KEY, CONFIG, True)[0] - expected
    assert 0.0 < np.abs(warm).max() <= CONFIG.warmup_noise + 1e-6
    moved = resfit.act(state, observation, KEY, CONFIG, False)[0] - expected
    assert 0.0 < np.abs(moved).max() <= CONFIG.residual_scale + 1e-6


def test_the_actor_waits_for_the_critics() -> None:
    config = dataclasses.replace(CONFIG, critic_updates=3, policy_delay=2)
    state = beside_base(config)
    moved = []
    change = jax.jit(resfit.update)
    for step in range(6):
        after, _ = change(state, reference.transitions(), KEY, jnp.asarray(step), config)
        moved.append(not trees.equal(after.actor.parameters, state.actor.parameters))
        assert not trees.equal(after.critic.parameters, state.critic.parameters)
        state = after
    assert moved == [False, False, False, True, False, True]


SMALL: dict[str, Any] = {"hidden": (16,), "num_critics": 2, "batch_size": 16}


@pytest.mark.learn
def test_corrects_a_run_with_and_without_data(tmp_path: Path) -> None:
    """Both stop and resume exactly; without --base a run is refused."""
    base = small_runs.train("td3", "rljax/Pendulum", 100, tmp_path / "base", {"hidden": (8,)})
    config = {**SMALL, "warmup_steps": 32, "critic_updates": 8}
    train = functools.partial(
        small_runs.train, "resfit", "rljax/Pendulum", config=config, base=str(base)
    )
    out, _ = parts.resumed(train, 100, 200, tmp_path / "alone")
    observations = np.zeros((4, 3), np.float32)
    change = rljax.load(out)(observations) - rljax.load(base)(observations)
    assert np.abs(change).max() <= 0.1 + 1e-6
    data = str(test_run_offline.written(tmp_path / "data.npz"))
    beside = functools.partial(train, data=data, config=config)
    parts.resumed(beside, 100, 200, tmp_path / "beside")
    with pytest.raises(ValueError, match="'resfit' begins with another run's policy: give --base"):
        small_runs.train("resfit", "rljax/Pendulum", 100, tmp_path / "none", config=config)


@pytest.mark.learn
def test_corrects_a_base_that_plays_chunks(tmp_path: Path) -> None:
    """It resumes exactly, also from a checkpoint inside a chunk; data without the base's actions
    are refused, and so is this base by agents that need one without memory.
    """
    data = str(test_run_offline.written(tmp_path / "data.npz"))
    chunks = {"hidden": (16,), "num_critics": 2, "chunk_length": 3, "batch_size": 16}
    base = small_runs.train("qc", "rljax/Pendulum", 60, tmp_path / "base", chunks, data=data)
    config = {**SMALL, "warmup_steps": 32, "critic_updates": 8, "n_step": 2}
    train = functools.partial(
        small_runs.train, "resfit", "rljax/Pendulum", config=config, base=str(base)
    )
    out, _ = parts.resumed(train, 100, 200, tmp_path)
    policy = rljax.load(out)
    assert policy(np.zeros(3), step=0).shape == (1,)
    with pytest.raises(ValueError, match="this policy remembers the episode"):
        policy(np.zeros(3))
    with pytest.raises(ValueError, match=r"remembers, and '.*data\.npz' does not have its actions"):
        train(200, tmp_path / "mixed", data=data)
    with pytest.raises(ValueError, match="'fqe' needs one that acts on single observations"):
        require_acting("fqe", loading.base(base))
