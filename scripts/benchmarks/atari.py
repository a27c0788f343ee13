"""Speed of DQN on an Atari game, beside Stable Baselines Jax (sbx-rl),
with the same network and sizes.

  peer/bin/pip install sbx-rl 'gymnasium[atari]' ale-py opencv-python-headless
  taskset -c 0 python scripts/benchmarks/atari.py --peer peer/bin/python \
      --output results/speed/measurements/atari.json

Ours needs EnvPool and ALE: pip install 'rljax-suite[envpool,atari]'. Both have the convolutions of
Mnih et al. with 512 units, 8 games side by side, an update of 32 transitions for each 4 steps, and
a replay of 10,000 transitions. Ours runs on EnvPool's games and on those of ALE; the peer on its
own wrappers of ALE's games. Neither evaluates. Measurements alternate, each in a separate process,
after compilation. Medians are reported. `taskset` limits all to one core. A step is 4 frames.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from scripts.benchmarks.measuring import conclude, measure, options_of, prepared, timed

GAMES, UPDATES, BATCH, ROWS = 8, 2, 32, 10_000
WARMUP = 800  # steps


def ours(environment: str, steps: int) -> dict[str, Any]:
    """Steps per second of our training loop."""
    sizes = {
        "num_envs": GAMES,
        "num_steps": 1,
        "num_updates": UPDATES,
        "batch_size": BATCH,
        "replay_size": ROWS,
    }
    changes = sizes | {"warmup_steps": WARMUP, "hidden": (), "loss": "huber", "target_every": 250}
    with prepared("dqn", 1, WARMUP + 2 * steps, changes, environment) as training:
        timed(training.driver, (WARMUP + steps // 4) // GAMES)
        seconds = timed(training.driver, steps // GAMES)
        weights = _size(training.driver.agent_state.state.critic.parameters)
    return {"steps_per_second": steps / seconds, "weights": weights}


def peer(game: str, steps: int) -> dict[str, Any]:
    """Steps per second of sbx's training loop."""
    import ale_py  # pyright: ignore[reportMissingImports]
    import gymnasium
    from sbx import DQN  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import make_atari_env  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import VecFrameStack  # pyright: ignore[reportMissingImports]

    class Clock(BaseCallback):
        """The time when a number of steps is done."""

        began = 0.0

        def _on_step(self) -> bool:
            if not self.began and self.num_timesteps >= WARMUP + steps // 4:
                self.began = time.perf_counter()
                self.first = self.num_timesteps
            return True

    gymnasium.register_envs(ale_py)
    plain = {"frameskip": 1, "repeat_action_probability": 0.0}
    games = VecFrameStack(
        make_atari_env(f"ALE/{game}-v5", n_envs=GAMES, env_kwargs=plain), n_stack=4
    )
    sizes = {"buffer_size": ROWS, "batch_size": BATCH, "train_freq": 1, "gradient_steps": UPDATES}
    model = DQN(
        "CnnPolicy", games, learning_starts=WARMUP, policy_kwargs={"net_arch": [512]}, **sizes
    )
    clock = Clock()
    model.learn(WARMUP + steps // 4 + steps, callback=clock)
    seconds = time.perf_counter() - clock.began
    weights = _size(model.policy.qf_state.params)
    return {"steps_per_second": (model.num_timesteps - clock.first) / seconds, "weights": weights}


def _size(parameters: Any) -> int:
    import jax

    return sum(x.size for x in jax.tree.leaves(parameters))


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": ours, "peer": peer}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", help="Python of an environment that has sbx-rl; without it only ours"
    )
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--steps", type=int, default=4_000)
    options = options_of(parser, WORKERS)

    samples: dict[str, list[float]] = {}

    def note(name: str, python: str, worker: str, task: str) -> None:
        figures = measure(python, worker, task, options.steps, script=__file__)
        samples.setdefault(f"{name} steps/s", []).append(figures["steps_per_second"])
        print(
            f"{name:<28} {figures['steps_per_second']:>10,.1f} steps/s, "
            f"{figures['weights']:,} weights",
            flush=True,
        )

    for _ in range(options.rounds):
        note("ours, EnvPool", sys.executable, "ours", f"envpool/{options.game}-v5")
        if options.peer:
            note("sbx, ALE", options.peer, "peer", options.game)
        note("ours, ALE", sys.executable, "ours", f"atari/{options.game}")

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {
        f"{name} / sbx, ALE": medians[f"{name} steps/s"] / medians["sbx, ALE steps/s"]
        for name in ("ours, EnvPool", "ours, ALE")
        if options.peer
    }
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
