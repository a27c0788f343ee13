"""Agents of recent off-policy methods, beside the files of their authors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import (
    ROBOTS,
    Intended,
    Rule,
    Settings,
    Source,
    Tasks,
    discount_of_limit,
    in_words,
    layers,
    number_of,
    per_task,
)

OWN_PENDULUM = "warm-up and replay: own choice for a run of 10,000 steps"


def rows(path: Path, column: str) -> dict[str, float]:
    """The numbers of the last table of a page whose last column is `column`, by first column."""
    text = path.read_text().rsplit(f"{column} ", 1)[1]
    pairs = re.findall(r"^\|\s*(\w+)\s*\|\s*([\d.]+)\s*\|", text, re.MULTILINE)
    return {name: float(number) for name, number in pairs}


# TQC of SamsungLabs.

TQC: dict[str, Rule] = {
    "quantiles": "n_quantiles",
    "dropped_quantiles": number_of("top_quantiles_to_drop_per_net"),
    "num_critics": "n_nets",
    "hidden": "actor",
    "critic_hidden": "critic",
    "batch_size": "batch_size",
    "discount": "discount",
    "target_rate": "tau",
    "actor_lr": "lr",
    "critic_lr": "lr",
    "temperature_lr": "lr",
    "replay_size": number_of("max_size"),
}


def tqc_tasks(checkout: Path) -> Tasks:
    """The program's defaults, with the number of quantiles of the README's table."""
    values = readers.arguments(checkout / "main.py")
    for name in ("actor.parameters()", "critic.parameters()", "[self.log_alpha]"):
        name = name if name.startswith("[") else f"self.{name}"
        readers.says(checkout / "tqc" / "trainer.py", f"torch.optim.Adam({name}, lr=3e-4)")
    structures = checkout / "tqc" / "structures.py"
    readers.says(structures, "max_size=int(1e6)")
    readers.says(structures, "Mlp(state_dim + action_dim, [512, 512, 512], n_quantiles)")
    readers.says(structures, "Mlp(state_dim, [256, 256], 2 * action_dim)")
    values |= {"lr": 3e-4, "max_size": 1e6, "actor": (256, 256), "critic": (512, 512, 512)}
    table = rows(checkout / "README.md", "top_quantiles_to_drop_per_net")
    name = "top_quantiles_to_drop_per_net"
    return {f"{task}-v5": {**values, name: table[task]} for task in ROBOTS}


# REDQ, and DroQ on its code.

REDQ: dict[str, Rule] = {
    "hidden": "hidden_sizes",
    "replay_size": number_of("replay_size"),
    "batch_size": "batch_size",
    "actor_lr": "lr",
    "critic_lr": "lr",
    "temperature_lr": "lr",
    "discount": "gamma",
    "target_rate": lambda theirs: 1.0 - theirs["polyak"],
    "learn_temperature": "auto_alpha",
    "target_entropy": lambda theirs: float(theirs["entropies"]),
    "warmup_steps": "start_steps",
    "num_updates": "utd_ratio",
    "policy_delay": "policy_update_delay",
    "num_critics": "num_Q",
    "min_critics": "num_min",
    "actor_value": "actor_value",
}
DROQ = {name: rule for name, rule in REDQ.items() if name not in ("num_critics", "min_critics")}
DROQ |= {"dropout": "dropout"}


def redq_settings(file: Path, core: Path) -> Tasks:
    """Defaults of the function that trains, with the target entropy, by task."""
    values = readers.parameters(file, "redq_sac")
    says = "ave_q = torch.mean(q_a_tilda_cat, dim=1, keepdim=True)"
    readers.says(core.with_name("redq_sac.py"), says)
    entropies = readers.constant(core, "mbpo_target_entropy_dict")
    values["actor_value"] = "mean"
    return {f"{task}-v5": {**values, "entropies": entropies[f"{task}-v2"]} for task in ROBOTS}


def redq_tasks(checkout: Path) -> Tasks:
    """REDQ's own settings."""
    folder = checkout / "redq" / "algos"
    return redq_settings(checkout / "experiments" / "train_redq_sac.py", folder / "core.py")


def droq_tasks(checkout: Path) -> Tasks:
    """Those of its code on REDQ's, with the dropout of the README's table."""
    code = checkout / "OriginalREDQCodebase"
    table = rows(checkout / "README.md", "target_dropout_rate")
    settings = redq_settings(code / "main.py", code / "redq" / "algos" / "core.py")
    return {
        task: {**values, "dropout": table[task.removesuffix("-v5")]}
        for task, values in settings.items()
        if task.removesuffix("-v5") in table
    }


# XQC.

XQC: dict[str, Rule] = {
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "temperature_lr": "temp_lr",
    "rate_end": lambda theirs: theirs["lr_end"] / theirs["critic_lr"],
    "policy_delay": "policy_delay",
    "unit_norm": lambda theirs: bool(theirs["use_weight_norm"]),
    "normalise_rewards": "reward_normalization",
    "replay_size": "replay_buffer_size",
    "warmup_steps": "start_training",
    "num_updates": "updates_per_step",
    "batch_size": "batch_size",
    "discount": "discount",
    "target_rate": "tau",
    "value_head": in_words("critic_loss", {"categorical": "c51", "mse": "squared"}),
    "v_min": "min_v",
    "v_max": "max_v",
    "init_temperature": "init_temperature",
    "hidden": "hidden_dims_actor",
    "critic_hidden": "hidden_dims_critic",
    "num_critics": "n_critics",
    "norm_place": lambda theirs: "before" if theirs["pre_activation_bn"] else "after",
}
LIMITS = {
    **{f"{name}-v5": 1_000 for name in ROBOTS},
    "Reacher-v5": 50,
    "Pusher-v5": 100,
    "Pendulum-v1": 200,
}


def xqc_tasks(checkout: Path) -> Tasks:
    """Their configurations, with the discount that their code computes from a time limit."""
    folder = checkout / "conf"
    readers.says(checkout / "xqc" / "utils.py", "np.clip(((T / 5) - 1) / (T / 5), 0.95, 0.995)")
    values: dict[str, Any] = readers.yaml_file(folder / "config.yaml")
    for name in ("base_agent", "xqc"):
        values |= readers.yaml_file(folder / "agent" / f"{name}.yaml")
    values = readers.without(values, "wandb", "hydra", "defaults")
    return {
        task: {**values, "discount": discount_of_limit(limit)} for task, limit in LIMITS.items()
    }


# CrossQ.

CROSSQ: dict[str, Rule] = {
    "actor_lr": "lr",
    "critic_lr": "lr",
    "temperature_lr": "lr",
    "momentum": "adam_b1",
    "policy_delay": "policy_delay",
    "num_updates": "utd",
    "warmup_steps": "learning_starts",
    "replay_size": "buffer_size",
    "discount": "gamma",
    "hidden": "pi",
    "critic_hidden": "qf",
    "num_critics": "n_critics",
    "renormed_after": "warmed_up",
}


def crossq_tasks(checkout: Path) -> Tasks:
    """The options of train.py, as its branch for CrossQ changes them."""
    file = checkout / "train.py"
    branch = """args.adam_b1 = 0.5
    args.policy_delay = 3
    args.n_critics = 2
    args.utd = 1 # nice
    net_arch["qf"] = [2048, 2048] # wider critics"""
    readers.says(file, branch)
    readers.says(file, "gamma=0.99 if not args.env == 'Swimmer-v4' else 0.9999")
    readers.says(file, "learning_starts=5000")
    readers.says(file, "buffer_size=1_000_000")
    readers.says(file, "net_arch = {'pi': [256, 256], 'qf'")
    policies = checkout / "sbx" / "sac" / "policies.py"
    readers.says(policies, "jnp.greater_equal(steps.value, 100_000)")
    options = {name.lstrip("-"): value for name, value in readers.arguments(file).items()}
    values = {
        **options,
        "adam_b1": 0.5,
        "policy_delay": 3,
        "n_critics": 2,
        "utd": 1,
        "pi": (256, 256),
        "qf": (2048, 2048),
        "learning_starts": 5_000,
        "buffer_size": 1_000_000,
        "warmed_up": 100_000,
        "gamma": 0.99,
    }
    tasks = per_task((f"{name}-v5" for name in ROBOTS), values)
    return {**tasks, "Swimmer-v5": {**values, "gamma": 0.9999}}


# TD7.

TD7: dict[str, Rule] = {
    "batch_size": "batch_size",
    "replay_size": number_of("buffer_size"),
    "discount": "discount",
    "target_every": "target_update_rate",
    "exploration_noise": "exploration_noise",
    "target_noise": "target_policy_noise",
    "target_noise_clip": "noise_clip",
    "policy_delay": "policy_freq",
    "prioritised": "alpha",
    "least_priority": "min_priority",
    "imitation": "lmbda",
    "embedding_size": "zs_dim",
    "encoder_lr": "encoder_lr",
    "critic_lr": "critic_lr",
    "actor_lr": "actor_lr",
    "hidden": lambda theirs: (theirs["actor_hdim"],) * 3,
    "encoder_hidden": lambda theirs: (theirs["enc_hdim"],) * 2,
    "warmup_steps": number_of("timesteps_before_training"),
}


def td7_tasks(checkout: Path) -> Tasks:
    """The class of settings, and the steps of uniform actions of main.py."""
    values = readers.dataclass(checkout / "TD7.py", "Hyperparameters")
    options = readers.arguments(checkout / "main.py")
    options = {name.lstrip("-"): value for name, value in options.items()}
    values["timesteps_before_training"] = options["timesteps_before_training"]
    return per_task((f"{name}-v5" for name in ROBOTS), values)


# BRO.


def resets(theirs: Settings) -> tuple[int, ...]:
    """Updates before each reset, which they give as steps; with two updates a step the first
    alone.
    """
    updates, steps = theirs["updates_per_step"], theirs["resets"]
    steps = steps[:1] if updates == 2 else steps
    return tuple(updates * (step - theirs["start_training"]) for step in steps)


BRO: dict[str, Rule] = {
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "temperature_lr": "temp_lr",
    "optimism_lr": "adj_lr",
    "weight_decay": "weight_decay",
    "batch_size": "batch_size",
    "replay_size": "replay_buffer_size",
    "warmup_steps": "start_training",
    "num_updates": "updates_per_step",
    "reset_at": resets,
    "discount": "discount",
    "target_rate": "tau",
    "quantiles": "n_quantiles",
    "init_temperature": "init_temperature",
    "target_entropy_share": "entropy_share",
    "init_optimism": "init_optimism",
    "init_kl_weight": "init_regularizer",
    "kl_target": "kl_target",
    "optimistic_std": "std_multiplier",
    "log_std_min": "LOG_STD_MIN",
    "log_std_max": "LOG_STD_MAX",
    "hidden": layers("actor.hidden_dims", "actor.depth"),
    "critic_hidden": layers("critic.hidden_dims", "critic.depth"),
}


def bro_tasks(checkout: Path, updates: int | None = None) -> Tasks:
    """Their script's options and file of settings, over their learner's defaults."""
    learner = checkout / "jaxrl" / "bro" / "bro_learner.py"
    policies = checkout / "jaxrl" / "networks" / "policies.py"
    values = readers.parameters(learner, "BRO.__init__")
    values |= readers.arguments(checkout / "train_parallel.py")
    values |= readers.config(checkout / "configs" / "bro_default.py")
    steps = (15001, 50001, 250001, 500001, 750001, 1000001, 1500001, 2000001)
    readers.says(learner, f"self.reset_list = [{', '.join(map(str, steps))}]")
    readers.says(learner, "if updates_per_step == 2: self.reset_list = self.reset_list[:1]")
    readers.says(learner, "self.target_entropy = -self.action_dim / 2")
    readers.says(learner, "tx=optax.adamw(learning_rate=critic_lr)")  # optax's decay is 1e-4
    values |= {"resets": steps, "entropy_share": 0.5, "weight_decay": 1e-4}
    values |= {name: readers.constant(policies, name) for name in ("LOG_STD_MIN", "LOG_STD_MAX")}
    critics = readers.dataclass(checkout / "jaxrl" / "networks" / "critic_net.py", "DoubleCritic")
    values |= {f"critic.{name}": value for name, value in critics.items()}
    actor = readers.dataclass(policies, "NormalTanhPolicy")
    values |= {f"actor.{name}": value for name, value in actor.items()}
    values |= {} if updates is None else {"updates_per_step": updates}
    return {"playground/CheetahRun": values}


def bro_fast_tasks(checkout: Path) -> Tasks:
    """The same with the paper's two updates per step."""
    return bro_tasks(checkout, 2)


SOURCES = (
    Source("tqc", "tqc_pytorch", "main.py, README.md", tqc_tasks, TQC),
    Source("sac", "REDQ", "experiments/train_redq_sac.py", redq_tasks, REDQ, variant="redq"),
    Source(
        "sac",
        "Dropout-Q-Functions-for-Doubly-Efficient-Reinforcement-Learning",
        "OriginalREDQCodebase/main.py, README.md",
        droq_tasks,
        DROQ,
        variant="droq",
    ),
    Source(
        "xqc",
        "xqc",
        "conf/config.yaml, conf/agent",
        xqc_tasks,
        XQC,
        (Intended("warmup_steps replay_size", "Pendulum-v1", OWN_PENDULUM),),
    ),
    Source("crossq", "CrossQ", "train.py", crossq_tasks, CROSSQ),
    Source("td7", "TD7", "TD7.py, main.py", td7_tasks, TD7),
    *(
        Source(
            "bro",
            "BiggerRegularizedOptimistic",
            "train_parallel.py, configs, jaxrl",
            tasks,
            BRO,
            variant=variant,
        )
        for tasks, variant in ((bro_tasks, None), (bro_fast_tasks, "fast"))
    ),
)
