"""Environments on the host that a compiled loop calls.

The simulators step in a separate thread while the loop learns. On the CPU this is faster than the hosted driver. That
driver makes three calls per step, and each call finds the processor's caches full of data from learning. A stream
learns before it acts, and waits for the simulators.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec, Step, Transition
from rljax.distributed.devices import Spread
from rljax.envs import signals
from rljax.envs.host.hosted import Hosted
from rljax.training.drivers.callbacks import cached_with_callbacks, called_from_within
from rljax.training.drivers.compiled import Carry, CompiledDriver, Loop, no_episodes
from rljax.training.drivers.driver import (
    TRAIN,
    Learnt,
    continued,
    cut_episodes,
    environment_rows,
    environment_seeds,
    key_shapes,
    split,
)
from rljax.training.learner import Hyperparameters, Learner, LearnerState, per_learner
from rljax.training.programs import compiled

# Seconds between checks whether a chunk has ended: the first wait and the longest. Each wait is twice the one before.
POLL = 1e-3, 2e-2

_NUMBERS = itertools.count()  # of drivers


class Link(struct.PyTreeNode):
    """The `environment` of the carry: the driver whose simulators the program steps."""

    driver: Array  # [] int32, its number
    works: Array  # [] bool: True as long as its simulators have not failed


@dataclasses.dataclass(frozen=True)
class EmbeddedLoop(Loop):
    """A compiled loop that steps the simulators of a driver. Its programs serve several drivers, one after another."""

    spec: EnvSpec
    num_envs: int  # of all learners, P x E
    drivers: WeakValueDictionary[int, EmbeddedDriver] = dataclasses.field(
        default_factory=WeakValueDictionary, compare=False
    )

    @compiled(donate_argnums=0)
    def begin(self, carry: Carry, hyper: Hyperparameters) -> Carry:
        """The state with an action for its observation."""
        return self._act(carry, hyper)

    def _start(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        keys: Array,
        number: Array,
        observation: Any,
        hyper: Hyperparameters,
        data: Any,
        learnt: Learnt = None,
    ) -> Carry:
        learners = continued(self.learner.init(keys, hyper, data), learnt)
        return self._act(self.carry(learners, number, observation), hyper)

    def carry(self, learners: LearnerState, number: Array, observation: Any) -> Carry:
        """The loop's first state, without an action yet; `number` [] is the driver's, `observation` is [P, E, O...]."""
        return Carry(
            learners=learners,
            environment=Link(number, jnp.ones((), jnp.bool_)),
            keys=None,  # pyright: ignore[reportArgumentType]
            observation=observation,
            first=jnp.ones(jax.tree.leaves(observation)[0].shape[:2], jnp.bool_),
            action=None,
            extras=None,
            episodes=no_episodes(self.learner),
        )

    @compiled(donate_argnums=0)
    def advance(self, carry: Carry, iterations: Array, hyper: Hyperparameters, data: Transition | None) -> Carry:
        """The state after a number of iterations, or where the simulators have failed."""

        def going(state: tuple[Array, Carry]) -> Array:
            return (state[0] < iterations) & state[1].environment.works

        def one(state: tuple[Array, Carry]) -> tuple[Array, Carry]:
            return state[0] + 1, self._iterate(state[1], hyper, data)

        return jax.lax.while_loop(going, one, (jnp.zeros_like(iterations), carry))[1]

    def _iterate(self, carry: Carry, hyper: Hyperparameters, data: Transition | None) -> Carry:
        """As in `HostedDriver`: the simulators begin a step, the learners learn, and then the step is stored.

        Rollouts are the exception: the learners learn before they choose the action of that step.
        """
        if hyper.experience.streams:
            return super()._iterate(carry, hyper, data)
        num_steps = hyper.experience.num_steps
        if hyper.experience.on_policy:
            carry = self._act_anew(carry.replace(learners=self._learn(carry.learners, hyper, data)), hyper)
            return jax.lax.fori_loop(0, num_steps, lambda _, carry: self._step(carry, hyper), carry)
        # Learning depends on the first call, and the second call depends on learning. Without these dependencies XLA
        # could run them in any order.
        begin = called_from_within(self._begin_step, jax.ShapeDtypeStruct((), np.bool_))
        begun = begin(carry.environment.driver, _flat(carry.action))
        carry = self._step(carry.replace(learners=self._learn(carry.learners, hyper, data, begun)), hyper)
        if num_steps > 1:
            carry = jax.lax.fori_loop(1, num_steps, lambda _, carry: self._step(carry, hyper), carry)
        return carry

    def _simulate(self, carry: Carry, action: Array) -> tuple[Carry, Step]:
        step_within = called_from_within(self._end_step, self.results)
        packed, others = step_within(carry.environment.driver, action, carry.learners.updates)
        begin, middle = self.columns
        if self.spec.is_vector:
            observations = packed[:, :begin].reshape(-1, 2, *self.spec.observation_shape)
            others = (observations[:, 0], observations[:, 1])
        given, sums = jnp.split(packed[:, begin:middle], 2, axis=1)
        reward, terminated, truncated, episode_return, episode_length, going = packed[:, middle:].T
        step = Step(
            observation=others[0],
            next_observation=others[1],
            reward=reward,
            terminated=terminated > 0,
            truncated=truncated > 0,
            episode_return=episode_return,
            episode_length=episode_length.astype(jnp.int32),
            signals=signals.unpacked(given, self.spec.signals),
            episode_signals=signals.unpacked(sums, self.spec.signals),
        )
        going = carry.environment.works & (going > 0).all()
        # The old observation, action and extras depend on the simulators, too. Otherwise XLA could write one part of
        # the storage before it has read another, and would copy the whole storage.
        before = (carry.observation, carry.action, carry.extras)
        observation, action, extras = jax.tree.map(lambda x: jnp.where(going, x, jnp.zeros_like(x)), before)
        link = carry.environment.replace(works=going)
        return carry.replace(environment=link, observation=observation, action=action, extras=extras), step

    def _intact(self, environment: Link) -> Array:
        return environment.works

    @property
    def results(self) -> Any:
        """The shapes of a step's results: one array, and the two observations where they are no vectors.

        Vectors and signals are in the one array, before its last six columns, since each array costs time.
        """
        packed = jax.ShapeDtypeStruct((self.num_envs, self.columns[1] + 6), np.float32)
        return packed, () if self.spec.is_vector else (self.spec.shaped(self.num_envs),) * 2

    @property
    def columns(self) -> tuple[int, int]:
        """The first columns behind the vectors, and behind the signals and their sums."""
        begin = 2 * math.prod(self.spec.observation_shape) if self.spec.is_vector else 0
        return begin, begin + 2 * len(signals.names(self.spec.signals))

    def nothing(self) -> Any:
        """Results of zeros, as after a failure."""
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.results)

    def _begin_step(self, number: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Let the simulators of a driver step in their thread, while the loop goes on."""
        driver = self.drivers.get(int(number))
        if driver is not None:
            driver.begin_step(action)
        return np.ones((), np.bool_)

    def _end_step(self, number: np.ndarray, action: np.ndarray, updates: np.ndarray) -> Any:
        """What the step of a driver's simulators led to. Zeros, as after a failure, where the driver is gone."""
        del updates
        driver = self.drivers.get(int(number))
        return self.nothing() if driver is None else driver.end_step(action)


class EmbeddedDriver(CompiledDriver):
    """Moves P learners through P x E environments on the host; see `rljax.training.drivers.driver.Driver`."""

    loop: EmbeddedLoop
    without_environments = "lost"

    def __init__(self, learner: Learner, environments: Hosted, config: Any, data: Transition | None = None) -> None:
        """`environments` holds P x E environments in the order of the learners; `config` is stacked over P.

        `data` [N, ...] is a data set for the same learners, where there is one.
        """
        self.spec = environments.spec
        hyper = learner.hyperparameters(config)
        number = learner.num_learners * hyper.experience.num_envs
        # All learners are on one device, since the program waits for the host.
        self._use(EmbeddedLoop(learner, None, Spread(1), environments.spec, number), hyper, data)
        self.number = jnp.asarray(next(_NUMBERS), jnp.int32)
        self.loop.drivers[int(self.number)] = self
        self.hosted = environments
        self.hosted.tolerant = learner.num_learners > 1
        self.failure: BaseException | None = None
        self._tasks, self._results = SimpleQueue(), SimpleQueue()
        self._stepping = False
        threading.Thread(target=_perform, args=(self._tasks, self._results), name="simulators", daemon=True).start()
        self._end_thread = weakref.finalize(self, self._tasks.put, None)

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        """Start fresh learners and environments, one learner per seed. Learners continue `learnt` where given."""
        self.data = self.spread.everywhere(self.data)
        number = self.hyper.experience.num_envs
        starts = [s for seed in seeds for s in environment_seeds(seed, TRAIN, number=number)]
        observation = self._per_learner(self.hosted.reset(starts))
        self.carry = self.loop.init(self._keys(seeds)[0], self.number, observation, self.hyper, self.data, learnt)

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates.

        Raises the simulators' error. The program ends at the step in which it occurs.
        """
        self.failure = None
        with cached_with_callbacks():
            super().advance(iterations)
        pause, longest = POLL
        try:
            while not self.carry.learners.steps.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
                time.sleep(pause)  # a blocking call of JAX would not react to signals
                pause = min(2 * pause, longest)
        except BaseException as error:
            self.failure = error  # makes the program end with its next step
            self._results.put(self.loop.nothing())  # or at once, where the simulators do not return
            raise
        if self.failure is not None:
            raise self.failure

    def arrays(self) -> dict[str, Any]:
        """The agents; the rest of the learners, and the action that the environments take next."""
        return split(self.carry.learners, self.carry.action, self.carry.extras)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`."""
        rows = (self.learner.num_learners, self.hyper.experience.num_envs)
        observation = self.spec.shaped(*rows)
        carry = jax.eval_shape(
            self.loop.init, key_shapes(len(seeds)), self.number, observation, self.hyper, self.data, None
        )
        return split(carry.learners, carry.action, carry.extras)

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """The simulators' state, only that of `learners` where given; None where it cannot be saved."""
        return self.hosted.save(environment_rows(learners, self.hyper.experience.num_envs))

    @property
    def save_failure(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The reason why the simulators' state cannot be saved, or None."""
        return self.hosted.save_failure

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue exactly from a checkpoint; without `environments`, fresh episodes begin."""
        self.data = self.spread.everywhere(self.data)
        learners, action, extras = arrays["training"]
        seen = self.hosted.reset(None) if environments is None else self.hosted.restore(environments)
        learners, known = learners.replace(agent=arrays["agent"]), environments is not None
        if not known:
            learners = cut_episodes(learners, self.hyper.experience.num_envs)
        carry = self.loop.carry(learners, self.number, jax.tree.map(jnp.asarray, self._per_learner(seen)))
        self.carry = carry.replace(action=action, extras=extras) if known else self.loop.begin(carry, self.hyper)

    def close(self) -> None:
        """Close the simulators. After an interruption they may hang in a step, and are left as they are."""
        self._end_thread()
        self.hosted.close(at_once=isinstance(self.failure, KeyboardInterrupt))

    def begin_step(self, action: np.ndarray) -> None:
        """Let the simulators step in their thread, while the loop goes on."""
        self._stepping = True
        self._tasks.put(partial(self._step_simulators, action.copy()))

    def end_step(self, action: np.ndarray) -> Any:
        """Wait for the step that was begun, or take a step now where none was; see `_step_simulators`."""
        if not self._stepping:
            return self._step_simulators(action)
        self._stepping = False
        return self._results.get()

    def _step_simulators(self, action: np.ndarray) -> Any:
        """Take one step; see `EmbeddedLoop.results`. The last column is 1, and 0 from a failure on."""
        nothing = packed, others = self.loop.nothing()
        if self.failure is not None:
            return nothing
        try:
            step: Any = self.hosted.step(action)
        except BaseException as error:  # `advance` raises it after the program's end: an error must not interrupt it
            self.failure = error
            return nothing
        begin, _ = self.loop.columns
        if self.spec.is_vector:
            packed[:, : begin // 2] = step.observation
            packed[:, begin // 2 : begin] = step.next_observation
        else:
            others = (step.observation, step.next_observation)
        columns = [*signals.packed(step.signals), *signals.packed(step.episode_signals)]
        columns += [step.reward, step.terminated, step.truncated, step.episode_return, step.episode_length, 1.0]
        for column, values in enumerate(columns, begin):
            packed[:, column] = values
        return packed, others

    def _per_learner(self, rows: Any) -> Any:
        return per_learner(rows, (self.learner.num_learners, self.hyper.experience.num_envs))


def _perform(tasks: SimpleQueue[Callable[[], Any] | None], results: SimpleQueue[Any]) -> None:
    """Do `tasks` until one is None. An executor could do this, but needs three times as long to pass on a task."""
    while (task := tasks.get()) is not None:
        results.put(task())
        del task  # it holds a reference to the driver


def _flat(rows: Array) -> Array:
    """Reshape [P, E, ...] to [P x E, ...]."""
    return rows.reshape(-1, *rows.shape[2:])
