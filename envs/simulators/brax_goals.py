"""Brax's robots with goals, `goals/brax/ant` and `goals/brax/reacher`, as JaxGCRL has them.

The observation is a state and the goal [2], x and y:

              state                                                  goal            near
  ant         [29] all positions and velocities; x and y are first   10 from 0       0.5
  reacher     [8] cosines and sines of joints, place and speed of    up to 0.2 from  0.05
              the tip                                                0, Brax's own

What is achieved is the torso's or the tip's place. The reward is 1 in a step that ends near the
goal, else 0, and `success` says the same. Falling ends an ant's episode, as in Brax.

After Bortkiewicz et al., JaxGCRL, arXiv:2408.11052, whose reacher has heights, too, which never
change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.agent import Array
from rljax.envs.environment import StepResult, foreign
from rljax.envs.simulators.brax import Brax

GOAL = "goal"  # in a state's info


class Robot(NamedTuple):
    """What is seen of a robot, and where its goals are."""

    size: int  # of its state
    place_at: int  # where in the state x is, then y
    near: float  # distance of a goal that is reached
    state: Callable[[Any], Array]  # of Brax's state
    goal: Callable[[Array, Any], Array]  # by a key, and Brax's state


def _ant_goal(key: Array, state: Any) -> Array:
    angle = jax.random.uniform(key, (), maxval=2.0 * jnp.pi)
    return 10.0 * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _ant(state: Any) -> Array:
    return jnp.concatenate([state.pipeline_state.q, state.pipeline_state.qd])


def _reacher(state: Any) -> Array:
    """Of cosines and sines [4], the target [2], the tip's speed [2], and its way from the target
    [3].
    """
    joints, target, speed, way = jnp.split(state.obs, [4, 6, 8])
    return jnp.concatenate([joints, target + way[:2], speed])


ROBOTS = {
    "brax/ant": Robot(29, 0, 0.5, _ant, _ant_goal),
    "brax/reacher": Robot(8, 4, 0.05, _reacher, lambda key, state: state.obs[4:6]),
}


class GoalBrax(Brax):
    """A robot with goals, a `rljax.envs.goals.GoalConditioned`. Its state is Brax's, with the goal
    in `info`.
    """

    def __init__(self, environment: Brax, robot: Robot) -> None:
        self.simulator, self.robot = environment.simulator, robot
        self.spec = dataclasses.replace(environment.spec, observation_shape=(robot.size + 2,))

    def reset(self, key: Array, params: Any = None) -> tuple[Array, Any]:
        """Begin an episode."""
        key_robot, key_goal = jax.random.split(key)
        with foreign(self.spec.name):
            state = self.simulator.reset(key_robot)
        goal = self.robot.goal(key_goal, state)
        state = state.replace(info={**state.info, GOAL: goal})
        return self._observation(state), state

    def step(self, key: Array, state: Any, action: Array, params: Any = None) -> StepResult:
        """Apply one action."""
        observation, state, _, terminated, truncated, _ = super().step(key, state, action, params)
        reward = self.goal_reward(self.achieved(observation), self.desired(observation))
        return observation, state, reward, terminated, truncated, {"success": reward > 0.0}

    def achieved(self, observation: Array) -> Array:
        """The place [..., 2] in observations [..., O]."""
        return observation[..., self.robot.place_at : self.robot.place_at + 2]

    def desired(self, observation: Array) -> Array:
        """The goal [..., 2] in observations [..., O]."""
        return observation[..., self.robot.size :]

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations [..., O] with another `goal` [..., 2]."""
        return jnp.concatenate([observation[..., : self.robot.size], goal], axis=-1)

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """1 if a place `achieved` [..., 2] is near the `goal` [..., 2], else 0: [...]."""
        distance = jnp.linalg.norm(achieved - goal, axis=-1)
        return (distance < self.robot.near).astype(jnp.float32)

    def _observation(self, state: Any) -> Array:
        parts = [self.robot.state(state), state.info[GOAL]]
        return jnp.concatenate(parts).astype(jnp.float32)


def with_goals(environment: Any) -> GoalBrax | None:
    """An environment of Brax with goals; None where it has none."""
    robot = ROBOTS.get(environment.spec.name)
    return None if robot is None else GoalBrax(environment, robot)
