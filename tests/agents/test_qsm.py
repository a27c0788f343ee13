"""QSM and DAC against float64 NumPy written from the papers and from the code of
arXiv:2601.14234, all gradients by differences.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition, first_memory
from rljax.agents import qsm
from tests.agents import reference, trees, value_learning
from tests.agents.test_qam import slopes
from tests.agents.test_qc import A, H, chunks
from tests.agents.value_learning import KEY, SPEC

T = 3
CONFIG = qsm.Config(
    hidden=(6, 6),
    batch_size=5,
    learning_rate=1e-2,
    target_rate=0.1,
    activation="relu",
    critic_activation="relu",
    layer_norm=False,
    denoising_steps=T,
    embedding=4,
    num_critics=3,
    inverse_temperature=2.0,
    imitation_weight=0.7,
)
PROBE: dict[str, Any] = {"layer_norm": False, "num_critics": 2, "pessimism": 0.0}
POLICY_IS_A_DRAW = True  # also without exploring
TARGETS_LAG = True  # they follow the critics from before their step


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def critics(state: qsm.State, *inputs: Any) -> Any:
    """Q_c, for tests of what all agents have in common."""
    return state.networks.parameters.critic(*inputs)


class Reference:
    """Losses of arXiv:2312.11752 and arXiv:2405.20555 beside imitation. Steps are 1 to T."""

    def __init__(self, state: qsm.State, config: qsm.Config) -> None:
        learnt = state.networks.parameters
        self.config = config
        self.learnt = {
            "critic": reference.critics(learnt.critic),
            "denoiser": reference.field(learnt.denoiser),
        }
        self.adams = {name: reference.Adam(config.learning_rate) for name in self.learnt}
        self.target_critic = reference.critics(state.target_critic)
        t = np.arange(1, T + 1)
        beta = 1.0 - np.exp(-0.1 / T - 0.5 * (10.0 - 0.1) * (2 * t - 1) / T**2)
        self.alpha = np.concatenate([[1.0], 1.0 - beta])
        self.alpha_hat = np.cumprod(self.alpha)

    def noise(self, x: np.ndarray, observation: np.ndarray, t: Any, denoiser: Any = None) -> Any:
        denoiser = self.learnt["denoiser"] if denoiser is None else denoiser
        time = np.broadcast_to(np.asarray(t, np.float64), len(x))
        return reference.of_field(denoiser, x, observation, time)

    def sampled(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """From noise [T + 1, B, A], by the steps of QSM's or of DAC's settings."""
        x = noise[0]
        for i, t in enumerate(range(T, 0, -1)):
            left, alpha, before = self.alpha_hat[t], self.alpha[t], self.alpha_hat[t - 1]
            mean = (x - np.sqrt(1.0 - left) * self.noise(x, observation, t)) / np.sqrt(left)
            if self.config.sampling != "clean":
                clean = np.clip(mean, -1.0, 1.0)
                mean = np.sqrt(before) * (1.0 - alpha) * clean + np.sqrt(alpha) * (1.0 - before) * x
                mean = mean / (1.0 - left)
            x = mean + (t > 1) * np.sqrt(1.0 - alpha) * noise[i + 1]
            if self.config.sampling == "clean":
                x = np.clip(x, -1.0, 1.0)
        return x

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        observation, action, successor, _, alive = value_learning.arrays(batch)
        length, total, whole = reference.chunk_return(batch, config.discount)
        key_critic, key_actor = jax.random.split(key)
        drawn = jax.random.normal(key_critic, (T + 1, *action.shape))
        following = self.sampled(successor, np.asarray(drawn, np.float64))
        q = reference.values(self.target_critic, successor, following)
        q = q.mean(axis=0) - config.pessimism * q.std(axis=0)
        y = total + config.discount**length * alive * q
        key_step, key_noise = jax.random.split(key_actor)
        t = np.asarray(jax.random.randint(key_step, (5,), 0, T)) + 1
        noise = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        left = self.alpha_hat[t][:, None]
        noisy = np.sqrt(left) * action + np.sqrt(1.0 - left) * noise

        def mean_value(x: np.ndarray) -> np.ndarray:
            return reference.values(self.target_critic, observation, x).mean(axis=0)

        slope = config.inverse_temperature * slopes(mean_value, noisy)

        def critic_loss(critics: Any) -> float:
            error = np.square(reference.values(critics, observation, action) - y)
            return float((whole * error).mean())

        def imitation_loss(denoiser: Any) -> float:
            error = self.noise(noisy, observation, t, denoiser) - noise
            return float((whole * np.square(error).mean(axis=1)).mean())

        def matching_loss(denoiser: Any) -> float:
            predicted = self.noise(noisy, observation, t, denoiser)
            error = np.square(-slope - predicted)
            if config.matching == "actor_critic":
                error = np.sqrt(1.0 - left) * slope * predicted
            return float((whole * error.mean(axis=1)).mean())

        def actor_loss(denoiser: Any) -> float:
            return config.imitation_weight * imitation_loss(denoiser) + matching_loss(denoiser)

        metrics = {
            "critic/loss": critic_loss(self.learnt["critic"]),
            "critic/q": reference.values(self.learnt["critic"], observation, action).mean(),
            "critic/target": y.mean(),
            "actor/imitation": imitation_loss(self.learnt["denoiser"]),
            "actor/matching": matching_loss(self.learnt["denoiser"]),
        }
        losses = {"critic": critic_loss, "denoiser": actor_loss}
        gradient = {
            name: reference.differences(loss, self.learnt[name]) for name, loss in losses.items()
        }
        norm = np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(gradient)))
        if config.max_grad_norm:
            factor = min(1.0, config.max_grad_norm / norm)
            gradient = jax.tree.map(lambda x: factor * x, gradient)
        old = self.learnt["critic"]
        for name, change in gradient.items():
            self.learnt[name] = self.adams[name].step(self.learnt[name], change)
        self.target_critic = reference.towards(old, self.target_critic, config.target_rate)
        return metrics


DAC = {"matching": "actor_critic", "sampling": "wide"}
CASES: dict[str, Any] = {
    "single actions": {},
    "chunks, without a limit": {"chunk_length": H, "max_grad_norm": None, "pessimism": 0.0},
    "DAC, chunks": {"chunk_length": H, **DAC},
}
update = jax.jit(qsm.update)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(qsm, SPEC, config)
    batches = reference.transitions if config.chunk_length == 1 else chunks
    expected = Reference(state, config)
    for step in range(2):
        batch, key = batches(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    learnt = state.networks.parameters
    actual = {"critic": reference.critics(learnt.critic)}
    actual |= {"denoiser": reference.field(learnt.denoiser)}
    for name, network in actual.items():
        reference.assert_same(network, expected.learnt[name], name)
    reference.assert_same(
        reference.critics(state.target_critic), expected.target_critic, "target_critic"
    )


@pytest.mark.learn
@pytest.mark.parametrize("matching", ["score", "actor_critic"])
def test_values_pull_where_imitation_does_not(matching: Any) -> None:
    """Critics that grow along the first number of an action, beside data without values."""
    config = dataclasses.replace(
        CONFIG, matching=matching, inverse_temperature=1.0, imitation_weight=1.0, max_grad_norm=None
    )
    state = qsm.init(KEY, SPEC, config)
    zeros = jax.tree.map(jnp.zeros_like, state.target_critic)
    members = {name: dict(layer) for name, layer in zeros.params["members"].items()}
    row = SPEC.observation_shape[0]  # where the action begins
    members["hidden_0"]["kernel"] = members["hidden_0"]["kernel"].at[:, row, 0].set(1.0)
    members["hidden_0"]["bias"] = members["hidden_0"]["bias"].at[:, 0].set(10.0)
    members["hidden_1"]["kernel"] = members["hidden_1"]["kernel"].at[:, 0, 0].set(1.0)
    members["output"]["kernel"] = members["output"]["kernel"].at[:, 0, 0].set(1.0)
    critic = zeros.replace(params={"members": members})

    def acts(weight: float) -> np.ndarray:
        changed = dataclasses.replace(config, inverse_temperature=weight)
        learner = state.replace(target_critic=critic)
        for step in range(300):
            batch = reference.transitions(size=64, seed=step)
            batch = batch.replace(action=jnp.zeros_like(batch.action))
            learner, _ = update(learner, batch, jax.random.key(step), step, changed)
            learner = learner.replace(target_critic=critic)
        observation = jnp.zeros((200, 3))
        return np.asarray(jax.jit(qsm.policy)(learner, observation, KEY, changed))

    still, moved = acts(0.0), acts(1.0)
    assert abs(still[:, 0].mean()) < 0.2
    assert moved[:, 0].mean() > still[:, 0].mean() + 0.2
    assert abs(moved[:, 1].mean() - still[:, 1].mean()) < 0.15


def test_actions_stay_in_their_range_with_every_sampling() -> None:
    state, observation = reference.state(qsm, SPEC, CONFIG), reference.observed()
    decide = jax.jit(qsm.policy)
    drawn = []
    for sampling in ("clean", "wide", "posterior"):
        config = dataclasses.replace(CONFIG, sampling=sampling)  # pyright: ignore[reportArgumentType]
        drawn.append(np.asarray(decide(state, observation, KEY, config)))
        assert np.abs(drawn[-1]).max() <= 1.0
    for one, other in itertools.pairwise(drawn):
        assert np.abs(one - other).max() > 1e-3


def test_chunks_are_played() -> None:
    config = dataclasses.replace(CONFIG, chunk_length=H)
    state, observation = reference.state(qsm, SPEC, config), jnp.zeros((2, 3))
    memory = first_memory(qsm, SPEC, config, 2)
    actions = []
    for i in range(H):
        key = jax.random.fold_in(KEY, i)
        action, _, memory = qsm.act(state, observation, key, config, True, memory)
        actions.append(action)
    np.testing.assert_array_equal(np.stack(actions, axis=1), memory["actions"])
    assert actions[0].shape == (2, A)
    with pytest.raises(ValueError, match="chunk-length 1"):
        qsm.value(state, observation, actions[0], config)


def test_rows_without_whole_chunks_teach_nothing() -> None:
    """Also of the losses of the policy, which the authors' code raises to the power of `valid`."""
    config = dataclasses.replace(CONFIG, chunk_length=H, max_grad_norm=None)
    state, batch = reference.state(qsm, SPEC, config), chunks()
    loud = jnp.where(batch.extras["valid"][:, -1:], batch.action, 0.9 - batch.action)
    one, other = (
        update(state, x, KEY, 0, config)[0].networks.parameters
        for x in (batch, batch.replace(action=loud))
    )
    assert trees.equal(one, other)
