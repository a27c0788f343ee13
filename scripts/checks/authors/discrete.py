"""Agents for discrete actions: those in the style of Dopamine, whose settings stand in files of
gin, and CQL beside d3rlpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import Intended, Rule, Source, Tasks, in_words

DOPAMINE: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "adam_epsilon": "eps",
    "batch_size": "batch_size",
    "replay_size": "replay_capacity",
    "warmup_steps": "min_replay_history",
    "num_steps": "update_period",
    "target_every": lambda theirs: theirs["target_update_period"] // theirs["update_period"],
    "discount": "gamma",
    "n_step": "update_horizon",
}

# Munchausen DQN.

MUNCHAUSEN: dict[str, Rule] = {
    **DOPAMINE,
    "learning_rate": "optimizer_lr",
    "epsilon_end": "epsilon_train",
    "epsilon_steps": "epsilon_decay_period",
    "munchausen": lambda theirs: True,
    "munchausen_scale": "alpha",
    "munchausen_temperature": "tau",
    "munchausen_floor": "clip_value_min",
    "evaluation": "interact",
}


def munchausen_tasks(checkout: Path) -> Tasks:
    """Two files of gin, with the options of the program and the optimiser of the agent's code."""
    folder = checkout / "munchausen_rl"
    options = readers.arguments(folder / "train.py")
    names = ("alpha", "tau", "clip_value_min", "interact")
    agent = readers.keywords(folder / "agents" / "m_dqn.py", "AdamOptimizer")
    values: dict[str, Any] = {name: options[name] for name in names} | {"eps": agent["epsilon"]}
    kinds = ("MunchausenDQNAgent", "WrappedReplayBuffer")
    files = {"atari/Breakout": "atari", "CartPole-v1": "cartpole"}
    return {
        task: {**values, **readers.gin(folder / "configs" / f"{file}.gin", *kinds)}
        for task, file in files.items()
    }


# DQN on MinAtar.

MINATAR: dict[str, Rule] = {
    **DOPAMINE,
    "loss": in_words("mse_inf", {True: "squared", False: "huber"}),
    "hidden": lambda theirs: (theirs["neurons"],) * theirs["hidden_layer"],
    "double": lambda theirs: theirs["target_opt"] == 1,
    "munchausen": lambda theirs: theirs["target_opt"] == 2,
    "dueling": "dueling",
    "exploration": in_words("noisy", {True: "noisy", False: "epsilon"}),
    "initialisation": lambda theirs: {
        (1, "fan_avg", "uniform"): "glorot_uniform",
    }.get((theirs["scale"], theirs["mode"], theirs["distribution"])),
}


def minatar_tasks(checkout: Path) -> Tasks:
    """A file of gin for each game."""
    folder = checkout / "revisiting_rainbow" / "Configs"
    kinds = ("JaxDQNAgent", "JaxDQNAgentNew", "OutOfGraphPrioritizedReplayBuffer")
    kinds += ("create_optimizer", "variance_scaling")
    files = {
        "Asterix": "asterix",
        "Breakout": "breakout",
        "Freeway": "freeway",
        "SpaceInvaders": "invaders",
    }
    return {
        f"gymnax/{game}-MinAtar": readers.gin(folder / f"dqn_{file}.gin", *kinds)
        for game, file in files.items()
    }


# CQL for discrete actions, with d3rlpy's defaults.

CQL: dict[str, Rule] = {
    "critic_lr": "learning_rate",
    "batch_size": "batch_size",
    "discount": "gamma",
    "num_critics": "n_critics",
    "target_every": "target_update_interval",
    "penalty_weight": "alpha",
    "hidden": "hidden_units",
}


def cql_tasks(checkout: Path) -> Tasks:
    """The defaults of the algorithm, with the layers of its network."""
    folder, hidden = checkout / "d3rlpy", (256, 256)
    text = f"hidden_units: list[int] = field(default_factory=lambda: {list(hidden)})"
    readers.says(folder / "models" / "encoders.py", text)
    values = readers.dataclass(folder / "algos" / "qlearning" / "cql.py", "DiscreteCQLConfig")
    return {"defaults": {**values, "hidden_units": hidden}}


SOURCES = (
    Source(
        "cql_discrete",
        "d3rlpy",
        "d3rlpy/algos/qlearning/cql.py",
        cql_tasks,
        CQL,
        (Intended("target_every", "*", "d3rlpy makes them every 8,000"),),
    ),
    Source(
        "dqn",
        "google-research",
        "munchausen_rl/configs, munchausen_rl/train.py",
        munchausen_tasks,
        MUNCHAUSEN,
        variant="munchausen",
    ),
    Source(
        "dqn",
        "revisiting_rainbow",
        "revisiting_rainbow/Configs/dqn_*.gin",
        minatar_tasks,
        MINATAR,
    ),
)
