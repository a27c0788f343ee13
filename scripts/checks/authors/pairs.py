"""Other people's files beside our agents with the same settings, and what both draw at random,
in one order.

Both scripts that compare them take it from here: compare_returns.py and compare_updates.py. It
imports neither rljax nor torch, for it runs in both Pythons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

UPDATES = 200
SETTINGS = (
    "--device cpu --env halfcheetah-medium-v2 --buffer_size 100000 --max_timesteps {updates} "
    "--eval_freq 1000000"
)

# Our settings where CORL's differ from our defaults, and CORL's where its table for the set differs
# from its defaults.
IQL: dict[str, Any] = {
    "values": "old",
    "normalise_observations": True,
    "reward_transform": "none",
    "initialisation": "torch",
    "log_std_min": -20.0,
}
REBRAC: dict[str, Any] = {"batch_size": 256, "actor_penalty": 0.001, "critic_penalty": 0.01}
REBRAC_ARGUMENTS = "--batch_size 256 --actor_bc_coef 0.001 --critic_bc_coef 0.01"
EDAC: dict[str, Any] = {"update_order": "actor_first", "hidden": (64, 64, 64)}
CQL: dict[str, Any] = {
    "batch_size": 64,
    "num_actions": 4,
    "actor_lr": 3e-4,
    "temperature_lr": 3e-4,
    "update_order": "together",
    "bc_steps": 0,
    "normalise_observations": True,
    "log_std_min": -20.0,
    "log_std_offset": -1.0,
    "critic_initialisation": "orthogonal",
}
CALQL: dict[str, Any] = CQL | {
    "backup": "deterministic",
    "initialisation": "torch",
    "penalty_weight": 10.0,
    "hidden": (256, 256, 256),
    "critic_hidden": (256, 256),
}
CQL_ARGUMENTS = "--batch_size 64 --cql_n_actions 4 --policy_lr 3e-4"
CQL_LOSSES = {
    "qf1_loss+qf2_loss": ("critic/error", 1.0),
    "cql_qf1_diff+cql_qf2_diff": ("critic/gap", 0.5),
    "policy_loss": ("actor/loss", 1.0),
    "alpha_loss": ("temperature/loss", 1.0),
}

# What they draw in all updates, by kind: [N, ...] for each draw, in their order.
Drawn = Mapping[str, list[np.ndarray]]
Noise = Mapping[str, list[np.ndarray]]  # the same by the functions of `jax.random`, in our order


def edac_noise(drawn: Drawn) -> Noise:
    """CORL draws for the temperature, the actor and the critics;
    for the first two it is given the same numbers.
    """
    return {"normal": drawn["normal"][1:]}


def cql_noise(drawn: Drawn) -> Noise:
    """CORL draws for the actor [N, B, A], the target, and the candidates [N, B, K, A];
    we draw the last two at once.

    Of our 1 + K numbers of each state the first ones are those of the target, which the present
    state does not have.
    """
    actor, target, present, following = drawn["normal"]
    both = (
        np.concatenate([first[:, :, None], rest], axis=2)
        for first, rest in ((target, present), (target, following))
    )
    return {
        "normal": [np.concatenate(list(both), axis=1).swapaxes(1, 2), actor],
        "uniform": [drawn["uniform"][0].swapaxes(1, 2)],
    }


def diffusion_noise(drawn: Drawn) -> Noise:
    """Both draw for the target, the noisy actions and the policy;
    they draw steps of a chain in turn, we at once.
    """
    normal = drawn["normal"]
    chain = len(normal) // 2  # of the target, and of the policy
    target = np.stack(normal[:chain], axis=1)
    noisy = normal[chain]
    policy = np.stack(normal[chain + 1 :], axis=1)
    _, steps = drawn["integer"]  # the first ones are the places of the batch
    return {
        "normal": [target, noisy, policy],
        "randint": [steps],
        "bernoulli": [drawn["uniform"][0] > 0.5],
    }


def flow_noise(drawn: Drawn) -> Noise:
    """Both draw for the next action, the flow and the policy. They draw once more, for a figure."""
    return {"normal": drawn["normal"][:3], "uniform": drawn["uniform"]}


def no_noise(drawn: Drawn) -> Noise:
    """Nothing is drawn."""
    return {}


class Pair(NamedTuple):
    """A file of another project, and our agent with the same settings."""

    file: str  # in a folder with all projects
    learner: str  # the class with the method `train`, where the file trains by itself with PyTorch
    # our networks, or parts of them, by name: theirs, one for each member
    networks: Mapping[str, tuple[str, ...]]
    # their losses by name: our metric, and how many of theirs it is
    losses: Mapping[str, tuple[str, float]]
    arguments: str
    config: Mapping[str, Any]
    # of the number of an update: CORL's ReBRAC moves the actor on its first one, ours on its second
    offset: int = 0
    noise: Callable[[Drawn], Noise] = no_noise  # what theirs draws, as ours draws it
    # draws of an update of theirs that are given the numbers of an earlier one
    repeated: Mapping[int, int] = {}
    method: str = "train"  # of the learner
    fields: Mapping[str, Any] = {}  # of its settings, where its command line lacks them
    # parameters of theirs that ours does not learn, and theirs here neither
    fixed: tuple[str, ...] = ()
    # one of those in watch_authors_file.py
    watcher: Literal["torch", "rebrac", "fql", "diffusion_ql"] = "torch"

    @property
    def uses_jax(self) -> bool:
        """Whether theirs runs in the Python with JAX, not in the one with PyTorch."""
        return self.watcher in ("rebrac", "fql")


PAIRS = {
    "td3_bc": Pair(
        "CORL/algorithms/offline/td3_bc.py",
        "TD3_BC",
        {"actor": ("actor",), "critic": ("critic_1", "critic_2")},
        {"critic_loss": ("critic/loss", 1.0), "actor_loss": ("actor/loss", 1.0)},
        f"{SETTINGS} --policy_noise 0.0",
        {"target_noise": 0.0},
    ),
    "iql": Pair(
        "CORL/algorithms/offline/iql.py",
        "ImplicitQLearning",
        {"actor": ("actor",), "critic": ("qf.q1", "qf.q2"), "value": ("vf",)},
        {
            "value_loss": ("value/loss", 1.0),
            "q_loss": ("critic/loss", 2.0),
            "actor_loss": ("actor/loss", 1.0),
        },
        SETTINGS,
        IQL,
    ),
    "bc": Pair(
        "CORL/algorithms/offline/any_percent_bc.py",
        "BC",
        {"actor": ("actor",)},
        {"actor_loss": ("actor/loss", 1.0)},
        f"{SETTINGS} --frac 1.0",
        {},
    ),
    "rebrac": Pair(
        "CORL/algorithms/offline/rebrac.py",
        "",
        {"actor": ("actor",), "critic": ("critic",)},
        {"critic_loss": ("critic/loss", 1.0), "actor_loss": ("actor/loss", 1.0)},
        "--num_epochs 1 --num_updates_on_epoch {updates} --eval_episodes 0 --policy_noise 0.0 "
        + REBRAC_ARGUMENTS,
        REBRAC | {"target_noise": 0.0},
        offset=1,
        watcher="rebrac",
    ),
    "edac": Pair(
        "CORL/algorithms/offline/edac.py",
        "EDAC",
        {"actor": ("actor",), "critic": ("critic",)},
        {
            "critic_loss": ("critic/loss", 1.0),
            "actor_loss": ("actor/loss", 1.0),
            "alpha_loss": ("temperature/loss", 1.0),
        },
        "--device cpu --buffer_size 100000 --num_epochs 1 --num_updates_on_epoch {updates} "
        "--eval_episodes 1 --hidden_dim 64",
        EDAC,
        noise=edac_noise,
        repeated={1: 0},
        method="update",
    ),
    "cql": Pair(
        "CORL/algorithms/offline/cql.py",
        "ContinuousCQL",
        {"actor": ("actor",), "critic": ("critic_1", "critic_2")},
        CQL_LOSSES,
        f"{SETTINGS} {CQL_ARGUMENTS}",
        CQL,
        noise=cql_noise,
        fixed=("actor.log_std_multiplier", "actor.log_std_offset"),
    ),
    "calql": Pair(
        "CORL/algorithms/finetune/cal_ql.py",
        "CalQL",
        {"actor": ("actor",), "critic": ("critic_1", "critic_2")},
        CQL_LOSSES,
        "--device cpu --env halfcheetah-medium-v2 --buffer_size 100000 --offline_iterations "
        f"{{updates}} --online_iterations 0 --eval_freq 1000000 {CQL_ARGUMENTS}",
        CALQL,
        noise=cql_noise,
        fixed=("actor.log_std_multiplier", "actor.log_std_offset"),
    ),
    "riql": Pair(
        "RIQL/RIQL.py",
        "ImplicitQLearning",
        {"actor": ("actor",), "critic": ("qf",), "value": ("vf",)},
        {
            "value_loss": ("value/loss", 1.0),
            "q_loss": ("critic/loss", 1.0),
            "actor_loss": ("actor/loss", 1.0),
        },
        "",
        {},
        fields={
            "device": "cpu",
            "buffer_size": 100_000,
            "num_epochs": 1,
            "num_updates_on_epoch": UPDATES,
            "max_timesteps": UPDATES,
            "eval_episodes": 1,
        },
    ),
    "fql": Pair(
        "FQL/agents/fql.py",
        "",
        {
            "critic": ("modules_critic",),
            "actor.flow/body": ("modules_actor_bc_flow",),
            "actor.one_step/body": ("modules_actor_onestep_flow",),
        },
        {
            "critic/critic_loss": ("critic/loss", 1.0),
            "actor/q": ("actor/q", 1.0),  # not the actor's loss, which passes through 0
            "actor/bc_flow_loss": ("actor/flow", 1.0),
            "actor/distill_loss": ("actor/distillation", 1.0),
        },
        "",
        {},
        noise=flow_noise,
        watcher="fql",
    ),
    "dql": Pair(
        "Diffusion-QL/agents/ql_diffusion.py",
        "",
        {
            "critic": ("critic.q1_model", "critic.q2_model"),
            "actor/time_0": ("model.time_mlp",),
            "actor/body": ("model.mid_layer+model.final_layer",),
        },
        {
            "critic_loss": ("critic/loss", 1.0),
            "actor_loss": ("actor/loss", 1.0),
            "bc_loss": ("actor/imitation", 1.0),
        },
        "",
        {"average_from": 50},
        noise=diffusion_noise,
        fields={
            "discount": 0.99,
            "tau": 0.005,
            "beta_schedule": "vp",
            "n_timesteps": 5,
            "step_start_ema": 50,
            "grad_norm": 9.0,
        },
        watcher="diffusion_ql",
    ),
}
