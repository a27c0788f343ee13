"""Our agents beside other people's unmodified files on one recorded data set:
the same settings, updates and seeds.

The data set is what a policy of SAC does while exploring. Its networks are small, so that it takes
minutes:

  rljax train sac --env HalfCheetah-v5 --steps 60000 --config.hidden 64 64 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.temperature-lr 1e-3 --config.warmup-steps 5000 \
      --config.initialisation lecun_uniform --eval-every 20000 --out runs/recorded
  rljax data record runs/recorded HalfCheetah-medium.hdf5 --from exploring --steps 50000

The folder of peers is that of scripts/checks/compare_updates.py, and there is a Python for them.
That of rebrac.py is another one, because the file uses JAX of its time: see
scripts/checks/run_authors_file.py.

  # All comparisons, or those that are named:
  taskset -c 1 python scripts/checks/compare_returns.py --data HalfCheetah-medium.hdf5 \
      --peers peers --peer peer/bin/python --jax-peer jax-peer/bin/python

  # A task whose episodes end early, with data made in the same way:
  taskset -c 1 python scripts/checks/compare_returns.py td3_bc iql --data Hopper-medium.hdf5 \
      --name hopper-medium-v2 --seeds 5 --peers peers --peer peer/bin/python \
      --runs runs/references_hopper --output results/checks/references/hopper

All seeds of ours are learners of one program. Theirs has a process for each seed. Both play 10
episodes after half of the updates and at the end. Between the first of their seeds ours trains
alone, for the speed. Complete runs are not repeated. `--table` writes the table and the figure from
the files that are there, and runs nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.analysis.comparison import mean_difference, mean_interval
from rljax.runs import records, run
from rljax.system.hardware import provenance
from scripts.checks.authors.pairs import (
    CALQL,
    CQL,
    CQL_ARGUMENTS,
    IQL,
    PAIRS,
    REBRAC,
    REBRAC_ARGUMENTS,
)
from scripts.studies import shared

SOURCES = {
    "CORL": "tinkoff-ai/CORL@6afec90",
    "RIQL": "YangRui2015/RIQL@cc07d81",
}
EPISODES = 10
SPEED_RUNS = 3  # seeds after which ours trains alone
SPEED_STEPS = 600  # updates of such a run
STEPS = (
    "-- --device cpu --env {name} --buffer_size 100000 "
    "--max_timesteps {updates} --eval_freq {half} --n_episodes 10 --seed {seed}"
)
UNIFORM = {"HalfCheetah-v5": -280.0, "Hopper-v5": 20.0}  # returns of uniform actions
EPOCHS = "-- --num_epochs 2 --num_updates_on_epoch {half} --train_seed {seed} --eval_seed {seed}"


class Comparison(NamedTuple):
    """One of our agents and one of the other files, with the same settings."""

    label: str
    agent: str
    file: str  # in the folder of peers
    updates: int
    seeds: int
    config: Mapping[str, Any]  # ours, where it differs from the agent's defaults
    arguments: str  # of scripts/checks/run_authors_file.py: the file's own ones follow `--`


COMPARISONS = {
    "td3_bc": Comparison(
        "TD3+BC", "td3_bc", "CORL/algorithms/offline/td3_bc.py", 1_500, 10, {}, STEPS
    ),
    "iql": Comparison("IQL", "iql", "CORL/algorithms/offline/iql.py", 1_500, 10, IQL, STEPS),
    "bc": Comparison(
        "BC",
        "bc",
        "CORL/algorithms/offline/any_percent_bc.py",
        1_500,
        10,
        {},
        f"{STEPS} --frac 1.0",
    ),
    "rebrac": Comparison(
        "ReBRAC",
        "rebrac",
        "CORL/algorithms/offline/rebrac.py",
        4_000,
        5,
        REBRAC,
        f"{EPOCHS} {REBRAC_ARGUMENTS}",
    ),
    "cql": Comparison(
        "CQL", "cql", "CORL/algorithms/offline/cql.py", 1_500, 10, CQL, f"{STEPS} {CQL_ARGUMENTS}"
    ),
    "calql": Comparison(
        "Cal-QL",
        "calql",
        "CORL/algorithms/finetune/cal_ql.py",
        1_500,
        5,
        CALQL,
        f"{STEPS} {CQL_ARGUMENTS}".replace(
            "--max_timesteps", "--online_iterations 0 --offline_iterations"
        ),
    ),
    "riql": Comparison(
        "RIQL",
        "riql",
        "RIQL/RIQL.py",
        1_500,
        10,
        {},
        "--set train_seed={seed} eval_seed={seed} num_epochs=2 num_updates_on_epoch={half} "
        "max_timesteps={updates} eval_every=1 device=cpu buffer_size=100000 "
        "env_name={name}",
    ),
}


def ours(name: str, options: argparse.Namespace) -> Path:
    """The folder of our complete run: all seeds are learners of one program."""
    each, out = COMPARISONS[name], options.runs / name
    begin = functools.partial(
        run.train,
        each.agent,
        data=options.data,
        steps=each.updates,
        seeds=options.seeds or each.seeds,
        out=out,
        config=each.config,
        eval_every=each.updates // 2,
        eval_episodes=EPISODES,
        checkpoint_every=each.updates // 2,
        quiet=False,
    )
    return shared.trained(out, each.updates, begin, options.data, each.config)


def alone(name: str, seed: int, options: argparse.Namespace) -> float:
    """Updates per second of one of our learners in a program of its own,
    without compilation and evaluation.
    """
    each, out = COMPARISONS[name], options.runs / f"{name}-alone-{seed}"
    steps = min(SPEED_STEPS, each.updates)
    begin = functools.partial(
        run.train,
        each.agent,
        data=options.data,
        steps=steps,
        seeds=[seed],
        out=out,
        config=each.config,
        eval_every=steps,
        eval_episodes=1,
        log_every=steps // 4,
        quiet=False,
    )
    shared.trained(out, steps, begin, options.data, each.config)
    return json.loads((out / "summary.json").read_text())["steps_per_second"]


def theirs(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of the other file came to, which is kept as a file."""
    each = COMPARISONS[name]
    out = options.runs / f"{name}-theirs-{seed}.json"
    if not finished(out):
        python = options.jax_peer if PAIRS[name].uses_jax else options.peer
        arguments = each.arguments.format(
            updates=each.updates, half=each.updates // 2, seed=seed, name=options.name
        ).split()
        script = Path(__file__).with_name("run_authors_file.py")
        command = [
            python,
            script,
            options.data,
            out,
            options.peers / each.file,
            "--source",
            source(each),
            *arguments,
        ]
        with out.with_suffix(".log").open("w") as log:
            process = subprocess.run([str(x) for x in command], stdout=log, stderr=log, check=False)
        if process.returncode:
            out.unlink(missing_ok=True)
            raise SystemExit(f"{each.file} stopped: see '{log.name}'.")
    return json.loads(out.read_text())


def source(each: Comparison) -> str:
    """Where the other file is from."""
    return SOURCES[each.file.split("/")[0]]


def finished(out: Path) -> bool:
    """Whether a process of the other file has played all its episodes.

    One that was interrupted has fewer.
    """
    evaluations = json.loads(out.read_text())["evaluations"] if out.exists() else []
    return [len(each["returns"]) for each in evaluations] == [EPISODES] * 2


def compared(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides of a comparison, with the intervals of their differences."""
    each = COMPARISONS[name]
    parts, alone_rates = [], []
    seeds = range(options.seeds or each.seeds)
    for seed in seeds:
        parts.append(theirs(name, seed, options))
        if seed < SPEED_RUNS:
            alone_rates.append(alone(name, seed, options))
    folder = ours(name, options)
    described = json.loads((folder / "config.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    lines = records.read(folder, "evaluations")
    half, end = each.updates // 2, each.updates
    returns = {
        "ours": [
            means(line["returns"] for line in lines if line["step"] == step) for step in (half, end)
        ],
        "theirs": [means(part["evaluations"][i]["returns"] for part in parts) for i in (0, 1)],
    }
    differences = [
        mean_difference(mine, other)
        for mine, other in zip(returns["ours"], returns["theirs"], strict=True)
    ]
    return {
        "label": each.label,
        "env": described["env"],
        "data": described["dataset"],
        "updates": each.updates,
        "evaluated": [half, end],
        "episodes": EPISODES,
        "seeds": list(seeds),
        "config": described["config"],
        "file": each.file,
        "source": source(each),
        "arguments": each.arguments.format(updates=end, half=half, seed="SEED", name=options.name),
        "returns": returns,
        "differences": differences,
        "speed": {
            "ours, one learner": [round(rate, 1) for rate in alone_rates],
            "ours, all learners": round(summary["steps_per_second"], 1),
            "theirs": [round(rate(part, half), 1) for part in parts],
        },
        **provenance(),
        "peer_versions": parts[0]["versions"],
    }


def means(returns: Any) -> list[float]:
    """The mean return of each seed's episodes."""
    return [round(float(np.mean(x)), 2) for x in returns]


def rate(part: Mapping[str, Any], updates: int) -> float:
    """Updates per second of their loop, between the end of its first evaluation and the beginning
    of its last one.
    """
    first, *_, last = part["evaluations"]
    return updates / (last["began"] - first["ended"])


def learnt(comparisons: Mapping[str, Any]) -> list[Any]:
    """The comparisons in which at least one side is better than uniform actions."""
    return [
        each
        for each in comparisons.values()
        if any(
            np.mean(each["returns"][whose][1]) > UNIFORM.get(each["env"], 0.0)
            for whose in ("ours", "theirs")
        )
    ]


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown, without rows in which both sides are worse than uniform actions."""
    header = ["agent", "updates", "seeds", "ours", "theirs", "difference", "half-way, difference"]
    lines = [
        f"| {' | '.join([*header, 'updates/s, ours', 'theirs', 'ratio'])} |",
        "|---" * (len(header) + 3) + "|",
    ]
    for each in learnt(study["comparisons"]):
        cells = [each["label"], f"{each['updates']:,}", str(len(each["seeds"]))]
        cells += [
            shared.with_interval(mean_interval(each["returns"][whose][1]))
            for whose in ("ours", "theirs")
        ]
        cells += [
            shared.with_interval(difference, sign="+")
            for difference in reversed(each["differences"])
        ]
        mine, other = (
            float(np.median(each["speed"][name])) for name in ("ours, one learner", "theirs")
        )
        cells += [f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw a panel for each agent: a dot for each seed,
    and the interval of the difference on a dashed line at 0.
    """
    from matplotlib.figure import Figure

    comparisons = learnt(study["comparisons"])
    number = len(comparisons)
    columns = min(number, 3)
    rows = -(-number // columns)
    figure = Figure(figsize=(3.1 * columns, 3.1 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, each in zip(panels, comparisons, strict=False):
        for place, (whose, colour) in enumerate({"ours": "#0072B2", "theirs": "#D55E00"}.items()):
            values = each["returns"][whose][1]
            spread = np.linspace(-0.15, 0.15, len(values))
            axes.plot(place + spread, values, "o", color=colour, markersize=4, alpha=0.7)
            axes.plot(
                [place - 0.25, place + 0.25], [np.mean(values)] * 2, color=colour, linewidth=2
            )
        zero, (value, *bounds) = np.mean(each["returns"]["theirs"][1]), each["differences"][1]
        axes.axhline(zero, color="k", linewidth=0.8, linestyle="--")
        axes.errorbar(
            2,
            zero + value,
            [[abs(bound - value)] for bound in bounds] or None,
            color="k",
            marker="D",
            markersize=4,
            capsize=3,
        )
        axes.set_xticks([0, 1, 2], ["ours", "theirs", "difference"])
        axes.set(xlim=(-0.5, 2.5), title=f"{each['label']}, {each['updates']:,} updates")
    for axes in panels[number:]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("return of the last policy")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train what is missing, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", choices=[*COMPARISONS, []], help="comparisons; default: all"
    )
    parser.add_argument("--data", help="the recorded file")
    parser.add_argument(
        "--name", default="halfcheetah-medium-v2", help="what the other files call the data set"
    )
    parser.add_argument("--seeds", type=int, help="of each code; default: as in the table")
    parser.add_argument("--peers", type=Path, help="the folder with the other projects")
    parser.add_argument(
        "--peer", type=Path, default=sys.executable, help="the Python for their files"
    )
    parser.add_argument(
        "--jax-peer", type=Path, default=sys.executable, help="the Python for rebrac.py"
    )
    parser.add_argument("--table", action="store_true", help="only write the table and the figure")
    parser.add_argument("--runs", type=Path, default=Path("runs/references"))
    parser.add_argument("--output", type=Path, default=Path("results/checks/references"))
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in () if options.table else options.names or COMPARISONS:
        comparison = compared(name, options)
        (options.output / f"{name}.json").write_text(json.dumps(comparison, indent=1) + "\n")
    paths = {name: options.output / f"{name}.json" for name in COMPARISONS}
    study = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    (options.output / "table.md").write_text(table({"comparisons": study}))
    draw({"comparisons": study}, options.output / "returns.png")
    print(table({"comparisons": study}))


if __name__ == "__main__":
    main()
