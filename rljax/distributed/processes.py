"""The processes of a run, usually one on each host, which compute the same program on all their devices together.

JAX joins them (`jax.distributed`). All run the same code on the same values, and so decide alike. What only one may do,
such as writing the run's folder, the first one does, and the others hear what came of it. Where there is one process,
everything here is a plain call.
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
PATIENCE = 300  # seconds to wait for the other processes in the beginning
FAREWELL = 60  # seconds to wait for them in the end
MOMENT = 2.0  # seconds that a process lives on after a failure where others depend on it


class HostError(Exception):
    """The processes did not find each other, or have lost each other; the message says what to do."""


def join(
    coordinator: str, num_processes: int | None = None, process_id: int | None = None, patience: int = PATIENCE
) -> None:
    """Become one of the processes of a run. Before JAX computes anything.

    `coordinator` is HOST:PORT, where process 0 listens, with the number of processes and this one's own, from 0; or
    "auto" on a cluster that JAX recognises (SLURM, Open MPI, Kubernetes, TPU pods). Waits `patience` seconds.

    Raises `ValueError` for what cannot work, `HostError` where the processes do not find each other.
    """
    _check(coordinator, num_processes, process_id, patience)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which a run answers itself
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    given: dict[str, Any] = {}
    if coordinator != AUTO:
        given = {"coordinator_address": coordinator, "num_processes": num_processes, "process_id": process_id}
    problem: list[Exception] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                **given,
                initialization_timeout=patience + FAREWELL,  # JAX aborts the process then: ours comes first
                shutdown_timeout_seconds=FAREWELL,
            )
        except Exception as error:
            problem.append(error)

    thread = threading.Thread(target=connect, daemon=True)  # beside the main thread, which alone hears Ctrl-C
    thread.start()
    thread.join(patience)
    if thread.is_alive():
        raise HostError(_absent(coordinator, num_processes, process_id, patience))
    if problem and coordinator == AUTO:
        raise ValueError(
            f"--coordinator auto: JAX recognises no cluster here ({problem[0]}). Give all three: --coordinator "
            "HOST:PORT --num-processes N --process-id I"
        ) from problem[0]
    if problem:
        raise HostError(f"cannot join the processes at {coordinator}: {problem[0]}") from problem[0]
    exchange(None)  # the connections for collectives, made while all are here: on CPUs nobody waits long for them


def several() -> bool:
    """Whether this is one of several processes."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def number() -> int:
    """How many processes there are."""
    return jax.process_count() if several() else 1


def is_first() -> bool:
    """Whether this process is the first, which writes and shows what there is to write and to show."""
    return not several() or jax.process_index() == 0


def exchange(value: Any) -> list[Any]:
    """What all processes give, in their order; all of them must call."""
    if not several():
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = _gather(np.array(data.size, np.int32))
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)  # few lengths, since each is a program
    padded[: data.size] = data
    rows = _gather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def first(function: Callable[[], Result]) -> Result:
    """What `function` returns in the first process, which alone calls it; what it raises is raised in all."""
    if not several():
        return function()
    outcome = _outcome(function) if is_first() else None
    result, error = exchange(outcome if outcome is None else (outcome[0], _portable(outcome[1])))[0]
    if outcome is not None and outcome[1] is not None:
        raise outcome[1]
    if error is not None:
        raise error
    return result


def together(function: Callable[[], Result]) -> Result:
    """What `function` returns; where it raises in one process, none goes on without that one.

    Raises its own error, or `ValueError` with that of another process.
    """
    if not several():
        return function()
    result, error = _outcome(function)
    others = exchange(None if error is None else str(error))
    if error is not None:
        raise error
    for process, message in enumerate(others):
        if message is not None:
            raise ValueError(f"process {process} cannot go on: {message}")
    return result  # type: ignore[return-value]


def anywhere(flag: bool) -> bool:
    """Whether `flag` is true in any process."""
    return bool(_gather(np.array(flag)).any()) if several() else flag


def require_same(describe: Callable[[], Mapping[str, Any]]) -> None:
    """Raise `ValueError` in all processes unless all describe themselves by the same values, and say which are not."""
    if not several():
        return
    expected, *others = exchange(dict(describe()))
    for process, found in enumerate(others, 1):
        different = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if different:
            name = different[0]
            raise ValueError(
                f"the processes were not started alike: {name} is {expected.get(name)!r} in process 0, "
                f"{found.get(name)!r} in process {process}"
                + (f"; also different: {', '.join(different[1:])}" if different[1:] else "")
                + ". All need the same command, but for --process-id, the same files and the same versions."
            )


def leave(code: int, last: bool) -> NoReturn:
    """End a process that has failed, without the farewell for which it would wait in vain.

    Where it is the `last` one, the others have a moment to say what happened to them: JAX ends them when the first
    process is gone, to which they are connected.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if last:
        time.sleep(MOMENT)
    os._exit(code)


def _gather(own: np.ndarray) -> np.ndarray:
    """The arrays of all processes, [processes, ...]. Raises `HostError` where one of them is gone."""
    from jax.experimental import multihost_utils

    try:
        return multihost_utils.process_allgather(own)
    except Exception as error:  # of a kind that depends on the device and its network
        raise HostError(f"this process has lost the others ({str(error).partition(chr(10))[0]}).") from error


def _check(coordinator: str, num_processes: int | None, process_id: int | None, patience: int) -> None:
    if patience < 1:
        raise ValueError(f"--join-timeout is {patience}, it must be at least 1 second.")
    if coordinator == AUTO:
        if num_processes is not None or process_id is not None:
            raise ValueError("--coordinator auto asks the cluster: leave --num-processes and --process-id out.")
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"--coordinator is '{coordinator}', it must be HOST:PORT of process 0, or auto on a cluster.")
    if num_processes is None or process_id is None:
        raise ValueError("--coordinator HOST:PORT needs --num-processes N and --process-id I, from 0 to N - 1.")
    if num_processes < 1:
        raise ValueError(f"--num-processes is {num_processes}, it must be at least 1.")
    if not 0 <= process_id < num_processes:
        raise ValueError(f"--process-id is {process_id}, of {num_processes} processes it is 0 to {num_processes - 1}.")


def _absent(coordinator: str, num_processes: int | None, process_id: int | None, patience: int) -> str:
    if coordinator == AUTO:
        return f"the processes have not found each other after {patience} s."
    if process_id == 0:
        return (
            f"not all of {num_processes} processes have come to {coordinator} after {patience} s. Start the same "
            "command on every host, with its own --process-id, and let this port through."
        )
    return (
        f"no process 0 at {coordinator}, or not all of {num_processes} processes, after {patience} s. Start the same "
        "command on every host; --coordinator names the host of process 0, and its port must be reachable from here."
    )


def _outcome(function: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _portable(error: Exception | None) -> Exception | None:
    """The error as another process can have it."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(str(error))
