"""Time of `rljax report` on many runs.

The script creates runs in a temporary folder and times the command on them.

  python scripts/benchmarks/report.py

The default is 200 runs: 4 agents x 10 environments x 5 runs, each of 1M steps with 5 learners, 100
evaluations of 10 episodes and 1,000 lines of metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

AGENTS = ("sac", "td3", "ppo", "dsact")
TASKS = (
    "HalfCheetah",
    "Hopper",
    "Walker2d",
    "Ant",
    "Humanoid",
    "Swimmer",
    "Reacher",
    "Pusher",
    "Pendulum",
    "Acrobot",
)
STEPS, EVALUATIONS, LINES, LEARNERS, EPISODES = 1_000_000, 100, 1_000, 5, 10


def make(folder: Path, agent: str, task: str, seeds: list[int], example: dict[str, Any]) -> None:
    """Write the files of one run; `example` is the config.json of a real run."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seeds[0])
    described = example | {
        "agent": agent,
        "env": f"{task}-v5",
        "environment": f"{task}-v5",
        "steps": STEPS,
        "eval_every": STEPS // EVALUATIONS,
        "seeds": seeds,
        "learners": [{"seed": seed, "settings": {}} for seed in seeds],
        "config": {"actor_lr": 3e-4, "hidden": [256, 256]},
        "command": f"rljax train {agent} --env {task}-v5",
        "spec": example["spec"] | {"name": f"{task}-v5"},
    }
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "summary.json").write_text(
        json.dumps({"steps_per_second": 200.0, "wall_seconds": 5e3, "complete": True})
    )
    level = 1000 + 1000 * generator.random(LEARNERS)
    with (folder / "evaluations.jsonl").open("w") as file:
        for step in range(STEPS // EVALUATIONS, STEPS + 1, STEPS // EVALUATIONS):
            returns = level[:, None] * step / STEPS + 100 * generator.normal(
                size=(LEARNERS, EPISODES)
            )
            for learner, seed in enumerate(seeds):
                line = {
                    "step": step,
                    "learner": learner,
                    "seed": seed,
                    "returns": returns[learner].tolist(),
                }
                file.write(
                    json.dumps(line | {"lengths": [1000] * EPISODES, "wall_seconds": step / 200})
                    + "\n"
                )
    names = ("actor/loss", "critic/loss", "critic/q", "episode/return")
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(STEPS // LINES, STEPS + 1, STEPS // LINES):
            values = {name: generator.normal(size=LEARNERS).tolist() for name in names}
            file.write(
                json.dumps(
                    {"step": step, "wall_seconds": step / 200, "steps_per_second": 200.0} | values
                )
                + "\n"
            )


def main() -> None:
    """Create the runs, report on them and print the time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each agent in each environment")
    number = parser.parse_args().runs

    from rljax.runs import records, run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short = run.train("ppo", "rljax/Pendulum", 100, eval_episodes=1, out=folder / "example")
        example = records.read_config(short)
        for agent in AGENTS:
            for task in TASKS:
                for i in range(number):
                    seeds = list(range(LEARNERS * i, LEARNERS * (i + 1)))
                    make(folder / "runs" / agent / task / str(i), agent, task, seeds, example)
        size = sum(path.stat().st_size for path in (folder / "runs").rglob("*.jsonl"))
        command = [
            sys.executable,
            "-m",
            "rljax",
            "report",
            str(folder / "runs"),
            "--output",
            str(folder / "report.html"),
        ]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        page = (folder / "report.html").stat().st_size
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(
        f"{number * len(AGENTS) * len(TASKS)} runs, {size / 1e6:.0f} MB of lines: report in "
        f"{seconds:.1f} s, a page of {page / 1e6:.1f} MB; {os.cpu_count()} cores, load of "
        f"the machine {load}"
    )


if __name__ == "__main__":
    main()
