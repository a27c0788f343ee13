"""A Ray cluster: launches as tasks on its machines, begun again on another one where a machine is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

WAIT = 10  # seconds for a cluster to answer
RETRIES = 10  # of a task whose machine is lost: each goes on from the last checkpoint


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Where tasks go. All machines have the same packages, and see the folders of runs under the same names."""

    address: str  # "auto" for the one that this machine belongs to, "HOST:PORT" or "ray://HOST:PORT"
    cpus: int = 1  # processors of each task; where the cluster has accelerators, one of them too

    def run(self, function: Callable[..., bool], arguments: Sequence[tuple[Any, ...]]) -> bool:
        """Call the function with each of the arguments, as one task each; whether all of them return True.

        Raises `ValueError` where the cluster cannot be reached, and what a call raises.
        """
        with self._connected() as ray:
            remote = ray.remote(_there).options(
                num_cpus=self.cpus,
                num_gpus=1 if ray.cluster_resources().get("GPU", 0) else 0,
                max_retries=RETRIES,
                runtime_env={"env_vars": {"NPROC": str(self.cpus)}},  # as many threads has JAX
            )
            tasks = [remote.remote(os.getcwd(), function, given) for given in arguments]
            try:
                return all(ray.get(tasks))
            except KeyboardInterrupt:
                for task in tasks:
                    ray.cancel(task)  # an interrupt too: what was done is saved
                return False
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        try:
            import ray
        except ImportError:
            raise ValueError("a cluster needs 'ray', which is not installed: pip install 'rljax[ray]'") from None
        try:
            self._require_listener()
            ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"the cluster at '{self.address}' cannot be reached ({type(error).__name__}: {reason}). "
                "Is it running, and the address right? ray status --address ADDRESS"
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()

    def _require_listener(self) -> None:
        """Raise `OSError` where nobody listens at the address: Ray itself would try for minutes."""
        if self.address != "auto":
            host, _, port = self.address.removeprefix("ray://").rpartition(":")
            if not host or not port.isdigit():
                raise ValueError("an address is auto, HOST:PORT or ray://HOST:PORT")
            socket.create_connection((host, int(port)), timeout=WAIT).close()


def _there(here: str, function: Callable[..., bool], arguments: tuple[Any, ...]) -> bool:
    """A task, in the folder in which the command was given, where the machine has it."""
    if Path(here).is_dir():
        os.chdir(here)  # agents and data sets may be named by relative paths
    return function(*arguments)
