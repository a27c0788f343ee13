"""The learners of a population: differences, divergence, and inheritance."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Base
from rljax.learning import configuration
from rljax.learning.agent_state import part_at, parts_of


@dataclasses.dataclass(frozen=True)
class Member:
    """One learner of a population, as config.json describes it."""

    seed: int
    settings: Mapping[str, float]  # in which the learners differ


def members(config: Any, seeds: Sequence[int]) -> list[Member]:
    """The members of a population, in order.

    Raises `ValueError` for two equal ones, and for settings whose values are not one per seed.
    """
    varied = configuration.varied(config)
    configuration.require_lengths(config, len(seeds))
    rows = [
        Member(seed, {name: values[p] for name, values in varied.items()})
        for p, seed in enumerate(seeds)
    ]
    first: dict[Any, int] = {}  # the first learner with a seed and settings
    for p, row in enumerate(rows):
        known = first.setdefault((row.seed, *row.settings.values()), p)
        if known < p:
            values = f" with {label(row.settings)}" if row.settings else ""
            raise ValueError(
                f"learners {known} and {p} are the same: seed {row.seed}{values}. Each learner "
                "needs a seed or a setting of its own."
            )
    return rows


def settings(rows: Sequence[Member]) -> list[tuple[Mapping[str, float], list[int]]]:
    """The distinct settings by first appearance, each with its learners' indices."""
    learners: dict[Any, list[int]] = {}
    for p, row in enumerate(rows):
        learners.setdefault(tuple(row.settings.items()), []).append(p)
    return [(dict(values), indices) for values, indices in learners.items()]


def label(values: Mapping[str, Any]) -> str:
    """Settings as text, such as "actor-lr=0.001 tau=0.005"."""
    return " ".join(f"{name.replace('_', '-')}={shown(value)}" for name, value in values.items())


def shown(value: Any) -> str:
    """A setting's value as text for `rljax.learning.configuration.parse`."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


class Frozen:
    """The diverged learners of a population, each with its last finite state."""

    def __init__(self, num_learners: int) -> None:
        self.records: dict[int, dict[str, Any]] = {}  # by learner, ready for JSON
        self._number = num_learners
        self._copies: Any = None

    @property
    def mask(self) -> np.ndarray:
        """Which learners are frozen, [P] bool."""
        return np.isin(np.arange(self._number), list(self.records))

    def remember(self, state: Any) -> None:
        """Copy the agents' State [P, ...], except for learners that are frozen or not finite."""
        leaves, structure = jax.tree.flatten(state)
        copies = leaves if self._copies is None else jax.tree.leaves(self._copies)
        self._copies = structure.unflatten(_remember(~self.mask, leaves, copies))

    def put_back(self, state: Any) -> Any:
        """The agents' State with the kept copies of frozen learners."""
        return choose(self.mask, self._copies, state) if self.records else state


def choose(mask: np.ndarray, new: Any, old: Any) -> Any:
    """Copy learners [P] from `new` where `mask` is True, else from `old`, if any."""
    leaves, structure = jax.tree.flatten(new)
    others = leaves if old is None else jax.tree.leaves(old)
    return structure.unflatten(_select(mask, leaves, others))


def take(state: Any, learners: np.ndarray) -> Any:
    """Copy the agents' State [P, ...] by the indices `learners` [P], which may repeat."""
    leaves, structure = jax.tree.flatten(state)
    return structure.unflatten(_gather(learners, leaves))


@jax.jit
def _gather(learners: Any, leaves: list[Array]) -> list[Array]:
    return [leaf[learners] for leaf in leaves]


# These functions take leaves: JAX might return another agent's State with equal fields.
@jax.jit
def _select(mask: Any, new: list[Array], old: list[Array]) -> list[Array]:
    return [
        jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b)
        for a, b in zip(new, old, strict=True)
    ]


@jax.jit
def _remember(mask: Any, new: list[Array], old: list[Array]) -> list[Array]:
    for leaf in new:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            mask = mask & jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(axis=1)
    return _select(mask, new, old)


def inheritance(wanted: Any, given: Any, parts: Sequence[str], source: str) -> dict[str, Any]:
    """The parts [P, ...] of another run's AgentState `given` [P', ...] with which P new learners
    begin, by their place: those named `parts`, or else all that both have; see
    `agent_state.parts_of`. "actor_critic.actor=actor.mean" takes a part from another place.

    `wanted` has the shapes of the new AgentState. P' is 1 or P. Raises `ValueError` where numbers
    of learners, names or shapes do not fit.
    """
    here, there = parts_of(wanted), parts_of(given)
    common = [name for name in here if name in there]
    if not (parts or common):
        raise ValueError(
            f"--from {source}: its State has no part of this agent's. Say what is taken with "
            f"--from-parts HERE=THERE: here are {', '.join(here)}, there {', '.join(there)}."
        )
    number, size = len(jax.tree.leaves(wanted)[0]), len(jax.tree.leaves(given)[0])
    if size not in (1, number):
        raise ValueError(
            f"--from {source} has {size} learners: give --seeds {size}, or name a run of "
            "one learner."
        )
    inherited = {}
    for name in parts or common:
        place, _, origin = name.partition("=")
        try:
            new = part_at(here, place)
            old = part_at(there, origin or place)
        except (LookupError, AttributeError):
            raise ValueError(
                f"--from {source}: --from-parts {name} is not in both States. In both are: "
                f"{', '.join(common) or 'none'}. A part of another name is HERE=THERE: here "
                f"are {', '.join(here)}, there {', '.join(there)}."
            ) from None
        leaves = jax.tree_util.tree_leaves_with_path(old)
        _require_fit(place, leaves, jax.tree_util.tree_leaves_with_path(new), source, common)
        numbers = [np.broadcast_to(np.asarray(x), (number, *x.shape[1:])) for _, x in leaves]
        inherited[place] = jax.tree.structure(new).unflatten(numbers)
    return inherited


def _require_fit(place: str, old: Any, new: Any, source: str, common: Sequence[str]) -> None:
    """Raise `ValueError` where leaves with their paths have other paths or shapes."""
    shapes_there, shapes_here = (
        {jax.tree_util.keystr(path): x.shape[1:] for path, x in leaves} for leaves in (old, new)
    )
    if shapes_there == shapes_here:
        return
    keys = shapes_here | shapes_there
    path = next(key for key in keys if shapes_there.get(key) != shapes_here.get(key))
    shape_there, shape_here = (x.get(path, "absent") for x in (shapes_there, shapes_here))
    raise ValueError(
        f"--from {source}: its {place} does not fit: {place}{path} is {shape_there} there "
        f"and {shape_here} here. Give the settings of its networks, such as "
        "--config.hidden and --config.num-critics, or name the parts that fit with "
        f"--from-parts: of {', '.join(common) or 'none'}."
    )


def digest(tree: Any) -> str:
    """The SHA-256 of all numbers in a tree, in hexadecimal."""
    sha256 = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        sha256.update(np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes())
    return sha256.hexdigest()


def digests_of_base(base: Base) -> list[str]:
    """The digest of each of another run's policies [P]."""
    number = len(jax.tree.leaves(base)[0])
    return [digest(bases_of(base, [learner])) for learner in range(number)]


def bases_of(base: Base, learners: Sequence[int]) -> Base:
    """Another run's policies at these indices, which may repeat."""
    return jax.tree.map(lambda x: x[np.asarray(learners)], base)


def of_learners(config: Any, learners: Sequence[int]) -> Any:
    """The Config of some learners; a float is one number where these agree."""
    changes = {}
    for name, values in configuration.varied(config).items():
        numbers = [values[learner] for learner in learners]
        changes[name] = numbers[0] if len(set(numbers)) == 1 else tuple(numbers)
    return dataclasses.replace(config, **changes)
