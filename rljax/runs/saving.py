"""When checkpoints are due, and how they are saved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rljax.distributed import processes
from rljax.learning.loop import Training, checkpoint_state
from rljax.runs import checkpoints, json_files, records
from rljax.runs.display import console
from rljax.trust import PICKLED, is_pickle, state_seal

CHECKPOINT_SECONDS = 600.0  # between checkpoints, where no number of steps is set
MOST_SAVING = 0.05  # of the time: where saving takes long, checkpoints are fewer


class Saver:
    """Saves the checkpoints of a run."""

    def __init__(self, training: Training, folder: Path, view: console.View) -> None:
        self._training, self._folder, self._view = training, folder, view
        self._warned_of_pickle = False
        self.step: int | None = None  # of the last checkpoint
        self.start()

    def start(self) -> None:
        """Count the time to the next checkpoint from now on."""
        self._last = time.perf_counter()
        self._seconds = 0.0  # that the last checkpoint took

    def is_due(self) -> bool:
        """Whether one is due: by steps where their number is set, or by time."""
        every = self._training.checkpoint_every
        if every is not None:
            return self._training.step % every == 0
        wait = max(CHECKPOINT_SECONDS, self._seconds / MOST_SAVING)
        return processes.any_process(time.perf_counter() - self._last >= wait)

    def save(self, recorder: records.Recorder, began: float, callbacks: list[Any]) -> Path:
        """Save a checkpoint after the lines of `recorder`, `began` by `time.perf_counter`, with
        the states of `callbacks`. Returns its folder.
        """
        self._view.status("saving")
        start = time.perf_counter()
        recorder.sync()
        training, blobs = self._training, {}
        environments = training.driver.environments()
        if environments is not None:
            blobs["environments"] = environments
            if is_pickle(environments) and not self._warned_of_pickle:
                self._warned_of_pickle = True
                self._view.warn(PICKLED.format(env=training.settings.env))
        notes = checkpoint_state.notes(training, environments) | {
            "wall_seconds": time.perf_counter() - began,
            "seal": state_seal(environments),
            "records": recorder.marks(),
            "callbacks": callbacks,
        }
        blobs[checkpoints.NOTES] = json_files.dumps(notes).encode()
        folder = checkpoints.save(
            self._folder / "checkpoints",
            training.step,
            checkpoint_state.arrays(training),
            blobs,
            keep=training.settings.keep_checkpoints,
        )
        self._last = time.perf_counter()
        self._seconds = self._last - start
        self.step = training.step
        return folder
