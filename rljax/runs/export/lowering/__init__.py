"""From JAX's programs to the operations of `graph`."""

from rljax.runs.export.lowering.equations import lowered

__all__ = ["lowered"]
