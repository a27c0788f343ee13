"""Pack the policies of a run into one file; `rljax.runs.export.packs` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.runs import arguments, checkpoints, records
from rljax.runs.export import packs
from rljax.runs.policies.loading import load_all
from rljax.system import outputs
from rljax.trust import Folder, printable

FILMS = ("play.mp4", "play.gif")
RECORDS = (records.SUMMARY, records.FILES["evaluations"])


def pack(
    out: str | Path | Folder, *, output: str | Path | None = None, trust: bool = False
) -> Path:
    """Write the policies of all learners of the run in `out` into one file, and return its path.

    It holds settings, results, a card, and the run's film if there is one, and no code. By default
    `output` is policy.zip in the run's folder. Raises `ValueError` where it has another ending, and
    the errors of `rljax.load`.
    """
    folder = arguments.run_folder(out, trust)
    path = Path(output or folder.path / "policy.zip")
    if path.suffix != ".zip":
        raise ValueError(f"'{path}' is not the name of a pack: it must end in .zip.")
    described = records.read_config(folder.path)
    outputs.require_makeable(path)
    last, best = load_all(folder), load_all(folder, best=True)
    values = checkpoints.notes(checkpoints.newest(folder.path / checkpoints.FOLDER))["values"]
    evaluations = records.read(folder.path, "evaluations")
    files = {"card.md": card(described, evaluations, last.step).encode()}
    for name in (*RECORDS, *FILMS):
        if (folder.path / name).is_file():
            files[name] = (folder.path / name).read_bytes()
    trees = {"agent": last.state.replace(base=None), "best": best.state.replace(base=None)}
    with outputs.atomic(path) as temporary:
        packs.write(temporary, described, {"step": last.step, "values": values}, trees, files)
    return path


def card(described: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]], step: int) -> str:
    """What the policies are and how good, in Markdown."""
    rows = [
        "| learner | seed | last evaluation | best evaluation |",
        "|---|---|---|---|",
    ]
    for learner, seed in enumerate(described["seeds"]):
        lines = [line for line in evaluations if line["learner"] == learner]
        last = _returns(lines[-1]) if lines else "none"
        best = _returns(max(lines, key=lambda line: np.mean(line["returns"]))) if lines else "none"
        rows.append(f"| {learner} | {seed} | {last} | {best} |")
    versions = described["versions"] or {}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items()) or "unknown"
    source = "" if described["data"] is None else f", from the data {described['data']}"
    text = [
        f"# {described['agent']} in {described['environment']}",
        "",
        f"Policies after {step:,} steps{source}. Returns are means of episodes without "
        "exploration, with their standard deviation.",
        "",
        *rows,
        "",
        '- Use: `policy = rljax.load("FILE"); action = policy(observation)`',
        f"- Command: `{described['command']}`",
        f"- Revision of rljax: {described['git_revision'] or 'unknown'}",
        f"- Versions: {listed}",
        "- All settings: config.json",
        "",
    ]
    return "\n".join(printable(line) for line in text)


def _returns(line: Mapping[str, Any]) -> str:
    returns = np.asarray(line["returns"], np.float64)
    return f"{returns.mean():,.1f} ± {returns.std():,.1f} (step {line['step']:,})"
