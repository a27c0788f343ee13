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
GOALS: dict[str, Rule] = {  # with goals of values, too
    **COMMON,
    "hidden": ("actor_hidden_dims", "value_hidden_dims"),
    "layer_norm": "layer_norm",
    "value_goal_current": "value_p_curgoal",
    "value_goal_future": "value_p_trajgoal",
    "value_goal_times": in_words("value_geom_sample", TIMES),
}
VALUES: dict[str, Rule] = {
    **GOALS,
    "value_lr": "lr",
    "target_rate": "tau",
    "expectile": "expectile",
}
POLICY: dict[str, Rule] = {
    "policy_loss": in_words("actor_loss", {"ddpgbc": "ddpg_bc"}),
    "imitation_weight": "alpha",
}
GCIQL: dict[str, Rule] = {**VALUES, **POLICY, "critic_lr": "lr"}
CRL: dict[str, Rule] = {
    **GOALS,
    **POLICY,
    "critic_lr": "lr",
    "value_lr": "lr",
    "latent_size": "latent_dim",
}
QRL: dict[str, Rule] = {
    **GOALS,
    **POLICY,
    "model_lr": "lr",
    "multiplier_lr": "lr",
    "quasimetric": "quasimetric_type",
    "latent_size": "latent_dim",
    "tolerance": "eps",
    # What their class does and no setting of it says.
    "push_offset": lambda theirs: 500.0,
    "push_width": lambda theirs: 100.0,
    "init_multiplier": lambda theirs: 1.0,
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


def qrl_tasks(checkout: Path) -> Tasks:
    """Those of `goal_tasks`; the rest of the rules is written in code."""
    agent = checkout / "impls" / "agents" / "qrl.py"
    readers.says(agent, "d_neg_loss = (100 * jax.nn.softplus(5 - d_neg / 100)).mean()")
    readers.says(agent, "lam_def = LogParam()")
    return goal_tasks("qrl")(checkout)


RULES: dict[str, dict[str, Rule]] = {
    "gcbc": {**COMMON, "hidden": "actor_hidden_dims"},
    "crl": CRL,
    "gciql": GCIQL,
    "gcivl": {**VALUES, "inverse_temperature": "alpha"},
    "hiql": HIQL,
}
SOURCES = tuple(
    Source(agent, "ogbench", "impls/hyperparameters.sh", tasks, rules)
    for agent, tasks, rules in (
        *((agent, goal_tasks(agent), rules) for agent, rules in RULES.items()),
        ("qrl", qrl_tasks, QRL),
    )
)
