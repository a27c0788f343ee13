"""`rljax.Dataset`: a recorded data set as an object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax import datasets
from rljax.datasets import Finding, OfflineDataset
from rljax.datasets.formats.dataset_files import of_arrays
from rljax.datasets.formats.dataset_writing import with_suffix
from rljax.system import outputs


class DatasetFile:
    """N transitions in recorded order, as `rljax train --data` reads them.

    Actions are normalised to [-1, 1] by `action_bounds`.
    """

    def __init__(self, data: OfflineDataset | str | Path, path: Path | None = None) -> None:
        """Rows in memory, of which the file `path` holds the same, if there is one; or a data set's
        name or file, as `read` takes it.
        """
        if isinstance(data, str | Path):
            path = Path(data) if Path(data).is_file() else None
            data = datasets.load(str(data))
        self.data, self.path = data, path

    def __repr__(self) -> str:
        return (
            f"Dataset({self.data.name!r}): {len(self):,} transitions, {len(self.returns)} episodes"
        )

    def __len__(self) -> int:
        return self.data.num

    @classmethod
    def read(cls, name: str | Path, **options: Any) -> DatasetFile:
        """A published data set by its name, or a file. Options are those of
        `rljax.datasets.load`, with its errors.
        """
        data = datasets.load(str(name), **options)
        return cls(data, Path(name) if Path(name).is_file() else None)

    @classmethod
    def from_arrays(
        cls,
        path: str | Path,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminals: Any,
        timeouts: Any = None,
        *,
        next_observations: Any = None,
        signals: Mapping[str, Any] | None = None,
        env: str | None = None,
        action_bounds: tuple[Any, Any] | None = None,
    ) -> DatasetFile:
        """Write arrays [N, ...] in recorded order as a data set's file, and read it.

        Args:
            path: the file, which ends in .npz, .hdf5 or .h5.
            observations: [N, O...], or a dictionary of such arrays.
            actions: [N, A] in the environment's units, or [N] whole numbers for discrete actions.
            rewards: [N].
            terminals: [N], true where the environment itself ended the episode.
            timeouts: [N], true where an episode ended otherwise, such as by a time limit.
            next_observations: as `observations`. Without them the last row of an episode that is
                not terminal is dropped, since its successor is not known.
            signals: other numbers [N, ...] by name, such as a cost.
            env: the environment that the data are from, for evaluations.
            action_bounds: low and high of the actions, each a number or [A]; default -1 and 1.

        Raises `ValueError` for arrays that do not fit together, and for a file that exists.
        """
        path = with_suffix(Path(path))
        if path.exists():
            raise ValueError(f"'{path}' exists. Choose another name, or delete it.")
        outputs.require_makeable(path)
        columns = {
            "observation": observations,
            "action": actions,
            "reward": rewards,
            "terminated": terminals,
            "truncated": timeouts,
            "next_observation": next_observations,
        }
        data = of_arrays(path.name, columns, signals or {}, env, action_bounds)
        return cls.read(datasets.write(data, path))

    def __getitem__(self, rows: Any) -> DatasetFile:
        """Some rows: a slice, a mask [N] or rising indices. Episodes are cut where rows are left
        out.
        """
        indices = np.arange(len(self))[rows]
        return DatasetFile(datasets.subset(self.data, np.atleast_1d(indices)))

    def episodes(self, which: Any) -> DatasetFile:
        """Some episodes: a slice, a mask or indices of them."""
        starts, lengths = self.data.episode_starts, self.data.episode_lengths
        numbers = np.atleast_1d(np.arange(len(starts))[which])
        spans = [(int(starts[i]), int(lengths[i])) for i in np.sort(numbers)]
        rows = [np.arange(start, start + length) for start, length in spans]
        return DatasetFile(datasets.subset(self.data, np.concatenate(rows)))

    @property
    def source(self) -> str:
        """The name or file that reads the same rows again.

        Raises `ValueError` for rows that are in memory alone.
        """
        if self.path is not None:
            return str(self.path)
        if "subsets" in self.data.provenance:
            raise ValueError(
                "a run reads its data set again when it is resumed, and no file holds this one: "
                "data=dataset.write('mine.npz')"
            )
        return self.data.name

    @property
    def returns(self) -> np.ndarray:
        """[episodes] the undiscounted return of each complete episode."""
        return self.data.returns()

    @property
    def lengths(self) -> np.ndarray:
        """[episodes] the transitions of each complete episode."""
        return self.data.lengths()

    @property
    def transitions(self) -> Any:
        """The columns: `observation`, `action`, `reward`, `terminated`, `truncated`,
        `next_observation`, and signals by name in `extras`.
        """
        return self.data.transitions

    def check(self) -> list[Finding]:
        """What is wrong with the data, errors first, as `rljax data check` says."""
        return datasets.check(self.data)

    def describe(self) -> dict[str, Any]:
        """A summary, as `rljax data info` prints it."""
        return datasets.describe(self.data)

    def write(self, path: str | Path) -> DatasetFile:
        """Write a file that ends in .npz, .hdf5 or .h5, for `rljax train --data`.

        Raises `ValueError` for other names, and for a file that exists.
        """
        path = Path(path)
        if path.exists():
            raise ValueError(f"'{path}' exists. Choose another name, or delete it.")
        outputs.require_makeable(path)
        return DatasetFile(self.data, datasets.write(self.data, path))


Dataset = DatasetFile  # as `rljax.Dataset`
