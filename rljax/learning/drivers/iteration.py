"""The compiled loop: stepping, storing, acting and learning are one program.

The next action is chosen before learning, so that the host can step meanwhile. But streams learn
from each transition first, and after learning from a rollout the new policy chooses again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Step, Transition
from rljax.distributed.devices import Spread
from rljax.learning.drivers.driver import Driver, Learnt, continued, episode_sums, no_episodes
from rljax.learning.learner import (
    Hyperparameters,
    Learner,
    LearnerState,
    before,
    flat,
    per_learner,
)
from rljax.learning.programs import compiled, shared
from rljax.learning.tally import counted


class Carry(struct.PyTreeNode):
    """The loop's state."""

    learners: LearnerState
    environment: Any  # the simulators' state
    observation: Any  # [P, E, O...] to act on next
    first: Array  # [P, E] bool: whether this observation begins an episode
    action: Any  # [P, E, ...] to take next
    extras: Any  # of the action
    episodes: dict[str, Array]  # as in `Driver`


Move = Callable[[Carry], Carry]
Learn = Callable[..., Carry]


class Simulators(Protocol):
    """P x E environments of the compiled loop; equal ones share programs."""

    def reset(self, start: Any) -> tuple[Any, Any]:
        """The first observations [P x E, O...] and states, from the driver's `start`."""
        ...

    def step(self, carry: Carry, action: Array) -> tuple[Carry, Step]:
        """The carry and the step [P x E, ...] after actions [P x E, ...]."""
        ...

    def works(self, environment: Any) -> Array | bool:
        """Whether the environments took all steps so far, by their state."""
        ...

    def repeat(self, iterations: Array, one: Move, carry: Carry) -> Carry:
        """The carry after iterations or a failure of environments."""
        ...

    def iterate(self, carry: Carry, num_steps: int, step: Move, learn: Learn) -> Carry:
        """`num_steps` calls of `step`, and one of `learn(carry, when)`, which does nothing without
        `when`.
        """
        ...

    def iterate_on_policy(self, carry: Carry, num_steps: int, step: Move, learn: Move) -> Carry:
        """The same, but no step begins before `learn` has ended."""
        ...


@dataclasses.dataclass(frozen=True)
class CompiledLoop:
    """Pure functions on a carry. Drivers with equal loops share programs."""

    learner: Learner
    simulators: Any  # `Simulators`
    spread: Spread  # of learners and environments over devices

    @compiled()
    def init(
        self, keys: Array, start: Any, hyper: Hyperparameters, data: Any, learnt: Learnt = None
    ) -> Carry:
        """The first carry, from each learner's key [P] and `start`, see `Simulators.reset`."""
        observation, environment = self.simulators.reset(start)
        learners = continued(self.learner.init(keys, hyper, data), learnt)
        rows = (self.learner.num_learners, hyper.experience.num_envs)
        carry = self.without_action(learners, environment, per_learner(observation, rows))
        return self.placed(self._act(carry, hyper), hyper)

    @compiled(donate_argnums=0)
    def begin(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        """The carry with an action for its observation."""
        return self._act(carry, hyper)

    @compiled(donate_argnums=0)
    def advance(
        self, carry: Carry, iterations: Array, hyper: Hyperparameters, data: Transition | None
    ) -> Carry:
        """The carry after iterations or a failure of simulators."""
        # The bound is traced, so that chunks of any length use one program. The result is placed
        # again, because XLA may otherwise move parts of the agents to other devices.
        iterate = lambda carry: hyper.experience.iterate(self, carry, hyper, data)  # noqa: E731
        return self.placed(self.simulators.repeat(iterations, iterate, carry), hyper)

    def without_action(self, learners: LearnerState, environment: Any, observation: Any) -> Carry:
        """A carry where episodes begin, without an action yet."""
        return Carry(
            learners=learners,
            environment=environment,
            observation=observation,
            first=jnp.ones(jax.tree.leaves(observation)[0].shape[:2], jnp.bool_),
            action=None,
            extras=None,
            episodes=no_episodes(self.learner.spec, self.learner.num_learners, jnp),
        )

    def placed(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        """The carry on the devices that work on it."""
        if self.spread.mesh is None:
            return carry
        rows = self.spread.environments
        learners = self.spread.learners(carry.learners.replace(storage=None))
        storage = hyper.experience.placed(carry.learners.storage, self.spread)
        return Carry(
            learners=learners.replace(storage=storage),
            environment=self.spread.flat_environments(carry.environment),
            observation=rows(carry.observation),
            first=rows(carry.first),
            action=rows(carry.action),
            extras=rows(carry.extras),
            episodes=self.spread.learners(carry.episodes),
        )

    # One iteration: the agent's declaration calls one of these.

    def learn_from_batches(
        self, carry: Carry, hyper: Hyperparameters, data: Transition | None
    ) -> Carry:
        """Steps, and updates on stored batches."""

        def learn(carry: Carry, when: Array | bool) -> Carry:
            return carry.replace(learners=self._learn(carry.learners, hyper, data, when))

        step = partial(self._step, hyper=hyper)
        return self.simulators.iterate(carry, hyper.experience.num_steps, step, learn)

    def learn_from_rollout(
        self, carry: Carry, hyper: Hyperparameters, data: Transition | None
    ) -> Carry:
        """Steps of one policy, updates on them, and an action of the new policy."""

        def learn(carry: Carry) -> Carry:
            carry = carry.replace(learners=self._learn(carry.learners, hyper, data))
            # The observation was perceived before.
            action, extras = self.learner.act(
                carry.learners, carry.observation, hyper, before(carry.extras)
            )
            return carry.replace(action=action, extras=extras)

        step = partial(self._step, hyper=hyper)
        return self.simulators.iterate_on_policy(carry, hyper.experience.num_steps, step, learn)

    def learn_from_each(
        self, carry: Carry, hyper: Hyperparameters, data: Transition | None
    ) -> Carry:
        """One step, and an update on it before the next action."""
        del data
        carry, transition = self._simulate(carry, hyper)
        works = self.simulators.works(carry.environment)
        learners = self.learner.learn_from_step(carry.learners, transition, hyper, works)
        return self._act(carry.replace(learners=learners), hyper)

    def _step(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        carry, transition = self._simulate(carry, hyper)
        learners = self.learner.observe(carry.learners, transition, hyper.experience)
        return self._act(carry.replace(learners=learners), hyper)

    def _simulate(self, carry: Carry, hyper: Hyperparameters) -> tuple[Carry, Transition]:
        carry, step = self.simulators.step(carry, flat(carry.action))
        step = per_learner(step, carry.action.shape[:2])
        ended = step.terminated | step.truncated
        episodes = {
            name: carry.episodes[name] + jnp.where(ended, sums, 0).sum(axis=1)
            for name, sums in episode_sums(step).items()
        }
        episodes["count"] = carry.episodes["count"] + ended.sum(axis=1)
        after = carry.replace(observation=step.observation, first=ended, episodes=episodes)
        if self.learner.reviews:
            time = counted(after.learners.steps)
            after = after.replace(learners=self.learner.review(after.learners, step, time, hyper))
        learners = carry.learners
        next_step = (step.next_observation, learners.key_act, learners.steps)
        extras = self.learner.with_next(carry.extras, *next_step, hyper)
        of_step = (carry.observation, carry.action, extras, step)
        return after, hyper.experience.transition(*of_step)

    def _act(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        learners = carry.learners
        if self.learner.perceives(learners):
            learners = self.learner.perceive(learners, carry.observation, carry.first, hyper)
        memory = self.learner.recall(carry.extras, carry.first, hyper)
        action, extras = self.learner.act(learners, carry.observation, hyper, memory)
        return carry.replace(learners=learners, action=action, extras=extras)

    def _learn(
        self,
        learners: LearnerState,
        hyper: Hyperparameters,
        data: Transition | None,
        when: Array | bool = True,
    ) -> LearnerState:
        # Only read in the branch: a storage that passes through it would be copied.
        storage = learners.storage

        def update(learnt: LearnerState) -> LearnerState:
            return self.learner.update(learnt.replace(storage=storage), hyper, data).replace(
                storage=None
            )

        ready = self.learner.ready(learners.steps, hyper.experience) & when
        learnt = jax.lax.cond(ready, update, lambda learnt: learnt, learners.replace(storage=None))
        return learnt.replace(storage=storage)


class LoopDriver(Driver):
    """A driver with a compiled loop and its carry."""

    loop: CompiledLoop
    carry: Carry

    def use(self, loop: CompiledLoop, hyper: Hyperparameters, data: Transition | None) -> None:
        """Drive this loop, or an equal compiled one."""
        self.loop = shared(loop, hyper)
        self.learner, self.spread = loop.learner, loop.spread
        self.hyper = self.spread.learners(hyper)
        self.data = data

    @property
    def learnt(self) -> LearnerState:
        """The learners of the carry."""
        return self.carry.learners

    @learnt.setter
    def learnt(self, learners: LearnerState) -> None:
        self.carry = self.carry.replace(learners=learners)

    learners = learnt

    @property
    def episodes(self) -> dict[str, Array]:
        """Those of the carry."""
        return self.carry.episodes

    def forget_episodes(self) -> None:
        episodes = no_episodes(self.learner.spec, self.learner.num_learners, jnp)
        self.carry = self.carry.replace(episodes=self.spread.learners(episodes))
