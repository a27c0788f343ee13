"""Corruption of a data set by RIQL's protocol, for every agent that learns from a data set.

    from rljax import datasets
    from rljax.datasets.tools.corruption import corrupt

    dataset = datasets.load("d4rl/hopper-medium-replay-v2")
    datasets.write(corrupt(dataset, what="dynamics", how="random"), "dynamics.npz")

Then train on the file: `rljax train riql --data dynamics.npz`. An adversarial corruption needs the
critics of a run:

    from rljax.runs.policies.attackers import load_attacker

    corrupt(dataset, what="dynamics", how="adversarial", attacker=load_attacker("runs/edac"))

The protocol is that of Yang et al., arXiv:2310.12955, as implemented in their code: attack.py of
github.com/YangRui2015/RIQL at cc07d81, called [2] here.
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
STEPS, STEP_SIZE, EPSILON = 100, 0.01, 1e-8  # of Adam; a step is STEP_SIZE scale long
CHUNKS = 10  # parts of the corrupted rows; a loss is the mean over one part
ROWS = 2_048  # rows attacked in one call: few enough for a cache or a small GPU with many critics


@dataclasses.dataclass(frozen=True)
class Attacker:
    """One learner of a run.

    An attack lowers its values. `rljax.runs.policies.attackers.load_attacker` makes it.
    """

    module: Any  # has `value` and `act` of the agent, for observations as the data have them
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
    """A copy of the data set in which one or several elements are corrupted in part of the rows.

    A row is corrupted where U(0, 1) < `rate`, drawn anew for each element, so that the number of
    rows varies. "dynamics" is `next_observation`; the `observation` of the next row does not
    change. With std, the standard deviation of the whole column, x becomes

        random        x + U(-scale, scale) std; a reward becomes 30 U(-scale, scale), whatever it
                      was
        adversarial   x + z std, where z lowers the attacker's value within [-scale, scale]; a
                      reward r, -scale r

    Any agent with a `value` of observation and action can attack. [2] uses EDAC with 10 critics,
    trained on the clean data set for 3 million updates. The attack finds z by 100 gradient steps
    that lower the critics' mean value at

        observation   Q(s + z std, a)
        action        Q(s, a + z std)
        dynamics      Q(s', pi(s')) with s' + z std for s', the attacker's greedy policy pi moving
                      along

    These details of [2] are copied as well, although they may not have been intended:

    - z starts at 2 scale std (U(0, 1) - 1/2). This start already contains the std, and the result z
      is multiplied by the std once more. Where the std is above 1, the start can lie outside
      [-scale, scale]; z is clipped to this range after the first step.
    - Adam's state is reset after every step. Each step is therefore 0.01 scale long for any
      gradient, unless the gradient is about 1e-8 or smaller. A gradient is that of a mean over a
      tenth of the corrupted rows and over the critics, so that some gradients are this small in
      large data sets.
    - Actions are not clipped to [-1, 1]. `provenance` says so, and files with such actions can be
      read again.
    - Several elements are corrupted one after the other. The attack on a later element sees the
      earlier ones already corrupted: the attack on an action sees a corrupted observation.

    Differences from [2]: z starts from NumPy's random numbers, not PyTorch's. pi(s') is the greedy
    action; [2] passes the pair that its actor returns, a sample and no log-probability, to the
    critics and fails. Nothing is stored between calls; [2] stores adversarial arrays under a name
    without their seed.

    For equal rows and seeds, masks and random noise equal those of [2] bit for bit. D4RL's rows are
    the same here, except for the successors of terminal rows, where D4RL has the first observation
    of another episode. These successors contribute to the std of "dynamics".
    `rljax.datasets.load(name, strict=True)` loads them as D4RL has them.

    Raises `ValueError` for an unknown element, a rate outside [0, 1], a negative scale, a missing
    attacker, an attacker without values of actions, and an attacker with other dimensions.
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
        if attacker is None:
            raise ValueError(
                "how is 'adversarial', which needs an attacker: a run with critics, such as one of "
                f"rljax train edac --data {dataset.name}"
            )
        _require_fit(attacker, dataset)

    generator = np.random.RandomState(seed)  # the same generator as in [2]
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
            assert attacker is not None
            column[rows] += _perturbation(
                attacker, element, transitions, rows, column.std(axis=0), scale, seed
            )
        transitions = transitions.replace(**{FIELDS[element]: column})
        note = {
            "what": element,
            "how": how,
            "rate": rate,
            "scale": scale,
            "seed": seed,
            "rows": len(rows),
        }
        if element == "action":
            note["rows_beyond_bounds"] = int((np.abs(column) > 1).any(axis=1).sum())
        if attacks and attacker is not None and element != "reward":
            note["attacker"] = attacker.note
        notes.append(note)
    corruptions = [*dataset.provenance.get("corruptions", []), *notes]
    return dataclasses.replace(
        dataset,
        transitions=transitions,
        provenance=dataset.provenance | {"corruptions": corruptions},
    )


def _elements(what: Any) -> list[str]:
    names = [what] if isinstance(what, str) else list(what)
    unknown = [name for name in names if name not in FIELDS]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"what is {what!r}, it must be one of {', '.join(FIELDS)}, or several of them, "
            "each once."
        )
    return [name for name in FIELDS if name in names]


def _require_fit(attacker: Attacker, dataset: OfflineDataset) -> None:
    """Raise `ValueError` for an attacker with other spaces than the data set's,
    and for one without values.
    """
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
    """Whether the agent's `value` maps observations [B, O] and actions [B, A] to [B]."""
    if not attacker.module.has_value:
        return False
    example = (
        jnp.zeros((2, *attacker.spec.observation_shape)),
        jnp.zeros((2, attacker.spec.action_size)),
    )
    return jax.eval_shape(
        attacker.module.value, attacker.state, *example, attacker.config
    ).shape == (2,)


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
    """The z [B, D] after 100 steps to lower values.

    `parts` are the first z, weights [B], s or s', and a.
    """
    start, weight, observation, action = parts

    def cost(z: Array) -> Array:
        if element == "action":
            return (weight * module.value(state, observation, action + z * std, config)).sum()
        moved = observation + z * std
        if element == "observation":
            return (weight * module.value(state, moved, action, config)).sum()
        greedy = module.act(state, moved, jax.random.key(0), config, explore=False)[0]
        return (weight * module.value(state, moved, greedy, config)).sum()

    def step(_: int, z: Array) -> Array:
        slope = jax.grad(cost)(z)
        return jnp.clip(z - STEP_SIZE * scale * slope / (jnp.abs(slope) + EPSILON), -scale, scale)

    return jax.lax.fori_loop(0, STEPS, step, start)


def _perturbation(
    attacker: Attacker,
    element: str,
    transitions: Transition,
    rows: np.ndarray,
    std: np.ndarray,
    scale: float,
    seed: int,
) -> np.ndarray:
    """The perturbation of `rows` [M] of an element: z std [M, D], float32.

    Rows are independent, except that the loss is a mean over a chunk. The weights express this
    mean, so that one program serves all chunks.
    """
    number = len(rows)
    generator = np.random.default_rng([seed, list(FIELDS).index(element)])
    start = 2 * scale * std * (generator.random((number, len(std)), np.float32) - 0.5)
    chunk = (
        np.minimum(np.arange(number) // max(number // CHUNKS, 1), CHUNKS - 1)
        if number >= CHUNKS
        else 0 * rows
    )
    weight = 1.0 / np.bincount(chunk)[chunk]
    where = np.asarray(
        transitions.next_observation if element == "dynamics" else transitions.observation
    )
    parts = [
        np.asarray(x, np.float32)
        for x in (start, weight, where[rows], np.asarray(transitions.action)[rows])
    ]
    each = min(number, ROWS)
    pieces = []
    for first in range(0, number, each):
        block = [x[first : first + each] for x in parts]
        padded = tuple(
            np.concatenate([x, np.zeros((each - len(x), *x.shape[1:]), x.dtype)]) for x in block
        )
        z = _descended(
            attacker.module,
            element,
            attacker.state,
            attacker.config,
            padded,
            std,
            jnp.float32(scale),
        )
        pieces.append(np.asarray(z)[: len(block[0])])
    return np.concatenate(pieces) * std
