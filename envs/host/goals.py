"""Goals of environments on the host, for batches whose goals are replaced in hindsight.

Goal environments, as those of Gymnasium-Robotics, observe a dictionary of three vectors: "achieved_goal",
"desired_goal" and "observation". Agents see one vector of all three, in the order of the space: here, as a rule, the
alphabet's. `Goals` reads and replaces the goal in it, as `rljax.envs.environment.GoalConditioned` asks. Rewards are
computed anew inside the program, so they must be known in JAX:

    Fetch's tasks, sparse    -1 where the distance of the goals is above a threshold, and 0 elsewhere
    Fetch's tasks, dense     minus the distance
    any other environment    its own `goal_reward(achieved, goal)`, where its class has this method

Sources: Plappert et al., Multi-Goal Reinforcement Learning, arXiv:1802.09464; Andrychowicz et al., Hindsight Experience
Replay, arXiv:1707.01495.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from rljax.agent import Array
from rljax.envs.host.hosted import Hosted

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
KEYS = {ACHIEVED, DESIRED, "observation"}
_FETCH = "gymnasium_robotics.envs.fetch."  # the package whose tasks share one reward

Reward = Callable[[Array, Array], Array]


@dataclasses.dataclass(frozen=True)
class Distance:
    """Fetch's reward. Equal settings are equal rewards, so that equal runs share a compiled program."""

    threshold: float  # metres; farther away, the sparse reward is -1
    sparse: bool

    def __call__(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] float32 for reaching `achieved` [..., G] when `goal` [..., G] is the goal."""
        distance = jnp.linalg.norm(achieved - goal, axis=-1)
        return -(distance > self.threshold).astype(jnp.float32) if self.sparse else -distance


@dataclasses.dataclass(frozen=True)
class Goals:
    """The goals in vectors [..., O] that hold an achieved goal [G], a desired goal [G], and the rest."""

    size: int  # G
    achieved_at: int  # the first index of the achieved goal
    desired_at: int  # the first index of the desired goal
    reward: Reward

    def achieved(self, observation: Array) -> Array:
        """The goal [..., G] that observations [..., O] have reached."""
        return observation[..., self.achieved_at : self.achieved_at + self.size]

    def desired(self, observation: Array) -> Array:
        """The goal [..., G] that observations [..., O] ask for."""
        return observation[..., self.desired_at : self.desired_at + self.size]

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations [..., O] with `goal` [..., G] in place of their own goal."""
        before, behind = observation[..., : self.desired_at], observation[..., self.desired_at + self.size :]
        return jnp.concatenate([before, goal, behind], axis=-1)

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] of a step that reaches `achieved` [..., G], for `goal` [..., G]."""
        return jnp.asarray(self.reward(achieved, goal), jnp.float32)


def has_goals(space: spaces.Space) -> bool:
    """Whether this is the observation space of a goal environment: a dictionary of the three vectors, and no more."""
    if not isinstance(space, spaces.Dict) or set(space.spaces) != KEYS:
        return False
    vectors = all(isinstance(part, spaces.Box) and len(part.shape) == 1 for part in space.spaces.values())
    return vectors and space[ACHIEVED].shape == space[DESIRED].shape


def goals_of(hosted: Hosted) -> Goals | str:
    """How goals are replaced in the observations of these environments. Where they cannot be: the reason, in words.

    The reason ends with what to do.
    """
    space: Any = hosted.spaces.observation
    if not has_goals(space):
        return (
            f"the observations of '{hosted.name}' hold none. Choose an environment whose observations hold goals, such "
            "as rljax/BoxPick-4x4 or gymnasium_robotics:FetchReach-v4"
        )
    environments = getattr(hosted.vector_env.unwrapped, "envs", None)
    size, reward = space[ACHIEVED].shape[0], _reward(environments[0].unwrapped) if environments else None
    if reward is None:
        return (
            f"the reward of '{hosted.name}' is not known for other goals. Give its class a method "
            "goal_reward(achieved, goal): a pure function in JAX, from goals [..., G] to rewards [...], equal to its "
            "compute_reward"
        )
    goals = jax.ShapeDtypeStruct((2, size), jnp.float32)
    try:
        shape = jax.eval_shape(reward, goals, goals).shape
    except Exception as error:
        return f"goal_reward of '{hosted.name}' cannot be traced by JAX ({type(error).__name__}). Write it in jax.numpy"
    if shape != (2,):
        return f"goal_reward of '{hosted.name}' returns {shape} for goals (2, {size}). Return one reward for each goal"
    sizes = {key: part.shape[0] for key, part in space.spaces.items()}
    first = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    return Goals(size, first[ACHIEVED], first[DESIRED], reward)


def _reward(environment: Any) -> Reward | None:
    """The reward of an environment for any goal, in JAX; None where it is not known."""
    own = getattr(environment, "goal_reward", None)
    if own is not None:
        return own
    if type(environment).__module__.startswith(_FETCH):
        return Distance(float(environment.distance_threshold), environment.reward_type == "sparse")
    return None
