"""PPO and PQN with a memory, against float64 NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import ppo, pqn
from rljax.networks import distributions, memories
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import ENVS, KEY, STEPS

SPEC = EnvSpec("test/Example-v0", (3,), 2)
WIDTH = 4
SIZES: Any = {
    "num_steps": STEPS,
    "num_envs": ENVS,
    "batch_size": STEPS * ENVS,
    "num_epochs": 1,
    "memory": "gru",
    "memory_hidden": (WIDTH,),
}
CONFIG = ppo.Config(
    **SIZES,
    actor_hidden=(5,),
    learning_rate=1e-2,
    entropy_cost=0.1,
    normalise_observations=False,
    normalise_rewards=False,
)


def rollout() -> Transition:
    """With the memories before it."""
    batch = on_policy.continued(on_policy.rollout(0, SPEC))
    memory = np.random.default_rng(1).normal(size=(ENVS, WIDTH)).astype(np.float32)
    ended = batch.terminated | batch.truncated
    first = jnp.concatenate([jnp.zeros((1, ENVS), bool), ended[:-1]])
    return batch.replace(extras={**batch.extras, "memory": (jnp.asarray(memory),), "first": first})


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def cell(p: dict[str, np.ndarray], observation: np.ndarray, h: np.ndarray) -> np.ndarray:
    """A dense layer with tanh, and one step of a GRU."""
    x = np.tanh(observation @ p["hidden/kernel"] + p["hidden/bias"])
    w, u = (np.split(p[name], 3, axis=1) for name in ("input", "memory"))
    b = np.split(p["bias"], 3)
    r, z = (sigmoid(x @ w[i] + b[i] + h @ u[i]) for i in (0, 1))
    n = np.tanh(x @ w[2] + b[2] + r * (h @ u[2] + p["inner"]))
    return (1.0 - z) * n + z * h


def unrolled(p: dict[str, np.ndarray], batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Memories after each observation and after each successor, [T, E, m]."""
    seen, after = np.zeros((2, STEPS, ENVS, WIDTH))
    for e in range(ENVS):
        h = batch.extras["memory"][0][e]
        for t in range(STEPS):
            if t > 0 and (batch.terminated[t - 1, e] or batch.truncated[t - 1, e]):
                h = np.zeros(WIDTH)
            h = seen[t, e] = cell(p, batch.observation[t, e], h)
            after[t, e] = cell(p, batch.next_observation[t, e], h)
    return seen, after


def value(p: dict[str, np.ndarray], features: np.ndarray) -> np.ndarray:
    return (features @ p["critic/kernel"] + p["critic/bias"])[..., 0]


def loss(p: dict[str, np.ndarray], batch: Any, advantage: np.ndarray, target: np.ndarray) -> float:
    """Of the whole rollout."""
    features = unrolled(p, batch)[0]
    mean = features @ p["actor/kernel"] + p["actor/bias"]
    scaled = (batch.extras["raw"] - mean) / np.exp(p["log_std"])
    log_prob = (-0.5 * scaled**2 - p["log_std"] - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
    ratio = np.exp(log_prob - batch.extras["log_prob"])
    clipped = np.clip(ratio, 1 - CONFIG.clip_ratio, 1 + CONFIG.clip_ratio)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    entropy = (p["log_std"] + 0.5 * np.log(2 * np.pi * np.e)).sum()
    surrogate = np.minimum(ratio * advantage, clipped * advantage).mean()
    squared = 0.5 * np.square(value(p, features) - target).mean()
    return float(-surrogate - CONFIG.entropy_cost * entropy + CONFIG.value_cost * squared)


def named(parameters: ppo.ActorCritic) -> dict[str, np.ndarray]:
    """All parameters by names of this file."""
    assert parameters.torso is not None
    torso = parameters.torso.params
    (core,) = (part for name, part in torso.items() if name != "body")
    found = {
        "hidden/kernel": torso["body"]["hidden_0"]["kernel"],
        "hidden/bias": torso["body"]["hidden_0"]["bias"],
        **{name: core[f"{name}_0"] for name in ("input", "memory", "bias", "inner")},
        "log_std": parameters.log_std,
    }
    for name in ("actor", "critic"):
        layer = getattr(parameters, name).params["output"]
        found |= {f"{name}/kernel": layer["kernel"], f"{name}/bias": layer["bias"]}
    return {name: np.asarray(x, np.float64) for name, x in found.items()}


def test_updates_equal_the_papers() -> None:
    state, batch = reference.state(ppo, SPEC, CONFIG), rollout()
    exact: Any = jax.tree.map(
        lambda x: np.asarray(x, np.float64 if x.dtype == np.float32 else None), batch
    )
    before = named(state.actor_critic.parameters)
    features, successors = unrolled(before, exact)
    now = value(before, features)
    error = exact.reward - now
    error += CONFIG.discount * (1.0 - exact.terminated) * value(before, successors)
    advantage = on_policy.along(batch, error, CONFIG.discount * CONFIG.trace_decay)

    def of(arrays: list[np.ndarray]) -> float:
        return loss(dict(zip(before, arrays, strict=True)), exact, advantage, advantage + now)

    gradient = reference.differences(of, list(before.values()))
    gradient = reference.limited(gradient, CONFIG.max_grad_norm)
    adam = reference.Adam(CONFIG.learning_rate, CONFIG.adam_epsilon)
    expected = adam.step(list(before.values()), gradient)
    state, metrics = jax.jit(ppo.update)(state, batch, KEY, 0, CONFIG)
    after = list(named(state.actor_critic.parameters).values())
    trees.assert_close(after, expected, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(metrics["critic/value"], now.mean(), rtol=1e-4)


@pytest.mark.slow
def test_minibatches_are_whole_rollouts_of_some_environments() -> None:
    batch = rollout()
    drawn, reward = buffers.minibatches(KEY, (batch, batch.reward), STEPS)
    order = np.asarray(distributions.permutation(KEY, ENVS))
    assert drawn.observation.shape == (ENVS, STEPS, 1, 3)
    for n, e in enumerate(order):
        part = (drawn.observation, drawn.extras["first"], reward)
        whole = (batch.observation, batch.extras["first"], batch.reward)
        for one, other in zip(part, whole, strict=True):
            np.testing.assert_array_equal(one[n, :, 0], other[:, e])
        np.testing.assert_array_equal(drawn.extras["memory"][0][n, 0], batch.extras["memory"][0][e])


def test_a_minibatch_is_at_least_one_environments_rollout() -> None:
    batch = rollout()
    drawn, _ = buffers.minibatches(KEY, (batch, batch.reward), 1)
    assert drawn.reward.shape == (ENVS, STEPS, 1)
    ppo.experience(dataclasses.replace(CONFIG, batch_size=3)).check()
    defaults = dataclasses.replace(ppo.Config(), memory="gru")
    assert defaults.batch_size < defaults.num_steps, "which would be refused otherwise"
    ppo.experience(defaults).check()


def test_minibatches_that_would_cut_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of it. Nearest: 4"):
        ppo.experience(dataclasses.replace(CONFIG, batch_size=6)).check()


def test_a_memory_has_one_torso() -> None:
    state = jax.eval_shape(lambda key: ppo.init(key, SPEC, CONFIG), KEY)
    assert isinstance(state.actor_critic.parameters.torso.module, memories.Remembering)
    assert state.actor_critic.parameters.critic.params["output"]["kernel"].shape == (WIDTH, 1)
    assert ppo.remember(SPEC, dataclasses.replace(CONFIG, memory="none")) is None


@pytest.mark.learn
def test_pqn_remembers_along_rollouts() -> None:
    spec = EnvSpec("test/Discrete-v0", (3,), 2, discrete=True)
    config = pqn.Config(**SIZES, hidden=(5,), layer_norm=False, trace_decay=0.5)
    critic = reference.state(pqn, spec, config).critic.parameters
    action = np.random.default_rng(3).integers(0, 2, (STEPS, ENVS))
    batch = rollout().replace(action=jnp.asarray(action, jnp.int32))

    def values(observation: Any, memory: Any) -> tuple[np.ndarray, Any]:
        q, memory = memories.step(critic, observation, memory)
        return np.asarray(q, np.float64), memory

    expected, best = np.zeros((2, STEPS, ENVS))
    for e in range(ENVS):
        memory = jax.tree.map(lambda x, e=e: x[e], batch.extras["memory"])
        for t in range(STEPS):
            if batch.extras["first"][t, e]:
                memory = pqn.remember(spec, config)
            q, memory = values(batch.observation[t, e], memory)
            expected[t, e] = q[int(batch.action[t, e])]
            best[t, e] = values(batch.next_observation[t, e], memory)[0].max()
    target = on_policy.mixed_returns(batch, best, config)
    found = jax.jit(pqn.targets)(critic, batch, config)
    trees.assert_close(found, target)
    loss, metrics = pqn.critic_loss(critic, batch, found)
    np.testing.assert_allclose(loss, 0.5 * np.square(expected - target).mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["critic/q"], expected.mean(), rtol=1e-4)
