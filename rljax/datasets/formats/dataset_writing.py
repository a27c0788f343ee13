"""Data sets as NumPy archives and HDF5 files in our layout.

`rljax.datasets.formats.dataset_files` describes the layout and reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import observation_arrays, schema
from rljax.datasets.formats.dataset_files import FORMAT, FORMAT_OF_ALL, LASTING, SUFFIXES


def write(dataset: OfflineDataset, path: Path) -> Path:
    """Write `dataset` in the format of the suffix of `path`, by `write_archive` or `write_hdf5`.

    Return the path.
    """
    path = _with_suffix(path, SUFFIXES)
    return (
        write_archive(dataset, path) if path.suffix.lower() == ".npz" else write_hdf5(dataset, path)
    )


def write_archive(dataset: OfflineDataset, path: Path) -> Path:
    """Write `dataset` as a compressed .npz file in our layout.

    Return the path. `load` reads back the same dataset.

    The file appears complete or not at all; an existing file is replaced. Raises `ValueError` for
    another suffix.
    """
    path = _with_suffix(path, (".npz",))
    with atomic(path) as temporary, temporary.open("wb") as file:
        arrays: Any = _arrays(dataset) | {"metadata": np.array(_description(dataset))}
        np.savez_compressed(file, **arrays)
    return path


def write_hdf5(dataset: OfflineDataset, path: Path, infos: Mapping[str, Any] | None = None) -> Path:
    """Write `dataset` as an HDF5 file in D4RL's layout.

    Return the path. `load` reads back the same dataset.

    Beside D4RL's arrays the file holds `timeouts`, `next_observations`, the arrays of `infos`
    ([N, ...] each) as `infos/NAME`, and `metadata/`: environment, references and provenance as JSON
    under `rljax`, and environment and algorithm as texts. Other readers of D4RL's layout can read
    it. The file appears complete or not at all.

    Raises `ValueError` for another suffix and for `infos` of another length.
    """
    import h5py

    path = _with_suffix(path, (".hdf5", ".h5"))
    for key, value in (infos or {}).items():
        if len(value) != dataset.num:
            raise ValueError(
                f"infos['{key}'] has {len(value)} rows, the dataset has {dataset.num}."
            )
    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        for key, value in _arrays(dataset).items():
            file.create_dataset(
                key, data=value, compression="gzip", compression_opts=1, shuffle=True
            )
        for key, value in (infos or {}).items():
            file.create_dataset(
                f"infos/{key}", data=value, compression="gzip", compression_opts=1, shuffle=True
            )
        file["metadata/rljax"] = _description(dataset)
        for key in ("env", "algorithm"):
            value = dataset.env if key == "env" else dataset.provenance.get(key)
            if value is not None:
                file[f"metadata/{key}"] = str(value)
    return path


def _arrays(dataset: OfflineDataset) -> dict[str, np.ndarray]:
    transitions = dataset.transitions
    both = transitions.observation, transitions.next_observation
    if dataset.is_plain:
        observation: dict[str, np.ndarray] = {
            "observations": np.asarray(both[0]),
            "next_observations": np.asarray(both[1]),
        }
    else:
        observation = observation_arrays.written(*both)
    return {
        "actions": base.denormalised(dataset),
        "rewards": np.asarray(transitions.reward),
        "terminals": np.asarray(transitions.terminated),
        "timeouts": np.asarray(transitions.truncated),
        **observation,
        **{
            f"{schema.SIGNALS}{signal}": np.asarray(column)
            for signal, column in transitions.extras.items()
        },
    }


def _description(dataset: OfflineDataset) -> str:
    known = dataset.name.startswith(tuple(f"{family}/" for family in base.FAMILIES))
    description = (
        None if dataset.is_plain else observation_arrays.described(dataset.transitions.observation)
    )
    return json.dumps(
        {
            "format": FORMAT if dataset.is_plain else FORMAT_OF_ALL,
            "observation": description,
            # Without the folders of this machine.
            "name": dataset.name if known else Path(dataset.name).name,
            "env": dataset.env,
            "reference": base.json_able(dataset.reference),
            "action_bounds": base.json_able(dataset.action_bounds),
            "complete": dataset.complete,
            **{key: dataset.provenance.get(key) for key in LASTING},
            "num_actions": dataset.provenance.get("num_actions")
            if dataset.discrete and not dataset.choices
            else None,
            "choices": list(dataset.choices) or None,
            "provenance": base.json_able(dataset.provenance),
        }
    )


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
