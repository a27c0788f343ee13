"""The exact state of Gymnasium environments as bytes.

An environment is a stack of layers: wrappers, and the environment itself inside them. Fixtures are
attributes that are not saved, such as a renderer: a fresh environment has its own. Saved states
refer to layers and fixtures, the parts, by their place: (index of the layer, name of the attribute,
or None for the layer itself). Attributes go on sharing what they shared.

Where all attributes are plain data (`rljax.trust.plain_state`), so is the state, and simulators are
in their packages' formats. Otherwise all attributes are one pickle, which `restore` takes only as a
`rljax.trust.TrustedState`.
"""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys
import types
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from rljax import trust
from rljax.trust import plain_state

_FIXTURES = {"env", "spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs"}
_FIXTURES |= {"_ezpickle_args", "_ezpickle_kwargs"}
_SIMPLE = (types.NoneType, bool, int, float, str, bytes, tuple)

Place = plain_state.Place

MOST = 1 << 26  # bytes of one environment's plain state, uncompressed


class CannotSaveError(Exception):
    """Some attribute cannot be saved; the message says which."""


def save(environments: Sequence[Any], batch: tuple[np.ndarray, ...]) -> bytes:
    """The exact state of `environments`, and `batch`: arrays that `restore` returns.

    Raises `CannotSaveError`.
    """
    parts, kinds = _parts(environments), ("MjData", "ALEInterface")
    simulators = {place: part for place, part in parts.items() if is_native(part, *kinds)}
    state = {
        "layers": _layer_names(environments),
        "versions": {package: _version(package) for package in map(_package, simulators.values())},
        "simulators": {place: _save_simulator(part) for place, part in simulators.items()},
        "hosted": batch,
    }
    attributes = _attributes(environments)
    try:
        encoder = plain_state.StateEncoder(parts, _by_place(attributes), _loses_state)
        return plain_state.dump({**state, "attributes": attributes}, encoder)
    except (plain_state.NotPlainError, RecursionError):
        pass
    try:
        state["attributes"] = _dump(attributes, parts)
    except Exception as error:
        reason = _unsaveable_attribute(environments, parts) or f"{type(error).__name__}: {error}"
        raise CannotSaveError(reason) from error
    return zlib.compress(pickle.dumps(state), level=1)


def restore(blob: bytes, environments: Sequence[Any], name: str) -> tuple[np.ndarray, ...]:
    """Give `environments`, called `name` in messages, the state that `save` returned; its `batch`.

    Raises what `Hosted.restore` raises.
    """
    trust.require_no_pickle(blob, name)
    parts = _parts(environments)
    try:
        load = _load_pickle if trust.is_pickle(blob) else _load_plain
        state = load(blob, environments, parts)
        layers, simulators, versions = state["layers"], state["simulators"], state["versions"]
        first, package_versions = layers[0], list(versions.items())
    except Exception as error:
        raise ValueError(
            f"this is not a state of '{name}' saved by Hosted.save: {error}."
        ) from error
    present = _layer_names(environments)
    if layers != present:
        raise ValueError(
            f"the saved state is of {len(layers)} x {first}, '{name}' is {len(present)} x "
            f"{present[0]}. Make the same number of the same environments."
        )
    for package, version in package_versions:
        if version != _version(package):
            raise ValueError(
                f"the state of '{name}' was saved with {package} {version}, this is "
                f"{_version(package)}. To continue it: pip "
                f"install {package.replace('_', '-')}=={version}"
            )
    try:
        for place, simulator in simulators.items():
            _restore_simulator(simulator, parts[place])
        attributes = state["attributes"]()
        for layer, values in zip(_layers(environments), attributes, strict=True):
            _replace_attributes(layer, values)
    except Exception as error:
        raise ValueError(
            f"the saved state does not fit '{name}': {type(error).__name__}: {error}. "
            "Make the environments with the same settings, from the same code."
        ) from error
    return state["hosted"]


def is_native(value: Any, *kinds: str) -> bool:
    """Whether `value` is a simulator's memory, of one of `kinds`: pickle cannot copy all of it."""
    kinds = kinds or ("MjData", "MjModel", "ALEInterface")
    return type(value).__name__ in kinds and _package(value) in ("mujoco", "ale_py")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: dict[Place, Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.places = {id(part): place for place, part in reversed(parts.items())}

    def persistent_id(self, obj: Any) -> Place | None:
        place = self.places.get(id(obj))
        if place is None and _loses_state(obj):
            raise pickle.PicklingError(
                f"it holds a {type(obj).__name__} that a copy would not be equal to"
            )
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: dict[Place, Any]) -> None:
        super().__init__(file)
        self.parts = parts

    def persistent_load(self, pid: Place) -> Any:
        return self.parts[pid]


def _load_pickle(
    blob: bytes, environments: Sequence[Any], parts: dict[Place, Any]
) -> dict[str, Any]:
    """The state in a pickle, whose simulators are pickles too. `attributes` loads them."""
    state = pickle.loads(zlib.decompress(blob))
    state["simulators"] = {
        place: (content if isinstance(content, tuple) else pickle.loads(content), fields)
        for place, (content, fields) in state["simulators"].items()
    }
    return state | {"attributes": _Unpickler(io.BytesIO(state["attributes"]), parts).load}


def _load_plain(
    blob: bytes, environments: Sequence[Any], parts: dict[Place, Any]
) -> dict[str, Any]:
    attributes = _by_place(_attributes(environments))
    value = plain_state.load(blob, MOST * len(environments), parts, attributes)
    state = {name: value(name) for name in ("layers", "versions", "simulators", "hosted")}
    return state | {"attributes": lambda: value("attributes")}


def _by_place(attributes: Sequence[dict[str, Any]]) -> dict[Place, Any]:
    return {
        (index, name): value
        for index, values in enumerate(attributes)
        for name, value in values.items()
    }


def _replace_attributes(layer: Any, values: dict[str, Any]) -> None:
    """Give a layer the saved attributes, and no others but fixtures."""
    for name, value in list(vars(layer).items()):
        if name not in values and not _is_fixture(name, value):
            delattr(layer, name)
    if not all(isinstance(name, str) and name not in _FIXTURES for name in values):
        raise ValueError("it replaces fixtures of an environment")
    vars(layer).update(values)


def _dump(value: Any, parts: dict[Place, Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, parts).dump(value)
    return file.getvalue()


def _layers(environments: Any) -> Iterator[Any]:
    """All layers, the outermost of each environment first."""
    for environment in environments:
        while isinstance(environment, gymnasium.Wrapper):
            yield environment
            environment = environment.env
        yield environment


def _layer_names(environments: Any) -> list[str]:
    """One line per environment. Saved states hold them: a wrapper's class must keep its name."""
    stacks = ([type(layer).__name__ for layer in _layers([x])] for x in environments)
    return ["<".join(stack) for stack in stacks]


def _parts(environments: Any) -> dict[Place, Any]:
    parts: dict[Place, Any] = {}
    for index, layer in enumerate(_layers(environments)):
        parts[index, None] = layer
        for name, value in vars(layer).items():
            if _is_fixture(name, value) and not isinstance(value, _SIMPLE):
                parts[index, name] = value
    return parts


def _attributes(environments: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in vars(layer).items() if not _is_fixture(name, value)}
        for layer in _layers(environments)
    ]


def _is_fixture(name: str, value: Any) -> bool:
    if name in _FIXTURES or is_native(value) or isinstance(value, types.ModuleType):
        return True
    if isinstance(value, types.FunctionType):
        return "<" in value.__qualname__  # pickle finds all other functions by their names
    rendering = "gymnasium.envs.mujoco.mujoco_rendering"
    return type(value).__module__ == rendering or _package(value) == "pygame"


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _version(package: str) -> str | None:
    return getattr(sys.modules.get(package), "__version__", None)


def _loses_state(value: Any) -> bool:
    """Whether pickle would copy `value` without an error, and the copy would behave differently."""
    if isinstance(value, np.ndarray):
        base: Any = value
        while isinstance(base, np.ndarray):
            base = base.base
        # A writeable view of a simulator's memory would no longer be one.
        return type(base).__name__ == "PyCapsule" and value.flags.writeable
    return isinstance(value, (gymnasium.Env, EzPickle)) or is_native(value)


def _unsaveable_attribute(environments: Any, parts: dict[Place, Any]) -> str | None:
    for (index, name), value in _by_place(_attributes(environments)).items():
        try:
            _dump(value, parts)
        except Exception as error:
            layer = type(parts[index, None]).__name__
            return f"the attribute '{name}' of {layer} cannot be saved: {error}"
    return None


def _save_simulator(data: Any) -> tuple[tuple[str, bytes], dict[str, Any]]:
    """An MjData with its model, and the fields that MuJoCo leaves out; or an Atari console."""
    if is_native(data, "ALEInterface"):
        return ("ALEState", data.cloneState(include_rng=True).__getstate__()), {}
    fields = {name: copy.copy(getattr(data, name)) for name in _unsaved_fields(data)}
    return ("MjData", data.__getstate__()), fields


def _unsaved_fields(data: Any) -> list[str]:
    starts, counts = ("flg_", "solver_"), ("ne", "nf", "nl")
    return [name for name in dir(data) if name.startswith(starts) or name in counts]


def _restore_simulator(saved: tuple[Any, dict[str, Any]], present: Any) -> None:
    content, fields = saved
    if is_native(present, "ALEInterface"):
        present.restoreState(_native(content, "ale_py", "ALEState"))
        return
    data = _native(content, "mujoco", "MjData")
    _copy_fields(data.model, present.model)
    importlib.import_module("mujoco").mj_copyData(present, present.model, data)
    for name in _unsaved_fields(present):
        if name in fields:
            setattr(present, name, fields[name])  # arrays too: the setter copies


def _native(content: Any, package: str, kind: str) -> Any:
    """A simulator's state from its package's bytes; a pickle has held the object itself."""
    if not isinstance(content, tuple):
        return content
    name, state = content
    if name != kind:
        raise ValueError(f"a {name} where a {kind} is needed")
    simulator_class = getattr(importlib.import_module(package), kind)
    simulator = simulator_class.__new__(simulator_class)
    simulator.__setstate__(state)
    return simulator


def _copy_fields(saved: Any, present: Any) -> None:
    """Copy one of MuJoCo's structures: environments may change them, some at every reset."""
    for name in dir(present):
        if name.startswith("_"):
            continue
        value = getattr(present, name)
        if isinstance(value, np.ndarray):
            value[...] = getattr(saved, name)
        elif _package(value) == "mujoco":
            _copy_fields(getattr(saved, name), value)
        elif isinstance(value, (int, float)) and not is_native(present, "MjModel"):
            # A model's numbers are its sizes.
            setattr(present, name, getattr(saved, name))
