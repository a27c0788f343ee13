"""Datasets by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from rljax.datasets.dataset import FAMILIES, OfflineDataset
from rljax.datasets.formats import conversions, dataset_files
from rljax.datasets.formats.dataset_files import SUFFIXES
from rljax.datasets.publishers import d4rl, minari_environments, ogbench
from rljax.datasets.publishers.download import Progress, known, root


def names() -> dict[str, list[str]]:
    """The known ids of each family."""
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
) -> OfflineDataset:
    """The dataset called `name`, in the memory of the host.

    Args:
        name: an id such as "d4rl/hopper-medium-v2", or the path of a .hdf5, .h5 or .npz file.
        folder: where datasets are kept, by default $RLJAX_DATA or ~/.rljax/data.
        download: whether a missing file may be downloaded.
        clip_actions: whether actions beyond their bounds are clipped or refused.
        strict: whether D4RL's files give D4RL's own arrays.
        action_bounds: low and high of the actions, each a number or one per dimension, for files by
            path and Minari's data without bounds. By default the file's, or else -1 and 1.
        progress: as `download.Progress`; by default a bar.

    Raises:
        ValueError: an unknown name, a missing or faulty file, or actions beyond their bounds by
            more than 1e-3 half ranges.
    """
    name = str(name)
    if _is_id(name):
        family = name.partition("/")[0]
        if action_bounds is not None and family != "minari":
            raise ValueError(
                f"action_bounds is for files given by their path; those of '{name}' are known."
            )
        options = {"d4rl": {"strict": strict}, "minari": {"action_bounds": action_bounds}}
        search = {"folder": folder, "download": download, "progress": progress}
        return _reader(family).load(
            name, clip_actions=clip_actions, **options.get(family, {}), **search
        )
    path = _located(name, folder)
    if path.suffix.lower() not in SUFFIXES:
        advice = conversions.advice(path)
        if advice is not None:
            raise ValueError(advice)
        prefixes = ", ".join(f"{prefix}/" for prefix in FAMILIES)
        hint = ""
        if path.is_dir():
            files = ", ".join(sorted(child.name for child in path.iterdir())[:5])
            hint = f" Files in '{name}': {files or 'none'}."
        raise ValueError(
            f"'{name}' names no dataset: names begin with {prefixes} and files end in "
            f"{', '.join(SUFFIXES)}.{hint} All names: rljax data list"
        )
    if not path.is_file():
        raise ValueError(f"there is no file '{name}', neither here nor in the folder of datasets.")
    if _is_of_d4rl(path):
        return d4rl.read(path, name, clip_actions=clip_actions, strict=strict)
    recorded = _recorded(path)
    if recorded is not None:
        return ogbench.read(path, name, recorded, clip_actions=clip_actions)
    return dataset_files.read(path, name, action_bounds=action_bounds, clip_actions=clip_actions)


def environment(name: str) -> str | None:
    """The environment of the dataset called `name`, if known without reading rows."""
    if _is_id(name):
        return _reader(name.partition("/")[0]).environment(name)
    path = _located(name)
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return None
    entry = d4rl.of_file(path) if _is_of_d4rl(path) else _recorded(path)
    return dataset_files.description(path).get("env") if entry is None else entry.env


def identity(data: str) -> str | None:
    """The id of the published dataset that `data`, an id or a path, stands for; None for others."""
    if _is_id(data):
        return data
    path = _located(data)
    if path.suffix.lower() not in SUFFIXES:
        return None
    described = dataset_files.description(path) if path.is_file() else {}
    if described:
        name = str(described.get("name"))
        return name if _is_id(name) else None
    entry = d4rl.of_file(path)
    if entry is not None:
        return f"d4rl/{entry.id}"
    recorded = known(path).get("recorded")
    return None if recorded is None else f"ogbench/{recorded['id']}"


def aliases(data: str) -> tuple[str, ...]:
    """D4RL's id of the same dataset, if any, and the `identity` of `data`."""
    name = identity(data)
    if name is None:
        return ()
    original = minari_environments.original(name)
    return (name,) if original is None else (original, name)


def short(name: str) -> str:
    """The name of a dataset as a part of a path."""
    return Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name.replace("/", "-")


def _is_id(name: str) -> bool:
    family, _, rest = name.partition("/")
    return family in FAMILIES and bool(rest) and Path(name).suffix.lower() not in SUFFIXES


def _located(name: str, folder: Path | None = None) -> Path:
    path = Path(name).expanduser()
    inside = root(folder) / path  # `path` itself if it is absolute
    return inside if not path.is_file() and inside.is_file() else path


def _reader(family: str) -> Any:
    return importlib.import_module(f"{__package__}.{family}")


def _recorded(path: Path) -> ogbench.Name | None:
    """The data set of OGBench that was recorded to `path`, if any."""
    recorded = known(path).get("recorded")
    return None if recorded is None else ogbench.parse(recorded["id"])


def _is_of_d4rl(path: Path) -> bool:
    if d4rl.of_file(path) is None:
        return False
    with dataset_files.opened(path) as file:
        return "metadata/rljax" not in file
