"""Presets that carry an author's name have the numbers of the author's files.

The numbers are copied from these files, under our names and in their order. Where a file's number
stands for another, the code decides: WSRL's and Cal-QL's `target_entropy` of 0.0 is -A, None here.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import calql, cql, dqn, rebrac, sac
from rljax.learning import registry

KEY = jax.random.key(0)
SPEC = EnvSpec("test/Example-v0", (3,), 2)
MODULES = {"sac": sac, "cql": cql, "calql": calql, "rebrac": rebrac}
LIMITS = {"log_std_min": math.log(1e-5), "log_std_max": math.log(10.0)}  # std in [1e-5, 10]

# WSRL (zhouzypaul/wsrl 891ee35): what its agents and its pretraining share.
ENSEMBLE: dict[str, Any] = LIMITS | {
    "discount": 0.99,
    "target_entropy": None,  # sac.py: 0.0 becomes -actions.shape[-1]
    "target_rate": 5e-3,
    "num_critics": 10,
    "min_critics": 2,
    "init_temperature": 1.0,
    "layer_norm": True,
    "actor_layer_norm": True,
    "actor_lr": 1e-4,
    "critic_lr": 3e-4,
    "temperature_lr": 1e-4,
    "batch_size": 256,
}
# sac_config.py, wsrl_config.py, finetune.py --utd 4 --batch_size 1024 --warmup_steps 5000.
WSRL = ENSEMBLE | {
    "entropy_backup": False,
    "with_replacement": True,  # jax.random.randint
    "actor_value": "smallest",  # predicted_qs.min(axis=0)
    "num_updates": 4,
    "policy_delay": 4,
    "warmup_steps": 5_000,
}
FROM_STATES = {"state_dependent_std": True, "num_next_actions": 1}
PLAIN_REWARDS = {"reward_scale": 1.0, "reward_shift": None}
# train_config.py, and the rewards of scripts/*/launch_wsrl_finetune.sh
ANTMAZE_WSRL = WSRL | {
    "state_dependent_std": False,  # std_parameterization="uniform"
    "critic_hidden": (256,) * 4,
    "hidden": (256, 256),
    "num_next_actions": 10,  # max_target_backup, n_actions
    "reward_scale": 10.0,
    "reward_shift": -5.0,
}
ADROIT_WSRL = WSRL | FROM_STATES | {"critic_hidden": (512,) * 3, "hidden": (512, 512)}
KITCHEN_WSRL = WSRL | FROM_STATES | {"critic_hidden": None, "hidden": (512,) * 3}
KITCHEN_REWARDS = {"reward_scale": 1.0, "reward_shift": -4.0}
LOCOMOTION_WSRL = WSRL | FROM_STATES | PLAIN_REWARDS | {"critic_hidden": None, "hidden": (256, 256)}

# WSRL's pretraining: cql_config.py with ensemble_config.py (--use_redq).
PRETRAINING = ENSEMBLE | {
    "log_std_offset": 0.0,
    "num_actions": 10,
    "backup": "max_of_min",  # cql_max_target_backup
    "gap_temperature": 1.0,
    "bc_steps": 0,
    "update_order": "together",
    "normalise_observations": False,
    "state_dependent_std": True,
    "importance_sampling": True,
    "lagrange": False,
}
ANTMAZE_CQL = PRETRAINING | {
    "state_dependent_std": False,
    "critic_hidden": (256,) * 4,
    "hidden": (256, 256),
    "lagrange": True,  # cql_autotune_alpha: alpha (G - gap), alpha from 1.0 on
    "penalty_weight": 1.0,
    "weighted_target": True,
    "init_multiplier": 1.0,
    "target_gap": 0.8,
    "reward_transform": "times_10_minus_5",
    "failure_reward": -5.0,
}
ADROIT_CQL = PRETRAINING | {
    "critic_hidden": (512,) * 3,
    "hidden": (512, 512),
    "penalty_weight": 1.0,
}
KITCHEN_CQL = PRETRAINING | {
    "critic_hidden": (512,) * 3,
    "hidden": (512,) * 3,
    "importance_sampling": False,
    "penalty_weight": 5.0,
    "reward_transform": "minus_four",
}
LOCOMOTION_CQL = PRETRAINING | {
    "critic_hidden": (256, 256),
    "hidden": (256, 256),
    "penalty_weight": 5.0,
    "reward_transform": "none",
    "gap_min": None,
    "gap_max": None,
}

# RLPD (ikostrikov/rlpd c90fd4b): td_config.py, sac_config.py, rlpd_config.py; README.md
# --utd_ratio=20 --start_training 5000.
RLPD: dict[str, Any] = {
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "temperature_lr": 3e-4,
    "discount": 0.99,
    "target_rate": 0.005,
    "layer_norm": True,
    "actor_layer_norm": False,
    "init_temperature": 1.0,
    "temperature_loss": "alpha",  # temp_loss = temperature * (entropy - target_entropy)
    "target_entropy": None,
    "target_entropy_share": 0.5,  # -action_dim / 2
    "num_critics": 10,
    "actor_value": "mean",  # qs.mean(axis=0)
    "with_replacement": False,  # jax.random.choice(..., replace=False)
    "num_updates": 20,
    "policy_delay": 20,
    "warmup_steps": 5_000,
    "batch_size": 256,
    "log_std_min": -20.0,
    "log_std_max": 2.0,
}
RLPD_LOCOMOTION = {"min_critics": 2, "entropy_backup": True, "hidden": (256, 256)}
# --config.backup_entropy=False --config.hidden_dims="(256, 256, 256)" --config.num_min_qs=1, and
# train_finetuning.py: batch["rewards"] -= 1
RLPD_ANTMAZE = {
    "min_critics": 1,
    "entropy_backup": False,
    "hidden": (256,) * 3,
    "reward_shift": -1.0,
}
RLPD_ADROIT = {"min_critics": 2, "entropy_backup": False, "hidden": (256,) * 3}
# REDQ (watchernyu/REDQ 7b5d1bf): REDQSACAgent of redq_sac.py, mbpo_target_entropy_dict of core.py.
REDQ: dict[str, Any] = {
    "hidden": (256, 256),
    "replay_size": 1_000_000,
    "batch_size": 256,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "temperature_lr": 3e-4,
    "discount": 0.99,
    "target_rate": 0.005,  # polyak=0.995
    "warmup_steps": 5_000,
    "num_updates": 20,
    "num_critics": 10,
    "min_critics": 2,
    "with_replacement": False,
    "actor_value": "mean",  # ave_q
    "policy_delay": 20,
    "temperature_loss": "log_alpha",
    "layer_norm": False,
    "dropout": None,
    "initialisation": "glorot_uniform",  # weights_init_: xavier_uniform_
}
# DroQ (TakuyaHiraoka's repository f89a79a): README.md and OriginalREDQCodebase, with -method sac.
DROQ = REDQ | {"num_critics": 2, "min_critics": None, "layer_norm": True}
SERL = {  # rail-berkeley/serl cd5f7e7, launcher.py make_sac_agent, sac.py
    "num_critics": 10,
    "min_critics": 2,
    "with_replacement": True,
    "actor_value": "mean",
    "layer_norm": True,
    "actor_layer_norm": True,
    "activation": "tanh",
    "hidden": (256, 256),
    "init_temperature": 1e-2,
    "target_entropy_share": 0.5,
    "entropy_backup": False,
    "log_std_min": math.log(1e-5),
    "log_std_max": math.log(5.0),
    "num_updates": 8,
    "warmup_steps": 1_000,
}

# Cal-QL (nakamotoo/Cal-QL ac6eafe): conservative_sac.py get_default_config, FLAGS_DEF and model.py.
CALQL: dict[str, Any] = {
    "discount": 0.99,
    "target_entropy": None,
    "actor_lr": 1e-4,
    "critic_lr": 3e-4,
    "temperature_lr": 1e-4,
    "target_rate": 5e-3,
    "num_actions": 10,
    "importance_sampling": True,
    "gap_temperature": 1.0,
    "backup": "max_of_min",  # cql_max_target_backup = True
    "init_multiplier": math.e,  # Scalar(1.0), of its logarithm
    "weighted_target": True,
    "log_std_offset": -1.0,
    "log_std_min": -20.0,
    "log_std_max": 2.0,
    "batch_size": 256,
}
SMALL = {"initialisation": "orthogonal_small", "critic_initialisation": "orthogonal_small"}
GAIN_2 = {"initialisation": "orthogonal_relu", "critic_initialisation": "orthogonal_relu"}
CALQL_ANTMAZE = {  # scripts/run_antmaze.sh
    "penalty_weight": 5.0,
    "target_gap": 0.8,
    "lagrange": True,
    "hidden": (256, 256),
    "critic_hidden": (256,) * 4,
    "reward_transform": "times_10_minus_5",
}
CALQL_ADROIT = {  # corl-team/CORL eeeeef2, configs/finetune/cal_ql/*/cloned_v1.yaml
    "penalty_weight": 1.0,
    "gap_min": -200.0,
    "lagrange": False,
    "normalise_observations": False,
    "critic_hidden": (256,) * 3,  # q_n_hidden_layers: 3
    "hidden": (256,) * 3,  # cal_ql.py, TanhGaussianPolicy
    "reward_transform": "none",
}

# ReBRAC (CORL 6afec90): the class Config of rebrac.py, configs/offline/rebrac/maze2d, and
# configs/finetune/rebrac of eeeeef2.
REBRAC = {
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "hidden": (256,) * 3,
    "discount": 0.99,
    "target_rate": 5e-3,
    "actor_penalty": 1.0,
    "critic_penalty": 1.0,
    "target_noise": 0.2,
    "target_noise_clip": 0.5,
    "policy_delay": 2,
    "batch_size": 1024,
}
MAZE2D = REBRAC | {
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "batch_size": 256,
    "actor_penalty": 0.003,
    "critic_penalty": 0.001,
}

CASES: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("sac", "wsrl", "gymnasium_robotics:AntMaze_UMaze-v5", ANTMAZE_WSRL),
    ("sac", "wsrl", "d4rl/antmaze-large-play-v2", ANTMAZE_WSRL),
    ("sac", "wsrl", "d4rl/pen-cloned-v1", ADROIT_WSRL),
    ("sac", "wsrl", "gymnasium_robotics:AdroitHandDoor-v1", ADROIT_WSRL),
    ("sac", "wsrl", "my_module:door-binary-v0", ADROIT_WSRL),
    ("sac", "wsrl", "my_module:kitchen-mixed-v0", KITCHEN_WSRL | KITCHEN_REWARDS),
    ("sac", "wsrl", "d4rl/kitchen-mixed-v0", KITCHEN_WSRL | KITCHEN_REWARDS),
    ("sac", "wsrl", "gymnasium_robotics:FrankaKitchen-v1", KITCHEN_WSRL),
    ("sac", "wsrl", "HalfCheetah-v5", LOCOMOTION_WSRL),
    ("calql", "wsrl", "d4rl/antmaze-large-play-v2", ANTMAZE_CQL | GAIN_2),
    ("calql", "wsrl", "d4rl/pen-cloned-v1", ADROIT_CQL | GAIN_2),
    ("calql", "wsrl", "d4rl/door-human-v1", ADROIT_CQL | GAIN_2),
    ("calql", "wsrl", "d4rl/relocate-cloned-v1", ADROIT_CQL | GAIN_2),
    ("calql", "wsrl", "d4rl/kitchen-mixed-v0", KITCHEN_CQL | GAIN_2),
    ("cql", "wsrl", "d4rl/halfcheetah-medium-replay-v2", LOCOMOTION_CQL | GAIN_2),
    ("cql", "wsrl", "d4rl/hopper-medium-v2", LOCOMOTION_CQL | GAIN_2),
    ("cql", "wsrl", "Walker2d-v5", LOCOMOTION_CQL | GAIN_2),
    ("sac", "rlpd", "HalfCheetah-v5", RLPD | RLPD_LOCOMOTION | PLAIN_REWARDS),
    ("sac", "rlpd", "d4rl/antmaze-umaze-v2", RLPD | RLPD_ANTMAZE),
    ("sac", "rlpd", "gymnasium_robotics:AntMaze_UMaze-v5", RLPD | RLPD_ANTMAZE),
    ("sac", "rlpd", "d4rl/door-cloned-v1", RLPD | RLPD_ADROIT | PLAIN_REWARDS),
    ("sac", "serl", "Hopper-v5", SERL),
    ("sac", "redq", "InvertedPendulum-v5", REDQ | {"target_entropy": None}),
    ("sac", "redq", "Humanoid-v5", REDQ | {"target_entropy": -2.0}),
    ("sac", "droq", "InvertedPendulum-v5", DROQ | {"dropout": 0.01, "target_entropy": None}),
    ("sac", "droq", "Hopper-v4", DROQ | {"dropout": 0.0001, "target_entropy": -1.0}),
    ("sac", "droq", "HalfCheetah-v5", DROQ | {"dropout": 0.01, "target_entropy": -3.0}),
    ("sac", "droq", "Walker2d-v5", DROQ | {"dropout": 0.005, "target_entropy": -3.0}),
    ("sac", "droq", "Ant-v5", DROQ | {"dropout": 0.01, "target_entropy": -4.0}),
    ("sac", "droq", "Humanoid-v5", DROQ | {"dropout": 0.1, "target_entropy": -2.0}),
    ("calql", None, "d4rl/antmaze-medium-play-v2", CALQL | CALQL_ANTMAZE | SMALL),
    *(
        ("calql", None, f"d4rl/{name}-cloned-v1", CALQL | CALQL_ADROIT | GAIN_2)
        for name in ("pen", "door", "hammer", "relocate")
    ),
    ("rebrac", None, "none", REBRAC),
    *(("rebrac", None, f"d4rl/maze2d-{name}-v1", MAZE2D) for name in ("umaze", "medium", "large")),
]


@pytest.mark.parametrize(
    ("agent", "variant", "name", "expected"), CASES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_presets_have_the_authors_numbers(
    agent: str, variant: str | None, name: str, expected: dict[str, Any]
) -> None:
    config = registry.preset(agent, MODULES[agent], name, variant=variant)
    for field, value in expected.items():
        if isinstance(value, float):
            np.testing.assert_allclose(getattr(config, field), value, rtol=1e-5, err_msg=field)
        else:
            assert getattr(config, field) == value, field


@pytest.mark.parametrize("name", ["d4rl/pen-cloned-v1", "d4rl/door-cloned-v1"])
def test_wsrls_adroit_clips_no_gap_that_there_is(name: str) -> None:
    """cql_clip_diff_min is -inf: the preset's limit is far below all values."""
    config: Any = registry.preset("calql", calql, name, variant="wsrl")
    assert config.gap_min <= -1e9
    assert config.gap_max is None


def test_wsrl_pretrains_locomotion_with_cql() -> None:
    """WSRL's README: "CQL pre-train because MC returns are hard to estimate"."""
    with pytest.raises(ValueError, match=r"^--preset wsrl of agent 'calql' is for "):
        registry.preset("calql", calql, "d4rl/hopper-medium-v2", variant="wsrl")


@pytest.mark.parametrize(
    ("data", "environment"),
    [
        ("d4rl/antmaze-large-play-v2", "gymnasium_robotics:AntMaze_Large-v5"),
        ("d4rl/pen-cloned-v1", "gymnasium_robotics:AdroitHandPen-v1"),
        ("d4rl/kitchen-mixed-v0", "gymnasium_robotics:FrankaKitchen-v1"),
        ("d4rl/hopper-medium-v2", "Hopper-v5"),
    ],
)
def test_wsrls_networks_fit_those_of_its_pretraining(data: str, environment: str) -> None:
    """What `--from` hands over has the same shapes and the same meaning."""
    agent = "cql" if "hopper" in data else "calql"
    first: Any = registry.preset(agent, MODULES[agent], data, variant="wsrl")
    then: Any = registry.preset("sac", sac, environment, variant="wsrl")
    same = ("hidden", "num_critics", "min_critics", "layer_norm", "actor_layer_norm", "activation")
    for field in (*same, "state_dependent_std", "log_std_min", "log_std_max"):
        assert getattr(first, field) == getattr(then, field), field
    assert first.critic_hidden == (then.critic_hidden or then.hidden)
    assert first.log_std_offset == 0.0
    shapes = []
    for module, config in ((MODULES[agent], first), (sac, then)):
        state: Any = jax.eval_shape(lambda key, m=module, c=config: m.init(key, SPEC, c), KEY)
        parts = [state.actor.parameters, state.critic.parameters, state.target_critic]
        shapes.append(jax.tree_util.tree_leaves_with_path(jax.tree.map(lambda x: x.shape, parts)))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", ["d4rl/pen-cloned-v1", "d4rl/antmaze-umaze-v2"])
def test_rebrac_goes_on_online_as_corls_finetuning(name: str) -> None:
    """critic_bc_coef *= 0; expl_noise: 0.0; min_decay_coef: 0.5, of num_online_updates."""
    changes = registry.preset_online("rebrac", None, name)
    expected = {"critic_penalty": 0.0, "exploration_noise": 0.0, "penalty_end": 0.5}
    assert expected.items() <= changes.items()


def test_brax_fixes_the_temperature_of_its_sac() -> None:
    """brax 0b96d05, training/agents/sac: train.py has optax.adam(learning_rate=3e-4) for it,
    whatever the other rates; losses.py has -0.5 * action_size and alpha * (...); networks.py has
    lecun_uniform.
    """
    config: Any = registry.preset("sac", sac, "brax/hopper")
    assert (config.actor_lr, config.temperature_lr) == (6e-4, 3e-4)
    assert config.target_entropy is None
    assert (config.target_entropy_share, config.temperature_loss) == (0.5, "alpha")
    assert config.initialisation == "lecun_uniform"


@pytest.mark.parametrize("game", ["atari/Pong", "envpool-lives/Pong-v5"])
def test_dqn_on_atari_is_cleanrls(game: str) -> None:
    """cleanrl fe8d8a03, dqn_atari.py. Its gradients had a limit of 0.5 until May 2022 (04d2c47)."""
    config: Any = registry.preset("dqn", dqn, game)
    assert (config.learning_rate, config.batch_size, config.max_grad_norm) == (1e-4, 32, 0.0)
    assert (config.replay_size, config.warmup_steps, config.num_steps) == (1_000_000, 80_000, 4)
    assert config.target_every * config.num_steps == 1_000  # target_network_frequency
    assert (config.epsilon_end, config.epsilon_steps) == (0.01, 0.1)
    assert config.clip_rewards  # ClipRewardEnv
