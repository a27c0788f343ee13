"""Environments inside the program: the loop of `rljax.training.drivers.iteration` steps them
itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Step, Transition
from rljax.distributed.devices import Spread
from rljax.envs.autoreset import AutoReset
from rljax.training.drivers.driver import Learnt, key_shapes, keys_of, training_seeds
from rljax.training.drivers.iteration import Carry, CompiledLoop, LoopDriver
from rljax.training.learner import Learner


class SimulatorState(struct.PyTreeNode):
    """The environments of all learners."""

    state: Any  # AutoReset's state, [P x E, ...]
    keys: Array  # [P x E], one per environment, never advanced


@dataclasses.dataclass(frozen=True)
class ProgramSimulators:
    """Environments inside the program: `rljax.training.drivers.iteration.Simulators`."""

    environment: Any  # an AutoReset

    def reset(self, start: Array) -> tuple[Any, SimulatorState]:
        """The first observations [P x E, O...] and states,
        from one key for each environment [P x E].
        """
        keys_reset, keys_step = jnp.moveaxis(jax.vmap(jax.random.split)(start), 1, 0)
        observation, state = self.environment.reset(keys_reset)
        return observation, SimulatorState(state, keys_step)

    def step(self, carry: Carry, action: Array) -> tuple[Carry, Step]:
        """Step the environments with actions [P x E, ...]."""
        simulators: SimulatorState = carry.environment
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(
            simulators.keys, carry.learners.steps
        )
        step, state = self.environment.step(keys, simulators.state, action)
        return carry.replace(environment=simulators.replace(state=state)), step

    def works(self, environment: SimulatorState) -> bool:
        """True: they cannot fail."""
        del environment
        return True

    def repeat(self, iterations: Array, one: Callable[[Carry], Carry], carry: Carry) -> Carry:
        """The carry after a number of iterations."""
        return jax.lax.fori_loop(0, iterations, lambda _, carry: one(carry), carry)

    def iterate(
        self,
        carry: Carry,
        num_steps: int,
        step: Callable[[Carry], Carry],
        learn: Callable[..., Carry],
    ) -> Carry:
        """The steps, then the updates."""
        return learn(_repeat(step, num_steps, carry), True)

    def iterate_on_policy(
        self,
        carry: Carry,
        num_steps: int,
        step: Callable[[Carry], Carry],
        learn: Callable[[Carry], Carry],
    ) -> Carry:
        """The steps, then the updates."""
        return learn(_repeat(step, num_steps, carry))


def _repeat(step: Callable[[Carry], Carry], number: int, carry: Carry) -> Carry:
    return (
        step(carry)
        if number == 1
        else jax.lax.fori_loop(0, number, lambda _, carry: step(carry), carry)
    )


class CompiledDriver(LoopDriver):
    """Moves P learners through P x E environments inside the program;
    see `rljax.training.drivers.driver.Driver`.
    """

    without_environments = "none"
    save_failure: str | None = None

    def __init__(
        self, learner: Learner, environment: AutoReset, config: Any, data: Transition | None = None
    ) -> None:
        """`config` is stacked over P; `data` [N, ...] is a data set for the same learners,
        where there is one.
        """
        self.spec = environment.spec
        hyper = learner.hyperparameters(config)
        spread = hyper.experience.spread(Spread, learner.num_learners)
        self.use(CompiledLoop(learner, ProgramSimulators(environment), spread), hyper, data)

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        """Start fresh learners and environments, one learner per seed.

        Learners continue `learnt` where given.
        """
        self.data = self.spread.everywhere(self.data)
        environment_keys = keys_of(training_seeds(seeds, self.hyper.experience.num_envs))
        self.carry = self.loop.init(keys_of(seeds), environment_keys, self.hyper, self.data, learnt)

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates."""
        self.run(iterations)

    def arrays(self) -> dict[str, Any]:
        """The agents; the rest of the learners and the environments."""
        return _split(self.carry)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`."""
        number = len(seeds)
        keys = key_shapes(number)
        environment_keys = key_shapes(number * self.hyper.experience.num_envs)
        return _split(
            jax.eval_shape(self.loop.init, keys, environment_keys, self.hyper, self.data, None)
        )

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """None: the environments are part of `arrays`."""
        return None

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue exactly from a checkpoint."""
        del environments
        self.data = self.spread.everywhere(self.data)
        carry: Carry = arrays["training"]
        carry = carry.replace(learners=carry.learners.replace(agent=arrays["agent"]))
        self.carry = self.loop.placed(carry, self.hyper)

    def close(self) -> None:
        """Nothing to close."""


def _split(carry: Carry) -> dict[str, Any]:
    without = carry.learners.replace(agent=None)
    return {"agent": carry.learners.agent, "training": carry.replace(learners=without)}
