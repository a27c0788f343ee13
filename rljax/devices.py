"""Learners, and the environments of a rollout, shared among the devices of a machine.

Arrays are placed, and nothing else: the compiled programs follow, each device computing its own learners. Only what
crosses learners or environments goes between devices, such as the gradients of a rollout that several share.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LEARNERS, ENVIRONMENTS = "learners", "environments"


class Spread:
    """How P learners, with E environments each, lie on the devices: not at all where there is one.

    As many devices share the learners as divide their number, and the rest of them the environments, where `split`.
    """

    def __init__(self, num_learners: int, num_envs: int = 1, *, split: bool = False) -> None:
        """`split` is for environments inside the program whose agent learns from rollouts."""
        devices = jax.devices()
        learners = math.gcd(num_learners, len(devices))
        environments = math.gcd(num_envs, len(devices) // learners) if split else 1
        self.mesh: Mesh | None = None
        if learners * environments > 1:
            chosen = np.array(devices[: learners * environments]).reshape(learners, environments)
            self.mesh = Mesh(chosen, (LEARNERS, ENVIRONMENTS))

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
        """Place arrays as a whole on every device."""
        return jax.device_put(tree) if self.mesh is None else self._place(tree, PartitionSpec())

    def _place(self, tree: Any, spec: PartitionSpec) -> Any:
        if self.mesh is None:
            return tree
        shared, whole = NamedSharding(self.mesh, spec), NamedSharding(self.mesh, PartitionSpec())

        def put(x: Any) -> Any:
            sharding = shared if np.ndim(x) else whole
            return (
                jax.lax.with_sharding_constraint(x, sharding) if isinstance(x, Tracer) else jax.device_put(x, sharding)
            )

        return jax.tree.map(put, tree)
