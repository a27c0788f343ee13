"""TD3, MEX, FastTD3, DSAC-T, Sequence RL, REPPO, ReinFlow, DPPO: beside their authors' programs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
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
    layers,
    number_of,
    per_task,
)

# TD3, and MEX on its code.

TD3: dict[str, Rule] = {
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "replay_size": number_of("max_size"),
    "warmup_steps": number_of("start_timesteps"),
    "batch_size": "batch_size",
    "exploration_noise": "expl_noise",
    "discount": "discount",
    "target_rate": "tau",
    "target_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
    "policy_delay": "policy_freq",
    "hidden": "hidden",
}
MEX: dict[str, Rule] = {**TD3, "optimism": "eta"}


def td3_settings(folder: Path, agent: str) -> dict[str, Any]:
    """Options of the program, with what the code of the networks and of the replay has."""
    code = folder / f"{agent}.py"
    readers.says(code, "self.l1 = nn.Linear(state_dim, 256) self.l2 = nn.Linear(256, 256)")
    readers.says(code, "self.l4 = nn.Linear(state_dim + action_dim, 256)")
    return {
        **readers.arguments(folder / "main.py"),
        "max_size": readers.parameters(folder / "utils.py", "ReplayBuffer.__init__")["max_size"],
        "actor_lr": readers.keywords(code, "Adam")["lr"],
        "critic_lr": readers.keywords(code, "Adam", 1)["lr"],
        "hidden": (256, 256),
    }


def td3_tasks(checkout: Path) -> Tasks:
    """The commands of their script."""
    values = td3_settings(checkout, "TD3")
    commands = readers.commands(checkout / "run_experiments.sh", "main.py")
    return {re.sub(r"-v\d$", "-v5", each["env"]): {**values, **each} for each in commands}


def mex_tasks(checkout: Path) -> Tasks:
    """The command of their script, which says how much optimism sparse rewards get."""
    folder = checkout / "MEX_MF"
    (options,) = readers.commands(folder / "run_experiments.sh", "main.py")
    return {"defaults": {**td3_settings(folder, options["policy"]), **options}}


# FastTD3. Its networks halve their width from layer to layer.


def halved(width: str) -> Rule:
    """Widths of three hidden layers."""
    return lambda theirs: (theirs[width], theirs[width] // 2, theirs[width] // 4)


FAST_TD3: dict[str, Rule] = {
    "actor_lr": "actor_learning_rate",
    "critic_lr": "critic_learning_rate",
    "weight_decay": "weight_decay",
    "batch_size": "batch_size",
    "policy_delay": "policy_frequency",
    "num_envs": "num_envs",
    "num_updates": "num_updates",
    "replay_size": lambda theirs: theirs["buffer_size"] * theirs["num_envs"],
    "warmup_steps": lambda theirs: (theirs["learning_starts"] + 2) * theirs["num_envs"],
    "n_step": "num_steps",
    "discount": "gamma",
    "target_rate": "tau",
    "target_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
    "target_value": lambda theirs: "smallest" if theirs["use_cdq"] else "own",
    "bins": "num_atoms",
    "v_min": "v_min",
    "v_max": "v_max",
    "noise_min": "std_min",
    "noise_max": "std_max",
    "hidden": halved("actor_hidden_dim"),
    "critic_hidden": halved("critic_hidden_dim"),
    "normalise_observations": "obs_normalization",
}


def fast_td3_tasks(checkout: Path) -> Tasks:
    """Their classes of Playground's tasks, which inherit from those before them."""
    path, script = checkout / "fast_td3" / "hyperparams.py", checkout / "fast_td3" / "train.py"
    readers.says(script, "if global_step > args.learning_starts:")
    shared = {
        **readers.dataclass(path, "BaseArgs"),
        **readers.dataclass(path, "MuJoCoPlaygroundArgs"),
    }
    names = re.findall(r"class (\w+)Args\(MuJoCoPlaygroundArgs\)", path.read_text())
    each = {name: {**shared, **readers.dataclass(path, f"{name}Args")} for name in names}
    return {f"playground/{settings['env_name']}": settings for settings in each.values()}


# FastSAC, whose authors train G1 and T1 in another simulator.

FAST_SAC: dict[str, Rule] = {
    **{
        name: rule
        for name, rule in FAST_TD3.items()
        if name not in ("target_noise", "target_noise_clip", "noise_min", "noise_max")
    },
    "temperature_lr": "alpha_learning_rate",
    "target_entropy_share": "target_entropy_ratio",
    "init_temperature": "alpha_init",
    "learn_temperature": "use_autotune",
    "log_std_min": "log_std_min",
    "log_std_max": "log_std_max",
    "layer_norm": "use_layer_norm",
    "num_critics": "num_q_networks",
    "normalise_observations": "obs_normalization",
    # By `fast_sac_tasks`:
    "target_value": lambda theirs: "own",
    "temperature_loss": lambda theirs: "alpha",
    "temperature_decay": lambda theirs: 0.01,
    "second_moment": lambda theirs: 0.95,
    "activation": lambda theirs: "silu",
}


def fast_sac_tasks(checkout: Path) -> Tasks:
    """The settings that their robots share, with what their code has."""
    folder = checkout / "src" / "holosoma" / "holosoma"
    code = folder / "agents" / "fast_sac" / "fast_sac_agent.py"
    for text in (
        "if self.global_step > args.learning_starts:",
        "[self.log_alpha], lr=args.alpha_learning_rate, fused=True, betas=(0.9, 0.95)",
        "(-self.log_alpha.exp() * (next_state_log_probs.detach() + self.target_entropy)).mean()",
        "qf_value = q_values.mean(dim=0)",
    ):
        readers.says(code, text)
    settings = {
        **readers.keywords(folder / "config_values" / "algo.py", "FastSACConfig"),
        **readers.dataclass(folder / "config_types" / "experiment.py", "TrainingConfig"),
    }
    return {f"playground/{robot}JoystickFlatTerrain": settings for robot in ("G1", "T1")}


# DSAC-T.

DSACT: dict[str, Rule] = {
    "actor_lr": "policy_learning_rate",
    "critic_lr": "value_learning_rate",
    "temperature_lr": "alpha_learning_rate",
    "batch_size": "replay_batch_size",
    "replay_size": "buffer_max_size",
    "warmup_steps": "buffer_warm_size",
    "num_envs": "sample_batch_size",
    "num_steps": "sample_interval",
    "discount": "gamma",
    "target_rate": "tau",
    "std_rate": "tau",
    "reward_scale": "reward_scale",
    "learn_temperature": "auto_alpha",
    "policy_delay": "delay_update",
    "log_std_min": "policy_min_log_std",
    "log_std_max": "policy_max_log_std",
    "hidden": ("policy_hidden_sizes", "value_hidden_sizes"),
    "activation": "policy_hidden_activation",
    # By `dsact_tasks`:
    "init_temperature": lambda theirs: math.e,
    "target_entropy_share": lambda theirs: 1.0,
    "std_epsilon": lambda theirs: 0.1,
    "clip_range": lambda theirs: 3.0,
    "critic_loss": lambda theirs: "huber",
    "huber_limit": lambda theirs: 50.0,
}


def dsact_tasks(checkout: Path) -> Tasks:
    """Their scripts for MuJoCo: one for Hopper, one for all else."""
    for text in (
        "self.log_alpha = nn.Parameter(torch.tensor(1, dtype=torch.float32))",
        'self.target_entropy = -kwargs["action_dim"]',
        'self.tau_b = kwargs.get("tau_b", self.tau)',
        "bias = 0.1",
        "td_bound = 3 * q_std",
        "huber_loss(q1, target_q1, delta = 50, reduction='none')",
    ):
        readers.says(checkout / "dsac_v2.py", text)
    folder = checkout / "example_train"
    return {
        f"{name}-v5": readers.arguments(
            folder / f"dsacv2_mlp_{'hopper' if name == 'Hopper' else 'mujoco'}_offserial.py"
        )
        for name in ROBOTS
    }


# Sequence RL, whose file of settings is for SAC, their baseline.

SEQUENCES: dict[str, Rule] = {
    "actor_lr": "lr",
    "critic_lr": "lr",
    "temperature_lr": "lr",
    "model_lr": "lr",
    "batch_size": "batch_size",
    "replay_size": "replay_size",
    "warmup_steps": "start_timesteps",
    "num_updates": "updates_per_step",
    "discount": "discount",
    "target_rate": "tau",
    "policy_delay": "actor_update_frequency",
    "log_std_min": "LOG_SIG_MIN",
    "log_std_max": "LOG_SIG_MAX",
    "hidden": layers("hidden_size", 2),
    "memory_hidden": layers("hidden_size", 1),
}


def sequence_tasks(checkout: Path) -> Tasks:
    """Their settings of each environment, with what the code of the agent has."""
    folder = checkout / "scripts"
    code = folder / "sac.py"
    readers.says(code, "self.gru = nn.GRUCell(num_actions, hidden_dim)")
    values = {name: readers.constant(code, name) for name in ("LOG_SIG_MIN", "LOG_SIG_MAX")}
    values |= readers.parameters(code, "SACGRU.__init__")
    table = readers.constant(folder / "hyperparameters.py", "hyperparametersSAC")
    tasks: Tasks = {}
    for name, changes in table.items():
        if name != "Default":
            ours = re.sub(r"-v2$", "-v3" if name.startswith("LunarLander") else "-v5", name)
            tasks[ours] = {**values, **table["Default"], **changes}
    return tasks


# REPPO. Its ends of a support are the centres of the outer bins.


def reppo_end(sign: int) -> Rule:
    """An end of the bins: half of one beyond theirs."""

    def rule(theirs: Settings) -> float:
        low, high = float(theirs["vmin"]), float(theirs["vmax"])
        return (low, high)[sign > 0] + sign * 0.5 * (high - low) / (theirs["num_bins"] - 1)

    return rule


def reppo_network(width: str, number: str) -> Rule:
    """Widths of a network's hidden layers; their number counts the last layer too."""
    return lambda theirs: (theirs[width],) * (theirs[number] - 1)


REPPO: dict[str, Rule] = {
    "learning_rate": "lr",
    "decay_steps": lambda theirs: 1.0 if theirs["anneal_lr"] else None,
    "max_grad_norm": "max_grad_norm",
    "num_epochs": "num_epochs",
    "batch_size": lambda theirs: (
        theirs["num_envs"] * theirs["num_steps"] // theirs["num_mini_batches"]
    ),
    "num_envs": "num_envs",
    "num_steps": "num_steps",
    "discount": "gamma",
    "trace_decay": "lmbda",
    "reward_scale": "reward_scaling",
    "normalise_rewards": lambda theirs: False,
    "value_head": lambda theirs: "hl_gauss" if theirs["hl_gauss"] else "squared",
    "bins": "num_bins",
    "v_min": reppo_end(-1),
    "v_max": reppo_end(1),
    "prediction_cost": "aux_loss_mult",
    "kl_bound": "kl_bound",
    "kl_samples": "samples",
    "init_multiplier": "kl_start",
    "init_temperature": "ent_start",
    "target_entropy_share": "ent_target_mult",
    "min_std": "min_std",
    "hidden": reppo_network("actor_hidden_dim", "num_actor_layers"),
    "critic_hidden": reppo_network("critic_hidden_dim", "num_critic_head_layers"),
    "embedding_size": "critic_hidden_dim",
    "layer_norm": lambda theirs: "rms" if theirs["use_critic_norm"] else False,
    "normalise_observations": "normalize_env",
}


def reppo_tasks(checkout: Path) -> Tasks:
    """Their settings of each kind of environment, with what their code writes."""
    readers.says(checkout / "src" / "jaxrl" / "reppo.py", "sample_shape=(16,), seed=key")
    networks = checkout / "src" / "networks" / "jax_models.py"
    std = readers.parameters(networks, "SACActorNetworks.__init__")["min_std"]
    written = {"samples": 16, "min_std": std}

    def settings(env: str, runs: str) -> dict[str, Any]:
        config = checkout / "config"
        values = readers.yaml_file(config / "reppo.yaml")["hyperparameters"]
        own = readers.yaml_file(config / "env" / f"{env}.yaml")
        values |= {name: own[name] for name in ("vmin", "vmax", "reward_scaling")}
        changes = readers.yaml_file(config / "experiment_overrides" / f"{runs}.yaml")
        return values | changes["hyperparameters"] | written

    def names(script: str) -> Iterable[str]:
        text = (checkout / "scripts" / "paper_experiments" / script).read_text()
        return (f"playground/{name}" for name in text.split("env=(")[1].split(")")[0].split())

    return {
        **per_task((f"brax/{name.lower()}" for name in ROBOTS), settings("brax", "default")),
        "brax/humanoid": settings("humanoid_brax", "default"),
        **per_task(names("slurm_dmc.sh"), settings("mjx_dmc", "mjx_dmc_large_data")),
        **per_task(names("slurm_hum.sh"), settings("mjx_humanoid", "mjx_humanoid_large_data")),
    }


# ReinFlow draws each epoch from ten copies of the rollout: so many minibatches are passes over it.


def reinflow_passes(theirs: Settings) -> int:
    """Minibatches of a rollout, each about as large as it."""
    rows = 10 * theirs["n_steps"] * theirs["n_envs"]
    return theirs["update_epochs"] * (rows // theirs["batch_size"])


REINFLOW: dict[str, Rule] = {
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "rate_schedule": lambda theirs: theirs["actor_lr_scheduler"]["type"],
    "weight_decay": "critic_weight_decay",
    "num_epochs": reinflow_passes,
    "batch_size": lambda theirs: theirs["n_steps"] * theirs["n_envs"],
    "critic_warmup": "n_critic_warmup_itr",
    "clip_ratio": "clip_ploss_coef",
    "clip_values": lambda theirs: theirs["clip_vloss_coef"] is not None,
    "target_kl": "target_kl",
    "num_envs": "n_envs",
    "num_steps": "n_steps",
    "discount": "gamma",
    "trace_decay": "gae_lambda",
    "reward_scale": "reward_scale_const",
    "normalise_rewards": "reward_scale_running",
    "entropy_cost": "ent_coef",
    "log_prob_limit": "logprob_max",
    "flow_steps": "ft_denoising_steps",
    "noise_min": "min_std",
    "noise_max": "max_std",
    "noise_hold": "max_noise_hold_ratio",
    "noise_left": "max_noise_decay_ratio",
    "noise_clip": "randn_clip_value",
    "noise_hidden": "noise_hidden_dims",
    "hidden": lambda theirs: theirs["policy"]["mlp_dims"],
    "activation": lambda theirs: theirs["policy"]["activation_type"].lower(),
    "critic_hidden": lambda theirs: theirs["critic"]["mlp_dims"],
    "critic_activation": lambda theirs: theirs["critic"]["activation_type"].lower(),
}
REINFLOW_TASKS = {
    "Hopper-v5": "hopper-v2",
    "Walker2d-v5": "walker2d-v2",
    "HalfCheetah-v5": "halfcheetah-v2",
    "Ant-v5": "ant-v2",
    "Humanoid-v5": "Humanoid-v3",
}


def reinflow_tasks(checkout: Path) -> Tasks:
    """Their settings of locomotion with rectified flows."""
    folder, tasks = checkout / "cfg" / "gym" / "finetune", {}
    for ours, theirs in REINFLOW_TASKS.items():
        values = readers.yaml_file(folder / theirs / "ft_ppo_reflow_mlp.yaml")
        parts = (values["env"], values["train"], values["model"])
        both = {name: values[name] for name in ("min_std", "max_std", "ft_denoising_steps")}
        tasks[ours] = {name: x for part in parts for name, x in part.items()} | both
    return tasks


# DPPO. A minibatch of theirs has denoising steps, one of ours transitions with all their steps.

DPPO: dict[str, Rule] = {
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "weight_decay": lambda theirs: theirs["critic_weight_decay"] or None,
    "num_epochs": "update_epochs",
    "batch_size": lambda theirs: theirs["batch_size"] // theirs["ft_denoising_steps"],
    "critic_warmup": "n_critic_warmup_itr",
    "clip_ratio": "clip_ploss_coef",
    "clip_first": "clip_ploss_coef_base",
    "clip_growth": "clip_ploss_coef_rate",
    "target_kl": "target_kl",
    "num_envs": "n_envs",
    "num_steps": "n_steps",
    "discount": "gamma",
    "trace_decay": "gae_lambda",
    "step_discount": "gamma_denoising",
    "reward_scale": "reward_scale_const",
    "normalise_rewards": "reward_scale_running",
    "denoising_steps": "denoising_steps",
    "tuned_steps": "ft_denoising_steps",
    "noise_min": "min_sampling_denoising_std",
    "noise_clip": "randn_clip_value",
    "density_min": "min_logprob_denoising_std",
    "embedding": lambda theirs: theirs["actor"]["time_dim"],
    "hidden": lambda theirs: theirs["actor"]["mlp_dims"],
    "activation": lambda theirs: theirs["actor"]["activation_type"].lower(),
    "critic_hidden": lambda theirs: theirs["critic"]["mlp_dims"],
    "critic_activation": lambda theirs: theirs["critic"]["activation_type"].lower(),
}
DPPO_TASKS = {
    "Hopper-v5": "hopper-v2/ft_ppo_diffusion_mlp.yaml",
    "Walker2d-v5": "walker2d-v2/ft_ppo_diffusion_mlp.yaml",
    "HalfCheetah-v5": "halfcheetah-v2/ft_ppo_diffusion_mlp_ta1.yaml",
}


def dppo_tasks(checkout: Path) -> Tasks:
    """Their settings of locomotion."""
    folder, tasks = checkout / "cfg" / "gym" / "finetune", {}
    for ours, theirs in DPPO_TASKS.items():
        values = readers.yaml_file(folder / theirs)
        parts = (values["env"], values["train"], values["model"])
        both = {name: values[name] for name in ("denoising_steps", "ft_denoising_steps")}
        tasks[ours] = {name: x for part in parts for name, x in part.items()} | both
    return tasks


SOURCES = (
    Source("td3", "TD3", "run_experiments.sh, main.py, TD3.py", td3_tasks, TD3),
    Source(
        "td3",
        "MEX",
        "MEX_MF/run_experiments.sh, main.py, IO.py",
        mex_tasks,
        MEX,
        variant="mex",
    ),
    Source("fasttd3", "FastTD3", "fast_td3/hyperparams.py", fast_td3_tasks, FAST_TD3),
    Source("fastsac", "holosoma", "config_values/algo.py", fast_sac_tasks, FAST_SAC),
    Source(
        "dsact",
        "DSAC-v2",
        "example_train/dsacv2_mlp_*.py, dsac_v2.py",
        dsact_tasks,
        DSACT,
        (
            Intended("num_envs", "*", "The paper takes 20 samples of the environment per update"),
            Intended("critic_loss", "*", "the authors' code since July 2025"),
            Intended("discount", "Hopper-*", "the authors' script for Hopper has 0.999"),
        ),
    ),
    Source(
        "sequence_rl",
        "Sequence-Reinforcement-Learning",
        "hyperparameters.py, sac.py",
        sequence_tasks,
        SEQUENCES,
        (
            Intended(
                "actor_lr critic_lr temperature_lr model_lr",
                "Pendulum-v1",
                "learning rates: RL Zoo's of SAC, the model's the same",
            ),
            Intended("replay_size", "Pendulum-v1", "replay: own choice for 30,000 steps"),
            Intended("memory_hidden", "*", "The GRU has 64 units, theirs 256"),
        ),
    ),
    Source("reppo", "reppo", "config, src/jaxrl/reppo.py", reppo_tasks, REPPO),
    Source(
        "reinflow",
        "ReinFlow",
        "cfg/gym/finetune/*/ft_ppo_reflow_mlp.yaml",
        reinflow_tasks,
        REINFLOW,
        (
            Intended("rate_schedule", "*", "Rates are constant here"),
            Intended("weight_decay", "*", "Weight decay is of their critics alone"),
        ),
    ),
    Source("dppo", "dppo", "cfg/gym/finetune/*/ft_ppo_diffusion_mlp*.yaml", dppo_tasks, DPPO),
)
