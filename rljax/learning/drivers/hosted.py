"""Environments on the host: each step makes three compiled calls, which act, learn and store.

Storing is separate because on the CPU a program that both writes to a donated buffer and gathers
from it copies all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Step, Transition, base_acts
from rljax.buffers import Experience
from rljax.distributed.devices import Spread
from rljax.envs.host.hosted import Hosted
from rljax.learning.drivers.driver import (
    Driver,
    Learnt,
    continued,
    cut_episodes,
    episode_sums,
    key_shapes,
    keys_of,
    no_episodes,
    split,
    training_seeds,
)
from rljax.learning.learner import (
    Hyperparameters,
    Learner,
    LearnerState,
    before,
    flat,
    per_learner,
    without_observations,
)
from rljax.learning.programs import compiled, shared
from rljax.learning.tally import counted


@dataclasses.dataclass(frozen=True)
class Calls:
    """The compiled functions, shared by drivers with equal ones."""

    learner: Learner
    spread: Spread  # of the learners over devices

    @compiled()
    def init(self, keys: Array, hyper: Hyperparameters, data: Transition | None) -> LearnerState:
        """Fresh learners."""
        return self.learner.init(keys, hyper, data)

    @compiled(donate_argnums=0)
    def store(self, storage: Any, pending: Any, experience: Experience, *of_step: Any) -> Any:
        """The buffer with new transitions, see `Experience.transition`, and what is pending."""
        return experience.store(storage, pending, experience.transition(*of_step))

    @compiled(donate_argnums=0)
    def perceive(
        self, learnt: Any, observation: Array, first: Array, hyper: Hyperparameters
    ) -> Any:
        """The learners after they have seen observations."""
        return self.learner.perceive(learnt, observation, first, hyper)

    @compiled(donate_argnums=0)
    def review(self, learnt: Any, outcome: Step, time: Array, hyper: Hyperparameters) -> Any:
        """The learners after a step in which an episode ended."""
        return self.learner.review(learnt, outcome, time, hyper)

    @compiled()
    def act(
        self, learnt: Any, steps: Array, observation: Array, hyper: Hyperparameters, memory: Any
    ) -> Any:
        """The actions for observations after `steps` [] steps."""
        return self.learner.act(learnt.replace(steps=steps), observation, hyper, memory)

    @compiled()
    def recall(self, extras: Any, first: Array, hyper: Hyperparameters) -> Any:
        """The memories to act with, after an action with these extras."""
        return self.learner.recall(extras, first, hyper)

    @compiled()
    def with_next(self, extras: Any, *of_step: Any) -> Any:
        """See `Learner.with_next`."""
        return self.learner.with_next(extras, *of_step)

    @compiled(donate_argnums=0)
    def learn(
        self, learnt: Any, storage: Any, hyper: Hyperparameters, data: Transition | None
    ) -> Any:
        """The learners after the updates of one iteration."""
        return self.learner.update(learnt.replace(storage=storage), hyper, data).replace(
            storage=None
        )


class HostedDriver(Driver):
    """Moves P learners through P x E environments on the host.

    `storage` lies apart from `learnt`.
    """

    hosted: Hosted

    def __init__(
        self, learner: Learner, environments: Hosted, config: Any, data: Transition | None = None
    ) -> None:
        self.spec = environments.spec
        self.learner, self.hosted, self.data = learner, environments, data
        self.spread = Spread(learner.num_learners)
        self.reconfigure(config)
        self.hosted.tolerant = learner.num_learners > 1
        self.calls = shared(Calls(learner, self.spread), self.hyper)
        self.remembers = learner.remembers(self.hyper)
        self.base_acts = base_acts(learner.agent, self.hyper.base, self.hyper.config)

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        self.data = self.spread.everywhere(self.data)
        learners = self.calls.init(keys_of(seeds), self.hyper, self.data)
        learners = self.spread.learners(continued(learners, learnt))
        self.learnt, self.storage = learners.replace(storage=None), learners.storage
        starts = training_seeds(seeds, self.hyper.experience.num_envs)
        observation = self._per_learner(self.hosted.reset(starts))
        self.steps, self.extras = 0, None  # steps of each environment; see `counted`
        self.forget_episodes()
        self._act_on(observation, self._all_first())

    def advance(self, iterations: int) -> None:
        for _ in range(iterations):
            self.hyper.experience.iterate(self)

    # One iteration: the agent's declaration calls one of these.

    def learn_from_batches(self) -> None:
        """Steps while the device learns."""
        self._learn()
        self._step()

    def learn_from_rollout(self) -> None:
        """Updates, then steps of the new policy."""
        if self._learn():
            self._act(before(self.extras))
        self._step()

    def _learn(self) -> bool:
        """Submit updates; whether there are enough steps for them."""
        ready = bool(self.learner.ready(self.steps, self.hyper.experience))
        if ready:
            self.learnt = self.calls.learn(self.learnt, self.storage, self.hyper, self.data)
        return ready

    def _step(self) -> None:
        experience = self.hyper.experience
        for _ in range(experience.num_steps):
            step = self._per_learner(self.hosted.step(flat(np.asarray(self.action))))
            sent = step.replace(observation=None, episode_return=None, episode_signals={})
            happened = (self.observation, self.action, self._extras(step), sent)
            self.storage, pending = self.calls.store(
                self.storage, self.learnt.pending, experience, *happened
            )
            if pending is not None:
                self.learnt = self.learnt.replace(pending=pending)
            self.steps = counted(self.steps)
            first = step.terminated | step.truncated
            if first.any():
                for name, sums in episode_sums(step).items():
                    self.episodes[name] += np.where(first, sums, 0).sum(axis=1)
                self.episodes["count"] += first.sum(axis=1)
                self._review(step)
            self._act_on(step.observation, first)

    def _extras(self, step: Step) -> Any:
        """The extras of the action before this step."""
        if not self.base_acts:
            return self.extras
        next_step = (step.next_observation, self.learnt.key_act, np.int32(self.steps))
        return self.calls.with_next(self.extras, *next_step, self.hyper)

    def _review(self, step: Step) -> None:
        if self.learner.reviews:
            happened = (without_observations(step), np.int32(self.steps))
            self.learnt = self.calls.review(self.learnt, *happened, self.hyper)

    @property
    def learners(self) -> LearnerState:
        return self.learnt.replace(storage=self.storage, steps=jnp.asarray(self.steps, jnp.int32))

    def forget_episodes(self) -> None:
        self.episodes = no_episodes(self.spec, self.learner.num_learners, np)

    def arrays(self) -> dict[str, Any]:
        return split(self.learners, self.action, self.extras)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        learners = jax.eval_shape(self.calls.init, key_shapes(len(seeds)), self.hyper, self.data)
        rows = (self.learner.num_learners, self.hyper.experience.num_envs)
        observation = self.spec.shaped(*rows)
        memory = jax.eval_shape(lambda: self.learner.recall(None, self._all_first(), self.hyper))
        return split(
            learners, *jax.eval_shape(self.learner.act, learners, observation, self.hyper, memory)
        )

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        self.data = self.spread.everywhere(self.data)
        learners, self.action, self.extras = self.spread.learners(arrays["training"])
        learners = learners.replace(agent=self.spread.learners(arrays["agent"]))
        if environments is None:
            learners = cut_episodes(learners, self.hyper.experience.num_envs)
        self.learnt, self.storage = learners.replace(storage=None), learners.storage
        self.steps = int(learners.steps)
        self.forget_episodes()
        if environments is not None:
            self.observation = self._per_learner(self.hosted.restore(environments))
        else:
            observation = self._per_learner(self.hosted.reset(None))
            self._act_on(observation, self._all_first())

    def close(self) -> None:
        self.hosted.close()

    def _all_first(self) -> np.ndarray:
        return np.ones((self.learner.num_learners, self.hyper.experience.num_envs), np.bool_)

    def _act_on(self, observation: Any, first: np.ndarray) -> None:
        self.observation = observation
        if self.learner.perceives(self.learnt):
            self.learnt = self.calls.perceive(self.learnt, observation, first, self.hyper)
        self._act(self.calls.recall(self.extras, first, self.hyper) if self.remembers else None)

    def _act(self, memory: Any) -> None:
        steps = np.int32(self.steps)
        self.action, self.extras = self.calls.act(
            self.learnt, steps, self.observation, self.hyper, memory
        )

    def _per_learner(self, rows: Any) -> Any:
        return per_learner(rows, (self.learner.num_learners, self.hyper.experience.num_envs))
