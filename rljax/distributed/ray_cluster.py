"""Launches as tasks of a Ray cluster. A lost machine's task starts again on another."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rljax.system.packages import install_command

CONNECTION_TIMEOUT = 10  # seconds
RETRIES = 10  # after a machine is lost, each from the last checkpoint


@dataclasses.dataclass(frozen=True)
class RayCluster:
    """A Ray cluster whose machines have the same packages and the same paths of run folders.

    Each task gets `cpus` cores, and one accelerator if there are any.
    """

    address: str  # "auto": the cluster of this machine; or "HOST:PORT", or "ray://HOST:PORT"
    cpus: int = 1

    def run(self, function: Callable[..., bool], arguments: Sequence[tuple[Any, ...]]) -> bool:
        """Call `function` with each of `arguments`, as tasks; whether all returned True.

        Raises `ValueError` if the cluster cannot be reached, and the error of a call.
        """
        with self._connected() as ray:
            remote = ray.remote(_run_in_folder).options(
                num_cpus=self.cpus,
                num_gpus=1 if ray.cluster_resources().get("GPU", 0) else 0,
                max_retries=RETRIES,
                runtime_env={"env_vars": {"NPROC": str(self.cpus)}},  # the number of JAX's threads
            )
            tasks = [remote.remote(os.getcwd(), function, values) for values in arguments]
            try:
                return all(ray.get(tasks))
            except KeyboardInterrupt:
                for task in tasks:
                    ray.cancel(task)  # it saves its progress
                return False
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        try:
            import ray
        except ImportError:
            raise ValueError(
                f"a cluster needs 'ray', which is not installed: {install_command('ray')}"
            ) from None
        try:
            self._require_listener()
            ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"the cluster at '{self.address}' cannot be reached ({type(error).__name__}: "
                f"{reason}). Is it running, and the address right? ray status --address ADDRESS"
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()

    def _require_listener(self) -> None:
        """Raise `OSError` if nobody listens: Ray itself would try for minutes."""
        if self.address != "auto":
            host, _, port = self.address.removeprefix("ray://").rpartition(":")
            if not host or not port.isdigit():
                raise ValueError("an address is auto, HOST:PORT or ray://HOST:PORT")
            socket.create_connection((host, int(port)), timeout=CONNECTION_TIMEOUT).close()


def _run_in_folder(folder: str, function: Callable[..., bool], arguments: tuple[Any, ...]) -> bool:
    if Path(folder).is_dir():
        os.chdir(folder)
    return function(*arguments)
