"""Agents with goals beside the commands of OGBench's authors, and the defaults of CRL-online's."""

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


def of_environments(name: str) -> Rule:
    """A number for each environment as one for all of them."""
    return lambda theirs: theirs[name] * theirs["num_envs"]


ENERGIES = {"norm": "distance", "l2": "square", "dot": "product"}
DIRECTIONS = {"fwd_infonce": "forward", "bwd_infonce": "backward", "sym_infonce": "symmetric"}
ONLINE: dict[str, Rule] = {
    "critic_lr": "critic_lr",
    "temperature_lr": "alpha_lr",
    "batch_size": "batch_size",
    "num_envs": "num_envs",
    "num_steps": "unroll_length",
    "replay_size": of_environments("max_replay_size"),
    "warmup_steps": of_environments("min_replay_size"),
    "normaliser_penalty": "logsumexp_penalty_coeff",
    "activation": lambda theirs: "relu" if theirs["use_relu"] else "silu",
    # What their code does and no setting of it says.
    "initialisation": lambda theirs: "fan_in_uniform",
    "log_std_min": lambda theirs: -5.0,
    "log_std_max": lambda theirs: 2.0,
    "temperature_loss": lambda theirs: "alpha",
    "init_temperature": lambda theirs: 1.0,
    "normalise_observations": lambda theirs: False,
}
JAXGCRL: dict[str, Rule] = {
    **ONLINE,
    "actor_lr": "policy_lr",
    "discount": "discounting",
    "num_updates": "num_updates",
    "energy": in_words("energy_fn", ENERGIES),
    "contrast": in_words("contrastive_loss_fn", DIRECTIONS),
    "hidden": lambda theirs: [theirs["h_dim"]],
    "critic_hidden": lambda theirs: [theirs["h_dim"]],
    "depth": "n_hidden",
    "skip": "skip_connections",
    "layer_norm": "use_ln",
    "latent_size": "repr_dim",
    "target_entropy_share": lambda theirs: 0.5,
}
DEEP: dict[str, Rule] = {
    **ONLINE,
    "actor_lr": "actor_lr",
    "discount": "gamma",
    "num_updates": "num_sgd_batches_per_training_step",
    "hidden": lambda theirs: [theirs["actor_network_width"]],
    "critic_hidden": lambda theirs: [theirs["critic_network_width"]],
    "depth": lambda theirs: 1 + theirs["critic_depth"],  # a first layer, then blocks
    "target_entropy_share": "entropy_param",
    "energy": lambda theirs: "distance",
    "contrast": lambda theirs: "forward",
    "skip": lambda theirs: 4,
    "layer_norm": lambda theirs: True,
    "latent_size": lambda theirs: 64,
}


def jaxgcrl_tasks(checkout: Path) -> Tasks:
    """Their defaults; an epoch over a piece of 1,000 rows of each environment is the updates."""
    folder = checkout / "jaxgcrl" / "agents" / "crl"
    readers.says(folder / "crl.py", "target_entropy = -0.5 * action_size")
    readers.says(folder / "crl.py", "log_alpha = jnp.asarray(0.0, dtype=jnp.float32)")
    readers.says(folder / "networks.py", 'variance_scaling(1 / 3, "fan_in", "uniform")')
    run = readers.dataclass(checkout / "jaxgcrl" / "utils" / "config.py", "RunConfig")
    theirs = {**run, **readers.dataclass(folder / "crl.py", "CRL")}
    rows = theirs["num_envs"] * (theirs["episode_length"] - 1)
    return {"rljax/GoalMaze": {**theirs, "num_updates": rows // theirs["batch_size"]}}


def deep_tasks(checkout: Path) -> Tasks:
    """Their defaults."""
    train = checkout / "train.py"
    readers.says(train, 'norm_type = "layer_norm"')
    readers.says(train, "for i in range(self.network_depth // 4):")
    readers.says(train, "-jnp.sqrt(jnp.sum((sa_repr[:, None, :] - g_repr[None, :, :]) ** 2")
    return {"rljax/GoalMaze": readers.dataclass(train, "Args")}


SOURCES = tuple(
    Source(agent, "ogbench", "impls/hyperparameters.sh", tasks, rules)
    for agent, tasks, rules in (
        *((agent, goal_tasks(agent), rules) for agent, rules in RULES.items()),
        ("qrl", qrl_tasks, QRL),
    )
)
SOURCES += (
    Source(
        "crl_online",
        "JaxGCRL",
        "jaxgcrl/agents/crl, jaxgcrl/utils/config.py",
        jaxgcrl_tasks,
        JAXGCRL,
        variant="jaxgcrl",
    ),
    Source("crl_online", "scaling-crl", "train.py", deep_tasks, DEEP, variant="deep"),
)
