"""Constrained agents: their defaults, beside those of the files that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.checks.authors import readers
from scripts.checks.authors.shared import Intended, Rule, Source, Tasks


def omnisafe_tasks(file: str) -> Callable[[Path], Tasks]:
    """The defaults of one of OmniSafe's algorithms."""

    def read(checkout: Path) -> Tasks:
        path = checkout / "omnisafe" / "configs" / f"{file}.yaml"
        return {"defaults": readers.flat(readers.yaml_file(path)["defaults"])}

    return read


OMNISAFE_CPO: dict[str, Rule] = {
    "num_epochs": "algo_cfgs.update_iters",
    "batch_size": "algo_cfgs.batch_size",
    "kl_limit": "algo_cfgs.target_kl",
    "damping": "algo_cfgs.cg_damping",
    "learning_rate": "model_cfgs.critic.lr",
    "cg_steps": "algo_cfgs.cg_iters",
    "max_grad_norm": "algo_cfgs.max_grad_norm",
    "discount": "algo_cfgs.gamma",
    "trace_decay": "algo_cfgs.lam",
    "cost_discount": "algo_cfgs.cost_gamma",
    "cost_trace_decay": "algo_cfgs.lam_c",
    "cost_limit": "algo_cfgs.cost_limit",
    "actor_hidden": "model_cfgs.actor.hidden_sizes",
    "critic_hidden": "model_cfgs.critic.hidden_sizes",
    "activation": "model_cfgs.actor.activation",
    "normalise_observations": "algo_cfgs.obs_normalize",
}
OMNISAFE_PPO: dict[str, Rule] = {
    "cost_limit": "lagrange_cfgs.cost_limit",
    "init_multiplier": "lagrange_cfgs.lagrangian_multiplier_init",
    "multiplier_rate": "lagrange_cfgs.lambda_lr",
    "cost_discount": "algo_cfgs.cost_gamma",
    "cost_trace_decay": "algo_cfgs.lam_c",
    "discount": "algo_cfgs.gamma",
    "trace_decay": "algo_cfgs.lam",
    "clip_ratio": "algo_cfgs.clip",
    "entropy_cost": "algo_cfgs.entropy_coef",
    "learning_rate": "model_cfgs.actor.lr",
    "batch_size": "algo_cfgs.batch_size",
    "num_epochs": "algo_cfgs.update_iters",
    "max_grad_norm": "algo_cfgs.max_grad_norm",
    "actor_hidden": "model_cfgs.actor.hidden_sizes",
    "critic_hidden": "model_cfgs.critic.hidden_sizes",
    "activation": "model_cfgs.actor.activation",
    "normalise_observations": "algo_cfgs.obs_normalize",
}
OMNISAFE_SAC: dict[str, Rule] = {
    "cost_limit": "lagrange_cfgs.cost_limit",
    "init_multiplier": "lagrange_cfgs.lagrangian_multiplier_init",
    "multiplier_rate": "lagrange_cfgs.lambda_lr",
    "discount": "algo_cfgs.gamma",
    "target_rate": "algo_cfgs.polyak",
    "batch_size": "algo_cfgs.batch_size",
    "replay_size": "algo_cfgs.size",
    "warmup_steps": "algo_cfgs.start_learning_steps",
    "policy_delay": "algo_cfgs.policy_delay",
    "learn_temperature": "algo_cfgs.auto_alpha",
    "actor_lr": "model_cfgs.actor.lr",
    "critic_lr": "model_cfgs.critic.lr",
    "num_critics": "model_cfgs.critic.num_critics",
    "hidden": "model_cfgs.critic.hidden_sizes",
    "activation": "model_cfgs.critic.activation",
}
STARTER_CPO: dict[str, Rule] = {
    "kl_limit": "target_kl",
    "damping": "damping_coeff",
    "cg_steps": "cg_iters",
    "backtrack": "backtrack_coeff",
    "backtracks": "backtrack_iters",
    "learning_rate": "vf_lr",
    "discount": "gamma",
    "trace_decay": "lam",
    "cost_discount": "cost_gamma",
    "cost_trace_decay": "cost_lam",
    "cost_limit": "cost_lim",
}


def starter_tasks(checkout: Path) -> Tasks:
    """Safety Starter Agents: its trainer's and its trust region's defaults."""
    folder = checkout / "safe_rl" / "pg"
    return {
        "defaults": {
            **readers.parameters(folder / "run_agent.py", "run_polopt_agent"),
            **readers.parameters(folder / "agents.py", "TrustRegionAgent.__init__"),
            **readers.parameters(folder / "trust_region.py", "cg"),
        }
    }


SOURCES = (
    Source("cpo", "safety-starter-agents", "safe_rl/pg", starter_tasks, STARTER_CPO),
    Source(
        "cpo",
        "omnisafe",
        "omnisafe/configs/on-policy/CPO.yaml",
        omnisafe_tasks("on-policy/CPO"),
        OMNISAFE_CPO,
        (  # [3] are Safety Starter Agents
            Intended("trace_decay", "*", "lambda of the advantages; [3]"),
            Intended("cost_trace_decay", "*", "lambda of costs; [3]"),
            Intended("cg_steps", "*", "of conjugate gradients; [3]"),
            Intended("max_grad_norm", "*", "0: no limit; ppo_lagrangian"),
        ),
    ),
    Source(
        "ppo_lagrangian",
        "omnisafe",
        "omnisafe/configs/on-policy/PPOLag.yaml",
        omnisafe_tasks("on-policy/PPOLag"),
        OMNISAFE_PPO,
        (  # [3] is PPO's paper, [5] a study of its details
            Intended("num_epochs", "*", "passes over each rollout; [3]"),
            Intended("max_grad_norm", "*", "0: no limit; [5]"),
        ),
    ),
    Source(
        "sac_lagrangian",
        "omnisafe",
        "omnisafe/configs/off-policy/SACLag.yaml",
        omnisafe_tasks("off-policy/SACLag"),
        OMNISAFE_SAC,
        (
            Intended("multiplier_rate", "*", "of Adam (gradient); [1]"),
            Intended("learn_temperature policy_delay", "*", "Everything else is [SAC](sac.md)"),
        ),
    ),
)
