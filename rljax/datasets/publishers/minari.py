"""Minari's datasets, read with h5py.

In `ID/data/main_data.hdf5`, each `episode_<i>` has `observations` (T+1 rows), `actions`, `rewards`,
`terminations` and `truncations` (T rows each), and maybe `infos`.

Source: Younis et al., Minari, https://zenodo.org/records/13767625; Farama-Foundation/Minari at
1880118.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.buffers.storage import frames
from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import assembly, minari_arrays, minari_spaces, opened, schema, text
from rljax.datasets.formats.assembly import Rows
from rljax.datasets.formats.fingerprints import fingerprint
from rljax.datasets.publishers import download as files
from rljax.datasets.publishers import minari_environments as environments
from rljax.trust import RefusedFileError, note

REMOTE = "https://huggingface.co/datasets/farama-minari"
MAIN, METADATA = "data/main_data.hdf5", "data/metadata.json"
# With "simple" data.
SIMPLE = ("ant", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "walker2d")
MUJOCO = (*SIMPLE, "inverteddoublependulum", "invertedpendulum", "pusher", "reacher", "swimmer")
ADROIT = ("door", "hammer", "pen", "relocate")
ANTMAZE = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
POINTMAZE = ("open", "umaze", "medium", "large")


def names() -> list[str]:
    """Ids on Minari's server."""
    adroit = [f"D4RL/{task}/{kind}-v2" for task in ADROIT for kind in ("human", "cloned", "expert")]
    maze = [f"D4RL/antmaze/{kind}-v1" for kind in ANTMAZE]
    point = [f"D4RL/pointmaze/{kind}{dense}-v2" for kind in POINTMAZE for dense in ("", "-dense")]
    kitchen = [f"D4RL/kitchen/{kind}-v2" for kind in ("complete", "partial", "mixed")]
    mujoco = [f"mujoco/{task}/{kind}-v0" for task in MUJOCO for kind in ("medium", "expert")]
    mujoco += [f"mujoco/{task}/simple-v0" for task in SIMPLE]
    return [f"minari/{name}" for name in (*adroit, *maze, *point, *kitchen, *mujoco)]


def load(
    name: str, *, clip_actions: bool = False, action_bounds: Any = None, **search: Any
) -> OfflineDataset:
    """The dataset called `name`.

    Ids that `names` does not list are searched in local folders only.
    """
    identity = _identity(name)
    known = f"minari/{identity}" in names()
    space, _, rest = identity.partition("/")
    paths = {}
    for file in (METADATA, MAIN):
        try:
            url = f"{REMOTE}/{space}/resolve/main/{rest}/{file}" if known else None
            path = f"{identity}/{file}"
            paths[file] = files.find("minari", path, others=[library()], url=url, **search)
        except ValueError as error:
            if not known and "no address" in str(error):
                raise base.unknown(name, "Minari or the local folders", names()) from error
            raise
    return read(
        paths[MAIN].parents[1], name, clip_actions=clip_actions, action_bounds=action_bounds
    )


def environment(name: str) -> str | None:
    """The environment in the metadata of the dataset called `name`, if it is on this machine."""
    try:
        path = files.find("minari", f"{_identity(name)}/{METADATA}", others=[library()])
        recording, evaluation = _specs(_metadata(path.parents[1]))
        return environments.named(evaluation or recording)
    except ValueError:  # reported by `load`
        return None


def read(
    folder: Path, name: str | None = None, *, clip_actions: bool = False, action_bounds: Any = None
) -> OfflineDataset:
    """The dataset in `folder`.

    Raises `ValueError` for encoded images, spaces that agents cannot see, and as
    `rljax.datasets.load`.
    """
    folder = Path(folder)
    metadata = _metadata(folder)
    recording, evaluation = _specs(metadata)
    env, reason = None, None
    try:
        env = environments.named(evaluation or recording)
    except ValueError as error:
        reason = str(error)
    hand = environments.hand(str(metadata.get("dataset_id")))
    main = folder / MAIN
    file_name = f"{folder.name}/{MAIN}"
    observation_space, action_space = (
        minari_spaces.checked(_json(metadata.get(key)), file_name, key)
        for key in ("observation_space", "action_space")
    )
    kind = "Box" if action_space is None else action_space["type"]
    if kind not in ("Box", *minari_spaces.CHOICES):
        raise ValueError(
            f"'{file_name}' has actions of the space {kind}; rljax takes Box, Discrete, "
            "MultiDiscrete and MultiBinary. Choose another dataset."
        )
    with opened(main) as file:
        rows = _rows(file_name, file, observation_space, action_space)
    rows.check_lengths()
    bounds = _bounds(action_space, action_bounds, name or str(folder))
    reference: Any = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if None in reference:
        reference = None if hand is None else hand.reference
    provenance: dict[str, Any] = {
        "reader": "minari",
        "files": [fingerprint(main)],
        "url": files.source(main),
        "id": metadata.get("dataset_id"),
        "rules": ["every row is kept: successors are stored"],
        "rows_in_file": len(rows.reward),
        "max_episode_steps": environments.limit(recording, evaluation, hand),
        "recorded_max_episode_steps": environments.steps(recording),
        "no_environment": reason,
        "algorithm": metadata.get("algorithm_name"),
        "versions": base.versions("h5py") | {"minari": metadata.get("minari_version")},
    }
    if action_space and kind == "Discrete":
        provenance["num_actions"] = int(action_space["n"])
    if choices := minari_spaces.choices(action_space):
        provenance["choices"] = list(choices)
    return assembly.assemble(
        name or str(folder),
        assembly.successors(rows, np.ones(len(rows.reward), np.bool_)),
        env=env,
        reference=reference,
        bounds=bounds,
        clip_actions=clip_actions,
        provenance=provenance,
    )


def library() -> Path:
    """The folder in which Minari keeps datasets: $MINARI_DATASETS_PATH or ~/.minari/datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def _identity(name: str) -> str:
    return name.removeprefix("minari/").strip("/")


def _rows(name: str, file: Any, observation_space: Any, action_space: Any) -> Rows:
    numbered = (key for key in file if re.fullmatch(r"episode_[0-9]{1,18}", key))
    episodes = sorted(numbered, key=lambda key: int(key[8:]))
    if not episodes:
        raise ValueError(f"'{name}' has no episodes; it has: {text.listed(file)}.")
    keys = ("observations", "actions", "rewards", "terminations", "truncations")
    for episode in episodes:
        is_group = hasattr(file[episode], "keys")
        for key in keys:
            if not is_group or key not in file[episode]:
                present = text.listed(file[episode]) if is_group else "no arrays"
                raise ValueError(f"'{name}' has no '{key}' in {episode}; it has: {present}.")
    steps = [
        len(schema.numbers(file[episode]["rewards"], name, f"{episode}/rewards"))
        for episode in episodes
    ]
    total, offset = sum(steps), 0
    masked = minari_arrays.has_masks([file[episode] for episode in episodes])
    observations = minari_arrays.Observations(name, observation_space, action_space, masked)
    reward = np.empty(total, np.float32)
    terminated, truncated = np.empty((2, total), np.bool_)
    columns: list[ObservationArray] = []
    signals = []
    structure: Any = None
    action = np.empty(0)
    for number, (episode, length) in enumerate(zip(episodes, steps, strict=True)):
        group = file[episode]
        rows = slice(offset, offset + length)
        leaves, tree = jax.tree.flatten(observations.read(group, episode))
        part = minari_arrays.actions(group["actions"], action_space, name, f"{episode}/actions")
        marks = [schema.marks(group[key], name, f"{episode}/{key}") for key in keys[3:]]
        if {*map(len, leaves)} != {length + 1} or {*map(len, (part, *marks))} != {length}:
            raise ValueError(
                f"'{name}': {episode} has {length} rewards, {len(leaves[0])} observations (it must "
                f"be {length + 1}), {len(part)} actions, {len(marks[0])} terminations and "
                f"{len(marks[1])} truncations. Download it again."
            )
        if structure is None:
            structure = tree
            columns = [ObservationArray(leaf, total, len(episodes)) for leaf in leaves]
            row = sum(column.nbytes for column in columns) + total * (part[0:1].nbytes + 1)
            text.require_memory(name, "observations", row)
            action = np.empty((total, *part.shape[1:]), part.dtype)
        shapes, earlier = [leaf.shape[1:] for leaf in leaves], [column.shape for column in columns]
        if shapes != earlier or part.shape[1:] != action.shape[1:]:
            raise ValueError(
                f"'{name}': {episode} has observations {_shown(shapes)} and actions "
                f"{list(part.shape[1:])}, the episodes before it {_shown(earlier)} and "
                f"{list(action.shape[1:])}. Download it again."
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.put(leaf, offset, number)
        action[rows] = part
        signals.append(minari_arrays.signals(group, name, episode, length))
        reward[rows] = schema.column(group["rewards"], name, f"{episode}/rewards", np.float32)
        terminated[rows], truncated[rows] = marks
        if length:
            truncated[rows.stop - 1] |= not terminated[rows.stop - 1]
        offset += length
    message = observations.note(sum(math.prod(column.shape) for column in columns))
    if message is not None:
        note(message)
    observation, successor = (
        structure.unflatten(side) for side in zip(*(c.finished() for c in columns), strict=True)
    )
    fields = dict[str, str](zip(base.FIELDS, (*keys, "observations"), strict=True))
    names = sorted(set.intersection(*map(set, signals)))
    joined = {name: np.concatenate([each[name] for each in signals]) for name in names}
    return Rows(
        name, fields, observation, action, reward, terminated, truncated, successor, signals=joined
    )


class ObservationArray:
    """The observations of all episodes.

    Large pictures are stored once.
    """

    def __init__(self, example: np.ndarray, total: int, episodes: int) -> None:
        self.shape, self._dtype = example.shape[1:], example.dtype
        self.once = frames.is_stored_once(self.shape, self._dtype)
        self._sizes = [total + episodes] if self.once else [total, total]
        self.nbytes = text.nbytes_of((sum(self._sizes), *self.shape), example.itemsize)
        self._index = np.empty(total if self.once else 0, np.int32)
        self._arrays: list[np.ndarray] = []

    def put(self, observations: np.ndarray, offset: int, number: int) -> None:
        """The observations [T+1, ...] of episode `number`, whose first row is `offset`."""
        if not self._arrays:  # after the check of the memory
            self._arrays = [np.empty((size, *self.shape), self._dtype) for size in self._sizes]
        rows, place = slice(offset, offset + len(observations) - 1), offset + number
        if self.once:
            self._arrays[0][place : place + len(observations)] = observations
            self._index[rows] = np.arange(place, place + len(observations) - 1)
        else:
            self._arrays[0][rows], self._arrays[1][rows] = observations[:-1], observations[1:]

    def finished(self) -> tuple[Any, Any]:
        """Observations and successors of all rows."""
        if not self.once:
            return self._arrays[0], self._arrays[1]
        (pictures,), index = self._arrays, self._index[:, None]
        return frames.Frames(pictures, index), frames.Frames(pictures, index + 1)


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / METADATA
    if not path.is_file() or not (folder / MAIN).is_file():
        raise ValueError(
            f"'{folder.name}' is not a Minari dataset in HDF5: it needs {METADATA} and {MAIN}. "
            "The minari package converts one in Arrow's format to HDF5: data_format='hdf5'."
        )
    return dict(
        schema.mapping(text.read_json(path, f"{folder.name}/{METADATA}"), folder.name, METADATA)
    )


def _specs(metadata: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    specs = [
        dict(schema.mapping(_json(metadata.get(key)), METADATA, key))
        for key in ("env_spec", "eval_env_spec")
    ]
    for spec in specs:
        if not isinstance(spec.get("id"), str | None):
            raise ValueError(
                f"'{METADATA}': the 'id' of the environment is {spec['id']!r:.80}, it must be "
                "a text."
            )
    return specs[0], specs[1]


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return text.parse_json(value, METADATA)
    except RefusedFileError:
        raise
    except ValueError as error:
        raise ValueError(
            f"'{METADATA}' holds what is not JSON: {error}. Download the dataset again."
        ) from error


def _bounds(action_space: Any, action_bounds: Any, name: str) -> Any:
    if not action_space or action_space["type"] != "Box":
        return action_bounds
    low, high = np.ravel(action_space["low"]), np.ravel(action_space["high"])
    if np.isfinite(low).all() and np.isfinite(high).all():
        if action_bounds is not None:
            raise ValueError(
                f"action_bounds is for data without bounds; those of '{name}' are known."
            )
        return low, high
    if action_bounds is None:
        raise ValueError(
            f"the actions of '{name}' have no bounds in its action space. Name them: "
            "action_bounds=(low, high), or rljax data convert DATA NEW --action-bounds LOW HIGH"
        )
    return action_bounds
