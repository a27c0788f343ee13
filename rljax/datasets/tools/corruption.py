"""Corruption of a data set by RIQL's protocol.

It is of Yang et al., arXiv:2310.12955, and their code [2]: attack.py of github.com/YangRui2015/RIQL
at cc07d81.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec, Transition, shown
from rljax.datasets.dataset import OfflineDataset

Element = Literal["observation", "action", "reward", "dynamics"]
# Element -> field of Transition, in the order in which [2] corrupts them.
FIELDS: dict[str, str] = {
    "observation": "observation",
    "action": "action",
    "reward": "reward",
    "dynamics": "next_observation",
}
REWARD_SCALE = 30.0  # random rewards lie in +-30 scale
STEPS, STEP_SIZE, EPSILON = 100, 0.01, 1e-8  # of Adam
CHUNKS = 10  # parts of the corrupted rows; a loss is the mean over one part
ROWS = 2_048  # attacked in one call


@dataclasses.dataclass(frozen=True)
class Attacker:
    """One learner of a run; `rljax.runs.policies.attackers.load_attacker` makes it."""

    module: Any
    state: Any
    config: Any
    spec: EnvSpec
    folder: str  # of the run, for messages
    note: dict[str, Any]  # for provenance


def corrupt(
    dataset: OfflineDataset,
    *,
    what: Element | Sequence[Element],
    how: Literal["random", "adversarial"],
    rate: float = 0.3,
    scale: float = 1.0,
    seed: int = 0,
    attacker: Attacker | None = None,
) -> OfflineDataset:
    """A copy of the data set with elements corrupted in part of the rows, as docs/datasets.md says.

    Raises `ValueError` for wrong arguments, and an attacker that is missing or does not fit.
    """
    elements = _elements(what)
    if how not in ("random", "adversarial"):
        raise ValueError(f"how is '{how}', it must be 'random' or 'adversarial'.")
    if not 0 <= rate <= 1:
        raise ValueError(
            f"rate is {rate:g}, it must be in [0, 1]: 0.3 corrupts about three rows of ten."
        )
    if not 0 <= scale < np.inf:
        raise ValueError(f"scale is {scale:g}, it must be finite and at least 0.")
    attacks = how == "adversarial" and elements != ["reward"]
    if dataset.discrete and (attacks or "action" in elements):
        raise ValueError(
            f"actions of '{dataset.name}' are choices, which have neither a std nor a slope: "
            "corrupt its observations, rewards or dynamics, with how='random'."
        )
    if not dataset.spec.is_vector and elements != ["reward"]:
        raise ValueError(
            f"'{dataset.name}' shows {shown(dataset.spec)}: corrupt its rewards, for the other "
            "elements are vectors."
        )
    if attacks:
        _require_fit(attacker, dataset)

    generator = np.random.RandomState(seed)  # as in [2]
    settings = {"how": how, "rate": rate, "scale": scale, "seed": seed}
    transitions, notes = dataset.transitions, []
    for element in elements:
        column = np.array(getattr(transitions, FIELDS[element]))
        rows = np.flatnonzero(generator.random_sample(dataset.num) < rate)
        if how == "random" and element == "reward":
            column[rows] = generator.uniform(-scale, scale, size=len(rows)) * REWARD_SCALE
        elif how == "random":
            noise = generator.uniform(-scale, scale, size=(len(rows), column.shape[1]))
            column[rows] += noise * np.std(column, axis=0, keepdims=True)
        elif element == "reward":
            column[rows] *= -scale
        elif len(rows):
            column[rows] += _perturbation(
                attacker, element, transitions, rows, column.std(axis=0), scale, seed
            )
        transitions = transitions.replace(**{FIELDS[element]: column})
        note = {"what": element, **settings, "rows": len(rows)}
        if element == "action":
            note["rows_beyond_bounds"] = int((np.abs(column) > 1).any(axis=1).sum())
        if attacks and attacker is not None and element != "reward":
            note["attacker"] = attacker.note
        notes.append(note)
    corruptions = [*dataset.provenance.get("corruptions", []), *notes]
    provenance = dataset.provenance | {"corruptions": corruptions}
    return dataclasses.replace(dataset, transitions=transitions, provenance=provenance)


def _elements(what: Any) -> list[str]:
    names = [what] if isinstance(what, str) else list(what)
    unknown = [name for name in names if name not in FIELDS]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"what is {what!r}, it must be one of {', '.join(FIELDS)}, or several of them, "
            "each once."
        )
    return [name for name in FIELDS if name in names]


def _require_fit(attacker: Attacker | None, dataset: OfflineDataset) -> None:
    if attacker is None:
        raise ValueError(
            "how is 'adversarial', which needs an attacker: a run with critics, such as one of "
            f"rljax train edac --data {dataset.name}"
        )
    spec = attacker.spec
    sizes = (spec.observation_shape, spec.action_size, spec.discrete)
    if sizes != ((dataset.observation_size,), dataset.action_size, False):
        raise ValueError(
            f"the attacker in '{attacker.folder}' observes {spec.observation_shape} and acts in "
            f"{spec.action_size} {'choices' if spec.discrete else 'dimensions'}, '{dataset.name}' "
            f"has observations ({dataset.observation_size},) and {dataset.action_size} action "
            "dimensions. Train one on the clean data."
        )
    if not _has_values(attacker):
        raise ValueError(
            f"the attacker in '{attacker.folder}' is of agent '{attacker.note['agent']}', which "
            "has no `value` that gives one number for an observation and an action. Train one that "
            "has, such as edac."
        )


def _has_values(attacker: Attacker) -> bool:
    module, spec = attacker.module, attacker.spec
    if not module.has_value:
        return False
    example = jnp.zeros((2, *spec.observation_shape)), jnp.zeros((2, spec.action_size))
    value = jax.eval_shape(module.value, attacker.state, *example, attacker.config)
    return value.shape == (2,)


@functools.partial(jax.jit, static_argnames=("module", "element"))
def _descended(
    module: Any,
    element: str,
    state: Any,
    config: Any,
    parts: tuple[Array, ...],
    std: Array,
    scale: Array,
) -> Array:
    """The z [B, D] after `STEPS`; `parts` are the first z, weights [B], s or s', and a."""
    start, weight, *clean = parts

    def cost(z: Array) -> Array:
        observation, action = clean
        if element == "action":
            action = action + z * std
        else:
            observation = observation + z * std
        if element == "dynamics":
            action = module.act(state, observation, jax.random.key(0), config, explore=False)[0]
        return (weight * module.value(state, observation, action, config)).sum()

    def step(_: int, z: Array) -> Array:
        slope = jax.grad(cost)(z)
        return jnp.clip(z - STEP_SIZE * scale * slope / (jnp.abs(slope) + EPSILON), -scale, scale)

    return jax.lax.fori_loop(0, STEPS, step, start)


def _perturbation(
    attacker: Any,
    element: str,
    transitions: Transition,
    rows: np.ndarray,
    std: np.ndarray,
    scale: float,
    seed: int,
) -> np.ndarray:
    """The perturbation of `rows` [M] of an element: z std [M, D], float32."""
    number = len(rows)
    generator = np.random.default_rng([seed, list(FIELDS).index(element)])
    start = 2 * scale * std * (generator.random((number, len(std)), np.float32) - 0.5)
    size = number // CHUNKS or number
    chunk = np.minimum(np.arange(number) // size, CHUNKS - 1)
    weight = 1.0 / np.bincount(chunk)[chunk]
    state = transitions.next_observation if element == "dynamics" else transitions.observation
    columns = start, weight, np.asarray(state)[rows], np.asarray(transitions.action)[rows]
    each = min(number, ROWS)
    pieces = []
    for first in range(0, number, each):
        block = [np.asarray(x[first : first + each], np.float32) for x in columns]
        padding = each - len(block[0])
        padded = tuple(np.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1))) for x in block)
        learner = attacker.state, attacker.config
        z = _descended(attacker.module, element, *learner, padded, std, jnp.float32(scale))
        pieces.append(np.asarray(z)[: each - padding])
    return np.concatenate(pieces) * std
