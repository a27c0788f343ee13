"""A point that is to reach its goal on a line, and data. No agent has a preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import datasets
from rljax.agent import Array, EnvSpec, Transition

STRIDE, LIMIT = 0.2, 20
# Mean returns of uniform actions, and of going straight to the goal.
LEVELS = {"Reach": (-13.6, -1.3), "ReachDiscrete": (-13.8, -2.2)}


def moved(position: Any, action: Any, numbers: Any = jnp) -> Any:
    return numbers.clip(position + STRIDE * action, -1.0, 1.0)


class Reach:
    """Observations are (position, goal) in [-1, 1]; the reward is minus the distance after the
    step.
    """

    spec = EnvSpec("Reach", observation_shape=(2,), action_size=1, max_episode_steps=LIMIT)
    params = None

    def reset(self, key: Array, params: Any) -> tuple[Array, Array]:
        state = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return state, state

    def step(self, key: Array, state: Array, action: Array, params: Any) -> Any:
        state = state.at[0].set(moved(state[0], action[0]))
        return state, state, -jnp.abs(state[0] - state[1]), jnp.zeros((), bool), False, {}


class ReachReversed(Reach):
    """Actions have the opposite effect."""

    spec = dataclasses.replace(Reach.spec, name="ReachReversed")

    def step(self, key: Array, state: Array, action: Array, params: Any) -> Any:
        return super().step(key, state, -action, params)


class ReachDiscrete(Reach):
    """Left, stay, right."""

    spec = EnvSpec(
        "ReachDiscrete",
        observation_shape=(2,),
        action_size=3,
        discrete=True,
        max_episode_steps=LIMIT,
    )

    def step(self, key: Array, state: Array, action: Array, params: Any) -> Any:
        return super().step(key, state, jnp.asarray(action, jnp.float32)[None] - 1.0, params)


def journeys(path: Path, episodes: int = 300) -> Path:
    """Three of four by a noisy controller that goes to the goal, others uniform."""
    generator = np.random.default_rng(0)

    def controller(episode: int) -> Callable[[float], float]:
        def action(straight: float) -> float:
            noisy = straight + 0.3 * generator.normal()
            return noisy if episode % 4 else generator.uniform(-1, 1)

        return action

    return _written(path, _played(generator, episodes, controller), 1)


def demonstrations(path: Path, experts: int = 5, episodes: int = 300) -> Path:
    """Two joined parts without rewards: who goes straight to the goal, and others, of whom one
    in ten does.
    """
    generator, parts = np.random.default_rng(0), []
    for number, share in ((experts, 1.0), (episodes, 0.1)):

        def controller(_: int, share: float = share) -> Callable[[float], float]:
            knows = generator.random() < share
            return lambda straight: straight if knows else generator.uniform(-1, 1)

        part = _dataset(_played(generator, number, controller), 1)
        unrated = part.transitions.replace(reward=np.zeros(part.num, np.float32))
        parts.append(dataclasses.replace(part, transitions=unrated))
    return datasets.write(datasets.join(parts, "reach", mark=True), path)


def choices(path: Path, episodes: int = 300) -> Path:
    """Left, stay or right: one action of two towards the goal, the others uniform."""
    generator, rows = np.random.default_rng(0), []
    for _ in range(episodes):
        observation = generator.uniform(-1, 1, 2)
        for t in range(LIMIT):
            direct = 1 + np.round(np.clip((observation[1] - observation[0]) / STRIDE, -1, 1))
            action = int(direct if generator.random() < 0.5 else generator.integers(3))
            rows.append(_row(observation, action, action - 1.0, t))
            observation = rows[-1][-1]
    return _written(path, rows, None)


def _row(observation: np.ndarray, action: Any, change: float, t: int) -> tuple[Any, ...]:
    """A transition after t steps."""
    successor = np.array([moved(observation[0], change, np), observation[1]])
    reward = -abs(successor[0] - successor[1])
    return observation, action, reward, False, t == LIMIT - 1, successor


def walks(path: Path, episodes: int = 300) -> Path:
    """Random walks in a square: observations are positions [2]; no goals, no rewards."""
    generator, rows = np.random.default_rng(0), []
    for _ in range(episodes):
        observation, drift = generator.uniform(-1, 1, 2), generator.uniform(-0.7, 0.7, 2)
        for t in range(LIMIT):
            action = np.clip(drift + 0.3 * generator.normal(size=2), -1, 1)
            successor = moved(observation, action, np)
            rows.append((observation, action, 0.0, False, t == LIMIT - 1, successor))
            observation = successor
    return _written(path, rows, 2)


def uniform_walks(episodes: int, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Observations [N, 2] under uniform actions, and the discounted returns [N] that followed."""
    generator, observations, rewards = np.random.default_rng(0), [], []
    position, goal = generator.uniform(-1, 1, (2, episodes))
    for _ in range(LIMIT):
        observations.append(np.stack([position, goal], axis=-1))
        position = moved(position, generator.uniform(-1, 1, episodes), np)
        rewards.append(-np.abs(position - goal))
    returns = [np.zeros(episodes)]
    for reward in reversed(rewards):
        returns.append(reward + discount * returns[-1])
    return np.concatenate(observations).astype(np.float32), np.concatenate(returns[:0:-1])


def _played(generator: np.random.Generator, episodes: int, controller: Callable) -> list[Any]:
    """The rows of episodes, whose controllers make actions of the one that goes straight."""
    rows = []
    for episode in range(episodes):
        action, observation = controller(episode), generator.uniform(-1, 1, 2)
        for t in range(LIMIT):
            clipped = np.clip([action((observation[1] - observation[0]) / STRIDE)], -1, 1)
            rows.append(_row(observation, clipped, clipped[0], t))
            observation = rows[-1][-1]
    return rows


def _written(path: Path, rows: list[Any], action_size: int | None) -> Path:
    return datasets.write(_dataset(rows, action_size), path)


def _dataset(rows: list[Any], action_size: int | None) -> datasets.OfflineDataset:
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    types = {"b": bool, "i": np.int32, "f": np.float32}
    columns = [column.astype(types[column.dtype.kind]) for column in columns]
    bounds = None if action_size is None else (-np.ones(action_size), np.ones(action_size))
    provenance = {"num_actions": 3} if action_size is None else {}
    return datasets.OfflineDataset("reach", Transition(*columns), None, None, bounds, provenance)
