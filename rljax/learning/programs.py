"""Compiled programs that all trainings of one process share.

Objects with compiled functions are kept here, and replace equal ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Any, TypeVar

import jax

T = TypeVar("T", bound=Hashable)

MOST = 16  # objects: programs take memory maps, of which Linux allows a process 65,530


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a method a compiled function of its object; `options` are those of `jax.jit`."""

    def decorate(method: Callable[..., Any]) -> Any:
        return functools.cached_property(lambda self: jax.jit(method.__get__(self), **options))

    return decorate


def shared(owner: T, arguments: Any) -> T:
    """`owner`, or an equal object that was given before for arguments of the same structure.

    Compiled functions of `owner` depend only on the fields by which it is comparedand the structure
    of `arguments`.
    """
    return _first(owner, jax.tree.structure(arguments))


@functools.lru_cache(maxsize=MOST)
def _first(owner: T, structure: Any) -> T:
    del structure
    return owner


class Contents:
    """The attributes of a module now: a change or reload makes others."""

    def __init__(self, module: Any) -> None:
        """Objects that are not modules are compared by identity."""
        held = tuple(vars(module).values()) if isinstance(module, ModuleType) else ()
        self.module: Any = module
        self.held = (module, *held)  # alive, so that no other object gets their identity
        self.identities = tuple(map(id, self.held))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self.identities == other.identities

    def __hash__(self) -> int:
        return hash(self.identities)
