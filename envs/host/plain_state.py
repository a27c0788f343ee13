"""Attributes of environments as plain data: numbers, texts, containers, arrays, random generators and spaces.

Unlike a pickle, plain data name no code: decoding them makes only values of the kinds below. Shared values stay shared,
and cycles remain.

A document is a list of nodes, a root, and buffers of bytes. A value is None, a truth value, a number, a text, or [i]
for node i. A node is a kind and its content:

    list, tuple, set, frozenset, deque   values (deque: and its greatest length)
    dict                                 pairs of values
    bytes, array, scalar, dtype          a buffer, with type and shape
    generator, bits, seed                NumPy's random numbers
    object                               one of Gymnasium's spaces or running means, and its attributes
    action                               a button of the Arcade Learning Environment
    part                                 a part of the environment: see `rljax.envs.host.saved_simulators`
    same                                 a function or class, which the restored environment must have itself
"""

from __future__ import annotations

import collections
import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd

Place = tuple[int, str | None]

_ATOMS = (types.NoneType, bool, int, float, str)
_SEQUENCES: dict[str, Callable[..., Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_BITS: dict[str, Any] = {
    name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
}
_OBJECTS = {
    kind.__name__: kind
    for kind in (
        spaces.Box,
        spaces.Discrete,
        spaces.MultiBinary,
        spaces.MultiDiscrete,
        spaces.Dict,
        spaces.Tuple,
        spaces.Text,
        RunningMeanStd,
    )
}
_NAMED = (types.FunctionType, types.BuiltinFunctionType, type)  # kept by name


class NotPlainError(Exception):
    """A value is of another kind; the message says which."""


class StateEncoder:
    """Turns a value into nodes and buffers.

    `parts` are encoded by their places. `named` are the places of the environment's attributes. `loses_state` says
    whether a copy of a value would behave differently.
    """

    def __init__(
        self, parts: Mapping[Place, Any], named: Mapping[Place, Any], loses_state: Callable[[Any], bool]
    ) -> None:
        self.nodes: list[Any] = []
        self.buffers: list[bytes] = []
        self._places = {id(part): place for place, part in reversed(list(parts.items()))}
        self._named = {id(value): place for place, value in named.items() if isinstance(value, _NAMED)}
        self._known: dict[int, int] = {}
        self._loses_state = loses_state
        self._alive: list[Any] = []  # so that no `id` is used twice

    def encode(self, value: Any) -> Any:
        """The value, as an atom or a reference to a node. Raises `NotPlainError`."""
        if type(value) in _ATOMS:
            return value
        if id(value) in self._known:
            return [self._known[id(value)]]
        index = self._known[id(value)] = len(self.nodes)
        self.nodes.append(None)
        self._alive.append(value)
        self.nodes[index] = self._node(value)
        return [index]

    def _node(self, value: Any) -> list[Any]:
        place = self._places.get(id(value))
        kind: Any = type(value)
        if place is not None:
            return ["part", *place]
        if self._loses_state(value):
            raise NotPlainError(f"a {kind.__name__} that a copy would not be equal to")
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.encode(item) for item in value]]
        if kind is collections.deque:
            return ["deque", [self.encode(item) for item in value], value.maxlen]
        if kind is dict:
            return ["dict", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        if kind is bytes:
            return ["bytes", self._buffer(value)]
        if isinstance(value, np.dtype):
            return ["dtype", _plain_dtype(value).str]
        if (kind is np.ndarray or issubclass(kind, np.generic)) and value.dtype.kind in "biufcSU":
            order = "F" if kind is np.ndarray and value.flags.f_contiguous and not value.flags.c_contiguous else "C"
            name = "array" if kind is np.ndarray else "scalar"
            return [name, value.dtype.str, list(value.shape), order, self._buffer(value.tobytes(order))]
        if kind is np.random.Generator:
            return ["generator", self.encode(value.bit_generator)]
        if _BITS.get(kind.__name__) is kind:
            return ["bits", kind.__name__, self.encode(value.state), self.encode(value.seed_seq)]
        if kind is np.random.SeedSequence:
            return ["seed", self.encode(value.state)]
        if _OBJECTS.get(kind.__name__) is kind:
            return ["object", kind.__name__, self.encode(vars(value))]
        if kind.__module__.startswith("ale_py.") and kind.__name__ == "Action":
            return ["action", value.name]
        if id(value) in self._named:
            return ["same", *self._named[id(value)], f"{value.__module__}.{value.__qualname__}"]
        raise NotPlainError(f"{kind.__module__}.{kind.__qualname__}")

    def _buffer(self, content: bytes) -> int:
        self.buffers.append(content)
        return len(self.buffers) - 1


class StateDecoder:
    """Turns nodes and buffers into values again.

    `parts` and `named` are those of the restored environment. Errors of any type are raised for nodes that no
    `StateEncoder` made.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        buffers: Sequence[bytes],
        parts: Mapping[Place, Any],
        named: Mapping[Place, Any],
    ) -> None:
        self._nodes, self._buffers, self._parts, self._named = nodes, buffers, parts, named
        self._made: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        """The value of an atom or a reference."""
        if type(value) in _ATOMS:
            return value
        (index,) = value
        if index not in self._made:
            kind, *held = self._nodes[index]
            made = self._open(index, kind, held) if kind in ("list", "deque", "dict", "object") else None
            self._made[index] = self._value(kind, held) if made is None else made
        return self._made[index]

    def _open(self, index: int, kind: str, held: list[Any]) -> Any:
        """A container. It is stored before its items are made, because these may refer to it."""
        made: Any
        if kind == "dict":
            made = self._made[index] = {}
            for key, item in held[0]:
                made[self.decode(key)] = self.decode(item)
        elif kind == "object":
            kind_of_object: Any = _OBJECTS[held[0]]
            made = self._made[index] = kind_of_object.__new__(kind_of_object)
            vars(made).update(self.decode(held[1]))
        else:
            made = self._made[index] = [] if kind == "list" else collections.deque(maxlen=held[1])
            for item in held[0]:
                made.append(self.decode(item))
        return made

    def _value(self, kind: str, held: list[Any]) -> Any:
        if kind == "part":
            return self._parts[held[0], held[1]]
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self.decode(item) for item in held[0])
        if kind == "bytes":
            return self._buffers[held[0]]
        if kind in ("array", "scalar"):
            array = np.frombuffer(self._buffers[held[3]], _dtype(held[0])).reshape(held[1], order=held[2])
            return array.copy(held[2]) if kind == "array" else array[()]
        if kind == "dtype":
            return _dtype(held[0])
        if kind == "generator":
            return np.random.Generator(self.decode(held[0]))
        if kind == "bits":
            bits = _BITS[held[0]](self.decode(held[2]))
            bits.state = self.decode(held[1])
            return bits
        if kind == "seed":
            return np.random.SeedSequence(**self.decode(held[0]))
        if kind == "action":
            return importlib.import_module("ale_py").Action.__members__[held[0]]  # old versions have no Action[...]
        if kind == "same":
            present = self._named[held[0], held[1]]
            if not isinstance(present, _NAMED) or f"{present.__module__}.{present.__qualname__}" != held[2]:
                raise ValueError(f"the attribute '{held[1]}' should be {held[2]}")
            return present
        raise ValueError(f"there is no node of kind {kind!r}")


def _plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "biufcSU":
        raise NotPlainError(f"the type {dtype}")
    return dtype


def _dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in "biufcSU":
        raise ValueError(f"there is no array of type {dtype}")
    return dtype
