"""The memory that is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from rljax.system import hardware


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """/proc and /sys of a machine that has 8,000 kB left."""
    for name, text in {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n",
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(groups)
    return root


V2 = {
    "memory.max": "5000000\n",
    "memory.current": "3000000\n",
    "memory.stat": "anon 1\ninactive_file 1000000\n",
}
V1 = {
    "memory.limit_in_bytes": "5000000\n",
    "memory.usage_in_bytes": "3000000\n",
    "memory.stat": "total_inactive_file 0\n",
}


def placed(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("0::/\n", {}, 8_192_000),
        ("0::/job\n", placed("job/", V2 | {"memory.max": "max\n"}), 8_192_000),
        ("0::/job\n", placed("job/", V2), 3_000_000),
        ("0::/job/step\n", placed("job/", V2), 3_000_000),  # the limit of a group above
        # A container: the root is its own group.
        ("0::/seen/from/outside\n", placed("", V2), 3_000_000),
        ("4:memory:/job\n0::/\n", placed("memory/job/", V1), 2_000_000),
        ("4:cpu:/job\n", placed("memory/job/", V1), 8_192_000),
        ("0::/job\n", placed("job/", V2 | {"memory.current": "9000000\n"}), 0),
    ],
)
def test_memory_is_what_the_machine_and_its_control_groups_leave(
    groups: str, files: dict[str, str], left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    assert hardware.available_memory(system(tmp_path, groups, files)) == left


def test_memory_of_this_machine_is_known() -> None:
    left = hardware.available_memory()
    assert left is not None
    assert left > 1e8


def test_memory_of_an_accelerator_is_its_limit_without_what_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 1000, "bytes_in_use": 300})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert hardware.device_memory() == 700
    device.memory_stats = lambda: None
    assert hardware.device_memory() == pytest.approx(hardware.available_memory(), rel=0.2)
