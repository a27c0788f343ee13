"""The arrays of an episode of Minari's, by the spaces in its metadata.

Vectors, and dictionaries and tuples without pictures, become vectors, in the order of Gymnasium's `flatten`. Where
there are pictures or masks of actions, observations are those that agents see in the environment:
`rljax.envs.host.spaces` translates both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rljax.agent import MASK, EnvSpec, difference, shown
from rljax.datasets.formats import schema, text

MOST_NUMBERS = 1 << 22  # in one observation: Gymnasium's spaces hold two arrays of their bounds
INFO_MASK = f"infos/{MASK}"  # where Minari keeps the masks that an environment gives in `info`


class Observations:
    """How the observations of a data set are read."""

    def __init__(self, name: str, observation_space: Any, action_space: Any, masked: bool) -> None:
        """`name` is the file's in messages; `masked` says whether each episode holds `INFO_MASK`.

        Raises `ValueError` for spaces that agents cannot see.
        """
        self.name, self.space, self._spaces = name, observation_space, None
        if observation_space is None or not _is_translated(observation_space, action_space, masked):
            return
        from rljax.envs.host.spaces import Spaces

        number = sum(math.prod(box.get("shape", ())) for box in _simple(observation_space) if box["type"] == "Box")
        if number > MOST_NUMBERS:
            raise ValueError(
                f"'{name}': by its observation_space, an observation has {number:,} numbers, at most {MOST_NUMBERS:,} "
                "are read. Correct the file's metadata."
            )
        try:
            both = _made(observation_space, name), _action(action_space)
            translated = Spaces(*both, name)
            if masked and translated.discrete and not translated.parts:
                translated = Spaces(*both, name, masked=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"'{name}' cannot be shown to agents: {text.shortened(str(error))}") from error
        shows_more = (
            translated.parts or len(translated.observation_shape) == 3 or _has(observation_space, "MultiDiscrete")
        )
        self._spaces = translated if shows_more else None

    def read(self, episode: Mapping[str, Any], key: str) -> Any:
        """The observations of an episode, a tree of arrays [T+1, ...]; `key` is that of the episode."""
        stored, place = episode["observations"], f"{key}/observations"
        if self._spaces is None:
            return flattened(stored, self.space, self.name, place)
        value = _value(stored, self.space, self.name, place)
        lengths = {len(leaf) for leaf in _leaves(value)}
        if len(lengths) != 1:
            raise ValueError(f"'{self.name}': the parts of '{place}' have {sorted(lengths)} rows. Download it again.")
        mask = None
        if self._spaces.masked:
            mask = schema.stored(schema.numbers(_inside(episode, INFO_MASK), self.name, f"{key}/{INFO_MASK}"))
        try:
            return self._spaces.observe(value, (*lengths,), mask)
        except ValueError as error:
            raise ValueError(f"'{self.name}': '{place}' holds {text.shortened(str(error))}") from error

    def note(self, size: int) -> str | None:
        """How agents see observations that are dictionaries or tuples; None where they see what is there.

        `size` is the number of numbers where they are flattened.
        """
        if self._spaces is not None:
            return self._spaces.note
        if self.space and self.space["type"] in ("Dict", "Tuple"):
            return f"'{self.name}': observations ({', '.join(_parts(self.space))}) are flattened to {size} numbers."
        return None


def written(spec: EnvSpec, action_space: Any) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """The observation space of a data set, and what an episode's buffer is given for observations [T+1, ...].

    Raises `ValueError` where reading would give observations of other spaces back.
    """
    from gymnasium import spaces

    from rljax.envs.host.spaces import ONLY, Spaces

    def space_of(shape: tuple[int, ...], dtype: str) -> Any:
        limits: Any = {"uint8": (0, 255), "bool": (0, 1)}.get(dtype, (-np.inf, np.inf))
        low, high = limits
        return spaces.Box(low, high, shape, np.dtype("int8" if dtype == "bool" else dtype))  # type: ignore[arg-type]

    def split(observation: Any) -> dict[str, Any]:
        if not masked:
            return {"observations": jax.tree.map(lambda x: x.astype(np.int8) if x.dtype == bool else x, observation)}
        return {"observations": observation[ONLY], "infos": {MASK: observation[MASK]}}

    masked = [part.name for part in spec.parts] == sorted((MASK, ONLY))
    each: Any = {part.name: space_of(part.shape, part.dtype) for part in spec.parts}
    space = each[ONLY] if masked else spaces.Dict(each) if each else None
    space = space_of(spec.observation_shape, spec.observation_dtype) if space is None else space
    if difference(Spaces(space, action_space, spec.name, masked).spec(), spec) is not None:
        raise ValueError(
            f"'{spec.name}' shows {shown(spec)}, which cannot be read back from a Minari data set. Write an archive "
            "instead: rljax.datasets.write_archive."
        )
    return space, split


def has_masks(episodes: list[Mapping[str, Any]]) -> bool:
    """Whether each episode holds masks of allowed actions beside its observations."""
    return bool(episodes) and all(_inside(episode, INFO_MASK) is not None for episode in episodes)


def signals(episode: Mapping[str, Any], name: str, key: str, steps: int) -> dict[str, np.ndarray]:
    """The signals [T, K...] of an episode: `infos/cost`, and `infos/signals/NAME` as `with_signals` writes them.

    Minari stores what the reset gave before what the steps gave: of T + 1 rows, the first is left out.
    """
    infos = _inside(episode, "infos")
    found = schema.signals(infos, name) if hasattr(infos, "keys") else {}
    found = {signal: column[1:] if len(column) == steps + 1 else column for signal, column in found.items()}
    for signal, column in found.items():
        if len(column) != steps:
            raise ValueError(
                f"'{name}': the signal '{signal}' of {key} has {len(column)} rows, and there are {steps} rewards. "
                "Download it again."
            )
    return found


def joined_signals(episodes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Signals [N, K...] of all episodes; those that one of them lacks are left out."""
    names = set.intersection(*(set(found) for found in episodes))
    return {signal: np.concatenate([found[signal] for found in episodes]) for signal in sorted(names)}


def with_signals(arrays: dict[str, Any], signals: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What an episode's buffer is given, with signals [T, K...] in its infos, in which the reset's are zeros."""
    if not signals:
        return arrays
    columns = {name: np.concatenate([np.zeros_like(column[:1]), column]) for name, column in signals.items()}
    return arrays | {"infos": arrays.get("infos", {}) | {"signals": columns}}


def actions(stored: Any, space: Any, name: str, key: str) -> np.ndarray:
    """Actions [T, A], [T] or [T, K] of an episode; which of them is what the space says."""
    start = space.get("start", 0) if space else 0
    if space is not None and space["type"] in ("MultiDiscrete", "MultiBinary"):
        found = schema.stored(schema.numbers(leaf(stored, name, key), name, key))
        if math.prod(found.shape[1:]) != len(choices(space)):
            raise ValueError(f"'{name}': '{key}' has shape {found.shape}, its space has {len(choices(space))} actions.")
        found = schema.several_actions(found.reshape(len(found), -1), name, key)
        return found - np.ravel(start).astype(np.int32)
    found = schema.actions(
        leaf(stored, name, key), name, key, int(start) if space and space["type"] == "Discrete" else 0
    )
    if space is None or (found.ndim == 1) == (space["type"] == "Discrete"):
        return found
    if space["type"] == "Box":
        return schema.vectors(stored, name, key)
    raise ValueError(
        f"'{name}': '{key}' is {stored.dtype}{list(stored.shape)}, and the action space is Discrete. Discrete actions "
        "must be stored as one integer per row. Correct the file, or its 'action_space'."
    )


def choices(space: Any) -> tuple[int, ...]:
    """How many choices each of several discrete actions has; () where there is one action, or it is continuous."""
    if space is None or space["type"] not in ("MultiDiscrete", "MultiBinary"):
        return ()
    if space["type"] == "MultiDiscrete":
        return tuple(int(number) for number in np.ravel(space["nvec"]))
    return (2,) * math.prod(np.ravel(space["n"]).tolist())


def flattened(stored: Any, space: Any, name: str, key: str) -> np.ndarray:
    """Observations [T+1, O] from an HDF5 dataset, or from a group in the order in which Gymnasium flattens it."""
    if not hasattr(stored, "keys"):
        if space and space["type"] == "Discrete":  # one-hot, like Gymnasium's `flatten`
            found = schema.actions(leaf(stored, name, key), name, key, int(space.get("start", 0)))
            number = int(space["n"])
            if found.dtype != np.int32 or found.max(initial=0) >= number:
                raise ValueError(f"'{name}': '{key}' must hold {number} choices as integers. Download it again.")
            text.require_memory(name, key, text.nbytes_of((len(found), number), 4))
            return (found[:, None] == np.arange(number)).astype(np.float32)
        return (schema.observed if space is None else schema.vectors)(leaf(stored, name, key), name, key)
    parts = list(_named(stored, space, name, key))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller warns once for all parts
        return np.concatenate([flattened(stored[part], below, name, f"{key}/{part}") for part, below in parts], axis=1)


def leaf(stored: Any, name: str, key: str) -> Any:
    """An array of numbers. Raises `ValueError` for a group, and for encoded images."""
    if hasattr(stored, "keys"):
        raise ValueError(
            f"'{name}': '{key}' is a dictionary ({text.listed(stored)}); actions must be vectors or discrete."
        )
    if stored.dtype.kind not in "fiub":
        raise ValueError(f"'{name}': '{key}' is {stored.dtype}, it must be numbers; encoded images are not supported.")
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
        wanted = text.listed(missing or ["arrays"])
        raise ValueError(f"'{name}': '{key}' lacks {wanted}; it has: {text.listed(stored)}. Download it again.")
    yield from named


def _value(stored: Any, space: Any, name: str, key: str) -> Any:
    """Observations as Gymnasium has them: dictionaries and tuples of arrays [T+1, ...], without texts."""
    if space["type"] not in ("Dict", "Tuple"):
        return schema.stored(schema.numbers(leaf(stored, name, key), name, key))
    if not hasattr(stored, "keys"):
        raise ValueError(f"'{name}': '{key}' is one array, its space is a {space['type']}. Download it again.")
    parts = [
        (part, None if below["type"] == "Text" else _value(stored[part], below, name, f"{key}/{part}"))
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


def _is_translated(observation: Any, action: Any, masked: bool) -> bool:
    """Whether spaces may hold what a vector cannot: pictures, masks, or choices."""
    is_discrete = action is not None and action["type"] in ("Discrete", "MultiDiscrete", "MultiBinary")
    has_mask = is_discrete and (masked or MASK in set(_paths(observation)))
    has_pictures = any(len(box.get("shape", ())) == 3 for box in _simple(observation) if box["type"] == "Box")
    return has_mask or has_pictures or _has(observation, "MultiDiscrete")


def _paths(space: Any) -> Iterator[str]:
    if space["type"] == "Dict":
        for part, below in space["subspaces"].items():
            yield part
            yield from _paths(below)


def _has(space: Any, kind: str) -> bool:
    return any(found["type"] == kind for found in _simple(space))


def _simple(space: Any) -> Iterator[Any]:
    """The spaces within a space that are neither dictionaries nor tuples."""
    if space["type"] not in ("Dict", "Tuple"):
        yield space
        return
    below = space["subspaces"]
    for part in below.values() if isinstance(below, Mapping) else below:
        yield from _simple(part)


def _made(space: Any, name: str) -> Any:
    """Gymnasium's space. Bounds of observations do not count: they are those of the dtype."""
    from gymnasium import spaces

    kind = space["type"]
    if kind in ("Dict", "Tuple"):
        below = space["subspaces"]
        if kind == "Tuple":
            return spaces.Tuple([_made(part, name) for part in below])
        return spaces.Dict({part: _made(one, name) for part, one in below.items()})
    if kind == "Box":
        shape, dtype = tuple(space.get("shape", ())), np.dtype(space.get("dtype", "float32"))
        limits = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        if dtype.kind in "iu" and dtype != np.uint8:
            limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if dtype.kind == "b":
            limits = (0, 1)
        return spaces.Box(*limits, shape, dtype)  # type: ignore[arg-type]
    if kind == "Text":
        return spaces.Text(1)
    return _action(space)


def _action(space: Any) -> Any:
    """Gymnasium's space of choices. A Box stands for all continuous actions, whose bounds do not matter here."""
    from gymnasium import spaces

    if space is None or space["type"] == "Box":
        return spaces.Box(-1.0, 1.0, (1,), np.float32)
    if space["type"] == "Discrete":
        return spaces.Discrete(int(space["n"]), start=int(space.get("start", 0)))
    numbers = np.array(choices(space), np.int64)
    if len(numbers) > schema.MOST_CHOICES or numbers.sum() > schema.MOST_CHOICES:
        raise ValueError(f"more than {schema.MOST_CHOICES:,} choices.")
    if space["type"] == "MultiBinary":
        shape = space["n"]
        return spaces.MultiBinary(shape)
    shape = np.shape(space["nvec"])
    start = np.broadcast_to(np.asarray(space.get("start", 0), np.int64), shape)
    return spaces.MultiDiscrete(numbers.reshape(shape), start=start)


def _parts(space: Any) -> list[str]:
    subspaces = space["subspaces"]
    return sorted(subspaces) if isinstance(subspaces, dict) else [str(index) for index in range(len(subspaces))]
