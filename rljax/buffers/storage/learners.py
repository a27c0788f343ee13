"""Arrays of all learners, with a leading axis P, beside counters that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import jax
from flax import struct


class PerLearner(struct.PyTreeNode):
    """Parts with a leading axis P, except those that `shared` names."""

    shared: ClassVar[tuple[str, ...]] = ()

    @property
    def axes(self) -> Self:
        """The axes of all parts, for `jax.vmap` over P."""
        axes = {
            name: part.axes if isinstance(part, PerLearner) else 0 for name, part in self._parts()
        }
        return self.replace(**dict.fromkeys(self.shared), **axes)

    def of_learner(self, learner: int) -> Self:
        """The parts of one of P learners."""

        def take(part: Any) -> Any:
            if isinstance(part, PerLearner):
                return part.of_learner(learner)
            return jax.tree.map(lambda x: x[learner], part)

        return self.replace(**{name: take(part) for name, part in self._parts()})

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(self):
            if field.name not in self.shared and field.metadata.get("pytree_node", True):
                yield field.name, getattr(self, field.name)
