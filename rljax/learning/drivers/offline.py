"""Learning from a data set alone: drawing and learning are one compiled loop.

The host sends the batches of several iterations, a group, at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers import Dataset
from rljax.distributed.devices import Spread
from rljax.learning.drivers.driver import Driver, Learnt, continued, key_shapes, keys_of
from rljax.learning.learner import Hyperparameters, Learner, LearnerState
from rljax.learning.programs import compiled, shared
from rljax.learning.tally import counted

GROUP = 64  # most iterations whose batches are sent together
GROUP_BYTES = 1 << 28  # of a group's batches: pictures are large


@dataclasses.dataclass(frozen=True)
class OfflineLoop:
    """Pure functions on learners and data, shared by drivers with equal loops."""

    learner: Learner
    spread: Spread  # of the learners over devices
    group: int  # iterations sent together

    @compiled()
    def init(self, keys: Array, data: Transition, hyper: Hyperparameters) -> LearnerState:
        """Fresh learners."""
        state = self.learner.init(keys, hyper, data)
        return self.learner.prepare(state, data, hyper)

    @compiled(donate_argnums=0)
    def advance(
        self, learnt: LearnerState, data: Transition, number: Array, hyper: Hyperparameters
    ) -> LearnerState:
        """The learners after a number of iterations."""
        experience: Any = hyper.experience

        def one(_: Any, learnt: LearnerState) -> LearnerState:
            storage, pending = experience.settle(learnt.storage, learnt.pending)
            return self.learner.update(
                learnt.replace(storage=storage, pending=pending), hyper, data
            )

        # A traced bound: chunks of any length use one program.
        return jax.lax.fori_loop(0, number, one, learnt)

    @compiled(static_argnums=0)
    def draw(self, number: int, key_update: Array, updates: Array, hyper: Hyperparameters) -> Any:
        """The next iterations' draws of `number` rows, leaves [group, P, U, B]."""
        experience: Any = hyper.experience

        def draw(iteration: Array) -> Any:
            keys = self.learner.batch_keys(
                key_update, counted(updates, iteration * experience.num_updates)
            )
            return experience.random(keys, number)

        return jax.vmap(draw)(jnp.arange(self.group))

    @compiled(donate_argnums=0)
    def learn(
        self, learnt: LearnerState, batches: Transition, number: Array, hyper: Hyperparameters
    ) -> LearnerState:
        """The learners after the first `number` of the batches [group, P, U, B, ...]."""

        def one(iteration: Array, learnt: LearnerState) -> LearnerState:
            batch = jax.tree.map(lambda x: x[iteration], batches)
            return self.learner.learn(learnt, batch, hyper)

        return jax.lax.fori_loop(0, number, one, learnt)


class OfflineDriver(Driver):
    """Moves P learners through updates, its steps, on one data set."""

    def __init__(
        self, learner: Learner, data: Transition, config: Any, on_host: bool = False
    ) -> None:
        """With `on_host`, `data` [N, ...] stay NumPy arrays in the host's memory."""
        self.spec = learner.spec
        self.learner, self.on_host, self.data = learner, on_host, data
        self.spread = Spread(learner.num_learners)
        self.reconfigure(config)
        self.forget_episodes()
        self.loop = shared(OfflineLoop(learner, self.spread, self._group()), self.hyper)

    @property
    def experience(self) -> Dataset:
        """The agent's declaration of what it learns from."""
        return self.hyper.experience  # type: ignore[return-value]

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        self._place()
        host = jax.devices("cpu")[0] if self.on_host else None
        with jax.default_device(host):
            fresh = continued(self.loop.init(keys_of(seeds), self.data, self.hyper), learnt)
        placed = jax.device_put(fresh, jax.devices()[0]) if self.on_host else fresh
        self.learnt: LearnerState = self.spread.learners(placed)

    def advance(self, iterations: int) -> None:
        if not self.on_host:
            self.learnt = self.loop.advance(
                self.learnt, self.data, np.int32(iterations), self.hyper
            )
            return
        updates, number = int(self.learnt.updates), self.data.reward.shape[0]
        group = self.loop.group
        for done in range(0, iterations, group):
            first = np.int32(counted(updates, done * self.experience.num_updates))
            drawn = jax.tree.map(
                np.asarray, self.loop.draw(number, self.learnt.key_update, first, self.hyper)
            )
            batches = self.experience.take(self.data, drawn)
            self.learnt = self.loop.learn(
                self.learnt, batches, np.int32(min(group, iterations - done)), self.hyper
            )

    @property
    def learners(self) -> LearnerState:
        return self.learnt

    def forget_episodes(self) -> None:
        self.episodes = dict.fromkeys(
            ("return", "length", "count"), np.zeros(self.learner.num_learners)
        )

    def arrays(self) -> dict[str, Any]:
        return _split(self.learnt)

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        return _split(jax.eval_shape(self.loop.init, key_shapes(len(seeds)), self.data, self.hyper))

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        del environments
        self._place()
        self.learnt = self.spread.learners(arrays["training"].replace(agent=arrays["agent"]))

    def close(self) -> None:
        self.data = None

    def _group(self) -> int:
        """Iterations in `GROUP_BYTES` of batches, up to `GROUP`."""
        row = self.experience.row_bytes(self.data)
        rows = self.experience.num_updates * self.experience.batch_size
        size = row * self.learner.num_learners * rows
        return max(1, min(GROUP, GROUP_BYTES // max(1, size)))

    def _place(self) -> None:
        whole = partial(jax.tree.map, np.asarray) if self.on_host else self.spread.everywhere
        self.data = whole(self.data)


def _split(learnt: LearnerState) -> dict[str, Any]:
    return {"agent": learnt.agent, "training": learnt.replace(agent=None)}
