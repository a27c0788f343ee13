"""Agents of Acme, and DecQN, whose code is built on it, beside their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import (
    DoesNotApply,
    Intended,
    Rule,
    Settings,
    Source,
    Tasks,
    in_words,
    per_task,
    rate_or_none,
)

GYM = [f"{name}-v5" for name in ("Hopper", "HalfCheetah", "Walker2d", "Ant", "Humanoid")]
CONTROL = ["playground/CheetahRun", "playground/WalkerWalk"]
EXAMPLES = Path("examples", "baselines", "rl_continuous")
AGENTS = Path("acme", "agents", "jax")


def steps_per_update(theirs: Settings) -> int:
    """Steps for each update, of which each is in `samples_per_insert` batches."""
    return int(theirs["batch_size"] / theirs["samples_per_insert"])


# R2D2.

R2D2: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "batch_size": "batch_size",
    "burn_in": "burn_in_length",
    "length": "trace_length",
    "overlap": lambda theirs: theirs["trace_length"] - theirs["sequence_period"],
    "n_step": "bootstrap_n",
    "discount": "discount",
    "target_every": "target_update_period",
    "replay_size": "max_replay_size",
    "warmup_steps": "min_replay_size",
    "correction": "importance_sampling_exponent",
    "priority_exponent": "priority_exponent",
    "priority_max": "max_priority_weight",
}


def r2d2_tasks(checkout: Path) -> Tasks:
    """The agent's defaults."""
    return {
        "atari/Breakout": readers.dataclass(checkout / AGENTS / "r2d2" / "config.py", "R2D2Config")
    }


# MPO.

HEADS = {
    "NONDISTRIBUTIONAL": "squared",
    "CATEGORICAL": "c51",
    "CATEGORICAL_2HOT": "two_hot",
    "MIXTURE_OF_GAUSSIANS": "a mixture of Gaussians",
}


def of_classes(name: str) -> Callable[[Settings], Any]:
    """A setting of critics with classes of values."""

    def rule(theirs: Settings) -> Any:
        if not theirs["critic_type"].startswith("CATEGORICAL"):
            raise DoesNotApply
        return theirs[name]

    return rule


MPO: dict[str, Rule] = {
    "actor_lr": "learning_rate",
    "critic_lr": "learning_rate",
    "dual_lr": "dual_learning_rate",
    "rate_schedule": in_words("use_cosine_lr_decay", {True: "cosine", False: "constant"}),
    "weight_decay": rate_or_none("weight_decay"),
    "max_grad_norm": lambda theirs: None,  # by `mpo_defaults`
    "batch_size": "batch_size",
    "replay_size": "max_replay_size",
    "warmup_steps": "min_replay_size",
    "num_steps": steps_per_update,
    "n_step": "n_step",
    "discount": "discount",
    "target_rate": lambda theirs: theirs["target_update_rate"] or 1.0,
    "target_every": "target_update_period",
    "num_actions": "num_samples",
    "epsilon": "epsilon",
    "epsilon_mean": "epsilon_mean",
    "epsilon_std": "epsilon_stddev",
    "epsilon_penalty": lambda theirs: (
        theirs["epsilon_penalty"] if theirs["action_penalization"] else None
    ),
    "per_dimension": "per_dim_constraining",
    "init_temperature": "init_log_temperature",
    "init_multiplier_mean": "init_log_alpha_mean",
    "init_multiplier_std": "init_log_alpha_stddev",
    "init_std": "policy_init_scale",
    "hidden": "policy_layer_sizes",
    "critic_hidden": "critic_layer_sizes",
    "value_head": in_words("critic_type", HEADS),
    "bins": of_classes("categorical_num_bins"),
    "v_min": of_classes("vmin"),
    "v_max": of_classes("vmax"),
}


def mpo_defaults(checkout: Path) -> dict[str, Any]:
    """Defaults of the configuration, of its loss and of the networks."""
    folder = checkout / AGENTS / "mpo"
    config, networks = folder / "config.py", folder / "networks.py"
    kind = "MIXTURE_OF_GAUSSIANS"
    readers.says(config, f"critic_type: mpo_types.CriticType = mpo_types.CriticType.{kind}")
    readers.says(networks, f"critic_type: types.CriticType = types.CriticType.{kind}")
    # `grad_norm_clip` is of the learner's own optimiser, and the builder passes another.
    readers.says(folder / "builder.py", "optimizer = optax.adamw( learning_rate,")
    readers.says(folder / "builder.py", "optimizer=optimizer,")
    readers.says(folder / "learning.py", "self._optimizer = optimizer or _get_default_optimizer(")
    return {
        **readers.dataclass(folder / "types.py", "GaussianPolicyLossConfig"),
        **readers.parameters(networks, "make_control_networks"),
        **readers.dataclass(config, "MPOConfig"),
        **readers.keywords(config, "FromTransitions"),
        "critic_type": kind,
    }


def mpo_default_tasks(checkout: Path) -> Tasks:
    """The defaults alone, in the control suite."""
    return per_task(CONTROL, mpo_defaults(checkout))


def mpo_example(checkout: Path, name: str, kind: str) -> dict[str, Any]:
    """What an example sets, over the defaults."""
    path = checkout / EXAMPLES / name
    readers.says(path, f"critic_type = mpo.CriticType.{kind}")
    values = mpo_defaults(checkout)
    for call in ("make_control_networks", "MPOConfig", "GaussianPolicyLossConfig"):
        values |= readers.keywords(path, call)
    return values | readers.keywords(path, "FromTransitions") | {"critic_type": kind}


def mpo_tasks(checkout: Path) -> Tasks:
    """The example for Gym."""
    return per_task(GYM, mpo_example(checkout, "run_mpo.py", "NONDISTRIBUTIONAL"))


def dmpo_tasks(checkout: Path) -> Tasks:
    """The example for Gym and the control suite, each with a range of values."""
    name = "run_dmpo.py"
    values = mpo_example(checkout, name, "CATEGORICAL")
    return ranged(values, checkout / EXAMPLES / name)


def ranged(values: Mapping[str, Any], example: Path) -> Tasks:
    """Tasks of Gym and of the control suite, with the range that an example has for each."""
    readers.says(example, "vmin=-vmax, vmax=vmax,")
    ranges = {"gym": 1600.0, "control": 150.0}
    readers.says(example, "vmax_values = { 'gym': 1600., 'control': 150., }")
    return {
        task: {**values, "vmin": -ranges[suite], "vmax": ranges[suite]}
        for suite, tasks in (("gym", GYM), ("control", CONTROL))
        for task in tasks
    }


# D4PG.

D4PG: dict[str, Rule] = {
    "actor_lr": "learning_rate",
    "critic_lr": "learning_rate",
    "max_grad_norm": lambda theirs: 40.0 if theirs["clipping"] else None,
    "batch_size": "batch_size",
    "replay_size": "max_replay_size",
    "warmup_steps": "min_replay_size",
    "num_steps": steps_per_update,
    "num_updates": "num_sgd_steps_per_step",
    "n_step": "n_step",
    "discount": "discount",
    "target_every": "target_update_period",
    "exploration_noise": "sigma",
    "bins": "num_atoms",
    "v_min": "vmin",
    "v_max": "vmax",
    "hidden": "policy_layer_sizes",
    "critic_hidden": "critic_layer_sizes",
    # By `d4pg_tasks`:
    "target_noise": lambda theirs: 0.0,
    "value_head": lambda theirs: "c51",
    "num_critics": lambda theirs: 1,
    "policy_delay": lambda theirs: 1,
}


def d4pg_tasks(checkout: Path) -> Tasks:
    """The defaults of the configuration and of the networks."""
    folder = checkout / AGENTS / "d4pg"
    learner = folder / "learning.py"
    readers.says(folder / "builder.py", "optax.clip_by_global_norm(40.), policy_optimizer)")
    for text in (
        "a = policy_network.apply(state.target_policy_params, transition.next_observation)",
        "q_t, atoms_t = critic_network.apply(state.target_critic_params,",
        "rlax.categorical_td_learning",
        "policy_params = optax.apply_updates(state.policy_params, policy_updates)",
    ):
        readers.says(learner, text)
    values = readers.dataclass(folder / "config.py", "D4PGConfig")
    return {"defaults": {**readers.parameters(folder / "networks.py", "make_networks"), **values}}


# DecQN.

DECQN: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "max_grad_norm": lambda theirs: (
        theirs["clip_gradients_norm"] if theirs["clip_gradients"] else None
    ),
    "batch_size": "batch_size",
    "replay_size": "max_replay_size",
    "warmup_steps": "min_replay_size",
    "num_steps": steps_per_update,
    "n_step": "adder_n_step",
    "prioritised": "priority_exponent",
    "correction": "importance_sampling_exponent",
    "discount": "discount",
    "target_every": "target_update_period",
    "bins": "num_bins",
    "epsilon": "epsilon",
    "hidden": "layer_size_network",
    "num_critics": lambda theirs: 2 if theirs["use_double_q"] else 1,
    "residual": "use_residual",
}
DECQN_CHANGES = {
    "num_bins": 2,
    "use_double_q": True,
    "use_residual": True,
    "adder_n_step": 3,
    "batch_size": 256,
    "epsilon": 0.10,
}


def decqn_tasks(checkout: Path) -> Tasks:
    """Their settings as the program changes them, for states."""
    folder, functions = checkout / "decqn", {"utils.AttrDict": dict}
    path, name = folder / "config_default.py", "ConfigDefault._create_config"
    values = readers.config(path, name, functions, self=None)
    program = folder / "run_experiment.py"
    for name, value in DECQN_CHANGES.items():
        text = "0.10" if name == "epsilon" else str(value)
        readers.says(program, f"config.{name} = {text}")
    readers.says(program, "else: config.layer_size_network = [512, 512]")
    changes = {**DECQN_CHANGES, "layer_size_network": (512, 512)}
    return per_task(CONTROL, {**values, **changes})


SOURCES = (
    Source(
        "r2d2",
        "acme",
        "acme/agents/jax/r2d2/config.py",
        r2d2_tasks,
        R2D2,
        (Intended("learning_rate replay_size", "atari/*", "Kapturowski et al., ICLR 2019"),),
    ),
    Source("mpo", "acme", "examples/baselines/rl_continuous/run_mpo.py", mpo_tasks, MPO),
    Source(
        "mpo",
        "acme",
        "acme/agents/jax/mpo",
        mpo_default_tasks,
        MPO,
        (Intended("value_head", "playground/*", "whose critic is a mixture of Gaussians"),),
    ),
    Source(
        "mpo",
        "acme",
        "examples/baselines/rl_continuous/run_dmpo.py",
        dmpo_tasks,
        MPO,
        variant="dmpo",
    ),
    Source(
        "td3",
        "acme",
        "acme/agents/jax/d4pg",
        d4pg_tasks,
        D4PG,
        (
            Intended("target_every", "*", "here targets follow at TD3's rate"),
            Intended("max_grad_norm", "*", "and nothing is normalised or clipped"),
        ),
        variant="d4pg",
    ),
    Source(
        "decqn",
        "decqn",
        "decqn/config_default.py, run_experiment.py",
        decqn_tasks,
        DECQN,
        (Intended("residual", "*", "The authors' default has one residual block instead"),),
    ),
)
