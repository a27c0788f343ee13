"""Minari's datasets, written through the `minari` package.

`rljax.datasets.publishers.minari` reads them, and describes their files.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from rljax.buffers import frames
from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import minari_arrays
from rljax.datasets.publishers import minari
from rljax.datasets.publishers import minari_environments as environments
from rljax.datasets.tools.check import not_following

# They register environments of published data.
PACKAGES = ("gymnasium_robotics", "ogbench", "rljax.envs.host.robots.neorl2")


def write_minari(
    dataset: OfflineDataset,
    identity: str,
    *,
    env: str | None = None,
    author: str | None = None,
    author_email: str | None = None,
    code_permalink: str | None = None,
    algorithm_name: str | None = None,
    description: str | None = None,
) -> Path:
    """Write `dataset` as the Minari dataset `identity`, such as "hopper/medium-v0",
    and return its folder.

    The folder lies where Minari keeps its datasets: $MINARI_DATASETS_PATH or ~/.minari/datasets.
    Environment and references are those of the dataset. Actions are written within the
    environment's bounds. Each episode's last observation is the successor of its last row, so
    reading gives back the same transitions. If a terminal state's successor was not recorded, it is
    the terminal row's own observation.

    The package makes the environment. `env` names it in place of the data set, whose file may be
    somebody else's.

    Raises `ValueError` if the package is missing, if `identity` is taken, if a successor within an
    episode is not the next observation (Minari stores each observation once), and if the data set
    names an environment of an unknown module, which would be imported: give it as `env`.
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
            f"observation ({len(broken)} rows), and Minari stores each observation once. Write an "
            "archive instead: rljax.datasets.write_archive."
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
    starts, both = dataset.episode_starts, (transitions.observation, transitions.next_observation)

    def observations_in(start: int, end: int) -> Any:
        return frames.each(lambda x, y: np.concatenate([x[start:end], y[end - 1 : end]]), *both)

    def signals_in(start: int, end: int) -> dict[str, np.ndarray]:
        return {name: np.asarray(column)[start:end] for name, column in transitions.extras.items()}

    buffers = [
        buffer(
            id=index,
            **minari_arrays.with_signals(
                split(observations_in(start, end)), signals_in(start, end)
            ),
            actions=action[start:end],
            rewards=np.asarray(transitions.reward)[start:end],
            terminations=np.asarray(transitions.terminated)[start:end],
            truncations=np.asarray(transitions.truncated)[start:end],
        )
        for index, (start, end) in enumerate(
            zip(starts, np.append(starts[1:], dataset.num), strict=True)
        )
    ]
    low, high = dataset.reference or (None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about optional arguments
        written = package.create_dataset_from_buffers(
            identity,
            buffers,
            env=environments.registered(env or dataset.env),
            observation_space=observation_space,
            action_space=action_space,
            author=author,
            author_email=author_email,
            code_permalink=code_permalink,
            algorithm_name=algorithm_name or dataset.provenance.get("algorithm"),
            description=description,
            data_format="hdf5",
        )
        # As arguments above, the package would create the environment and run a random policy.
        if low is not None:
            written.storage.update_metadata({"ref_min_score": low, "ref_max_score": high})
    return folder
