"""Deep reinforcement learning in JAX: one readable file per algorithm,
everything around it compiled and shared.

    out = rljax.train("sac", "Hopper-v5", 300_000, seeds=3)
    policy = rljax.load(out)
    action = policy(observation)

Importing `rljax` imports nothing heavy; JAX comes with the first of these names that is used.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljax.runs import events
    from rljax.runs.events import callbacks, loggers
    from rljax.runs.export.exporting import export
    from rljax.runs.export.packing import pack
    from rljax.runs.interface.dataset_files import Dataset
    from rljax.runs.interface.environment_check import check_env
    from rljax.runs.interface.playing import evaluate, make_env
    from rljax.runs.interface.pure_training import make_train
    from rljax.runs.interface.run_folder import Run
    from rljax.runs.policies.loading import load
    from rljax.runs.policies.policy import Policy
    from rljax.runs.run import resume, resuming, train, training

__version__ = "0.1.0"

_HOMES = {
    "Dataset": "rljax.runs.interface.dataset_files",
    "Policy": "rljax.runs.policies.policy",
    "Run": "rljax.runs.interface.run_folder",
    "check_env": "rljax.runs.interface.environment_check",
    "evaluate": "rljax.runs.interface.playing",
    "export": "rljax.runs.export.exporting",
    "load": "rljax.runs.policies.loading",
    "make_env": "rljax.runs.interface.playing",
    "make_train": "rljax.runs.interface.pure_training",
    "pack": "rljax.runs.export.packing",
    "resume": "rljax.runs.run",
    "resuming": "rljax.runs.run",
    "train": "rljax.runs.run",
    "training": "rljax.runs.run",
}
_MODULES = {
    "callbacks": "rljax.runs.events.callbacks",
    "events": "rljax.runs.events",
    "loggers": "rljax.runs.events.loggers",
}
__all__ = [
    "Dataset",
    "Policy",
    "Run",
    "__version__",
    "callbacks",
    "check_env",
    "evaluate",
    "events",
    "export",
    "load",
    "loggers",
    "make_env",
    "make_train",
    "pack",
    "resume",
    "resuming",
    "train",
    "training",
]

# A checkout where symbolic links became text files.
if not (Path(__file__).parent / "agents").is_dir():
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(
            f"module 'rljax' has no attribute '{name}'. Its names: {', '.join(sorted(__all__))}"
        )
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
