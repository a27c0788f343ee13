"""Agents that learn from a data set, beside their authors' files and CORL's."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import (
    ADROIT_SETS,
    ANTMAZE_SETS,
    KITCHEN_SETS,
    LOCOMOTION,
    LOCOMOTION_SETS,
    DoesNotApply,
    Intended,
    Rule,
    Settings,
    Source,
    Tasks,
    affine,
    decay,
    in_words,
    layers,
    only_where,
    per_task,
    rate_or_none,
    unless_infinite,
    with_rewards,
    yaml_tasks,
)

# IQL's rewards, in its code and in what was copied from it.
IQL_REWARDS = {**dict.fromkeys(LOCOMOTION, "return_range"), "antmaze": "minus_one"}
IQL_RULE = (  # in what was copied from it, rewards of AntMaze are shifted in batches
    ("if 'antmaze' in FLAGS.env_name: dataset.rewards -= 1.0", "rewards=batch.rewards - 1"),
    (
        "elif ('halfcheetah' in FLAGS.env_name or 'walker2d' in FLAGS.env_name or 'hopper' in "
        "FLAGS.env_name): normalize(dataset)",
    ),
)
IQL_CODE: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "actor_lr",
    "critic_lr": "critic_lr",
    "value_lr": "value_lr",
    "decay_steps": decay("opt_decay_schedule"),
    "hidden": "hidden_dims",
    "discount": "discount",
    "target_rate": "tau",
    "inverse_temperature": "temperature",
    "dropout": rate_or_none("dropout_rate"),
    "log_std_min": "log_std_min",
    "reward_transform": "rewards",
}


def iql_code(checkout: Path, folder: str = "", train: str = "train_offline.py") -> dict[str, Any]:
    """What IQL's code sets for all tasks, and code that was copied from it."""
    learner = checkout / folder / "learner.py"
    return {
        **readers.parameters(learner, "Learner.__init__"),
        **readers.keywords(learner, "NormalTanhPolicy"),
        **readers.arguments(checkout / folder / train),
    }


def iql_rules(path: Path) -> None:
    """Check that a script transforms rewards as IQL's does."""
    text = readers.squeezed("\n".join(line.split("#")[0] for line in path.read_text().splitlines()))
    for forms in IQL_RULE:
        if not any(readers.squeezed(form) in text for form in forms):
            raise ValueError(f"'{path}' no longer says: {' or '.join(forms)}")


def iql_tasks(checkout: Path) -> Tasks:
    """The three configurations of IQL; its README uses that of Kitchen for Adroit."""
    iql_rules(checkout / "train_offline.py")
    readme = checkout / "README.md"
    readers.says(readme, "--env_name=pen-human-v0 --config=configs/kitchen_config.py")
    sets = {
        "mujoco": LOCOMOTION_SETS,
        "antmaze": ANTMAZE_SETS,
        "kitchen": KITCHEN_SETS + ADROIT_SETS,
    }
    tasks: Tasks = {}
    for name, members in sets.items():
        values = readers.flat(readers.config(checkout / "configs" / f"{name}_config.py"))
        tasks |= per_task(members, {**iql_code(checkout), **values})
    return with_rewards(tasks, IQL_REWARDS)


CORL_REWARDS = {**dict.fromkeys(LOCOMOTION, "return_range"), "antmaze": "minus_one"}


def corl_rewards(theirs: Settings) -> str:
    """CORL's rewards in most of its files, where `normalize_reward` is on."""
    name = theirs["env" if "env" in theirs else "env_name"].split("-")[0]
    return CORL_REWARDS.get(name, "none") if theirs["normalize_reward"] else "none"


TD3_BC: dict[str, Rule] = {
    "batch_size": "batch_size",
    "value_weight": "alpha",
    "discount": "discount",
    "target_rate": "tau",
    "exploration_noise": "expl_noise",
    "target_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
    "policy_delay": "policy_freq",
    "normalise_observations": "normalize",
    "reward_transform": corl_rewards,
}


AWAC: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "learning_rate",
    "critic_lr": "learning_rate",
    "discount": "gamma",
    "target_rate": "tau",
    "temperature": "awac_lambda",
    "max_weight": "exp_adv_max",
    "log_std_min": "min_log_std",
    "log_std_max": "max_log_std",
    "hidden": layers("hidden_dim", 3),
    "normalise_observations": lambda theirs: True,  # always, in the file
    "reward_transform": corl_rewards,
}


def awac_tasks(kind: str) -> Callable[[Path], Tasks]:
    """CORL's files of AWAC, "offline" or "finetune", over what its code sets for all."""

    def read(checkout: Path) -> Tasks:
        path = checkout / f"algorithms/{kind}/awac.py"
        readers.says(path, 'normalize_states( dataset["observations"], state_mean, state_std )')
        code = {
            **readers.dataclass(path, "TrainConfig"),
            **readers.parameters(path, "AdvantageWeightedActorCritic.__init__"),
            **readers.parameters(path, "Actor.__init__"),
        }
        tasks = yaml_tasks(f"configs/{kind}/awac", "env_name")(checkout)
        return {task: {**code, **values} for task, values in tasks.items()}

    return read


def td3_bc_tasks(checkout: Path) -> Tasks:
    """The authors' list of data sets, all with the defaults of their script."""
    script = (checkout / "run_experiments.sh").read_text().split("envs=(")[1].split(")")[0]
    names = [name.strip('"') for name in script.split()]
    agent = checkout / "TD3_BC.py"
    readers.says(agent, "self.l1 = nn.Linear(state_dim, 256) self.l2 = nn.Linear(256, 256)")
    values = {
        **readers.arguments(checkout / "main.py"),
        "lr": readers.keywords(agent, "Adam")["lr"],
        "widths": (256, 256),
    }
    return per_task((f"d4rl/{name}" for name in names), values)


EDAC: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "actor_learning_rate",
    "critic_lr": "critic_learning_rate",
    "temperature_lr": "alpha_learning_rate",
    "discount": "gamma",
    "target_rate": "tau",
    "diversity_weight": "eta",
    "num_critics": "num_critics",
    "hidden": layers("hidden_dim", 3),
    "reward_transform": corl_rewards,
}


def edac_tasks(checkout: Path) -> Tasks:
    """The two commands for Adroit in the authors' README, over the defaults of their script."""
    defaults = readers.arguments(checkout / "scripts" / "sac.py")
    options = [
        each
        for each in readers.commands(checkout / "README.md", "scripts.sac")
        if "reward_mean" in each
    ]
    # Both name pen-human-v1; the text above the second says pen-cloned.
    names = ("d4rl/pen-human-v1", "d4rl/pen-cloned-v1")
    return {name: {**defaults, **each} for name, each in zip(names, options, strict=True)}


REBRAC: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "actor_learning_rate",
    "critic_lr": "critic_learning_rate",
    "actor_penalty": "actor_bc_coef",
    "critic_penalty": "critic_bc_coef",
    "discount": "gamma",
    "target_rate": "tau",
    "hidden": layers("hidden_dim", "critic_n_hiddens"),
    "layer_norm": in_words("critic_ln", {True: "last"}),
    "target_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
    "policy_delay": "policy_freq",
    "normalise_observations": "normalize_states",
    "reward_transform": lambda theirs: (
        "times_100"
        if theirs["normalize_reward"] and theirs["dataset_name"].startswith("antmaze")
        else "none"
    ),
}


def cql_rewards(theirs: Settings) -> str:
    """Rewards of CORL's CQL: over the range of returns for locomotion, then scaled and shifted."""
    if not theirs["normalize_reward"]:
        return "none"
    scaled = affine("reward_scale", "reward_bias")(theirs)
    return "return_range" if theirs["env"].split("-")[0] in LOCOMOTION else scaled


def cql_backup(theirs: Settings) -> str:
    """The target's backup by our word for it."""
    if theirs["backup_entropy"]:
        return "entropy"
    return "max_of_min" if theirs["cql_max_target_backup"] else "deterministic"


CQL: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "policy_lr",
    "temperature_lr": "policy_lr",
    "critic_lr": "qf_lr",
    "discount": "discount",
    "target_rate": "soft_target_update_rate",
    "penalty_weight": "cql_alpha",
    "num_actions": "cql_n_actions",
    "importance_sampling": "cql_importance_sample",
    "gap_temperature": "cql_temp",
    "gap_min": unless_infinite("cql_clip_diff_min"),
    "gap_max": unless_infinite("cql_clip_diff_max"),
    "lagrange": "cql_lagrange",
    "target_gap": only_where("cql_lagrange", "cql_target_action_gap"),
    "backup": cql_backup,
    "bc_steps": "bc_steps",
    "normalise_observations": "normalize",
    "critic_hidden": layers("width", "q_n_hidden_layers"),
    "critic_initialisation": in_words(
        "orthogonal_init", {True: "orthogonal_small", False: "torch"}
    ),
    "reward_transform": cql_rewards,
    "log_std_min": "log_std_min",
    "log_std_max": "log_std_max",
    "log_std_offset": "log_std_offset",
}


CORL_CQL = "algorithms/offline/cql.py"


def corl_cql_tasks(
    folder: str, script: str, families: Sequence[str] = ("",)
) -> Callable[[Path], Tasks]:
    """CORL's files of CQL or Cal-QL for some families of tasks, and what their networks' code sets
    for all.
    """

    def read(checkout: Path) -> Tasks:
        path = checkout / script
        readers.says(path, "nn.Linear(observation_dim + action_dim, 256)")
        if script == CORL_CQL:
            readers.says(path, "nn.init.orthogonal_(module[-1].weight, gain=1e-2)")
        code = {
            **readers.parameters(path, "ReparameterizedTanhGaussian.__init__"),
            **readers.parameters(path, "TanhGaussianPolicy.__init__"),
            "width": 256,
        }
        prefixes = tuple(f"d4rl/{family}" for family in families)
        tasks = yaml_tasks(folder, "env")(checkout)
        return {
            task: {**code, **values} for task, values in tasks.items() if task.startswith(prefixes)
        }

    return read


RIQL: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "learning_rate",
    "critic_lr": "learning_rate",
    "value_lr": "learning_rate",
    "discount": "discount",
    "target_rate": "soft_target_update_rate",
    "inverse_temperature": "beta",
    "expectile": "iql_tau",
    "policy": in_words("iql_deterministic", {True: "deterministic", False: "gaussian"}),
    "normalise_observations": "normalize",
    "huber_sigma": "sigma",
    "num_critics": "num_critics",
    "quantile": "quantile",
}


def riql_tasks(checkout: Path) -> Tasks:
    """Clean data: its defaults, which its function of settings changes for corrupted data alone."""
    values = readers.dataclass(checkout / "RIQL.py", "TrainConfig")
    values |= {"corruption_mode": "none", "env_name": "halfcheetah-medium-replay-v2"}
    values = readers.config(checkout / "RIQL_config.py", TrainConfig=values)
    return per_task((f"d4rl/{name}-medium-replay-v2" for name in LOCOMOTION), values)


FAMO2O: dict[str, Rule] = {
    **{name: rule for name, rule in IQL_CODE.items() if name not in ("dropout", "decay_steps")},
    "expectile": "expectile",
    "inverse_temperature_min": lambda theirs: theirs["family_coefficient_range"][0],
    "inverse_temperature_max": lambda theirs: theirs["family_coefficient_range"][1],
    "temperature_lr": "hierarchical_temp_lr",
    "init_temperature": "hierarchical_init_temperature",
    "balance_lr": "actor_lr",
    "num_frequencies": lambda theirs: theirs["family_sin_cos_d"] // 2,
    "target_entropy": lambda theirs: theirs["target_entropy"] or -0.5,
}
FAMO2O = {name: rule for name, rule in FAMO2O.items() if name != "inverse_temperature"}


def famo2o_tasks(checkout: Path) -> Tasks:
    """The configuration for AntMaze; for locomotion the defaults of the learner's code."""
    folder = checkout / "jax_iql"
    iql_rules(folder / "family_train_finetune.py")
    learner = folder / "family_learner.py"
    readers.says(learner, "if target_entropy is None: self.target_entropy = -1.0 / 2.0")
    code = {
        **readers.parameters(learner, "FamilyLearner.__init__"),
        **readers.keywords(learner, "NormalTanhPolicy"),
        **readers.arguments(folder / "family_train_finetune.py"),
    }
    values = readers.config(folder / "configs" / "family_antmaze_finetune_config.py")
    tasks = per_task(ANTMAZE_SETS, {**code, **readers.flat(values)})
    # No file has an expectile for locomotion.
    tasks |= per_task(LOCOMOTION_SETS, readers.without(code, "expectile"))
    return with_rewards(tasks, IQL_REWARDS)


def bound(theirs: Settings) -> float:
    """The bound of an exponent, which only reverse-KL has."""
    if theirs.get("f", "reverse-KL") != "reverse-KL":
        raise DoesNotApply
    return theirs["max_clip"]


DUAL: dict[str, Rule] = {
    **IQL_CODE,
    "max_exponent": bound,
    "uniform_actions": "sample_random_times",
    "value_layer_norm": "layernorm",
}


# Scripts with one setting for a whole domain, and a set of it that has no script of its own. All
# sets of AntMaze and Kitchen have one.
CONSISTENT = {
    "mujoco_consistent": "hopper-random-v2",
    "androit_consistent": "door-cloned-v1",
}


def xql_tasks(checkout: Path) -> Tasks:
    """The scripts that reproduce the paper's results, one for each data set or domain."""
    folder = checkout / "offline"
    iql_rules(folder / "train_offline.py")
    tasks: Tasks = {}
    for path in sorted(folder.glob("reproduce/*/*.sh")):
        if path.stem in ("ant_consistent", "kitchen_consistent"):
            continue
        for options in readers.commands(path, "train_offline.py"):
            values = readers.flat(readers.config(folder / options["config"]))
            name = CONSISTENT.get(path.stem, options["env_name"])
            tasks[f"d4rl/{name}"] = {
                **iql_code(checkout, "offline"),
                **values,
                **options,
                "divergence": "reverse_kl",
            }
    return with_rewards(tasks, IQL_REWARDS)


def only_with(divergence: bool) -> Callable[[Settings], Any]:
    """`temp` is the temperature of reverse-KL, and lambda of the other divergences."""

    def rule(theirs: Settings) -> Any:
        if (theirs["f"] == "reverse-KL") is not divergence:
            raise DoesNotApply
        return theirs["temp"]

    return rule


def dvl_tasks(checkout: Path) -> Tasks:
    """The three commands of the README."""
    folder = checkout / "offline"
    iql_rules(folder / "train_offline.py")
    tasks: Tasks = {}
    for options in readers.commands(folder / "README.md", "train_offline.py"):
        values = readers.flat(readers.config(folder / options["config"]))
        name = options["env_name"].replace("human-v0", "human-v1")
        tasks[f"d4rl/{name}"] = {**iql_code(checkout, "offline"), **values, **options}
    return with_rewards(tasks, IQL_REWARDS)


RECOIL: dict[str, Rule] = {
    **{name: rule for name, rule in IQL_CODE.items() if name != "reward_transform"},
    "temperature": ("temp", "loss_temp"),
    "max_exponent": "max_clip",
    "expectile": "expectile",
    "value_gap": "beta",
    "value_layer_norm": "layernorm",
}


def recoil_tasks(checkout: Path) -> Tasks:
    """The configurations over the defaults of the script, and the README's command."""
    folder = checkout / "offline"
    code = {
        **readers.parameters(folder / "learner_imitate.py", "Learner.__init__"),
        **readers.keywords(folder / "learner_imitate.py", "NormalTanhPolicy"),
        **readers.arguments(folder / "train_offline_imitate.py"),
    }
    sets = {"mujoco": LOCOMOTION_SETS, "kitchen": KITCHEN_SETS, "adroit": ADROIT_SETS}
    tasks: Tasks = {}
    for name, members in sets.items():
        values = readers.flat(readers.config(folder / "configs" / f"{name}_config.py"))
        tasks |= per_task(members, {**code, **values})
    for options in readers.commands(checkout / "README.md", "train_offline_imitate.py"):
        task = f"d4rl/{options['env_name']}"
        if task in tasks:
            tasks[task] = {**tasks[task], **options}
    return tasks


DT: dict[str, Rule] = {
    "learning_rate": "learning_rate",
    "warmup_updates": lambda theirs: theirs["warmup_steps"] / theirs["update_steps"],
    "batch_size": "batch_size",
    "weight_decay": "weight_decay",
    "max_grad_norm": "clip_grad",
    "context_length": "seq_len",
    "return_scale": "reward_scale",
    "target_return": lambda theirs: theirs["target_returns"][0],  # the first of two
    "width": "embedding_dim",
    "layers": "num_layers",
    "heads": "num_heads",
    "dropout": "residual_dropout",
    "times": "episode_len",
}


def rvs_tasks(checkout: Path) -> Tasks:
    """The configuration that is launched on sets of Gym, where rewards are conditioned on."""
    experiments = checkout / "experiments"
    values = configparser.ConfigParser()
    values.read(experiments / "config/d4rl/gym_rvs_r.cfg")
    settings: dict[str, Any] = dict(values["architecture"])
    script = (experiments / "launch_gym_rvs_r.sh").read_text()
    (names,) = re.findall(r"envs=\((.*?)\)", script)
    return per_task([f"d4rl/{name}" for name in shlex.split(names)], settings)


def dpt_tasks(checkout: Path) -> Tasks:
    """The commands of the bandits and of the dark room."""
    readers.says(checkout / "net.py", "n_head=1")  # whatever --head is
    readers.says(checkout / "train.py", "'batch_size': 64")
    readers.says(checkout / "train.py", "weight_decay=1e-4")
    defaults = readers.arguments(checkout / "common_args.py")
    tasks: dict[str, Any] = {}
    for task, script, length in (
        ("rljax/Bandit-5", "run_bandit.sh", 1),
        ("rljax/DarkRoom-10x10", "run_darkroom.sh", 100),  # eval.py: horizon = H
    ):
        (options,) = readers.commands(checkout / script, "train.py")
        code = {"batch_size": 64, "weight_decay": 1e-4, "heads": 1, "episode_steps": length}
        tasks[task] = {**defaults, **options, **code}
    return tasks


SOURCES = (
    Source(
        "dpt",
        "decision-pretrained-transformer",
        "run_bandit.sh, run_darkroom.sh, train.py, net.py, common_args.py",
        dpt_tasks,
        {
            "learning_rate": "lr",
            "batch_size": "batch_size",
            "weight_decay": "weight_decay",
            "context_length": "H",
            "episode_steps": "episode_steps",
            "width": "embd",
            "layers": "layer",
            "heads": "heads",
            "dropout": lambda theirs: theirs["dropout"] or None,
        },
    ),
    Source(
        "iql",
        "implicit_q_learning",
        "configs/*.py",
        iql_tasks,
        IQL_CODE | {"expectile": "expectile"},
    ),
    Source(
        "bc",
        "CORL",
        "configs/offline/bc/*/*.yaml",
        yaml_tasks("configs/offline/bc", "env"),
        {"batch_size": "batch_size", "normalise_observations": "normalize"},
    ),
    Source(
        "dt",
        "CORL",
        "configs/offline/dt/*/*.yaml",
        yaml_tasks("configs/offline/dt", "env_name"),
        DT,
    ),
    Source(
        "rvs",
        "rvs",
        "experiments/config/d4rl/gym_rvs_r.cfg, experiments/launch_gym_rvs_r.sh",
        rvs_tasks,
        {
            "actor_lr": lambda theirs: float(theirs["learning_rate"]),
            "batch_size": lambda theirs: int(theirs["batch_size"]),
            "hidden": lambda theirs: [int(theirs["hidden_size"])] * int(theirs["depth"]),
            "dropout": lambda theirs: float(theirs["dropout_p"]),
        },
    ),
    Source(
        "td3_bc",
        "TD3_BC",
        "main.py, run_experiments.sh",
        td3_bc_tasks,
        {
            **readers.without(TD3_BC, "reward_transform"),
            "actor_lr": "lr",
            "critic_lr": "lr",
            "hidden": "widths",
        },
    ),
    Source(
        "td3_bc",
        "CORL",
        "configs/offline/td3_bc/*/*.yaml",
        yaml_tasks("configs/offline/td3_bc", "env"),
        TD3_BC,
    ),
    Source(
        "rebrac",
        "CORL",
        "configs/offline/rebrac/*/*.yaml",
        yaml_tasks("configs/offline/rebrac", "dataset_name"),
        REBRAC,
    ),
    Source(
        "edac",
        "EDAC",
        "README.md, defaults of its script",
        edac_tasks,
        {
            "actor_lr": "plr",
            "critic_lr": "qlr",
            "num_critics": "num_qs",
            "diversity_weight": "eta",
            "max_q_backup": "max_q_backup",
            "reward_transform": in_words("reward_std", {True: "standardise", False: "none"}),
        },
        (Intended("max_q_backup", "d4rl/pen-*", "its --max_q_backup for pen-cloned is not here"),),
    ),
    Source(
        "edac",
        "CORL",
        "configs/offline/edac/*/*.yaml",
        yaml_tasks("configs/offline/edac", "env_name"),
        EDAC,
        (
            Intended("actor_lr temperature_lr", "d4rl/pen-*", "rewards and learning rates: [2]"),
            Intended("reward_transform", "d4rl/pen-*", "rewards and learning rates: [2]"),
            Intended("reward_transform", "*", "rewards: [2], of all of Adroit"),
        ),
    ),
    Source(
        "cql",
        "CORL",
        "configs/offline/cql/*/*.yaml",
        corl_cql_tasks("configs/offline/cql", CORL_CQL),
        CQL,
    ),
    *(
        Source("awac", "CORL", f"configs/{kind}/awac/*/*.yaml", awac_tasks(kind), AWAC)
        for kind in ("offline", "finetune")
    ),
    Source("riql", "RIQL", "RIQL.py, RIQL_config.py", riql_tasks, RIQL),
    Source("famo2o", "FamO2O", "jax_iql/configs, family_learner.py", famo2o_tasks, FAMO2O),
    Source(
        "fdvl",
        "XQL",
        "offline/reproduce/*/*.sh",
        xql_tasks,
        {**DUAL, "temperature": "temp", "divergence": "divergence"},
        variant="xql",
    ),
    Source(
        "fdvl",
        "DVL",
        "offline/README.md",
        dvl_tasks,
        {
            **DUAL,
            "divergence": in_words(
                "f",
                {
                    "chi-square": "chi_square",
                    "total-variation": "total_variation",
                    "reverse-KL": "reverse_kl",
                },
            ),
            "temperature": only_with(True),
            "optimism": only_with(False),
        },
    ),
    Source(
        "recoil",
        "ReCOIL",
        "offline/configs/*.py, README.md",
        recoil_tasks,
        RECOIL,
        (
            Intended(
                "temperature inverse_temperature dropout value_layer_norm",
                "d4rl/*",
                "There are no presets here, as the data are joined by hand",
            ),
        ),
    ),
)
