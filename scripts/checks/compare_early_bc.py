"""BC after 750 updates, ours beside CORL's file, over 30 seeds:
is what ten seeds showed half-way more than chance?

Makes results/checks/references/bc_early.json from a run of ours and from what run_authors_file.py
writes of theirs:

  rljax train bc --data HalfCheetah-medium.hdf5 --steps 750 --seed 10 --seeds 30 --eval-every 750 \
      --out runs/early/ours
  for seed in $(seq 10 39); do
    peer/bin/python scripts/checks/run_authors_file.py HalfCheetah-medium.hdf5 \\
        runs/early/theirs-$seed.json CORL/algorithms/offline/any_percent_bc.py \\
        --source tinkoff-ai/CORL@6afec90 -- --device cpu --env halfcheetah-medium-v2 \\
        --buffer_size 100000 --max_timesteps 750 --eval_freq 750 --frac 1.0 --seed $seed
  done
  python scripts/checks/compare_early_bc.py runs/early

The data set and the peer are those of compare_returns.py. Seeds of ours can be spread over several
runs, whose names begin with `ours`: learners of one program are independent of each other.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rljax.analysis.comparison import mean_difference
from rljax.runs import records

LOW = 1_000  # the return of an episode in which the animal never begins to run is below this
KEPT = ("versions", "devices", "processes", "processor", "platform", "git_revision", "precision")


def described(run: Path) -> dict[str, Any]:
    """What a run was told to do, and where it ran."""
    return json.loads((run / "config.json").read_text())


def compared(folder: Path) -> dict[str, Any]:
    """Both sides, by seed, and the difference of their means with its interval."""
    runs = sorted(
        (file.parent for file in folder.glob("ours*/config.json")),
        key=lambda run: described(run)["seeds"],
    )
    last = {
        line["seed"]: line["returns"] for run in runs for line in records.read(run, "evaluations")
    }
    seeds, first = list(last), described(runs[0])
    parts = [json.loads((folder / f"theirs-{seed}.json").read_text()) for seed in seeds]
    returns = {
        "ours": list(last.values()),
        "theirs": [part["evaluations"][-1]["returns"] for part in parts],
    }
    means = {
        side: [round(sum(x) / len(x), 2) for x in learners] for side, learners in returns.items()
    }
    return {
        "env": first["env"],
        "sha256": parts[0]["sha256"],
        "updates": first["steps"],
        "episodes": first["eval_episodes"],
        "seeds": seeds,
        "returns": means,
        "below_1000": {
            side: [sum(x < LOW for x in each) for each in learners]
            for side, learners in returns.items()
        },
        "difference": mean_difference(means["ours"], means["theirs"]),
        "source": parts[0]["source"],
        "file": parts[0]["file"],
        "arguments": " ".join(parts[0]["arguments"]).replace(f"--seed {seeds[0]}", "--seed SEED"),
        **{name: first[name] for name in KEPT if name in first},
        "peer_versions": parts[0]["versions"],
    }


def main() -> None:
    """Compare both sides, and write what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder with both sides")
    parser.add_argument(
        "--output", type=Path, default=Path("results/checks/references/bc_early.json")
    )
    options = parser.parse_args()
    options.output.write_text(json.dumps(compared(options.folder), indent=1) + "\n")


if __name__ == "__main__":
    main()
