"""The arrays of an episode in Minari's files, read and written by the spaces in the metadata.

Vectors, and dictionaries and tuples without pictures, become vectors in the order of Gymnasium's
`flatten`. Signals are `infos/cost` and `infos/signals/NAME`. In messages `name` is the file's and
`key` the array's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from rljax.agent import MASK, EnvSpec, difference, shown
from rljax.datasets.formats import minari_spaces, schema, text

MOST_NUMBERS = 1 << 22  # in one observation
INFO_MASK = f"infos/{MASK}"  # where Minari keeps the masks that an environment gives in `info`


class Observations:
    """Reads the observations of a data set."""

    def __init__(self, name: str, observation_space: Any, action_space: Any, masked: bool) -> None:
        """`masked`: whether each episode holds `INFO_MASK`."""
        self.name, self.space, self._spaces = name, observation_space, None
        if observation_space is None or not minari_spaces.needs_translation(
            observation_space, action_space, masked
        ):
            return
        from rljax.envs.host.spaces import Spaces

        number = sum(
            math.prod(box.get("shape", ()))
            for box in minari_spaces.simple_spaces(observation_space)
            if box["type"] == "Box"
        )
        if number > MOST_NUMBERS:
            raise ValueError(
                f"'{name}': by its observation_space, an observation has {number:,} numbers, at "
                f"most {MOST_NUMBERS:,} are read. Correct the file's metadata."
            )
        try:
            shown_space = minari_spaces.gymnasium_space(observation_space)
            choices = minari_spaces.gymnasium_actions(action_space)
            translated = Spaces(shown_space, choices, name)
            if masked and translated.discrete and not translated.parts:
                translated = Spaces(shown_space, choices, name, masked=True)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"'{name}' cannot be shown to agents: {text.shortened(str(error))}"
            ) from error
        shows_more = (
            translated.parts
            or len(translated.observation_shape) == 3
            or minari_spaces.has_kind(observation_space, "MultiDiscrete")
        )
        self._spaces = translated if shows_more else None

    def read(self, episode: Mapping[str, Any], key: str) -> Any:
        """The observations of the episode `key`, a tree of arrays [T+1, ...]."""
        stored, place = episode["observations"], f"{key}/observations"
        if self._spaces is None:
            return flattened(stored, self.space, self.name, place)
        value = _value(stored, self.space, self.name, place)
        lengths = {len(leaf) for leaf in jax.tree.leaves(value)}
        if len(lengths) != 1:
            raise ValueError(
                f"'{self.name}': the parts of '{place}' have {sorted(lengths)} rows. Download "
                "it again."
            )
        mask = None
        if self._spaces.masked:
            mask = _numbers(_inside(episode, INFO_MASK), self.name, f"{key}/{INFO_MASK}")
        try:
            return self._spaces.observe(value, (*lengths,), mask)
        except ValueError as error:
            raise ValueError(
                f"'{self.name}': '{place}' holds {text.shortened(str(error))}"
            ) from error

    def note(self, size: int) -> str | None:
        """What was flattened to `size` numbers, or None."""
        if self._spaces is not None:
            return self._spaces.note
        if self.space and self.space["type"] in ("Dict", "Tuple"):
            names = ", ".join(minari_spaces.part_names(self.space))
            return f"'{self.name}': observations ({names}) are flattened to {size} numbers."
        return None


def written(spec: EnvSpec, action_space: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """The observation space, and a function from observations to arguments of Minari's buffer.

    Raises `ValueError` if reading would return other spaces.
    """
    from gymnasium import spaces

    from rljax.envs.host.spaces import ONLY, Spaces

    def space_of(shape: tuple[int, ...], dtype: str) -> Any:
        limits = {"uint8": (0, 255), "bool": (0, 1)}.get(dtype, (-np.inf, np.inf))
        return spaces.Box(*limits, shape, np.dtype("int8" if dtype == "bool" else dtype))  # type: ignore[arg-type]

    def split(observation: Any) -> dict[str, Any]:
        if masked:
            return {"observations": observation[ONLY], "infos": {MASK: observation[MASK]}}
        stored = jax.tree.map(lambda x: x.astype(np.int8) if x.dtype == bool else x, observation)
        return {"observations": stored}

    masked = [part.name for part in spec.parts] == sorted((MASK, ONLY))
    each: Any = {part.name: space_of(part.shape, part.dtype) for part in spec.parts}
    if masked:
        space = each[ONLY]
    elif each:
        space = spaces.Dict(each)
    else:
        space = space_of(spec.observation_shape, spec.observation_dtype)
    if difference(Spaces(space, action_space, spec.name, masked).spec(), spec) is not None:
        raise ValueError(
            f"'{spec.name}' shows {shown(spec)}, which cannot be read back from a Minari data set: "
            "use rljax.datasets.write_archive."
        )
    return space, split


def has_masks(episodes: list[Mapping[str, Any]]) -> bool:
    """Whether each episode holds masks of allowed actions beside its observations."""
    return bool(episodes) and all(_inside(episode, INFO_MASK) is not None for episode in episodes)


def signals(episode: Mapping[str, Any], name: str, key: str, steps: int) -> dict[str, np.ndarray]:
    """The signals [T, K...] of an episode."""
    infos = _inside(episode, "infos")
    columns = schema.signals(infos, name) if hasattr(infos, "keys") else {}
    for signal, column in columns.items():
        if len(column) == steps + 1:
            columns[signal] = column[1:]
        elif len(column) != steps:
            raise ValueError(
                f"'{name}': the signal '{signal}' of {key} has {len(column)} rows, and there are "
                f"{steps} rewards. Download it again."
            )
    return columns


def with_signals(arrays: dict[str, Any], signals: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The arguments of Minari's buffer with signals [T, K...], which are zeros at the reset."""
    if not signals:
        return arrays
    columns = {name: np.pad(x, [(1, 0), *[(0, 0)] * (x.ndim - 1)]) for name, x in signals.items()}
    return arrays | {"infos": arrays.get("infos", {}) | {"signals": columns}}


def actions(stored: Any, space: Any, name: str, key: str) -> np.ndarray:
    """Actions of an episode: [T, A] of a Box, [T] of a Discrete space, [T, K] of several ones."""
    kind = space["type"] if space else None
    start = space.get("start", 0) if space else 0
    if kind in minari_spaces.SEVERAL:
        action = _numbers(leaf(stored, name, key), name, key)
        number = len(minari_spaces.choices(space))
        if math.prod(action.shape[1:]) != number:
            raise ValueError(
                f"'{name}': '{key}' has shape {action.shape}, its space has {number} actions."
            )
        action = schema.several_actions(action.reshape(len(action), -1), name, key)
        return action - np.ravel(start).astype(np.int32)
    start = int(start) if kind == "Discrete" else 0
    action = schema.actions(leaf(stored, name, key), name, key, start)
    if space is None or (action.ndim == 1) == (kind == "Discrete"):
        return action
    if kind == "Box":
        return schema.vectors(stored, name, key)
    raise ValueError(
        f"'{name}': '{key}' is {stored.dtype}{list(stored.shape)}, and the action space is "
        "Discrete: one integer per row. Correct the file, or its 'action_space'."
    )


def flattened(stored: Any, space: Any, name: str, key: str) -> np.ndarray:
    """Observations [T+1, O] from an array, or from a group in Gymnasium's order."""
    if not hasattr(stored, "keys"):
        array = leaf(stored, name, key)
        if space and space["type"] == "Discrete":  # one-hot, like Gymnasium's `flatten`
            choice = schema.actions(array, name, key, int(space.get("start", 0)))
            number = int(space["n"])
            if choice.dtype != np.int32 or choice.max(initial=0) >= number:
                raise ValueError(
                    f"'{name}': '{key}' must hold {number} choices as integers. Download it again."
                )
            text.require_memory(name, key, text.nbytes_of((len(choice), number), 4))
            return (choice[:, None] == np.arange(number)).astype(np.float32)
        return (schema.observed if space is None else schema.vectors)(array, name, key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [
            flattened(stored[part], below, name, f"{key}/{part}")
            for part, below in _named(stored, space, name, key)
        ]
        return np.concatenate(parts, axis=1)


def _numbers(stored: Any, name: str, key: str) -> np.ndarray:
    return schema.stored(schema.numbers(stored, name, key))


def leaf(stored: Any, name: str, key: str) -> Any:
    """An array of numbers. Raises `ValueError` for a group, and for encoded images."""
    if hasattr(stored, "keys"):
        raise ValueError(
            f"'{name}': '{key}' is a dictionary ({text.listed(stored)}); actions must be "
            "vectors or discrete."
        )
    if stored.dtype.kind not in "fiub":
        raise ValueError(
            f"'{name}': '{key}' is {stored.dtype}, it must be numbers; encoded images are not "
            "supported."
        )
    return stored


def _named(stored: Any, space: Any, name: str, key: str) -> Iterator[tuple[str, Any]]:
    if key.count("/") > schema.DEEPEST:
        raise ValueError(f"'{name}': '{key}' lies too deep within groups. Download it again.")
    if space is None or space["type"] not in ("Dict", "Tuple"):
        named: dict[str, Any] = dict.fromkeys(sorted(stored))
    elif space["type"] == "Tuple":
        named = {f"_index_{index}": below for index, below in enumerate(space["subspaces"])}
    else:
        named = dict(sorted(space["subspaces"].items()))
    missing = [part for part in named if part not in stored]
    if missing or not named:
        lacking = text.listed(missing or ["arrays"])
        raise ValueError(
            f"'{name}': '{key}' lacks {lacking}; it has: {text.listed(stored)}. Download it again."
        )
    yield from named.items()


def _value(stored: Any, space: Any, name: str, key: str) -> Any:
    if space["type"] not in ("Dict", "Tuple"):
        return _numbers(leaf(stored, name, key), name, key)
    if not hasattr(stored, "keys"):
        raise ValueError(
            f"'{name}': '{key}' is one array, its space is a {space['type']}. Download it again."
        )
    parts = {
        part: None
        if below["type"] == "Text"
        else _value(stored[part], below, name, f"{key}/{part}")
        for part, below in _named(stored, space, name, key)
    }
    return parts if space["type"] == "Dict" else tuple(parts.values())


def _inside(episode: Any, path: str) -> Any:
    first, _, rest = path.partition("/")
    if not hasattr(episode, "keys") or first not in episode:
        return None
    return _inside(episode[first], rest) if rest else episode[first]
