"""`rljax.make_env` and `rljax.evaluate`: any policy in any environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np

from rljax import envs
from rljax.learning.drivers.driver import EVALUATE, environment_seeds
from rljax.learning.evaluation import LIMIT, Episodes
from rljax.runs import arguments
from rljax.runs.policies.evaluate import play_episodes
from rljax.runs.policies.policy import Policy


class Played(gymnasium.Env):
    """An environment inside the program, as one of Gymnasium's.

    Observations are those of agents; continuous actions lie in [-1, 1].
    """

    def __init__(self, name: str) -> None:
        self.inside = envs.make(name)
        spec = self.inside.spec
        self.metadata = {"render_modes": []}
        self.observation_space = _observations(spec)
        if spec.choices:
            self.action_space = gymnasium.spaces.MultiDiscrete(list(spec.choices))
        elif spec.discrete:
            self.action_space = gymnasium.spaces.Discrete(spec.action_size)
        else:
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, spec.action_shape, np.float32)
        self._reset, self._step = jax.jit(self.inside.reset), jax.jit(self.inside.step)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        self._keys, self._time = jax.random.split(jax.random.key(number), 2)[:, None], 0
        observation, self._state = self._reset(self._keys[0])
        return _first(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(self._keys[1], self._time)
        step, self._state = self._step(keys, self._state, np.asarray(action)[None])
        self._time += 1
        info = {name: _first(value) for name, value in step.signals.items()}
        if step.success is not None:
            info["success"] = bool(step.success[0])
        ends = bool(step.terminated[0]), bool(step.truncated[0])
        return _first(step.next_observation), float(step.reward[0]), *ends, info


def make_env(env: Any) -> gymnasium.Env:
    """One environment of Gymnasium by its name, class, instance or function.

    Those inside the program are wrapped. Raises `ValueError` for an environment that does not
    exist, and for a vector environment.
    """
    from rljax.envs.host import gymnasium as host

    name = str(arguments.environment_name(env))
    return Played(name) if envs.is_compiled(name) else host.make_one(name)


def evaluate(
    policy: Policy | Callable[[Any], Any], env: Any, episodes: int = 10, *, seed: int = 0
) -> Episodes:
    """Play `episodes` complete episodes with a policy, without exploration.

    Args:
        policy: one that `rljax.load` returned, or a function of one observation of the environment
            that returns one of its actions.
        env: a name, a class, an instance, or a function that makes one.
        episodes: N. They depend on the seed and their number alone.

    Returns `returns`, `lengths` and others, [N] each. Raises `ValueError` for an environment that
    does not fit.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}, it must be at least 1.")
    if isinstance(policy, Policy):
        name = arguments.environment_name(env)
        return play_episodes(policy.policies, name, episodes, seed).of(0)
    made = make_env(env)
    lines = [_episode(policy, made, x) for x in environment_seeds(seed, EVALUATE, number=episodes)]
    made.close()
    returns, lengths, cut, success = map(np.array, zip(*lines, strict=True))
    known = None if np.isnan(success).any() else success
    return Episodes(returns, lengths, cut, known)


def _episode(
    policy: Callable[[Any], Any], env: gymnasium.Env, seed: int
) -> tuple[float, int, bool, float]:
    observation, _ = env.reset(seed=seed)
    total = 0.0
    for time in range(1, LIMIT + 1):
        observation, reward, terminated, truncated, info = env.step(policy(observation))
        total += float(reward)
        if terminated or truncated:
            success = info.get("success", info.get("is_success", np.nan))
            return total, time, False, float(success)
    return total, LIMIT, True, np.nan


def _observations(spec: Any) -> gymnasium.Space:
    def box(shape: tuple[int, ...], dtype: str) -> gymnasium.Space:
        if dtype == "float32":
            return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        return gymnasium.spaces.Box(0, 255 if dtype == "uint8" else 1, shape, np.dtype(dtype).type)

    if spec.parts:
        return gymnasium.spaces.Dict({x.name: box(x.shape, x.dtype) for x in spec.parts})
    return box(spec.observation_shape, spec.observation_dtype)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x)[0], tree)
