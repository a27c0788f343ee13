"""Minari's datasets, written through the `minari` package."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from rljax.buffers.storage import frames
from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import minari_arrays
from rljax.datasets.publishers import minari
from rljax.datasets.publishers import minari_environments as environments
from rljax.datasets.tools.check import not_following

PACKAGES = ("gymnasium_robotics", "ogbench", "rljax.envs.host.robots.neorl2")


def write_minari(
    dataset: OfflineDataset,
    identity: str,
    *,
    env: str | None = None,
    **metadata: Any,
) -> Path:
    """Write `dataset` as the Minari dataset `identity`, and return its folder.

    `metadata` are other arguments of Minari's `create_dataset_from_buffers`.

    Raises `ValueError` if `identity` is taken, if a successor within an episode is not the next
    observation (Minari stores each once), and, without `env`, for an environment of an unknown
    module.
    """
    module = (dataset.env or "").rpartition(":")[0]
    if env is None and module not in ("", *PACKAGES):
        raise ValueError(
            f"'{dataset.name}' names the environment {dataset.env!r}, and Minari would import "
            f"{module!r}. If you trust that code, name it yourself: --env {dataset.env!r} (in "
            "Python: env=...)."
        )
    try:
        package: Any = importlib.import_module("minari")
        buffer: Any = importlib.import_module("minari.data_collector").EpisodeBuffer
        from gymnasium import spaces
    except ImportError as error:
        raise ValueError(
            "writing Minari datasets needs its package: pip install 'minari[hdf5,create]'"
        ) from error
    folder = minari.library() / identity
    if folder.exists():
        raise ValueError(
            f"there is a Minari dataset '{identity}' already. Choose another, or: minari "
            f"delete {identity}"
        )
    transitions = dataset.transitions
    broken = not_following(dataset, tolerance=0.0)
    if len(broken):
        raise ValueError(
            f"the successor of row {broken[0]} of '{dataset.name}' is not the next row's "
            f"observation ({len(broken)} rows), and Minari stores each observation once: use "
            "rljax.datasets.write_archive."
        )
    action = base.denormalised(dataset)
    if dataset.choices:
        action_space: Any = spaces.MultiDiscrete(list(dataset.choices))
    elif dataset.action_bounds is None:
        action_space = spaces.Discrete(dataset.action_size)
    else:
        action = action.astype(np.float32)
        action_space = spaces.Box(*dataset.action_bounds, dtype=np.float32)
    observation_space, split = minari_arrays.written(dataset.spec, action_space)
    both = transitions.observation, transitions.next_observation

    def episode(index: int, start: int, length: int) -> Any:
        rows, last = slice(start, start + length), slice(start + length - 1, start + length)
        observations = frames.each(lambda x, y: np.concatenate([x[rows], y[last]]), *both)
        signals = {name: np.asarray(x)[rows] for name, x in transitions.extras.items()}
        return buffer(
            id=index,
            **minari_arrays.with_signals(split(observations), signals),
            actions=action[rows],
            rewards=np.asarray(transitions.reward)[rows],
            terminations=np.asarray(transitions.terminated)[rows],
            truncations=np.asarray(transitions.truncated)[rows],
        )

    episodes = zip(dataset.episode_starts, dataset.episode_lengths, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = package.create_dataset_from_buffers(
            identity,
            [episode(index, *rows) for index, rows in enumerate(episodes)],
            env=environments.registered(env or dataset.env),
            observation_space=observation_space,
            action_space=action_space,
            data_format="hdf5",
            **{"algorithm_name": dataset.provenance.get("algorithm")} | metadata,
        )
        # As arguments above, the package would create the environment and run a random policy.
        if dataset.reference is not None:
            scores = dict(zip(("ref_min_score", "ref_max_score"), dataset.reference, strict=True))
            written.storage.update_metadata(scores)
    return folder
