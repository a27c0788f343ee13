"""A random walk, and batches of it."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rljax.envs.host.hosted import Hosted

FIELDS = (
    "observation",
    "next_observation",
    "reward",
    "terminated",
    "truncated",
    "episode_return",
    "episode_length",
)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Walk(gymnasium.Env):
    """Its episodes end at random, with success or failure."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(
        self, observation_space: Any = None, action_space: Any = BOX, render_mode: str | None = None
    ) -> None:
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space, self.render_mode = action_space, render_mode
        self.actions: list[Any] = []
        self.spoil = None  # (the index of a result of step, its replacement)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2)
        return self._observe(), {}

    def step(self, action):
        self.actions.append(action)
        self.state = self.state + np.sum(action) + 0.1 * self.np_random.normal(size=2)
        terminated = bool(self.np_random.random() < 0.1)
        info = {"success": self.state[0] > 0} if terminated else {"distance": self.state[0]}
        result = [self._observe(), float(self.state.sum()), terminated, False, info]
        if self.spoil:
            result[self.spoil[0]] = self.spoil[1]
        return tuple(result)

    def render(self):
        return np.full((4, 6, 3), 9, np.uint8)

    def _observe(self):
        if isinstance(self.observation_space, spaces.Dict):
            return {"position": self.state.copy(), "sign": int(self.state[0] > 0)}
        if isinstance(self.observation_space, spaces.Box):
            return self.state.astype(self.observation_space.dtype).reshape(
                self.observation_space.shape
            )
        return self.observation_space.sample()


class Batch(gymnasium.vector.VectorEnv):
    """A user's own vector environment, with the least that the interface asks for."""

    def __init__(
        self, mode: AutoresetMode | None, behaviour: AutoresetMode, honours_mask: bool = True
    ) -> None:
        self.inner = SyncVectorEnv([limited] * 3, autoreset_mode=behaviour)
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.num_envs, self.honours_mask = 3, honours_mask
        self.observation_space, self.action_space = (
            self.inner.observation_space,
            self.inner.action_space,
        )
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed, options=options if self.honours_mask else None)

    def step(self, actions):
        return self.inner.step(actions)


def limited(**kwargs: Any) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Walk(**kwargs), 12)


def hosted_walk(number: int = 1, **kwargs: Any) -> Hosted:
    return Hosted(SyncVectorEnv([functools.partial(limited, **kwargs)] * number), "Walk")


def inner(hosted: Hosted) -> list[Any]:
    vector = hosted.vector_env
    return [env.unwrapped for env in vector.envs]


def actions_for(hosted: Hosted, steps: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = (steps, hosted.num_envs, *hosted.spec.action_shape)
    if hosted.spec.discrete:
        return rng.integers(hosted.spec.action_size, size=shape, dtype=np.int32)
    return rng.uniform(-1, 1, shape).astype(np.float32)


def roll(hosted: Hosted, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Steps stacked over time [T, N, ...], and `success`."""
    steps = [(hosted.step(action), hosted.success.copy()) for action in actions]
    record = {name: np.stack([getattr(step, name) for step, _ in steps]) for name in FIELDS}
    return record | {"success": np.stack([success for _, success in steps])}


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    for name in one:
        assert one[name].dtype == two[name].dtype
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
