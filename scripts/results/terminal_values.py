"""Collect runs into results/studies/terminal_values/, and write the table of its README.md.

The recording: 60,000 steps of SAC on Hopper-v5, all of its replay.

  rljax train sac --env Hopper-v5 --steps 60000 --eval-every 20000 --out runs/falls/sac
  rljax data record runs/falls/sac Hopper-replay-60k.hdf5 --from replay

Ours, each with --data Hopper-replay-60k.hdf5 --seeds 3 --eval-every 7000 --eval-episodes 10 --out
runs/falls/NAME:

  rljax train AGENT ...      # each file of results/studies/terminal_values/ holds its whole command

They were trained before RIQL's preset for Hopper-v5. Its authors' settings are now
--config.huber-sigma 1 --config.critic-initialisation edac.

Others', each with scripts/checks/run_authors_file.py, which has a Python of its own:

  python scripts/checks/run_authors_file.py Hopper-replay-60k.hdf5 OUT.json FILE ...     # likewise

Then

  python scripts/results/terminal_values.py runs/falls/* OUT.json ...

A run is kept under the name of its folder, and a file of the other script under its own. Files that
are there already stay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from rljax.runs import records
from scripts.results import shared

FOLDER = shared.RESULTS / "studies" / "terminal_values"
Run = dict[str, Any]
# Rows of the table: the names of their files (others' have one for each seed), the agent, whose
# code, and its settings.
ROWS = {
    "iql": ("IQL", "ours", "its authors'"),
    "riql": ("RIQL", "ours", "its authors'"),
    "riql-sigma": ("RIQL", "ours", "sigma 0.1"),
    "riql-torch": ("RIQL", "ours", "critics begin as PyTorch's layers"),
    "riql-both": ("RIQL", "ours", "both: the preset for Hopper-v5"),
    "riql-authors": ("RIQL", "its authors'", "its authors'"),
    "riql-authors-sigma": ("RIQL", "its authors'", "sigma 0.1"),
    "edac": ("EDAC", "ours", "its authors', 10 critics in place of 50"),
    "dql": ("Diffusion-QL", "ours", "its authors' for medium: gradients' norm at most 9"),
    "dql-noclip": ("Diffusion-QL", "ours", "gradients without a limit"),
}


def collect(run: Path) -> Run:
    """A run as one small object, with the values of each learner at each evaluation and without
    folders' names.
    """
    described = json.loads((run / "config.json").read_text())
    lines = {line["step"]: line for line in records.read(run, "metrics")}
    run_record = shared.collect(run)
    learners, steps = range(len(run_record["seeds"])), run_record["steps_evaluated"]
    values = {
        name: [[round(lines[step][metric][learner], 2) for step in steps] for learner in learners]
        for name, metric in {"terminal_value": "terminal/value", "value": "critic/q"}.items()
    }
    reward = lines[steps[0]]["terminal/reward"][0]
    command, data = run_record["command"], Path(described["data"])
    for folder in (data.parent, run.parent):
        command = command.replace(f"{folder}/", "")
    source = {
        "data": data.name,
        "dataset": described["dataset"],
        "terminal_reward": reward,
        "command": command,
    }
    return run_record | values | source


def curves(parts: list[Run]) -> dict[str, Any]:
    """Updates, and returns and values [learner, evaluation],
    of one of our runs or of others' runs by seed.
    """
    if "evaluations" not in parts[0]:
        (run,) = parts
        return run | {"updates": run["steps_evaluated"]}
    learner_curves: dict[str, Any] = {"updates": [x["updates"] for x in parts[0]["evaluations"]]}
    for name in ("returns", "terminal_value", "value"):
        learner_curves[name] = [
            [float(np.mean(x[name])) for x in part["evaluations"]] for part in parts
        ]
    return learner_curves | {"terminal_reward": parts[0]["terminal_reward"]}


def row(name: str) -> list[str]:
    """One row: the last values, beside the true one, and returns at half of the updates and at the
    end.
    """
    parts = [json.loads(path.read_text()) for path in files(name)]
    learner_curves = curves(parts)
    updates = learner_curves["updates"]
    middle = min(range(len(updates)), key=lambda i: abs(updates[i] - updates[-1] / 2))
    returns, terminal, value = (
        np.array(learner_curves[x]) for x in ("returns", "terminal_value", "value")
    )
    cells = [f"{updates[-1]:,}", str(len(returns)), f"{learner_curves['terminal_reward']:.1f}"]
    cells += [
        shared.over_seeds(terminal[:, -1], 1),
        shared.over_seeds(value[:, -1], 0),
        shared.over_seeds(returns[:, middle], 0),
    ]
    return [*ROWS[name], *cells, shared.over_seeds(returns[:, -1], 0)]


def files(name: str) -> list[Path]:
    """The files of a row: ours, or others' by seed."""
    path = FOLDER / f"{name}.json"
    return [path] if path.exists() else sorted(FOLDER.glob(f"{name}-seed[0-9].json"))


def tables() -> dict[tuple[str, str], str]:
    """The table in Markdown, by page and name."""
    header = [
        "agent",
        "code",
        "settings",
        "updates",
        "seeds",
        "true value",
        "terminal rows",
        "all rows",
    ]
    lines = shared.table([*header, "return, half-way", "return, end"], [row(name) for name in ROWS])
    return {("studies/terminal_values", "hopper"): "\n".join(lines)}


def main() -> None:
    """Keep the runs that are given, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, help="folders of runs, and files of run_authors_file.py"
    )
    for path in parser.parse_args().runs:
        record = json.loads(path.read_text()) if path.is_file() else collect(path)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{path.stem}.json").write_text(json.dumps(record) + "\n")
    for (page, name), lines in tables().items():
        shared.show(page, name, lines)


if __name__ == "__main__":
    main()
