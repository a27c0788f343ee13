"""What the drivers share: the seeds of environments, and a chunk's report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import jax
import numpy as np

from rljax.agent import EnvSpec
from rljax.distributed.devices import Spread, local
from rljax.training.learner import LearnerState, Tally

TRAIN, EVALUATE = 0, 1


def environment_seeds(seed: int, purpose: Literal[0, 1], *path: int, number: int) -> list[int]:
    """`number` 32-bit seeds for one learner's environments.

    They depend on the learner's seed, the purpose and the path (such as the step of an evaluation) only, so
    that a learner's environments are the same alone and in a population.
    """
    return [int(x) for x in np.random.SeedSequence([seed, purpose, *path]).generate_state(number)]


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened since the last report, on the host; one value per learner."""

    metrics: dict[str, np.ndarray]  # [P] means; NaN where there was none
    first_bad: dict[str, np.ndarray]  # [P] the first update with a value that is not finite, -1 for none
    updates: int  # of each learner since the beginning


def report(tally: Tally, updates: Any, episodes: dict[str, Any]) -> Report:
    """Bring a tally and the episodes' sums to the host and average them."""
    host: Any = jax.device_get(local((tally, updates, episodes)))
    tally, updates, episodes = host
    with np.errstate(invalid="ignore", divide="ignore"):
        metrics = {name: np.asarray(tally.total[name] / tally.weight[name]) for name in tally.total}
        ended = np.asarray(episodes["count"], np.float64)
        metrics["episode/return"] = episodes["return"] / ended
        metrics["episode/length"] = episodes["length"] / ended
    return Report(metrics, {name: np.asarray(x) for name, x in tally.first_bad.items()}, int(updates))


def environment_rows(learners: Sequence[int] | None, each: int) -> list[int] | None:
    """The rows of some learners among what has `each` rows per learner, learner by learner; None for all."""
    return None if learners is None else [learner * each + row for learner in learners for row in range(each)]


def split(learners: LearnerState, action: Any, extras: Any) -> dict[str, Any]:
    """What a checkpoint of learners on the host's environments holds: the agents, and the rest."""
    return {"agent": learners.agent, "training": (learners.replace(agent=None), action, extras)}


def continued(fresh: LearnerState, learnt: LearnerState | None) -> LearnerState:
    """Fresh learners with the agents and the count of updates of `learnt`, the learners of the stage before."""
    return fresh if learnt is None else fresh.replace(agent=learnt.agent, updates=learnt.updates)


class Driver(Protocol):
    """Moves P learners through time. Holds its state; the state is what a checkpoint saves."""

    spec: EnvSpec
    spread: Spread  # of the learners over devices

    def reconfigure(self, config: Any) -> None:
        """Go on with other settings, stacked over P as those at the beginning."""

    @property
    def learners(self) -> LearnerState:
        """The learners as they are now."""
        ...

    def start(self, seeds: Sequence[int], learnt: LearnerState | None = None) -> None:
        """Fresh learners and environments, one learner per seed; the learners go on from `learnt` where given."""

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates.

        An action is chosen before the update that follows it, and learning never needs the step that this action
        leads to: the two may run side by side.
        """

    def report(self) -> Report:
        """The means since the last report, which it forgets."""
        ...

    @property
    def agent_state(self) -> Any:
        """The agents' State, [P, ...]. The next `advance` consumes it: copy what is to be kept."""
        ...

    @agent_state.setter
    def agent_state(self, state: Any) -> None: ...

    def arrays(self) -> dict[str, Any]:
        """All of the state that is arrays: "agent", the agents' State, and "training", the rest. After `report`."""
        ...

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`, at no cost."""
        ...

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """The rest: host environments' state, of some `learners` alone where given.

        None where there is none or it cannot be saved.
        """
        ...

    @property
    def without_environments(self) -> str:
        """What None from `environments` means: "none" to save, or "lost"."""
        ...

    @property
    def save_failure(self) -> str | None:
        """Why they are lost, where they are."""
        ...

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue from what `arrays` and `environments` returned."""

    def close(self) -> None:
        """Let go of the environments."""
