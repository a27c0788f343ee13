"""Environments on the host that a compiled loop calls.

The simulators step in a thread while the loop learns; a stream waits for them.
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
from rljax.learning.drivers.callbacks import cached_with_callbacks, called_from_within
from rljax.learning.drivers.driver import (
    Learnt,
    cut_episodes,
    key_shapes,
    keys_of,
    split,
    training_seeds,
)
from rljax.learning.drivers.iteration import (
    Carry,
    CompiledLoop,
    Learn,
    LoopDriver,
    Move,
    Simulators,
)
from rljax.learning.learner import Learner, flat, per_learner

POLL = 1e-3, 2e-2  # first and longest seconds between checks of a chunk's end; waits double

_NUMBERS = itertools.count()  # of drivers


class Link(struct.PyTreeNode):
    """The `environment` of the carry: whose simulators the program steps."""

    driver: Array  # [] int32, its number
    works: Array  # [] bool: its simulators have not failed


@dataclasses.dataclass(frozen=True)
class HostSimulators(Simulators):
    """The simulators of a driver, called from within the program.

    `reset` takes a driver's number [] and its simulators' first observations [P x E, O...].
    """

    spec: EnvSpec
    num_envs: int  # of all learners, P x E
    drivers: WeakValueDictionary[int, EmbeddedDriver] = dataclasses.field(
        default_factory=WeakValueDictionary, compare=False
    )

    def reset(self, start: tuple[Array, Any]) -> tuple[Any, Link]:
        number, observation = start
        return observation, link(number)

    def works(self, environment: Link) -> Array:
        return environment.works

    def repeat(self, iterations: Array, one: Move, carry: Carry) -> Carry:
        def going(state: tuple[Array, Carry]) -> Array:
            return (state[0] < iterations) & state[1].environment.works

        def advance(state: tuple[Array, Carry]) -> tuple[Array, Carry]:
            return state[0] + 1, one(state[1])

        return jax.lax.while_loop(going, advance, (jnp.zeros_like(iterations), carry))[1]

    def iterate(self, carry: Carry, num_steps: int, step: Move, learn: Learn) -> Carry:
        # As in `HostedDriver`: the simulators begin a step, the learners learn, and then the step
        # is stored. Learning depends on the first call, and the second call on learning: otherwise
        # XLA could run them in any order.
        begin = called_from_within(self._begin_step, jax.ShapeDtypeStruct((), np.bool_))
        begun = begin(carry.environment.driver, flat(carry.action))
        carry = step(learn(carry, begun))
        if num_steps > 1:
            carry = jax.lax.fori_loop(1, num_steps, lambda _, carry: step(carry), carry)
        return carry

    def iterate_on_policy(self, carry: Carry, num_steps: int, step: Move, learn: Move) -> Carry:
        return jax.lax.fori_loop(0, num_steps, lambda _, carry: step(carry), learn(carry))

    def step(self, carry: Carry, action: Array) -> tuple[Carry, Step]:
        step_within = called_from_within(self._end_step, self.results)
        packed, others = step_within(carry.environment.driver, action, carry.learners.updates)
        begin, middle = self.columns
        if self.spec.is_vector:
            observations = packed[:, :begin].reshape(-1, 2, *self.spec.observation_shape)
            others = (observations[:, 0], observations[:, 1])
        of_step, sums = jnp.split(packed[:, begin:middle], 2, axis=1)
        reward, terminated, truncated, episode_return, episode_length, going = packed[:, middle:].T
        step = Step(
            observation=others[0],
            next_observation=others[1],
            reward=reward,
            terminated=terminated > 0,
            truncated=truncated > 0,
            episode_return=episode_return,
            episode_length=episode_length.astype(jnp.int32),
            signals=signals.unpacked(of_step, self.spec.signals),
            episode_signals=signals.unpacked(sums, self.spec.signals),
        )
        going = carry.environment.works & (going > 0).all()
        # The old observation, action and extras depend on the simulators, too. Otherwise XLA could
        # write one part of the storage before it has read another, and would copy all of it.
        before = (carry.observation, carry.action, carry.extras)
        observation, action, extras = jax.tree.map(
            lambda x: jnp.where(going, x, jnp.zeros_like(x)), before
        )
        environment = carry.environment.replace(works=going)
        return carry.replace(
            environment=environment, observation=observation, action=action, extras=extras
        ), step

    @property
    def results(self) -> Any:
        """The shapes of a step's results: one array, and two observations that are no vectors.

        The last six columns follow vectors and signals.
        """
        packed = jax.ShapeDtypeStruct((self.num_envs, self.columns[1] + 6), np.float32)
        return packed, () if self.spec.is_vector else (self.spec.shaped(self.num_envs),) * 2

    @property
    def columns(self) -> tuple[int, int]:
        """The first columns behind vectors, and behind signals and their sums."""
        begin = 2 * math.prod(self.spec.observation_shape) if self.spec.is_vector else 0
        return begin, begin + 2 * len(signals.names(self.spec.signals))

    def nothing(self) -> Any:
        """Results of zeros, after a failure or without a driver."""
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.results)

    def _begin_step(self, number: np.ndarray, action: np.ndarray) -> np.ndarray:
        if (driver := self.drivers.get(int(number))) is not None:
            driver.begin_step(action)
        return np.ones((), np.bool_)

    def _end_step(self, number: np.ndarray, action: np.ndarray, updates: np.ndarray) -> Any:
        del updates
        driver = self.drivers.get(int(number))
        return self.nothing() if driver is None else driver.end_step(action)


def link(number: Array) -> Link:
    """The link to the driver with this number []."""
    return Link(number, jnp.ones((), jnp.bool_))


class EmbeddedDriver(LoopDriver):
    """P learners in P x E environments on the host, which the program calls."""

    hosted: Hosted

    def __init__(
        self, learner: Learner, environments: Hosted, config: Any, data: Transition | None = None
    ) -> None:
        self.spec = environments.spec
        hyper = learner.hyperparameters(config)
        simulators = HostSimulators(
            environments.spec, learner.num_learners * hyper.experience.num_envs
        )
        # The program waits for the host.
        self.use(CompiledLoop(learner, simulators, Spread(1)), hyper, data)
        self.simulators: HostSimulators = self.loop.simulators  # perhaps of an equal loop
        self.number = jnp.asarray(next(_NUMBERS), jnp.int32)
        self.simulators.drivers[int(self.number)] = self
        self.hosted = environments
        self.hosted.tolerant = learner.num_learners > 1
        self.failure: BaseException | None = None
        self._tasks, self._results = SimpleQueue(), SimpleQueue()
        self._stepping = False
        threading.Thread(
            target=_perform, args=(self._tasks, self._results), name="simulators", daemon=True
        ).start()
        self._end_thread = weakref.finalize(self, self._tasks.put, None)

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        self.data = self.spread.everywhere(self.data)
        observation = self.hosted.reset(training_seeds(seeds, self.hyper.experience.num_envs))
        self.carry = self.loop.init(
            keys_of(seeds), (self.number, observation), self.hyper, self.data, learnt
        )

    def advance(self, iterations: int) -> None:
        """Run iterations; a simulators' error ends the program at that step."""
        self.failure = None
        with cached_with_callbacks():
            self.carry = self.loop.advance(self.carry, np.int32(iterations), self.hyper, self.data)
        pause, longest = POLL
        try:
            while not self.carry.learners.steps.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
                time.sleep(pause)  # a blocking call of JAX would not react to signals
                pause = min(2 * pause, longest)
        except BaseException as error:
            self.failure = error
            # Or at once, where the simulators do not return.
            self._results.put(self.simulators.nothing())
            raise
        if self.failure is not None:
            raise self.failure

    def arrays(self) -> dict[str, Any]:
        return split(self.carry.learners, self.carry.action, self.carry.extras)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        start = (self.number, self.spec.shaped(self.simulators.num_envs))
        carry = jax.eval_shape(
            self.loop.init, key_shapes(len(seeds)), start, self.hyper, self.data, None
        )
        return split(carry.learners, carry.action, carry.extras)

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        self.data = self.spread.everywhere(self.data)
        learners, action, extras = arrays["training"]
        learners = learners.replace(agent=arrays["agent"])
        num_envs = self.hyper.experience.num_envs
        if environments is None:
            learners, rows = cut_episodes(learners, num_envs), self.hosted.reset(None)
        else:
            rows = self.hosted.restore(environments)
        rows = per_learner(rows, (self.learner.num_learners, num_envs))
        carry = self.loop.without_action(
            learners, link(self.number), jax.tree.map(jnp.asarray, rows)
        )
        if environments is None:
            self.carry = self.loop.begin(carry, self.hyper)
        else:
            self.carry = carry.replace(action=action, extras=extras)

    def close(self) -> None:
        """Leave simulators that hang after an interruption."""
        self._end_thread()
        self.hosted.close(at_once=isinstance(self.failure, KeyboardInterrupt))

    def begin_step(self, action: np.ndarray) -> None:
        """Let the simulators step in their thread."""
        self._stepping = True
        self._tasks.put(partial(self._step_simulators, action.copy()))

    def end_step(self, action: np.ndarray) -> Any:
        """The results of the begun or a new step."""
        if not self._stepping:
            return self._step_simulators(action)
        self._stepping = False
        return self._results.get()

    def _step_simulators(self, action: np.ndarray) -> Any:
        """The `HostSimulators.results` of a step; after failures, the last column is 0."""
        nothing = packed, others = self.simulators.nothing()
        if self.failure is not None:
            return nothing
        try:
            step: Any = self.hosted.step(action)
        except BaseException as error:
            # `advance` raises it after the program's end
            self.failure = error
            return nothing
        begin, _ = self.simulators.columns
        if self.spec.is_vector:
            packed[:, : begin // 2] = step.observation
            packed[:, begin // 2 : begin] = step.next_observation
        else:
            others = (step.observation, step.next_observation)
        columns = [*signals.packed(step.signals), *signals.packed(step.episode_signals)]
        columns += [step.reward, step.terminated, step.truncated]
        columns += [step.episode_return, step.episode_length, 1.0]
        for column, values in enumerate(columns, begin):
            packed[:, column] = values
        return packed, others


def _perform(tasks: SimpleQueue[Callable[[], Any] | None], results: SimpleQueue[Any]) -> None:
    while (task := tasks.get()) is not None:
        results.put(task())
        del task
