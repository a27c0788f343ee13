"""Environments on the host: two compiled calls a step for all learners, and the simulators between them.

One call stores the transition, in place; another learns and acts. In one call together they would copy the whole
replay buffer on the CPU, since a program that both writes and gathers from a donated buffer cannot do either in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from rljax.envs.gymnasium import Hosted

from rljax.agent import Step
from rljax.drivers.common import TRAIN, Report, environment_seeds, report
from rljax.learner import Learner, LearnerState, empty_tally


class HostedDriver:
    """Moves P learners through P x E environments on the host; see `rljax.drivers.common.Driver`."""

    learners: LearnerState
    without_environments = "lost"

    def __init__(self, learner: Learner, environments: Hosted, config: Any) -> None:
        """`environments` holds P x E of them, learner by learner; `config` is stacked over P."""
        self.spec = environments.spec
        self.learner, self.hosted, self.config = learner, environments, config
        self._init = jax.jit(learner.init)
        self._act = jax.jit(learner.act, donate_argnums=0)
        self._observe = jax.jit(learner.observe, donate_argnums=0)

        def learn_and_act(learnt: Any, storage: Any, observation: Any, first: Any, config: Any) -> Any:
            state = learner.update(learnt.replace(storage=storage), config)
            state, action, extras = learner.act(state, observation, first, config)
            return state.replace(storage=None), action, extras

        self._learn_and_act = jax.jit(learn_and_act, donate_argnums=0)

    def start(self, seeds: Sequence[int]) -> None:
        """Fresh learners and environments, one learner per seed."""
        keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
        self.learners = self._init(keys, self.config)
        number = self.learner.num_envs
        starts = [s for seed in seeds for s in environment_seeds(seed, TRAIN, number=number)]
        self.observation = self._per_learner(self.hosted.reset(starts))
        self._begin(steps=0)
        first = np.ones(self.observation.shape[:2], np.bool_)
        self.learners, self.action, self.extras = self._act(self.learners, self.observation, first, self.config)

    def _begin(self, steps: int) -> None:
        self.steps = steps  # of each environment; the host's copy of `learners.steps`
        zero = np.zeros(self.learner.num_learners)
        self.episodes = {"return": zero.copy(), "length": zero.copy(), "count": zero.copy()}

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates."""
        for _ in range(iterations * self.config.num_steps):
            step = self.hosted.step(self._flat(np.asarray(self.action)))
            step = jax.tree.map(self._per_learner, step)
            self.learners = self._observe(self.learners, self.observation, self.action, self.extras, _for_device(step))
            self.steps += 1
            self.observation = step.observation
            first = step.terminated | step.truncated
            if first.any():
                self._count_episodes(step, first)
            if self.steps % self.config.num_steps == 0 and self.learner.ready(self.steps, self.config):
                storage = self.learners.storage
                learnt, self.action, self.extras = self._learn_and_act(
                    self.learners.replace(storage=None), storage, self.observation, first, self.config
                )
                self.learners = learnt.replace(storage=storage)
            else:
                self.learners, self.action, self.extras = self._act(self.learners, self.observation, first, self.config)

    def report(self) -> Report:
        """The means since the last report, which it forgets."""
        result = report(self.learners.tally, self.learners.updates, self.episodes)
        tally = empty_tally(tuple(self.learners.tally.total), self.learner.num_learners)
        self.learners = self.learners.replace(tally=tally)
        self._begin(self.steps)
        return result

    @property
    def agent_state(self) -> Any:
        """The agents' State, [P, ...]."""
        return self.learners.agent

    def arrays(self) -> dict[str, Any]:
        """The agents; the rest of the learners, and the action that the environments have not yet had."""
        return _split(self.learners, self.action, self.extras)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`."""
        keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)))
        learners = jax.eval_shape(self._init, keys, self.config)
        rows = (self.learner.num_learners, self.learner.num_envs)
        observation = jax.ShapeDtypeStruct((*rows, *self.spec.observation_shape), np.float32)
        first = jax.ShapeDtypeStruct(rows, np.bool_)
        return _split(*jax.eval_shape(self.learner.act, learners, observation, first, self.config))

    def environments(self) -> bytes | None:
        """The simulators' state, or None where it cannot be saved."""
        return self.hosted.save()

    @property
    def save_failure(self) -> str | None:
        """Why the simulators' state cannot be saved, where it cannot."""
        return self.hosted.save_failure

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue exactly; without `environments`, from fresh episodes."""
        learners, self.action, self.extras = arrays["training"]
        self.learners = learners.replace(agent=arrays["agent"])
        self._begin(int(self.learners.steps))
        if environments is not None:
            self.observation = self._per_learner(self.hosted.restore(environments))
            return
        self.observation = self._per_learner(self.hosted.reset(None))
        first = np.ones(self.observation.shape[:2], np.bool_)
        self.learners, self.action, self.extras = self._act(self.learners, self.observation, first, self.config)

    def close(self) -> None:
        """Close the simulators."""
        self.hosted.close()

    def _count_episodes(self, step: Step, ended: np.ndarray) -> None:
        self.episodes["return"] += np.where(ended, step.episode_return, 0).sum(axis=1)
        self.episodes["length"] += np.where(ended, step.episode_length, 0).sum(axis=1)
        self.episodes["count"] += ended.sum(axis=1)

    def _per_learner(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.learner.num_learners, self.learner.num_envs, *rows.shape[1:])

    def _flat(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, *rows.shape[2:])


def _for_device(step: Step) -> Step:
    """Only what a transition holds crosses to the device."""
    return step.replace(observation=None, episode_return=None, episode_length=None)


def _split(learners: Any, action: Any, extras: Any) -> dict[str, Any]:
    return {"agent": learners.agent, "training": (learners.replace(agent=None), action, extras)}
