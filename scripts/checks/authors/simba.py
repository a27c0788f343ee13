"""SimbaV2 and FlashSAC, by the same authors, beside their files of settings and scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import (
    ROBOTS,
    Intended,
    Rule,
    Source,
    Tasks,
    discount_of_limit,
    layers,
    number_of,
    per_task,
)

TASKS = [f"{name}-v5" for name in ROBOTS]

FLASHSAC: dict[str, Rule] = {
    "actor_lr": "learning_rate_peak",
    "critic_lr": "learning_rate_peak",
    "temperature_lr": "learning_rate_peak",
    "rate_end": lambda theirs: theirs["learning_rate_end"] / theirs["learning_rate_peak"],
    "policy_delay": "actor_update_period",
    "batch_size": "sample_batch_size",
    "replay_size": number_of("buffer_max_length"),
    "warmup_steps": number_of("buffer_min_length"),
    "n_step": "n_step",
    "normalise_rewards": "normalize_reward",
    "return_limit": "normalized_G_max",
    "v_max": "normalized_G_max",
    "discount": "gamma",
    "target_rate": "critic_target_update_tau",
    "bins": "critic_num_bins",
    "init_temperature": "temp_initial_value",
    "target_std": "temp_target_sigma",
    "imitation_weight": "actor_bc_alpha",
    "hidden": layers("actor_hidden_dim", "actor_num_blocks"),
    "critic_hidden": layers("critic_hidden_dim", "critic_num_blocks"),
    "num_updates": "updates_per_interaction_step",
}
SIMULATED: dict[str, Rule] = {**FLASHSAC, "num_envs": "num_train_envs"}
SIMBAV2: dict[str, Rule] = {
    "actor_lr": "learning_rate_init",
    "critic_lr": "learning_rate_init",
    "temperature_lr": "learning_rate_init",
    "rate_end": lambda theirs: theirs["learning_rate_end"] / theirs["learning_rate_init"],
    "normalise_observations": "normalize_observation",
    "normalise_rewards": "normalize_reward",
    "return_limit": "normalized_g_max",
    "v_max": "normalized_g_max",
    "hidden": layers("actor_hidden_dim", "actor_num_blocks"),
    "critic_hidden": layers("critic_hidden_dim", "critic_num_blocks"),
    "num_critics": lambda theirs: 2 if theirs["episodic"] else 1,
    "bins": "critic_num_bins",
    "target_rate": "target_tau",
    "init_temperature": "temp_initial_value",
    "target_entropy_share": lambda theirs: -theirs["temp_target_entropy_coef"],
    "batch_size": "sample_batch_size",
    "replay_size": number_of("max_length"),
    "warmup_steps": number_of("min_length"),
    "num_updates": "action_repeat",
    "discount": lambda theirs: discount_of_limit(
        theirs["max_episode_steps"] / theirs["action_repeat"]
    ),
}


def flashsac_settings(checkout: Path, script: str) -> tuple[list[str], dict[str, Any]]:
    """The environments of a script, and their files of settings as it overrides them."""
    configs, text = checkout / "configs", (checkout / "scripts" / script).read_text()
    values: dict[str, Any] = readers.yaml_file(configs / "flashSAC_base.yaml")
    common = {name: values[name] for name in ("gamma", "n_step")}
    values |= readers.yaml_file(configs / "agent" / "flashSAC.yaml") | common
    changes = dict(re.findall(r"--overrides (?:agent\.)?(\w+)=([^\s\\]+)", text))
    missing = {"sample_batch_size", "updates_per_interaction_step", "gamma"} - set(changes)
    if missing:
        raise ValueError(f"'{script}' does not set {', '.join(sorted(missing))}.")
    values |= {name: readers.number(x) for name, x in changes.items() if name in values}
    return re.findall(r'^ +"([\w-]+)"$', text, re.MULTILINE), values


def flashsac_tasks(checkout: Path) -> Tasks:
    """Those of the script for MuJoCo."""
    return per_task(TASKS, flashsac_settings(checkout, "run_mujoco.sh")[1])


def flashsac_playground_tasks(checkout: Path) -> Tasks:
    """Those of the script for a simulator on a GPU."""
    names, values = flashsac_settings(checkout, "run_mujoco_playground.sh")
    return per_task((f"playground/{name}" for name in names), values)


def flashsac_myosuite_tasks(checkout: Path) -> Tasks:
    """Those of the script for MyoSuite."""
    return per_task(*flashsac_settings(checkout, "run_myosuite.sh"))


def simbav2_tasks(domain: str, names: list[str] | None = None) -> Callable[[Path], Tasks]:
    """Their files of settings for a domain, in which updates follow each step: for some names, or
    for the environment that the file has.
    """

    def read(checkout: Path) -> Tasks:
        configs = checkout / "configs"
        readers.says(
            configs / "online_rl.yaml",
            "max(min((${eff_episode_len} / 5 - 1) / (${eff_episode_len} / 5), 0.995), 0.95)",
        )
        values: dict[str, Any] = readers.yaml_file(configs / "agent" / "simbaV2.yaml")
        values |= readers.yaml_file(configs / "buffer" / "numpy_uniform.yaml")
        values |= readers.yaml_file(configs / "env" / f"{domain}.yaml")
        return per_task(names or [values["env_name"]], values)

    return read


SIMBAV2_VARIANTS = {"dmc": "dmc", "humanoid-bench": "hb_locomotion", "myosuite": "myosuite"}
SOURCES = (
    Source("flashsac", "FlashSAC", "configs, scripts/run_mujoco.sh", flashsac_tasks, FLASHSAC),
    Source(
        "flashsac",
        "FlashSAC",
        "configs, scripts/run_mujoco_playground.sh",
        flashsac_playground_tasks,
        SIMULATED,
    ),
    Source(
        "flashsac",
        "FlashSAC",
        "configs, scripts/run_myosuite.sh",
        flashsac_myosuite_tasks,
        SIMULATED,
        variant="myosuite",
    ),
    Source(
        "simbav2",
        "SimbaV2",
        "configs",
        simbav2_tasks("mujoco", TASKS),
        SIMBAV2,
        (Intended("num_updates", "*", "Two updates per step** made the published results"),),
    ),
    *(
        Source(
            "simbav2",
            "SimbaV2",
            f"configs/agent, configs/env/{domain}.yaml",
            simbav2_tasks(domain),
            SIMBAV2,
            variant=variant,
        )
        for variant, domain in SIMBAV2_VARIANTS.items()
    ),
)
