"""Write the policy of a run for where rljax is not installed; docs/export.md."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rljax.runs import arguments, json_files
from rljax.runs.export import checks, lowering, numpy_file, onnx_file, stablehlo_file
from rljax.runs.export.program import Program
from rljax.runs.policies import host_policies
from rljax.runs.policies.loading import load_all
from rljax.system import outputs
from rljax.trust import Folder

Format = Literal["numpy", "onnx", "stablehlo"]
FORMATS = get_args(Format)
SUFFIXES = {"numpy": ".py", "onnx": ".onnx", "stablehlo": ".stablehlo"}


class ExportedPolicy(NamedTuple):
    """What was written, and how it was checked."""

    path: Path
    largest_difference: float  # of an action from the loaded policy's


def export(
    out: str | Path | Folder,
    to: Format,
    *,
    learner: int = 0,
    best: bool = False,
    output: str | Path | None = None,
    trust: bool = False,
) -> ExportedPolicy:
    """Write the policy of one learner of the run, or of the packed one, in `out`, without
    exploration.

    By default `output` is policy.py, policy.onnx or policy.stablehlo in the run's folder. Beside
    the last one lies a .json with its inputs and outputs.

    The file is checked with sampled observations before it gets its name. Raises `ValueError` where
    actions differ by more than `rljax.runs.export.checks.TOLERANCE`, for a policy that a format
    cannot hold, and without onnx; and the errors of `rljax.load`.
    """
    if to not in FORMATS:
        raise ValueError(f"--to is '{to}', it must be one of {', '.join(FORMATS)}.")
    if to == "onnx":
        onnx_file.require_onnx()
    folder = arguments.run_folder(out, trust)
    place = folder.path.parent if folder.path.is_file() else folder.path
    path = Path(output or place / f"policy{SUFFIXES[to]}")
    if path.suffix != SUFFIXES[to]:
        raise ValueError(f"'{path}' is the name of another format: it must end in {SUFFIXES[to]}.")
    outputs.require_makeable(path)
    policies = load_all(folder, best=best)
    host = host_policies.host_policy(policies.state.base)
    if host is not None:
        raise ValueError(
            f"the policy in '{folder.path}' acts by --base {host.name} on the host, which no "
            "exported file can hold."
        )
    program = Program(policies, learner)
    content, run = made(program, to)
    difference = checks.SampledCheck(policies, program).largest_difference(run)
    with outputs.atomic(path) as temporary:
        temporary.write_bytes(content)
        if to == "stablehlo":
            json_files.write_json(path.with_suffix(".json"), program.description(inner=True))
    return ExportedPolicy(path, difference)


def made(program: Program, to: Format) -> tuple[bytes, checks.Run]:
    """The file's content, and the policy in it."""
    if to == "stablehlo":
        content = stablehlo_file.written(program)
        return content, checks.of_stablehlo(content, program)
    names = [value.name for value in program.inputs]
    graph = lowering.lowered(program.closed, program.learnt, names)
    if to == "onnx":
        content = onnx_file.written(program, graph)
        return content, checks.of_onnx(content)
    content = numpy_file.written(program, graph).encode()
    return content, checks.of_python(content, program)
