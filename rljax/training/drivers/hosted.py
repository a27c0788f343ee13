"""Environments on the host: three compiled calls a step for all learners, and the simulators beside them.

For accelerators, and for several devices; on one CPU the embedded driver is faster. The calls act, learn and store.
Acting comes before learning, and neither waits for the host: while the device learns, the simulators already step,
and the host hands over the next calls. Storing is a call of its own, since a program that both writes to and
gathers from a donated buffer copies all of it on the CPU, unless each write waits for all reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec, Step, Transition
from rljax.distributed.devices import Spread
from rljax.envs.host.hosted import Hosted
from rljax.training.drivers.driver import TRAIN, Report, continued, environment_rows, environment_seeds, report, split
from rljax.training.learner import Hyperparameters, Learner, LearnerState, empty_tally


class HostedDriver:
    """Moves P learners through P x E environments on the host; see `rljax.training.drivers.driver.Driver`.

    The learners are held in two parts, since each call should only be handed what it changes: `learnt`, a
    `LearnerState` without storage, and `storage`.
    """

    without_environments = "lost"

    def __init__(self, learner: Learner, environments: Hosted, config: Any, data: Transition | None = None) -> None:
        """`environments` holds P x E of them, learner by learner; `config` is stacked over P.

        `data` [N, ...] is a data set to learn from as well, where there is one.
        """
        self.spec: EnvSpec = environments.spec
        self.learner, self.hosted = learner, environments
        self.spread = Spread(learner.num_learners)
        self.reconfigure(config)
        self.hosted.tolerant = learner.num_learners > 1
        self.data = data  # not yet on the device: a data set that does not fit is refused first
        self._init = jax.jit(learner.init)
        self._store = jax.jit(learner.store, donate_argnums=0)
        self._perceive = jax.jit(learner.perceive, donate_argnums=0)
        self._act = jax.jit(self._acting)
        self._learn = jax.jit(self._learning, donate_argnums=0)

    def reconfigure(self, config: Any) -> None:
        """Go on with other settings, stacked over P as those at the beginning."""
        self.hyper = self.spread.learners(self.learner.hyperparameters(config))

    def start(self, seeds: Sequence[int], learnt: LearnerState | None = None) -> None:
        """Fresh learners and environments, one learner per seed; the learners go on from `learnt` where given."""
        self.data = self.spread.everywhere(self.data)
        learners = self._init(jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)), self.hyper, self.data)
        learners = self.spread.learners(continued(learners, learnt))
        self.learnt, self.storage = learners.replace(storage=None), learners.storage
        number = self.hyper.experience.num_envs
        starts = [s for seed in seeds for s in environment_seeds(seed, TRAIN, number=number)]
        observation = self._per_learner(self.hosted.reset(starts))
        self.steps = 0  # of each environment
        self._forget()
        self._act_on(observation, np.ones(observation.shape[:2], np.bool_))

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates."""
        experience = self.hyper.experience
        for _ in range(iterations * experience.num_steps):
            if self.steps % experience.num_steps == 0 and self.learner.ready(self.steps, experience):
                self.learnt = self._learn(self.learnt, self.storage, self.hyper, self.data)
            step = self.hosted.step(self._flat(np.asarray(self.action)))
            step = jax.tree.map(self._per_learner, step)
            sent = step.replace(observation=None, episode_return=None, episode_length=None)  # the rest stays here
            self.storage = self._store(self.storage, self.observation, self.action, self.extras, sent, experience)
            self.steps += 1
            first = step.terminated | step.truncated
            if first.any():
                self._count_episodes(step, first)
            self._act_on(step.observation, first)

    @property
    def learners(self) -> LearnerState:
        """The learners as they are now."""
        return self.learnt.replace(storage=self.storage, steps=jnp.asarray(self.steps, jnp.int32))

    @property
    def agent_state(self) -> Any:
        """The agents' State, [P, ...]."""
        return self.learnt.agent

    @agent_state.setter
    def agent_state(self, state: Any) -> None:
        self.learnt = self.learnt.replace(agent=self.spread.learners(state))

    def report(self) -> Report:
        """The means since the last report, which it forgets."""
        result = report(self.learnt.tally, self.learnt.updates, self.episodes)
        tally = empty_tally(tuple(self.learnt.tally.total), self.learner.num_learners)
        self.learnt = self.learnt.replace(tally=self.spread.learners(tally))
        self._forget()
        return result

    def arrays(self) -> dict[str, Any]:
        """The agents; the rest of the learners, and the action that the environments have not yet had."""
        return split(self.learners, self.action, self.extras)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`."""
        keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)))
        learners = jax.eval_shape(self._init, keys, self.hyper, self.data)
        rows = (self.learner.num_learners, self.hyper.experience.num_envs)
        observation = jax.ShapeDtypeStruct((*rows, *self.spec.observation_shape), np.float32)
        return split(learners, *jax.eval_shape(self.learner.act, learners, observation, self.hyper))

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """The simulators' state, or None where it cannot be saved; of some `learners` alone where given."""
        return self.hosted.save(environment_rows(learners, self.hyper.experience.num_envs))

    @property
    def save_failure(self) -> str | None:
        """Why the simulators' state cannot be saved, where it cannot."""
        return self.hosted.save_failure

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue exactly; without `environments`, from fresh episodes."""
        self.data = self.spread.everywhere(self.data)
        learners, self.action, self.extras = self.spread.learners(arrays["training"])
        agent = self.spread.learners(arrays["agent"])
        self.learnt, self.storage = learners.replace(agent=agent, storage=None), learners.storage
        self.steps = int(learners.steps)
        self._forget()
        if environments is not None:
            self.observation = self._per_learner(self.hosted.restore(environments))
        else:
            observation = self._per_learner(self.hosted.reset(None))
            self._act_on(observation, np.ones(observation.shape[:2], np.bool_))

    def close(self) -> None:
        """Close the simulators."""
        self.hosted.close()

    def _acting(self, learnt: Any, steps: Array, observation: Array, hyper: Hyperparameters) -> Any:
        return self.learner.act(learnt.replace(steps=steps), observation, hyper)

    def _learning(self, learnt: Any, storage: Any, hyper: Hyperparameters, data: Transition | None) -> Any:
        return self.learner.update(learnt.replace(storage=storage), hyper, data).replace(storage=None)

    def _act_on(self, observation: np.ndarray, first: np.ndarray) -> None:
        self.observation = observation
        if self.hyper.experience.perceives:
            self.learnt = self._perceive(self.learnt, observation, first, self.hyper)
        self.action, self.extras = self._act(self.learnt, np.int32(self.steps), observation, self.hyper)

    def _forget(self) -> None:
        self.episodes = {name: np.zeros(self.learner.num_learners) for name in ("return", "length", "count")}

    def _count_episodes(self, step: Step, ended: np.ndarray) -> None:
        self.episodes["return"] += np.where(ended, step.episode_return, 0).sum(axis=1)
        self.episodes["length"] += np.where(ended, step.episode_length, 0).sum(axis=1)
        self.episodes["count"] += ended.sum(axis=1)

    def _per_learner(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.learner.num_learners, self.hyper.experience.num_envs, *rows.shape[1:])

    def _flat(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, *rows.shape[2:])
