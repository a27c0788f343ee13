"""Collect runs from data sets into results/: compact curves and a table.

The runs behind the committed table learn from two public files (results/README.md says where they are from):

  rljax data convert sb_expert_pendulum.npz pendulum-sb.npz --action-bounds -2 2
  cp tianshou_expert_SAC_Pendulum.npz pendulum-tianshou.npz
  rljax train AGENT --data pendulum-FILE.npz --env Pendulum-v1 --steps 10000 --seeds 3 --eval-every 1000 \
      --eval-episodes 20 --out runs/results/AGENT-pendulum-FILE

for AGENT in bc, td3_bc, iql and riql and FILE in tianshou and sb; and from NeoRL-2's training file of SafetyHalfCheetah

  rljax train AGENT --data neorl2/SafetyHalfCheetah-v0 --steps 50000 --seeds 3 --eval-every 5000 --eval-episodes 10 \
      --out runs/results/AGENT-neorl2-SafetyHalfCheetah

for AGENT in bc, iql and td3_bc, the last also with --config.value-weight 2.5 --config.target-noise 0.2, its paper's.

Sets by D4RL's recipe are recorded from runs of our own, HalfCheetah-v5's from 4 seeds of SAC after 50,000 steps,

  rljax train sac --env HalfCheetah-v5 --steps 50000 --seeds 4 --config.actor-lr 1e-3 --config.critic-lr 1e-3 \
      --config.temperature-lr 1e-3 --config.warmup-steps 5000 --config.initialisation lecun_uniform --out medium
  rljax data record medium sets/HalfCheetah-medium.hdf5 --from exploring --steps 200000 --learner 0
  rljax data record medium sets/HalfCheetah-replay-LEARNER.hdf5 --from replay --learner LEARNER
  rljax data join sets/HalfCheetah-medium-replay.hdf5 sets/HalfCheetah-replay-*.hdf5
  rljax data record runs/results/sac-HalfCheetah-v5-crossq sets/HalfCheetah-expert.hdf5 --from exploring \
      --steps 200000 --learner 2
  rljax data join sets/HalfCheetah-medium-expert.hdf5 sets/HalfCheetah-medium.hdf5 sets/HalfCheetah-expert.hdf5

Hopper-v5's from 2 seeds of SAC's defaults after 150,000 steps (medium: learner 1) and, the expert, from learner 2 of
runs/results/dsact-Hopper-v5; the experts are those of scripts/results_online.py. For each SET

  rljax train AGENT --data sets/SET.hdf5 --steps 50000 --seeds 3 --eval-every 5000 --eval-episodes 10 \
      --out runs/results/AGENT-ENV-v5-KIND

with --config.hidden 256 256 256 for fql, its 4 x 512 being dear, and --config.num-actions 4 --config.hidden 256 256
--config.critic-hidden 256 256 for cql. Rows that end in -again are of sets recorded a second time, Hopper's after
50,000 steps of SAC, and those of HalfCheetah's medium set have 20,000 updates; OFQL's that ends in -as-before has
--config.no-average-acts, --config.no-normalise-observations and --config.reward-transform none. All with -third in
their names are of sets recorded a third time, and have --steps 20000 --eval-every 4000, FQL's with -normalised
--config.distillation-weight 10, and with -normalised-1 nothing more: its other rows of these tasks are of before it
had presets for them, and have that weight and --config.no-normalise-value. Single learners (--seeds 1) show what
settings do: -imitation has --config.value-weight 0, -raw-observations --config.no-normalise-observations,
-raw-rewards --config.reward-transform none; FQL's of -normalised-1 are single too, but for Hopper's replays, and
OFQL's -as-before of the third set.

OGBench's play data are generated, and learnt from with networks of 3 x 256 in place of 4 x 512:

  rljax data record ogbench/cube-single-play-v0 --envs 1
  rljax train AGENT --data ogbench/cube-single-play-singletask-task2-v0 --steps 50000 --seeds 3 \
      --config.hidden 256 256 256 --eval-every 10000 --eval-episodes 50 --out runs/results/AGENT-cube-single-play-task2

for AGENT in bc, iql and fql. FQL also goes on in the environment, as runs/results/fql-cube-single-play-task2-online:
the same command with --steps 31000 --then-online 29000; and it learns for longer as fql-cube-single-play-task2-longer,
each seed by itself, with --steps 100000, stopped after 50,000. Then

  python scripts/results_offline.py runs/results/*-pendulum-* runs/results/*-neorl2-* runs/results/*-v5-* \
      runs/results/*-cube-*

A run is kept under the name of its folder, and what was kept before stays. Learners that were trained apart, by --seed
in place of --seeds, are runs in one folder, and are kept as one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import results_online

from rljax import datasets
from rljax.runs import records, statistics

FOLDER = results_online.RESULTS / "offline"
COLUMNS = (
    "agent",
    "data set",
    "return of its episodes",
    "updates",
    "seeds",
    "last policy, +- std over seeds",
    "mean of all policies",
    "best of 5 evaluated",
    "best of all",
    "score of the last, or success in %",
    "updates/s, all seeds",
    "wall",
    "processor",
)


def collect(run: Path) -> dict[str, Any]:
    """A run as one small object; `best` is what to expect of the best of n evaluated policies.

    Where the environment tells of success, the score is that of the last policy in percent, as in OGBench.
    """
    described = json.loads((run / "config.json").read_text())
    final = json.loads((run / "summary.json").read_text())["final"]
    best = statistics.expected_best(records.read(run, "evaluations"))
    score = final["score"] if final["success"] is None else 100 * final["success"]
    kept = {"data": described["data"], "dataset": described["dataset"], "best": best, "score": score}
    if described["then_online"]:
        commands = [line["command"] for line in described.get("resumed", [])]
        kept |= {"then_online": described["then_online"], "resumed": commands}
    return results_online.collect(run) | kept


def join(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs that differ by their seeds alone as one, whose times are those of one after the other."""
    first, learners = parts[0], [len(part["seeds"]) for part in parts]
    for name in ("agent", "env", "data", "config", "steps_evaluated", "processor", "git_revision"):
        if any(part[name] != first[name] for part in parts):
            raise ValueError(f"not by their seeds alone, the runs of {first['agent']} differ by their '{name}'.")
    return first | {
        **{
            name: [x for part in parts for x in part[name]] for name in ("seeds", "returns", "success") if name in first
        },
        "command": [part["command"] for part in parts],
        "best": {n: float(np.average([part["best"][n] for part in parts], weights=learners)) for n in first["best"]},
        "score": float(np.average([part["score"] for part in parts], weights=learners)),
        "steps_per_second": float(np.average([part["steps_per_second"] for part in parts], weights=learners)),
        **{name: sum(part[name] for part in parts) for name in ("wall_seconds", "compile_seconds")},
    }


def row(run: dict[str, Any]) -> str:
    """One line of the table."""
    last = np.array(run["returns"])[:, -1]
    best = {int(n): value for n, value in run["best"].items()}
    mean = run["dataset"]["mean_return"]
    cells = [", ".join([run["agent"], *results_online.changes(run)]), datasets.short(run["data"])]
    online = run.get("then_online", 0)
    updates = f"{run['reached'] - online:,}" + (f" + {online:,} online" if online else "")
    cells += ["-" if mean is None else f"{mean:,.0f}", updates, str(len(last))]
    cells += [f"{last.mean():,.0f} +- {last.std(ddof=1):,.0f}" if len(last) > 1 else f"{last.mean():,.0f}"]
    cells += [f"{best[n]:,.0f}" if n in best else "-" for n in (1, 5, max(best))]
    cells += ["-" if run["score"] is None else f"{run['score']:.1f}"]
    cells += [f"{run['steps_per_second']:,.0f}", f"{run['wall_seconds']:,.0f} s", run["processor"]]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write results/offline/*.json and the table in results/README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in parser.parse_args().runs:
        found = [path] if (path / "config.json").exists() else sorted(x.parent for x in path.glob("*/config.json"))
        if not found:
            parser.error(f"'{path}' is not a run and holds none.")
        parts = [collect(run) for run in found]
        kept = join(parts) if parts[1:] else parts[0]
        (FOLDER / f"{path.name}.json").write_text(json.dumps(kept) + "\n")
    collected = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    rows = [row(run) for run in sorted(collected, key=lambda run: (run["data"], run["agent"]))]
    table = "\n".join([f"| {' | '.join(COLUMNS)} |", len(COLUMNS) * "|---" + "|", *rows])
    results_online.show("offline", table)


if __name__ == "__main__":
    main()
