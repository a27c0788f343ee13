"""What policies remember that are told which return to reach: the rest of it, and past steps.

Chen et al., Decision Transformer, arXiv:2106.01345.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct

from rljax.agent import Acting, Array, EnvSpec, Number, Transition, config
from rljax.requirements import Real


@config
class WithTargetReturn:
    """The return that a policy is told to reach: a base of an agent's Config."""

    acting: ClassVar = Acting(settings=("target_return",), returns=("target_return",))

    target_return: Real | None = None  # to aim at; None: the data's largest

    def target(self, largest: Array) -> Number | Array:
        """The return [] to reach from the beginning of an episode."""
        return largest if self.target_return is None else self.target_return


class ReturnHistory(struct.PyTreeNode):
    """The last K steps of an episode, the newest last; those before its beginning are 0."""

    state: Array  # [..., K, O]
    action: Array  # [..., K, A], 0 for the newest step, whose action comes next
    target: Array  # [..., K]: what was left of the return to reach
    steps: Array  # [...] int32: steps of the episode so far

    def after(self, observation: Array, target: Number | Array) -> ReturnHistory:
        """The history with the step that begins with `observation` [..., O + A + 1], which shows
        the last action and reward; `target` [] is the return to reach from the beginning.
        """
        state, action, reward = split(observation, self.action.shape[-1])
        left = jnp.where(self.steps == 0, target, self.target[..., -1] - reward)
        length = self.target.shape[-1]
        actions = (self.action[..., 1:-1, :], action[..., None, :], 0.0 * action[..., None, :])
        return ReturnHistory(
            state=jnp.concatenate([self.state[..., 1:, :], state[..., None, :]], axis=-2),
            action=jnp.concatenate(actions, axis=-2)[..., -length:, :],
            target=jnp.concatenate([self.target[..., 1:], left[..., None]], axis=-1),
            steps=self.steps + 1,
        )

    @property
    def left(self) -> Array:
        """What is left [...] of the return to reach."""
        return self.target[..., -1]

    def inputs(self, scale: Number) -> tuple[Any, ...]:
        """States, actions, scaled returns, times and which steps are there, [..., K, ...] each."""
        length = self.target.shape[-1]
        back = jnp.arange(length) - length  # -1 is the newest
        time = self.steps[..., None] + back
        return self.state, self.action, scale * self.target, jnp.maximum(time, 0), time >= 0


def split(observation: Array, action_size: int) -> tuple[Array, Array, Array]:
    """The state [..., O], last action [..., A] and last reward [...] that observations show."""
    rest, reward = observation[..., :-1], observation[..., -1]
    return rest[..., :-action_size], rest[..., -action_size:], reward


def history(spec: EnvSpec, length: int) -> ReturnHistory:
    """Before the first step of an episode, where observations show the last action and reward."""
    size = spec.observation_shape[0] - spec.action_size - 1
    return ReturnHistory(
        state=jnp.zeros((length, size)),
        action=jnp.zeros((length, spec.action_size)),
        target=jnp.zeros(length),
        steps=jnp.zeros((), jnp.int32),
    )


def largest(data: Transition) -> Array:
    """The largest return [] of the trajectories of a data set [N, ...] with returns to go and
    times.
    """
    begins = data.extras["time"] == 0
    return jnp.where(begins, data.extras["return_to_go"], -jnp.inf).max()
