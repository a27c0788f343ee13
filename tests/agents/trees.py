"""Pytrees compared leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def pairs(one: Any, other: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return zip(*(map(np.asarray, jax.tree.leaves(x)) for x in (one, other)), strict=True)


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(*pair) for pair in pairs(one, other))


def all_differ(one: Any, other: Any) -> bool:
    """Whether no leaf is the same."""
    return not any(np.array_equal(*pair) for pair in pairs(one, other))


def assert_close(actual: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for left, right in pairs(actual, expected):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)
