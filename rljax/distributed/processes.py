"""The processes of one run, usually one per host: one program on all of their devices.

All run the same code on the same values, and must call all functions here. The first alone does
what must happen once. With a single process, each function is a plain call.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np

Result = TypeVar("Result")

AUTO = "auto"
JOIN_TIMEOUT = 300  # seconds to wait for others at the start
SHUTDOWN_TIMEOUT = 60  # seconds to wait for others at the end
EXIT_DELAY = 2.0  # seconds that `abort` waits in the last process


class ProcessError(Exception):
    """The processes did not find or have lost each other."""


def join(
    coordinator: str,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: int = JOIN_TIMEOUT,
) -> None:
    """Connect this process with the others of its run, before JAX computes anything.

    Args:
        coordinator: HOST:PORT, where process 0 listens, or "auto" on a cluster that JAX recognises
            (SLURM, Open MPI, Kubernetes, TPU pods).
        num_processes: their number; None with "auto".
        process_id: this process's number, from 0; None with "auto".
        timeout: seconds to wait for the others.

    Raises:
        ValueError: the arguments contradict each other, or JAX recognises no cluster.
        ProcessError: the processes do not find each other.
    """
    _check(coordinator, num_processes, process_id, timeout)
    # It would catch SIGTERM, which a run handles itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    problem: list[Exception] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                None if coordinator == AUTO else coordinator,
                num_processes,
                process_id,
                # Later than ours: JAX aborts the process.
                initialization_timeout=timeout + SHUTDOWN_TIMEOUT,
                shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
            )
        except Exception as error:
            problem.append(error)

    # Only the main thread receives Ctrl-C, so another thread connects.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise ProcessError(_absent(coordinator, num_processes, process_id, timeout))
    if problem and coordinator == AUTO:
        raise ValueError(
            f"--coordinator auto: JAX recognises no cluster here ({problem[0]}). Give all three: "
            "--coordinator HOST:PORT --num-processes N --process-id I"
        ) from problem[0]
    if problem:
        raise ProcessError(
            f"cannot join the processes at {coordinator}: {problem[0]}"
        ) from problem[0]
    # Connects now: later, CPUs would wait only briefly.
    all_gather(None)


def is_distributed() -> bool:
    """Whether this run has several processes."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def process_count() -> int:
    """The number of processes of this run."""
    return jax.process_count() if is_distributed() else 1


def is_first() -> bool:
    """Whether this process is the first, which alone writes files and prints."""
    return not is_distributed() or jax.process_index() == 0


def all_gather(value: Any) -> list[Any]:
    """The values of all processes, in the order of their numbers."""
    if not is_distributed():
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = _gather(np.array(data.size, np.int32))
    # A power of 2: each length compiles a program.
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)
    padded[: data.size] = data
    rows = _gather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def on_first(function: Callable[[], Result]) -> Result:
    """Call `function` in the first process only; all return its result, or raise its error."""
    if not is_distributed():
        return function()
    result, error = _outcome(function) if is_first() else (None, None)
    result, sent = all_gather((result, _portable(error)))[0]
    if error is not None or sent is not None:
        raise error or sent
    return result


def on_all(function: Callable[[], Result]) -> Result:
    """Call `function` in every process and return this process's result.

    If one process fails, it raises its error, and the others `ValueError` with its message.
    """
    if not is_distributed():
        return function()
    result, error = _outcome(function)
    messages = all_gather(None if error is None else str(error))
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise ValueError(f"process {process} cannot go on: {message}")
    return result  # type: ignore[return-value]


def any_process(flag: bool) -> bool:
    """Whether `flag` is true in at least one process."""
    return bool(_gather(np.array(flag)).any()) if is_distributed() else flag


def require_same(describe: Callable[[], Mapping[str, Any]]) -> None:
    """Raise `ValueError` in every process unless `describe()` is the same in all of them."""
    if not is_distributed():
        return
    expected, *rest = all_gather(dict(describe()))
    for process, values in enumerate(rest, 1):
        names = expected | values
        different = [name for name in names if expected.get(name) != values.get(name)]
        if different:
            name, *others = different
            more = f"; also different: {', '.join(others)}" if others else ""
            raise ValueError(
                f"the processes were not started alike: {name} is {expected.get(name)!r} in "
                f"process 0, {values.get(name)!r} in process {process}{more}. All need the same "
                "files, the same versions and, but for --process-id, the same command."
            )


def abort(code: int, last: bool) -> NoReturn:
    """End a process at once: JAX's own shutdown would wait for the others.

    The `last` process first waits for the others' reports: JAX ends them when it is gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if last:
        time.sleep(EXIT_DELAY)
    os._exit(code)


def _gather(value: np.ndarray) -> np.ndarray:
    """The arrays of all processes, [processes, ...]; `ProcessError` if one is gone."""
    from jax.experimental import multihost_utils

    try:
        return multihost_utils.process_allgather(value)
    except Exception as error:  # its type depends on the device and the network
        raise ProcessError(
            f"this process has lost the others ({str(error).partition(chr(10))[0]})."
        ) from error


def _check(
    coordinator: str, num_processes: int | None, process_id: int | None, timeout: int
) -> None:
    if timeout < 1:
        raise ValueError(f"--join-timeout is {timeout}, it must be at least 1 second.")
    if coordinator == AUTO:
        if num_processes is not None or process_id is not None:
            raise ValueError(
                "--coordinator auto asks the cluster: leave --num-processes and --process-id out."
            )
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"--coordinator is '{coordinator}', it must be HOST:PORT of process 0, or auto on "
            "a cluster."
        )
    if num_processes is None or process_id is None:
        raise ValueError(
            "--coordinator HOST:PORT needs --num-processes N and --process-id I, from 0 to N - 1."
        )
    if num_processes < 1:
        raise ValueError(f"--num-processes is {num_processes}, it must be at least 1.")
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"--process-id is {process_id}, of {num_processes} processes it is 0 "
            f"to {num_processes - 1}."
        )


def _absent(
    coordinator: str, num_processes: int | None, process_id: int | None, timeout: int
) -> str:
    if coordinator == AUTO:
        return f"the processes have not found each other after {timeout} s."
    if process_id == 0:
        return (
            f"not all of {num_processes} processes have connected to {coordinator} after {timeout} "
            "s. Start the same command on every host, with its own --process-id, and open this "
            "port in the firewall."
        )
    return (
        f"no process 0 at {coordinator}, or not all of {num_processes} processes, after {timeout} "
        "s. Start the same command on every host; --coordinator names the host of process 0, and "
        "its port must be reachable from here."
    )


def _outcome(function: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _portable(error: Exception | None) -> Exception | None:
    """The error, or if it cannot be sent, a `RuntimeError` with its message."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(str(error))
