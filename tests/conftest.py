"""What all tests share, and the processes that they start: the CPU, and a compilation cache that outlives the run."""

from __future__ import annotations

import os
from pathlib import Path

# JAX reads these when it is imported, which no test has done yet. What is set already counts.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rljax", "tests")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("WANDB_MODE", "offline")
