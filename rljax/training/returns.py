"""What an agent's functions return, asserted once at the start of a run.

Shapes are known when JAX traces the functions, so that nothing is computed for it. Each failure is
a `ValueError` of one sentence, which names the function, the agent's file and what it must return.
Axes: `P` learners, `E` environments, `B` rows of a batch. Sentences leave P out, as agents do not
know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp

from rljax.agent import EnvSpec, Weighted


def require_parts(agent: Any, function: str, returned: Any, *names: str) -> Any:
    """Return what a function has returned, a tuple of the parts called `names`.

    Raises `ValueError` for anything else.
    """
    if not isinstance(returned, tuple) or len(returned) != len(names):
        number = (
            f"a tuple of {len(returned)}"
            if isinstance(returned, tuple)
            else f"a {type(returned).__name__}"
        )
        raise _error(agent, function, f"returns {number}", f"it must return ({', '.join(names)})")
    return returned


def require_action(
    agent: Any, spec: EnvSpec, action: Any, extras: Any, rows: tuple[int, int]
) -> None:
    """Raise `ValueError` unless actions are [P, E, A...] and all extras [P, E, ...];
    `rows` is (P, E).
    """
    expected = (*rows, *spec.action_shape)
    environments = "one row for each of the observations [E, O...]"
    _require(
        lambda: chex.assert_shape(action, expected),
        agent,
        "act",
        f"returns actions of shape {tuple(action.shape[1:])} for {rows[1]} environments "
        f"of '{spec.name}'",
        f"their shape must be {expected[1:]}, {environments}",
    )
    _require(
        lambda: chex.assert_type(action, spec.action_dtype),
        agent,
        "act",
        f"returns actions of type {action.dtype}",
        f"those of '{spec.name}' are {jnp.dtype(spec.action_dtype)}",
    )
    if not isinstance(extras, dict):
        raise _error(
            agent,
            "act",
            f"returns extras of type {type(extras).__name__}",
            "they must be a dictionary",
        )
    for name, extra in extras.items():
        shapes = ", ".join(str(tuple(leaf.shape[1:])) for leaf in jax.tree.leaves(extra))
        _require(
            lambda extra=extra: chex.assert_tree_shape_prefix(extra, rows),
            agent,
            "act",
            f"returns extras['{name}'] of shape {shapes} for {rows[1]} environments",
            f"its shape must begin with ({rows[1]},): {environments}",
        )


def require_memory(agent: Any, before: Any, after: Any) -> None:
    """Raise `ValueError` unless the memory after an action is built as the one before it."""
    difference = _difference(before, after)
    _require(
        lambda: chex.assert_trees_all_equal_shapes_and_dtypes(before, after),
        agent,
        "act",
        f"returns another memory than it was given: {difference}",
        "each part keeps the shape and type that `remember` says",
    )


def require_state(agent: Any, before: Any, after: Any) -> None:
    """Raise `ValueError` unless `update` returns a State that is built as the one that it was
    given.
    """
    difference = _difference(before, after)
    _require(
        lambda: chex.assert_trees_all_equal_shapes_and_dtypes(before, after),
        agent,
        "update",
        f"returns another State than it was given: {difference}",
        "each field keeps its structure, shape and type",
    )


def require_metrics(agent: Any, metrics: Any, num_learners: int, batch_size: int | None) -> None:
    """Raise `ValueError` unless metrics are scalars, [P],
    and priorities [P, B] where there are any.

    `batch_size` is None where batches are not drawn by priorities.
    """
    if not isinstance(metrics, dict):
        raise _error(
            agent,
            "update",
            f"returns metrics of type {type(metrics).__name__}",
            "they must be a dictionary",
        )
    for name, metric in metrics.items():
        is_scalar = name != "priorities" or batch_size is None
        expected = (num_learners,) if is_scalar else (num_learners, batch_size)
        meaning = "a scalar such as a mean" if is_scalar else "one for each row of the batch"
        value = metric.value if isinstance(metric, Weighted) else metric
        _require(
            lambda value=value, expected=expected: chex.assert_shape(value, expected),
            agent,
            "update",
            f"returns metrics['{name}'] of shape {tuple(value.shape[1:])}",
            f"its shape must be {expected[1:]}, {meaning}",
        )


def _require(
    assertion: Callable[[], Any], agent: Any, function: str, returned: str, expected: str
) -> None:
    """Raise a `ValueError` of one sentence where an assertion of `chex` fails,
    whose own words name no function.
    """
    try:
        assertion()
    except AssertionError:
        raise _error(agent, function, returned, expected) from None


def _error(agent: Any, function: str, returned: str, expected: str) -> ValueError:
    file = getattr(agent, "__file__", None)
    name = Path(file).name if file else type(agent).__name__
    return ValueError(f"`{function}` of {name} {returned}; {expected}.")


def _difference(before: Any, after: Any) -> str:
    """The first leaf in which two trees differ, in words; "" where they do not."""
    one, other = (dict(_leaves(tree)) for tree in (before, after))
    for path in (*one, *(path for path in other if path not in one)):
        if path not in other:
            return f"it lacks {path}"
        if path not in one:
            return f"it has {path} besides"
        if one[path] != other[path]:
            return f"{path} was {one[path]} and becomes {other[path]}"
    return (
        "its classes or static fields differ"
        if jax.tree.structure(before) != jax.tree.structure(after)
        else ""
    )


def _leaves(tree: Any) -> list[tuple[str, str]]:
    """Each leaf's path, and its type and shape without P."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path).strip("."), f"{x.dtype}{list(x.shape[1:])}")
        for path, x in leaves
    ]
