"""The machine, its memory, and the versions of installed packages."""

from __future__ import annotations

import contextlib
import math
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax import config as jax_settings


def provenance() -> dict[str, Any]:
    """Versions, devices, revision and precision: everything beside the settings that can change a number."""
    git = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--abbrev=40"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "versions": versions(),
        "devices": [f"{device.device_kind} ({device.platform}:{device.id})" for device in jax.devices()],
        "processes": jax.process_count(),
        "processor": _processor(),
        "platform": platform.platform(),
        "git_revision": found.stdout.strip() or None,
        "precision": {
            "jax_enable_x64": bool(jax_settings.values["jax_enable_x64"]),
            "jax_default_matmul_precision": jax_settings.values["jax_default_matmul_precision"],
        },
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is different between two `provenance`s, with the number of devices in use, and can change a number."""
    found = [
        f"{name.replace('_', ' ')} {then[name]} then, {now[name]} now"
        for name in ("devices_used", "devices", "processes", "processor", "precision")
        if name in then and then[name] != now[name]
    ]
    before, after = then.get("versions") or {}, now["versions"]
    return found + [
        f"{name} {before.get(name)} then, {after.get(name)} now"
        for name in {**before, **after}
        if before and before.get(name) != after.get(name)
    ]


def versions() -> dict[str, str]:
    """Versions of Python, and of the installed packages that can change a number."""
    from importlib import metadata

    names = ("rljax", "jax", "jaxlib", "flax", "optax", "distrax", "gymnasium", "mujoco", "brax", "gymnax", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory() -> int | None:
    """Memory for this process in bytes: the device's limit, or else what the machine has left.

    None if neither is known.
    """
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit is None and sys.platform == "linux":
        with contextlib.suppress(OSError, StopIteration):
            lines = Path("/proc/meminfo").read_text().splitlines()
            limit = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return limit


def nbytes(tree: Any) -> int:
    """Bytes of all leaves of a pytree of arrays or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
