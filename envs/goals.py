"""Goals in observations.

On the host, `goals_of` gives `GoalConditioned` for environments such as Gymnasium-Robotics', which
observe a dictionary of "achieved_goal", "desired_goal" and "observation". Goals are vectors, or
pictures; what else is observed may be anything. Rewards for other goals are Fetch's, or the
environment's own: its `goal_reward(achieved, goal)` in JAX, or its `compute_reward(achieved, goal,
info)` in NumPy.

Sources: Plappert et al., arXiv:1802.09464; Andrychowicz et al., Hindsight Experience Replay,
arXiv:1707.01495.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rljax.agent import Array
from rljax.envs.environment import Environment
from rljax.envs.host.space_descriptions import is_text
from rljax.envs.host.spaces import ONLY, Spaces, walk

if TYPE_CHECKING:
    from rljax.envs.host.hosted import Hosted

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
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
    `one_by_one`. `info` is empty. Goals of numbers are float64, pictures keep their dtype.
    """

    compute: Callable[[Any, Any, Any], Any]
    one_by_one: bool = False
    axes: int = 1  # of a goal

    def __call__(self, achieved: Array, goal: Array) -> Array:
        result = jax.ShapeDtypeStruct(achieved.shape[: -self.axes], jnp.float32)
        return jax.pure_callback(self.on_host, result, achieved, goal, vmap_method="broadcast_all")

    def on_host(self, achieved: Any, goal: Any) -> np.ndarray:
        """The rewards [...] float32 for goals [..., G]."""
        shape = np.shape(achieved)
        leading, one = shape[: -self.axes], shape[-self.axes :]
        reached, asked = (_wide(np.asarray(x)).reshape(-1, *one) for x in (achieved, goal))
        if self.one_by_one:
            rewards: Any = [self.compute(x, y, {}) for x, y in zip(reached, asked, strict=True)]
        else:
            rewards = self.compute(reached, asked, {})
        return np.asarray(rewards, np.float32).reshape(leading)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


@dataclasses.dataclass(frozen=True)
class VectorGoals:
    """A `GoalConditioned`'s methods for vectors [..., K] that hold both goals [G] and the rest: the
    observation, or its `part`.
    """

    size: int  # G
    achieved_at: int  # the first index of the achieved goal
    desired_at: int  # the first index of the desired goal
    reward: Reward
    part: str | None = None

    def achieved(self, observation: Any) -> Array:
        """The goal [..., G] that observations have reached."""
        return self._vector(observation)[..., self.achieved_at : self.achieved_at + self.size]

    def desired(self, observation: Any) -> Array:
        """The goal [..., G] that observations ask for."""
        return self._vector(observation)[..., self.desired_at : self.desired_at + self.size]

    def relabelled(self, observation: Any, goal: Array) -> Any:
        """The observations with another `goal`."""
        vector = self._vector(observation)
        before = vector[..., : self.desired_at]
        behind = vector[..., self.desired_at + self.size :]
        vector = jnp.concatenate([before, goal, behind], axis=-1)
        return vector if self.part is None else {**observation, self.part: vector}

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] float32."""
        return jnp.asarray(self.reward(achieved, goal), jnp.float32)

    def _vector(self, observation: Any) -> Array:
        return observation if self.part is None else observation[self.part]


@dataclasses.dataclass(frozen=True)
class PictureGoals:
    """A `GoalConditioned`'s methods for pictures that are parts of the observation."""

    reward: Reward  # of pictures as the environment has them
    channels_first: bool = False  # the environment has channels before rows and columns

    def achieved(self, observation: Any) -> Array:
        """The goal [..., H, W, C] that observations have reached."""
        return observation[ACHIEVED]

    def desired(self, observation: Any) -> Array:
        """The goal [..., H, W, C] that observations ask for."""
        return observation[DESIRED]

    def relabelled(self, observation: Any, goal: Array) -> Any:
        """The observations with another `goal`."""
        return {**observation, DESIRED: goal}

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] float32."""
        if self.channels_first:
            achieved, goal = (jnp.moveaxis(x, -1, -3) for x in (achieved, goal))
        return jnp.asarray(self.reward(achieved, goal), jnp.float32)


def has_goals(space: spaces.Space) -> bool:
    """Whether a space is a dictionary with goals of one shape, which are vectors or pictures."""
    if not isinstance(space, spaces.Dict) or not {ACHIEVED, DESIRED} <= set(space.spaces):
        return False
    one, other = (space.spaces[name] for name in (ACHIEVED, DESIRED))
    boxes = isinstance(one, spaces.Box) and isinstance(other, spaces.Box)
    return boxes and one.shape == other.shape and len(one.shape or ()) in (1, 3)


def goals_of(hosted: Hosted) -> VectorGoals | PictureGoals | str:
    """The goals in these environments' observations; where they cannot be replaced, why."""
    space: Any = hosted.spaces.observation
    if not has_goals(space):
        return (
            f"the observations of '{hosted.name}' hold none. Choose an environment whose "
            "observations hold goals, such as rljax/BoxPick-4x4 or gymnasium_robotics:FetchReach-v4"
        )
    environments = getattr(hosted.vector_env.unwrapped, "envs", None)
    example = _example(space[ACHIEVED])
    bare: Any = environments[0].unwrapped.observation_space if environments else space
    if has_goals(bare) and bare[ACHIEVED].shape != space[ACHIEVED].shape:
        return (
            f"a wrapper of '{hosted.name}' has changed goals {list(bare[ACHIEVED].shape)} to "
            f"{list(space[ACHIEVED].shape)}, of which the reward is not known. Train without "
            "--frame-stack and such wrappers"
        )
    reward = _reward(environments[0].unwrapped, example) if environments else None
    if reward is None:
        return (
            f"the reward of '{hosted.name}' is not known for other goals. Give its class a method "
            "compute_reward(achieved, goal, info) in NumPy, as Gymnasium's goal interface has it, "
            "or goal_reward(achieved, goal) in JAX, from goals [..., G] to rewards [...]"
        )
    if isinstance(reward, str):
        return f"compute_reward of '{hosted.name}' {reward}"
    shape = example.shape[1:]
    goals = jax.ShapeDtypeStruct((2, *shape), jnp.result_type(example))
    try:
        returned = jax.eval_shape(reward, goals, goals).shape
    except Exception as error:
        return (
            f"goal_reward of '{hosted.name}' cannot be traced by JAX ({type(error).__name__}). "
            "Write it in jax.numpy"
        )
    if returned != (2,):
        return (
            f"goal_reward of '{hosted.name}' returns {returned} for goals {goals.shape}. Return "
            "one reward for each goal"
        )
    return _placed(hosted.spaces, reward)


def _placed(seen: Spaces, reward: Reward) -> VectorGoals | PictureGoals | str:
    """The goals where agents see them."""
    space: Any = seen.observation
    picture = seen.named.get((ACHIEVED,))
    if picture is not None:
        return PictureGoals(reward, channels_first=picture[1] == "first")
    if len(space[ACHIEVED].shape) > 1:
        return f"the goals of '{seen.name}' are neither vectors nor pictures. Make them vectors"
    first, size = {}, 0
    for path, leaf in walk(space):
        if path not in seen.named and not is_text(leaf):
            first[path], size = size, size + spaces.flatdim(leaf)
    part = seen.rest if seen.named else ONLY if seen.masked else None
    return VectorGoals(space[ACHIEVED].shape[0], first[ACHIEVED,], first[DESIRED,], reward, part)


def _example(space: Any) -> np.ndarray:
    """Three random goals of this space [3, G...]."""
    generator, shape = np.random.default_rng(0), (3, *space.shape)
    if space.dtype == np.uint8:
        return generator.integers(0, 256, shape, np.uint8)
    return generator.uniform(-1.0, 1.0, shape)


def _reward(environment: Any, example: np.ndarray) -> Reward | str | None:
    if hasattr(environment, "goal_reward"):
        return environment.goal_reward
    if type(environment).__module__.startswith(_FETCH):
        sparse = environment.reward_type == "sparse"
        return FetchReward(float(environment.distance_threshold), sparse)
    compute = getattr(environment, "compute_reward", None)
    return _host_reward(compute, example) if callable(compute) else None


def _host_reward(compute: Callable[[Any, Any, Any], Any], goals: np.ndarray) -> HostReward | str:
    """`compute` for many goals at once, if it gives the same as for one after another; what is
    wrong with it, if it gives no reward.
    """
    axes = goals.ndim - 1
    single = HostReward(compute, one_by_one=True, axes=axes)
    try:
        single.on_host(goals, goals[::-1])
    except Exception as error:
        return (
            f"raised {type(error).__name__}: {error}, for goals {list(goals.shape[1:])} and an "
            "empty info. Let it depend on the goals alone"
        )
    try:
        many = HostReward(compute, axes=axes).on_host(goals, goals[::-1])
    except Exception:
        return single
    same = np.allclose(many, single.on_host(goals, goals[::-1]), rtol=1e-5)
    return HostReward(compute, axes=axes) if same else single


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
