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
    from rljax.runs.export.exporting import export
    from rljax.runs.export.packing import pack
    from rljax.runs.policies.loading import load
    from rljax.runs.policies.policy import Policy
    from rljax.runs.run import resume, train

__version__ = "0.1.0"
__all__ = ["Policy", "__version__", "export", "load", "pack", "resume", "train"]

_HOMES = {
    "Policy": "rljax.runs.policies.policy",
    "export": "rljax.runs.export.exporting",
    "load": "rljax.runs.policies.loading",
    "pack": "rljax.runs.export.packing",
    "resume": "rljax.runs.run",
    "train": "rljax.runs.run",
}

# A checkout where symbolic links became text files.
if not (Path(__file__).parent / "agents").is_dir():
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(
            f"module 'rljax' has no attribute '{name}'. Its names: {', '.join(sorted(__all__))}"
        )
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
