"""Policies trained on data with several modes: samples of each policy,
with and without the critics' guidance.

There is one state, and actions have two dimensions. The data have four clusters, one in each
corner, with different rewards: 1 in the upper right, 0.5 in the upper left, 0.25 in the lower left
and 0 in the lower right. A policy that imitates should cover all four. A guided policy should
choose the upper right, and never an action between clusters. Each agent trains twice on the same
10,000 rows, in the offline driver, with its own settings except for the size of its networks and
the weight of values.

  python scripts/studies/toy_policies.py --output results/studies/toy_policies
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from rljax.agent import EnvSpec, Transition
from rljax.learning import agent_state, configuration, registry
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from rljax.system.hardware import provenance

CENTRES = 0.6 * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
REWARDS = np.array([1.0, 0.5, 0.25, 0.0])
STD, ROWS, DRAWN = 0.08, 10_000, 1_000
COMMON: dict[str, Any] = {"hidden": (128, 128, 128), "actor_lr": 1e-3}
GUIDED = COMMON | {"critic_lr": 1e-3}
# For each policy: agent, settings without guidance, settings with it. Of a Gaussian, only mean and
# stds can be guided.
POLICIES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "BC, Gaussian": ("bc", COMMON | {"loss": "log_prob"}, None),
    "IQL": ("iql", GUIDED | {"inverse_temperature": 0.0}, GUIDED | {"inverse_temperature": 3.0}),
    "Diffusion-QL, T = 5": ("dql", GUIDED | {"value_weight": 0.0}, GUIDED | {"value_weight": 1.0}),
    "Diffusion-QL, T = 50": (
        "dql",
        GUIDED | {"value_weight": 0.0, "denoising_steps": 50, "improvement": "one_step"},
        GUIDED | {"value_weight": 1.0, "denoising_steps": 50, "improvement": "one_step"},
    ),
    "FQL": ("fql", GUIDED | {"distillation_weight": 1e3}, GUIDED | {"distillation_weight": 2.0}),
    "OFQL": ("ofql", GUIDED | {"value_weight": 0.0}, GUIDED | {"value_weight": 1.0}),
}


def data() -> tuple[Transition, np.ndarray]:
    """Rows [N, ...] of a single state, all terminal, and the cluster of each [N]."""
    generator = np.random.default_rng(0)
    cluster = generator.integers(len(CENTRES), size=ROWS)
    action = np.clip(CENTRES[cluster] + STD * generator.standard_normal((ROWS, 2)), -1.0, 1.0)
    nothing, ends = np.zeros((ROWS, 1), np.float32), np.ones(ROWS, np.bool_)
    columns: Any = (
        nothing,
        action.astype(np.float32),
        REWARDS[cluster].astype(np.float32),
        ends,
        ~ends,
        nothing,
    )
    return Transition(*columns), cluster


def drawn(agent: str, changes: dict[str, Any], updates: int) -> np.ndarray:
    """Actions [DRAWN, 2] of a trained agent.

    Gaussian policies sample around their mean; others act as usual.
    """
    module: Any = registry.load_agent(agent)
    config = configuration.replace(module.Config(), changes, "toy")
    if any(field.name == "num_candidates" for field in dataclasses.fields(config)):
        config = dataclasses.replace(config, num_candidates=1)  # the policy's own actions
    if hasattr(module, "schedule"):
        config = module.schedule(config, updates)
    spec = EnvSpec("toy", (1,), 2)
    learner = Learner(module, spec, 1)
    driver = OfflineDriver(learner, data()[0], configuration.stack(config, 1))
    driver.start([0])
    driver.advance(updates)
    state = jax.tree.map(lambda x: x[0], driver.agent_state)
    observation = np.zeros((DRAWN, 1), np.float32)
    key = jax.random.key(0)
    return np.asarray(agent_state.act(module, state, observation, key, config, explore=True)[0])


def near(action: np.ndarray) -> list[float]:
    """The share of actions [N, 2] within 4 stds of each cluster's centre,
    and the share near no centre.
    """
    distance = np.linalg.norm(action[:, None] - CENTRES, axis=-1)
    shares = (distance < 4 * STD).mean(axis=0)
    return [round(float(share), 3) for share in (*shares, 1.0 - shares.sum())]


def main() -> None:
    """Train all agents, and write shares.json and policies.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=6_000)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    transitions, _ = data()
    columns: dict[str, list[np.ndarray | None]] = {
        "data": [np.asarray(transitions.action)[:DRAWN], None]
    }
    shares: dict[str, Any] = {}
    for name, (agent, *settings) in POLICIES.items():
        columns[name] = [
            None if changes is None else drawn(agent, changes, options.updates)
            for changes in settings
        ]
        shares[name] = [None if action is None else near(action) for action in columns[name]]
        print(name, shares[name], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    described = {"updates": options.updates, **provenance(), "shares": shares}
    (options.output / "shares.json").write_text(json.dumps(described, indent=1) + "\n")

    figure = Figure(figsize=(2.4 * len(columns), 5), layout="tight")
    grid: Any = figure.subplots(2, len(columns), sharex=True, sharey=True)
    for i, (name, actions) in enumerate(columns.items()):
        for row, action in enumerate(actions):
            axes = grid[row][i]
            if action is None:
                axes.set_axis_off()
                continue
            axes.scatter(*action.T, s=3, alpha=0.4, linewidths=0)
            axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
            if i == 0:
                for centre, reward in zip(CENTRES, REWARDS, strict=True):
                    axes.annotate(
                        f"reward {reward:g}",
                        centre * [1.0, 0.3],
                        ha="center",
                        va="center",
                        fontsize=7,
                    )
        grid[0][i].set_title(name)
    grid[0][1].set_ylabel("imitation")
    grid[1][2].set_ylabel("guided by values")
    figure.savefig(options.output / "policies.png", dpi=120)


if __name__ == "__main__":
    main()
