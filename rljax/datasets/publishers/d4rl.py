"""D4RL's datasets, read by its rules, but without its leak at terminals.

A file holds `observations` [M, O], `actions` [M, A], `rewards` [M] or [M, 1], `terminals` [M],
mostly `timeouts` [M], and, of the locomotion sets v1 and v2, `next_observations` [M, O]. `read`
keeps the rows of `qlearning_dataset` [1, d4rl/__init__.py]; docs/datasets.md has its rules, and
where successors differ from its s'. d4rl.csv is of [1, d4rl/infos.py].

[1] Fu et al., arXiv:2004.07219; Farama-Foundation/D4RL at 89141a6.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import assembly, opened, schema, text, unread
from rljax.datasets.formats.assembly import Rows
from rljax.datasets.formats.fingerprints import fingerprint
from rljax.datasets.publishers import download as files

URL = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
OPTIONAL = [("timeouts",), ("next_observations",)]
REQUIRED = ("observations", "actions", "rewards", "terminals")

# Current environments with D4RL's observations, actions and rewards.
ENVIRONMENTS = {
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "pen": "gymnasium_robotics:AdroitHandPen-v1",
    "hammer": "gymnasium_robotics:AdroitHandHammer-v1",
    "door": "gymnasium_robotics:AdroitHandDoor-v1",
    "relocate": "gymnasium_robotics:AdroitHandRelocate-v1",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """D4RL's registration of one of its datasets."""

    id: str  # "hopper-medium-v2"
    file: str  # path below `URL`
    reference: tuple[float, float] | None  # returns of score 0 and 100
    max_episode_steps: int

    @property
    def url(self) -> str:
        """The address of the file."""
        return URL + self.file

    @property
    def env(self) -> str | None:
        """The matching Gymnasium environment."""
        return ENVIRONMENTS.get(self.id.partition("-")[0])


@functools.cache
def entries() -> dict[str, Entry]:
    """All of D4RL's datasets by id."""
    text = resources.files(__package__ or "").joinpath("d4rl.csv").read_text(encoding="utf-8")
    table = {}
    for row in csv.DictReader(text.splitlines()):
        low, high = row["reference_minimum"], row["reference_maximum"]
        reference = (float(low), float(high)) if low else None
        table[row["id"]] = Entry(row["id"], row["file"], reference, int(row["max_episode_steps"]))
    return table


def of_file(path: Path) -> Entry | None:
    """The dataset whose file has the name of `path`, if any: of a shared one "human", not
    "human-longhorizon".
    """
    sharing = [entry for entry in entries().values() if Path(entry.file).name == path.name]
    return min(
        sharing, key=lambda entry: (entry.id != path.stem, "longhorizon" in entry.id), default=None
    )


def names() -> list[str]:
    """All ids."""
    return [f"d4rl/{name}" for name in entries()]


def environment(name: str) -> str | None:
    """The environment of the dataset called `name`; None without one, and for unknown names."""
    entry = entries().get(name.removeprefix("d4rl/"))
    return entry and entry.env


def reference(environment: str) -> tuple[float, float] | None:
    """Returns of score 0 and 100 of the D4RL task that matches a Gymnasium environment, or None."""
    return next((entry.reference for entry in entries().values() if entry.env == environment), None)


def load(
    name: str, *, clip_actions: bool = False, strict: bool = False, **search: Any
) -> OfflineDataset:
    """The dataset called `name`."""
    entry = entries().get(name.removeprefix("d4rl/"))
    if entry is None:
        raise base.unknown(name, "D4RL", names())
    library = Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")
    file = Path(entry.file).name
    path = files.find("d4rl", file, others=[library], url=entry.url, **search)
    return read(path, name, entry, clip_actions=clip_actions, strict=strict)


def read(
    path: Path,
    name: str | None = None,
    entry: Entry | None = None,
    *,
    clip_actions: bool = False,
    strict: bool = False,
) -> OfflineDataset:
    """The dataset in the HDF5 file `path`, by D4RL's rules.

    Args:
        name: of the dataset; the path by default.
        entry: by default `of_file(path)`.
        clip_actions: whether actions beyond [-1, 1], the bounds of all D4RL tasks, are clipped.
        strict: whether s' is always the next row's observation.

    Raises `ValueError` as `rljax.datasets.load`, and where no time limit is known.
    """
    path = Path(path)
    entry = entry or of_file(path)
    limit = entry and entry.max_episode_steps
    with opened(path) as file:
        for key in REQUIRED:
            if key not in file:
                raise _missing(path.name, key, list(file))
        reward = schema.column(file["rewards"], path.name, "rewards", np.float32)
        terminated = schema.marks(file["terminals"], path.name, "terminals")
        timed = "timeouts" in file
        if timed:
            timeouts = schema.marks(file["timeouts"], path.name, "timeouts")
        elif limit is not None:
            timeouts = time_limits(terminated, limit)
        else:
            raise ValueError(
                f"'{path.name}' has no 'timeouts', and its time limit is not known. Name it by its "
                "id, such as d4rl/hopper-medium-v0, or add 'timeouts' to the file."
            )
        stored = "next_observations" in file and not strict
        following = "next_observations" if stored else "observations"
        rows = Rows(
            path.name,
            dict(zip(base.FIELDS, (*REQUIRED, "timeouts", following), strict=True)),
            schema.vectors(file["observations"], path.name, "observations"),
            schema.actions(file["actions"], path.name, "actions"),
            reward,
            terminated,
            timeouts,
            schema.vectors(file[following], path.name, following) if stored else None,
            types={key: file[key].dtype.name for key in REQUIRED},
        )
        others = unread.unread(path.name, file, OPTIONAL)
    rows.check_lengths()
    complete, keep = bool(terminated[-1] or timeouts[-1]), ~timeouts
    rows.dropped["timed out"] = int((timeouts & ~terminated).sum())
    rows.dropped["timed out and terminal"] = int((timeouts & terminated).sum())
    rows.dropped["last row of the file"] = int(keep[-1])
    keep[-1] = False
    rules = [
        "D4RL's qlearning_dataset: timed-out rows and the last row are dropped",
        "timeouts: as stored"
        if timed
        else f"timeouts: not stored, every {limit} rows since the last end",
        "successors: stored" if stored else "successors: the next row's observation",
    ]
    if not stored:
        terminal = "the next row's observation (leak)" if strict else "their own"
        rules.append(f"successors of terminal rows: {terminal}")
    provenance: dict[str, Any] = {
        "reader": "d4rl",
        "files": [fingerprint(path)],
        "url": files.source(path) or (entry and entry.url),
        "id": entry and entry.id,
        "rules": rules,
        "unread": others,
        "strict": strict,
        "rows_in_file": len(reward),
        "max_episode_steps": limit,
        "versions": base.versions("h5py"),
    }
    return assembly.assemble(
        name or str(path),
        assembly.successors(rows, keep, leak=strict),
        env=entry and entry.env,
        reference=entry and entry.reference,
        clip_actions=clip_actions,
        complete=complete,
        provenance=provenance,
    )


def time_limits(terminated: np.ndarray, limit: int) -> np.ndarray:
    """[M] bool: the rows that D4RL treats as timed out in a file without `timeouts`.

    It times out at `limit - 1`. The count begins at 0 in the file's first row and after a timed-out
    row, but at 1 after a terminal row.
    """
    ends = np.flatnonzero(terminated)
    starts = np.append(0, ends + 1)
    first = np.zeros(len(starts), np.int64)  # the count at each of `starts`
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=False)):
        first[index + 1] = 0 if (first[index] + end - start) % limit == limit - 1 else 1
    lengths = np.diff(np.append(starts, len(terminated)))
    count = np.arange(len(terminated)) - np.repeat(starts - first, lengths)
    return count % limit == limit - 1


def _missing(file: str, key: str, present: list[str]) -> ValueError:
    if "episode_0" in present:
        return ValueError(
            f"'{file}' is a Minari file. Name the folder above 'data/', or the dataset: minari/..."
        )
    return ValueError(
        f"'{file}' has no '{key}'; it has: {text.listed(present)}. D4RL's layout needs "
        f"{', '.join(REQUIRED)}. Add it to the file, or record the file again."
    )
