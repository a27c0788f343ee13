"""SAC with goals in hindsight on Fetch's tasks, beside SAC with HerReplayBuffer of
Stable-Baselines3, with one setting.

  peer/bin/pip install stable-baselines3 gymnasium-robotics 'mujoco<3.12'
  taskset -c 1 python scripts/checks/compare_hindsight.py FetchReach --steps 10000 --seeds 3 \
      --every 1000 --peer peer/bin/python --output results/online/hindsight.json
  taskset -c 1 python scripts/checks/compare_hindsight.py FetchPush --steps 180000 \
      --peer-steps 100000 --seeds 1 --every 10000 --peer peer/bin/python \
      --output results/online/hindsight.json

Ours needs rljax-suite[robotics]. Both have the settings of `COMMON` and of the task in `TASKS`: one
environment, one update a step, torch's initialisation, observations as they are, and 4 goals
replaced for each one kept. Ours draws half of the new goals from the same episode's later steps and
half from other episodes; the peer draws all from the same episode. Both play 20 episodes with the
mean action at each evaluation; success is that of an episode's last step.

The two alternate, seed by seed, each in a separate process. A sample is written as soon as it is
there, and one that the file has already is not run again. Steps a second are those of the training
loop without evaluations.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.measuring import measure, options_of

EPISODES = 20
COMMON = {
    "learning_rate": 1e-3,
    "batch_size": 256,
    "discount": 0.95,
    "warmup_steps": 1_000,
    "replay_size": 1_000_000,
}
# RL Zoo has no settings of SAC for pushing; its target rate there is TQC's.
TASKS: dict[str, dict[str, Any]] = {
    "FetchReach": {"target_rate": 0.005, "hidden": (64, 64)},
    "FetchPush": {"target_rate": 0.05, "hidden": (256, 256)},
}


def ours(task: str, steps: int, seed: int, every: int) -> dict[str, Any]:
    """The success of our SAC at each evaluation, and its speed."""
    from rljax.runs import records, run

    rate = COMMON["learning_rate"]
    same = {
        name: value for name, value in (COMMON | TASKS[task]).items() if name != "learning_rate"
    }
    changes = same | dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), rate)
    changes |= {"hindsight": 0.8, "initialisation": "torch", "normalise_observations": False}
    settings: dict[str, Any] = {
        "eval_every": every,
        "eval_episodes": EPISODES,
        "checkpoint_every": 10**9,
    }
    with tempfile.TemporaryDirectory() as folder:
        name = f"gymnasium_robotics:{task}-v4"
        done = run.train(
            "sac", name, steps, seeds=[seed], config=changes, out=Path(folder, "run"), **settings
        )
        lines = records.read(done, "evaluations")
        summary = json.loads((done / "summary.json").read_text())
    return {
        "steps_evaluated": [line["step"] for line in lines],
        "success": [float(np.mean(line["success"])) for line in lines],
        "returns": [float(np.mean(line["returns"])) for line in lines],
        "steps_per_second": summary["steps_per_second"],
    }


def peer(task: str, steps: int, seed: int, every: int) -> dict[str, Any]:
    """The same of Stable-Baselines3's SAC."""
    import gymnasium
    import gymnasium_robotics  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
    from stable_baselines3 import SAC, HerReplayBuffer  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    gymnasium.register_envs(gymnasium_robotics)
    playing = gymnasium.make(f"{task}-v4")

    def episode(model: Any, number: int) -> tuple[float, float]:
        observation, _ = playing.reset(seed=10_000 + number)
        total, info, ended = 0.0, {}, False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, info = playing.step(action)
            total, ended = total + float(reward), terminated or truncated
        return float(info["is_success"]), total

    class Evaluations(BaseCallback):
        """Evaluates at every `every`-th step, and measures what remains."""

        began, steps, success, returns = 0.0, [], [], []
        evaluating = 0.0

        def _on_step(self) -> bool:
            if not self.began and self.num_timesteps >= COMMON["warmup_steps"]:
                self.began = time.perf_counter()
            if self.num_timesteps % every == 0:
                since = time.perf_counter()
                played = np.array([episode(self.model, number) for number in range(EPISODES)])
                self.steps.append(self.num_timesteps)
                self.success.append(float(played[:, 0].mean()))
                self.returns.append(float(played[:, 1].mean()))
                self.evaluating += time.perf_counter() - since
            return True

    settings = COMMON | TASKS[task]
    model = SAC(
        "MultiInputPolicy",
        gymnasium.make(f"{task}-v4"),
        learning_rate=settings["learning_rate"],
        batch_size=settings["batch_size"],
        gamma=settings["discount"],
        tau=settings["target_rate"],
        buffer_size=settings["replay_size"],
        learning_starts=settings["warmup_steps"],
        policy_kwargs={"net_arch": list(settings["hidden"])},
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        seed=seed,
        device="cpu",
    )
    evaluations = Evaluations()
    model.learn(steps, callback=evaluations)
    seconds = time.perf_counter() - evaluations.began - evaluations.evaluating
    return {
        "steps_evaluated": evaluations.steps,
        "success": evaluations.success,
        "returns": evaluations.returns,
        "steps_per_second": (steps - settings["warmup_steps"]) / seconds,
    }


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": ours, "peer": peer}


def main() -> None:
    """Run what the file lacks, ours and the peer's in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", choices=sorted(TASKS))
    parser.add_argument(
        "--peer", help="Python of an environment that has stable-baselines3 and gymnasium-robotics"
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument(
        "--peer-steps", type=int, help="steps of the peer, where both shall have the same time"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1_000, help="steps between evaluations")
    options = options_of(parser, WORKERS)
    if options.task is None or options.peer is None or options.output is None:
        parser.error("name a task, --peer and --output")
    from rljax.system.hardware import provenance

    file = json.loads(options.output.read_text()) if options.output.exists() else {}
    samples = file.setdefault(options.task, {"ours": {}, "stable-baselines3": {}})
    for seed in range(options.seeds):
        for name, python, worker, steps in (
            ("ours", sys.executable, "ours", options.steps),
            ("stable-baselines3", options.peer, "peer", options.peer_steps or options.steps),
        ):
            if str(seed) in samples[name]:
                continue
            arguments = (options.task, steps, seed, options.every)
            sample = measure(python, worker, *arguments, script=__file__)
            samples[name][str(seed)] = sample
            samples |= {
                "settings": COMMON | TASKS[options.task],
                "steps": options.steps,
                "episodes": EPISODES,
            }
            samples |= {"command": " ".join(["python", *sys.argv]), **provenance()}
            options.output.write_text(json.dumps(file, indent=1) + "\n")
            speed, success = sample["steps_per_second"], sample["success"][-1]
            print(
                f"{options.task}, seed {seed}, {name}: success {success:.2f}, {speed:,.0f} steps/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
