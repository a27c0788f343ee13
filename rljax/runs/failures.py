"""Errors that end a training, for users."""

from __future__ import annotations

from pathlib import Path

import jax

from rljax.distributed import processes
from rljax.envs.environment import EnvironmentFailed
from rljax.learning.loop import NoLearnerLeft, Training
from rljax.runs import checkpoints, json_files
from rljax.runs.policies.host_policies import failure_in
from rljax.system.lock import LockLost


class RunError(Exception):
    """A run cannot go on."""


class Diverged(RunError):
    """A metric or an observation is not finite."""


def of_training(error: Exception, training: Training, folder: Path) -> Exception | None:
    """The error for users, from one that ended a training; None for faults of the code."""

    def told(text: str) -> str:
        return f"{text} {checkpoints.how_to_resume(folder)}"

    match error:
        case NoLearnerLeft():
            cause, remedy = error.args
            left = " No other learner is left." if len(training.members) > 1 else ""
            stopped = told(f"{cause}. Training has stopped and nothing was saved after it.{left}")
            return Diverged(f"{stopped} {remedy}")
        case FloatingPointError():
            return Diverged(told(str(error)))
        case EnvironmentFailed():
            step = f"This was after step {training.step:,} of training."
            return error.with_advice(told(f"{step} Correct the environment before you go on."))
        case OSError():
            return RunError(told(f"the run cannot go on: {json_files.explain(error)}."))
        case LockLost() | checkpoints.CheckpointError() | processes.ProcessError():
            return RunError(told(str(error)))
        case _ if (text := failure_in(error)) is not None:
            step = f"This was after step {training.step:,} of training."
            return RunError(told(f"{text} {step} With another file it is a new run."))
        case jax.errors.JaxRuntimeError() if processes.is_distributed():
            cause = str(error).partition("\n")[0]
            return RunError(told(f"this process has lost the others, or failed itself ({cause})."))
    return None
