"""Gain of more thinking steps with the same parameters, on problems of training and on longer ones.

Each task is trained with several torsos and otherwise the same settings: the interpolation
recurrent unit with T thinking steps, one training per T, and feed-forward networks, an MLP and a
ResNet. The policies are then evaluated on the training problems and on problems that need more
steps. Policies with thinking steps are also evaluated with other T than in training. All seeds of a
torso are learners of one program.

  python scripts/studies/compute.py --task LightsOut-3x3 --output results/studies/compute
  python scripts/studies/compute.py --task BoxPick-6x6 --thinking 1 3 5 --seeds 3
  python scripts/studies/compute.py --task cube-single --data ogbench/cube-single-noisy-v0

Complete runs are not repeated, and interrupted runs continue. `--paper` uses the preset's settings,
which are the paper's and need an accelerator. The default settings are for a laptop.

Source of the question and of the torsos' sizes: Ghugare et al., On (the Role of Iterative)
Computation and Reinforcement Learning, arXiv:2602.05999.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import comparison
from rljax.runs import run
from rljax.runs.policies import evaluate
from rljax.runs.statistics import estimators
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

THINKING = (1, 2, 3, 5, 8)
ACTING = (1, 2, 3, 5, 8, 16)
MOST = 0.9  # success from which a task counts as learnt
OWN = "trained and acting"  # with the same T
COLOURS = {"mlp": "#D55E00", "resnet": "#009E73"}


OF_VALUES: dict[str, dict[str, Any]] = {  # torsos of agents that learn action values
    "iru": {"torso": "iru", "hidden": (256,)},
    "mlp": {"torso": "mlp", "hidden": (512,) * 3},
    "resnet": {"torso": "resnet", "hidden": (256,) * 10},
}


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, with its environments and settings."""

    agent: str
    train: str | None  # environment; None: that of the data set
    test: str | None  # environment with longer problems, or None
    steps: int
    torsos: Mapping[str, Mapping[str, Any]]  # settings of each torso, without `compute`
    small: Mapping[str, Any]  # settings for a laptop
    # settings of all torsos, also with --paper
    same: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # for a laptop, if the paper's are too large for it
    small_torsos: Mapping[str, Mapping[str, Any]] | None = None


def lights_out(size: str, steps: int) -> Task:
    """PPO with one torso for actor and critic.

    The MLP is the paper's; the ResNet has 5 times the unit's parameters.
    """
    return Task(
        "ppo",
        f"rljax/LightsOut-{size}",
        f"rljax/LightsOut-{size}-test",
        steps,
        {
            "iru": {"torso": "iru", "actor_hidden": (64,)},
            "mlp": {"torso": "mlp", "actor_hidden": (256,) * 4},
            "resnet": {"torso": "resnet", "actor_hidden": (64,) * 10},
        },
        {
            "num_envs": 512,
            "num_steps": 32,
            "batch_size": 1024,
            "num_epochs": 4,
            "learning_rate": 1e-3,
        },
        {"shared": True, "initialisation": "lecun_uniform"},
    )


def box_pick(size: str, steps: int) -> Task:
    """DQN with goals in hindsight."""
    return Task(
        "dqn",
        f"rljax/BoxPick-{size}",
        f"rljax/BoxPick-{size}-test",
        steps,
        OF_VALUES,
        {
            "num_envs": 32,
            "num_steps": 20,
            "num_updates": 40,
            "batch_size": 256,
            "replay_size": 200_000,
            "learning_rate": 1e-3,
            "discount": 0.9,
            "target_rate": 0.02,
            "action_input": False,
            "normalise_observations": True,
        },
    )


def recorded(steps: int) -> Task:
    """GCIQL on OGBench's data, which `rljax data record` makes.

    On a laptop the torsos are half as wide.
    """
    return Task(
        "gciql",
        None,
        None,
        steps,
        OF_VALUES | {"resnet": {"torso": "resnet", "hidden": (256,) * 5}},
        {
            "batch_size": 256,
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "value_lr": 1e-3,
            "target_rate": 0.02,
        },
        small_torsos={
            "iru": {"torso": "iru", "hidden": (128,)},
            "mlp": {"torso": "mlp", "hidden": (256,) * 3},
            "resnet": {"torso": "resnet", "hidden": (128,) * 5},
        },
    )


TASKS = {
    "LightsOut-3x3": lights_out("3x3", 3_000_000),
    "LightsOut-4x4": lights_out("4x4", 6_000_000),
    "LightsOut-5x5": lights_out("5x5", 50_000_000),
    "BoxPick-4x4": box_pick("4x4", 500_000),
    "BoxPick-6x6": box_pick("6x6", 2_000_000),
    "cube-single": recorded(20_000),
    "scene": recorded(100_000),
    "puzzle-3x3": recorded(100_000),
}


def trained(task: Task, out: Path, torso: str, compute: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run with a learner per seed.

    The run is started or continued if necessary.
    """
    steps = options.steps or task.steps
    torsos = task.torsos if options.paper else task.small_torsos or task.torsos
    config = {
        **({} if options.paper else task.small),
        **task.same,
        **torsos[torso],
        "compute": compute,
    }
    begin = functools.partial(
        run.train,
        task.agent,
        task.train,
        steps,
        data=options.data,
        seeds=options.seeds,
        config=config,
        out=out,
        eval_every=steps // 10,
        eval_episodes=options.episodes,
        log_every=max(1, steps // 50),
        checkpoint_every=steps // 10,
        quiet=False,
    )
    return shared.trained(out, steps, begin)


def success_of(
    task: Task, out: Path, compute: int | None, episodes: int, seed: int
) -> dict[str, Any]:
    """Success and return [learners] of a run's last policies on both kinds of problems,
    with T' = `compute`.
    """
    figures: dict[str, Any] = {}
    for split, env in (("train", task.train), ("test", task.test)):
        if split == "test" and env is None:
            continue
        config = None if compute is None else {"compute": compute}
        played = evaluate.evaluate_run(out, episodes=episodes, env=env, seed=seed, config=config)
        figures[split] = [float(np.mean(record["success"])) for record in played["episodes"]]
        figures[f"{split}_return"] = [
            float(np.mean(record["returns"])) for record in played["episodes"]
        ]
        figures["parameters"], figures["flops"] = played["parameters"], played["flops_per_action"]
    return figures


def studied(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate all torsos on one task."""
    task, folder = TASKS[name], options.runs / name
    plan = [("iru", compute) for compute in options.thinking] + [
        (torso, 1) for torso in options.baselines
    ]
    rows = []
    for torso, compute in plan:
        out = trained(
            task, folder / (f"iru-{compute}" if torso == "iru" else torso), torso, compute, options
        )
        acting = sorted({compute, *options.acting}) if torso == "iru" else [1]
        summary = json.loads((out / "summary.json").read_text())
        for steps in acting:
            row = {"torso": torso, "trained": compute, "acting": steps}
            row |= success_of(
                task, out, steps if torso == "iru" else None, options.judging, options.seed
            )
            if steps == compute:
                row["run"] = {
                    "wall_seconds": summary["wall_seconds"],
                    "steps": summary["steps"],
                    "curve": curve(out),
                }
            rows.append(row)
    return {
        "task": name,
        "command": options.command,
        "seeds": options.seeds,
        "episodes": options.judging,
        "rows": rows,
        "comparisons": compared(rows),
        "value_of_compute": value_of_compute(rows, hardest(rows)),
        "machine": provenance(),
    }


def curve(out: Path) -> dict[str, list[Any]]:
    """Success on the training problems while a run learns:
    `steps` [K] and `success` [learners, K].
    """
    success_by_step: dict[int, list[tuple[int, float]]] = {}
    for line in (out / "evaluations.jsonl").read_text().splitlines():
        record = json.loads(line)
        success_by_step.setdefault(record["step"], []).append(
            (record["learner"], float(np.mean(record["success"])))
        )
    table = [
        [success for _, success in sorted(success_by_step[step])]
        for step in sorted(success_by_step)
    ]
    return {"steps": sorted(success_by_step), "success": np.transpose(table).tolist()}


def reached(row: Mapping[str, Any]) -> str:
    """The mean number of steps until learners first reach `MOST`,
    and the number of learners that reach it.
    """
    steps, success = row["run"]["curve"]["steps"], np.array(row["run"]["curve"]["success"])
    first = [
        steps[int(np.argmax(learner >= MOST))] for learner in success if (learner >= MOST).any()
    ]
    return (
        f"{np.mean(first):,.0f} ({len(first)} of {len(success)})"
        if first
        else f"(0 of {len(success)})"
    )


def with_trained_steps(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows in which policies act with the T of their training."""
    return [row for row in rows if row["acting"] == row["trained"]]


def label(row: Mapping[str, Any]) -> str:
    """A torso's name, with its thinking steps if it has any."""
    return (
        f"IRU, T = {row['trained']}"
        if row["torso"] == "iru"
        else {"mlp": "MLP", "resnet": "ResNet"}[row["torso"]]
    )


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The probability that a run of one torso has more success on the longer problems than a run of
    another.
    """
    split = hardest(rows)
    scores = {label(row): np.array(row[split])[:, None] for row in with_trained_steps(rows)}
    units = [name for name in scores if name.startswith("IRU")]
    if not units or len(scores) == 1:
        return []
    pairs = [(units[-1], other) for other in scores if other != units[-1]]
    estimates = comparison.improvement(scores, pairs)
    return [
        {
            "better": pair[0],
            "than": pair[1],
            "P": float(x.value),
            "interval": bounds(x.low, x.high),
        }
        for pair, x in estimates.items()
    ]


def hardest(rows: Sequence[Mapping[str, Any]]) -> str:
    """The main split: the longer problems, if the task has any."""
    return "test" if "test" in rows[0] else "train"


def value_of_compute(rows: Sequence[Mapping[str, Any]], split: str) -> list[dict[str, Any]]:
    """The gain in return from each T to the next larger T, and from each T' to the next.

    Differences are between learners with the same seed. `each` is the difference per additional
    thinking step.
    """
    units = [row for row in rows if row["torso"] == "iru"]
    lines = {OWN: with_trained_steps(units)}
    for trained in sorted({row["trained"] for row in units}):
        lines[f"trained with {trained}, acting"] = [
            row for row in units if row["trained"] == trained
        ]
    gains = []
    for name, line in lines.items():
        line = sorted(line, key=acting_of)
        for less, more in itertools.pairwise(line):
            gain = np.subtract(more[f"{split}_return"], less[f"{split}_return"])
            low, high = estimators.interval(gain, estimators.mean)
            steps = more["acting"] - less["acting"]
            entry = {
                "what": name,
                "from": less["acting"],
                "to": more["acting"],
                "gain": float(gain.mean()),
            }
            gains.append(
                {**entry, "interval": bounds(low, high), "each": float(gain.mean() / steps)}
            )
    return gains


def bounds(low: float, high: float) -> list[float] | None:
    """An interval for JSON; None where the seeds are too few for one."""
    return [float(low), float(high)] if np.isfinite(low) else None


def shown(values: Sequence[float]) -> str:
    """Mean over learners in percent, with its interval, or with each of few learners."""
    low, high = estimators.interval(values, estimators.mean)
    if not np.isfinite(low):
        return over_seeds(100 * np.array(values), 1)
    return f"{100 * np.mean(values):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def table(study: Mapping[str, Any]) -> str:
    """The results of a task as Markdown."""
    rows = study["rows"]
    test = "test" in rows[0]
    lines = [
        (
            f"### {study['task']}: success in %, mean over {study['seeds']} seeds and "
            + ("its 95 % interval" if study["seeds"] >= estimators.FEWEST else "each of them")
        ),
        "",
        (
            f"| torso | parameters | FLOPs an action | steps to {100 * MOST:.0f} % (learners) | "
            "training problems |"
        )
        + (" longer problems |" if test else ""),
        "|---|---|---|---|---|" + ("---|" if test else ""),
    ]
    for row in with_trained_steps(rows):
        cells = [
            label(row),
            f"{row['parameters']:,}",
            f"{row['flops']:,}",
            reached(row),
            shown(row["train"]),
        ]
        lines.append("| " + " | ".join(cells + ([shown(row["test"])] if test else [])) + " |")
    acting = sorted({row["acting"] for row in rows if row["torso"] == "iru"})
    split = hardest(rows)
    lines += [
        "",
        f"{'Longer' if test else 'Training'} problems, trained with T and acting with T':",
        "",
    ]
    lines += [
        "| trained | " + " | ".join(f"T' = {steps}" for steps in acting) + " |",
        "|---" * (len(acting) + 1) + "|",
    ]
    for trained_with in sorted({row["trained"] for row in rows if row["torso"] == "iru"}):
        cells_by_steps = {
            row["acting"]: row
            for row in rows
            if row["torso"] == "iru" and row["trained"] == trained_with
        }
        cells = [
            f"{100 * np.mean(cells_by_steps[steps][split]):.1f}" if steps in cells_by_steps else ""
            for steps in acting
        ]
        lines.append(f"| T = {trained_with} | " + " | ".join(cells) + " |")
    lines.append("")
    for pair in study["comparisons"]:
        estimate = shared.with_interval([pair["P"], *(pair["interval"] or ())], 2)
        lines.append(f"- P({pair['better']} > {pair['than']}) = {estimate}")
    lines += ["", "Value of compute, trained and acting with T:", ""]
    lines += ["| from T | to T | return gained | for each step |", "|---|---|---|---|"]
    for entry in study["value_of_compute"]:
        if entry["what"] == OWN:
            gained = f"{entry['gain']:+.3f}"
            if entry["interval"]:
                gained += " [{:+.3f}, {:+.3f}]".format(*entry["interval"])
            lines.append(f"| {entry['from']} | {entry['to']} | {gained} | {entry['each']:+.3f} |")
    return "\n".join([*lines, ""])


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Success over T, operations, parameters, and T' for each T; the value of compute;
    success while learning.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    rows = study["rows"]
    splits = [split for split in ("train", "test") if split in rows[0]]
    figure = Figure(figsize=(22, 3.6 * len(splits)), layout="constrained")
    grid = figure.subplots(len(splits), 6, squeeze=False)
    for axes, split in zip(grid, splits, strict=True):
        units = [row for row in with_trained_steps(rows) if row["torso"] == "iru"]
        band = [estimators.interval(row[split], estimators.mean) for row in units]
        middle = [np.mean(row[split]) for row in units]
        times = [row["trained"] for row in units]
        axes[0].plot(times, middle, "o-", color="#0072B2", label="IRU")
        axes[0].fill_between(times, *np.transpose(band), color="#0072B2", alpha=0.2, linewidth=0)
        for row in with_trained_steps(rows):
            if row["torso"] != "iru":
                low, high = estimators.interval(row[split], estimators.mean)
                colour = COLOURS[row["torso"]]
                axes[0].axhline(float(np.mean(row[split])), color=colour, label=label(row))
                if np.isfinite(low):
                    axes[0].axhspan(low, high, color=colour, alpha=0.15, linewidth=0)
        for axis, quantity in ((axes[1], "flops"), (axes[2], "parameters")):
            for row in with_trained_steps(rows):
                colour = COLOURS.get(row["torso"], "#0072B2")
                low, high = estimators.interval(row[split], estimators.mean)
                mean = float(np.mean(row[split]))
                error = np.array([[mean - low], [high - mean]]) if np.isfinite(low) else None
                axis.errorbar([row[quantity]], [mean], error, fmt="o", color=colour)
                axis.annotate(
                    label(row).removeprefix("IRU, "),
                    (row[quantity], mean),
                    xytext=(5, 4),
                    textcoords="offset points",
                )
            axis.set_xscale("log")
            axis.margins(x=0.2)
            axis.xaxis.set_minor_formatter(NullFormatter())
        for i, row in enumerate(units):
            across = sorted(
                (r for r in rows if r["torso"] == "iru" and r["trained"] == row["trained"]),
                key=acting_of,
            )
            shade = grey(i, len(units))
            means = [np.mean(r[split]) for r in across]
            axes[3].plot(
                [acting_of(r) for r in across],
                means,
                "o-",
                color=shade,
                label=f"T = {row['trained']}",
            )
        axes[0].set_xticks(times)
        axes[3].set_xticks(sorted({acting_of(row) for row in rows if row["torso"] == "iru"}))
        for axis in axes[:4]:
            axis.set_ylim(-0.03, 1.12)
        draw_value(
            axes[4], [entry for entry in value_of_compute(rows, split) if entry["what"] == OWN]
        )
        axes[0].set_ylabel(
            {"train": "success, training problems", "test": "success, longer problems"}[split]
        )
        axes[0].legend(fontsize=8)
        axes[3].legend(fontsize=8, title="trained with")
    draw_curves(grid[0, 5], with_trained_steps(rows))
    for axis in grid[1:, 5]:
        axis.set_visible(False)
    names = (
        "thinking steps T, in training and acting",
        "FLOPs an action",
        "parameters",
        "thinking steps when acting",
        "thinking steps T",
    )
    for axis, name in zip(grid[-1], names, strict=False):
        axis.set_xlabel(name)
    figure.suptitle(study["task"])
    figure.savefig(path, dpi=110)


def grey(index: int, number: int) -> str:
    """The colour of one of `number` units, ordered by T. The largest T is black."""
    return str(0.75 - 0.75 * index / max(1, number - 1))


def draw_curves(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw success on the training problems over the steps of training:
    mean and interval over learners.
    """
    units = [row for row in rows if row["torso"] == "iru"]
    for row in rows:
        colour = grey(units.index(row), len(units)) if row in units else COLOURS[row["torso"]]
        success = np.array(row["run"]["curve"]["success"])
        band = [estimators.interval(at, estimators.mean) for at in success.T]
        axis.plot(
            row["run"]["curve"]["steps"], success.mean(axis=0), color=colour, label=label(row)
        )
        axis.fill_between(
            row["run"]["curve"]["steps"], *np.transpose(band), color=colour, alpha=0.15, linewidth=0
        )
    axis.set_ylim(-0.03, 1.12)
    axis.set_xlabel("steps of training")
    axis.set_ylabel("success while learning, training problems")
    axis.legend(fontsize=8)


def draw_value(axis: Any, gains: Sequence[Mapping[str, Any]]) -> None:
    """Draw the gain in return per additional thinking step, from each T to the next."""
    for place, entry in enumerate(gains):
        steps = entry["to"] - entry["from"]
        ends = [[abs(bound - entry["gain"]) / steps] for bound in entry["interval"] or ()]
        axis.errorbar([place], [entry["each"]], ends or None, fmt="o", color="#0072B2")
    axis.axhline(0.0, color="0.6", linewidth=1)
    axis.set_xticks(range(len(gains)), [f"{entry['from']} to {entry['to']}" for entry in gains])
    axis.margins(x=0.3)
    axis.set_ylabel("return gained for each step more")


def acting_of(row: Mapping[str, Any]) -> int:
    """The number of thinking steps with which a row's policies act."""
    return row["acting"]


def words(value: Any) -> str:
    """An option's value in the form of the command line."""
    if value is True:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> None:
    """Study a task and write FILE.json, FILE.md and FILE.png into the folder `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument(
        "--steps",
        type=int,
        help="environment steps or updates of each learner; default: the task's",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--thinking", type=int, nargs="+", default=THINKING, help="T of the trainings"
    )
    parser.add_argument(
        "--acting", type=int, nargs="+", default=ACTING, help="T' of the judgements"
    )
    parser.add_argument(
        "--baselines", nargs="*", default=("mlp", "resnet"), choices=("mlp", "resnet")
    )
    parser.add_argument("--data", help="data set of an offline task")
    parser.add_argument(
        "--paper", action="store_true", help="the preset's settings, not a laptop's"
    )
    parser.add_argument(
        "--episodes", type=int, default=100, help="per evaluation and learner while training"
    )
    parser.add_argument(
        "--judging",
        type=int,
        default=1_000,
        help="episodes of each learner that judge the last policy",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the problems that judge")
    parser.add_argument("--runs", type=Path, default=Path("runs/compute_study"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/compute"))
    options = parser.parse_args()
    if TASKS[options.task].train is None and options.data is None:
        name = f"ogbench/{options.task}-noisy-v0"
        parser.error(
            f"{options.task} is learnt from data: rljax data record {name}, then --data {name}"
        )
    places = {"runs", "output"}  # folders do not change results
    changed = {
        name: x
        for name, x in vars(options).items()
        if x != parser.get_default(name) and name not in places
    }
    options.command = "python scripts/studies/compute.py" + "".join(
        f" --{name} {words(x)}".rstrip() for name, x in changed.items()
    )
    study = studied(options.task, options)
    shared.write(study, options.output / options.task, table, draw)


if __name__ == "__main__":
    main()
