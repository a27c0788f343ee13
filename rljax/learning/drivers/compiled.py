"""Environments that the compiled loop steps in its program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, Step, Transition
from rljax.distributed.devices import Spread
from rljax.envs.autoreset import AutoReset
from rljax.learning.drivers.driver import TRAIN, Learnt, environment_keys, key_shapes, keys_of
from rljax.learning.drivers.iteration import (
    Carry,
    CompiledLoop,
    Learn,
    LoopDriver,
    Move,
    Simulators,
)
from rljax.learning.learner import Learner


class SimulatorState(struct.PyTreeNode):
    """The environments of all learners."""

    state: Any  # AutoReset's state, [P x E, ...]
    keys: Array  # [P x E], one per environment, never advanced


@dataclasses.dataclass(frozen=True)
class ProgramSimulators(Simulators):
    """They start from one key each [P x E]."""

    environment: Any  # an AutoReset

    def reset(self, start: Array) -> tuple[Any, SimulatorState]:
        keys_reset, keys_step = jnp.moveaxis(jax.vmap(jax.random.split)(start), 1, 0)
        observation, state = self.environment.reset(keys_reset)
        return observation, SimulatorState(state, keys_step)

    def step(self, carry: Carry, action: Array) -> tuple[Carry, Step]:
        simulators: SimulatorState = carry.environment
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(
            simulators.keys, carry.learners.steps
        )
        step, state = self.environment.step(keys, simulators.state, action)
        return carry.replace(environment=simulators.replace(state=state)), step

    def works(self, environment: SimulatorState) -> bool:
        del environment
        return True  # they cannot fail

    def repeat(self, iterations: Array, one: Move, carry: Carry) -> Carry:
        return jax.lax.fori_loop(0, iterations, lambda _, carry: one(carry), carry)

    def iterate(self, carry: Carry, num_steps: int, step: Move, learn: Learn) -> Carry:
        return learn(_repeat(step, num_steps, carry), True)

    def iterate_on_policy(self, carry: Carry, num_steps: int, step: Move, learn: Move) -> Carry:
        return learn(_repeat(step, num_steps, carry))


def _repeat(step: Move, number: int, carry: Carry) -> Carry:
    if number == 1:
        return step(carry)
    return jax.lax.fori_loop(0, number, lambda _, carry: step(carry), carry)


class CompiledDriver(LoopDriver):
    """Moves P learners through P x E environments inside the program."""

    def __init__(
        self, learner: Learner, environment: AutoReset, config: Any, data: Transition | None = None
    ) -> None:
        self.spec = environment.spec
        hyper = learner.hyperparameters(config)
        spread = hyper.experience.spread(Spread, learner.num_learners)
        self.environment = environment
        self.use(CompiledLoop(learner, ProgramSimulators(environment), spread), hyper, data)

    def change_environment(self, values: Mapping[str, Any]) -> None:
        self.environment = self.environment.with_params(values)
        simulators = ProgramSimulators(self.environment)
        self.use(CompiledLoop(self.learner, simulators, self.spread), self.hyper, self.data)

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        self.data = self.spread.everywhere(self.data)
        keys = keys_of(seeds)
        starts = environment_keys(keys, TRAIN, number=self.hyper.experience.num_envs)
        self.carry = self.loop.init(keys, starts, self.hyper, self.data, learnt)

    def advance(self, iterations: int) -> None:
        self.carry = self.loop.advance(self.carry, np.int32(iterations), self.hyper, self.data)

    def arrays(self) -> dict[str, Any]:
        return _split(self.carry)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        each = self.hyper.experience.num_envs
        keys, starts = key_shapes(len(seeds)), key_shapes(len(seeds) * each)
        return _split(jax.eval_shape(self.loop.init, keys, starts, self.hyper, self.data, None))

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        del environments  # they are a part of `arrays`
        self.data = self.spread.everywhere(self.data)
        carry: Carry = arrays["training"]
        carry = carry.replace(learners=carry.learners.replace(agent=arrays["agent"]))
        self.carry = self.loop.placed(carry, self.hyper)

    def close(self) -> None:
        pass


def _split(carry: Carry) -> dict[str, Any]:
    without = carry.learners.replace(agent=None)
    return {"agent": carry.learners.agent, "training": carry.replace(learners=without)}
