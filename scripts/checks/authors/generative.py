"""Agents of the authors of FQL, QC and QAM, and Diffusion-QL, beside their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.checks.authors import readers
from scripts.checks.authors.shared import Intended, Rule, Source, Tasks, in_words, layers

DQL: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "lr",
    "critic_lr": "critic_lr",
    "discount": "discount",
    "target_rate": "tau",
    "value_weight": "eta",
    "max_grad_norm": "gn",
    "max_q_backup": in_words("max_q_backup", {True: 10, False: 1}),
    "reward_transform": in_words(
        "reward_tune", {"no": "none", "normalize": "standardise", "cql_antmaze": "times_4_minus_2"}
    ),
    "denoising_steps": "T",
    "noising": "beta_schedule",
    "average_rate": lambda theirs: 1.0 - theirs["ema_decay"],
    "average_every": "update_ema_every",
    "average_from": "step_start_ema",
    "hidden": layers("hidden_dim", 3),
}


def dql_tasks(checkout: Path) -> Tasks:
    """The authors' table, over the defaults of their script and of their agent's code."""
    agent, script = checkout / "agents" / "ql_diffusion.py", checkout / "main.py"
    readers.says(agent, "torch.repeat_interleave(next_state, repeats=10, dim=0)")
    readers.says(checkout / "utils" / "data_sampler.py", "reward = (reward - 0.5) * 4.0")
    code = {
        **readers.parameters(agent, "Diffusion_QL.__init__"),
        **readers.parameters(agent, "Critic.__init__"),
        **readers.arguments(script),
        "critic_lr": readers.keywords(agent, "Adam", 1)["lr"],
    }
    table = readers.constant(script, "hyperparameters")
    return {f"d4rl/{name}": {**code, **values} for name, values in table.items()}


# OFQL, whose presets take rewards and observations from CleanDiffuser's Diffusion-QL.

OFQL: dict[str, Rule] = {
    "actor_lr": "actor_learning_rate",
    "critic_lr": "critic_learning_rate",
    "batch_size": "batch_size",
    "discount": "discount",
    "average_rate": lambda theirs: 1.0 - theirs["ema_rate"],
    "average_every": "ema_update_interval",
    "average_from": "average_from",
    "num_candidates": "num_candidates",
    "inverse_temperature": "weight_temperature",
    "average_acts": "use_ema",
    "embedding": "embedding",
    "reward_transform": in_words("normalize_reward", {True: "return_range", False: "none"}),
    "normalise_observations": lambda theirs: True,
}


def ofql_tasks(checkout: Path) -> Tasks:
    """CleanDiffuser's settings of Diffusion-QL on locomotion."""
    folder = checkout / "configs" / "dql" / "mujoco"
    program = checkout / "pipelines" / "dql_d4rl_mujoco.py"
    readers.says(program, "if n_gradient_step >= 1000: actor.ema_update()")
    readers.says(program, "emb_dim=64")
    readers.says(program, "obs = torch.tensor(normalizer.normalize(obs)")
    values = readers.yaml_file(folder / "mujoco.yaml") | {"average_from": 1_000, "embedding": 64}
    files = [readers.yaml_file(path) for path in sorted((folder / "task").glob("*.yaml"))]
    return {f"d4rl/{each['env_name']}": {**values, **each} for each in files}


FLOW: dict[str, Rule] = {
    "batch_size": "batch_size",
    "actor_lr": "lr",
    "critic_lr": "lr",
    "hidden": ("actor_hidden_dims", "value_hidden_dims"),
    "layer_norm": "layer_norm",
    "discount": "discount",
    "target_rate": "tau",
    "reward_transform": "rewards",
}


def fql_tasks(agent: str) -> Callable[[Path], Tasks]:
    """The README's commands for learning from data, over the defaults of an agent's file."""

    def read(checkout: Path) -> Tasks:
        readers.says(
            checkout / "envs" / "d4rl_utils.py", "if 'antmaze' in env_name: for i in range"
        )
        defaults = readers.flat(readers.config(checkout / "agents" / f"{agent}.py"))
        tasks: Tasks = {}
        for options in readers.commands(checkout / "README.md", "main.py"):
            name = options.get("env_name", "")
            other = options.get("agent", "agents/fql.py") != f"agents/{agent}.py"
            if other or "online_steps" in options or name.startswith("visual-"):
                continue
            publisher = "ogbench" if "singletask" in name else "d4rl"
            rewards = "minus_one" if publisher == "d4rl" and "antmaze" in name else "none"
            theirs = {key.removeprefix("agent."): value for key, value in options.items()}
            tasks[f"{publisher}/{name}"] = {**defaults, **theirs, "rewards": rewards}
        return tasks

    return read


QC: dict[str, Rule] = {
    **FLOW,
    "target": "q_agg",
    "num_critics": "num_qs",
    "flow_steps": "flow_steps",
    "chunk_length": "horizon_length",
}


def qc_tasks(kind: str) -> Callable[[Path], Tasks]:
    """The README's command with chunks for one kind of actor, over the agent's file."""

    def read(checkout: Path) -> Tasks:
        defaults = readers.flat(readers.config(checkout / "agents" / "acfql.py"))
        tasks: Tasks = {}
        for options in readers.commands(checkout / "README.md", "main.py"):
            theirs = {key.removeprefix("agent."): value for key, value in options.items()}
            values = {**defaults, "rewards": "none", **theirs}
            has_chunks = values["action_chunking"] is True and values["horizon_length"] > 1
            if has_chunks and values["actor_type"] == kind:
                tasks[f"ogbench/{values['env_name']}"] = values
        return tasks

    return read


QAMS: dict[str, Rule] = {  # what all agents have in QAM's comparison
    **{name: rule for name, rule in QC.items() if name not in ("target", "layer_norm")},
    "layer_norm": "value_layer_norm",
    "pessimism": "rho",
}


def qam_form(theirs: Any) -> str:
    """Who acts; a weight or a scale of 0 switches a form off."""
    if theirs["fql_alpha"]:
        return "fql"
    return "edit" if theirs["edit_scale"] else "flow"


QAM: dict[str, Rule] = {
    **QAMS,
    "inverse_temperature": "inv_temp",
    "max_grad_norm": in_words("clip_grad", {True: 1.0, False: None}),
    "form": qam_form,
    # Where the form is off, ours is not used.
    "distillation_weight": lambda theirs: theirs["fql_alpha"] or 30.0,
    "edit_scale": lambda theirs: theirs["edit_scale"] or 0.1,
    "target_entropy_share": "edit_target_entropy_multiplier",
}
del QAM["actor_lr"], QAM["critic_lr"]
QAM["learning_rate"] = "lr"

DSRL: dict[str, Rule] = {
    **{
        name: rule
        for name, rule in QAM.items()
        if name not in ("max_grad_norm", "form", "inverse_temperature", "distillation_weight")
        and not name.startswith(("edit", "target_entropy"))
    },
    "temperature_lr": "lr",
    "noise_scale": "noise_scale",
    "target_entropy_share": "target_entropy_multiplier",
}

REBRAC: dict[str, Rule] = {
    **{name: rule for name, rule in QAMS.items() if name != "flow_steps"},
    "layer_norm": in_words("value_layer_norm", {True: "last"}),
    "critic_penalty": lambda theirs: 0.0,
    "actor_penalty": "alpha_actor",
    "target_noise": "actor_noise",
    "exploration_noise": "actor_noise",
    "target_noise_clip": "actor_noise_clip",
    "policy_delay": "actor_freq",
    "activation": lambda theirs: "gelu_tanh",
    "initialisation": lambda theirs: "glorot_uniform",
}


def qam_tasks(method: str) -> Callable[[Path], Tasks]:
    """The settings of one method in QAM's comparison, by domain, over the agent's file."""

    def read(checkout: Path) -> Tasks:
        script = checkout / "experiments" / "reproduce.py"
        agent = readers.constant(script, "agent_files")[method]
        defaults = readers.flat(readers.config(checkout / agent))
        readers.says(script, "horizon_length = 5 # action chunking of length 5 for all manip")
        readers.says(script, '"agent.discount": 0.995 if "giant" in env_name or "humanoid" in')
        readers.says(script, '"agent.rho": 0.0 if "humanoid" in domain else 0.5')
        readers.says(script, "'agent.num_qs': 10")
        readers.says(script, '"sparse": False if "sparse" not in domain else True')
        readers.says(checkout / "main.py", 'sparse_rewards = (ds["rewards"] != 0.0) * -1.0')
        tasks: Tasks = {}
        for domain, tuned in readers.constant(script, "agent_params")[method].items():
            name = domain.removesuffix("-sparse")
            rewards = "none" if name == domain else "sparse"
            tasks[f"ogbench/{name}-singletask-task1-v0"] = {
                **defaults,
                "rewards": rewards,
                "num_qs": 10,
                "rho": 0.0 if "humanoid" in name else 0.5,
                "discount": 0.995 if "giant" in name or "humanoid" in name else 0.99,
                "horizon_length": 1 if "ant" in name or "humanoid" in name else 5,
                **tuned,
            }
        return tasks

    return read


def qam_rebrac_tasks(checkout: Path) -> Tasks:
    """Those of `qam_tasks`; the rest of the rules is written in code."""
    agent, networks = checkout / "agents" / "rebrac.py", checkout / "utils" / "networks.py"
    readers.says(agent, "return agent.total_loss(batch, grad_params, rng=rng)")
    readers.says(agent, """batch['masks'][..., -1] * next_q q =""")
    readers.says(networks, "activations: Any = nn.gelu")
    readers.says(networks, "default_init = nn.initializers.xavier_uniform")
    return qam_tasks("REBRAC")(checkout)


def qsm_sampling(theirs: Any) -> str:
    """What a step of the reverse process draws from."""
    before, after = theirs["clip_sampler_before"], theirs["clip_sampler_after"]
    return {(False, True): "clean", (True, False): "wide"}[before, after]


QSM: dict[str, Rule] = {
    **{
        name: rule
        for name, rule in QAM.items()
        if name not in ("flow_steps", "form", "distillation_weight")
        and not name.startswith(("edit", "target_entropy"))
    },
    "max_grad_norm": "clip_grad_norm",
    "imitation_weight": "alpha",
    "matching": in_words("actor_loss_type", {"qsm": "score", "dac": "actor_critic"}),
    "sampling": qsm_sampling,
    "denoising_steps": "diffusion_steps",
    "noising": "beta_schedule",
    "embedding": "time_dim",
}


EXPO: dict[str, Rule] = {
    **{name: rule for name, rule in QC.items() if name not in ("target", "layer_norm")},
    "layer_norm": "value_layer_norm",
    "edit_lr": "lr",
    "temperature_lr": "lr",
    "pessimism": "rho",
    "num_candidates": "best_of_n",
    "edit_scale": "edit_scale",
    "target_entropy_share": "edit_target_entropy_multiplier",
    # What their class does and no setting of it says.
    "keep_unedited": lambda theirs: False,
    "edit_source": lambda theirs: "flow",
}


def fedit_tasks(checkout: Path) -> Tasks:
    """The settings of flows with edits in QAM's comparison, whose code says the rest."""
    agent = checkout / "agents" / "fedit.py"
    readers.says(agent, "actions = actions + edit_dist.sample(seed=edit_rng) * self.config")
    readers.says(agent, "flow_actions = self.compute_flow_actions(batch['observations']")
    readers.says(agent, 'q = self.network.select("critic")(observations, actions).mean(axis=0)')
    return qam_tasks("FEDIT")(checkout)


IDQL: dict[str, Rule] = {
    **{name: name for name in ("batch_size", "actor_lr", "critic_lr", "value_lr", "discount")},
    "decay_steps": lambda theirs: theirs["decay_steps"] / (theirs["max_steps"] - 1),
    "target_rate": "tau",
    "average_rate": "actor_tau",
    "expectile": "critic_hyperparam",
    "denoising_steps": "T",
    "noising": "beta_schedule",
    "sampling": in_words("clip_sampler", {True: "free"}),
    "num_candidates": "N",
    "dropout": "actor_dropout_rate",
    "hidden": layers("hidden_dim", "actor_num_blocks"),
    "critic_hidden": "critic_hidden_dims",
    "num_critics": "num_qs",
    "normalise_value": "value_layer_norm",
    "embedding": "time_dim",
    "actor_weight_decay": lambda theirs: 1e-4,  # that of optax.adamw
    "reward_transform": "rewards",
}


def idql_tasks(checkout: Path) -> Tasks:
    """The launcher for learning from data, over the defaults of the agent that it imports."""
    learner = checkout / "jaxrl5" / "agents" / "ddpm_iql_simple" / "ddpm_iql_learner.py"
    launcher = checkout / "launcher" / "examples" / "train_ddpm_iql_offline.py"
    program = checkout / "examples" / "states" / "train_diffusion_offline.py"
    package = checkout / "jaxrl5" / "agents" / "__init__.py"
    readers.says(
        package, "from jaxrl5.agents.ddpm_iql_simple.ddpm_iql_learner import DDPMIQLLearner"
    )
    readers.says(learner, "tx=optax.adamw(learning_rate=actor_lr)")
    readers.says(launcher, "variant['rl_config']['critic_hyperparam'] = 0.9")
    readers.says(program, 'ds.dataset_dict["rewards"] -= 1.0')
    defaults = {
        **readers.dataclass(checkout / "jaxrl5" / "networks" / "resnet.py", "MLPResNet"),
        **readers.parameters(learner, "DDPMIQLLearner.create"),
        **readers.keywords(launcher, "dict", 0),
        **readers.keywords(launcher, "dict", 2),
    }
    tasks: Tasks = {}
    for name in readers.keywords(launcher, "dict", 3)["env_name"]:
        maze = "antmaze" in name
        rewards = "minus_one" if maze else "return_range"
        changes = {"critic_hyperparam": 0.9 if maze else 0.7, "rewards": rewards}
        tasks[f"d4rl/{name}"] = {**defaults, **changes}
    return tasks


SOURCES = (
    Source(
        "iql",
        "fql",
        "README.md, agents/iql.py",
        fql_tasks("iql"),
        {
            **FLOW,
            "value_lr": "lr",
            "expectile": "expectile",
            "inverse_temperature": "alpha",
            "layer_norm": in_words("layer_norm", {True: "last"}),
            "value_layer_norm": in_words("layer_norm", {True: "last"}),
        },
    ),
    Source("dql", "Diffusion-Policies-for-Offline-RL", "main.py", dql_tasks, DQL),
    Source(
        "ofql",
        "CleanDiffuser",
        "configs/dql/mujoco, pipelines/dql_d4rl_mujoco.py",
        ofql_tasks,
        OFQL,
        (
            Intended(
                "inverse_temperature",
                "*",
                "Diffusion-QL's; CleanDiffuser tunes it per set, with scaled rewards",
            ),
        ),
    ),
    Source(
        "fql",
        "fql",
        "README.md, agents/fql.py",
        fql_tasks("fql"),
        {
            **FLOW,
            "target": "q_agg",
            "distillation_weight": "alpha",
            "flow_steps": "flow_steps",
            "normalise_value": "normalize_q_loss",
        },
    ),
    Source(
        "fql",
        "qc",
        "README.md, agents/acfql.py",
        qc_tasks("distill-ddpg"),
        {**QC, "distillation_weight": "alpha", "normalise_value": "normalize_q_loss"},
        variant="qc",
    ),
    Source(
        "fql",
        "qam",
        "experiments/reproduce.py, agents/fql.py",
        qam_tasks("FQL"),
        {**QAMS, "distillation_weight": "alpha"},
        variant="qam",
    ),
    *(
        Source(
            "qam",
            "qam",
            "experiments/reproduce.py, agents/qam.py",
            qam_tasks(method),
            QAM,
            variant=variant,
        )
        for method, variant in (("QAM", None), ("QAM_FQL", "fql"), ("QAM_EDIT", "edit"))
    ),
    *(
        Source(
            "qsm",
            "qam",
            "experiments/reproduce.py, agents/dcgql.py",
            qam_tasks(method),
            QSM,
            variant=variant,
        )
        for method, variant in (("QSM", None), ("DAC", "dac"))
    ),
    Source("dsrl", "qam", "experiments/reproduce.py, agents/dsrl.py", qam_tasks("DSRL"), DSRL),
    Source(
        "expo",
        "qam",
        "experiments/reproduce.py, agents/fedit.py",
        fedit_tasks,
        EXPO,
        variant="qam",
    ),
    Source(
        "qc",
        "qc",
        "README.md, agents/acfql.py",
        qc_tasks("best-of-n"),
        {**QC, "num_candidates": "actor_num_samples"},
    ),
    Source(
        "ifql",
        "fql",
        "README.md, agents/ifql.py",
        fql_tasks("ifql"),
        {
            **FLOW,
            "value_lr": "lr",
            "expectile": "expectile",
            "num_candidates": "num_samples",
            "flow_steps": "flow_steps",
        },
    ),
    Source(
        "ifql",
        "qam",
        "experiments/reproduce.py, agents/ifql.py",
        qam_tasks("IFQL"),
        {**QAMS, "value_lr": "lr", "expectile": "kappa", "num_candidates": "num_samples"},
        variant="qam",
    ),
    Source(
        "rebrac",
        "qam",
        "experiments/reproduce.py, agents/rebrac.py",
        qam_rebrac_tasks,
        REBRAC,
        (
            Intended(
                "policy_delay target_rate",
                "*",
                "Their actor moves in every update, since `actor_freq` does not reach its loss",
            ),
        ),
        variant="qam",
    ),
    Source(
        "idql",
        "IDQL",
        "launcher/examples/train_ddpm_iql_offline.py, jaxrl5/agents/ddpm_iql_simple",
        idql_tasks,
        IDQL,
    ),
)
