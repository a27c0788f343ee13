"""Learners, and the environments of a rollout, shared among the devices of a machine, or of several.

Arrays are placed, and nothing else: the compiled programs follow, each device computing its own learners. Only what
crosses learners or environments goes between devices, such as the gradients of a rollout that several share.
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
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from rljax.distributed import processes

LEARNERS, ENVIRONMENTS = "learners", "environments"
ALIGNMENT = 64  # bytes, of XLA's arrays on a CPU

_are_cores = False  # whether the devices are cores, see `prefer_cores`


def prefer_cores() -> None:
    """Let each core of a CPU be a device, where JAX has not begun yet and nobody has said how many devices there are.

    Learners on devices of their own go on side by side; the threads of one device meet after each product. There are no
    more devices than XLA may have threads.
    """
    global _are_cores
    asked = jax.config.values["jax_num_cpu_devices"] > 0
    if asked or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    threads = os.environ.get("NPROC", "")  # XLA's own setting
    if threads.isdigit():
        cores = max(1, min(cores, int(threads)))
    with contextlib.suppress(RuntimeError):  # JAX has begun
        jax.config.update("jax_num_cpu_devices", cores)
        _are_cores = True


class Spread:
    """How P learners, with E environments each, lie on the devices: not at all where there is one.

    As many devices share the learners as divide their number, and the rest of them the environments, where `split` and
    where devices are more than cores, which would wait for each other longer than it takes to do without.
    """

    def __init__(self, num_learners: int, num_envs: int = 1, *, split: bool = False) -> None:
        """`split` is for environments inside the program whose agent learns from rollouts.

        Raises `ValueError` where several processes cannot have the same share each.
        """
        available, number = len(jax.devices()), processes.number()
        split = split and not (_are_cores and jax.default_backend() == "cpu")
        for learners in range(min(num_learners, available), 0, -1):
            environments = math.gcd(num_envs, available // learners) if split else 1
            if num_learners % learners == 0 and learners * environments % number == 0:
                break
        else:
            raise ValueError(
                f"{num_learners} learner{'s' if num_learners > 1 else ''} cannot be shared by {number} processes: "
                f"let --seeds{' or --config.num-envs' if split else ''} be a multiple of {number}."
            )
        self.mesh: Mesh | None = None
        if learners * environments > 1:
            chosen = np.array(_first_of_each_process(learners * environments)).reshape(learners, environments)
            self.mesh = Mesh(chosen, (LEARNERS, ENVIRONMENTS))
            # As one program: array by array, each would be a program of its own.
            self._moved = jax.jit(self._place, static_argnums=1)

    @property
    def num_devices(self) -> int:
        """How many devices share the work."""
        return 1 if self.mesh is None else self.mesh.size

    def learners(self, tree: Any) -> Any:
        """Place arrays [P, ...]; counters [] are on every device."""
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
        """Place arrays as a whole on every device; those of a CPU share the memory."""
        if self.mesh is None:
            return jax.device_put(tree)
        if jax.default_backend() == "cpu":
            tree = jax.tree.map(_aligned, tree)
        return self._place(tree, PartitionSpec())

    def _place(self, tree: Any, spec: PartitionSpec) -> Any:
        if self.mesh is None:
            return tree
        shared, whole = NamedSharding(self.mesh, spec), NamedSharding(self.mesh, PartitionSpec())
        if processes.several() and any(map(_is_elsewhere, jax.tree.leaves(tree))):
            in_place = [_lies(x, shared if np.ndim(x) else whole) for x in jax.tree.leaves(tree)]
            return tree if all(in_place) else self._moved(tree, spec)

        def put(x: Any) -> Any:
            sharding = shared if np.ndim(x) else whole
            if isinstance(x, Tracer):
                return jax.lax.with_sharding_constraint(x, sharding)
            return _distributed(x, sharding) if processes.several() else jax.device_put(x, sharding)

        return jax.tree.map(put, tree)


def local(tree: Any) -> Any:
    """Arrays as this process has them whole, those too that lie in parts with others, which must ask as well."""
    elsewhere = [x for x in jax.tree.leaves(tree) if _is_elsewhere(x)]
    if not elsewhere:
        return tree
    whole = jax.block_until_ready(_gather(elsewhere[0].sharding.mesh)(elsewhere))
    found = iter(x.addressable_data(0) for x in whole)
    return jax.tree.map(lambda x: next(found) if _is_elsewhere(x) else x, tree)


@functools.cache
def _gather(mesh: Mesh) -> Any:
    """A program that brings all of its arrays to every device."""
    return jax.jit(lambda leaves: leaves, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _first_of_each_process(number: int) -> list[Any]:
    """`number` devices in all, of each process as many, in order.

    Raises `ValueError` where a process has too few.
    """
    devices = jax.devices()
    processes = sorted({device.process_index for device in devices})
    own = [[device for device in devices if device.process_index == process] for process in processes]
    each = number // len(processes)
    if any(len(found) < each for found in own):
        raise ValueError(
            f"the processes have {', '.join(str(len(found)) for found in own)} devices: give each as many."
        )
    return [device for found in own for device in found[:each]]


def _aligned(x: Any) -> Any:
    """A copy of an array that begins where JAX takes it as it lies; others it copies, for each device once more."""
    if not isinstance(x, np.ndarray):
        return x
    room = np.empty(x.nbytes + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    copy = room[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def _is_elsewhere(x: Any) -> bool:
    """Whether parts of an array lie with other processes."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.is_fully_addressable


def _lies(x: Any, sharding: Sharding) -> bool:
    return _is_elsewhere(x) and x.sharding.is_equivalent_to(sharding, x.ndim)


def _distributed(x: Any, sharding: Sharding) -> jax.Array:
    """An array that every process has whole, of which each keeps its part."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _distributed(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(jnp.asarray(x))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
