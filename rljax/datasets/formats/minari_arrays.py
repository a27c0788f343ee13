"""The arrays of an episode in Minari's files, read and written by the spaces in the metadata.

Vectors, and dictionaries and tuples without pictures, become vectors, in the order of Gymnasium's
`flatten`. Where there are pictures or masks of actions, observations are those that agents see in
the environment: `rljax.envs.host.spaces` translates both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rljax.agent import MASK, EnvSpec, difference, shown
from rljax.datasets.formats import minari_spaces, schema, text

MOST_NUMBERS = 1 << 22  # in one observation: Gymnasium's spaces hold two arrays of their bounds
INFO_MASK = f"infos/{MASK}"  # where Minari keeps the masks that an environment gives in `info`


class Observations:
    """Reads the observations of a data set."""

    def __init__(self, name: str, observation_space: Any, action_space: Any, masked: bool) -> None:
        """`name` is the file's in messages; `masked` says whether each episode holds `INFO_MASK`.

        Raises `ValueError` for spaces that agents cannot see.
        """
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
            both = (
                minari_spaces.gymnasium_space(observation_space, name),
                minari_spaces.gymnasium_actions(action_space),
            )
            translated = Spaces(*both, name)
            if masked and translated.discrete and not translated.parts:
                translated = Spaces(*both, name, masked=True)
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
        """The observations of an episode, a tree of arrays [T+1, ...];
        `key` is that of the episode.
        """
        stored, place = episode["observations"], f"{key}/observations"
        if self._spaces is None:
            return flattened(stored, self.space, self.name, place)
        value = _value(stored, self.space, self.name, place)
        lengths = {len(leaf) for leaf in _leaves(value)}
        if len(lengths) != 1:
            raise ValueError(
                f"'{self.name}': the parts of '{place}' have {sorted(lengths)} rows. Download "
                "it again."
            )
        mask = None
        if self._spaces.masked:
            mask = schema.stored(
                schema.numbers(_inside(episode, INFO_MASK), self.name, f"{key}/{INFO_MASK}")
            )
        try:
            return self._spaces.observe(value, (*lengths,), mask)
        except ValueError as error:
            raise ValueError(
                f"'{self.name}': '{place}' holds {text.shortened(str(error))}"
            ) from error

    def note(self, size: int) -> str | None:
        """A note on how agents see observations that are dictionaries or tuples;
        None if they see them unchanged.

        `size` is the length of a flattened observation.
        """
        if self._spaces is not None:
            return self._spaces.note
        if self.space and self.space["type"] in ("Dict", "Tuple"):
            names = ", ".join(minari_spaces.part_names(self.space))
            return f"'{self.name}': observations ({names}) are flattened to {size} numbers."
        return None


def written(spec: EnvSpec, action_space: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """The observation space of a data set, and a function from observations [T+1, ...] to arguments
    of Minari's buffer.

    Raises `ValueError` if reading would return observations of other spaces.
    """
    from gymnasium import spaces

    from rljax.envs.host.spaces import ONLY, Spaces

    def space_of(shape: tuple[int, ...], dtype: str) -> Any:
        limits: Any = {"uint8": (0, 255), "bool": (0, 1)}.get(dtype, (-np.inf, np.inf))
        low, high = limits
        return spaces.Box(low, high, shape, np.dtype("int8" if dtype == "bool" else dtype))  # type: ignore[arg-type]

    def split(observation: Any) -> dict[str, Any]:
        if not masked:
            return {
                "observations": jax.tree.map(
                    lambda x: x.astype(np.int8) if x.dtype == bool else x, observation
                )
            }
        return {"observations": observation[ONLY], "infos": {MASK: observation[MASK]}}

    masked = [part.name for part in spec.parts] == sorted((MASK, ONLY))
    each: Any = {part.name: space_of(part.shape, part.dtype) for part in spec.parts}
    space = each[ONLY] if masked else spaces.Dict(each) if each else None
    space = space_of(spec.observation_shape, spec.observation_dtype) if space is None else space
    if difference(Spaces(space, action_space, spec.name, masked).spec(), spec) is not None:
        raise ValueError(
            f"'{spec.name}' shows {shown(spec)}, which cannot be read back from a Minari data set. "
            "Write an archive instead: rljax.datasets.write_archive."
        )
    return space, split


def has_masks(episodes: list[Mapping[str, Any]]) -> bool:
    """Whether each episode holds masks of allowed actions beside its observations."""
    return bool(episodes) and all(_inside(episode, INFO_MASK) is not None for episode in episodes)


def signals(episode: Mapping[str, Any], name: str, key: str, steps: int) -> dict[str, np.ndarray]:
    """The signals [T, K...] of an episode: `infos/cost`,
    and `infos/signals/NAME` as `with_signals` writes them.

    Minari stores the values of the reset before those of the steps: of T + 1 rows, the first is
    left out.
    """
    infos = _inside(episode, "infos")
    columns = schema.signals(infos, name) if hasattr(infos, "keys") else {}
    columns = {
        signal: column[1:] if len(column) == steps + 1 else column
        for signal, column in columns.items()
    }
    for signal, column in columns.items():
        if len(column) != steps:
            raise ValueError(
                f"'{name}': the signal '{signal}' of {key} has {len(column)} rows, and there are "
                f"{steps} rewards. Download it again."
            )
    return columns


def joined_signals(episodes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Signals [N, K...] of all episodes. A signal that some episode lacks is left out."""
    names = set.intersection(*(set(signals) for signals in episodes))
    return {
        signal: np.concatenate([signals[signal] for signals in episodes])
        for signal in sorted(names)
    }


def with_signals(arrays: dict[str, Any], signals: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The arguments of Minari's buffer, with signals [T, K...] added to the infos.

    Those of the reset are zeros.
    """
    if not signals:
        return arrays
    columns = {
        name: np.concatenate([np.zeros_like(column[:1]), column])
        for name, column in signals.items()
    }
    return arrays | {"infos": arrays.get("infos", {}) | {"signals": columns}}


def actions(stored: Any, space: Any, name: str, key: str) -> np.ndarray:
    """Actions of an episode: [T, A] for a Box, [T] for a Discrete space,
    [T, K] for several discrete actions.
    """
    start = space.get("start", 0) if space else 0
    if space is not None and space["type"] in ("MultiDiscrete", "MultiBinary"):
        action = schema.stored(schema.numbers(leaf(stored, name, key), name, key))
        number = len(minari_spaces.choices(space))
        if math.prod(action.shape[1:]) != number:
            raise ValueError(
                f"'{name}': '{key}' has shape {action.shape}, its space has {number} actions."
            )
        action = schema.several_actions(action.reshape(len(action), -1), name, key)
        return action - np.ravel(start).astype(np.int32)
    action = schema.actions(
        leaf(stored, name, key),
        name,
        key,
        int(start) if space and space["type"] == "Discrete" else 0,
    )
    if space is None or (action.ndim == 1) == (space["type"] == "Discrete"):
        return action
    if space["type"] == "Box":
        return schema.vectors(stored, name, key)
    raise ValueError(
        f"'{name}': '{key}' is {stored.dtype}{list(stored.shape)}, and the action space is "
        "Discrete. Discrete actions must be stored as one integer per row. Correct the file, or "
        "its 'action_space'."
    )


def flattened(stored: Any, space: Any, name: str, key: str) -> np.ndarray:
    """Observations [T+1, O] from an HDF5 dataset, or from a group in the order in which Gymnasium
    flattens it.
    """
    if not hasattr(stored, "keys"):
        if space and space["type"] == "Discrete":  # one-hot, like Gymnasium's `flatten`
            choice = schema.actions(leaf(stored, name, key), name, key, int(space.get("start", 0)))
            number = int(space["n"])
            if choice.dtype != np.int32 or choice.max(initial=0) >= number:
                raise ValueError(
                    f"'{name}': '{key}' must hold {number} choices as integers. Download it again."
                )
            text.require_memory(name, key, text.nbytes_of((len(choice), number), 4))
            return (choice[:, None] == np.arange(number)).astype(np.float32)
        return (schema.observed if space is None else schema.vectors)(
            leaf(stored, name, key), name, key
        )
    parts = list(_named(stored, space, name, key))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller warns once for all parts
        return np.concatenate(
            [flattened(stored[part], below, name, f"{key}/{part}") for part, below in parts], axis=1
        )


def leaf(stored: Any, name: str, key: str) -> Any:
    """An array of numbers. Raises `ValueError` for a group, and for encoded images."""
    if hasattr(stored, "keys"):
        raise ValueError(
            f"'{name}': '{key}' is a dictionary ({text.listed(stored)}); actions must be "
            "vectors or discrete."
        )
    if stored.dtype.kind not in "fiub":
        raise ValueError(
            f"'{name}': '{key}' is {stored.dtype}, it must be numbers; encoded images are "
            "not supported."
        )
    return stored


def _named(stored: Any, space: Any, name: str, key: str) -> Iterator[tuple[str, Any]]:
    """The parts of a group and their spaces, in the order in which Gymnasium flattens them."""
    if key.count("/") > schema.DEEPEST:
        raise ValueError(f"'{name}': '{key}' lies too deep within groups. Download it again.")
    if space is None or space["type"] not in ("Dict", "Tuple"):
        named: list[tuple[str, Any]] = [(part, None) for part in sorted(stored)]
    elif space["type"] == "Tuple":
        named = [(f"_index_{index}", below) for index, below in enumerate(space["subspaces"])]
    else:
        named = [(part, space["subspaces"][part]) for part in sorted(space["subspaces"])]
    missing = [part for part, _ in named if part not in stored]
    if missing or not named:
        lacking = text.listed(missing or ["arrays"])
        raise ValueError(
            f"'{name}': '{key}' lacks {lacking}; it has: {text.listed(stored)}. Download it again."
        )
    yield from named


def _value(stored: Any, space: Any, name: str, key: str) -> Any:
    """Observations as Gymnasium has them: dictionaries and tuples of arrays [T+1, ...],
    without texts.
    """
    if space["type"] not in ("Dict", "Tuple"):
        return schema.stored(schema.numbers(leaf(stored, name, key), name, key))
    if not hasattr(stored, "keys"):
        raise ValueError(
            f"'{name}': '{key}' is one array, its space is a {space['type']}. Download it again."
        )
    parts = [
        (
            part,
            None if below["type"] == "Text" else _value(stored[part], below, name, f"{key}/{part}"),
        )
        for part, below in _named(stored, space, name, key)
    ]
    return dict(parts) if space["type"] == "Dict" else tuple(value for _, value in parts)


def _leaves(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, dict | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    elif value is not None:
        yield value


def _inside(episode: Any, path: str) -> Any:
    """The array at a path of an episode; None where there is none."""
    first, _, rest = path.partition("/")
    if not hasattr(episode, "keys") or first not in episode:
        return None
    return _inside(episode[first], rest) if rest else episode[first]
