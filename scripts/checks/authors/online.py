"""Agents that learn in an environment, beside the files that their presets name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import (
    Intended,
    Rule,
    Settings,
    Source,
    Tasks,
    in_words,
)

# RL Zoo: what its files leave out is Stable-Baselines3's default, which is not compared.


def zoo_tasks(algorithm: str, names: Mapping[str, str]) -> Callable[[Path], Tasks]:
    """Sections of RL Zoo's file of an algorithm, by our name of the environment."""

    def read(checkout: Path) -> Tasks:
        sections = readers.yaml_file(checkout / "hyperparams" / f"{algorithm}.yml")
        return {ours: sections[theirs] for ours, theirs in names.items()}

    return read


def network(theirs: Settings) -> Any:
    """`net_arch` of "dict(net_arch=[256, 256])"."""
    call = ast.parse(theirs["policy_kwargs"], mode="eval").body
    return readers.Scope().value(call)["net_arch"]


def zoo_rate(theirs: Settings) -> float:
    """A learning rate; lin_X falls linearly from X to 0."""
    return float(str(theirs["learning_rate"]).removeprefix("lin_"))


def zoo_decay(theirs: Settings) -> float | None:
    """Whether the learning rate falls to 0 over the run."""
    return 1.0 if str(theirs["learning_rate"]).startswith("lin_") else None


def copies(theirs: Settings) -> int:
    """Updates per copy of the target. SB3 counts steps, and moves targets while it collects."""
    steps, updates = theirs["train_freq"], theirs["gradient_steps"]
    return updates * max(1, theirs["target_update_interval"] // steps)


ZOO_DQN: dict[str, Rule] = {
    "learning_rate": zoo_rate,
    "batch_size": "batch_size",
    "replay_size": "buffer_size",
    "warmup_steps": "learning_starts",
    "discount": "gamma",
    "num_steps": "train_freq",
    "num_updates": "gradient_steps",
    "target_every": copies,
    "epsilon_end": "exploration_final_eps",
    "epsilon_steps": "exploration_fraction",
    "hidden": network,
}
ZOO_SAC: dict[str, Rule] = {
    "actor_lr": zoo_rate,
    "critic_lr": zoo_rate,
    "temperature_lr": zoo_rate,
    "discount": "gamma",
}
ZOO_HER: dict[str, Rule] = {
    **ZOO_SAC,
    "batch_size": "batch_size",
    "replay_size": "buffer_size",
    "warmup_steps": "learning_starts",
    "normalise_observations": "normalize",
    "hindsight": lambda theirs: theirs["n_sampled_goal"] / (1 + theirs["n_sampled_goal"]),
}
ZOO_TD3: dict[str, Rule] = {
    "actor_lr": zoo_rate,
    "critic_lr": zoo_rate,
    "discount": "gamma",
    "replay_size": "buffer_size",
    "warmup_steps": "learning_starts",
    "exploration_noise": "noise_std",
    "num_steps": "train_freq",
    "num_updates": "gradient_steps",
    "hidden": network,
}
ZOO_PPO: dict[str, Rule] = {
    "learning_rate": zoo_rate,
    "decay_steps": zoo_decay,
    "num_envs": "n_envs",
    "num_steps": "n_steps",
    "batch_size": "batch_size",
    "num_epochs": "n_epochs",
    "discount": "gamma",
    "trace_decay": "gae_lambda",
    "entropy_cost": "ent_coef",
    "clip_ratio": lambda theirs: float(str(theirs["clip_range"]).removeprefix("lin_")),
}
PENDULUM = {name: "Pendulum-v1" for name in ("Pendulum-v1", "rljax/Pendulum", "gymnax/Pendulum-v1")}
CARTPOLE = {name: "CartPole-v1" for name in ("CartPole-v1", "gymnax/CartPole-v1")}


# CleanRL.


def cleanrl_tasks(file: str, task: str) -> Callable[[Path], Tasks]:
    """The defaults of one of CleanRL's files."""

    def read(checkout: Path) -> Tasks:
        path = checkout / "cleanrl" / f"{file}.py"
        if file.startswith("dqn"):
            readers.says(path, "optimizer.zero_grad() loss.backward() optimizer.step()")
        return {task: readers.dataclass(path, "Args")}

    return read


CLEANRL_PPO: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "decay_steps": lambda theirs: 1.0 if theirs["anneal_lr"] else None,
    "num_envs": "num_envs",
    "num_steps": "num_steps",
    "batch_size": lambda theirs: (
        theirs["num_envs"] * theirs["num_steps"] // theirs["num_minibatches"]
    ),
    "num_epochs": "update_epochs",
    "discount": "gamma",
    "trace_decay": "gae_lambda",
    "normalise_advantages": "norm_adv",
    "clip_ratio": "clip_coef",
    "clip_values": "clip_vloss",
    "entropy_cost": "ent_coef",
    "value_cost": "vf_coef",
    "max_grad_norm": "max_grad_norm",
}
CLEANRL_DQN: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "num_envs": "num_envs",
    "replay_size": "buffer_size",
    "discount": "gamma",
    "target_rate": "tau",
    "target_every": lambda theirs: theirs["target_network_frequency"] // theirs["train_frequency"],
    "batch_size": "batch_size",
    "epsilon_start": "start_e",
    "epsilon_end": "end_e",
    "epsilon_steps": "exploration_fraction",
    "warmup_steps": "learning_starts",
    "num_steps": "train_frequency",
    "max_grad_norm": lambda theirs: 0.0,  # by `cleanrl_tasks`
}


# Rainbow by Kaixhin.

RAINBOW: dict[str, Rule] = {
    "learning_rate": "learning-rate",
    "adam_epsilon": "adam-eps",
    "max_grad_norm": "norm-clip",
    "batch_size": "batch-size",
    "replay_size": "memory-capacity",
    "warmup_steps": "learn-start",
    "num_steps": "replay-frequency",
    "n_step": "multi-step",
    "prioritised": "priority-exponent",
    "correction": "priority-weight",
    "discount": "discount",
    "target_every": lambda theirs: theirs["target-update"] // theirs["replay-frequency"],
    "clip_rewards": lambda theirs: bool(theirs["reward-clip"]),
    "noise": "noisy-std",
    "atoms": "atoms",
    "v_min": "V-min",
    "v_max": "V-max",
}


def rainbow_tasks(checkout: Path) -> Tasks:
    """The program's defaults."""
    return {"atari/Breakout": readers.arguments(checkout / "main.py")}


def efficient_tasks(checkout: Path) -> Tasks:
    """The README's command for data-efficient Rainbow."""
    defaults = readers.arguments(checkout / "main.py")
    commands = readers.commands(checkout / "README.md", "main.py")
    (options,) = (each for each in commands if "architecture" in each)
    return {"atari/Breakout": {**defaults, **options}}


# purejaxql.

PQN: dict[str, Rule] = {
    "learning_rate": "LR",
    "decay_steps": lambda theirs: 1.0 if theirs["LR_LINEAR_DECAY"] else None,
    "max_grad_norm": "MAX_GRAD_NORM",
    "num_epochs": "NUM_EPOCHS",
    "batch_size": lambda theirs: (
        theirs["NUM_ENVS"] * theirs["NUM_STEPS"] // theirs["NUM_MINIBATCHES"]
    ),
    "num_envs": "NUM_ENVS",
    "num_steps": "NUM_STEPS",
    "discount": "GAMMA",
    "trace_decay": "LAMBDA",
    "reward_scale": "REW_SCALE",
    "epsilon_start": "EPS_START",
    "epsilon_end": "EPS_FINISH",
    "epsilon_steps": "EPS_DECAY",
    "hidden": lambda theirs: (theirs["HIDDEN_SIZE"],) * theirs["NUM_LAYERS"],
    "layer_norm": in_words("NORM_TYPE", {"layer_norm": True}),
    "clip_rewards": "ENV_KWARGS.reward_clip",
}


def pqn_tasks(checkout: Path) -> Tasks:
    """The files that our presets name."""
    folder = checkout / "purejaxql" / "config" / "alg"
    files = {
        "gymnax/Breakout-MinAtar": "pqn_minatar",
        "gymnax/MemoryChain-bsuite": "pqn_rnn_memory_chain",
        "CartPole-v1": "pqn_cartpole",
        "gymnax/CartPole-v1": "pqn_cartpole",
        "atari/Pong": "pqn_atari",
        "envpool/Pong-v5": "pqn_atari",
    }
    return {
        task: readers.flat(readers.yaml_file(folder / f"{file}.yaml"))
        for task, file in files.items()
    }


# Brax and MuJoCo Playground.

PPO: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "entropy_cost": "entropy_cost",
    "discount": "discounting",
    "reward_scale": "reward_scaling",
    "num_envs": "num_envs",
    "num_steps": lambda theirs: (
        theirs["batch_size"]
        * theirs["num_minibatches"]
        * theirs["unroll_length"]
        // theirs["num_envs"]
    ),
    "batch_size": lambda theirs: theirs["batch_size"] * theirs["unroll_length"],
    "num_epochs": "num_updates_per_batch",
    "normalise_observations": "normalize_observations",
    "clip_ratio": "clipping_epsilon",
    "trace_decay": "gae_lambda",
    "value_cost": "vf_loss_coefficient",
    "max_grad_norm": lambda theirs: theirs["max_grad_norm"] or 0.0,
    "normalise_advantages": "normalize_advantage",
    "actor_hidden": (
        "network_factory.policy_hidden_layer_sizes",
        "policy_hidden_layer_sizes",
    ),
    "critic_hidden": ("network_factory.value_hidden_layer_sizes", "value_hidden_layer_sizes"),
}
SAC: dict[str, Rule] = {
    "actor_lr": "learning_rate",
    "critic_lr": "learning_rate",
    "temperature_lr": lambda theirs: 3e-4,  # these four: `BRAX_SAC`
    "temperature_loss": lambda theirs: "alpha",
    "target_entropy_share": lambda theirs: 0.5,
    "initialisation": lambda theirs: "lecun_uniform",
    "discount": "discounting",
    "reward_scale": "reward_scaling",
    "num_envs": "num_envs",
    "batch_size": "batch_size",
    "num_updates": "grad_updates_per_step",
    "warmup_steps": "min_replay_size",
    "replay_size": "max_replay_size",
    "normalise_observations": "normalize_observations",
    "target_rate": "tau",
    "hidden": "hidden_layer_sizes",
    "layer_norm": "q_network_layer_norm",
}


BRAX_SAC = {
    "train.py": "alpha_optimizer = optax.adam(learning_rate=3e-4)",
    "losses.py": "target_entropy = -0.5 * action_size",
    "networks.py": "networks.Initializer = jax.nn.initializers.lecun_uniform",
}


def brax_defaults(checkout: Path, algorithm: str) -> dict[str, Any]:
    """What Brax's training and its networks have where nothing else is said."""
    folder = checkout / "brax" / "training" / "agents" / algorithm
    networks = f"make_{algorithm}_networks"
    readers.says(folder / "train.py", f"{algorithm}_networks.{networks}")
    if algorithm == "sac":
        readers.says(folder / "losses.py", "alpha_loss = alpha * jax.lax.stop_gradient(")
        for name, text in BRAX_SAC.items():
            readers.says(folder / name, text)
    return {
        **readers.parameters(folder / "networks.py", networks),
        **readers.parameters(folder / "train.py", "train"),
    }


def brax_tasks(algorithm: str) -> Callable[[Path], Tasks]:
    """The environments of the notebook that it trains with this algorithm."""

    def read(checkout: Path) -> Tasks:
        defaults = brax_defaults(checkout, algorithm)
        calls = readers.notebook(checkout / "notebooks" / "training.ipynb", "train_fn")
        settings = {name: readers.partial(call) for name, call in calls.items()}
        return {
            f"brax/{name}": {**defaults, **values}
            for name, (function, values) in settings.items()
            if function == f"{algorithm}.train"
        }

    return read


def playground_tasks(checkout: Path) -> Tasks:
    """Every environment of two suites, by the function of settings of its suite."""
    folder = checkout / "mujoco_playground"
    defaults = brax_defaults(checkout.parent / "brax", "ppo")
    tasks: Tasks = {}
    for suite in ("dm_control_suite", "locomotion"):
        path = folder / "config" / f"{suite}_params.py"
        functions = {f"{suite}.get_default_config": lambda name: {}}
        for name in readers.keys(folder / "_src" / suite / "__init__.py", "_envs"):
            values = readers.config(path, "brax_ppo_config", functions, env_name=name)
            tasks[f"playground/{name}"] = {**defaults, **readers.flat(values)}
    return tasks


SOURCES = (
    Source("dqn", "rl-baselines3-zoo", "hyperparams/dqn.yml", zoo_tasks("dqn", CARTPOLE), ZOO_DQN),
    Source("dqn", "cleanrl", "cleanrl/dqn.py", cleanrl_tasks("dqn", "defaults"), CLEANRL_DQN),
    Source(
        "dqn",
        "cleanrl",
        "cleanrl/dqn_atari.py",
        cleanrl_tasks("dqn_atari", "atari/Breakout"),
        CLEANRL_DQN,
    ),
    Source(
        "ppo",
        "cleanrl",
        "cleanrl/ppo_atari.py",
        cleanrl_tasks("ppo_atari", "atari/Breakout"),
        CLEANRL_PPO,
    ),
    Source(
        "dqn",
        "Rainbow",
        "main.py",
        rainbow_tasks,
        RAINBOW,
        (
            Intended("max_grad_norm", "atari/*", "without its limit of the gradient"),
            Intended("noise", "atari/*", "Hessel et al., arXiv:1710.02298, table 1"),
        ),
        variant="rainbow",
    ),
    Source(
        "dqn", "Rainbow", "README.md, main.py", efficient_tasks, RAINBOW, variant="rainbow-100k"
    ),
    Source("pqn", "purejaxql", "purejaxql/config/alg/*.yaml", pqn_tasks, PQN),
    Source(
        "sac",
        "rl-baselines3-zoo",
        "hyperparams/sac.yml",
        zoo_tasks("sac", {**PENDULUM, "Swimmer-v5": "Swimmer-v4"}),
        ZOO_SAC,
    ),
    Source(
        "sac",
        "rl-baselines3-zoo",
        "hyperparams/her.yml",
        zoo_tasks("her", {"gymnasium_robotics:FetchReach-v4": "FetchReach-v1"}),
        ZOO_HER,
    ),
    Source("sac", "brax", "notebooks/training.ipynb", brax_tasks("sac"), SAC),
    Source(
        "dsact",
        "rl-baselines3-zoo",
        "hyperparams/sac.yml",
        zoo_tasks("sac", {**PENDULUM, "Swimmer-v5": "Swimmer-v4"}),
        ZOO_SAC,
    ),
    Source(
        "td3",
        "rl-baselines3-zoo",
        "hyperparams/td3.yml",
        zoo_tasks("td3", {**PENDULUM, "Swimmer-v5": "Swimmer-v4"}),
        ZOO_TD3,
        (
            Intended(
                "discount hidden",
                "*Pendulum*",
                "its discount of 0.98 and its networks of 400 and 300 units are not taken",
            ),
            Intended(
                "replay_size warmup_steps",
                "*Pendulum*",
                "warm-up and replay: own choice for a run of 10,000 steps",
            ),
            Intended("actor_lr critic_lr hidden warmup_steps", "Swimmer-*", "its discount alone"),
        ),
    ),
    Source(
        "ppo",
        "rl-baselines3-zoo",
        "hyperparams/ppo.yml",
        zoo_tasks("ppo", PENDULUM | CARTPOLE),
        ZOO_PPO,
        (
            Intended(
                "num_envs num_steps", "*Pendulum*", "shapes: own choice for a run of 100,000 steps"
            ),
            Intended("decay_steps", "*CartPole-v1", "with a constant learning rate"),
        ),
    ),
    Source("ppo", "brax", "notebooks/training.ipynb", brax_tasks("ppo"), PPO),
    Source("ppo", "mujoco_playground", "mujoco_playground/config", playground_tasks, PPO),
)
