"""An agent, environments and data to be counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax import agent, buffers, datasets
from rljax.agent import EnvSpec, Step, Transition
from rljax.envs.autoreset import AutoReset
from rljax.learning import configuration
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.learner import Learner

UPDATES = 8  # that a Fake remembers
ROWS = 40  # of the data set


@agent.config
class Config:
    learning_rate: float = 0.1
    bad_from: float = 1e9  # the first update with a metric that is not finite
    batch_size: int = 4
    replay_size: int = 256
    warmup_steps: int = 8
    num_envs: int = 1
    num_steps: int = 1
    num_updates: int = 1
    delay: int = 1  # updates between those with the second metric
    counts: bool = False  # whether it perceives


def replay(config: Any, **changes: Any) -> buffers.Replay:
    names = ("replay_size", "batch_size", "warmup_steps", "num_envs", "num_steps", "num_updates")
    return buffers.Replay(**{name: getattr(config, name) for name in names}, **changes)


class State(struct.PyTreeNode):
    weight: Any  # [O]
    rewards: Any  # [UPDATES, B] of the batches
    noise: Any  # [UPDATES] drawn with the updates' keys
    losses: Any  # [UPDATES]
    count: Any  # [] observations perceived
    firsts: Any  # [] of them, first ones
    total: Any  # [O] their sum


class Fake:
    """It follows the rewards of its batches."""

    Config = Config

    def experience(self, config: Any) -> Any:
        return replay(config)

    def check(self, spec: EnvSpec, config: Any) -> None:
        """Everything is fine."""

    def init(self, key: Any, spec: EnvSpec, config: Any) -> State:
        nothing, zero = jnp.zeros(UPDATES), jnp.zeros(())
        rewards = jnp.zeros((UPDATES, config.batch_size))
        weight, total = (
            jax.random.normal(key, spec.observation_shape),
            jnp.zeros(spec.observation_shape),
        )
        return State(weight, rewards, nothing, nothing, zero, zero, total)

    def perceive(self, state: State, observation: Any, first: Any, config: Any) -> State:
        if not config.counts:
            return state
        return state.replace(
            count=state.count + first.shape[0],
            firsts=state.firsts + first.sum(),
            total=state.total + observation.sum(axis=0),
        )

    def act(self, state: State, observation: Any, key: Any, config: Any, explore: bool) -> Any:
        """In [0, 1], never below: uniform ones can be told apart."""
        action = jax.nn.sigmoid(observation @ state.weight)[..., None]
        noise = jax.random.uniform(key, action.shape) if explore else 0.5
        return 0.5 * action + 0.5 * noise, {"acted": jnp.ones(observation.shape[:-1])}

    def update(self, state: State, batch: Any, key: Any, step: Any, config: Any) -> Any:
        target = batch.reward.mean() * (step + 1.0)
        weight = state.weight + config.learning_rate * (target - state.weight)
        loss = jnp.where(step >= config.bad_from, jnp.inf, weight.sum())
        row = step % UPDATES
        state = state.replace(
            weight=weight,
            rewards=state.rewards.at[row].set(batch.reward),
            noise=state.noise.at[row].set(jax.random.uniform(key)),
            losses=state.losses.at[row].set(loss),
        )
        delayed = lambda state: (state, {"delayed": step * 1.0})  # noqa: E731
        state, metrics = agent.every(config.delay, step, delayed, state)
        return state, {"loss": loss} | metrics


class OnPolicy(Fake):
    """It remembers which steps its rollouts held."""

    def experience(self, config: Any) -> Any:
        sizes = {name: getattr(config, name) for name in ("num_envs", "num_steps", "batch_size")}
        return buffers.Rollout(**sizes)

    def update(self, state: State, batch: Any, key: Any, step: Any, config: Any) -> Any:
        flat = jax.tree.map(lambda x: x.reshape(config.batch_size, *x.shape[2:]), batch)
        new, metrics = super().update(state, flat, key, step, config)
        times = flat.next_observation[:, 0]
        return new.replace(rewards=state.rewards.at[step % UPDATES].set(times)), metrics


class Counter:
    """An environment whose observation is (steps done, last action), and the reward their sum."""

    params = None

    def __init__(self, limit: int | None = None) -> None:
        self.spec = EnvSpec("Counter", (2,), 1, max_episode_steps=limit)

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state = jnp.stack([state[0] + 1, action[0]])
        return state, state, state.sum(), jnp.zeros((), bool), jnp.zeros((), bool), {}


class HostedCounter:
    """The same on the host, as many as there are seeds."""

    save_failure = None

    def __init__(self, limit: int) -> None:
        self.num_envs = 0  # as many as seeds
        self.spec, self.limit = EnvSpec("Counter", (2,), 1, max_episode_steps=limit), limit

    def reset(self, seeds: Sequence[int] | None) -> np.ndarray:
        assert seeds is not None
        self.num_envs = len(seeds)
        self.time, self.returns = np.zeros(len(seeds), np.int32), np.zeros(len(seeds), np.float32)
        return np.zeros((len(seeds), 2), np.float32)

    def step(self, action: np.ndarray) -> Step:
        self.time += 1
        following = np.stack([self.time.astype(np.float32), action[:, 0]], axis=-1)
        reward = following.sum(axis=-1)
        self.returns += reward
        ended = self.time >= self.limit
        observation = np.where(ended[:, None], np.float32(0), following)
        step = (observation, following, reward, np.zeros_like(ended), ended)
        step = Step(*step, self.returns.copy(), self.time.copy())
        self.time[ended], self.returns[ended] = 0, 0
        return step


def dataset(rows: int = ROWS) -> Transition:
    """Transitions whose fields all tell their row's number, from 1 on."""
    number = np.arange(1, rows + 1, dtype=np.float32)
    flags = np.zeros(rows, bool)
    observation = np.stack([number, -number], axis=1)
    return Transition(observation, number[:, None], number, flags, flags, observation + 0.5)


def recorded(
    env: str = "rljax/Pendulum", size: int = 3, discrete: bool = False
) -> datasets.OfflineDataset:
    """Episodes of 10 steps, with one continuous action or two discrete ones."""
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(ROWS + 1, size)).astype(np.float32)
    action = generator.uniform(-1, 1, (ROWS, 1)).astype(np.float32)
    if discrete:
        action = generator.integers(0, 2, ROWS).astype(np.int32)
    reward, ends = -generator.random(ROWS).astype(np.float32), np.arange(ROWS) % 10 == 9
    fields = (observation[:-1], action, reward, np.zeros(ROWS, bool), ends, observation[1:])
    return datasets.OfflineDataset("recorded.npz", Transition(*fields), env, None, None, {})


def settings(num_learners: int, **changes: Any) -> Any:
    return configuration.stack(Config(**changes), num_learners)


def driven(
    seeds: Sequence[int],
    iterations: int,
    module: Any = None,
    environment: Any = None,
    base: Any = None,
    **changes: Any,
) -> CompiledDriver:
    environment = AutoReset(environment or Counter())
    learner = Learner(module or Fake(), environment.spec, len(seeds), base=base)
    driver = CompiledDriver(learner, environment, settings(len(seeds), **changes))
    driver.start(seeds)
    driver.advance(iterations)
    return driver


def one(tree: Any, index: int) -> Any:
    """One of the P learners."""
    return jax.tree.map(lambda x: np.asarray(x[index]), tree)


def assert_equal(first: Any, second: Any, **tolerance: float) -> None:
    """Two pytrees have the same numbers, random keys included, or close ones."""
    trees = jax.tree.map(_numbers, (first, second))
    if tolerance:
        chex.assert_trees_all_close(*trees, **tolerance)
    else:
        chex.assert_trees_all_equal(*trees)


def _numbers(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
