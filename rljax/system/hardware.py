"""The machine, its memory, and the versions of installed packages."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import config as jax_settings

from rljax import __version__


def provenance() -> dict[str, Any]:
    """What can change a number beside the settings: versions, devices, precision."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    revision = subprocess.run(
        git, cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "versions": versions(),
        "devices": [
            f"{device.device_kind} ({device.platform}:{device.id})" for device in jax.devices()
        ],
        "processes": jax.process_count(),
        "processor": _processor(),
        "platform": platform.platform(),
        "git_revision": revision or None,
        "precision": {
            "jax_enable_x64": bool(jax_settings.values["jax_enable_x64"]),
            "jax_default_matmul_precision": jax_settings.values["jax_default_matmul_precision"],
        },
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two `provenance`s that can change a number, with "devices_used" and the
    "code" of users' files.
    """
    conditions = [
        f"{name.replace('_', ' ')} {then[name]} then, {now[name]} now"
        for name in ("devices_used", "devices", "processes", "processor", "precision")
        if name in then and then[name] != now[name]
    ]
    code = (then.get("code") or {}).items()
    changed = [f"'{file}' has changed" for file, digest in code if now["code"].get(file) != digest]
    before, after = then.get("versions") or {}, now["versions"]
    return [*conditions, *changed] + [
        f"{name} {before.get(name)} then, {after.get(name)} now"
        for name in {**before, **after}
        if before and before.get(name) != after.get(name)
    ]


def versions() -> dict[str, str]:
    """Versions of Python and installed packages that can change a number."""
    from importlib import metadata

    names = [
        "jax",
        "jaxlib",
        "flax",
        "optax",
        "distrax",
        "gymnasium",
        "mujoco",
        "brax",
        "gymnax",
        "numpy",
    ]
    installed = {"python": platform.python_version(), "rljax": __version__}
    for name in [*names, "gymnax", "numpy"]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device_memory() -> int | None:
    """Bytes that JAX's device, or where it gives no limit the machine, has left; None if unknown.
    Starts JAX.
    """
    known = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in known:
        return available_memory()
    return known["bytes_limit"] - known.get("bytes_in_use", 0)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes of main memory that this process can still take; None if unknown. Does not start JAX.

    On Linux a control group (a container, a job of a cluster) may limit it; elsewhere it is all
    memory. `root` holds /proc and /sys.
    """
    if sys.platform == "linux":
        known = [_memory_of_machine(root), *_memory_of_control_groups(root)]
        return min((left for left in known if left is not None), default=None)
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows has no `sysconf`
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _memory_of_machine(root: Path) -> int | None:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
        )
    return None


def _memory_of_control_groups(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers == "":  # version 2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):  # version 1
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # A container may see its own group as the root, without `place`.
        inside = base / place.lstrip("/")
        for group in (inside, *inside.parents):
            left = _left_in(group, *names) if group.is_relative_to(base) else None
            if left is not None:
                yield left


def _left_in(group: Path, limit: str, usage: str, inactive: str) -> int | None:
    """A control group's limit without memory in use, except file caches; or None."""
    with contextlib.suppress(OSError, ValueError):  # a limit may be the word "max"
        most, used = (int((group / name).read_text()) for name in (limit, usage))
        entries = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, most - max(0, used - int(entries.get(inactive, 0))))
    return None


def nbytes(tree: Any) -> int:
    """Bytes of a pytree of arrays or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    return platform.processor() or platform.machine()
