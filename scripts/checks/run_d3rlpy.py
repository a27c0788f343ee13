"""Run d3rlpy's DiscreteCQL on a data set that rljax recorded,
and print its returns and its updates per second.

  python scripts/checks/run_d3rlpy.py cartpole.npz --env CartPole-v1 --seed 0 --steps 10000

The data set is a .npz file of vectors and one discrete action a row. Settings are d3rlpy's, but for
those that the options name. The policy plays 20 episodes after each half of the updates, whose time
does not count. The Python has d3rlpy (2.8.1 was tried), torch, numpy and gymnasium; it needs no
rljax.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import Any

import gymnasium
import numpy as np

EPISODES = 20


def evaluate(algorithm: Any, env: str) -> float:
    """The mean return of `EPISODES` episodes of the greedy policy."""
    environment, returns = gymnasium.make(env), []
    for episode in range(EPISODES):
        observation, _ = environment.reset(seed=10_000 + episode)
        total, ended = 0.0, False
        while not ended:
            action = int(algorithm.predict(np.asarray(observation, np.float32)[None])[0])
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    """Train, evaluate and print one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--target-every", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    d3rlpy, torch = map(importlib.import_module, ("d3rlpy", "torch"))
    torch.set_num_threads(options.threads)
    d3rlpy.seed(options.seed)
    with np.load(options.data) as file:
        ends = (file[key].astype(np.float32) for key in ("terminals", "timeouts"))
        number = int(file["actions"].max()) + 1
        discrete = {"action_space": d3rlpy.ActionSpace.DISCRETE, "action_size": number}
        arrays = (file["observations"], file["actions"], file["rewards"])
        data = d3rlpy.dataset.MDPDataset(*arrays, *ends, **discrete)
    algorithm = d3rlpy.algos.DiscreteCQLConfig(
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
        target_update_interval=options.target_every,
    ).create()
    half, spent, returns = options.steps // 2, 0.0, []
    quiet = {
        "show_progress": False,
        "save_interval": 10**9,
        "logger_adapter": d3rlpy.logging.NoopAdapterFactory(),
    }
    for _ in range(2):
        began = time.perf_counter()
        algorithm.fit(data, n_steps=half, n_steps_per_epoch=half, **quiet)
        spent += time.perf_counter() - began
        returns.append(evaluate(algorithm, options.env))
    print(
        json.dumps(
            {"seed": options.seed, "returns": returns, "updates_per_second": 2 * half / spent}
        )
    )


if __name__ == "__main__":
    main()
