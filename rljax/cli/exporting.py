"""Commands that write policies for other programs: rljax export | pack."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from rljax.cli import options as shared


@dataclasses.dataclass
class ExportOptions(shared.Trust, shared.LearnerOptions):
    """Write the policy of a run for where JAX is not installed, and check the file with sampled
    observations.

    numpy is one Python file that needs NumPy alone. onnx needs the extra `export`. stablehlo is
    for jax.export.deserialize.
    """

    run: shared.Folder  # folder of the run
    to: Literal["numpy", "onnx", "stablehlo"]  # format of the file
    # file to write; default DIR/policy.py, DIR/policy.onnx or DIR/policy.stablehlo
    output: Annotated[Path | None, shared.OUTPUT] = None


@dataclasses.dataclass
class PackOptions(shared.Trust):
    """Write the policies of all learners into one file, with settings, results, a card and the
    run's film, for rljax.load.
    """

    run: shared.Folder  # folder of the run
    output: Annotated[Path | None, shared.OUTPUT] = None  # file to write; default DIR/policy.zip


def export(arguments: list[str]) -> None:
    """rljax export"""
    options = shared.parse(ExportOptions, arguments, "export")
    from rljax.runs.export import checks, exporting

    path, difference = exporting.export(
        options.folder(options.run),
        options.to,
        learner=options.learner,
        best=options.best,
        output=options.output,
    )
    print(
        f"{path}: acts as the run's policy, to {difference:.1g} in {checks.OBSERVATIONS} sampled "
        f"observations (limit {checks.TOLERANCE:g})"
    )


def pack(arguments: list[str]) -> None:
    """rljax pack"""
    options = shared.parse(PackOptions, arguments, "pack")
    from rljax.runs.export import packing

    print(packing.pack(options.folder(options.run), output=options.output))
