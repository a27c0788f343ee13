"""The learners of a population: the settings in which they differ, and the learners that have diverged."""

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
    settings: Mapping[str, float]  # only the settings in which the learners differ


def members(config: Any, seeds: Sequence[int]) -> list[Member]:
    """The members of a population with this Config and these seeds, in order.

    Raises `ValueError` where two learners would be the same.
    """
    varied = configuration.varied(config)
    rows = [Member(seed, {name: values[p] for name, values in varied.items()}) for p, seed in enumerate(seeds)]
    first: dict[Any, int] = {}  # the number of the first learner with a seed and settings
    for p, row in enumerate(rows):
        known = first.setdefault((row.seed, *row.settings.values()), p)
        if known < p:
            raise ValueError(
                f"learners {known} and {p} are the same: seed {row.seed}"
                + (f" with {label(row.settings)}" if row.settings else "")
                + ". Each learner needs a seed or a setting of its own."
            )
    return rows


def settings(rows: Sequence[Member]) -> list[tuple[Mapping[str, float], list[int]]]:
    """The distinct settings in order of first appearance, each with the indices of the learners that have them."""
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
    """A setting's value as text that `rljax.training.configuration.parse` can read."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


class Frozen:
    """The diverged learners of a population. Each keeps its last state in which all numbers were finite.

    The program still computes them, because its number of learners is fixed. After each chunk their states are replaced
    by the copies that were kept, so that no chunk changes them. The other learners are not affected.
    """

    def __init__(self, num_learners: int) -> None:
        self.found: dict[int, dict[str, Any]] = {}  # learner -> its record, ready for JSON
        self._number = num_learners
        self._kept: Any = None

    @property
    def mask(self) -> np.ndarray:
        """Which learners are frozen, [P] bool."""
        return np.isin(np.arange(self._number), list(self.found))

    def remember(self, state: Any) -> None:
        """Copy the agents' State [P, ...], except for learners that are frozen or not finite."""
        leaves, structure = jax.tree.flatten(state)
        kept = leaves if self._kept is None else jax.tree.leaves(self._kept)
        self._kept = structure.unflatten(_remember(~self.mask, leaves, kept))

    def put_back(self, state: Any) -> Any:
        """The agents' State, in which the kept copies replace the frozen learners."""
        return choose(self.mask, self._kept, state) if self.found else state


def choose(mask: np.ndarray, new: Any, old: Any) -> Any:
    """Take learners [P] from `new` where `mask` is True, from `old` elsewhere. Always copies: drivers donate states."""
    leaves, structure = jax.tree.flatten(new)
    return structure.unflatten(_select(mask, leaves, leaves if old is None else jax.tree.leaves(old)))


def take(state: Any, learners: np.ndarray) -> Any:
    """Gather the agents' State [P, ...] by the indices `learners` [P], which may repeat. Always copies."""
    leaves, structure = jax.tree.flatten(state)
    return structure.unflatten(_gather(learners, leaves))


@jax.jit
def _gather(learners: Any, leaves: list[Array]) -> list[Array]:
    return [leaf[learners] for leaf in leaves]


# These functions take leaves, not States: JAX treats the States of two agents as equal where their fields are equal,
# and might return the other agent's.
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
    """The Config of some learners of a population. A float is one number where these learners agree."""
    changes = {}
    for name, values in configuration.varied(config).items():
        own = [values[learner] for learner in learners]
        changes[name] = own[0] if len(set(own)) == 1 else tuple(own)
    return dataclasses.replace(config, **changes)
