"""Shared parts of the drivers: their protocol, the seeds of environments, and a chunk's report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import jax
import numpy as np

from rljax.agent import Array, EnvSpec
from rljax.distributed.devices import Spread, local
from rljax.networks import normalise
from rljax.networks.optimisation import traces
from rljax.training import agent_state
from rljax.training.learner import Hyperparameters, Learner, LearnerState
from rljax.training.tally import Tally

TRAIN, EVALUATE = 0, 1

# What fresh learners go on from: the learners of the previous stage, or parts of another run's
# agents by their names.
Learnt: TypeAlias = LearnerState | Mapping[str, Any] | None


def environment_seeds(seed: int, purpose: Literal[0, 1], *path: int, number: int) -> list[int]:
    """`number` 32-bit seeds for one learner's environments.

    They depend only on the learner's seed, the purpose and the path (such as the step of an
    evaluation). A learner's environments are therefore the same alone and in a population.
    """
    return [int(x) for x in np.random.SeedSequence([seed, purpose, *path]).generate_state(number)]


def training_seeds(seeds: Sequence[int], number: int) -> list[int]:
    """The seeds of the environments of training, `number` for each learner's seed."""
    return [s for seed in seeds for s in environment_seeds(seed, TRAIN, number=number)]


def keys_of(seeds: Sequence[int]) -> Array:
    """One typed key for each of the seeds, [N]."""
    return jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))


@dataclasses.dataclass(frozen=True)
class ChunkReport:
    """Means and counts since the last report, on the host; one value per learner."""

    metrics: dict[str, np.ndarray]  # [P] means; NaN where there was no value
    # [P] the first update with a value that is not finite; -1 where there is none
    first_bad: dict[str, np.ndarray]
    # updates of each learner since the beginning, as `rljax.training.learner.counted` counts them
    updates: int


def report(tally: Tally, updates: Any, episodes: dict[str, Any]) -> ChunkReport:
    """Bring a tally and the episodes' sums to the host and average them."""
    host: Any = jax.device_get(local((tally, updates, episodes)))
    tally, updates, episodes = host
    with np.errstate(invalid="ignore", divide="ignore"):
        metrics = {name: np.asarray(tally.total[name] / tally.weight[name]) for name in tally.total}
        ended = np.asarray(episodes["count"], np.float64)
        for name in ("return", "length", *sorted(set(episodes) - {"return", "length", "count"})):
            metrics[f"episode/{name}"] = episodes[name] / ended
    return ChunkReport(
        metrics, {name: np.asarray(x) for name, x in tally.first_bad.items()}, int(updates)
    )


def key_shapes(number: int) -> Any:
    """The shape and dtype of `number` typed keys."""
    return jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((number,), np.uint32))


def environment_rows(learners: Sequence[int] | None, each: int) -> list[int] | None:
    """The rows of some learners, where each learner has `each` consecutive rows;
    None, all rows, for all learners.
    """
    return (
        None
        if learners is None
        else [learner * each + row for learner in learners for row in range(each)]
    )


def split(learners: LearnerState, action: Any, extras: Any) -> dict[str, Any]:
    """The content of a checkpoint for environments on the host:
    the agents, and the rest of the learners.
    """
    return {"agent": learners.agent, "training": (learners.replace(agent=None), action, extras)}


def continued(fresh: LearnerState, learnt: Learnt) -> LearnerState:
    """Fresh learners that go on from `learnt`."""
    if isinstance(learnt, LearnerState):
        return fresh.replace(agent=learnt.agent, updates=learnt.updates)
    return fresh.replace(agent=agent_state.with_parts(fresh.agent, learnt)) if learnt else fresh


def cut_episodes(learners: LearnerState, num_envs: int) -> LearnerState:
    """Learners whose running episodes are lost: the newest transition of each environment is marked
    as truncated.

    Sums along episodes, such as eligibility traces and discounted sums of rewards, begin anew.
    """
    storage = None if learners.storage is None else learners.storage.cut_episodes(num_envs)
    return learners.replace(
        storage=storage, agent=normalise.restart(traces.restart(learners.agent))
    )


class Driver(Protocol):
    """Moves P learners through time. It holds the state that a checkpoint saves."""

    spec: EnvSpec
    learner: Learner
    data: Any  # the data set [N, ...], where there is one
    hyper: Hyperparameters  # of the learners, and the experience that is declared for them
    spread: Spread  # how the learners are spread over devices

    def reconfigure(self, config: Any) -> None:
        """Continue with other settings, which are stacked over P like the first ones."""

    @property
    def learners(self) -> LearnerState:
        """The current learners."""
        ...

    def start(self, seeds: Sequence[int], learnt: Learnt = None) -> None:
        """Start fresh learners and environments, one learner per seed.

        Learners continue `learnt` where given.
        """

    def advance(self, iterations: int) -> None:
        """Run iterations of `num_steps` environment steps and, once warm, `num_updates` updates.

        An action is chosen before the update that follows it, and this update never needs the step
        that the action causes. The update and the step may run at the same time. After an update on
        a rollout the action is chosen anew, by the new policy.
        """

    def report(self) -> ChunkReport:
        """Return the means since the last report, and begin new ones."""
        ...

    @property
    def agent_state(self) -> Any:
        """The agents' State, [P, ...].

        The next `advance` donates it: copy the arrays that you want to keep.
        """
        ...

    @agent_state.setter
    def agent_state(self, state: Any) -> None: ...

    def arrays(self) -> dict[str, Any]:
        """The arrays of the state: "agent", the agents' State, and "training", the rest.

        Call it after `report`.
        """
        ...

    def template(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The structure, shapes and dtypes of `arrays`, at no cost."""
        ...

    def environments(self, learners: Sequence[int] | None = None) -> bytes | None:
        """The rest of the state: that of environments on the host,
        only those of `learners` where given.

        None where there is no such state, or where it cannot be saved.
        """
        ...

    @property
    def without_environments(self) -> str:
        """The meaning of None from `environments`: "none" (there is nothing to save) or "lost"."""
        ...

    @property
    def save_failure(self) -> str | None:
        """The reason why the environments' state is lost, or None."""
        ...

    def restore(self, arrays: dict[str, Any], environments: bytes | None) -> None:
        """Continue from the values that `arrays` and `environments` returned."""

    def close(self) -> None:
        """Close the environments."""
