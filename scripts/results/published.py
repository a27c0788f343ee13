"""Derive rljax/analysis/published.csv from files of public repositories:
published numbers that reports show.

  python scripts/results/published.py ../shared/data/curves --checkouts AUTHORS

The folder holds online_curves.csv.gz (repo, commit, algo, env, seed, metric, step, value),
offline_final.csv (repo, commit, algo, dataset, metric, n, mean, std) and readme_tables.csv (repo,
commit, path, table, row, column, cell). AUTHORS/xqc and AUTHORS/FlashSAC are checkouts of
danielpalenicek/xqc and Holiday-Robot/FlashSAC, with the curves of their agents. Of each learning
curve, the points nearest to a few round steps are kept, if every seed has a point.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from rljax.analysis import published

STEPS = (100_000, 200_000, 300_000, 500_000, 1_000_000, 3_000_000)
TASKS = (
    "HalfCheetah",
    "Hopper",
    "Walker2d",
    "Ant",
    "Humanoid",
    "Swimmer",
    "InvertedDoublePendulum",
    "Reacher",
)
EVALUATED = "noise-free evaluation"
# Algorithm and repository -> our agent, the steps before the first counted step, and a note.
CURVES = {
    ("sac", "dojeon-ai/SimbaV2"): ("sac", 0, f"{EVALUATED}; learning rate 1e-3"),
    ("tianshou-SAC", "thu-ml/tianshou"): ("sac", 0, EVALUATED),
    ("TD3", "sfujim/TD3"): ("td3", 0, EVALUATED),
    ("tianshou-TD3", "thu-ml/tianshou"): (
        "td3",
        25_000,
        f"{EVALUATED}; 25,000 random steps added to its count",
    ),
    ("tianshou-PPO", "thu-ml/tianshou"): ("ppo", 0, EVALUATED),
    ("CrossQ", "dojeon-ai/SimbaV2"): ("crossq", 0, f"{EVALUATED}; run by SimbaV2's authors"),
    ("simbaV2_utd2", "dojeon-ai/SimbaV2"): ("simbav2", 0, f"{EVALUATED}; 2 updates per step"),
    ("bro_utd10", "dojeon-ai/SimbaV2"): ("bro", 0, f"{EVALUATED}; 10 updates per step"),
    ("xqc", "danielpalenicek/xqc"): ("xqc", 0, EVALUATED),
    ("FlashSAC", "Holiday-Robot/FlashSAC"): ("flashsac", 0, EVALUATED),
}
# Checkout: its repository, commit, and file of curves.
CHECKOUTS = {
    "xqc": ("danielpalenicek/xqc", "9a6832b", "results/xqc.csv"),
    "FlashSAC": ("Holiday-Robot/FlashSAC", "87edc90", "results/stateRL_cpusim/FlashSAC.csv"),
}
Rows = Iterable[dict[str, str]]
# Pages of CleanRL: our agent, tables, and the column that holds its own results.
CLEANRL = {
    "docs/rl-algorithms/sac.md": ("sac", ("1",), "sac_continuous_action.py"),
    "docs/rl-algorithms/td3.md": ("td3", ("1",), "td3_continuous_action.py"),
    "docs/rl-algorithms/ppo.md": ("ppo", ("1",), "ppo.py"),
}
CLEANRL_STEPS = {"CartPole": 500_000, "Acrobot": 500_000, "MountainCar": 500_000}  # 1M elsewhere
OFFLINE = {"BC": "bc", "TD3+BC": "td3_bc", "CQL": "cql", "IQL": "iql", "EDAC": "edac"}
NEORL2 = {"bc": "bc", "td3bc": "td3_bc", "cql": "cql", "edac": "edac"}
# Repository and table of its page -> seeds, updates, note; the scores of the last policies, not of
# the best ones.
TABLES = {
    ("corl-team/CORL", "1"): (4, 1_000_000, "last policy"),
    ("corl-team/CORL", "3"): (4, 1_000_000, "last policy"),
    ("nissymori/JAX-CORL", "1"): (5, 1_000_000, "last policy; 5 episodes"),
}
CELL = re.compile(r"^\$?(-?[\d.]+)\s*(?:±|\\pm)\s*([\d.]+)\$?$")


def stored(folder: Path) -> Rows:
    """Values of learning curves in the folder."""
    with gzip.open(folder / "online_curves.csv.gz", "rt") as file:
        yield from csv.DictReader(file)


def of_authors(checkouts: Path) -> Rows:
    """The same of the authors' checkouts."""
    for name, (repository, commit, path) in CHECKOUTS.items():
        for row in read(checkouts / name / path):
            if row["metric"] == "avg_return":
                yield {
                    "repo": repository,
                    "commit": commit,
                    "algo": row["exp_name"],
                    "env": row["env_name"],
                    "metric": "return",
                    "step": row["env_step"],
                    "value": row["value"],
                }


def online(rows: Rows) -> Iterator[published.Point]:
    """Points of learning curves, by the values of their seeds."""
    curves: dict[tuple[str, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if (row["algo"], row["repo"]) in CURVES:
            key = (row["algo"], row["repo"], row["env"], row["commit"], row["metric"])
            curves[key][float(row["step"])].append(float(row["value"]))
    for (algorithm, repository, environment, commit, metric), values in curves.items():
        agent, before, note = CURVES[algorithm, repository]
        if published.task_of(environment) not in TASKS or metric not in ("return", "mean_return"):
            continue
        seeds = max(map(len, values.values()))
        whole = sorted(step for step, seed_values in values.items() if len(seed_values) == seeds)
        for near in STEPS:
            step = min(whole, key=lambda step: abs(step + before - near))
            if abs(step + before - near) > 0.1 * near:
                continue
            if metric == "return":
                mean, std = float(np.mean(values[step])), float(np.std(values[step], ddof=1))
            else:  # mean and standard deviation of ten seeds
                deviations = curves[algorithm, repository, environment, commit, "std_return"]
                mean, std, seeds = values[step][0], deviations[step][0], 10
            yield point(
                agent,
                environment,
                "return",
                int(step) + before,
                mean,
                std,
                seeds,
                f"{repository}@{commit}",
                note,
            )


def tables(folder: Path) -> Iterator[published.Point]:
    """Points of the tables in README files and pages."""
    for row in read(folder / "readme_tables.csv"):
        cell = CELL.match(row["cell"].replace("\\pm ", "\\pm").strip())
        if not cell:
            continue
        mean, std, source = float(cell[1]), float(cell[2]), f"{row['repo']}@{row['commit']}"
        known = TABLES.get((row["repo"], row["table"])) if row["path"] == "README.md" else None
        if known and row["column"] in OFFLINE:
            seeds, updates, note = known
            updates *= 3 if row["column"] == "EDAC" else 1
            yield point(
                OFFLINE[row["column"]], row["row"], "score", updates, mean, std, seeds, source, note
            )
        elif row["repo"] == "vwxyzjn/cleanrl" and row["path"] in CLEANRL:
            agent, numbers, column = CLEANRL[row["path"]]
            if (
                row["table"] in numbers
                and column in row["column"]
                and "baselines" not in row["column"]
            ):
                step = CLEANRL_STEPS.get(published.task_of(row["row"]), 1_000_000)
                note = "returns of training, exploration included"
                yield point(agent, row["row"], "return", step, mean, std, 3, source, note)


def neorl2(folder: Path) -> Iterator[published.Point]:
    """NeoRL-2's own benchmark, which does not state the number of updates."""
    for row in read(folder / "offline_final.csv"):
        if (
            row["repo"] == "polixir/NeoRL2"
            and row["metric"] == "score_0_100"
            and row["algo"] in NEORL2
        ):
            converted = point(
                NEORL2[row["algo"]],
                row["dataset"],
                "score",
                None,
                float(row["mean"]),
                float(row["std"]),
                int(row["n"]),
                f"{row['repo']}@{row['commit']}",
                "settings chosen by online evaluation",
            )
            yield dataclasses.replace(
                converted, task=row["dataset"].removeprefix("NeoRL2-") + "-v0"
            )


def point(
    agent: str,
    environment: str,
    metric: str,
    step: int | None,
    mean: float,
    std: float,
    seeds: int,
    source: str,
    note: str,
) -> published.Point:
    """A point of an environment or, with scores, of a data set.

    Values are rounded, and the commit is shortened.
    """
    task = environment if metric == "score" else published.task_of(environment)
    repository, _, commit = source.partition("@")
    source = f"{repository}@{commit[:7]}"
    return published.Point(
        task, agent, environment, metric, step, round(mean, 2), round(std, 2), seeds, source, note
    )


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(points: Iterable[published.Point], path: Path) -> int:
    """Write the table and return its number of rows."""
    rows = sorted(
        map(dataclasses.asdict, points), key=lambda row: (row["metric"], row["task"], row["agent"])
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def main() -> None:
    """Write rljax/analysis/published.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of the authors' code")
    options = parser.parse_args()
    folder = options.folder
    curves = [*online(stored(folder)), *online(of_authors(options.checkouts))]
    number = write([*curves, *tables(folder), *neorl2(folder)], published.FILE)
    print(f"{published.FILE}: {number} rows")


if __name__ == "__main__":
    main()
