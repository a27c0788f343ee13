"""`rljax.Run`: a run's folder as an object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljax.learning.evaluation import Episodes
from rljax.learning.named_code import PARTS
from rljax.learning.settings import Settings, settings_of
from rljax.runs import arguments, records
from rljax.runs import run as runs
from rljax.runs.policies import loading
from rljax.runs.policies.evaluate import play_episodes
from rljax.runs.policies.policy import Policy
from rljax.runs.run import TrainingLoop

if TYPE_CHECKING:
    import pandas  # type: ignore[import-not-found]


class Run:
    """The settings, records and policies in a run's folder, also while it trains.

    P learners, N episodes of an evaluation, S lines of records.
    """

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        """With `trust`, the user vouches for code that the run names.

        Raises `ValueError` for a folder that is no run.
        """
        self._folder = arguments.run_folder(folder, trust)
        self.folder = self._folder.path
        self.described: Mapping[str, Any] = records.read_config(self.folder)  # config.json

    def __repr__(self) -> str:
        what = f"{self.described['agent']} on {self.described['environment']}"
        return f"Run({str(self.folder)!r}): {what}, {len(self.seeds)} learners, step {self.step:,}"

    @property
    def settings(self) -> Settings:
        """All settings but the agent's."""
        return settings_of(self.described)

    @property
    def config(self) -> Mapping[str, Any]:
        """The agent's settings, by name."""
        return self.described["config"]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The learners' seeds [P]."""
        return tuple(self.described["seeds"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """summary.json; empty before the run has ended once."""
        return records.read_summary(self.folder)

    @property
    def complete(self) -> bool:
        """Whether all steps are done."""
        return bool(self.summary.get("complete"))

    @property
    def step(self) -> int:
        """The last recorded step of each learner."""
        lines = records.read(self.folder, "metrics")
        return int(lines[-1]["step"]) if lines else 0

    def metrics(self) -> dict[str, np.ndarray]:
        """The metrics so far: `step` [S], and each other by name, [S, P] or [S]; NaN where a line
        has none.
        """
        lines = records.read(self.folder, "metrics")
        names = dict.fromkeys(name for line in lines for name in line)
        return {name: _column([line.get(name) for line in lines]) for name in names}

    def evaluations(self) -> dict[str, np.ndarray]:
        """The evaluations so far: `step` [S], `returns` and `lengths` [S, P, N], and `success`,
        `scores` and signals, where there are some, likewise.
        """
        lines = records.read(self.folder, "evaluations")
        steps = sorted({line["step"] for line in lines})
        order = {(line["step"], line["learner"]): line for line in lines}
        grid = [[order[step, learner] for learner in range(len(self.seeds))] for step in steps]
        columns: dict[str, Any] = {"step": np.array(steps, np.int64)}
        for name in ("returns", "lengths", "success", "scores"):
            if lines and all(line.get(name) is not None for line in lines):
                columns[name] = _column([[line[name] for line in row] for row in grid])
        for name in lines[0].get("signals") or () if lines else ():
            columns[name] = _column([[line["signals"][name] for line in row] for row in grid])
        return columns

    def frame(self, what: str = "evaluations") -> pandas.DataFrame:
        """The `evaluations`, each as means over its episodes, or the `metrics`, as a data frame of
        pandas: a row for each step and learner.

        Raises `ValueError` for other records, and where pandas is not installed.
        """
        if what not in ("evaluations", "metrics"):
            raise ValueError(f"a run has 'evaluations' and 'metrics', not {what!r}.")
        try:
            import pandas  # type: ignore[import-not-found]
        except ImportError:
            raise ValueError("a data frame needs pandas: pip install pandas") from None
        columns = self.evaluations() if what == "evaluations" else self.metrics()
        if what == "evaluations":
            columns = {name: x.mean(axis=-1) if x.ndim == 3 else x for name, x in columns.items()}
        steps, number = columns.pop("step"), len(self.seeds)
        table = {"step": np.repeat(steps, number), "seed": np.tile(self.seeds, len(steps))}
        for name, values in columns.items():
            both = values if values.ndim == 2 else np.repeat(values[:, None], number, axis=1)
            table[name] = both.reshape(-1)
        return pandas.DataFrame(table)

    def policy(
        self, learner: int = 0, *, best: bool = False, config: Mapping[str, Any] | None = None
    ) -> Policy:
        """A learner's policy, see `rljax.load`."""
        return Policy(loading.load_all(self._folder, best=best, config=config), learner)

    def evaluate(
        self, env: Any = None, episodes: int = 10, *, best: bool = False, seed: int = 0
    ) -> Episodes:
        """Play complete episodes with each learner, in the run's environment or in `env`.

        Raises `ValueError` for an environment that does not fit.
        """
        name = arguments.environment_name(env)
        parts = PARTS if env is None else ("agent",)
        policies = loading.load_all(self._folder, best=best, parts=parts)
        return play_episodes(policies, name, episodes, seed)

    def training(self, steps: int | None = None, **options: Any) -> TrainingLoop:
        """The rest of the run as a loop over its events, see `rljax.resuming`."""
        return runs.resuming(self._folder, steps, **options)

    def resume(self, steps: int | None = None, **options: Any) -> Run:
        """Go on to the end, or to `steps`. See `rljax.resuming` for the options."""
        self.training(steps, **options).execute()
        return Run(self.folder, trust=self._folder.trusted)


def _column(rows: list[Any]) -> np.ndarray:
    """Lists of equal shapes as an array of floats; NaN for None, also in place of a list."""
    shape = max((np.shape(row) for row in rows if row is not None), key=len, default=())
    full = [np.full(shape, np.nan) if row is None else np.array(row, np.float64) for row in rows]
    return np.array(full)
