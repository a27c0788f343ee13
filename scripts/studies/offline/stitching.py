"""Who joins pieces of trajectories: BC, DT, RvS and IQL in the point maze of MBRCSL.

The data go down one cell and stay there, or go the long way round to the goal: no episode takes the
short way, whose beginning and end they have. DT and RvS are asked for the largest return of the
data, and for that of the short way; RvS in both of its forms, as an average of the rewards to come
and as what is left of the return. An episode counts as joined if it returns more than any of the
data.

  rljax data record rljax/PointMaze maze.npz --steps 200000
  python scripts/studies/offline/stitching.py --data maze.npz

All seeds of an agent are learners of one program. The results are written after each run. Complete
runs are not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import datasets
from rljax.analysis import folders
from rljax.envs.tasks.point_maze import COLUMNS, MAZE, NAME, ROWS, PointMaze
from rljax.runs import run
from rljax.runs.policies import evaluate, loading
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

EVALUATIONS = 5
EPISODES = 500  # of the short way, whose mean return is the second target
DRAWN, EVERY = 8, 5  # paths of the first seed, and steps between their points
LEFT = -1.0  # the long way leads through the cells beyond this x


class Cell(NamedTuple):
    """An agent with its settings, and whether it is told which return to reach."""

    name: str  # in the table
    agent: str
    config: Mapping[str, Any]
    aims: bool = False


# Networks are smaller than the authors', without dropout.
CELLS = {
    "bc": Cell("BC", "bc", {}),
    "dt": Cell(
        "DT",
        "dt",
        {
            "context_length": 10,
            "width": 32,
            "layers": 2,
            "batch_size": 64,
            "learning_rate": 1e-3,
            "return_scale": 1e-2,  # of returns of about 100
            "dropout": 0.0,
        },
        aims=True,
    ),
    "rvs": Cell("RvS, average", "rvs", {"dropout": 0.0}, aims=True),
    "rvs-sum": Cell("RvS, sum", "rvs", {"dropout": 0.0, "outcome": "sum"}, aims=True),
    # The authors' for AntMaze's mazes.
    "iql": Cell("IQL", "iql", {"expectile": 0.9, "inverse_temperature": 10.0}),
}
COLOURS = dict(zip(CELLS, ("#999999", "#D55E00", "#E69F00", "#CC79A7", "#0072B2"), strict=True))
# Mean return of 4 seeds and its spread, arXiv:2310.06268, table 1. IQL and RvS are not in it.
PUBLISHED = {
    "MBRCSL": "91.5 +- 7.1",
    "MOPO": "77.9",
    "DT": "57.2",
    "COMBO": "56.6",
    "CQL": "34.8",
}


def config_of(key: str, options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a cell that are not its agent's defaults."""
    config = dict(CELLS[key].config)
    if key == "dt":
        return config | ({"width": options.width} if options.width else {})
    return config | {"hidden": tuple(options.hidden), "batch_size": options.batch_size}


def trained(key: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out, config, updates = options.runs / key, config_of(key, options), updates_of(key, options)
    every = max(updates // EVALUATIONS, 1)
    begin = functools.partial(
        run.train,
        CELLS[key].agent,
        NAME,
        updates,
        data=options.data,
        seeds=options.seeds,
        config=config,
        out=out,
        eval_every=every,
        eval_episodes=10,
        checkpoint_every=every,
        quiet=False,
    )
    return shared.trained(out, updates, begin, options.data, config)


def updates_of(key: str, options: argparse.Namespace) -> int:
    """How many updates an agent has."""
    return options.dt_updates if key == "dt" else options.updates


def levels(options: argparse.Namespace) -> dict[str, float]:
    """The returns to compare with: of the data and of the short way."""
    returns = datasets.load(options.data).returns()
    short = jax.jit(PointMaze().short_way, static_argnums=1)(jax.random.key(0), EPISODES)
    short_way = np.asarray(short.reward).reshape(EPISODES, -1).sum(axis=1).mean()
    names = {"data_mean": returns.mean(), "data_largest": returns.max(), "short_way": short_way}
    return {name: round(float(value), 1) for name, value in names.items()}


def outcome(key: str, out: Path, study: Mapping[str, Any]) -> dict[str, Any]:
    """What a run came to: its curves, and the last policies in new episodes, for each target."""
    record = folders.read(out)
    targets = (study["data_largest"], study["short_way"]) if CELLS[key].aims else (None,)
    return {
        "settings": dict(record.config["config"]),
        "updates": record.learners[0].steps.tolist()[-1],
        "wall_seconds": record.summary["wall_seconds"],
        "compile_seconds": record.summary["compile_seconds"],
        "git_revision": record.config["git_revision"],
        **shared.curves(out, 1),
        "played": [
            played(out, target, study) | ways(paths(out, target, study["episodes"]))
            for target in targets
        ],
    }


def played(out: Path, target: float | None, study: Mapping[str, Any]) -> dict[str, Any]:
    """Returns of each seed's episodes, their mean, and the share of them that joins pieces."""
    config = {} if target is None else {"target_return": target}
    result = evaluate.evaluate_run(out, episodes=study["episodes"], seed=1, config=config)
    returns = np.array([line["returns"] for line in result["episodes"]])  # [seed, episode]
    success = np.array([line["success"] for line in result["episodes"]])
    return {
        "target": target,
        "return": returns.mean(axis=1).round(1).tolist(),
        "joined": (100 * (returns > study["data_largest"]).mean(axis=1)).round(1).tolist(),
        "success": (100 * success.mean(axis=1)).round(1).tolist(),
        "returns": returns.round(1).tolist(),
    }


def paths(out: Path, target: float | None, episodes: int) -> np.ndarray:
    """Where [T, N, 2] the first seed's policy goes in N episodes."""
    config = {} if target is None else {"target_return": target}
    policy, task = loading.load(out, config=config), PointMaze()
    keys = jax.random.split(jax.random.key(2), episodes)
    observation, state = jax.vmap(task.reset)(keys)
    step = jax.jit(jax.vmap(task.step))
    last, places = jnp.zeros((episodes, 3)), []
    for time in range(task.horizon):
        # who is told a return observes the last action and reward, too
        shown = observation if target is None else jnp.concatenate([observation, last], axis=-1)
        action = policy(np.asarray(shown), step=time)
        observation, state, reward, *_ = step(keys, state, action)
        last = jnp.concatenate([jnp.clip(action, -1.0, 1.0), reward[:, None]], axis=-1)
        places.append(state.position)
    return np.asarray(jnp.stack(places))


def ways(places: np.ndarray) -> dict[str, Any]:
    """Which way paths [T, N, 2] take to the goal's cell, in per cent, and some of them."""
    left = (places[..., 0] < LEFT).any(axis=0)
    there = (places[..., 0] > 1.0).any(axis=0)
    shares = {"short": there & ~left, "long": there & left, "neither": ~there}
    return {
        "ways": {name: round(100 * float(x.mean()), 1) for name, x in shares.items()},
        "paths": places[::EVERY, :DRAWN].round(2).swapaxes(0, 1).tolist(),
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown: a row for each agent and target, with each seed."""
    lines = [
        "| | target | return, each seed | episodes above all data, % | first seed: short way, long "
        "way, neither, % | published return |",
        "|---|---|---|---|---|---|",
    ]
    for key, cell in CELLS.items():
        for row in study["cells"].get(key, {"played": []})["played"]:
            target = "" if row["target"] is None else f"{row['target']:.1f}"
            values = [over_seeds(row[name]) for name in ("return", "joined")]
            values.append(", ".join(f"{x:.0f}" for x in row["ways"].values()))
            published = PUBLISHED.get(cell.name, "-")
            lines.append(f"| {cell.name} | {target} | {' | '.join(values)} | {published} |")
    for name, key in (
        ("the data, mean", "data_mean"),
        ("the data, largest", "data_largest"),
        ("the short way", "short_way"),
    ):
        lines.append(f"| {name} | | {study[key]:.1f} | | | |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw mean returns over updates, returns of the last policies' episodes, and paths."""
    from matplotlib.figure import Figure

    rows = [(key, row) for key, cell in study["cells"].items() for row in cell["played"]]
    figure = Figure(figsize=(11, 6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(5, 4))
    upper, lower = halves
    curves, episodes = upper.subplots(1, 2, sharey=True)
    for key, cell in study["cells"].items():
        for i, returns in enumerate(cell["returns"]):
            share = np.array(cell["steps"]) / cell["updates"]
            label = None if i else CELLS[key].name
            curves.plot(share, returns, color=COLOURS[key], label=label, linewidth=1)
    for i, (key, row) in enumerate(rows):
        returns = np.ravel(row["returns"])
        places = i + np.linspace(-0.3, 0.3, len(returns))
        episodes.plot(places, returns, ".", color=COLOURS[key], markersize=2)
    for axis in (curves, episodes):
        axis.axhline(study["data_largest"], color="k", lw=0.8, ls=":", label="largest of the data")
        axis.axhline(study["short_way"], color="k", lw=0.8, ls="--", label="short way")
    curves.set(xlabel="share of the updates", ylabel="return", title="evaluations, each seed")
    episodes.set(title="episodes of the last policies, by target")
    labels = [_label(*row).replace(", ", "\n") for row in rows]
    episodes.set_xticks(range(len(rows)), labels, fontsize="x-small")
    upper.legend(*curves.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    mazes = np.ravel(lower.subplots(2, max((len(rows) + 1) // 2, 1), squeeze=False))
    for maze in mazes:
        maze.set_axis_off()
    extent = (-COLUMNS / 2, COLUMNS / 2, -ROWS / 2, ROWS / 2)
    for maze, (key, row) in zip(mazes, rows, strict=False):
        maze.imshow(MAZE, cmap="Greys", vmax=3, extent=extent)
        for places in row["paths"]:
            maze.plot(*np.transpose(places), color=COLOURS[key], linewidth=0.8)
        maze.set_title(_label(key, row), fontsize="x-small")
    figure.savefig(path, dpi=130)


def _label(key: str, row: Mapping[str, Any]) -> str:
    name = CELLS[key].name
    return name if row["target"] is None else f"{name}, {row['target']:.0f}"


def main() -> None:
    """Train, play, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="the recorded file")
    parser.add_argument("--agents", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--dt-updates", type=int, default=4_000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128], help="all but DT's")
    parser.add_argument("--batch-size", type=int, default=256, help="of all but DT")
    parser.add_argument("--width", type=int, help="of DT's tokens")
    parser.add_argument("--episodes", type=int, default=50, help="of the last policies, each seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/stitching"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/stitching"))
    options = parser.parse_args()
    names = ("data", "seeds", "episodes")
    study = {name: getattr(options, name) for name in names} | provenance() | levels(options)
    cells: dict[str, Any] = {}
    for key in options.agents:
        cells[key] = outcome(key, trained(key, options), study)
        shared.write(study | {"cells": cells}, options.output / "maze", table, draw)


if __name__ == "__main__":
    main()
