"""Train runs that are sick on purpose and healthy ones, and see that `rljax diagnose` tells them
apart.

  python scripts/checks/diagnose_runs.py

A sick run must have the finding that it was made for. A healthy one must have none. The exit code
is 1 where that is not so. With `--pictures FOLDER`, metrics of two sick runs are drawn beside
those of healthy ones. `--only` names some of the runs; each takes seconds to a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rljax.analysis import diagnosis, learning_curves
from rljax.analysis.diagnosis import RunFinding
from rljax.runs import failures, run

SOURCE = '''
import time
import gymnasium
import numpy as np
from gymnasium import spaces


class Target(gymnasium.Env):
    """A number is to be repeated by the action."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    length = 20
    seconds = 0.0  # of each step
    counts = False  # whether observations hold the number of all steps so far
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observed(), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.time, self.steps = self.time + 1, self.steps + 1
        reward = 1.0 - abs(float(action[0]) - self.target)
        return self.observed(), reward, False, self.time == self.length, {}

    def observed(self):
        self.target = self.np_random.uniform(-1, 1)
        return np.array([self.target, self.steps if self.counts else 0.0], np.float32)


class Slow(Target):
    seconds = 0.01


class Counting(Target):
    counts = True


class Endless(Target):
    length = None
'''
REPLAY: dict[str, Any] = {"hidden": (64, 64), "batch_size": 64, "warmup_steps": 200}
ROLLOUT: dict[str, Any] = {
    "actor_hidden": (32, 32),
    "critic_hidden": (32, 32),
    "num_envs": 4,
    "num_steps": 64,
    "batch_size": 64,
    "num_epochs": 4,
    "learning_rate": 1e-3,
}
PENDULUM = "rljax/Pendulum"


@dataclasses.dataclass(frozen=True)
class Case:
    """A run, and what is wrong with it."""

    agent: str
    env: str  # a name, or a class of `SOURCE`
    steps: int
    config: dict[str, Any]
    finding: str | None = None  # None: healthy
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


SICK = {
    "warm-up longer than the run": Case(
        "sac",
        PENDULUM,
        1_000,
        REPLAY | {"warmup_steps": 5_000},
        "warm-up",
        {"without_updates": True},
    ),
    "learning rate of 10": Case(
        "td3",
        PENDULUM,
        2_000,
        REPLAY | {"actor_lr": 10.0, "critic_lr": 10.0},
        "values-beyond-rewards",
    ),
    "actor's learning rate of 1": Case(
        "td3", "Target", 1_500, REPLAY | {"actor_lr": 1.0}, "saturated-actions"
    ),
    "no entropy, large steps": Case(
        "ppo",
        "CartPole-v1",
        4_000,
        ROLLOUT | {"learning_rate": 0.1, "max_grad_norm": 0.0},
        "entropy-collapse",
    ),
    "discount of 0.9999, rewards times 1,000": Case(
        "sac",
        PENDULUM,
        2_000,
        REPLAY | {"discount": 0.9999, "reward_scale": 1_000.0},
        "values-growing",
    ),
    "gradients limited to 1e-6": Case(
        "ppo", PENDULUM, 4_000, ROLLOUT | {"max_grad_norm": 1e-6}, "policy-still"
    ),
    "one learner of three diverges": Case(
        "td3",
        PENDULUM,
        1_500,
        REPLAY | {"critic_lr": [1e-3, 1e30, 1e-3]},
        "diverged",
        {"seeds": 3},
    ),
    "an environment that sleeps": Case(
        "td3", "Slow", 800, REPLAY | {"hidden": (8,), "batch_size": 8}, "slow-environment"
    ),
    "episodes without end": Case(
        "ppo",
        "Endless",
        3_000,
        ROLLOUT,
        "endless-episodes",
        {"eval_episodes": 1, "eval_every": 3_000},
    ),
    "an observation that counts": Case("ppo", "Counting", 8_000, ROLLOUT, "unsteady-normaliser"),
    "a cost limit of 0, without a multiplier": Case(
        "ppo_lagrangian",
        "rljax/PointHazards",
        4_000,
        ROLLOUT | {"cost_limit": 0.0, "init_multiplier": 0.0, "multiplier_rate": 0.0},
        "cost-above-limit",
        {"eval_episodes": 30},
    ),
}
HEALTHY = {
    "SAC, Pendulum": Case("sac", PENDULUM, 6_000, REPLAY | {"actor_lr": 1e-3, "critic_lr": 1e-3}),
    "TD3, Pendulum, three learners": Case(
        "td3",
        PENDULUM,
        8_000,
        REPLAY | {"actor_lr": 1e-3, "critic_lr": 1e-3},
        settings={"seeds": 3},
    ),
    "PPO, CartPole": Case("ppo", "CartPole-v1", 16_000, ROLLOUT),
    "PPO, Target, three learners": Case("ppo", "Target", 16_000, ROLLOUT, settings={"seeds": 3}),
    "DQN, CartPole": Case(
        "dqn",
        "CartPole-v1",
        8_000,
        REPLAY | {"learning_rate": 1e-3, "epsilon_steps": 2_000.0, "target_every": 200},
    ),
    "SAC, Target": Case("sac", "Target", 2_000, REPLAY),
    "PPO-Lagrangian, point among hazards": Case(
        "ppo_lagrangian", "rljax/PointHazards", 32_000, ROLLOUT | {"cost_limit": 100.0}
    ),
    "TD3, Target": Case("td3", "Target", 2_000, REPLAY),
}
PICTURES = {
    "entropy-collapse": ("no entropy, large steps", "PPO, CartPole", "actor/entropy"),
    "values-growing": ("discount of 0.9999, rewards times 1,000", "SAC, Pendulum", "critic/q"),
}


def train(case: Case, out: Path, scale: float) -> Path:
    """The case's run in the folder `out`, with `scale` of its steps."""
    file = out.parent / "tasks.py"
    if not file.exists():
        file.write_text(SOURCE)
    steps = max(1, round(case.steps * scale))
    every: dict[str, Any] = {"log_every": max(1, steps // 40), "eval_every": max(1, steps // 10)}
    env = f"{file}:{case.env}" if f"class {case.env}(" in SOURCE else case.env
    settings: dict[str, Any] = every | {"eval_episodes": 5} | case.settings
    # A run that fails has records, too.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(failures.RunError):
        run.train(case.agent, env, steps, config=case.config, out=out, **settings)
    return out


def verdict(case: Case, findings: list[RunFinding]) -> str:
    """What is wrong with the findings of a case; empty where nothing is."""
    names = [finding.name for finding in findings]
    if case.finding is None:
        return f"false alarm: {', '.join(names)}" if names else ""
    return "" if case.finding in names else f"missed: {case.finding}"


def check(only: list[str], folder: Path, scale: float = 1.0) -> dict[str, Any]:
    """Train and diagnose the cases, print a line for each, and return the results by name."""
    results: dict[str, Any] = {}
    for name, case in (SICK | HEALTHY).items():
        if only and name not in only:
            continue
        began = time.perf_counter()
        findings = diagnosis.findings(train(case, folder / name, scale))
        wrong = verdict(case, findings)
        seconds = time.perf_counter() - began
        print(f"{'WRONG' if wrong else 'right'} {seconds:4.0f} s  {name}: {wrong}", flush=True)
        for finding in findings:
            print(f"    {finding.name}: {finding.evidence}", flush=True)
        results[name] = {
            "made for": case.finding,
            "findings": [dataclasses.asdict(finding) for finding in findings],
            "wrong": wrong,
        }
    return results


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of runs")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default: a temporary one")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all steps")
    parser.add_argument("--pictures", type=Path, help="folder for pictures")
    parser.add_argument("--output", type=Path, help="file of results (JSON)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.runs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = check(options.only, folder, options.scale)
        if options.output is not None:
            options.output.write_text(json.dumps(results, indent=2) + "\n")
        if options.pictures is not None:
            draw(folder, options.pictures)
    wrong = sum(bool(result["wrong"]) for result in results.values())
    print(f"{len(results) - wrong} of {len(results)} right")
    sys.exit(int(wrong > 0))


def draw(folder: Path, pictures: Path) -> None:
    """Draw the metrics of `PICTURES` from the runs in `folder`."""
    for name, (sick, healthy, metric) in PICTURES.items():
        runs = [folder / sick, folder / healthy]
        learning_curves.plot(runs, pictures / f"{name}.png", metric=metric)


if __name__ == "__main__":
    main()
