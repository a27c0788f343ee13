"""NumPy archives and HDF5 files by path: our own layout, and other names for the same arrays.

Our layout, in .npz as in .hdf5, is D4RL's: `observations` [N, O], `actions` [N, A] within the environment's bounds,
`rewards` [N], `terminals` [N], `timeouts` [N] (every end of a trajectory that is not terminal), `next_observations`
[N, O], and a JSON text of environment, references, bounds and provenance, under `metadata` (.npz) or `metadata/rljax`
(.hdf5). A file that was written here reads back as the same dataset.

Other files may use these names, in this order of preference:

    observations       observations, observation, obs
    actions            actions, action, act
    rewards            rewards, reward, rew
    next_observations  next_observations, next_observation, next_obs, obs_next
    terminals          terminals, terminal, terminations, terminated; done, dones (less the time limits, if present)
    timeouts           timeouts, timeout, truncations, truncated, timelimit_truncated
    without either     episode_starts [N] bool, or episode_lengths [episodes]. The cause of these ends was not recorded,
                       so they count as truncated.

These names cover Tianshou's buffers, Stable-Baselines' expert recordings, NeoRL-2's files, and files of courses and
repositories that follow Gymnasium's names. Archives that hold Python objects are refused: unpickling runs whatever code
the file contains, and no layout here needs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets import rows as table
from rljax.datasets.dataset import Dataset
from rljax.datasets.download import fingerprint
from rljax.datasets.rows import Rows

ALIASES = {
    "observation": ("observations", "observation", "obs"),
    "action": ("actions", "action", "act"),
    "reward": ("rewards", "reward", "rew"),
    "next_observation": ("next_observations", "next_observation", "next_obs", "obs_next"),
    "terminated": ("terminals", "terminal", "terminations", "terminated"),
    "done": ("done", "dones"),
    "truncated": ("timeouts", "timeout", "truncations", "truncated", "timelimit_truncated"),
}
FORMAT = "rljax dataset 1"
SUFFIXES = (".npz", ".hdf5", ".h5")
# Entries of the provenance that stay true of a copy.
KEPT = ("max_episode_steps", "recorded_max_episode_steps", "num_actions", "algorithm", "corruptions", "both_ends")


def read(path: Path, name: str | None = None, *, action_bounds: Any = None, clip_actions: bool = False) -> Dataset:
    """The dataset in `path`, a .npz, .hdf5 or .h5 file in one of the layouts above.

    If the file stores successors, every row is kept. If not, the successor is the next row's observation, and the last
    row of a trajectory is dropped unless it is terminal.

    `action_bounds` are the low and high of the actions, each a number or one per dimension. By default they come from
    the file's metadata; without metadata they are -1 and 1. Actions that were corrupted (`rljax.runs.corruption`) may
    lie beyond the bounds. They stay as they are, unless `clip_actions`.

    Raises `ValueError` for a file that cannot be read or lacks an array, and for everything that `assemble` refuses.
    """
    path = Path(path)
    with opened(path) as file:
        rows, notes = _rows(path.name, file)
        metadata = _metadata(path.name, file)
    rows.check_lengths()
    marked = bool(rows.terminated[-1] or rows.truncated[-1])
    rows = _selected(rows)
    reference = metadata.get("reference")
    provenance = {key: metadata[key] for key in KEPT if metadata.get(key) is not None} | {
        "reader": "archive",
        "files": [fingerprint(path)],
        "notes": notes,
        "origin": metadata.get("provenance"),
        "versions": base.versions("h5py") if _is_hdf5(path) else base.versions(),
    }
    return table.assemble(
        name or str(path),
        rows,
        env=metadata.get("env"),
        reference=None if reference is None else (float(reference[0]), float(reference[1])),
        bounds=metadata.get("action_bounds") if action_bounds is None else action_bounds,
        clip_actions=clip_actions,
        unbounded=any(note.get("what") == "action" for note in metadata.get("corruptions") or ()),
        complete=metadata.get("complete", marked),
        provenance=provenance,
    )


def description(path: Path) -> dict[str, Any]:
    """The metadata of a file in our layout, with `name` and `env`; {} for other files. No rows are read."""
    with opened(path) as file:
        return _metadata(str(path), file)


def write(dataset: Dataset, path: Path) -> Path:
    """Write `dataset` in the format of the suffix of `path`, by `write_archive` or `write_hdf5`. Return the path."""
    path = _with_suffix(path, SUFFIXES)
    return write_archive(dataset, path) if path.suffix.lower() == ".npz" else write_hdf5(dataset, path)


def write_archive(dataset: Dataset, path: Path) -> Path:
    """Write `dataset` as a compressed .npz file in our layout. Return the path. `load` reads back the same dataset.

    The file appears complete or not at all; an existing file is replaced. Raises `ValueError` for another suffix.
    """
    path = _with_suffix(path, (".npz",))
    with atomic(path) as temporary, temporary.open("wb") as file:
        arrays: Any = _arrays(dataset) | {"metadata": np.array(_description(dataset))}
        np.savez_compressed(file, **arrays)
    return path


def write_hdf5(dataset: Dataset, path: Path, infos: Mapping[str, Any] | None = None) -> Path:
    """Write `dataset` as an HDF5 file in D4RL's layout. Return the path. `load` reads back the same dataset.

    Beside D4RL's arrays the file holds `timeouts`, `next_observations`, the arrays of `infos` ([N, ...] each) as
    `infos/NAME`, and `metadata/`: environment, references and provenance as JSON under `rljax`, and environment and
    algorithm as texts. Other readers of D4RL's layout can read it. The file appears complete or not at all.

    Raises `ValueError` for another suffix and for `infos` of another length.
    """
    import h5py

    path = _with_suffix(path, (".hdf5", ".h5"))
    for key, value in (infos or {}).items():
        if len(value) != dataset.num:
            raise ValueError(f"infos['{key}'] has {len(value)} rows, the dataset has {dataset.num}.")
    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        for key, value in _arrays(dataset).items():
            file.create_dataset(key, data=value, compression="gzip", compression_opts=1, shuffle=True)
        for key, value in (infos or {}).items():
            file.create_dataset(f"infos/{key}", data=value, compression="gzip", compression_opts=1, shuffle=True)
        file["metadata/rljax"] = _description(dataset)
        for key in ("env", "algorithm"):
            value = dataset.env if key == "env" else dataset.provenance.get(key)
            if value is not None:
                file[f"metadata/{key}"] = str(value)
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Mapping[str, Any]]:
    """The arrays of a .npz or HDF5 file by key. Each array is read when it is requested.

    Raises `ValueError`, here or while reading, for a file that is missing, has another format, was cut, or holds Python
    objects.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file '{path}'.")
    size = f"{path.stat().st_size:,} bytes"
    if _is_hdf5(path):
        import h5py

        try:
            with h5py.File(path, "r") as file:
                yield file  # pyright: ignore[reportReturnType]
        except OSError as error:
            raise ValueError(
                f"'{path.name}' ({size}) is not a whole HDF5 file: {error}. "
                "An interrupted download looks like this: delete the file and load it again."
            ) from error
        return
    with path.open("rb") as stream:  # NumPy does not close a file that it cannot read
        yield _Archive(path, stream)


class _Archive(Mapping[str, np.ndarray]):
    """A .npz file whose errors say what to do."""

    def __init__(self, path: Path, stream: Any) -> None:
        self.path = path
        try:
            self.file: Any = np.load(stream, allow_pickle=False)
        except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
            raise self._broken(error) from error
        if isinstance(self.file, np.ndarray):
            raise self._broken("it holds a single array")

    def __getitem__(self, key: str) -> np.ndarray:
        try:
            return self.file[key]
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
            if "allow_pickle" in str(error):
                raise ValueError(
                    f"'{self.path.name}': '{key}' holds Python objects, and unpickling runs whatever code a file "
                    "contains. If you trust its source, load it with numpy and save plain arrays of numbers: "
                    "np.savez(path, observations=..., ...)"
                ) from error
            raise self._broken(error) from error

    def __contains__(self, key: object) -> bool:
        return key in self.file.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.files)

    def __len__(self) -> int:
        return len(self.file.files)

    def _broken(self, reason: Any) -> ValueError:
        return ValueError(
            f"'{self.path.name}' ({self.path.stat().st_size:,} bytes) is not a whole .npz archive: {reason}. "
            "An interrupted download looks like this: delete the file and load it again."
        )


def _rows(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    """All rows of a file, and notes on what had to be assumed."""
    found = {field: next((key for key in keys if key in file), None) for field, keys in ALIASES.items()}
    notes = []
    for field in ("observation", "action", "reward"):
        if found[field] is None:
            hint = ""
            if field == "reward" and "qpos" in file:
                hint = (
                    " OGBench's files hold none: load them by name, such as 'ogbench/cube-single-play-singletask-v0'."
                )
            raise _missing(name, file, ALIASES[field], hint)
    keys = {field: key for field, key in found.items() if key is not None}
    types: dict[str, str] = {}

    def read_array(key: str) -> Any:
        array = table.numbers(file[key], name, key)
        types[key] = array.dtype.name
        return array

    reward = table.column(read_array(keys["reward"]), name, keys["reward"], np.float32)
    truncated = np.zeros(len(reward), np.bool_)
    if "truncated" in keys:
        truncated = table.column(file[keys["truncated"]], name, keys["truncated"], np.bool_)
    if "terminated" in keys:
        terminated = table.column(file[keys["terminated"]], name, keys["terminated"], np.bool_)
    elif "done" in keys:
        terminated = table.column(file[keys["done"]], name, keys["done"], np.bool_)
        if "truncated" not in keys:
            notes.append(f"'{keys['done']}' is read as the environment's own end: time limits were not recorded")
        elif len(terminated) == len(truncated):
            terminated = terminated & ~truncated  # `done` of vector environments marks both kinds of ends
        keys["terminated"] = keys["done"]
    else:
        terminated = np.zeros(len(reward), np.bool_)
        truncated = truncated | _ends(name, file, len(reward))
        keys["terminated"] = "episode_starts" if "episode_starts" in file else "episode_lengths"
        notes.append("why episodes ended was not recorded: all ends count as truncated")
    key = keys.get("next_observation")
    rows = Rows(
        name,
        keys,
        table.vectors(read_array(keys["observation"]), name, keys["observation"]),
        table.actions(read_array(keys["action"]), name, keys["action"]),
        reward,
        terminated,
        truncated,
        None if key is None else table.vectors(read_array(key), name, key),
        types=types,
    )
    return rows, notes


def _ends(name: str, file: Mapping[str, Any], length: int) -> np.ndarray:
    """[M] bool: the last rows of trajectories, from `episode_starts` or `episode_lengths`."""
    if "episode_starts" in file:
        starts = table.column(file["episode_starts"], name, "episode_starts", np.bool_)
        return np.append(starts[1:], True)
    if "episode_lengths" in file:
        last = np.cumsum(table.column(file["episode_lengths"], name, "episode_lengths", np.int64)) - 1
        if len(last) == 0 or last[-1] != length - 1:
            raise ValueError(f"'{name}': 'episode_lengths' sum up to {last[-1] + 1 if len(last) else 0}, not {length}.")
        ends = np.zeros(length, np.bool_)
        ends[last] = True
        return ends
    hint = " Without them no episode has an end, and every value is bootstrapped for ever."
    raise _missing(name, file, (*ALIASES["terminated"], *ALIASES["done"]), hint)


def _selected(rows: Rows) -> Rows:
    """The rows that have a successor, and terminal rows, which need none."""
    keep = np.ones(len(rows.reward), np.bool_)
    if rows.next_observation is None:
        keep = ~np.append(rows.truncated[:-1], True) | rows.terminated
        rows.dropped["last of a trajectory, without a successor"] = int((~keep).sum())
    return table.successors(rows, keep)


def _missing(name: str, file: Mapping[str, Any], keys: tuple[str, ...], hint: str) -> ValueError:
    others = ", ".join(repr(key) for key in keys[1:])
    present = ", ".join(sorted(file)) or "nothing"
    return ValueError(f"'{name}' has no '{keys[0]}' (nor {others}); it has: {present}.{hint}")


def _metadata(name: str, file: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that `_description` wrote; {} for other files."""
    key = next((key for key in ("metadata/rljax", "metadata") if key in file), None)
    value = None if key is None else file[key]
    if value is None or hasattr(value, "keys"):  # the metadata group of another layout
        return {}
    try:
        found = json.loads(value[()])
    except (TypeError, ValueError):
        return {}
    if not isinstance(found, dict) or not str(found.get("format", "")).startswith("rljax dataset"):
        return {}
    if found["format"] != FORMAT:
        raise ValueError(f"'{name}' is a '{found['format']}', this rljax reads '{FORMAT}'. Install a newer rljax.")
    return found


def _arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    transitions = dataset.transitions
    return {
        "observations": np.asarray(transitions.observation),
        "actions": base.denormalised(dataset),
        "rewards": np.asarray(transitions.reward),
        "terminals": np.asarray(transitions.terminated),
        "timeouts": np.asarray(transitions.truncated),
        "next_observations": np.asarray(transitions.next_observation),
    }


def _description(dataset: Dataset) -> str:
    known = dataset.name.startswith(tuple(f"{family}/" for family in base.FAMILIES))
    return json.dumps(
        {
            "format": FORMAT,
            "name": dataset.name if known else Path(dataset.name).name,  # without the folders of this machine
            "env": dataset.env,
            "reference": base.json_able(dataset.reference),
            "action_bounds": base.json_able(dataset.action_bounds),
            "complete": dataset.complete,
            **{key: dataset.provenance.get(key) for key in KEPT},
            "num_actions": dataset.action_size if dataset.discrete else None,
            "provenance": base.json_able(dataset.provenance),
        }
    )


def _is_hdf5(path: Path) -> bool:
    return path.suffix.lower() in (".hdf5", ".h5")


def _with_suffix(path: Path, suffixes: tuple[str, ...]) -> Path:
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"the file is '{path.name}', its suffix must be {' or '.join(suffixes)}.")
    return path


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`. It replaces `path` at the end, unless an error was raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
