"""DSRL-SAC against float64 NumPy written from arXiv:2506.15799 and Stable-Baselines3's SAC, all
gradients by differences; and its decisions beside another run's flow.
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
from rljax.agent import Base, Transition
from rljax.agents import bc, dsrl_sac
from rljax.networks.inputs import Raw
from tests.agents import reference, trees, value_learning
from tests.agents.actor_critic import log_density
from tests.agents.test_dsrl import flow_of_qc
from tests.agents.test_qc import H
from tests.agents.value_learning import SPEC
from tests.helpers import small_runs
from tests.runs import parts, test_run_offline

CONFIG = dsrl_sac.Config(
    hidden=(6, 6),
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=2e-2,
    target_rate=0.1,
    activation="relu",
    layer_norm=False,
    target_entropy_share=0.5,
    noise_scale=1.4,
)
PROBE: dict[str, Any] = {
    **{"layer_norm": False, "activation": "relu", "noise_scale": 1.0},
    **{"init_temperature": 1e-3, "learn_temperature": False},
}
POLICY_IS_A_DRAW = True  # also without exploring


def decisions(seed: int = 0, length: int = 1) -> Transition:
    """Transitions whose noise, discount and weight are as `Decisions` draws them."""
    batch = reference.transitions(seed)
    generator = np.random.default_rng(seed)
    shape = (len(batch.reward), length * SPEC.action_size)
    played = generator.integers(1, length + 1, len(batch.reward))
    return batch.replace(
        extras={
            "noise": generator.uniform(-0.9, 0.9, shape).astype(np.float32),
            "discount": (CONFIG.discount**played).astype(np.float32),
            "weight": np.array([1, 1, 0, 1, 1], np.float32),
        }
    )


def example() -> Any:
    return SPEC, CONFIG, decisions()


class Reference:
    """Critics of noise, the policy of noise, and its temperature."""

    def __init__(self, state: dsrl_sac.State, config: dsrl_sac.Config) -> None:
        self.config, self.size = config, state.spec.action_size
        self.learnt = {
            "critic": reference.critics(state.critic),
            "actor": reference.mlp(state.actor),
        }
        rates = {"critic": config.critic_lr, "actor": config.actor_lr}
        self.adams = {name: reference.Adam(rate) for name, rate in rates.items()}
        self.target_critic = reference.critics(state.target_critic)
        self.log_temperature = 0.0
        self.temperature_adam = reference.Adam(config.temperature_lr)

    def sample(
        self, actor: Any, observation: np.ndarray, normal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """b and log pi(b|s)."""
        output = reference.forward(actor, observation)[0]
        mean, log_std = np.split(output, 2, axis=-1)
        log_std = np.clip(log_std, self.config.log_std_min, self.config.log_std_max)
        u = mean + np.exp(log_std) * normal
        return np.tanh(u), log_density(u, mean, log_std)

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        config = self.config
        observation, _, successor, reward, alive = value_learning.arrays(batch)
        noise, discount, weight = (
            np.asarray(batch.extras[name], np.float64) for name in ("noise", "discount", "weight")
        )
        key_critic, key_actor = jax.random.split(key)
        temperature = np.exp(self.log_temperature)
        b, log_prob = self.sample(
            self.learnt["actor"], successor, reference.noise(key_critic, noise.shape)
        )
        q = reference.values(self.target_critic, successor, b).min(axis=0)
        y = reward + discount * alive * (q - temperature * log_prob)

        def critic_loss(critics: Any) -> float:
            q = reference.values(critics, observation, noise)
            return float((weight * np.square(q - y)).mean())

        metrics = {
            "critic/loss": critic_loss(self.learnt["critic"]),
            "critic/q": float(reference.values(self.learnt["critic"], observation, noise).mean()),
            "critic/target": float(y.mean()),
        }
        self.move("critic", critic_loss)
        normal = reference.noise(key_actor, noise.shape)

        def actor_loss(actor: Any) -> float:
            b, log_prob = self.sample(actor, observation, normal)
            q = reference.values(self.learnt["critic"], observation, b).min(axis=0)
            return float((temperature * log_prob - q).mean())

        metrics["actor/loss"] = actor_loss(self.learnt["actor"])
        entropy = -self.sample(self.learnt["actor"], observation, normal)[1].mean()
        self.move("actor", actor_loss)
        surplus = entropy + config.target_entropy_share * self.size
        metrics |= {"actor/entropy": float(entropy), "temperature/value": float(temperature)}
        metrics["temperature/loss"] = float(self.log_temperature * surplus)
        (moved,) = self.temperature_adam.step([np.array(self.log_temperature)], [np.array(surplus)])
        self.log_temperature = float(moved)
        self.target_critic = reference.towards(
            self.learnt["critic"], self.target_critic, config.target_rate
        )
        return metrics

    def move(self, name: str, loss: Any) -> None:
        gradient = reference.differences(loss, self.learnt[name])
        self.learnt[name] = self.adams[name].step(self.learnt[name], gradient)


update = jax.jit(dsrl_sac.update)


@pytest.mark.parametrize("length", [1, H])
def test_updates_equal_the_papers(length: int) -> None:
    config = dataclasses.replace(CONFIG, chunk_length=length)
    state = dsrl_sac.use_base(reference.state(dsrl_sac, SPEC, config), flow_of_qc(length), config)
    expected = Reference(state, config)
    for step in range(2):
        batch, key = decisions(step, length), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key))
    reference.assert_same(reference.critics(state.critic), expected.learnt["critic"], "critic")
    reference.assert_same(reference.mlp(state.actor), expected.learnt["actor"], "actor")
    reference.assert_same(reference.critics(state.target_critic), expected.target_critic)
    temperature = state.log_temperature.parameters
    np.testing.assert_allclose(temperature, expected.log_temperature, rtol=1e-5)
    assert state.base is not None
    assert trees.equal(state.base.state, flow_of_qc(length).state)


def test_a_chunk_is_played_to_its_end_and_keeps_its_noise() -> None:
    """The flow's chunk for the noise that each of its steps is stored with."""
    config = dataclasses.replace(CONFIG, chunk_length=H)
    state = dsrl_sac.use_base(reference.state(dsrl_sac, SPEC, config), flow_of_qc(H), config)
    memory = dsrl_sac.remember(SPEC, config)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape)), memory)
    observations = reference.observed().reshape(2 * H, 2, 3)
    act = jax.jit(dsrl_sac.act, static_argnames="explore")
    for t in range(2 * H):
        observation = jnp.asarray(observations[t])
        action, extras, memory = act(
            state, observation, jax.random.key(t), config, explore=True, memory=memory
        )
        played = t % H
        np.testing.assert_array_equal(extras["played"], [played, played])
        if not played:
            noise = extras["noise"]
            chunk = dsrl_sac.decode(state, observation, config.noise_scale * noise, config)
        np.testing.assert_array_equal(extras["noise"], noise)
        np.testing.assert_allclose(action, chunk.reshape(2, H, -1)[:, played], rtol=1e-5)


def test_bases_that_do_not_fit_are_refused() -> None:
    deterministic = Base(None, bc.Config(), bc, SPEC, Raw(), None)
    cases = [
        (None, CONFIG, "agent 'dsrl_sac' decodes by another run's flow: give --base RUN, of qc"),
        (deterministic, CONFIG, "--base makes no actions of noise, which agent 'dsrl_sac' needs"),
        (flow_of_qc(H), CONFIG, f"--base makes chunks of {H}: give --config.chunk-length {H}."),
    ]
    for base, config, message in cases:
        with pytest.raises(ValueError, match=message):
            dsrl_sac.check_base(base, config)


@pytest.mark.learn
@pytest.mark.parametrize("length", [1, 3])
def test_steers_a_run_of_qc(length: int, tmp_path: Path) -> None:
    """It resumes exactly, also from a checkpoint inside a chunk."""
    data = str(test_run_offline.written(tmp_path / "data.npz"))
    small: dict[str, Any] = {"hidden": (16,), "num_critics": 2, "batch_size": 16}
    flow = {**small, "chunk_length": length, "num_candidates": 2, "flow_steps": 2}
    base = small_runs.train("qc", "rljax/Pendulum", 60, tmp_path / "flow", flow, data=data)
    config = {**small, "chunk_length": length, "warmup_steps": 64}
    train = functools.partial(
        small_runs.train, "dsrl_sac", "rljax/Pendulum", config=config, base=str(base)
    )
    out, _ = parts.resumed(train, 100, 200, tmp_path)
    step: dict[str, Any] = {} if length == 1 else {"step": 0}
    assert rljax.load(out)(np.zeros(3), **step).shape == (1,)
