"""Frequency-averaged scores: returns of policies that decide in every 1 to 30 steps,
and see nothing in between.

SAC, TD3 and PPO hold their action, Sequence RL plays its sequence. `sac_held 8` learns with actions
that are held for 8 steps (a frame skip), from as many decisions as `sac`. The score of Patel and
Siegelmann, arXiv:2410.08979, is the area under returns over these lengths, by trapezoids, divided
by 30 times the largest return; what they add to returns and the largest return are those of their
notebook.

  python scripts/studies/decision_frequencies.py --task pendulum
  python scripts/studies/decision_frequencies.py --task inverted_pendulum
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rljax.runs import run
from rljax.runs.policies import evaluate
from rljax.runs.statistics import estimators
from rljax.system.hardware import provenance
from scripts.studies import shared

LENGTHS = (1, 2, 4, 8, 12, 16, 22, 30)  # steps from one decision to the next
LONGEST = 30


class Task(NamedTuple):
    """An environment, budgets, and what makes a score of returns."""

    env: str
    gymnasium: str  # the environment on the host, whose actions can be held
    steps: dict[str, int]
    added: float  # to returns
    largest: float  # return after that


TASKS = {
    "pendulum": Task(
        "rljax/Pendulum",
        "Pendulum-v1",
        {"ppo": 100_000, "others": 12_000},
        1_550.0,
        1_350.0,
    ),
    "inverted_pendulum": Task(
        "InvertedPendulum-v5",
        "InvertedPendulum-v5",
        {"ppo": 100_000, "td3": 60_000, "others": 20_000},
        0.0,
        1_000.0,
    ),
}
OFF_POLICY: dict[str, Any] = {
    "hidden": (64, 64),
    "batch_size": 128,
    "warmup_steps": 1_000,
    "replay_size": 100_000,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
}
SOFT = OFF_POLICY | {"temperature_lr": 1e-3}
SEQUENCE = SOFT | {"model_lr": 1e-3, "memory_hidden": (32,), "policy_delay": 2}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", SOFT),
    "sac_held 4": ("sac", SOFT),
    "sac_held 8": ("sac", SOFT),
    "sac_held 16": ("sac", SOFT),
    "td3": ("td3", OFF_POLICY),
    "ppo": ("ppo", {}),
    "sequence_rl 4": ("sequence_rl", SEQUENCE | {"sequence_length": 4}),
    "sequence_rl 8": ("sequence_rl", SEQUENCE | {"sequence_length": 8}),
    "sequence_rl 16": ("sequence_rl", SEQUENCE | {"sequence_length": 16}),
}


class Held(gymnasium.Wrapper):
    """A Gymnasium environment in which each action is played for `length` steps.

    The reward is their sum. An episode that ends in between ends the step.
    """

    def __init__(self, name: str, length: int) -> None:
        super().__init__(gymnasium.make(name))
        self.length = length

    def step(self, action: Any) -> Any:
        """Play one action."""
        total = 0.0
        for _ in range(self.length):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def environment(name: str, task: Task) -> str:
    """The environment in which an agent of the table learns."""
    label, _, length = name.partition(" ")
    if label != "sac_held":
        return task.env
    arguments = json.dumps({"name": task.gymnasium, "length": int(length)})
    return f"{Path(__file__)}:Held?{arguments}"


def trained(name: str, task: Task, seeds: int, folder: Path) -> Path:
    """The folder of a complete run. It is started or continued if necessary."""
    agent, config = AGENTS[name]
    steps, out = task.steps.get(agent, task.steps["others"]), folder / name.replace(" ", "-")
    settings: dict[str, Any] = {"seeds": seeds, "config": config, "out": out, "quiet": False}
    settings |= {"eval_every": steps // 4, "checkpoint_every": steps // 4}
    return shared.trained(
        out,
        steps,
        functools.partial(run.train, agent, environment(name, task), steps, **settings),
    )


def score(task: Task, returns: list[float]) -> float:
    """The frequency-averaged score of one seed, from its mean returns [length]."""
    area = estimators.frequency_averaged([task.added + mean for mean in returns], LENGTHS) * (
        LENGTHS[-1] - LENGTHS[0]
    )
    return area / (LONGEST * task.largest)


def main() -> None:
    """Train, play, print, and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument(
        "--agents", nargs="+", default=["sac", "td3", "ppo", "sequence_rl 8"], choices=AGENTS
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10, help="of each seed, for each length")
    parser.add_argument("--runs", type=Path, default=Path("runs/decision_frequencies"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/decision_frequencies"))
    options = parser.parse_args()
    task, path = TASKS[options.task], options.output / f"{options.task}.json"
    options.output.mkdir(parents=True, exist_ok=True)
    agents: dict[str, Any] = json.loads(path.read_text())["agents"] if path.exists() else {}
    for name in options.agents:
        out = trained(name, task, options.seeds, options.runs / options.task)
        played = [
            evaluate.evaluate_run(out, env=task.env, episodes=options.episodes, hold=length)
            for length in LENGTHS
        ]
        returns = [
            [float(np.mean(entry["returns"])) for entry in result["episodes"]] for result in played
        ]
        scores = [score(task, list(each)) for each in zip(*returns, strict=True)]
        agent, config = AGENTS[name]
        agents[name] = {
            "agent": agent,
            "config": config,
            "steps": played[0]["summary"]["step"],
            "returns": {
                str(length): np.round(each, 1).tolist()
                for length, each in zip(LENGTHS, returns, strict=True)
            },
            "scores": np.round(scores, 4).tolist(),
        }
        print(f"{name:<16} {np.mean(scores):.3f} +- {np.std(scores):.3f}", flush=True)
        described = {
            "env": task.env,
            "added": task.added,
            "largest": task.largest,
            "episodes": options.episodes,
        }
        path.write_text(
            json.dumps({**described, **provenance(), "agents": agents}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
