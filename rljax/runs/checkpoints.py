"""Checkpoints: exact, atomic, and checked before they are used.

A complete checkpoint's folder is named by its step, with a manifest of sizes and checksums.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import trust
from rljax.distributed import processes
from rljax.runs.json_files import explain
from rljax.system.hardware import nbytes

FOLDER = "checkpoints"  # in the folder of a run
MANIFEST = "manifest.json"
NOTES = "run.json"
_RESUMED_WITH = (
    "A run is resumed with the settings, and the revision of rljax, that it was started with: its "
    "config.json names both. For others, start a new one."
)


class CheckpointError(Exception):
    """A checkpoint could not be written or read."""


def save(
    folder: Path, step: int, items: Mapping[str, Any], blobs: Mapping[str, bytes], *, keep: int = 2
) -> Path:
    """Write pytrees and bytes by name as checkpoint `step`; keep the newest `keep` checkpoints.

    Every process calls this; the first one's `blobs` are written.

    Raises `CheckpointError`, and `ProcessError` where another process has ended.
    """
    import orbax.checkpoint as ocp

    folder = folder.absolute()
    final, partial = folder / f"{step:012d}", folder / f".partial-{step:012d}"

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(".partial-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        partial.mkdir()
        _require_space(folder, items)

    def complete() -> None:
        for name, blob in blobs.items():
            (partial / name).write_bytes(blob)
        manifest = {str(path.relative_to(partial)): _fingerprint(path) for path in _files(partial)}
        (partial / MANIFEST).write_text(json.dumps(manifest))
        for path in _files(partial):
            _sync(path)
        if final.exists():
            shutil.rmtree(final)
        os.replace(partial, final)
        _sync(folder)

    try:
        processes.on_first(prepare)
        with _without_tracebacks(), ocp.StandardCheckpointer() as checkpointer:
            for name, tree in items.items():
                checkpointer.save(partial / name, tree)
                checkpointer.wait_until_finished()
        processes.on_first(complete)
    except processes.ProcessError:
        raise
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to '{folder}': {explain(error)}. "
            "Earlier checkpoints are untouched. Remove the cause, then resume the run."
        ) from error
    if processes.is_first():
        _drop(folder, step, keep)
    return final


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    logger, hook = logging.getLogger("absl"), sys.excepthook
    was, logger.disabled = logger.disabled, True

    def report(kind: type, error: BaseException, trace: Any) -> None:
        if str(error) != "Event loop is closed":
            hook(kind, error, trace)

    sys.excepthook = report
    try:
        yield
        sys.excepthook = hook  # after a failure it stays: writes that are under way end later
    finally:
        logger.disabled = was


def _drop(folder: Path, step: int, keep: int) -> None:
    saved = steps(folder)
    # Later ones are damaged: the run went back behind them.
    recent = [other for other in saved if other <= step][-keep:]
    for other in set(saved) - set(recent):
        shutil.rmtree(folder / f"{other:012d}", ignore_errors=True)


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, ascending; raises `CheckpointError`."""
    if folder.is_symlink():
        raise CheckpointError(
            f"'{folder}' is a link. Move the whole run there, and link to that if you need to."
        )
    try:
        return sorted(
            int(name) for name in os.listdir(folder) if name.isdecimal() and len(name) < 20
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"the checkpoints cannot be read: {explain(error)}.") from error


def newest(folder: Path) -> Path:
    """The newest undamaged checkpoint; a warning names others.

    Raises `CheckpointError` where none is left.
    """
    saved = steps(folder)
    for step in reversed(saved):
        path = folder / f"{step:012d}"
        problem = damage(path)
        if problem is None:
            return path
        warnings.warn(
            f"checkpoint '{path}' is damaged ({problem}): falling back to the one before it.",
            stacklevel=2,
        )
    raise CheckpointError(
        f"no usable checkpoint in '{folder}' ({len(saved)} found). The run must be started "
        "again: rljax train"
    )


def last(run: Path) -> Path | None:
    """The `newest` checkpoint in a run's folder; None before the first."""
    # A run with a summary has saved one, unless it diverged before.
    if not steps(run / FOLDER) and not (run / "summary.json").exists():
        return None
    return newest(run / FOLDER)


def how_to_resume(run: Path) -> str:
    """A run's last checkpoint and the command to go on, for messages."""
    try:
        saved = steps(run / FOLDER)
    except CheckpointError as error:
        return str(error)
    if not saved:
        return f"There is no checkpoint yet. To begin anew: rljax resume {run}"
    return f"The last good checkpoint is of step {saved[-1]}: rljax resume {run}"


def damage(path: Path) -> str | None:
    """The damage of a checkpoint, if any."""
    for link in trust.links(path):
        return f"'{link}' is a link"
    try:
        manifest = json.loads(trust.safe(path / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or not manifest:
        return f"no readable {MANIFEST}"
    inside = {str(file.relative_to(path)) for file in _files(path)}
    for name, fingerprint in manifest.items():
        if name not in inside and (path / name).is_file():
            return f"{MANIFEST} names a file outside of it"
        try:
            if _fingerprint(trust.safe(path / name, copies=1)) != fingerprint:
                return f"{name!r} has changed"
        except FileNotFoundError:
            return f"{name!r} is missing"
        except trust.RefusedFileError as error:
            return str(error)
        except (OSError, ValueError) as error:
            return f"{name!r} cannot be read: {explain(error)}"
    return None


def notes(path: Path) -> dict[str, Any]:
    """The notes in checkpoint `path`; raises `CheckpointError`."""
    file = path / NOTES
    try:
        notes = json.loads(trust.safe(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {explain(error)}.") from error
    if not isinstance(notes, dict) or not isinstance(notes.get("values", ()), dict | None):
        raise CheckpointError(f"'{file}' does not hold the notes of a checkpoint.")
    return notes


def environments(folder: trust.Folder, path: Path, notes: Mapping[str, Any]) -> bytes | None:
    """The saved state of environments, if any.

    Raises `ValueError` for a pickle without trust.
    """
    if notes["environments"] != "saved":
        return None
    return folder.read_state(path / "environments", notes.get("seal"))


def restore(path: Path, name: str, template: Any) -> Any:
    """The pytree `name` in checkpoint `path`, with the structure, shapes and dtypes of `template`.

    Raises `CheckpointError` if it has others.
    """
    import orbax.checkpoint as ocp

    # On this device, whichever device saved it.
    place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), template
    )
    try:
        with (
            _without_late_errors(),
            ocp.StandardCheckpointer() as checkpointer,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # orbax warns that the topology may differ
            tree = checkpointer.restore(path.absolute() / name, abstract)
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint '{path}' does not fit this run's settings "
            f"({explain(error)}). {_RESUMED_WITH}"
        ) from error
    except Exception as error:  # changed bytes make orbax raise errors of many types
        raise CheckpointError(f"checkpoint '{path}' cannot be read ({explain(error)}).") from error
    for expected, saved in zip(jax.tree.leaves(abstract), jax.tree.leaves(tree), strict=True):
        if expected.shape != saved.shape or expected.dtype != saved.dtype:
            raise CheckpointError(
                f"checkpoint '{path}' holds an array {saved.dtype}{list(saved.shape)} where this "
                f"run needs {expected.dtype}{list(expected.shape)}. {_RESUMED_WITH}"
            )
    leaves, structure = jax.tree.flatten(tree)
    del tree  # so that only one array at a time is held twice
    for index, leaf in enumerate(leaves):
        leaves[index] = _uncommitted(leaf)
    return structure.unflatten(leaves)


def _uncommitted(x: jax.Array) -> jax.Array:
    """A copy that is not bound to its device, as fresh arrays are: bound ones compile anew."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.device_put(np.asarray(jax.random.key_data(x)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return jax.device_put(np.asarray(x))


@contextlib.contextmanager
def _without_late_errors() -> Iterator[None]:
    hook = sys.unraisablehook

    def report(raised: Any) -> None:
        file = getattr(getattr(raised.object, "cr_code", None), "co_filename", "")  # of a task
        if "orbax" not in file and str(raised.exc_value) != "Event loop is closed":
            hook(raised)

    sys.unraisablehook = report
    yield
    sys.unraisablehook = hook  # after a failure it stays


def _require_space(folder: Path, items: Mapping[str, Any]) -> None:
    """Raise `OSError` before the disk is full for other programs."""
    needed = sum(nbytes(tree) for tree in items.values())
    before = steps(folder)
    if before:  # arrays are compressed, and the last checkpoint shows how well
        size = sum(path.stat().st_size for path in _files(folder / f"{before[-1]:012d}"))
        needed = min(needed, 2 * size)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(
            errno.ENOSPC,
            f"No space left on device: about {needed / 1e6:.0f} MB are needed",
            str(folder),
        )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _fingerprint(path: Path) -> list[int]:
    size, checksum = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
