"""Learners and environments of a rollout, spread over devices.

Only arrays are placed here, and compiled programs follow.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import config as jax_settings
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from rljax.distributed import processes

LEARNERS, ENVIRONMENTS = "learners", "environments"
ALIGNMENT = 64  # bytes, of XLA's arrays on a CPU

_devices_are_cores = False  # set by `prefer_cores`


def prefer_cores() -> None:
    """Make each core of a CPU a device, unless JAX has started or the user has set their number.

    A device's threads synchronise after each product. There are at most as many as XLA's threads.
    """
    global _devices_are_cores
    is_set = jax_settings.values["jax_num_cpu_devices"] > 0
    if is_set or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    threads = os.environ.get("NPROC", "")  # XLA's own setting
    if threads.isdigit():
        cores = max(1, min(cores, int(threads)))
    with contextlib.suppress(RuntimeError):  # JAX has already started
        jax.config.update("jax_num_cpu_devices", cores)
        _devices_are_cores = True


class Spread:
    """The placement of P learners with E environments each on the devices.

    As many devices as possible divide the learners evenly. With `split`, the remaining ones divide
    the environments, except on cores of a CPU.
    """

    def __init__(self, num_learners: int, num_envs: int = 1, *, split: bool = False) -> None:
        """`split` is for rollouts of environments inside the program.

        Raises `ValueError` if several processes cannot share learners and environments evenly.
        """
        available, num_processes = len(jax.devices()), processes.process_count()
        split = split and not (_devices_are_cores and jax.default_backend() == "cpu")
        for learners in range(min(num_learners, available), 0, -1):
            environments = math.gcd(num_envs, available // learners) if split else 1
            if num_learners % learners == 0 and learners * environments % num_processes == 0:
                break
        else:
            raise ValueError(
                f"{num_learners} learner{'s' if num_learners > 1 else ''} cannot be shared by "
                f"{num_processes} processes: let --seeds{' or --config.num-envs' if split else ''} "
                f"be a multiple of {num_processes}."
            )
        self.mesh: Mesh | None = None
        if learners * environments > 1:
            devices = np.array(_first_of_each_process(learners * environments))
            self.mesh = Mesh(devices.reshape(learners, environments), (LEARNERS, ENVIRONMENTS))
            # One program for all arrays.
            self._moved = jax.jit(self._place, static_argnums=1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spread) and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash(self.mesh)

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return 1 if self.mesh is None else self.mesh.size

    def learners(self, tree: Any) -> Any:
        """Place arrays [P, ...]; scalars [] are copied to every device."""
        return self._place(tree, PartitionSpec(LEARNERS))

    def environments(self, tree: Any) -> Any:
        """Place arrays [P, E, ...]."""
        return self._place(tree, PartitionSpec(LEARNERS, ENVIRONMENTS))

    def flat_environments(self, tree: Any) -> Any:
        """Place arrays [P x E, ...]."""
        return self._place(tree, PartitionSpec((LEARNERS, ENVIRONMENTS)))

    def rollouts(self, tree: Any) -> Any:
        """Place arrays [P, T, E, ...]."""
        return self._place(tree, PartitionSpec(LEARNERS, None, ENVIRONMENTS))

    def everywhere(self, tree: Any) -> Any:
        """Place whole arrays on every device, each once. A CPU's devices share one copy."""
        leaves, structure = jax.tree.flatten(tree)
        once = {id(leaf): leaf for leaf in leaves}
        if self.mesh is None:
            placed = jax.device_put(once)
        else:
            once = jax.tree.map(_aligned, once) if jax.default_backend() == "cpu" else once
            placed = self._place(once, PartitionSpec())
        return structure.unflatten([placed[id(leaf)] for leaf in leaves])

    def _place(self, tree: Any, spec: PartitionSpec) -> Any:
        if self.mesh is None:
            return tree
        shared, whole = NamedSharding(self.mesh, spec), NamedSharding(self.mesh, PartitionSpec())
        if processes.is_distributed() and any(map(_is_partly_remote, jax.tree.leaves(tree))):
            in_place = all(
                _is_partly_remote(x)
                and x.sharding.is_equivalent_to(shared if x.ndim else whole, x.ndim)
                for x in jax.tree.leaves(tree)
            )
            return tree if in_place else self._moved(tree, spec)

        def put(x: Any) -> Any:
            sharding = shared if np.ndim(x) else whole
            if isinstance(x, Tracer):
                return jax.lax.with_sharding_constraint(x, sharding)
            if processes.is_distributed():
                return _distributed(x, sharding)
            return jax.device_put(x, sharding)

        return jax.tree.map(put, tree)


def local(tree: Any) -> Any:
    """A tree of whole arrays, fetched from other processes, so all must call this."""
    remote = [x for x in jax.tree.leaves(tree) if _is_partly_remote(x)]
    if not remote:
        return tree
    whole = jax.block_until_ready(_gather(remote[0].sharding.mesh)(remote))
    fetched = iter(x.addressable_data(0) for x in whole)
    return jax.tree.map(lambda x: next(fetched) if _is_partly_remote(x) else x, tree)


@functools.cache
def _gather(mesh: Mesh) -> Any:
    return jax.jit(lambda leaves: leaves, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _first_of_each_process(number: int) -> list[Any]:
    """`number` devices in order, equally many per process; `ValueError` for fewer."""
    groups: dict[int, list[Any]] = {}
    for device in sorted(jax.devices(), key=lambda device: device.process_index):
        groups.setdefault(device.process_index, []).append(device)
    each = number // len(groups)
    if min(map(len, groups.values())) < each:
        counts = ", ".join(str(len(group)) for group in groups.values())
        raise ValueError(
            f"the processes have {counts} devices: give all of them the same number of devices."
        )
    return [device for group in groups.values() for device in group[:each]]


def _aligned(x: Any) -> Any:
    """A copy of an array at an address where JAX does not copy it again for each device."""
    if not isinstance(x, np.ndarray):
        return x
    room = np.empty(x.nbytes + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    copy = room[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def _is_partly_remote(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.is_fully_addressable


def _distributed(x: Any, sharding: Sharding) -> jax.Array:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _distributed(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(jnp.asarray(x))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
