"""Train one of OGBench's unmodified agents of goals on its data, downloaded or recorded here, and
score it as scripts/studies/offline/goals.py scores ours.

  python scripts/checks/run_ogbench.py gcivl pointmaze-medium-stitch-v0.npz OUT.json \
      --peer ogbench --updates 9000 --hidden 256 256 256 --batch-size 256

All settings but those of size are of its command for the agent and the data set. The success over
the five tasks is written after each evaluation. The folder `ogbench` has seohongpark/ogbench of
GitHub at 1d41409; the Python has the packages ogbench, jax, flax, distrax, ml_collections and yaml,
and needs no rljax.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.measuring import use_code
from scripts.benchmarks.offline import GOALS
from scripts.checks.authors import readers

TASKS = range(1, 6)
PACKAGES = ("ogbench", "jax", "flax", "numpy", "mujoco", "gymnasium")


def settings_of(peer: Path, agent: str, data: str) -> dict[str, Any]:
    """What the authors' command for an agent and a data set changes of the agent's defaults."""
    file = f"agents/{agent}.py"
    for options in readers.commands(peer / "impls" / "hyperparameters.sh", "main.py"):
        if (options["env_name"], options["agent"]) == (data, file):
            changes = [name for name in options if name.startswith("agent.")]
            return {name.removeprefix("agent."): options[name] for name in changes}
    raise SystemExit(f"error: hyperparameters.sh has no command of {agent} for {data}.")


def main() -> None:
    """Train, and write the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", choices=list(GOALS))
    parser.add_argument("data", type=Path, help="OGBench's file, under its name")
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--peer", type=Path, required=True, help="a clone of OGBench")
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--eval-every", type=int, default=3_000)
    parser.add_argument("--episodes", type=int, default=10, help="of each of the five tasks")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256, 256])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    changes = settings_of(options.peer, options.agent, options.data.stem)
    train(options, changes)


def train(options: argparse.Namespace, changes: dict[str, Any]) -> None:
    """Train by the authors' classes, evaluating on the way."""
    use_code(options.peer / "impls")
    agents, datasets, evaluation = (
        importlib.import_module(name) for name in ("agents", "utils.datasets", "utils.evaluation")
    )
    ogbench = importlib.import_module("ogbench")
    config = importlib.import_module(f"agents.{options.agent}").get_config()
    hidden = tuple(options.hidden)
    sizes: dict[str, Any] = {"actor_hidden_dims": hidden, "value_hidden_dims": hidden}
    sizes["batch_size"] = options.batch_size
    config.update({name: x for name, x in sizes.items() if name in config} | changes)
    np.random.seed(options.seed)
    rows = importlib.import_module("ogbench.utils").load_dataset(options.data)
    data = getattr(datasets, config["dataset_class"])(datasets.Dataset.create(**rows), config)
    example = data.sample(1)
    first = (example["observations"], example["actions"])
    agent = agents.agents[options.agent].create(options.seed, *first, config)
    environment = ogbench.make_env_and_datasets(options.data.stem, env_only=True)
    outcome = {
        "agent": options.agent,
        "data": options.data.name,
        "sha256": hashlib.sha256(options.data.read_bytes()).hexdigest(),
        "settings": changes,
        "hidden": options.hidden,
        "batch_size": options.batch_size,
        "seed": options.seed,
        "episodes": options.episodes,
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "evaluations": [],
    }
    began = time.perf_counter()
    for updates in range(1, options.updates + 1):
        agent, _ = agent.update(data.sample(config["batch_size"]))
        if updates % options.eval_every == 0:
            success = []
            for task in TASKS:
                inputs = (agent, environment, task, config, options.episodes)
                success.append(float(evaluation.evaluate(*inputs)[0]["success"]))
            score = {"updates": updates, "success": success, "seconds": time.perf_counter() - began}
            outcome["evaluations"].append(score)
            options.out.write_text(json.dumps(outcome, indent=1) + "\n")
            print(f"{updates:,} updates: {100 * np.mean(success):.0f}% {success}", flush=True)


if __name__ == "__main__":
    main()
