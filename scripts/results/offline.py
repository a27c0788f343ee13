"""Collect runs from data sets into results/offline/,
and write the tables of its README.md and generative.md.

  # The tables, from the files in results/offline/:
  python scripts/results/offline.py
  # The same, after runs are added to one table:
  python scripts/results/offline.py --table pendulum runs/results/*-pendulum-*

Each folder of results/offline/ belongs to one table, and all runs of a table have one protocol, but
for those of `settings`. A run is kept under the name of its folder; files that are there already
stay. Learners that were trained one by one, by --seed in place of --seeds, are runs in one folder
and are kept as one.

pendulum: two public files (results/offline/README.md names their sources), for AGENT in bc, td3_bc,
iql and riql and FILE in tianshou and sb:

  rljax data convert sb_expert_pendulum.npz pendulum-sb.npz --action-bounds -2 2
  cp tianshou_expert_SAC_Pendulum.npz pendulum-tianshou.npz
  rljax train AGENT --data pendulum-FILE.npz --env Pendulum-v1 --steps 10000 --seeds 3 \
      --eval-every 1000 --eval-episodes 20 --out runs/results/AGENT-pendulum-FILE

neorl2: NeoRL-2's training file of SafetyHalfCheetah, for AGENT in bc, iql and td3_bc. The run of
td3_bc that ends in -paper also has its paper's settings, --config.value-weight 2.5
--config.target-noise 0.2:

  rljax train AGENT --data neorl2/SafetyHalfCheetah-v0 --steps 50000 --seeds 3 --eval-every 5000 \
      --eval-episodes 10 --out runs/results/AGENT-neorl2-SafetyHalfCheetah

locomotion_50k: six sets by D4RL's recipe, recorded from our own runs. HalfCheetah-v5's come from 4
seeds of SAC after 50,000 steps:

  rljax train sac --env HalfCheetah-v5 --steps 50000 --seeds 4 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.temperature-lr 1e-3 --config.warmup-steps 5000 \
      --config.initialisation lecun_uniform --out medium
  rljax data record medium sets/HalfCheetah-medium.hdf5 --from exploring --steps 200000 --learner 0
  rljax data record medium sets/HalfCheetah-replay-LEARNER.hdf5 --from replay --learner LEARNER
  rljax data join sets/HalfCheetah-medium-replay.hdf5 sets/HalfCheetah-replay-*.hdf5
  rljax data record runs/results/sac-HalfCheetah-v5-crossq sets/HalfCheetah-expert.hdf5 \
      --from exploring --steps 200000 --learner 2
  rljax data join sets/HalfCheetah-medium-expert.hdf5 sets/HalfCheetah-medium.hdf5 \
      sets/HalfCheetah-expert.hdf5

Hopper-v5's come from 2 seeds of SAC with its defaults after 150,000 steps (medium: learner 1), and
its expert is learner 2 of runs/results/dsact-Hopper-v5. The experts are runs of
scripts/results/online.py. For AGENT in bc, iql, td3_bc and riql and each SET

  rljax train AGENT --data sets/SET.hdf5 --steps 50000 --seeds 3 --eval-every 5000 \
      --eval-episodes 10 --out runs/results/AGENT-ENV-v5-KIND

replay_50k: the same command for bc, td3_bc, iql, cql and dql on another recording of
HalfCheetah-medium-replay. cql has --config.num-actions 4 --config.hidden 256 256
--config.critic-hidden 256 256.

locomotion_20k: the medium and medium-replay sets of both tasks, recorded on another processor, with
--steps 20000 --eval-every 4000 in place of the above, for bc, td3_bc, iql, fql, dql
(medium sets only) and ofql. fql has --config.hidden 256 256 256, and --seeds 1 on all sets but
Hopper-medium-replay.

settings: on the recordings of locomotion_20k, with its command.

  fql-*-weight-10        --config.distillation-weight 10
  fql-*-raw-values       the same and --config.no-normalise-value
  dql-*-imitation        --config.value-weight 0 --seeds 1
  ofql-*-raw-observations --config.no-normalise-observations --seeds 1
  ofql-*-raw-rewards     --config.reward-transform none --seeds 1
  ofql-*-plain           both and --config.no-average-acts, --seeds 1 but for the recording a828b144

The hash is the beginning of the SHA-256 of another recording of HalfCheetah-medium.

million: the recording of scripts/checks/compare_returns.py, for AGENT in bc, td3_bc and iql:

  rljax train AGENT --data HalfCheetah-medium.hdf5 --steps 1000000 --seeds 3 --eval-every 100000 \
      --eval-episodes 10 --out runs/results/AGENT-million

ogbench: play data, generated here, for AGENT in bc, iql and fql, with networks of 3 x 256 in place
of 4 x 512:

  rljax data record ogbench/cube-single-play-v0 --envs 1
  rljax train AGENT --data ogbench/cube-single-play-singletask-task2-v0 --steps 50000 --seeds 3 \
      --config.hidden 256 256 256 --eval-every 10000 --eval-episodes 50 \
      --out runs/results/AGENT-cube-single-play-task2

fql was trained one seed at a time with --steps 100000, and stopped after 50,000. The run that ends
in -online has --steps 31000 --then-online 29000.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rljax import datasets
from rljax.analysis import published
from rljax.datasets.publishers import d4rl, neorl2
from rljax.runs import records
from rljax.runs.statistics import summaries
from scripts.results import shared

FOLDER = shared.RESULTS / "offline"
Run = dict[str, Any]
PAGES = {
    "pendulum": "offline",
    "neorl2": "offline",
    "locomotion_50k": "offline",
    "replay_50k": "offline",
    "million": "offline",
    "locomotion_20k": "offline/generative",
    "settings": "offline/generative",
    "ogbench": "offline/generative",
}
NAMES = {"bc": "BC", "td3_bc": "TD3+BC", "iql": "IQL", "riql": "RIQL", "cql": "CQL"}
NAMES |= {"fql": "FQL", "dql": "Diffusion-QL", "ofql": "OFQL"}
CORL = "corl-team/CORL"


def collect(run: Path) -> Run:
    """A run as one small object; `best` is what to expect of the best of n evaluated policies.

    Where the environment tells of success, the score is that of the last policy in percent, as in
    OGBench.
    """
    described = json.loads((run / "config.json").read_text())
    final = json.loads((run / "summary.json").read_text())["final"]
    best = summaries.expected_best(records.read(run, "evaluations"))
    score = final["score"] if final["success"] is None else 100 * final["success"]
    record = {
        "data": described["data"],
        "dataset": described["dataset"],
        "best": best,
        "score": score,
    }
    if described["then_online"]:
        commands = [line["command"] for line in described.get("resumed", [])]
        record |= {"then_online": described["then_online"], "resumed": commands}
    return shared.collect(run) | record


def join(parts: list[Run]) -> Run:
    """Runs that differ by their seeds alone as one,
    whose times are those of one after the other.
    """
    first, learners = parts[0], [len(part["seeds"]) for part in parts]
    for name in ("agent", "env", "data", "config", "steps_evaluated", "processor", "git_revision"):
        if any(part[name] != first[name] for part in parts):
            raise ValueError(
                f"the runs of {first['agent']} differ by their '{name}', and not by their "
                "seeds alone."
            )
    return first | {
        **{
            name: [x for part in parts for x in part[name]]
            for name in ("seeds", "returns", "success")
            if name in first
        },
        "command": [part["command"] for part in parts],
        "best": {
            n: float(np.average([part["best"][n] for part in parts], weights=learners))
            for n in first["best"]
        },
        "score": float(np.average([part["score"] for part in parts], weights=learners)),
        "steps_per_second": float(
            np.average([part["steps_per_second"] for part in parts], weights=learners)
        ),
        **{name: sum(part[name] for part in parts) for name in ("wall_seconds", "compile_seconds")},
    }


def scored(run: Run, returns: Any) -> Any:
    """Normalised scores of returns: 0 for D4RL's random policy and 100 for its expert,
    or NeoRL-2's two.
    """
    family, _, task = run["data"].partition("/")
    reference = (
        neorl2.TASKS[task.removesuffix("-v0")][0]
        if family == "neorl2"
        else d4rl.reference(run["env"])
    )
    return datasets.score(returns, reference)


def last(run: Run) -> np.ndarray:
    """The score of each learner's last policy [learner]."""
    return scored(run, np.array(run["returns"])[:, -1])


def minutes(run: Run) -> str:
    """Wall time of one seed."""
    return f"{run['wall_seconds'] / 60 / len(run['seeds']):,.1f}"


def named(run: Run) -> str:
    """The agent, and the settings in which it departs from its presets."""
    settings = [
        change.replace("_", " ")
        for change in shared.changes(run)
        if not change.startswith("hidden")
    ]
    return ", ".join([NAMES[run["agent"]], *settings])


def column(run: Run) -> str:
    """The column of a run in tables of locomotion: the agent, and whether IQL has its authors'
    scaling of rewards.
    """
    raw = run["agent"] == "iql" and run["config"]["reward_transform"] == "none"
    return NAMES[run["agent"]] + (", raw rewards" if raw else "")


def columns_of(runs: list[Run]) -> list[str]:
    """The columns of a table, in the order of `NAMES`."""
    ordered = sorted(runs, key=lambda run: list(NAMES).index(run["agent"]))
    return sorted({column(run) for run in runs}, key=[column(run) for run in ordered].index)


def grid(runs: list[Run], label: str, cell: Callable[[Run], str]) -> list[str]:
    """A table with a row for each data set and a column for each agent."""
    columns = columns_of(runs)
    rows = []
    for name in dict.fromkeys(run["data"] for run in runs):
        cells = {column(run): cell(run) for run in runs if run["data"] == name}
        any_run = next(run for run in runs if run["data"] == name)
        rows.append([task(name), score_of_data(any_run), *(cells.get(x, "") for x in columns)])
    return shared.table([label, "data", *columns], rows)


def task(data: str) -> str:
    """`HalfCheetah medium-replay` of its file's path."""
    return datasets.short(data).replace("-", " ", 1)


def recordings(runs: list[Run]) -> list[str]:
    """The data sets of a table: which file each is, and what it holds."""
    rows = []
    for name in dict.fromkeys(run["data"] for run in runs):
        run = next(run for run in runs if run["data"] == name)
        dataset = run["dataset"]
        mean, digest = dataset["mean_return"], dataset["files"][0]["sha256"][:8]
        rows.append(
            [task(name), digest, f"{dataset['transitions']:,}", f"{mean:,.0f}", score_of_data(run)]
        )
    return shared.table(["data set", "SHA-256", "transitions", "mean return", "score"], rows)


def locomotion(runs: list[Run]) -> list[str]:
    """Recordings, scores of the last policies, of the best of five evaluated ones,
    and the time of each agent.
    """
    lines = [*recordings(runs), ""]
    lines += [*grid(runs, "last policy", lambda run: shared.over_seeds(last(run), 1)), ""]
    best = "best of 5 evaluated policies, mean over seeds"
    lines += [*grid(runs, best, lambda run: f"{scored(run, run['best']['5']):.1f}"), ""]
    columns = columns_of(runs)
    times_of = {
        name: [float(minutes(run).replace(",", "")) for run in runs if column(run) == name]
        for name in columns
    }
    times = ["minutes for one seed", *(_range(times_of[name]) for name in columns)]
    return lines + shared.table(["wall time", *columns], [times])


def score_of_data(run: Run) -> str:
    """The score of the data's own episodes."""
    return f"{scored(run, run['dataset']['mean_return']):.1f}"


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.1f}" if low == high else f"{low:,.1f} to {high:,.1f}"


def six_sets(runs: list[Run]) -> list[str]:
    """As `locomotion`, and then CORL's scores."""
    lines = [*locomotion(runs), "", "Published, not ours: CORL on D4RL's own sets, 1M updates.", ""]
    rows = []
    for name in dict.fromkeys(run["data"] for run in runs):
        cells = [task(name)]
        for agent in ("bc", "td3_bc", "iql"):
            reference = f"{datasets.short(name).lower()}-v2"
            points = published.points(agent, reference, "score", 1_000_000)
            cells.append(
                next(f"{point.mean:.1f}" for point in points if point.source.startswith(CORL))
            )
        rows.append(cells)
    return lines + shared.table(["published", "BC", "TD3+BC", "IQL"], rows)


def pendulum(runs: list[Run]) -> list[str]:
    """Returns of each agent on each file."""
    rows = []
    for run in runs:
        best = {int(n): f"{value:,.0f}" for n, value in run["best"].items()}
        cells = [datasets.short(run["data"]), f"{run['dataset']['mean_return']:,.0f}", named(run)]
        cells += [
            shared.over_seeds(np.array(run["returns"])[:, -1]),
            best[1],
            best[5],
            best[max(best)],
        ]
        rows.append([*cells, f"{run['wall_seconds']:,.0f} s"])
    header = [
        "data set",
        "its mean return",
        "agent",
        "last policy",
        "mean of all policies",
        "best of 5 evaluated",
    ]
    return shared.table([*header, "best of all 10", "wall, 3 seeds"], rows)


def safety(runs: list[Run]) -> list[str]:
    """Scores beside the benchmark's."""
    first = runs[0]
    rows = [["the data", f"{scored(first, first['dataset']['mean_return']):.2f}", "73.56", ""]]
    for run in runs:
        points = published.points(run["agent"], "SafetyHalfCheetah-v0", "score", 0)
        usual = not shared.changes(run)
        theirs = f"{points[0].mean:.2f} +- {points[0].std:.2f}" if points and usual else "-"
        rows.append(
            [named(run), shared.over_seeds(last(run), 1), theirs, f"{run['wall_seconds']:,.0f} s"]
        )
    return shared.table(["", "ours, last policy", "published", "wall, 3 seeds"], rows)


def cube(runs: list[Run]) -> list[str]:
    """Success after each 10,000 updates, in percent, with each seed's at the end."""
    steps = (10_000, 20_000, 30_000, 40_000, 50_000)
    theirs = {"bc": "3", "iql": "85", "fql": "97"}
    rows = []
    for run in runs:
        if "then_online" not in run:
            success = 100 * np.array(run["success"])
            at = dict(zip(run["steps_evaluated"], success.T, strict=True))
            cells = [f"{at[step].mean():.0f}" if step in at else "" for step in steps]
            cells[len(at) - 1] += f" ({', '.join(f'{value:.0f}' for value in success[:, -1])})"
            rows.append(
                [
                    NAMES[run["agent"]],
                    *cells,
                    theirs[run["agent"]],
                    f"{run['wall_seconds'] / 60:,.0f} min",
                ]
            )
    header = [
        "agent",
        *(f"{step:,} updates" for step in steps),
        "published, 1,000,000",
        "wall, 3 seeds",
    ]
    lines = [*shared.table(header, rows), ""]
    online = next(run for run in runs if "then_online" in run)
    offline = online["reached"] - online["then_online"]
    rows = [
        [
            f"{step - offline:,}",
            f"{100 * np.mean(success):.0f}",
            ", ".join(f"{100 * value:.0f}" for value in success),
        ]
        for step, success in zip(
            online["steps_evaluated"], np.array(online["success"]).T, strict=True
        )
        if step > offline
    ]
    header = ["FQL, steps online after 31,000 updates", "success, %", "seeds"]
    return lines + shared.table(header, rows)


def million(runs: list[Run]) -> list[str]:
    """Scores of single policies on the way to a million updates,
    and over all policies of the second half.
    """
    shown = range(100_000, 1_000_001, 300_000)
    rows = []
    for run in runs:
        scores = scored(run, np.array(run["returns"]))  # [learner, evaluation]
        steps = np.array(run["steps_evaluated"])
        at = [
            shared.over_seeds(scores[:, steps == step][:, 0], 1) if step in steps else ""
            for step in shown
        ]
        late = scores[:, steps >= 500_000]
        cells = [
            NAMES[run["agent"]],
            f"{steps[-1]:,}",
            *at,
            shared.over_seeds(late.mean(axis=1), 1),
            f"{late.min():.1f}",
        ]
        rows.append([*cells, f"{run['wall_seconds'] / 60:.1f} min", shared.hardware(run)])
    header = [
        "agent",
        "updates",
        *(f"after {step:,}" for step in shown),
        "mean from 500,000 on",
        "lowest policy there",
    ]
    return [*recordings(runs[:1]), "", *shared.table([*header, "wall, 3 seeds", "hardware"], rows)]


def ablations(runs: list[Run]) -> list[str]:
    """Scores with single settings changed, each after a fifth of the updates and at the end."""
    rows = []
    for run in sorted(
        runs, key=lambda run: (run["agent"], run["data"], run["dataset"]["mean_return"], named(run))
    ):
        curve = scored(run, np.array(run["returns"]).mean(axis=0))
        shown = [steps for steps in run["steps_evaluated"] if steps % 4000 == 0]
        at = dict(zip(run["steps_evaluated"], curve, strict=True))
        digest = run["dataset"]["files"][0]["sha256"][:8]
        cells = [
            named(run),
            f"{task(run['data'])}, {digest}",
            ", ".join(f"{at[step]:.1f}" for step in shown),
        ]
        rows.append([*cells, shared.over_seeds(last(run), 1)])
    header = [
        "agent, with what is not its preset",
        "data set",
        "after each 4,000 updates",
        "last policy",
    ]
    return shared.table(header, rows)


TABLES = {
    "pendulum": pendulum,
    "neorl2": safety,
    "locomotion_50k": six_sets,
    "replay_50k": locomotion,
    "million": million,
    "locomotion_20k": locomotion,
    "ogbench": cube,
}


def runs_of(name: str) -> list[Run]:
    """The runs of a table, by data set and agent."""
    runs = [json.loads(path.read_text()) for path in sorted((FOLDER / name).glob("*.json"))]
    return sorted(
        runs, key=lambda run: (datasets.short(run["data"]), list(NAMES).index(run["agent"]))
    )


def tables() -> dict[tuple[str, str], str]:
    """All tables in Markdown, by page and name."""
    made = {(PAGES[name], name): "\n".join(make(runs_of(name))) for name, make in TABLES.items()}
    usual = {
        (run["agent"], run["dataset"]["files"][0]["sha256"]): run
        for run in runs_of("locomotion_20k")
    }
    changed = runs_of("settings")
    keys = {(run["agent"], run["dataset"]["files"][0]["sha256"]) for run in changed} & usual.keys()
    made["offline/generative", "settings"] = "\n".join(
        ablations(changed + [usual[key] for key in sorted(keys)])
    )
    return made


def main() -> None:
    """Keep the runs that are given, and write all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", choices=sorted(PAGES), help="the table that the runs belong to")
    parser.add_argument("runs", nargs="*", type=Path)
    options = parser.parse_args()
    if options.runs and options.table is None:
        parser.error("runs belong to a table: name it by --table.")
    for path in options.runs:
        folders = (
            [path]
            if (path / "config.json").exists()
            else sorted(x.parent for x in path.glob("*/config.json"))
        )
        if not folders:
            parser.error(f"'{path}' is not a run and holds none.")
        parts = [collect(run) for run in folders]
        (FOLDER / options.table).mkdir(parents=True, exist_ok=True)
        run = join(parts) if parts[1:] else parts[0]
        (FOLDER / options.table / f"{path.name}.json").write_text(json.dumps(run) + "\n")
    for (page, name), table in tables().items():
        shared.show(page, name, table)


if __name__ == "__main__":
    main()
