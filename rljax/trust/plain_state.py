"""Attributes of environments as plain data, which name no code; shared values stay shared.

A document is a list of nodes, roots, and buffers of bytes. A value is None, a truth value, a
number, a text, or [i] for node i. A node is a kind and its content:

    list, tuple, set, frozenset, deque   values (deque: and its greatest length)
    dict                                 pairs of values
    bytes, array, scalar, dtype          a buffer, with type and shape
    generator, bits, seed                NumPy's random numbers
    object                               a Gymnasium space or running mean, and its attributes
    action                               a button of the Arcade Learning Environment
    part                                 a part that the reader has, by its place
    same                                 a function or class that the reader must have
"""

from __future__ import annotations

import collections
import importlib
import json
import struct
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd

from rljax.trust.states import PLAIN

Place = tuple[int, str | None]

_KINDS = "biufcSU"  # of arrays
_ATOMS = (types.NoneType, bool, int, float, str)
_SEQUENCES: dict[str, Callable[..., Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_BITS: dict[str, Any] = {
    name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
}
_SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Dict", "Tuple", "Text")
_OBJECTS = {name: getattr(spaces, name) for name in _SPACES} | {"RunningMeanStd": RunningMeanStd}
_BY_NAME = (types.FunctionType, types.BuiltinFunctionType, type)  # stored as their names


class NotPlainError(Exception):
    """A value is of another kind; the message says which."""


class StateEncoder:
    """Turns a value into nodes and buffers.

    `parts` and the values of all `attributes` are given by their places. `loses_state` says whether
    a copy would behave differently.
    """

    def __init__(
        self,
        parts: Mapping[Place, Any],
        attributes: Mapping[Place, Any],
        loses_state: Callable[[Any], bool],
    ) -> None:
        self.nodes: list[Any] = []
        self.buffers: list[bytes] = []
        self._places = {id(part): place for place, part in reversed(list(parts.items()))}
        named = {place: value for place, value in attributes.items() if isinstance(value, _BY_NAME)}
        self._names = {id(value): place for place, value in named.items()}
        self._indices: dict[int, int] = {}
        self._loses_state = loses_state
        self._alive: list[Any] = []  # so that no `id` is used twice

    def encode(self, value: Any) -> Any:
        """An atom or a reference to a node. Raises `NotPlainError`."""
        if type(value) in _ATOMS:
            return value
        if id(value) in self._indices:
            return [self._indices[id(value)]]
        index = self._indices[id(value)] = len(self.nodes)
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
        is_array = kind is np.ndarray
        if (is_array or issubclass(kind, np.generic)) and value.dtype.kind in _KINDS:
            is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
            order = "F" if is_array and is_fortran else "C"
            name = "array" if is_array else "scalar"
            buffer = self._buffer(value.tobytes(order))
            return [name, value.dtype.str, list(value.shape), order, buffer]
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
        if id(value) in self._names:
            return ["same", *self._names[id(value)], _full_name(value)]
        raise NotPlainError(_full_name(kind))

    def _buffer(self, content: bytes) -> int:
        self.buffers.append(content)
        return len(self.buffers) - 1


class StateDecoder:
    """Turns nodes and buffers into values again.

    `parts` and `attributes` are those of the restored environment.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        buffers: Sequence[bytes],
        parts: Mapping[Place, Any],
        attributes: Mapping[Place, Any],
    ) -> None:
        self._nodes, self._buffers = nodes, buffers
        self._parts, self._attributes = parts, attributes
        self._values: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        """The value of an atom or a reference."""
        if type(value) in _ATOMS:
            return value
        (index,) = value
        if index not in self._values:
            kind, *content = self._nodes[index]
            if kind in ("list", "deque", "dict", "object"):
                self._fill(index, kind, content)
            else:
                self._values[index] = self._value(kind, content)
        return self._values[index]

    def _fill(self, index: int, kind: str, content: list[Any]) -> None:
        """Fill a container after it is stored: items may refer to it."""
        container: Any
        if kind == "dict":
            container = self._values[index] = {}
            for key, item in content[0]:
                container[self.decode(key)] = self.decode(item)
        elif kind == "object":
            object_class: Any = _OBJECTS[content[0]]
            container = self._values[index] = object_class.__new__(object_class)
            vars(container).update(self.decode(content[1]))
        else:
            container = [] if kind == "list" else collections.deque(maxlen=content[1])
            self._values[index] = container
            for item in content[0]:
                container.append(self.decode(item))

    def _value(self, kind: str, content: list[Any]) -> Any:
        if kind == "part":
            return self._parts[content[0], content[1]]
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self.decode(item) for item in content[0])
        if kind == "bytes":
            return self._buffers[content[0]]
        if kind in ("array", "scalar"):
            dtype, shape, order, buffer = content
            flat = np.frombuffer(self._buffers[buffer], _plain_dtype(dtype))
            array = flat.reshape(shape, order=order)
            return array.copy(order) if kind == "array" else array[()]
        if kind == "dtype":
            return _plain_dtype(content[0])
        if kind == "generator":
            return np.random.Generator(self.decode(content[0]))
        if kind == "bits":
            bits = _BITS[content[0]](self.decode(content[2]))
            bits.state = self.decode(content[1])
            return bits
        if kind == "seed":
            return np.random.SeedSequence(**self.decode(content[0]))
        if kind == "action":
            actions = importlib.import_module("ale_py").Action
            return actions.__members__[content[0]]  # old versions have no Action[...]
        if kind == "same":
            place, attribute, name = content
            present = self._attributes[place, attribute]
            if not isinstance(present, _BY_NAME) or _full_name(present) != name:
                raise ValueError(f"the attribute '{attribute}' should be {name}")
            return present
        raise ValueError(f"there is no node of kind {kind!r}")


def dump(values: Mapping[str, Any], encoder: StateEncoder) -> bytes:
    """A plain document of named values. Raises `NotPlainError`."""
    roots = {name: encoder.encode(value) for name, value in values.items()}
    sizes = [len(buffer) for buffer in encoder.buffers]
    head = json.dumps({"roots": roots, "nodes": encoder.nodes, "sizes": sizes}).encode()
    content = b"".join([struct.pack("<Q", len(head)), head, *encoder.buffers])
    return PLAIN + zlib.compress(content, level=1)


def load(
    document: bytes, most: int, parts: Mapping[Place, Any], attributes: Mapping[Place, Any]
) -> Callable[[str], Any]:
    """A function that decodes the values of a plain document by their names; see `StateDecoder`.

    Both raise errors of any type for documents that `dump` did not make, and `ValueError` for cut
    ones and more than `most` uncompressed bytes.
    """
    unpacking = zlib.decompressobj()
    content = memoryview(unpacking.decompress(document[len(PLAIN) :], most))
    if not unpacking.eof:
        raise ValueError(f"it was cut, or has more than {most:,} bytes")
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(bytes(content[8 : 8 + length]))
    start, buffers = 8 + length, []
    for size in head["sizes"]:
        if not 0 <= size <= len(content) - start:
            raise ValueError("it was cut")
        buffers.append(bytes(content[start : start + size]))
        start += size
    decoder, roots = StateDecoder(head["nodes"], buffers, parts, attributes), head["roots"]
    return lambda name: decoder.decode(roots[name])


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _plain_dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS:
        raise NotPlainError(f"the type {dtype}")
    return dtype
