"""Environments inside the program: stepping, storing, acting and learning are one compiled loop.

The next action is chosen before learning, as in the hosted driver, where the simulators step while the device learns.
There are two exceptions. Streams learn from each transition at once, before they choose the next action. After learning
from a rollout, the first action of the next one is chosen anew, so that a whole rollout comes from one policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, Step, Transition
from rljax.buffers import Rollout
from rljax.buffers.rollout import RolloutBuffer
from rljax.distributed.devices import Spread
from rljax.envs import signals
from rljax.envs.autoreset import AutoReset
from rljax.training.drivers.driver import TRAIN, Learnt, Report, continued, environment_seeds, key_shapes, report
from rljax.training.learner import Hyperparameters, Learner, LearnerState, before, empty_tally, per_learner
from rljax.training.programs import compiled, shared


class Carry(struct.PyTreeNode):
    """The loop's state."""

    learners: LearnerState
    environment: Any  # AutoReset's state, [P x E, ...]
    keys: Array  # [P x E], one per environment, never advanced
    observation: Any  # [P, E, O...] to act on next
    first: Array  # [P, E] bool: whether this observation begins an episode
    action: Any  # [P, E, ...] to take next, see above when it is chosen
    extras: Any  # the extras that `act` returned with the action
    episodes: dict[str, Array]  # [P] sums over episodes that ended since the last report


@dataclasses.dataclass(frozen=True)
class Loop:
    """The compiled loop of a driver: pure functions, whose programs are shared by all drivers with an equal loop."""

    learner: Learner
    environment: Any  # an AutoReset
    spread: Spread  # how learners and environments are spread over devices

    def placed(self, carry: Carry) -> Carry:
        """The carry with each array on the devices that work on it."""
        if self.spread.mesh is None:
            return carry
        rows = self.spread.environments
        learners = self.spread.learners(carry.learners.replace(storage=None))
        return Carry(
            learners=learners.replace(storage=self._placed_storage(carry.learners.storage)),
            environment=self.spread.flat_environments(carry.environment),
            keys=self.spread.flat_environments(carry.keys),
            observation=rows(carry.observation),
            first=rows(carry.first),
            action=rows(carry.action),
            extras=rows(carry.extras),
            episodes=self.spread.learners(carry.episodes),
        )

    def _placed_storage(self, storage: Any) -> Any:
        if not isinstance(storage, RolloutBuffer):
            return self.spread.learners(storage)
        memory = self.spread.environments(storage.memory)
        return self.spread.rollouts(storage.replace(memory=None)).replace(memory=memory)

    @compiled()
    def init(self, *arguments: Any) -> Carry:
        """The first state of the loop."""
        return self.placed(self._start(*arguments))

    def _start(
        self,
        keys: Array,
        environment_keys: Array,
        hyper: Hyperparameters,
        data: Any,
        learnt: Learnt = None,
    ) -> Carry:
        keys_reset, keys_step = jnp.moveaxis(jax.vmap(jax.random.split)(environment_keys), 1, 0)
        observation, environment = self.environment.reset(keys_reset)
        rows = (self.learner.num_learners, hyper.experience.num_envs)
        carry = Carry(
            learners=continued(self.learner.init(keys, hyper, data), learnt),
            environment=environment,
            keys=keys_step,
            observation=per_learner(observation, rows),
            first=jnp.ones(rows, jnp.bool_),
            action=None,
            extras=None,
            episodes=no_episodes(self.learner),
        )
        return self._act(carry, hyper)

    @compiled(donate_argnums=0)
    def advance(self, carry: Carry, iterations: Array, hyper: Hyperparameters, data: Transition | None) -> Carry:
        """The state after a number of iterations."""
        # The bound is traced, so that chunks of any length use one program.
        # The result is placed again, because XLA may otherwise move parts of the agents to other devices.
        return self.placed(jax.lax.fori_loop(0, iterations, lambda _, carry: self._iterate(carry, hyper, data), carry))

    def _iterate(self, carry: Carry, hyper: Hyperparameters, data: Transition | None) -> Carry:
        if hyper.experience.streams:
            return self._act(self._transition(carry, hyper), hyper)
        num_steps = hyper.experience.num_steps
        if num_steps == 1:
            carry = self._step(carry, hyper)
        else:
            carry = jax.lax.fori_loop(0, num_steps, lambda _, carry: self._step(carry, hyper), carry)
        return self._act_anew(carry.replace(learners=self._learn(carry.learners, hyper, data)), hyper)

    def _act(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        learners = carry.learners
        if self.learner.perceives(learners):
            learners = self.learner.perceive(learners, carry.observation, carry.first, hyper)
        memory = self.learner.recall(carry.extras, carry.first, hyper)
        action, extras = self.learner.act(learners, carry.observation, hyper, memory)
        return carry.replace(learners=learners, action=action, extras=extras)

    def _act_anew(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        """Choose the next action by the newest policy, where rollouts need it. The observation was perceived before."""
        if not hyper.experience.on_policy:
            return carry
        memory = before(carry.extras)
        action, extras = self.learner.act(carry.learners, carry.observation, hyper, memory)
        return carry.replace(action=action, extras=extras)

    def _learn(
        self, learners: LearnerState, hyper: Hyperparameters, data: Transition | None, when: Array | bool = True
    ) -> LearnerState:
        storage = learners.storage  # only read in the branch: a storage that passes through it would be copied

        def update(learnt: LearnerState) -> LearnerState:
            return self.learner.update(learnt.replace(storage=storage), hyper, data).replace(storage=None)

        ready = self.learner.ready(learners.steps, hyper.experience) & when
        learnt = jax.lax.cond(ready, update, lambda learnt: learnt, learners.replace(storage=None))
        return learnt.replace(storage=storage)

    def _step(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        return self._act(self._transition(carry, hyper), hyper)

    def _transition(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        """Take the chosen action, and pass the resulting transition to the learners."""
        carry, step = self._simulate(carry, carry.action.reshape(-1, *carry.action.shape[2:]))
        step = per_learner(step, carry.action.shape[:2])
        ended = step.terminated | step.truncated
        totals = {"return": step.episode_return, "length": step.episode_length}
        totals |= signals.numbers(step.episode_signals, leading=2)
        episodes = {n: carry.episodes[n] + jnp.where(ended, total, 0).sum(axis=1) for n, total in totals.items()}
        episodes["count"] = carry.episodes["count"] + ended.sum(axis=1)
        happened = (carry.learners, carry.observation, carry.action, carry.extras, step)
        if hyper.experience.streams:
            learners = self.learner.learn_from_step(*happened, hyper.config, self._intact(carry.environment))
        else:
            learners = self.learner.observe(*happened, hyper.experience)
        return carry.replace(learners=learners, observation=step.observation, first=ended, episodes=episodes)

    def _simulate(self, carry: Carry, action: Array) -> tuple[Carry, Step]:
        """Step the environments with actions [P x E, ...]; return the new carry and the step."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(carry.keys, carry.learners.steps)
        step, environment = self.environment.step(keys, carry.environment, action)
        return carry.replace(environment=environment), step

    def _intact(self, environment: Any) -> Array | bool:
        """Whether the environments took the step, judged by their state after it."""
        del environment
        return True


class CompiledDriver:
    """Moves P learners through P x E environments inside the program; see `rljax.training.drivers.driver.Driver`."""

    without_environments = "none"
    save_failure: str | None = None

    def __init__(self, learner: Learner, environment: AutoReset, config: Any, data: Transition | None = None) -> None:
        """`config` is stacked over P; `data` [N, ...] is a data set for the same learners, where there is one."""
        self.spec = environment.spec
        hyper = learner.hyperparameters(config)
        split = isinstance(hyper.experience, Rollout)
        spread = Spread(learner.num_learners, hyper.experience.num_envs, split=split)
        self._use(Loop(learner, environment, spread), hyper, data)

    def _use(self, loop: Loop, hyper: Hyperparameters, data: Transition | None) -> None:
        self.loop, self.learner, self.spread = shared(loop, hyper), loop.learner, loop.spread
        self.hyper = self.spread.learners(hyper)
        self.data = data  # moved to the device by `start`, after the check that it fits

    def reconfigure(self, config: Any) -> None:
        """Continue with other settings, which are stacked over P like the first ones."""
        self.hyper = self.spread.learners(self.learner.hyperparameters(config))

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        """Start fresh learners and environments, one learner per seed. Learners continue `learnt` where given."""
        self.data = self.spread.everywhere(self.data)
        self.carry = self.loop.init(*self._keys(seeds), self.hyper, self.data, learnt)

    def _keys(self, seeds: Sequence[int]) -> tuple[Array, Array]:
        """One key per learner, one per environment."""
        number = self.hyper.experience.num_envs
        starts = [s for seed in seeds for s in environment_seeds(seed, TRAIN, number=number)]
        keys = jax.vmap(jax.random.key)
        return keys(np.asarray(seeds, np.uint32)), keys(np.asarray(starts, np.uint32))

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates."""
        self.carry = self.loop.advance(self.carry, np.int32(iterations), self.hyper, self.data)

    @property
    def learners(self) -> LearnerState:
        """The current learners."""
        return self.carry.learners

    def report(self) -> Report:
        """Return the means since the last report, and begin new ones."""
        learners = self.carry.learners
        result = report(learners.tally, learners.updates, self.carry.episodes)
        tally = empty_tally(tuple(learners.tally.total), self.learner.num_learners)
        tally, episodes = self.spread.learners((tally, no_episodes(self.learner)))
        self.carry = self.carry.replace(learners=learners.replace(tally=tally), episodes=episodes)
        return result

    @property
    def agent_state(self) -> Any:
        """The agents' State, [P, ...]."""
        return self.carry.learners.agent

    @agent_state.setter
    def agent_state(self, state: Any) -> None:
        learners = self.carry.learners.replace(agent=self.spread.learners(state))
        self.carry = self.carry.replace(learners=learners)

    def arrays(self) -> dict[str, Any]:
        """The agents; the rest of the learners and the environments."""
        return _split(self.carry)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`."""
        number = len(seeds)
        keys, environment_keys = key_shapes(number), key_shapes(number * self.hyper.experience.num_envs)
        return _split(jax.eval_shape(self.loop.init, keys, environment_keys, self.hyper, self.data, None))

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """None: the environments are part of `arrays`."""
        return None

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue exactly from a checkpoint."""
        del environments
        self.data = self.spread.everywhere(self.data)
        carry = arrays["training"]
        self.carry = self.loop.placed(carry.replace(learners=carry.learners.replace(agent=arrays["agent"])))

    def close(self) -> None:
        """Nothing to close."""


def no_episodes(learner: Learner) -> dict[str, Array]:
    """Sums [P] over episodes that ended, where none has ended yet."""
    names = ("return", "length", "count", *signals.names(learner.spec.signals))
    return {name: jnp.zeros(learner.num_learners) for name in names}


def _split(carry: Carry) -> dict[str, Any]:
    without = carry.learners.replace(agent=None)
    return {"agent": carry.learners.agent, "training": carry.replace(learners=without)}
