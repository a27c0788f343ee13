"""Folders of runs as a training leaves them, written without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.learning.settings import Settings
from rljax.runs.records import Recorder, write_json
from rljax.runs.schema import FORMAT, NEEDED

SPEC = {
    "name": "Hopper-v5",
    "observation_shape": [11],
    "action_size": 3,
    "discrete": False,
    "max_episode_steps": 1000,
}
STEPS = (10_000, 20_000, 30_000)


def described(
    agent: str, environment: str, seeds: Sequence[int], steps: int, **changes: Any
) -> dict[str, Any]:
    """A whole config.json. `changes` replace its entries."""
    settings = Settings(agent=agent, env=environment, seeds=tuple(seeds), steps=steps)
    return {
        **dict.fromkeys(NEEDED),
        **dataclasses.asdict(settings),
        "format": FORMAT,
        "environment": environment,
        "storage": "replay",
        "config": {},
        "learners": [{"seed": seed, "settings": {}} for seed in seeds],
        "spec": SPEC,
        "state_bytes": 1_000_000,
        "devices_used": [1],
        **changes,
    }


def write(
    path: Path,
    agent: str = "sac",
    environment: str = "Hopper-v5",
    seeds: Sequence[int] = (0, 1, 2),
    steps: Sequence[int] = STEPS,
    budget: int = STEPS[-1],
    level: float = 1000.0,
    episodes: int = 4,
    config: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    own: dict[str, list[float]] | None = None,
    **changes: Any,
) -> Path:
    """A run in which learner k ends at `level` + 10 k, having risen in proportion to its steps.
    `own` has settings in which the learners differ. `evaluation` is added to each evaluation,
    `changes` to config.json. The run is complete if its last step is its `budget`.
    """
    path.mkdir(parents=True)
    own = own or {}
    settings = {"actor_lr": 3e-4, "hidden": [256, 256]} | (config or {}) | own
    learners = [
        {"seed": s, "settings": {name: x[p] for name, x in own.items()}}
        for p, s in enumerate(seeds)
    ]
    written = {
        "config": settings,
        "learners": learners,
        "command": f"rljax train {agent} --env {environment}",
        "processor": "a processor",
        "devices": ["cpu (cpu:0)"],
        "versions": {"rljax": "0.1.0", "jax": "0.10.2"},
        "git_revision": "0123456789abcdef",
    }
    content = described(agent, environment, seeds, budget, **(written | changes))
    write_json(path / "config.json", content)
    with Recorder(path) as recorder:
        for step in steps:
            line = {
                "step": step,
                "wall_seconds": step / 100,
                "steps_per_second": 100.0 * len(seeds),
            }
            recorder.metrics(line | {"critic/loss": [1.0] * len(seeds)})
            for learner, seed in enumerate(seeds):
                noise = np.linspace(-1.0, 1.0, episodes) if episodes > 1 else np.zeros(1)
                returns = (level + 10 * learner) * step / budget + noise
                record = {"step": step, "learner": learner, "seed": seed, "returns": returns}
                recorder.evaluation(record | (evaluation or {}))
        if steps:
            summary = {
                "complete": steps[-1] >= budget,
                "wall_seconds": steps[-1] / 100,
                "compile_seconds": 7.0,
            }
            recorder.summary(
                summary | {"steps_per_second": 321.0, "peak_memory_bytes": 1_500_000_000}
            )
    return path
