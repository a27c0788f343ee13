"""What drivers share."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from rljax.agent import Array, EnvSpec, Step
from rljax.distributed.devices import Spread, local
from rljax.envs import signals
from rljax.envs.host.hosted import Hosted
from rljax.learning import agent_state
from rljax.learning.learner import Hyperparameters, Learner, LearnerState
from rljax.learning.tally import Tally, empty_tally
from rljax.networks import normalise
from rljax.networks.optimisation import traces

TRAIN, EVALUATE = 0, 1
OF_ENVIRONMENTS = 1 << 20  # beyond the numbers by which learners split the same keys

# Fresh learners go on from the previous stage's, or from parts of another run's by name.
Learnt: TypeAlias = LearnerState | Mapping[str, Any] | None


def environment_seeds(seed: int, purpose: Literal[0, 1], *path: int, number: int) -> list[int]:
    """`number` 32-bit seeds for a learner's environments on the host, alone or in a population.

    `path` may be an evaluation's step.
    """
    return [int(x) for x in np.random.SeedSequence([seed, purpose, *path]).generate_state(number)]


def training_seeds(seeds: Sequence[int], number: int) -> list[int]:
    """The seeds of training's environments on the host, `number` for each learner's seed."""
    return [s for seed in seeds for s in environment_seeds(seed, TRAIN, number=number)]


@functools.partial(jax.jit, static_argnames=("purpose", "number"))
def environment_keys(keys: Array, purpose: Literal[0, 1], *path: Any, number: int) -> Array:
    """`number` keys for each learner's environments inside the program, from the learners' keys
    [P], as [P x number]. `path` may be an evaluation's step.
    """

    def of_learner(key: Array) -> Array:
        for part in (OF_ENVIRONMENTS + purpose, *path):
            key = jax.random.fold_in(key, part)
        return jax.random.split(key, number)

    return jax.vmap(of_learner)(keys).reshape(-1)


def keys_of(seeds: Any) -> Array:
    """One typed key for each of N seeds, a sequence or an array."""
    return jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))


def key_shapes(number: int) -> Any:
    """The shape and dtype of `number` typed keys."""
    return jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((number,), np.uint32))


@dataclasses.dataclass(frozen=True)
class ChunkReport:
    """Means and counts since the last report, on the host, per learner."""

    metrics: dict[str, np.ndarray]  # [P] means; NaN where there was no value
    # [P] the first update that is not finite; -1 for none
    first_bad: dict[str, np.ndarray]
    updates: int  # of each learner so far, see `rljax.learning.tally.counted`


def report(tally: Tally, updates: Any, episodes: dict[str, Any]) -> ChunkReport:
    """A tally and the episodes' sums, averaged on the host."""
    host: Any = jax.device_get(local((tally, updates, episodes)))
    tally, updates, episodes = host
    with np.errstate(invalid="ignore", divide="ignore"):
        metrics = {name: np.asarray(x) for name, x in means(tally, episodes).items()}
    return ChunkReport(
        metrics, {name: np.asarray(x) for name, x in tally.first_bad.items()}, int(updates)
    )


def means(tally: Tally, episodes: dict[str, Any]) -> dict[str, Any]:
    """The mean metrics [P] of a tally, and of the episodes' sums; NaN where there was no value."""
    metrics = {name: total / tally.weight[name] for name, total in tally.total.items()}
    others = sorted(set(episodes) - {"return", "length", "count"})
    sums = {f"episode/{name}": episodes[name] for name in ("return", "length", *others)}
    return metrics | {name: total / episodes["count"] for name, total in sums.items()}


def no_episodes(spec: EnvSpec, num_learners: int, kind: Any) -> dict[str, Any]:
    """Sums [P] over no episodes; arrays of NumPy or JAX by `kind`."""
    names = ("return", "length", "count", *signals.names(spec.signals))
    return {name: kind.zeros(num_learners) for name in names}


def episode_sums(step: Step) -> dict[str, Any]:
    """The sums [P, E] along running episodes, by names in reports."""
    sums = {"return": step.episode_return, "length": step.episode_length}
    return sums | signals.numbers(step.episode_signals, leading=2)


def environment_rows(learners: Sequence[int] | None, each: int) -> list[int] | None:
    """The rows of learners, `each` consecutive ones; None for all learners."""
    if learners is None:
        return None
    return [learner * each + row for learner in learners for row in range(each)]


def split(learners: LearnerState, action: Any, extras: Any) -> dict[str, Any]:
    """A checkpoint's arrays for environments on the host; see `Driver.arrays`."""
    return {"agent": learners.agent, "training": (learners.replace(agent=None), action, extras)}


def continued(fresh: LearnerState, learnt: Learnt) -> LearnerState:
    """Fresh learners that go on from `learnt`."""
    if isinstance(learnt, LearnerState):
        return fresh.replace(agent=learnt.agent, updates=learnt.updates)
    return fresh.replace(agent=agent_state.with_parts(fresh.agent, learnt)) if learnt else fresh


def cut_episodes(learners: LearnerState, num_envs: int) -> LearnerState:
    """Learners with each environment's newest transition marked as truncated.

    Sums along episodes, such as traces, begin anew.
    """
    storage = None if learners.storage is None else learners.storage.cut_episodes(num_envs)
    return learners.replace(
        storage=storage, agent=normalise.restart(traces.restart(learners.agent))
    )


class Driver(ABC):
    """Moves P learners through time."""

    spec: EnvSpec
    learner: Learner
    spread: Spread  # over devices
    hyper: Hyperparameters  # of the learners, and their experience
    # A data set [N, ...] for all learners, or None. `start` moves it to the device, after the check
    # that it fits.
    data: Any
    hosted: Hosted | None = None  # P x E environments, by learner
    learnt: LearnerState  # a driver may hold the storage apart
    episodes: dict[str, Any]  # [P] sums over episodes ended since the last report

    def reconfigure(self, config: Any) -> None:
        """Continue with other settings, stacked over P."""
        self.hyper = self.spread.learners(self.learner.hyperparameters(config))

    @abstractmethod
    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        """Start environments and learners, fresh or from `learnt`."""

    @abstractmethod
    def advance(self, iterations: int) -> None:
        """Run iterations of steps and, once warm, updates."""

    @property
    @abstractmethod
    def learners(self) -> LearnerState:
        """The current learners, with their storage."""

    def report(self) -> ChunkReport:
        """Return the means since the last report, and begin new ones."""
        result = report(self.learnt.tally, self.learnt.updates, self.episodes)
        tally = empty_tally(tuple(self.learnt.tally.total), self.learner.num_learners)
        self.learnt = self.learnt.replace(tally=self.spread.learners(tally))
        self.forget_episodes()
        return result

    @abstractmethod
    def forget_episodes(self) -> None:
        """Set the sums of `episodes` to 0."""

    @property
    def agent_state(self) -> Any:
        """The agents' State, [P, ...]. The next `advance` donates it: copy what you keep."""
        return self.learnt.agent

    @agent_state.setter
    def agent_state(self, state: Any) -> None:
        self.learnt = self.learnt.replace(agent=self.spread.learners(state))

    @property
    def policies(self) -> Any:
        """`agent_state` beside other runs' policies, if any: what acts."""
        return self.agent_state.replace(base=self.hyper.base)

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """Arrays: "agent", the agents' State, and "training", the rest; after `report`."""

    @abstractmethod
    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`, at no cost."""

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """The states of environments on the host, of all or some `learners`.

        None where there are none, or where their state cannot be saved.
        """
        rows = environment_rows(learners, self.hyper.experience.num_envs)
        return None if self.hosted is None else self.hosted.save(rows)

    @property
    def without_environments(self) -> str:
        """What None from `environments` means: "none" (nothing to save) or "lost"."""
        return "none" if self.hosted is None else "lost"

    @property
    def save_failure(self) -> str | None:
        """Why the environments' state is lost, or None."""
        return None if self.hosted is None else self.hosted.save_failure

    def change_environment(self, values: Mapping[str, Any]) -> None:
        """Change parameters of the environments in which learners learn.

        Raises `ValueError` for those that they lack.
        """
        if self.hosted is not None:
            self.hosted.change(values)

    @abstractmethod
    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue exactly from `arrays` and `environments`; without the latter, fresh episodes
        begin.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the environments and the data."""
