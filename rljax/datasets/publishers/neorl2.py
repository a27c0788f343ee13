"""NeoRL-2's datasets of near-real tasks.

A file holds `obs` [M, O], `action` [M, A], `next_obs` [M, O], `reward` [M], `done` [M] and
`truncated` [M]. References, limits and checksums are the package's (0.0.1) [1, envs/info.py].

[1] Gao et al., arXiv:2503.19267; polixir/NeoRL2.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import dataset_files
from rljax.datasets.publishers import download as files
from rljax.datasets.tools import preprocess

URL = "http://datasets.polixir.site/neorl2"
# Task -> returns of score 0 and 100, time limit in steps, MD5 of the training and of the validation
# file.
TASKS: dict[str, tuple[tuple[float, float], int, str, str]] = {
    "DMSD": (
        (30.60, 849.51),
        100,
        "88dfa39aa18904e809056b51c2e6319b",
        "be6c39c0e73c17029206e714068f26b7",
    ),
    "Fusion": (
        (-107.601, 98.05),
        100,
        "98979f97e0b59dd46bbb9237176a68ab",
        "9baa5556fac98b86ab9b58040da17d86",
    ),
    "Pipeline": (
        (-296, 751),
        1000,
        "59902b333be6edb9252acfc2302cc1ed",
        "c502f529db1de55ebf37d63e1defca56",
    ),
    "RandomFrictionHopper": (
        (-3, 503),
        1000,
        "3ef2c41483689729d3b5a3aef3b7b8f7",
        "2628f354222de37803451c63e84a1269",
    ),
    "RocketRecovery": (
        (-176, 208),
        500,
        "b1a7bf1ec16cfef390b6b1cec2b13ddc",
        "0b25bd998e92b4f808f8ee5207ce06dd",
    ),
    "SafetyHalfCheetah": (
        (-283, 2507),
        1000,
        "c35efec4a25fb45837487ba00f74e1ed",
        "da65ba51a4cc17370572da3c801d228b",
    ),
    "Salespromotion": (
        (357.62, 602.21),
        50,
        "7e84d0a142f53512dab082115c9ee498",
        "9337d7b68078725708f2e9b04cb4a1f8",
    ),
    "Simglucose": (
        (9.75, 475),
        480,
        "6195a3634379f576958440b7e0c8fc53",
        "6df907556cbc96002757f6d652be9d92",
    ),
}
ENVIRONMENTS = {  # `rljax.envs.tasks.neorl2` and `rljax.envs.host.robots.neorl2`
    "DMSD": "rljax/DMSD",
    "Pipeline": "rljax/Pipeline",
    "SafetyHalfCheetah": "rljax.envs.host.robots.neorl2:SafetyHalfCheetah-v0",
}
# That the package's `get_dataset` keeps [1, envs/base.py].
TRAJECTORIES = {
    "RocketRecovery": {"train": 100, "val": 25},
    "Fusion": {"train": 20, "val": 5},
}


def names() -> list[str]:
    """All ids."""
    return [f"neorl2/{task}-v0{split}" for task in TASKS for split in ("", "-val")]


def environment(name: str) -> str | None:
    """The environment of the dataset called `name`; None without one, and for unknown names."""
    return ENVIRONMENTS.get(_parts(name)[0])


def load(name: str, *, clip_actions: bool = False, **search: Any) -> OfflineDataset:
    """The dataset called `name`.

    The "-v0" of a name may be left out.
    """
    task, split = _parts(name)
    if task not in TASKS:
        raise base.unknown(name, "NeoRL-2", names())
    file = f"{task}-{split}.npz"
    md5 = TASKS[task][3 if split == "val" else 2]
    path = files.find(
        "neorl2",
        file,
        others=[Path.home() / ".neorl2" / "datasets"],
        url=f"{URL}/{task}/{file}",
        checksum=f"md5:{md5}",
        **search,
    )
    return read(path, name, task, split, clip_actions=clip_actions)


def read(
    path: Path, name: str, task: str, split: str = "train", *, clip_actions: bool = False
) -> OfflineDataset:
    """The dataset in the .npz file `path`: one of `TASKS`, and the split "train" or "val"."""
    reference, limit, *_ = TASKS[task]
    dataset = dataset_files.read(path, name, clip_actions=clip_actions)
    rules, rows = ["every row is kept: successors are stored"], dataset.num
    number = TRAJECTORIES.get(task, {}).get(split)
    if number is not None and number < len(dataset.episode_starts):
        dataset = preprocess.subset(dataset, np.arange(dataset.episode_starts[number]))
        rules.append(f"the first {number} trajectories, as the package's get_dataset keeps")
    provenance = dataset.provenance | {
        "reader": "neorl2",
        "url": files.source(path) or f"{URL}/{task}/{task}-{split}.npz",
        "id": task,
        "split": split,
        "rules": rules,
        "rows_in_file": rows,
        "max_episode_steps": limit,
        "notes": [],
    }
    return dataclasses.replace(
        dataset, env=ENVIRONMENTS.get(task), reference=reference, provenance=provenance
    )


def _parts(name: str) -> tuple[str, str]:
    split = "val" if name.endswith("-val") else "train"
    return name.removeprefix("neorl2/").removesuffix("-val").removesuffix("-v0"), split
