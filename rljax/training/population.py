"""The learners of a population: what they differ in, and those that have diverged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array
from rljax.training import configuration


@dataclasses.dataclass(frozen=True)
class Member:
    """One learner of a population, as config.json describes it."""

    seed: int
    settings: Mapping[str, float]  # those in which the learners differ


def members(config: Any, seeds: Sequence[int]) -> list[Member]:
    """The learners whose seeds and Config these are, in order.

    Raises `ValueError` where two of them would be the same.
    """
    varied = configuration.varied(config)
    rows = [Member(seed, {name: values[p] for name, values in varied.items()}) for p, seed in enumerate(seeds)]
    for p, row in enumerate(rows):
        if row in rows[:p]:
            raise ValueError(
                f"learners {rows.index(row)} and {p} are the same: seed {row.seed}"
                + (f" with {label(row.settings)}" if row.settings else "")
                + ". Each learner needs a seed or a setting of its own."
            )
    return rows


def settings(rows: Sequence[Member]) -> list[tuple[Mapping[str, float], list[int]]]:
    """The distinct settings of learners, in the order in which they are first met, and whose they are."""
    distinct: list[tuple[Mapping[str, float], list[int]]] = []
    for p, row in enumerate(rows):
        for values, learners in distinct:
            if values == row.settings:
                learners.append(p)
                break
        else:
            distinct.append((row.settings, [p]))
    return distinct


def label(values: Mapping[str, Any]) -> str:
    """Settings as text, such as "actor-lr=0.001 tau=0.005"."""
    return " ".join(f"{name.replace('_', '-')}={shown(value)}" for name, value in values.items())


def shown(value: Any) -> str:
    """A setting's value as `rljax.training.configuration.parse` reads it."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


class Frozen:
    """Learners of a population that have diverged, each kept as it last was with all its numbers finite.

    They go on being computed, since the program has their place, but no chunk changes them: what it made of them is
    replaced by what was kept. The others never notice.
    """

    def __init__(self, num_learners: int) -> None:
        self.found: dict[int, dict[str, Any]] = {}  # learner -> what to say of it, ready for JSON
        self._number = num_learners
        self._kept: Any = None

    @property
    def mask(self) -> np.ndarray:
        """Which learners are frozen, [P] bool."""
        return np.isin(np.arange(self._number), list(self.found))

    def remember(self, state: Any) -> None:
        """Keep a copy of the agents' State [P, ...], but of those learners that are frozen or not finite."""
        leaves, structure = jax.tree.flatten(state)
        kept = leaves if self._kept is None else jax.tree.leaves(self._kept)
        self._kept = structure.unflatten(_remember(~self.mask, leaves, kept))

    def put_back(self, state: Any) -> Any:
        """The agents' State with the frozen learners as they were kept."""
        return choose(self.mask, self._kept, state) if self.found else state


def choose(mask: np.ndarray, new: Any, old: Any) -> Any:
    """Learners [P] of `new` where `mask`, of `old` elsewhere; always copies, since drivers donate their states."""
    leaves, structure = jax.tree.flatten(new)
    return structure.unflatten(_select(mask, leaves, leaves if old is None else jax.tree.leaves(old)))


def take(state: Any, learners: np.ndarray) -> Any:
    """The agents' State [P, ...] of `learners` [P], one for each place; always copies."""
    leaves, structure = jax.tree.flatten(state)
    return structure.unflatten(_gather(learners, leaves))


@jax.jit
def _gather(learners: Any, leaves: list[Array]) -> list[Array]:
    return [leaf[learners] for leaf in leaves]


# Of leaves alone: JAX takes States of two agents for equal where their fields are, and might return the other's.
@jax.jit
def _select(mask: Any, new: list[Array], old: list[Array]) -> list[Array]:
    return [jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True)]


@jax.jit
def _remember(mask: Any, new: list[Array], old: list[Array]) -> list[Array]:
    for leaf in new:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            mask = mask & jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(axis=1)
    return _select(mask, new, old)


def of_learners(config: Any, learners: Sequence[int]) -> Any:
    """The Config of some learners of a population, with one number where they agree."""
    changes = {}
    for name, values in configuration.varied(config).items():
        own = [values[learner] for learner in learners]
        changes[name] = own[0] if len(set(own)) == 1 else tuple(own)
    return dataclasses.replace(config, **changes)
