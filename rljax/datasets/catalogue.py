"""Datasets by name: which reader a name goes to, and which names there are."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from rljax.datasets import archive, d4rl, ogbench
from rljax.datasets.archive import SUFFIXES
from rljax.datasets.dataset import FAMILIES, Dataset
from rljax.datasets.download import Progress, known, root


def names() -> dict[str, list[str]]:
    """The known ids of each family, as `load` takes them."""
    return {family: _reader(family).names() for family in FAMILIES}


def load(
    name: str,
    folder: Path | None = None,
    *,
    download: bool = True,
    clip_actions: bool = False,
    strict: bool = False,
    action_bounds: Any = None,
    progress: Progress | None = None,
) -> Dataset:
    """The dataset called `name`, in the memory of the host.

    Args:
        name: "d4rl/hopper-medium-v2", "minari/mujoco/hopper/medium-v0", "ogbench/cube-single-play-singletask-v0",
            "neorl2/Pipeline-v0", or the path of a .hdf5, .h5 or .npz file; a path without a folder is "./file.npz".
        folder: where datasets are kept, and downloaded to: $RLJAX_DATA or ~/.rljax/data by default, with a folder
            per family in it. The folders of the families' own libraries are searched after it.
        download: whether a file that is nowhere may be downloaded.
        clip_actions: whether actions beyond their bounds are clipped to them, or refused.
        strict: of D4RL's files, D4RL's own `next_observations`, leak included (see `rljax.datasets.d4rl`).
        action_bounds: low and high of the actions in a file given by its path, each a number or one per dimension; by
            default what the file's metadata says, or else -1 and 1.
        progress: called while downloading with the file's name, bytes so far and bytes in all; a bar by default.

    Raises:
        ValueError: an unknown name (the nearest are named); a file that is nowhere and cannot be downloaded (what to
            put where); a file that is cut, lacks an array, is empty, has arrays of unequal lengths, values that are
            not finite, or actions that lie beyond their bounds by more than 1e-3 half ranges.
    """
    name = str(name)
    if _is_id(name):
        family = name.partition("/")[0]
        if action_bounds is not None:
            raise ValueError(f"action_bounds is for files given by their path; those of '{name}' are known.")
        if family == "d4rl":
            return d4rl.load(
                name, folder, download=download, clip_actions=clip_actions, strict=strict, progress=progress
            )
        reader = _reader(family)
        return reader.load(name, folder, download=download, clip_actions=clip_actions, progress=progress)
    path = _located(name, folder)
    if path.suffix.lower() not in SUFFIXES:
        prefixes = ", ".join(f"{prefix}/" for prefix in FAMILIES)
        hint = ""
        if path.is_dir():
            hint = f" Files in '{name}': {', '.join(sorted(child.name for child in path.iterdir())[:5]) or 'none'}."
        raise ValueError(
            f"'{name}' names no dataset: names begin with {prefixes}and files end in {', '.join(SUFFIXES)}.{hint} "
            "All names: rljax data list"
        )
    if not path.is_file():
        raise ValueError(f"there is no file '{name}', neither here nor in the folder of datasets.")
    if _is_of_d4rl(path):
        return d4rl.read(path, name, clip_actions=clip_actions, strict=strict)
    recorded = _recorded(path)
    if recorded is not None:
        return ogbench.read(path, name, recorded, clip_actions=clip_actions)
    return archive.read(path, name, action_bounds=action_bounds, clip_actions=clip_actions)


def environment(name: str) -> str | None:
    """The environment that the dataset called `name` names, without reading its rows; None where it is not known so."""
    if _is_id(name):
        return _reader(name.partition("/")[0]).environment(name)
    path = _located(name)
    return _of_file(path) if path.suffix.lower() in SUFFIXES and path.is_file() else None


def identity(data: str) -> str | None:
    """The id of the published dataset that `data`, an id or a path, names; None of one's own. No rows are read.

    An id is returned as it is. A file is known as D4RL's by its name, as a recording of OGBench's data by the note
    beside it, and as a copy that `write` made of a published dataset by its metadata.
    """
    if _is_id(data):
        return data
    path = _located(data)
    if path.suffix.lower() not in SUFFIXES:
        return None
    described = archive.description(path) if path.is_file() else {}
    if described:
        name = str(described.get("name"))
        return name if _is_id(name) else None
    entry = d4rl.of_file(path)
    if entry is not None:
        return f"d4rl/{entry.id}"
    recorded = known(path).get("recorded")
    return None if recorded is None else f"ogbench/{recorded['id']}"


def short(name: str) -> str:
    """What to call a dataset in a path."""
    return Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name.replace("/", "-")


def _is_id(name: str) -> bool:
    """Whether `name` is an id of one of the families, known or not, rather than a path."""
    family, _, rest = name.partition("/")
    return family in FAMILIES and bool(rest) and Path(name).suffix.lower() not in SUFFIXES


def _located(name: str, folder: Path | None = None) -> Path:
    """The path `name`; one that is nowhere is looked for in the folder of datasets too."""
    path = Path(name).expanduser()
    inside = root(folder) / path  # `path` itself where that is absolute
    return inside if not path.is_file() and inside.is_file() else path


def _reader(family: str) -> Any:
    return importlib.import_module(f"rljax.datasets.{family}")


def _of_file(path: Path) -> str | None:
    entry = d4rl.of_file(path) if _is_of_d4rl(path) else _recorded(path)
    return archive.description(path).get("env") if entry is None else entry.env


def _recorded(path: Path) -> ogbench.Name | None:
    """Which of OGBench's data sets `path` was recorded as (see `rljax.datasets.play`), and None of all other files."""
    recorded = known(path).get("recorded")
    return None if recorded is None else ogbench.parse(recorded["id"])


def _is_of_d4rl(path: Path) -> bool:
    """Whether `path` is one of D4RL's own files, by its name, and not one of ours that was called so."""
    if d4rl.of_file(path) is None:
        return False
    with archive.opened(path) as file:
        return "metadata/rljax" not in file
