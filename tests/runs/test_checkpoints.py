"""Checkpoints: what is written is read, bit for bit, or it is an error."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from rljax.runs import checkpoints
from rljax.runs.checkpoints import CheckpointError


class Inner(struct.PyTreeNode):
    count: Any
    flags: Any
    name: str = struct.field(pytree_node=False, default="static")


class Outer(struct.PyTreeNode):
    inner: Inner
    keys: Any
    optimiser: Any
    extras: dict[str, Any]
    storage: Any = None


def example(seed: int = 0) -> Outer:
    """Every kind of leaf that states have, with values that rounding or text would change."""
    generator = np.random.default_rng(seed)
    params = {
        "kernel": jnp.asarray(generator.normal(size=(3, 4)), jnp.float32),
        "bias": jnp.zeros(4),
    }
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    changes = jax.tree.map(lambda x: x + 1 / 3, params)
    _, state = optimiser.update(changes, optimiser.init(params), params)
    awkward = [np.nan, np.inf, -np.inf, -0.0, 1e-45, np.float32(1) / 3, float(seed)]
    return Outer(
        inner=Inner(jnp.asarray(2**31 - 1 - seed, jnp.int32), jnp.asarray([True, False, True])),
        keys=jax.random.split(jax.random.key(seed), 3),
        optimiser=state,
        extras={
            "awkward": jnp.asarray(awkward, jnp.float32),
            "unsigned": jnp.asarray([2**32 - 1], jnp.uint32),
            "half": jnp.asarray([1.5, 1 / 3], jnp.bfloat16),
            "scalar": jnp.asarray(0.1),
            "single": jax.random.key(7),
            "params": params,
        },
    )


def template(tree: Any) -> Any:
    return jax.eval_shape(lambda: tree)


def bits(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    kind = str(leaf.dtype)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return kind, leaf.shape, np.asarray(leaf).tobytes()


def assert_same(first: Any, second: Any) -> None:
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True
    ):
        assert bits(one) == bits(other), jax.tree_util.keystr(path)


def small(step: int) -> dict[str, Any]:
    return {"agent": {"weight": jnp.full((5,), float(step))}}


def write(folder: Path, *steps: int, keep: int = 10) -> Path:
    for step in steps:
        path = checkpoints.save(
            folder, step, small(step), {"blob": b"environment %d" % step}, keep=keep
        )
    return path


def read(path: Path) -> float:
    return float(checkpoints.restore(path, "agent", template(small(0)["agent"]))["weight"][0])


def test_round_trip_is_exact(tmp_path: Path) -> None:
    items = {"agent": example(0), "training": (example(1), [jnp.arange(3), None], {})}
    path = checkpoints.save(
        tmp_path / "new/folder", 120, items, {"environments": b"\x00\xff state"}
    )
    assert checkpoints.newest(tmp_path / "new/folder") == path
    assert checkpoints.damage(path) is None
    for name, tree in items.items():
        assert_same(checkpoints.restore(path, name, template(tree)), tree)
    assert (path / "environments").read_bytes() == b"\x00\xff state"


def test_newest_are_kept_in_the_order_of_their_steps(tmp_path: Path) -> None:
    write(tmp_path, 999, 1_000, 20_000, 100_000, keep=3)
    assert checkpoints.steps(tmp_path) == [1_000, 20_000, 100_000]
    assert read(checkpoints.newest(tmp_path)) == 100_000
    write(tmp_path, 100_001, keep=1)
    assert checkpoints.steps(tmp_path) == [100_001]


@pytest.mark.parametrize("keep", [1, 2])
def test_later_ones_that_a_run_fell_back_behind_are_dropped(keep: int, tmp_path: Path) -> None:
    write(tmp_path, 100, 200)
    flip(tmp_path / f"{200:012d}/blob")
    write(tmp_path, 150, keep=keep)
    assert checkpoints.steps(tmp_path) == [100, 150][-keep:]
    assert read(checkpoints.newest(tmp_path)) == 150


def test_step_written_again_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 5)
    path = checkpoints.save(tmp_path, 5, small(6), {})
    assert checkpoints.steps(tmp_path) == [5]
    assert read(path) == 6
    assert checkpoints.damage(path) is None


def test_no_folder_has_no_steps(tmp_path: Path) -> None:
    assert checkpoints.steps(tmp_path / "absent") == []


# Writers that do not come to their end.

KILLED = """
import os, signal, sys
from pathlib import Path
import jax.numpy as jnp
from rljax.runs import checkpoints

def killed(path):
    os.kill(os.getpid(), signal.SIGKILL)

checkpoints._fingerprint = killed
checkpoints.save(Path(sys.argv[1]), 2, {"agent": {"weight": jnp.zeros(5)}}, {"blob": b"half"})
"""


@pytest.mark.slow
def test_killed_writer_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path, 1)
    before = sorted(path.name for path in tmp_path.iterdir())
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (partial,) = {path.name for path in tmp_path.iterdir()} - set(before)
    assert partial.startswith(".partial")
    assert any(path.is_file() for path in (tmp_path / partial).rglob("*")), "it had begun to write"
    assert checkpoints.steps(tmp_path) == [1]
    assert read(checkpoints.newest(tmp_path)) == 1
    write(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{step:012d}" for step in (1, 2)]
    assert read(checkpoints.newest(tmp_path)) == 2


def fails_at(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "space":
        usage = shutil.disk_usage(".")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    elif where == "arrays":
        import orbax.checkpoint as ocp

        monkeypatch.setattr(ocp.StandardCheckpointer, "save", full)
    elif where == "rename":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr(Path, where, full)


@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    "where", ["space", "arrays", "write_bytes", "write_text", "mkdir", "rename"]
)
def test_full_disk_is_one_message_and_earlier_checkpoints_stay(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1, 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        fails_at(patch, where)
        message = (
            r"^the checkpoint of step 3 could not be written to '.*': .*no space is left.* "
            r"\(No space"
        )
        with pytest.raises(
            CheckpointError,
            match=message + r".*\)\. Earlier checkpoints are untouched\. Remove the",
        ):
            write(tmp_path, 3, keep=1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not list(tmp_path.glob(".partial*"))
    assert read(checkpoints.newest(tmp_path)) == 2
    assert read(write(tmp_path, 3)) == 3


def test_full_disk_while_a_step_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    with monkeypatch.context() as patch:
        fails_at(patch, "write_bytes")
        with pytest.raises(CheckpointError, match="could not be written"):
            write(tmp_path, 1)
    assert read(checkpoints.newest(tmp_path)) == 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not permitted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_disk_that_fills_up(disk: Path) -> None:
    folder = disk / "checkpoints"
    write(folder, 1)
    free = shutil.disk_usage(disk).free
    noise = np.random.default_rng(0).bytes(2_000_000)
    with pytest.raises(CheckpointError, match=r"could not be written.*No space left on device"):
        checkpoints.save(folder, 2, small(2), {"blob": noise})
    with pytest.raises(
        CheckpointError,
        match=r"could not be written.*No space left on device: about 4 MB are needed",
    ):
        checkpoints.save(disk / "other", 2, {"agent": {"weight": jnp.zeros(1_000_000)}}, {})
    assert shutil.disk_usage(disk).free > free - 20_000, "what was half written is gone"
    assert read(checkpoints.newest(folder)) == 1
    assert read(write(folder, 2)) == 2


# Damage.


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    files = [file for file in path.rglob("*") if file.is_file() and file.stat().st_size]
    assert len(files) >= 3
    for file in files:
        content = file.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            file.write_bytes(
                content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :]
            )
            problem = checkpoints.damage(path)
            assert problem is not None, (file, place)
            if file.name != checkpoints.MANIFEST:
                assert str(file.relative_to(path)) in problem
        file.write_bytes(content)
        assert checkpoints.damage(path) is None


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flipped": lambda path: flip(path / "blob"),
    "cut": lambda path: cut(path / "blob"),
    "deleted": lambda path: (path / "blob").unlink(),
    "arrays": lambda path: shutil.rmtree(path / "agent"),
    "no manifest": lambda path: (path / checkpoints.MANIFEST).unlink(),
    "manifest cut": lambda path: cut(path / checkpoints.MANIFEST),
    "manifest of nothing": lambda path: (path / checkpoints.MANIFEST).write_text("{}"),
    "manifest of another kind": lambda path: (path / checkpoints.MANIFEST).write_text("[1]"),
    "nothing left": lambda path: [shutil.rmtree(path), path.mkdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_newest_falls_back_with_a_warning(damage: str, tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    DAMAGE[damage](tmp_path / f"{2:012d}")
    with pytest.warns(
        UserWarning,
        match=r"^checkpoint '.*0002' is damaged \(.+\): falling back to the one before it",
    ):
        path = checkpoints.newest(tmp_path)
    assert read(path) == 1


def test_reason_of_the_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    content = (path / "blob").read_bytes()
    flip(path / "blob")
    assert checkpoints.damage(path) == "'blob' has changed"
    (path / "blob").unlink()
    assert checkpoints.damage(path) == "'blob' is missing"
    (path / "blob").write_bytes(content)
    assert checkpoints.damage(path) is None
    (path / checkpoints.MANIFEST).unlink()
    assert checkpoints.damage(path) == "no readable manifest.json"


def test_none_usable(tmp_path: Path) -> None:
    message = (
        r"^no usable checkpoint in '.*' \({} found\)\. The run must be started again: rljax train$"
    )
    with pytest.raises(CheckpointError, match=message.format(0)):
        checkpoints.newest(tmp_path / "absent")
    write(tmp_path, 1, 2)
    for step in (1, 2):
        flip(tmp_path / f"{step:012d}/blob")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointError, match=message.format(2)):
            checkpoints.newest(tmp_path)


def test_manifest_lists_every_file(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    files = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert set(json.loads((path / checkpoints.MANIFEST).read_text())) == files - {
        checkpoints.MANIFEST
    }


# Templates that do not fit.

OTHER: Any = {
    "shape": {"weight": jnp.zeros(6)},
    "rank": {"weight": jnp.zeros((5, 1))},
    "key": {"weight": jax.random.split(jax.random.key(0), 5)},
    "name": {"weights": jnp.zeros(5)},
    "more": {"weight": jnp.zeros(5), "bias": jnp.zeros(5)},
    "less": {},
    "deeper": {"weight": {"weight": jnp.zeros(5)}},
}


@pytest.mark.parametrize("difference", OTHER)
def test_other_settings_are_refused(difference: str, tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    message = (
        r"^checkpoint .* (does not fit|holds an array).* with the settings, and the revision "
        r"of rljax, that it"
    )
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore(path, "agent", template(OTHER[difference]))


def test_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit this run's settings"):
        checkpoints.restore(write(tmp_path, 1), "best", template(small(0)["agent"]))
