"""A policy as StableHLO, which `jax.export.deserialize` reads."""

from __future__ import annotations

import jax

from rljax.runs.export.program import Program

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def written(program: Program) -> bytes:
    """The serialised function of the program's inputs, in their order."""
    function = jax.jit(program.call)
    exported = jax.export.export(function, platforms=PLATFORMS)(*program.shapes)
    return bytes(exported.serialize())
