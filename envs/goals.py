"""Goals in observations.

On the host, `goals_of` gives `GoalConditioned` for environments such as Gymnasium-Robotics', which
observe three vectors: "achieved_goal", "desired_goal" and "observation". Agents see one vector of
all three, in the order of the space. Rewards for other goals are Fetch's, or the environment's own:
its `goal_reward(achieved, goal)` in JAX, or its `compute_reward(achieved, goal, info)` in NumPy.

Sources: Plappert et al., arXiv:1802.09464; Andrychowicz et al., Hindsight Experience Replay,
arXiv:1707.01495.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rljax.agent import Array
from rljax.envs.environment import Environment

if TYPE_CHECKING:
    from rljax.envs.host.hosted import Hosted

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
KEYS = {ACHIEVED, DESIRED, "observation"}
_FETCH = "gymnasium_robotics.envs.fetch."  # the package whose tasks share one reward

Reward = Callable[[Array, Array], Array]


class GoalConditioned(Environment, Protocol):
    """An environment whose observations [..., O] hold a goal [..., G] that hindsight can replace.

    All methods are pure functions on any leading axes. To relabel a transition, put `achieved` of a
    later observation into both observations by `relabelled`.
    """

    def achieved(self, observation: Array) -> Array:
        """The goal [..., G] that observations [..., O] have reached."""
        ...

    def desired(self, observation: Array) -> Array:
        """The goal [..., G] that observations [..., O] ask for."""
        ...

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations [..., O] with `goal` [..., G] in place of their own goal."""
        ...

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] float32 of a step that reaches `achieved` [..., G], for `goal` [...,
        G].
        """
        ...


@dataclasses.dataclass(frozen=True)
class FetchReward:
    """The reward of Fetch's tasks."""

    threshold: float  # metres; farther away, the sparse reward is -1
    sparse: bool

    def __call__(self, achieved: Array, goal: Array) -> Array:
        distance = jnp.linalg.norm(achieved - goal, axis=-1)
        return -(distance > self.threshold).astype(jnp.float32) if self.sparse else -distance


@dataclasses.dataclass(frozen=True)
class HostReward:
    """An environment's own `compute_reward` in NumPy, which the program calls on the host.

    It gets many goals at once, as in Gymnasium-Robotics and Stable-Baselines3; or one by one, if
    `one_by_one`. `info` is empty.
    """

    compute: Callable[[Any, Any, Any], Any]
    one_by_one: bool = False

    def __call__(self, achieved: Array, goal: Array) -> Array:
        result = jax.ShapeDtypeStruct(achieved.shape[:-1], jnp.float32)
        return jax.pure_callback(self.on_host, result, achieved, goal, vmap_method="broadcast_all")

    def on_host(self, achieved: Any, goal: Any) -> np.ndarray:
        """The rewards [...] float32 for goals [..., G]."""
        size = np.shape(achieved)[-1]
        reached, asked = (np.asarray(x, np.float64).reshape(-1, size) for x in (achieved, goal))
        if self.one_by_one:
            rewards: Any = [self.compute(x, y, {}) for x, y in zip(reached, asked, strict=True)]
        else:
            rewards = self.compute(reached, asked, {})
        return np.asarray(rewards, np.float32).reshape(np.shape(achieved)[:-1])


@dataclasses.dataclass(frozen=True)
class VectorGoals:
    """A `GoalConditioned`'s methods for vectors [..., O] that hold both goals [G] and the rest."""

    size: int  # G
    achieved_at: int  # the first index of the achieved goal
    desired_at: int  # the first index of the desired goal
    reward: Reward

    def achieved(self, observation: Array) -> Array:
        """The goal [..., G] that observations have reached."""
        return observation[..., self.achieved_at : self.achieved_at + self.size]

    def desired(self, observation: Array) -> Array:
        """The goal [..., G] that observations ask for."""
        return observation[..., self.desired_at : self.desired_at + self.size]

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations with another `goal`."""
        before = observation[..., : self.desired_at]
        behind = observation[..., self.desired_at + self.size :]
        return jnp.concatenate([before, goal, behind], axis=-1)

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] float32."""
        return jnp.asarray(self.reward(achieved, goal), jnp.float32)


def has_goals(space: spaces.Space) -> bool:
    """Whether a space is a dictionary of the three vectors."""
    if not isinstance(space, spaces.Dict) or set(space.spaces) != KEYS:
        return False
    parts = space.spaces.values()
    vectors = all(isinstance(part, spaces.Box) and len(part.shape) == 1 for part in parts)
    return vectors and space[ACHIEVED].shape == space[DESIRED].shape


def goals_of(hosted: Hosted) -> VectorGoals | str:
    """The goals in these environments' observations; where they cannot be replaced, why."""
    space: Any = hosted.spaces.observation
    if not has_goals(space):
        return (
            f"the observations of '{hosted.name}' hold none. Choose an environment whose "
            "observations hold goals, such as rljax/BoxPick-4x4 or gymnasium_robotics:FetchReach-v4"
        )
    environments = getattr(hosted.vector_env.unwrapped, "envs", None)
    size = space[ACHIEVED].shape[0]
    reward = _reward(environments[0].unwrapped, size) if environments else None
    if reward is None:
        return (
            f"the reward of '{hosted.name}' is not known for other goals. Give its class a method "
            "compute_reward(achieved, goal, info) in NumPy, as Gymnasium's goal interface has it, "
            "or goal_reward(achieved, goal) in JAX, from goals [..., G] to rewards [...]"
        )
    if isinstance(reward, str):
        return f"compute_reward of '{hosted.name}' {reward}"
    goals = jax.ShapeDtypeStruct((2, size), jnp.float32)
    try:
        shape = jax.eval_shape(reward, goals, goals).shape
    except Exception as error:
        return (
            f"goal_reward of '{hosted.name}' cannot be traced by JAX ({type(error).__name__}). "
            "Write it in jax.numpy"
        )
    if shape != (2,):
        return (
            f"goal_reward of '{hosted.name}' returns {shape} for goals (2, {size}). Return one "
            "reward for each goal"
        )
    sizes = {key: part.shape[0] for key, part in space.spaces.items()}
    first = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    return VectorGoals(size, first[ACHIEVED], first[DESIRED], reward)


def _reward(environment: Any, size: int) -> Reward | str | None:
    if hasattr(environment, "goal_reward"):
        return environment.goal_reward
    if type(environment).__module__.startswith(_FETCH):
        sparse = environment.reward_type == "sparse"
        return FetchReward(float(environment.distance_threshold), sparse)
    compute = getattr(environment, "compute_reward", None)
    return _host_reward(compute, size) if callable(compute) else None


def _host_reward(compute: Callable[[Any, Any, Any], Any], size: int) -> HostReward | str:
    """`compute` for many goals at once, if it gives the same as for one after another; what is
    wrong with it, if it gives no reward.
    """
    goals = np.random.default_rng(0).uniform(-1.0, 1.0, (3, size))
    single = HostReward(compute, one_by_one=True)
    try:
        single.on_host(goals, goals[::-1])
    except Exception as error:
        return (
            f"raised {type(error).__name__}: {error}, for goals [{size}] and an empty info. Let it "
            "depend on the goals alone"
        )
    try:
        many = HostReward(compute).on_host(goals, goals[::-1])
    except Exception:
        return single
    same = np.allclose(many, single.on_host(goals, goals[::-1]), rtol=1e-5)
    return HostReward(compute) if same else single


class WithGoal(gymnasium.Wrapper):
    """An environment that has tasks with goals, whose observations are [state; goal], [2 O].

    A goal is a state in which the task is done. A reset with a seed begins task `first` (counted
    from 1), each later reset the next.
    """

    def __init__(self, environment: gymnasium.Env, first: int) -> None:
        super().__init__(environment)
        space: Any = environment.observation_space
        low, high = (np.tile(bound, 2) for bound in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype)
        self.num_tasks = _number_of_tasks(environment)
        self.first = self.task = first
        self.goal: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the next task."""
        self.task = self.first if seed is not None else self.task % self.num_tasks + 1
        options = {**(options or {}), "task_id": self.task}
        observation, info = self.env.reset(seed=seed, options=options)
        self.goal = np.array(info["goal"])
        return np.concatenate([observation, self.goal]), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply one action."""
        observation, *rest = self.env.step(action)
        return (np.concatenate([observation, self.goal]), *rest)  # pyright: ignore[reportReturnType]


def with_goals(environments: Sequence[gymnasium.Env], name: str) -> list[gymnasium.Env]:
    """Wrap environments, called `name`, in `WithGoal`. They begin with task 1, 2, ..., and after
    the last with 1 again.

    Raises `ValueError` where they have no goals.
    """
    number, space = _number_of_tasks(environments[0]), environments[0].observation_space
    if not number or not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(
            f"'{name}' has no tasks with goals that are states, as ogbench:cube-single-v0 has. "
            "Name an environment that has such tasks with --env, or leave --env out to train "
            "without evaluations."
        )
    return [
        WithGoal(environment, index % number + 1) for index, environment in enumerate(environments)
    ]


def _number_of_tasks(environment: gymnasium.Env) -> int:
    return len(getattr(environment.unwrapped, "task_infos", ()))
