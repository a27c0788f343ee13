"""Agents with goals beside the commands of OGBench's authors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import Rule, Source, Tasks, in_words

TIMES: dict[Any, Any] = {True: "geometric", False: "even"}
COMMON: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "lr",
    "discount": "discount",
    "actor_goal_current": "actor_p_curgoal",
    "actor_goal_future": "actor_p_trajgoal",
    "actor_goal_times": in_words("actor_geom_sample", TIMES),
}
VALUES: dict[str, Rule] = {
    **COMMON,
    "value_lr": "lr",
    "hidden": ("actor_hidden_dims", "value_hidden_dims"),
    "layer_norm": "layer_norm",
    "target_rate": "tau",
    "expectile": "expectile",
    "value_goal_current": "value_p_curgoal",
    "value_goal_future": "value_p_trajgoal",
    "value_goal_times": in_words("value_geom_sample", TIMES),
}
GCIQL: dict[str, Rule] = {
    **VALUES,
    "critic_lr": "lr",
    "policy_loss": in_words("actor_loss", {"ddpgbc": "ddpg_bc"}),
    "imitation_weight": "alpha",
}
HIQL: dict[str, Rule] = {
    **{name: rule for name, rule in VALUES.items() if not name.endswith("_lr")},
    "learning_rate": "lr",
    "subgoal_steps": "subgoal_steps",
    "high_inverse_temperature": "high_alpha",
    "low_inverse_temperature": "low_alpha",
    "representation_size": "rep_dim",
}


def goal_tasks(agent: str) -> Callable[[Path], Tasks]:
    """All commands of an agent for states and continuous actions; there are no pictures here."""

    def read(checkout: Path) -> Tasks:
        defaults = readers.flat(readers.config(checkout / "impls" / "agents" / f"{agent}.py"))
        tasks: Tasks = {}
        for options in readers.commands(checkout / "impls" / "hyperparameters.sh", "main.py"):
            name = options["env_name"]
            pictures = name.startswith(("visual-", "powderworld-"))
            if options["agent"] != f"agents/{agent}.py" or pictures:
                continue
            theirs = {key.removeprefix("agent."): value for key, value in options.items()}
            tasks[f"ogbench/{name}"] = {**defaults, **theirs}
        return tasks

    return read


RULES: dict[str, dict[str, Rule]] = {
    "gcbc": {**COMMON, "hidden": "actor_hidden_dims"},
    "gciql": GCIQL,
    "gcivl": {**VALUES, "inverse_temperature": "alpha"},
    "hiql": HIQL,
}
SOURCES = tuple(
    Source(agent, "ogbench", "impls/hyperparameters.sh", goal_tasks(agent), rules)
    for agent, rules in RULES.items()
)
