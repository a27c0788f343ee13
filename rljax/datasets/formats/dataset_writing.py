"""Data sets written in the layout of `rljax.datasets.formats.dataset_files`.

A file appears complete or not at all, in place of an existing one. Raises `ValueError` for another
suffix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import is_hdf5, observation_arrays, schema
from rljax.datasets.formats.dataset_files import FORMAT, FORMAT_OF_ALL, LASTING, SUFFIXES
from rljax.system.outputs import atomic


def write(dataset: OfflineDataset, path: Path) -> Path:
    """Write `dataset` by the suffix of `path`, and return that."""
    path = with_suffix(path)
    return (write_hdf5 if is_hdf5(path) else write_archive)(dataset, path)


def write_archive(dataset: OfflineDataset, path: Path) -> Path:
    """Write `dataset` as a compressed .npz file. Return the path."""
    path = with_suffix(path, (".npz",))
    with atomic(path) as temporary, temporary.open("wb") as file:
        arrays: Any = _arrays(dataset) | {"metadata": np.array(_description(dataset))}
        np.savez_compressed(file, **arrays)
    return path


def write_hdf5(dataset: OfflineDataset, path: Path) -> Path:
    """Write `dataset` as an HDF5 file in D4RL's layout, and return its path."""
    import h5py

    path = with_suffix(path, SUFFIXES[1:])
    texts = {"env": dataset.env, "algorithm": dataset.provenance.get("algorithm")}
    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        for key, value in _arrays(dataset).items():
            file.create_dataset(
                key, data=value, compression="gzip", compression_opts=1, shuffle=True
            )
        file["metadata/rljax"] = _description(dataset)
        for key, value in texts.items():
            if value is not None:
                file[f"metadata/{key}"] = str(value)
    return path


def _arrays(dataset: OfflineDataset) -> dict[str, np.ndarray]:
    transitions = dataset.transitions
    both = transitions.observation, transitions.next_observation
    return {
        "actions": base.denormalised(dataset),
        "rewards": np.asarray(transitions.reward),
        "terminals": np.asarray(transitions.terminated),
        "timeouts": np.asarray(transitions.truncated),
        **observation_arrays.written(*both),
        **{
            f"{schema.SIGNALS}{signal}": np.asarray(column)
            for signal, column in transitions.extras.items()
        },
    }


def _description(dataset: OfflineDataset) -> str:
    known = dataset.name.startswith(tuple(f"{family}/" for family in base.FAMILIES))
    description = {
        "format": FORMAT,
        "observation": None,
        # Without the folders of this machine.
        "name": dataset.name if known else Path(dataset.name).name,
        "env": dataset.env,
        "reference": dataset.reference,
        "action_bounds": dataset.action_bounds,
        "complete": dataset.complete,
        **{key: dataset.provenance.get(key) for key in LASTING},
        "choices": dataset.choices or None,
        "provenance": dataset.provenance,
    }
    if not dataset.is_plain:
        observation = observation_arrays.described(dataset.transitions.observation)
        description |= {"format": FORMAT_OF_ALL, "observation": observation}
    if dataset.choices or not dataset.discrete:
        description["num_actions"] = None
    return json.dumps(description, default=lambda x: x.name if isinstance(x, Path) else x.tolist())


def with_suffix(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> Path:
    """The path. Raises `ValueError` if it has none of the suffixes."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"the file is '{path.name}', its suffix must be {' or '.join(suffixes)}.")
    return path
