"""What an agent's functions return, asserted once at the start of a run.

Axes: `P` learners, `E` environments, `B` rows of a batch. Messages leave out P.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import EnvSpec, Weighted


def require_parts(agent: Any, function: str, returned: Any, *names: str) -> Any:
    """What a function has returned: a tuple of the parts `names`."""
    is_tuple = isinstance(returned, tuple)
    if not is_tuple or len(returned) != len(names):
        kind = f"tuple of {len(returned)}" if is_tuple else type(returned).__name__
        raise _error(agent, function, f"returns a {kind}", f"it must return ({', '.join(names)})")
    return returned


def require_action(
    agent: Any, spec: EnvSpec, action: Any, extras: Any, rows: tuple[int, int]
) -> None:
    """Actions must be [P, E, A...], extras [P, E, ...]; `rows` is (P, E)."""
    environments = "one row for each of the observations [E, O...]"
    if action.shape != (*rows, *spec.action_shape):
        raise _error(
            agent,
            "act",
            f"returns actions of shape {tuple(action.shape[1:])} for {rows[1]} environments "
            f"of '{spec.name}'",
            f"their shape must be {(rows[1], *spec.action_shape)}, {environments}",
        )
    if action.dtype != jnp.dtype(spec.action_dtype):
        raise _error(
            agent,
            "act",
            f"returns actions of type {action.dtype}",
            f"those of '{spec.name}' are {jnp.dtype(spec.action_dtype)}",
        )
    _require_dictionary(agent, "act", "extras", extras)
    for name, extra in extras.items():
        shapes = [leaf.shape for leaf in jax.tree.leaves(extra)]
        if any(shape[:2] != rows for shape in shapes):
            listed = ", ".join(str(tuple(shape[1:])) for shape in shapes)
            raise _error(
                agent,
                "act",
                f"returns extras['{name}'] of shape {listed} for {rows[1]} environments",
                f"its shape must begin with ({rows[1]},): {environments}",
            )


def require_memory(agent: Any, before: Any, after: Any) -> None:
    """The memory after an action must be built as before it."""
    rule = "each part keeps the shape and type that `remember` says"
    _require_same(agent, "act", "memory", before, after, rule)


def require_state(agent: Any, before: Any, after: Any, function: str = "update") -> None:
    """The State after `update`, or another `function`, must be built as before it."""
    rule = "each field keeps its structure, shape and type"
    _require_same(agent, function, "State", before, after, rule)


def require_metrics(agent: Any, metrics: Any, num_learners: int, batch_size: int | None) -> None:
    """Metrics must be scalars, [P], and priorities [P, B], with `batch_size` None where there are
    none.
    """
    _require_dictionary(agent, "update", "metrics", metrics)
    for name, metric in metrics.items():
        is_scalar = name != "priorities" or batch_size is None
        expected = (num_learners,) if is_scalar else (num_learners, batch_size)
        meaning = "a scalar such as a mean" if is_scalar else "one for each row of the batch"
        shape = (metric.value if isinstance(metric, Weighted) else metric).shape
        if shape != expected:
            raise _error(
                agent,
                "update",
                f"returns metrics['{name}'] of shape {tuple(shape[1:])}",
                f"its shape must be {expected[1:]}, {meaning}",
            )


def _require_dictionary(agent: Any, function: str, name: str, returned: Any) -> None:
    if not isinstance(returned, dict):
        kind = f"returns {name} of type {type(returned).__name__}"
        raise _error(agent, function, kind, "they must be a dictionary")


def _require_same(agent: Any, function: str, name: str, before: Any, after: Any, rule: str) -> None:
    difference = _difference(before, after)
    if difference:
        returned = f"returns another {name} than it was given: {difference}"
        raise _error(agent, function, returned, rule)


def _error(agent: Any, function: str, returned: str, expected: str) -> ValueError:
    file = getattr(agent, "__file__", None)
    name = Path(file).name if file else type(agent).__name__
    return ValueError(f"`{function}` of {name} {returned}; {expected}.")


def _difference(before: Any, after: Any) -> str:
    """The first leaf in which two trees differ, in words; "" for none."""
    one, other = (dict(_leaves(tree)) for tree in (before, after))
    for path in one | other:
        if path not in other:
            return f"it lacks {path}"
        if path not in one:
            return f"it has {path} besides"
        if one[path] != other[path]:
            return f"{path} was {one[path]} and becomes {other[path]}"
    same = jax.tree.structure(before) == jax.tree.structure(after)
    return "" if same else "its classes or static fields differ"


def _leaves(tree: Any) -> list[tuple[str, str]]:
    """Each leaf's path, and its type and shape without P."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path).strip("."), f"{x.dtype}{list(x.shape[1:])}")
        for path, x in leaves
    ]
