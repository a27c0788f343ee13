"""Collect runs into results/online/runs/, and write the figures and tables of results/online/*.md.

Batch methods with their own settings:

  rljax train sac --env HalfCheetah-v5 --steps 300000 --seeds 3 \
      --out runs/results/sac-HalfCheetah-v5
  rljax train sac --env Hopper-v5 --steps 300000 --seeds 3 --out runs/results/sac-Hopper-v5
  rljax train td3 --env HalfCheetah-v5 --steps 300000 --seeds 3 \
      --out runs/results/td3-HalfCheetah-v5
  rljax train td3 --env Hopper-v5 --steps 300000 --seeds 3 --out runs/results/td3-Hopper-v5
  rljax train dsact --env HalfCheetah-v5 --steps 300000 --seeds 3 \
      --out runs/results/dsact-HalfCheetah-v5
  rljax train dsact --env Hopper-v5 --steps 300000 --seeds 3 --out runs/results/dsact-Hopper-v5
  rljax train ppo --env HalfCheetah-v5 --steps 1000000 --seeds 5 --config.decay-steps 3e6 \
      --out runs/results/ppo-HalfCheetah-v5
  rljax train ppo --env Hopper-v5 --steps 1000000 --seeds 5 --config.decay-steps 3e6 \
      --out runs/results/ppo-Hopper-v5
  rljax train ppo --env Walker2d-v5 --steps 1000000 --seeds 5 --config.decay-steps 3e6 \
      --out runs/results/ppo-Walker2d-v5

  rljax train dqn --env gymnax/CartPole-v1 --steps 50000 --seeds 5 --eval-every 2500 \
      --out runs/results/dqn-CartPole-v1
  rljax train dqn --env gymnax/CartPole-v1 --preset rainbow --steps 50000 --seeds 5 \
      --eval-every 2500 --out runs/results/dqn-CartPole-v1-rainbow

PQN and DQN on MinAtar. GAME is Breakout or SpaceInvaders:

  rljax train pqn --env gymnax/GAME-MinAtar --steps 1000000 --seeds 3 --eval-every 50000 \
      --out runs/results/pqn-GAME-MinAtar
  rljax train pqn --env gymnax/Breakout-MinAtar --steps 2000000 --seeds 3 --eval-every 100000 \
      --out runs/results/pqn-Breakout-MinAtar-2M
  rljax train pqn --env gymnax/GAME-MinAtar --steps 10000000 --seeds 10 --eval-every 500000 \
      --out runs/results/pqn-GAME-MinAtar-10M
  rljax train dqn --env gymnax/Breakout-MinAtar --steps 200000 --seeds 2 --eval-every 25000 \
      --config.epsilon-steps 5e4 --config.loss huber --out runs/results/dqn-Breakout-MinAtar

DQN and PQN on Atari for an hour of one core each, one seed. They need rljax-suite[atari]:

  rljax train dqn --env atari/Breakout --steps 120000 --seed 0 --config.warmup-steps 5000 \
      --config.epsilon-steps 0.2 --config.replay-size 100000 --eval-every 30000 \
      --eval-episodes 5 --out runs/results/dqn-atari-Breakout
  rljax train pqn --env atari/Breakout --steps 401408 --seed 0 --eval-every 100352 \
      --eval-episodes 5 --out runs/results/pqn-atari-Breakout

Other spaces: masks, a dictionary with a picture, a dictionary with goals. The last two need
rljax-suite[minigrid,robotics]:

  rljax train ppo --env rljax/JobShop-ft06 --steps 200000 --seeds 5 --eval-every 20000 \
      --out runs/results/ppo-JobShop-ft06
  rljax train ppo --env minigrid:MiniGrid-Empty-5x5-v0 --steps 40000 --seeds 3 --eval-every 8000 \
      --out runs/results/ppo-MiniGrid-Empty-5x5
  rljax train sac --env gymnasium_robotics:FetchReach-v4 --steps 10000 --seeds 3 --eval-every 2000 \
      --out runs/results/sac-FetchReach-v4

Defaults of the agents' files, without presets: see scripts/results/default_runs.py.

Streams. AGENT-ENV is stream_ac-HalfCheetah-v5, stream_ac-Hopper-v5, stream_ac-Walker2d-v5,
stream_q-CartPole-v1, stream_q-Acrobot-v1 or stream_sarsa-CartPole-v1. The last three have --env
gymnax/ENV and --steps 500000. SpaceInvaders-MinAtar has the same command as Breakout:

  rljax train AGENT --env ENV --steps 1000000 --seeds 5 --eval-every 50000 \
      --out runs/results/AGENT-ENV
  rljax train stream_q --env gymnax/Breakout-MinAtar --steps 1000000 --seeds 5 --eval-every 50000 \
      --config.epsilon-steps 2e5 --out runs/results/stream_q-Breakout-MinAtar

Batch methods that learn from one transition at a time:

  rljax train sac --env HalfCheetah-v5 --steps 300000 --seeds 3 --eval-every 20000 \
      --config.batch-size 1 --config.replay-size 1 --config.warmup-steps 1 \
      --out runs/results/sac-HalfCheetah-v5-one
  rljax train ppo --env HalfCheetah-v5 --steps 300000 --seeds 3 --eval-every 20000 \
      --config.num-envs 1 --config.num-steps 1 --config.batch-size 1 --config.num-epochs 1 \
      --out runs/results/ppo-HalfCheetah-v5-one

Other settings: PyTorch's initialisation, the settings of the published curves, and target networks
that move as fast as sbx-rl's, which move with every update:

  rljax train sac --env HalfCheetah-v5 --steps 250000 --seeds 3 --config.initialisation torch \
      --out runs/results/sac-HalfCheetah-v5-torch
  rljax train sac --env HalfCheetah-v5 --steps 200000 --seeds 3 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.temperature-lr 1e-3 --config.warmup-steps 5000 \
      --config.initialisation lecun_uniform --out runs/results/sac-HalfCheetah-v5-crossq
  rljax train td3 --env Hopper-v5 --steps 200000 --seeds 3 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.hidden 400 300 --config.batch-size 100 \
      --config.warmup-steps 1000 --out runs/results/td3-Hopper-v5-paper
  rljax train td3 --env Hopper-v5 --steps 130000 --seeds 3 --config.target-rate 0.01 \
      --out runs/results/td3-Hopper-v5-rate

Then

  python scripts/results/online.py runs/results/*

A run is kept under the name of its folder. Files that are there already stay, so that runs can come
one by one and from different machines. Two figures show runs with the agents' own settings, one for
agents with a replay buffer and one for PPO, beside the first published curve of each. The third
shows streams beside SAC and PPO, and these two with one transition at a time. The fourth shows PQN
and DQN on MinAtar beside streams, the fifth both on Atari. Hindsight on Fetch's tasks beside
Stable-Baselines3 is measured by scripts/checks/compare_hindsight.py, whose file this script shows
too.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import learning_curves
from rljax.learning import registry
from rljax.runs.statistics import estimators
from scripts.results.shared import RESULTS, changes, collect, hardware, over_seeds, show, table

COLUMNS = (
    "agent",
    "environment",
    "steps",
    "seeds",
    "return, mean of the last 3 evaluations: +- std over seeds, or each of fewer than 5",
    "95 % interval",
    "published, mean +- std",
    "steps/s, all seeds",
    "wall",
    "compile",
    "hardware",
)
SPACES = {
    "rljax/JobShop-ft06": "a vector and a mask, one discrete action",
    "minigrid:MiniGrid-Empty-5x5-v0": "a picture and a direction, one discrete action",
    "gymnasium_robotics:FetchReach-v4": "a dictionary with goals, continuous actions",
}  # what agents see and do where a page has a table of such spaces

Published = dict[tuple[str, str], dict[str, list[dict[str, Any]]]]


def published() -> Published:
    """Published learning curves by agent and environment, then repository:
    `step, mean, std, seeds` of each point.
    """
    table: Published = {}
    with (RESULTS / "published" / "online.csv").open() as file:
        for row in csv.DictReader(file):
            numbers = {name: float(row[name]) for name in ("step", "mean", "std", "seeds")}
            curves = table.setdefault((row["agent"], row["environment"]), {})
            curves.setdefault(row["repository"], []).append({**row, **numbers})
    return table


def named(run: dict[str, Any]) -> str:
    """A collected run's agent, with its preset if `--preset` named one."""
    return f"{run['agent']}, {run['preset']}" if run.get("preset") else run["agent"]


def curve(run: dict[str, Any], label: str | None = None) -> learning_curves.Curve:
    """A collected run as the figure takes it, where given by another name than its agent's."""
    evaluations = [
        {"learner": i, "seed": seed, "step": step, "returns": [value]}
        for i, (seed, returns) in enumerate(zip(run["seeds"], run["returns"], strict=True))
        for step, value in zip(run["steps_evaluated"], returns, strict=True)
    ]
    return learning_curves.Curve(
        label or named(run), run["environment"], evaluations, {run["episodes_per_evaluation"]}
    )


def by_default(run: dict[str, Any]) -> bool:
    """Whether a run has the defaults of the agent's file and no preset;
    see scripts/results/default_runs.py.
    """
    return run["name"].endswith("-defaults")


def usual(run: dict[str, Any]) -> bool:
    """Whether a run has the agent's own settings for its environment."""
    return not by_default(run) and not changes(run)


def row(run: dict[str, Any], references: Published) -> list[str]:
    """One row of a table: the mean of the last three evaluations,
    beside the nearest points of published curves.
    """
    last = np.array(run["returns"])[:, -3:].mean(axis=1)
    low, high = estimators.interval(last, statistic=estimators.mean)
    theirs = []
    for repository, points in references.get((run["agent"], run["environment"]), {}).items():
        near = min(points, key=lambda point: abs(point["step"] - run["reached"]))
        theirs.append(
            f"{near['mean']:,.0f} +- {near['std']:,.0f} at {near['step'] / 1000:,.0f}k "
            f"({near['seeds']:.0f} seeds, {near['published_environment']}, {repository})"
        )
    speed = f"{run['steps_per_second']:,.0f}" if run["steps_per_second"] else "-"
    wall = f"{run['wall_seconds'] / 60:,.0f} min" if run["wall_seconds"] else "-"
    compiling = f"{run['compile_seconds']:.0f} s" if run["compile_seconds"] else "-"
    name = (
        f"{run['agent']}, defaults" if by_default(run) else ", ".join([named(run), *changes(run)])
    )
    cells = [name, run["environment"], f"{run['reached'] // 1000}k", str(len(run["seeds"]))]
    cells += [
        over_seeds(last),
        "-" if np.isnan(low) else f"[{low:,.0f}, {high:,.0f}]",
        "; ".join(theirs) or "-",
        speed,
        wall,
        compiling,
        hardware(run),
    ]
    return cells


def _columns(points: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    steps, means, stds = (
        np.array([point[name] for point in points]) for name in ("step", "mean", "std")
    )
    return steps, means, stds


def learns_from(run: dict[str, Any]) -> str:
    """What a run's agent learns from: "replay", "rollout", "stream" or "dataset"."""
    module = registry.load_agent(run["agent"])
    return module.experience(module.Config()).kind


def draw_streams(collected: list[dict[str, Any]], output: Path) -> None:
    """Streams, and in their environments SAC and PPO,
    with their own settings and with one transition at a time.
    """
    streams = [run for run in collected if learns_from(run) == "stream" and not by_default(run)]
    places = {run["environment"] for run in streams}
    others = [
        run for run in collected if run["agent"] in ("sac", "ppo") and run["environment"] in places
    ]
    single = [run for run in others if run["name"].endswith("-one")]
    curves = [curve(run) for run in streams + [run for run in others if usual(run)]]
    learning_curves.draw(
        curves + [curve(run, f"{run['agent']}, one transition") for run in single], output
    )


def on_minatar(run: dict[str, Any]) -> bool:
    """Whether a run is on a game of MinAtar."""
    return "MinAtar" in run["environment"]


def on_atari(run: dict[str, Any]) -> bool:
    """Whether a run is on a game of Atari."""
    return run["environment"].startswith("atari")


def draw_minatar(collected: list[dict[str, Any]], output: Path) -> None:
    """The longest run of each agent on each game of MinAtar."""
    runs = sorted(filter(on_minatar, collected), key=lambda run: run["reached"])
    longest = {(run["environment"], run["agent"]): run for run in runs}
    learning_curves.draw([curve(run) for run in longest.values()], output)


def spaces_row(run: dict[str, Any]) -> list[str]:
    """One row of the table of other spaces: the means of the last three evaluations."""
    last = np.array(run["returns"])[:, -3:].mean(axis=1)
    cells = [
        run["agent"],
        run["environment"],
        SPACES[run["environment"]],
        f"{run['reached'] // 1000}k",
    ]
    cells += [str(len(run["seeds"])), over_seeds(last, 2)]
    cells += [f"{np.array(run['success'])[:, -3:].mean():.0%}" if "success" in run else "-"]
    return [*cells, f"{run['wall_seconds'] / 60:,.0f} min"]


def hindsight() -> list[str]:
    """The share of successful episodes of two implementations of hindsight,
    from compare_hindsight.py.
    """
    file = json.loads((RESULTS / "online" / "hindsight.json").read_text())
    rows = []
    for task, samples_by_side in file.items():
        for side in ("ours", "stable-baselines3"):
            samples = list(samples_by_side[side].values())
            success = np.array([sample["success"] for sample in samples])  # [seed, evaluation]
            reached = success.mean(axis=0)
            steps = samples[0]["steps_evaluated"]
            shown = "; ".join(
                f"{x:.0%} at {step / 1000:g}k" for step, x in zip(steps, reached, strict=True)
            )
            if len(samples) > 1:
                shown += f" ({', '.join(f'{x:.0%}' for x in success[:, -1])})"
            rows.append([f"{task}-v4", side, str(len(samples)), shown])
    header = ["environment", "SAC of", "seeds", "success, mean over seeds; each at the end"]
    return table(header, rows)


def tables(collected: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """All tables in Markdown, by page and name."""
    references = published()
    runs_by_table: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in sorted(collected, key=lambda run: (run["environment"], run["agent"])):
        kind = learns_from(run)
        if by_default(run):
            key = "online", "defaults"
        elif run["environment"] in SPACES:
            key = "online", "spaces"
        elif kind == "stream":
            key = "online/streaming", "minatar" if on_minatar(run) else f"{run['reached'] // 1000}k"
        elif run["name"].endswith("-one"):
            key = "online/streaming", "one_transition"
        elif on_minatar(run):
            key = "online", "minatar"
        elif on_atari(run):
            key = "online", "atari"
        elif changes(run):
            key = "online", "settings"
        else:
            key = "online", "cartpole" if "CartPole" in run["environment"] else kind
        runs_by_table.setdefault(key, []).append(run)
    others = runs_by_table.pop(("online", "spaces"), [])
    made = {
        key: table(COLUMNS, [row(run, references) for run in runs])
        for key, runs in runs_by_table.items()
    }
    header = (
        "agent",
        "environment",
        "observation and action",
        "steps",
        "seeds",
        COLUMNS[4],
        "success",
        "wall",
    )
    made["online", "spaces"] = table(header, [spaces_row(run) for run in others])
    made["online", "hindsight"] = hindsight()
    return {key: "\n".join(lines) for key, lines in made.items()}


def collected_runs() -> list[dict[str, Any]]:
    """All runs of results/online/runs/, by name."""
    paths = sorted((RESULTS / "online" / "runs").glob("*.json"))
    return [json.loads(path.read_text()) | {"name": path.stem} for path in paths]


def main() -> None:
    """Write results/online/runs/*.json, the figures and the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    runs = parser.parse_args().runs
    references = published()
    folder = RESULTS / "online"
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    for path in runs:
        (folder / "runs" / f"{path.name}.json").write_text(json.dumps(collect(path)) + "\n")
    collected = collected_runs()
    draw_streams(collected, folder / "stream.png")
    draw_minatar(collected, folder / "minatar.png")
    learning_curves.draw([curve(run) for run in filter(on_atari, collected)], folder / "atari.png")
    for kind in ("replay", "rollout"):
        ours = [
            run
            for run in collected
            if not (on_minatar(run) or on_atari(run) or run["environment"] in SPACES)
        ]
        shown = [run for run in ours if usual(run) and learns_from(run) == kind]
        curves = {}
        for run in shown:
            first = next(iter(references.get((run["agent"], run["environment"]), {}).values()), [])
            points = [point for point in first if point["step"] <= run["reached"]]
            if points:
                curves[run["agent"], run["environment"]] = _columns(points)
        learning_curves.draw([curve(run) for run in shown], folder / f"{kind}.png", curves)
    for (page, name), lines in tables(collected).items():
        show(page, name, lines)


if __name__ == "__main__":
    main()
