"""Agents that learn from data and from an environment, beside their authors' files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.data import CQL, corl_cql_tasks, cql_backup
from scripts.checks.authors.shared import (
    ADROIT,
    DoesNotApply,
    Intended,
    Rule,
    Settings,
    Source,
    Tasks,
    affine,
    architecture,
    in_words,
    log_of,
    only_where,
    per_task,
    unless_infinite,
)

CALQL: dict[str, Rule] = {
    **readers.without(
        CQL, "critic_hidden", "normalise_observations", "bc_steps", "log_std_min", "log_std_max"
    ),
    "penalty_weight": "cql_min_q_weight",
    "hidden": architecture("policy_arch"),
    "critic_hidden": architecture("qf_arch"),
    "log_std_offset": "policy_log_std_offset",
    "calibrate": "enable_calql",
    "initialisation": in_words("orthogonal_init", {True: "orthogonal_small", False: "torch"}),
    "reward_transform": affine("reward_scale", "reward_bias"),
}


def calql_tasks(checkout: Path) -> Tasks:
    """The authors' two scripts, over the defaults of their program."""
    folder = checkout / "JaxCQL"
    code = {
        **readers.flat(
            readers.config(folder / "conservative_sac.py", "ConservativeSAC.get_default_config")
        ),
        **readers.keywords(folder / "conservative_sac_main.py", "define_flags_with_default"),
    }
    script = checkout / "scripts" / "run_antmaze.sh"
    mazes = "antmaze-medium-diverse-v2, antmaze-medium-play-v2, antmaze-large-diverse-v2, "
    readers.says(script, f"# {mazes}antmaze-large-play-v2")
    (options,) = readers.commands(script, "JaxCQL.conservative_sac_main")
    theirs = {name.removeprefix("cql."): value for name, value in options.items()}
    names = (
        f"d4rl/antmaze-{maze}-v2"
        for maze in ("medium-diverse", "medium-play", "large-diverse", "large-play")
    )
    return per_task(names, {**code, **theirs})


def wsrl_config(checkout: Path, name: str, ensemble: bool) -> dict[str, Any]:
    """One of WSRL's configurations, whose functions build on each other."""
    folder = checkout / "experiments" / "configs"
    functions: dict[str, Callable[..., Any]] = {}

    def config(file: str) -> Callable[..., Any]:
        return lambda updates=None: readers.config(
            folder / f"{file}_config.py", functions=functions, updates=updates
        )

    for file in ("sac", "cql", "wsrl", "iql"):
        functions[f"{file}_config.get_config"] = functions[f"get_{file}_config"] = config(file)
    values = readers.config(folder / "train_config.py", functions=functions, config_string=name)
    settings = values["agent_kwargs"]
    if ensemble:
        settings = readers.config(folder / "ensemble_config.py", "add_redq_config", config=settings)
    return readers.flat(settings)


def wsrl_tasks(
    agent: str, script: str, domains: tuple[str, ...], ensemble: bool = False
) -> Callable[[Path], Tasks]:
    """The scripts of a method for some domains, with the configurations that they name; with
    `ensemble` as with --use_redq.
    """

    def read(checkout: Path) -> Tasks:
        networks = checkout / "wsrl" / "networks" / "actor_critic_nets.py"
        code = {
            **readers.dataclass(networks, "Policy"),
            **readers.parameters(checkout / "wsrl" / "agents" / "sac.py", "SACAgent.create"),
            **readers.arguments(checkout / "finetune.py"),
        }
        tasks: Tasks = {}
        for domain in domains:
            path = checkout / "experiments" / "scripts" / domain / f"launch_{script}.sh"
            (options,) = readers.commands(path, "finetune.py")
            config = wsrl_config(checkout, f"{domain}_{agent}", ensemble)
            theirs = {
                name.removeprefix("config.agent_kwargs."): value for name, value in options.items()
            }
            tasks[f"d4rl/{SETS_OF_WSRL[domain]}"] = {**code, **config, **theirs}
        return tasks

    return read


# Each domain by one of its sets; binary Adroit is no set of ours and stands for its task.
SETS_OF_WSRL = {
    "antmaze": "antmaze-large-diverse-v2",
    "kitchen": "kitchen-partial-v0",
    "locomotion": "halfcheetah-medium-replay-v2",
    "adroit": "pen-binary-v0",
}


def automatic_entropy(name: str) -> Callable[[Settings], None]:
    """None, minus the number of actions, where theirs is None or not below 0."""

    def rule(theirs: Settings) -> Any:
        value = theirs[name]
        return None if value is None or value >= 0 else value

    return rule


def other_widths(theirs: Settings) -> Any:
    """Widths of the critics; None where they are the actor's."""
    critic, actor = (theirs[f"{name}_network_kwargs.hidden_dims"] for name in ("critic", "policy"))
    return None if critic == actor else critic


WSRL_NETWORKS: dict[str, Rule] = {
    "actor_lr": "actor_optimizer_kwargs.learning_rate",
    "critic_lr": "critic_optimizer_kwargs.learning_rate",
    "temperature_lr": "temperature_optimizer_kwargs.learning_rate",
    "discount": "discount",
    "target_rate": "soft_target_update_rate",
    "target_entropy": automatic_entropy("target_entropy"),
    "init_temperature": "temperature_init",
    "num_critics": "critic_ensemble_size",
    "layer_norm": "critic_network_kwargs.use_layer_norm",
    "actor_layer_norm": "policy_network_kwargs.use_layer_norm",
    "state_dependent_std": lambda theirs: theirs["policy_kwargs.std_parameterization"] == "exp",
}
WSRL: dict[str, Rule] = {
    **WSRL_NETWORKS,
    "min_critics": "critic_subsample_size",
    "entropy_backup": "backup_entropy",
    "num_updates": "utd",
    "policy_delay": "utd",
    "batch_size": lambda theirs: theirs["batch_size"] // theirs["utd"],
    "warmup_steps": "warmup_steps",
    "hidden": "policy_network_kwargs.hidden_dims",
    "critic_hidden": other_widths,
    "num_next_actions": lambda theirs: 10 if theirs.get("max_target_backup") else 1,
    "reward_scale": "reward_scale",
    "reward_shift": lambda theirs: theirs["reward_bias"] or None,
    "log_std_min": log_of("std_min"),
    "log_std_max": log_of("std_max"),
}
WSRL_CQL: dict[str, Rule] = {
    **WSRL_NETWORKS,
    "batch_size": "batch_size",
    # A learnt multiplier is their weight; ours multiplies the weight.
    "penalty_weight": lambda theirs: 1.0 if theirs["cql_autotune_alpha"] else theirs["cql_alpha"],
    "num_actions": "cql_n_actions",
    "importance_sampling": "cql_importance_sample",
    "gap_temperature": "cql_temp",
    "gap_min": unless_infinite("cql_clip_diff_min"),
    "gap_max": unless_infinite("cql_clip_diff_max"),
    "lagrange": "cql_autotune_alpha",
    "init_multiplier": only_where("cql_autotune_alpha", "cql_alpha_lagrange_init"),
    "target_gap": only_where("cql_autotune_alpha", "cql_target_action_gap"),
    "backup": cql_backup,
    "hidden": "policy_network_kwargs.hidden_dims",
    "critic_hidden": "critic_network_kwargs.hidden_dims",
    "reward_transform": affine("reward_scale", "reward_bias"),
    "log_std_min": log_of("std_min"),
    "log_std_max": log_of("std_max"),
}

ENSEMBLE = ("init_multiplier", "actor_layer_norm")  # what only the variant of presets has

RLPD: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "temperature_lr": "temp_lr",
    "discount": "discount",
    "target_rate": "tau",
    "num_critics": "num_qs",
    "min_critics": "num_min_qs",
    "layer_norm": "critic_layer_norm",
    "num_updates": "utd_ratio",
    "policy_delay": "utd_ratio",
    "warmup_steps": "start_training",
    "hidden": "hidden_dims",
    "entropy_backup": "backup_entropy",
    "init_temperature": "init_temperature",
    "target_entropy_share": "target_entropy_share",
    "reward_shift": lambda theirs: theirs["shift"] or None,
}


def rlpd_tasks(checkout: Path) -> Tasks:
    """The README's commands for states, over its configuration and the program's defaults."""
    learner = checkout / "rlpd" / "agents" / "sac" / "sac_learner.py"
    readers.says(learner, "if target_entropy is None: target_entropy = -action_dim / 2")
    shifted = 'if "antmaze" in FLAGS.env_name: batch["rewards"] -= 1'
    readers.says(checkout / "train_finetuning.py", shifted)
    folder = checkout / "configs"
    functions: dict[str, Callable[..., Any]] = {}
    for file in ("td", "sac"):
        functions[f"{file}_config.get_config"] = lambda file=file: readers.config(
            folder / f"{file}_config.py", functions=functions
        )
    code = {
        **readers.arguments(checkout / "train_finetuning.py"),
        **readers.parameters(learner, "SACLearner.create"),
        **readers.flat(readers.config(folder / "rlpd_config.py", functions=functions)),
        "target_entropy_share": 0.5,
    }
    tasks: Tasks = {}
    for options in readers.commands(checkout / "README.md", "train_finetuning.py"):
        name = options["env_name"].replace("expert-v0", "expert-v2")
        theirs = {key.removeprefix("config."): value for key, value in options.items()}
        shift = -1.0 if "antmaze" in name else 0.0
        tasks[f"d4rl/{name}"] = {**code, **theirs, "shift": shift}
    return tasks


SERL: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "actor_optimizer_kwargs.learning_rate",
    "critic_lr": "critic_optimizer_kwargs.learning_rate",
    "temperature_lr": "temperature_optimizer_kwargs.learning_rate",
    "discount": "discount",
    "target_rate": "soft_target_update_rate",
    "num_critics": "critic_ensemble_size",
    "min_critics": "critic_subsample_size",
    "layer_norm": "critic_network_kwargs.use_layer_norm",
    "activation": "activation",
    "hidden": "critic_network_kwargs.hidden_dims",
    "num_updates": "critic_actor_ratio",
    "policy_delay": "critic_actor_ratio",
    "warmup_steps": "training_starts",
    "replay_size": "replay_buffer_capacity",
    "init_temperature": "temperature_init",
    "entropy_backup": "backup_entropy",
    "actor_layer_norm": "policy_network_kwargs.use_layer_norm",
    "target_entropy_share": "target_entropy_share",
    "log_std_min": log_of("policy_kwargs.std_min"),
    "log_std_max": log_of("policy_kwargs.std_max"),
}


def serl_tasks(checkout: Path) -> Tasks:
    """The learner of the simulated arm: its script, its program, and the function it calls."""
    launcher = checkout / "serl_launcher" / "serl_launcher"
    agent = launcher / "agents" / "continuous" / "sac.py"
    readers.says(agent, "if target_entropy is None: target_entropy = -actions.shape[-1] / 2")
    readers.says(launcher / "utils" / "launcher.py", '"activations": nn.tanh')
    example = checkout / "examples" / "async_sac_state_sim"
    (options,) = readers.commands(example / "run_learner.sh", "async_sac_state_sim.py")
    values = {
        **readers.parameters(agent, "SACAgent.create"),
        **readers.keywords(launcher / "utils" / "launcher.py", "SACAgent.create_states"),
        **readers.parameters(launcher / "utils" / "launcher.py", "make_sac_agent"),
        **readers.arguments(example / "async_sac_state_sim.py"),
        **options,
        "activation": "tanh",
        "target_entropy_share": 0.5,
    }
    return {options["env"]: values}


H2O: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "policy_lr",
    "temperature_lr": "policy_lr",
    "critic_lr": "qf_lr",
    "discriminator_lr": "d_sa_lr",
    "discriminator_noise": "noise_std_discriminator",
    "ratio_min": "clip_dynamics_ratio_min",
    "ratio_max": "clip_dynamics_ratio_max",
    "num_successors": "sampling_n_next_states",
    "gap_max": "sim_q_coeff_max",
    "penalty_weight": "cql_min_q_weight",
    "discount": "discount",
    "target_rate": "soft_target_update_rate",
    "target_entropy": automatic_entropy("target_entropy"),
    "log_std_offset": "policy_log_std_offset",
    "hidden": architecture("policy_arch"),
}


def h2o_tasks(checkout: Path) -> Tasks:
    """The README's first two commands, over the defaults of its program; the third has noise."""
    folder = checkout / "SimpleSAC"
    code = {
        **readers.flat(
            readers.config(folder / "sim2real_sac.py", "Sim2realSAC.get_default_config")
        ),
        **readers.keywords(folder / "sim2real_sac_main.py", "define_flags_with_default"),
    }
    names = {"HalfCheetah-v2": "halfcheetah", "Walker-v2": "walker2d"}
    tasks: Tasks = {}
    for options in readers.commands(checkout / "README.md", "sim2real_sac_main.py"):
        quality = options["data_source"].replace("_", "-")
        tasks[f"d4rl/{names[options['env_list']]}-{quality}-v2"] = {**code, **options}
    return tasks


def penalty_share(theirs: Settings) -> float:
    """The share of the updates after which the penalty has fallen."""
    decay = theirs["q_ood_uncertainty_decay"]
    fall = theirs["q_ood_uncertainty_reg"] - theirs["q_ood_uncertainty_reg_min"]
    if not fall:
        raise DoesNotApply
    return fall / decay / (theirs["num_epochs"] * theirs["num_updates_on_epoch"])


RO2O: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "actor_learning_rate",
    "critic_lr": "critic_learning_rate",
    "temperature_lr": "alpha_learning_rate",
    "discount": "gamma",
    "target_rate": "tau",
    "num_critics": "num_critics",
    "num_perturbed": "sample_size",
    "value_radius": "q_smooth_eps",
    "policy_weight": "beta_policy",
    "policy_radius": "policy_smooth_eps",
    "ood_weight": "beta_ood",
    "ood_radius": "ood_smooth_eps",
    "ood_penalty": "q_ood_uncertainty_reg",
    "ood_penalty_end": "q_ood_uncertainty_reg_min",
    "ood_steps": penalty_share,
}


def ro2o_tasks(checkout: Path) -> Tasks:
    """The README's commands for learning from data, over the defaults of their programs."""
    tasks: Tasks = {}
    for script in ("ro2o_mujoco", "ro2o_antmaze_LCB", "ro2o_antmaze_min"):
        path = checkout / "algorithms" / "offline" / f"{script}.py"
        (options,) = readers.commands(checkout / "README.md", f"{script}.py")
        values = {**readers.dataclass(path, "TrainConfig"), **options}
        tasks[f"d4rl/{options['env_name']}"] = values
    return tasks


HNPG: dict[str, Rule] = {
    "kl_limit": "max-kl",
    "damping": "damping",
    "discount": "gamma",
    "trace_decay": "tau",
    "backtrack": "backtrack",
    "backtracks": "max_backtracks",
    "num_steps": "batch-size",
    "learning_rate": "lr",
}


def hnpg_tasks(checkout: Path) -> Tasks:
    """The program's defaults for its locks, and those of its line search."""
    trpo = checkout / "trpo.py"
    readers.says(trpo, "enumerate(.5**np.arange(max_backtracks))")
    readers.says(trpo, "self.gamma = 1")  # whatever the option says
    values = {
        **readers.arguments(checkout / "utils.py"),
        **readers.parameters(trpo, "linesearch"),
        **readers.keywords(trpo, "Adam"),
        "backtrack": 0.5,
        "gamma": 1.0,
    }
    return {"rljax/CombinationLock-10-discrete": values}


SOURCES = (
    Source("calql", "Cal-QL", "scripts/run_antmaze.sh", calql_tasks, CALQL),
    Source(
        "calql",
        "CORL",
        "configs/finetune/cal_ql/*/*.yaml, without AntMaze",
        corl_cql_tasks("configs/finetune/cal_ql", "algorithms/finetune/cal_ql.py", ADROIT),
        readers.without(CQL, "critic_initialisation"),
    ),
    Source(
        "calql",
        "wsrl",
        "experiments/scripts/kitchen",
        wsrl_tasks("cql", "calql_finetune", ("kitchen",)),
        readers.without(WSRL_CQL, *ENSEMBLE),
    ),
    Source(
        "calql",
        "wsrl",
        "experiments/scripts, --use_redq",
        wsrl_tasks("cql", "calql_finetune", ("antmaze", "kitchen", "adroit"), ensemble=True),
        WSRL_CQL,
        (
            Intended("gap_min", "d4rl/pen-*", "no gap is clipped"),
            Intended("reward_transform", "d4rl/pen-*", "rewards 10 r + 5"),
        ),
        variant="wsrl",
    ),
    Source(
        "cql",
        "wsrl",
        "experiments/scripts/kitchen",
        wsrl_tasks("cql", "cql_finetune", ("kitchen",)),
        readers.without(WSRL_CQL, *ENSEMBLE),
    ),
    Source(
        "cql",
        "wsrl",
        "experiments/scripts/locomotion, --use_redq",
        wsrl_tasks("cql", "cql_finetune", ("locomotion",), ensemble=True),
        readers.without(WSRL_CQL, "init_multiplier"),
        variant="wsrl",
    ),
    Source(
        "sac",
        "wsrl",
        "experiments/scripts",
        wsrl_tasks("wsrl", "wsrl_finetune", ("antmaze", "kitchen", "locomotion", "adroit")),
        WSRL,
        (
            Intended(
                "reward_*",
                "d4rl/pen-*",
                "whose rewards of -1 and 0 become 10 r + 5 there, and not here",
            ),
        ),
        variant="wsrl",
    ),
    Source("sac", "rlpd", "README.md, configs/rlpd_config.py", rlpd_tasks, RLPD, variant="rlpd"),
    Source(
        "sac",
        "serl",
        "examples/async_sac_state_sim/run_learner.sh",
        serl_tasks,
        SERL,
        variant="serl",
    ),
    Source("h2o", "H2O", "README.md", h2o_tasks, H2O),
    Source(
        "ro2o",
        "RO2O",
        "README.md",
        ro2o_tasks,
        RO2O,
        (
            Intended(
                "value_* policy_* ood_*",
                "d4rl/antmaze-*",
                "AntMaze's variants of [2] are not here: imitation in the actor's loss",
            ),
        ),
    ),
    Source(
        "hnpg",
        "HNPG",
        "utils.py, trpo.py",
        hnpg_tasks,
        HNPG,
        (
            Intended("kl_limit", "*", "kl_limit: own choice, as one policy serves all steps"),
            Intended("num_steps", "*", "per environment; [2]: 1,000"),
            Intended("learning_rate", "*", "with a learning rate of 1e-3 in minibatches"),
        ),
    ),
)
