"""Gymnasium's spaces as agents see them, by docs/spaces.md.

Runs store the description of `Spaces`, so that policies act on an environment's own observations
even if it is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from rljax.agent import MASK, EnvSpec, Part, difference
from rljax.envs.host.actions import CORRECT, MOST_CHOICES, Actions, items, sounds_like_mask
from rljax.envs.host.space_descriptions import described, is_text, read
from rljax.envs.host.space_values import Path, as_array, flattened, keys_of
from rljax.spec import PICTURES

LEAST_PIXELS = 16  # height and width from which a Box of floats counts as a picture
Channels = Literal["first", "last", "unclear"]
REST = "vector"  # the part of a dictionary with everything but pictures and the mask
ONLY = "observation"  # the only part but the mask, where `info` has the mask


class Spaces:
    """The spaces of the environment `name`, and their translation.

    Attributes:
        observation, action: Gymnasium's spaces of one environment.
        observation_shape, observation_dtype: as agents see them; () where it is a dictionary.
        parts: the arrays of such a dictionary; else ().
        discrete, choices, bounds: see `Actions`.
        action_size: its `size`.
        masked: whether `info` says which actions are allowed.
        note: how observations are changed for agents; None if they are not.
        named: the part and the place of channels of each picture and of the mask, by its path.
        rest: the name of the part with everything else.
        channels: the place of channels of an observation that is one array; None if it is
            flattened.
    """

    def __init__(
        self, observation: spaces.Space, action: spaces.Space, name: str, masked: bool = False
    ) -> None:
        """Translate the spaces.

        Raises `TypeError` for spaces that are not in docs/spaces.md, and `ValueError` for actions
        without finite bounds and for spaces that hold no number.
        """
        self.observation, self.action, self.name = observation, action, name
        self.actions = Actions(action, name)
        unread = masked and not self.actions.discrete
        self.masked = masked = masked and not unread
        self.discrete, self.action_size = self.actions.discrete, self.actions.size
        self.choices, self.bounds = self.actions.choices, self.actions.bounds
        self.parts: tuple[Part, ...] = ()
        self.observation_dtype = "float32"
        self.channels: Channels | None = None
        named = _named(observation, name, self.action_size if self.discrete else 0)
        if named:
            self.observation_shape: tuple[int, ...] = ()
            self.rest = REST
            while any(key == self.rest for key, _ in named.values()):
                self.rest += "_"
            self.parts, self.note = _parts(observation, named, self.rest, name)
        else:
            self.observation_shape, self.channels, self.note = _agents_view(observation, name)
            if len(self.observation_shape) == 3 and observation.dtype == np.uint8:
                self.observation_dtype = "uint8"
        self.named, self._dtype = named, self.observation_dtype
        for path, leaf in walk(observation) if self.discrete and not masked else ():
            is_like = path not in ((), (MASK,)) and sounds_like_mask(path[-1])
            if is_like and math.prod(leaf.shape or ()) == self.action_size:
                self.note = (
                    f"{self.note} {_shown(path)} is not read as a mask: its name is {MASK!r}."
                )
        if unread:
            note = f"The masks of '{name}' are not read, since its actions have numbers too."
            self.note = note if self.note is None else f"{self.note} {note}"
        if masked:
            parts = self.parts or (Part(ONLY, self.observation_shape, self.observation_dtype),)
            mask = Part(MASK, (self.action_size,), "bool")
            self.parts = tuple(sorted((*parts, mask), key=lambda part: part.name))
            self.observation_shape, self.observation_dtype = (), "float32"

    def spec(self, max_episode_steps: int | None = None) -> EnvSpec:
        """The specification for agents."""
        return EnvSpec(
            name=self.name,
            observation_shape=self.observation_shape,
            action_size=self.action_size,
            discrete=self.discrete,
            max_episode_steps=max_episode_steps,
            observation_dtype=self.observation_dtype,
            parts=self.parts,
            choices=self.choices,
        )

    def observe(
        self, observation: Any, leading: tuple[int, ...], mask: Any = None, last: Any = False
    ) -> Any:
        """The environment's own observations with these leading axes, as new arrays [*leading,
        O...].

        `mask` and `last` are those of `Actions.mask`. Raises `ValueError` for values outside the
        space; the message continues "'NAME' returned".
        """
        result = self._observed(observation, leading)
        if not self.masked:
            return result
        if mask is None:
            raise ValueError(f"an info without {MASK!r}, which the first reset had. {CORRECT}")
        parts = result if self.named else {ONLY: result}
        return {**parts, MASK: self.actions.mask(mask, leading, last)}

    def _observed(self, observation: Any, leading: tuple[int, ...]) -> Any:
        if self.named:
            parts = {}
            for path, (key, channels) in self.named.items():
                part, space = _at(observation, path), _at(self.observation, path)
                array = as_array(space, part, leading, _shown(path))
                if key == MASK:
                    parts[key] = array.reshape(*leading, -1) != 0
                else:
                    parts[key] = _copied(array, channels, _dtype(space))
            if any(part.name == self.rest for part in self.parts):
                without = set(self.named)
                parts[self.rest] = flattened(self.observation, observation, leading, "", without)
            return parts
        if self.channels is None:
            return flattened(self.observation, observation, leading)
        array = as_array(self.observation, observation, leading)
        return _copied(array, self.channels, self._dtype)

    def leading(self, observation: Any) -> tuple[int, ...]:
        """The leading axes of the environment's own observations: (N,) for N; () for one, or if
        unclear.
        """
        path, space = next(walk(self.observation))
        try:
            shape = np.shape(_at(observation, path))
        except ValueError:
            return ()
        return shape[:1] if len(shape) == len(space.shape or ()) + 1 else ()

    def act(self, action: np.ndarray) -> Any:
        """Agents' actions as the environment takes them; see `Actions.act`."""
        return self.actions.act(action)

    def described(self) -> dict[str, Any]:
        """Both spaces, ready for JSON."""
        both = {"observation": described(self.observation), "action": described(self.action)}
        return {**both, "masked": True} if self.masked else both

    @classmethod
    def read(cls, description: Mapping[str, Any], name: str) -> Spaces:
        """The spaces with this description."""
        both = read(description["observation"]), read(description["action"])
        return cls(*both, name, masked=description.get("masked") is True)


def described_data(spec: EnvSpec, action_bounds: tuple[Any, Any]) -> dict[str, Any] | None:
    """The spaces, ready for JSON, of a data set that names no environment, with action bounds [A].

    None if agents would see a dictionary of such spaces differently.
    """
    low, high = (np.asarray(bound, np.float32) for bound in action_bounds)

    def box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
        if dtype == "uint8":
            return spaces.Box(0, 255, shape, np.uint8)
        return spaces.Box(-np.inf, np.inf, shape, np.float32)

    observation: spaces.Space = box(spec.observation_shape, spec.observation_dtype)
    if spec.parts:
        observation = spaces.Dict({part.name: box(part.shape, part.dtype) for part in spec.parts})
    made = Spaces(observation, spaces.Box(low, high, dtype=np.float32), spec.name)
    return made.described() if difference(made.spec(), spec) is None else None


def walk(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The paths and spaces of the parts that are neither dictionaries nor tuples."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, below in items(space):
            yield from walk(below, (*path, key))
    else:
        yield path, space


def _named(
    space: spaces.Space, name: str, num_actions: int
) -> dict[Path, tuple[str, Channels | None]]:
    """The names of the pictures and of the mask in a dictionary or tuple, by path.

    A mask is called `MASK` and has `num_actions` numbers. Raises `ValueError` for anything else of
    that name.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return {}
    names: dict[Path, tuple[str, Channels | None]] = {}
    for path, leaf in walk(space):
        channels = None if is_text(leaf) else place_of_channels(leaf)
        is_mask = path == (MASK,) and isinstance(leaf, (spaces.Box, spaces.MultiBinary))
        if is_mask and 0 < num_actions == math.prod(leaf.shape):
            names[path] = (MASK, None)
        elif path[0] == MASK and (num_actions or channels):
            raise ValueError(
                f"'{name}' observes {leaf} under {_shown(path)}: this is the name of a mask, a "
                f"MultiBinary({num_actions}). Make it one, or name it otherwise."
            )
        elif channels is not None:
            names[path] = ("/".join(map(str, path)), channels)
    return names


def _parts(
    space: spaces.Space, named: dict[Path, tuple[str, Channels | None]], rest: str, name: str
) -> tuple[tuple[Part, ...], str | None]:
    """The parts of a dictionary, ordered by name, and a note."""
    parts, size, texts = [], 0, []
    for path, leaf in walk(space):
        if path not in named:
            texts += [_shown(path)] if is_text(leaf) else []
            size += _flat_size(leaf, name)
            continue
        key, channels = named[path]
        if key == MASK:
            parts.append(Part(key, (math.prod(leaf.shape),), "bool"))
            continue
        first, second, third = leaf.shape
        shape = (second, third, first) if channels == "first" else leaf.shape
        parts.append(Part(key, shape, _dtype(leaf)))
    if size:
        parts.append(Part(rest, (size,)))
    shapes = ", ".join(f"{part.name} {list(part.shape)}" for part in parts)
    note = f"'{name}' observes a {type(space).__name__}: agents see {shapes}."
    note += f" They do not see the text under {', '.join(texts)}." if texts else ""
    return tuple(sorted(parts, key=lambda part: part.name)), note


def _at(tree: Any, path: Path) -> Any:
    """The part of an observation or space at a path. Raises `ValueError` if there is none."""
    for key in path:
        try:
            tree = tree[key]
        except (TypeError, KeyError, IndexError):
            raise ValueError(
                f"an observation with {keys_of(tree)}, its observation_space promises {key!r}. "
                f"{CORRECT}"
            ) from None
    return tree


def _dtype(space: spaces.Space) -> str:
    return "uint8" if space.dtype == np.uint8 else "float32"


def _shown(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _copied(array: np.ndarray, channels: Channels | None, dtype: str) -> np.ndarray:
    if channels == "first":
        array = np.moveaxis(array, -3, -1)
    with np.errstate(over="ignore"):  # values too large for float32 are reported as not finite
        return array.astype(dtype, order="C")


def _agents_view(
    space: spaces.Space, name: str
) -> tuple[tuple[int, ...], Channels | None, str | None]:
    """The shape of observations as agents see them, the place of channels, and a note.

    The place is None if observations are flattened, and "last" for vectors too.
    """
    size = 0 if is_text(space) else _flat_size(space, name)
    if size == 0:
        raise ValueError(
            f"'{name}' observes {space}, which holds no number: agents need at least one. A "
            "constant such as 0 will do for an environment without observations."
        )
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return space.shape, "last", None
    channels = place_of_channels(space)
    if channels is None:
        kind = f"a {type(space).__name__}"
        kind += f" of shape {space.shape}" if isinstance(space, spaces.Box) else ""
        return (size,), None, f"'{name}' observes {kind}: it is flattened to {size} numbers."
    shape: Any = space.shape
    first, second, third = shape
    if channels == "first":
        shape = (second, third, first)
        note = (
            f"'{name}' observes pictures of shape {space.shape}, channels first: agents "
            f"see {shape}, channels last."
        )
        return shape, "first", note
    note = None
    if channels == "unclear":
        note = (
            f"'{name}' observes pictures of shape {space.shape}, which do not show where the "
            f"channels are: they are read as height {first}, width {second}, {third} channels. If "
            "that is wrong, transpose them with gymnasium.wrappers.TransformObservation."
        )
    return space.shape, "last", note  # type: ignore[return-value]


def place_of_channels(space: spaces.Space) -> Channels | None:
    """The place of the channels of pictures: an axis much shorter than height and width; else None.

    A Box of uint8 with three axes is always a picture.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return None
    first, second, third = space.shape
    comes_first, comes_last = 2 * first <= min(second, third), 2 * third <= min(first, second)
    if space.dtype == np.uint8:
        return "first" if comes_first else "last" if third < min(first, second) else "unclear"
    if not np.issubdtype(space.dtype, np.floating) or sorted(space.shape)[1] < LEAST_PIXELS:
        return None
    return "first" if comes_first else "last" if comes_last else None


def _flat_size(space: spaces.Space, name: str) -> int:
    """The size of one observation as a vector. Raises `TypeError` if it is not fixed."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return sum(_flat_size(part, name) for _, part in items(space))
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        choices = int(space.n) if isinstance(space, spaces.Discrete) else int(space.nvec.sum())
        if choices > MOST_CHOICES:
            raise TypeError(
                f"'{name}' observes {space}, each choice of which would be one number: that is "
                f"more than {MOST_CHOICES:,}. Wrap the environment so that it observes a few "
                "numbers instead."
            )
        return choices
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        pixels = sorted(space.shape)[-2:]
        if space.dtype == np.uint8 and len(space.shape) > 3 and pixels[0] >= LEAST_PIXELS:
            raise TypeError(f"'{name}' observes {space}: pictures in {space.shape}. {PICTURES}")
        return math.prod(space.shape)
    if is_text(space):
        return 0
    raise TypeError(
        f"'{name}' observes {space}, agents need a vector of fixed size. Leave that part out with "
        "gymnasium.wrappers.FilterObservation, or wrap the environment so that it observes numbers."
    )
