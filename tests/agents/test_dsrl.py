"""DSRL against float64 NumPy written from arXiv:2506.15799 and its form in QAM's comparison, all
gradients by differences; and another run's flow as its base.
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
from rljax.agents import bc, dsrl, qc
from rljax.networks.inputs import Raw
from rljax.runs.policies import loading
from tests.agents import reference, trees, value_learning
from tests.agents.actor_critic import log_density
from tests.agents.test_qc import H, chunks
from tests.agents.value_learning import KEY, SPEC
from tests.helpers import small_runs
from tests.runs import parts, test_run_offline

K = 3
CONFIG = dsrl.Config(
    hidden=(6, 6),
    batch_size=5,
    learning_rate=1e-2,
    temperature_lr=2e-2,
    target_rate=0.1,
    activation="relu",
    layer_norm=False,
    flow_steps=K,
    num_critics=3,
    noise_scale=1.4,
)
PROBE: dict[str, Any] = {"layer_norm": False, "num_critics": 2, "pessimism": 0.0}
POLICY_IS_A_DRAW = True  # also without exploring
TARGETS_LAG = True  # they follow networks from before their step


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """Critics of actions and of noise, the policy of noise, its temperature, and the flow."""

    def __init__(self, state: dsrl.State, config: dsrl.Config, flow: Any = None) -> None:
        self.config, self.size = config, state.spec.action_size
        self.learnt = {
            "critic": reference.critics(state.critic),
            "noise_critic": reference.critics(state.noise_critic),
            "actor": reference.mlp(state.actor),
        }
        self.flow = flow
        if flow is None:
            self.learnt["flow"] = reference.field(state.flow)
            self.flow = reference.field(state.target_flow)
        self.adams = {name: reference.Adam(config.learning_rate) for name in self.learnt}
        self.log_temperature = 0.0
        self.temperature_adam = reference.Adam(config.temperature_lr)
        self.target_critic = reference.critics(state.target_critic)

    def values(self, critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.stack([reference.value(x, observation, action)[0] for x in critics])

    def decode(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        x = noise
        for i in range(K):
            x = x + reference.of_field(self.flow, x, observation, np.full(len(x), i / K)) / K
        return np.clip(x, -1.0, 1.0)

    def sample(
        self, actor: Any, observation: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """b and log pi(b|s)."""
        mean, log_std = np.split(reference.forward(actor, observation)[0], 2, axis=-1)
        log_std = np.clip(log_std, self.config.log_std_min, self.config.log_std_max)
        u = mean + np.exp(log_std) * noise
        return np.tanh(u), log_density(u, mean, log_std)

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        config = self.config
        observation, action, successor, _, alive = value_learning.arrays(batch)
        length, total, whole = reference.chunk_return(batch, config.discount)
        keys = jax.random.split(key, 4)
        b, _ = self.sample(self.learnt["actor"], successor, reference.noise(keys[0], action.shape))
        following = self.decode(successor, config.noise_scale * b)
        q = self.values(self.target_critic, successor, following)
        q = q.mean(axis=0) - config.pessimism * q.std(axis=0)
        y = total + config.discount**length * alive * q
        old = dict(self.learnt)

        def critic_loss(critics: Any) -> float:
            return float((whole * np.square(self.values(critics, observation, action) - y)).mean())

        def noise_critic_loss(critics: Any, key: jax.Array) -> float:
            z = reference.noise(key, action.shape)
            there = self.values(old["critic"], observation, self.decode(observation, z))
            return float(np.square(self.values(critics, observation, z) - there).mean())

        noise = reference.noise(keys[2], action.shape)

        def actor_loss(actor: Any) -> float:
            b, log_prob = self.sample(actor, observation, noise)
            q = self.values(old["noise_critic"], observation, config.noise_scale * b)
            return float((np.exp(self.log_temperature) * log_prob - q.mean(axis=0)).mean())

        metrics = {
            "critic/loss": critic_loss(old["critic"]),
            "critic/q": float(self.values(old["critic"], observation, action).mean()),
            "critic/target": float(y.mean()),
            "actor/loss": actor_loss(old["actor"]),
        }
        self.move("critic", critic_loss)
        self.move("actor", actor_loss)
        distilled = []
        for each in jax.random.split(keys[1], config.distillation_steps):
            distilled.append(noise_critic_loss(self.learnt["noise_critic"], each))
            self.move("noise_critic", lambda x, each=each: noise_critic_loss(x, each))
        metrics["critic/distillation"] = float(np.mean(distilled))
        entropy = -self.sample(old["actor"], observation, noise)[1].mean()
        temperature = np.exp(self.log_temperature)
        surplus = entropy + config.target_entropy_share * self.size
        metrics |= {"actor/entropy": entropy, "temperature/loss": temperature * surplus}
        metrics["temperature/value"] = temperature
        moved = self.temperature_adam.step(
            [np.array(self.log_temperature)], [np.array(temperature * surplus)]
        )
        self.log_temperature = float(moved[0])
        if "flow" in old:
            key_noise, key_time = jax.random.split(keys[3])
            start = reference.noise(key_noise, action.shape)
            time = np.asarray(jax.random.uniform(key_time, (5,)), np.float64)
            between = (1.0 - time[:, None]) * start + time[:, None] * action

            def flow_loss(flow: Any) -> float:
                velocity = reference.of_field(flow, between, observation, time)
                return float((whole[:, None] * np.square(velocity - (action - start))).mean())

            metrics["actor/flow"] = flow_loss(old["flow"])
            self.move("flow", flow_loss)
            self.flow = reference.towards(old["flow"], self.flow, config.target_rate)
        self.target_critic = reference.towards(
            old["critic"], self.target_critic, config.target_rate
        )
        return metrics

    def move(self, name: str, loss: Any) -> None:
        gradient = reference.differences(loss, self.learnt[name])
        self.learnt[name] = self.adams[name].step(self.learnt[name], gradient)


CASES: dict[str, Any] = {
    "single actions": {},
    "chunks, without pessimism": {"chunk_length": H, "pessimism": 0.0},
    "with another run's flow": {"decoder": "base", "distillation_steps": 2},
}
update = jax.jit(dsrl.update)


def flow_of_qc(length: int = 1, **changes: Any) -> Base:
    """A fresh QC as a base."""
    config = qc.Config(
        hidden=(8,), activation="relu", flow_steps=K, chunk_length=length, num_candidates=2
    )
    state = qc.init(jax.random.key(7), SPEC, dataclasses.replace(config, **changes))
    return Base(state, config, qc, SPEC, Raw(), None, remembers=length > 1)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state, flow = reference.state(dsrl, SPEC, config), None
    if config.decoder == "base":
        base = flow_of_qc()
        state, flow = dsrl.use_base(state, base, config), reference.field(base.state.actor)
    batches = reference.transitions if config.chunk_length == 1 else chunks
    expected = Reference(state, config, flow)
    for step in range(2):
        batch, key = batches(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key))
    actual: dict[str, Any] = {
        "critic": reference.critics(state.critic),
        "noise_critic": reference.critics(state.noise_critic),
        "actor": reference.mlp(state.actor),
    }
    if flow is not None:
        assert state.base is not None
        assert trees.equal(state.base.state, flow_of_qc().state)
    else:
        actual["flow"] = reference.field(state.flow)
        reference.assert_same(reference.field(state.target_flow), expected.flow, "target_flow")
    for name, network in actual.items():
        reference.assert_same(network, expected.learnt[name], name)
    reference.assert_same(reference.critics(state.target_critic), expected.target_critic)
    temperature = state.log_temperature.parameters
    np.testing.assert_allclose(temperature, expected.log_temperature, rtol=1e-5)


def test_bases_that_do_not_fit_are_refused() -> None:
    own, other = CONFIG, dataclasses.replace(CONFIG, decoder="base")
    longer = dataclasses.replace(other, chunk_length=H)
    deterministic = Base(None, bc.Config(), bc, SPEC, Raw(), None)
    cases = [
        (None, other, "agent 'dsrl' decodes by another run's flow: give --base RUN, of qc"),
        (deterministic, other, "--base makes no actions of noise, which agent 'dsrl' needs: name"),
        (flow_of_qc(), longer, "--base makes chunks of 1: give --config.chunk-length 1."),
        (flow_of_qc(), own, "takes --base with --config.decoder base alone"),
    ]
    for base, config, message in cases:
        with pytest.raises(ValueError, match=message):
            dsrl.check_base(base, config)
    dsrl.check_base(None, own)
    dsrl.check_base(flow_of_qc(), other)
    dsrl.check_base(flow_of_qc(H), longer)


SMALL: dict[str, Any] = {"hidden": (16,), "num_critics": 2, "flow_steps": 2, "batch_size": 16}


@pytest.mark.learn
@pytest.mark.parametrize("length", [1, 2])
def test_steers_a_run_of_qc(length: int, tmp_path: Path) -> None:
    """Online, beside the frozen flow: the run resumes exactly, and its actions are the flow's."""
    data = str(test_run_offline.written(tmp_path / "data.npz"))
    flow = {**SMALL, "chunk_length": length, "num_candidates": 2}
    base = small_runs.train("qc", "rljax/Pendulum", 60, tmp_path / "flow", flow, data=data)
    config = {**SMALL, "decoder": "base", "chunk_length": length, "warmup_steps": 64}
    train = functools.partial(
        small_runs.train, "dsrl", "rljax/Pendulum", config=config, base=str(base)
    )
    out, _ = parts.resumed(train, 100, 200, tmp_path)
    policies = loading.load_all(out)
    state, config_of_one = jax.tree.map(lambda x: x[0], (policies.state, policies.config))
    observation = jnp.zeros((4, 3))
    inner = dsrl.use_base(state.state, state.base, config_of_one)
    noise = jax.random.normal(KEY, (4, length))
    expected = loading.base(base)
    one = jax.tree.map(lambda x: x[0], expected)
    np.testing.assert_allclose(
        dsrl.decode(inner, observation, noise, config_of_one), one.decode(observation, noise)
    )
    step: dict[str, Any] = {} if length == 1 else {"step": 0}
    assert rljax.load(out)(np.zeros(3), **step).shape == (1,)
