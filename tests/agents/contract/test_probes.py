"""Agents on environments with known values: the first probe that fails names the broken part."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest

from rljax import agent as contract
from rljax import envs
from rljax.agent import Transition
from rljax.learning import configuration, registry
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from rljax.networks import heads
from tests.agents.reference import own_constant


def kind(name: str) -> str:
    module: Any = registry.load_agent(name)
    return module.experience(module.Config()).kind


DISCOUNT = 0.9
QUICK: dict[str, Any] = {
    "hidden": (32, 32),
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "target_rate": 0.05,
    "batch_size": 64,
    "replay_size": 4_000,
    "warmup_steps": 1_000,
    "num_envs": 4,
    "discount": DISCOUNT,
}
ON_POLICY: dict[str, Any] = {
    "actor_hidden": (32, 32),
    "critic_hidden": (32, 32),
    "learning_rate": 3e-3,
    "num_envs": 16,
    "num_steps": 16,
    "batch_size": 64,
    "discount": DISCOUNT,
    "init_log_std": -1.0,
    # And a falling rate: noisy advantages let a std near 0 drift.
    "entropy_cost": 1e-2,
    "decay_steps": 100 * 16 * 16.0,
    "normalise_rewards": False,
    "normalise_observations": False,
}
# Nothing is normalised, as a probe's few observations hardly vary.
FROM_DATA: dict[str, Any] = {
    name: x for name, x in QUICK.items() if name not in ("replay_size", "warmup_steps", "num_envs")
} | {"value_lr": 3e-3, "decay_steps": None, "normalise_observations": False}
# Of agents whose tests have a `PROBE`: settings with which they solve probes.
SETTINGS = {name: own_constant(name, "PROBE", None) for name in registry.names()}
REPLAY, OFFLINE = (
    {name: x for name, x in SETTINGS.items() if x is not None and kind(name) == of}
    for of in ("replay", "dataset")
)
CHOOSES = {name for name in REPLAY if "require_discrete(" in registry.source(name)}
VALUES = ("Constant", "Delay", "Finite", "Observation")
OBSERVATIONS = {
    "Constant": [[0.0]],
    "Delay": [[0.0], [1.0]],
    "Endless": [[0.0]],
    "Finite": [[0.0], [0.4], [0.8]],
    "Observation": [[-1.0], [1.0]],
    "Action": [[0.0]],
    "Both": [[-1.0], [1.0]],
    "Follow": [[-1.0], [1.0]],
    "Memory": [[0.0, 0.0]],
}
ACTS = {"Action", "Both", "Follow", "Memory"}


def quick(names: Iterable[str], these: set[str]) -> list[Any]:
    """All but `these` take longer."""
    return [pytest.param(name, marks=() if name in these else pytest.mark.learn) for name in names]


PROBES = quick(OBSERVATIONS, {"Follow"})


def trained(module: Any, name: str, changes: Any, iterations: int = 2_500) -> tuple[Any, Any]:
    """One learner's State after training, and its Config."""
    config = configuration.replace(module.Config(), changes, "test")
    stacked = configuration.stack(config, 1)
    environment = envs.make(name)
    driver = CompiledDriver(Learner(module, environment.spec, 1), environment, stacked)
    driver.start([0])
    driver.advance(iterations)
    return jax.tree.map(lambda x: x[0], (driver.agent_state.state, stacked))


def probe_of(name: str) -> str:
    return name.removeprefix("rljax/").removesuffix("-discrete")


def observed(name: str) -> np.ndarray:
    return np.array(OBSERVATIONS[probe_of(name)], np.float32)


def assert_values(name: str, value: Any) -> None:
    """Values are the known ones."""
    known: Any = envs.make(name).environment
    expected = np.asarray(known.value(observed(name), DISCOUNT))
    np.testing.assert_allclose(value, expected, atol=0.05 * max(1.0, np.abs(expected).max()))


def greedy(module: Any, name: str, state: Any, config: Any) -> np.ndarray:
    action, *_ = module.act(state, observed(name), jax.random.key(0), config, explore=False)
    return np.asarray(action)


def assert_actions(module: Any, name: str, state: Any, config: Any) -> None:
    """Greedy actions are the best ones, where any is better."""
    if probe_of(name) in ACTS:
        known: Any = envs.make(name).environment
        expected = known.optimal_action(observed(name))
        np.testing.assert_allclose(greedy(module, name, state, config), expected, atol=0.1)


def smallest(module: Any, name: str, state: Any, config: Any) -> np.ndarray:
    """The smallest critic's values of greedy actions."""
    agent = module.__name__.rpartition(".")[2]
    critics = own_constant(agent, "critics", lambda state, *inputs: state.critic(*inputs))
    q = critics(state, observed(name), greedy(module, name, state, config))
    if isinstance(config, heads.WithCriticHead):
        q = heads.of_critics(config).mean(q)
    return np.asarray(q if q.ndim == 2 else q[..., 0]).min(axis=0)  # of [C, B, 2], mean and std


@pytest.mark.parametrize("probe", PROBES)
def test_probe_on_policy(probe: str) -> None:
    module, name = registry.load_agent("ppo"), f"rljax/{probe}"
    state, config = trained(module, name, ON_POLICY, 100)
    assert_actions(module, name, state, config)
    if probe not in ACTS:  # there values are those of a noisy policy
        assert_values(name, state.actor_critic.parameters.critic(observed(name))[:, 0])


@pytest.mark.parametrize("agent", quick(REPLAY, {"sac"}))
@pytest.mark.parametrize("probe", PROBES)
def test_probe(agent: str, probe: str) -> None:
    """An agent's test names probes that it cannot solve: `UNSOLVED = ("Action",)`."""
    if probe in own_constant(agent, "UNSOLVED", ()):
        pytest.skip("its test says why")
    module = registry.load_agent(agent)
    name = f"rljax/{probe}{'-discrete' if agent in CHOOSES else ''}"
    usual = contract.same_fields(module.Config(), QUICK)
    state, config = trained(module, name, {x: QUICK[x] for x in usual} | REPLAY[agent])
    assert_values(name, smallest(module, name, state, config))
    assert_actions(module, name, state, config)


CHOOSING: dict[str, dict[str, Any]] = {
    "plain": {},
    "double, dueling": {"double": True, "dueling": True, "num_critics": 2},
    "3 steps": {"n_step": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", quick(CHOOSING, {"plain"}))
@pytest.mark.parametrize("probe", PROBES)
def test_probe_of_values_of_actions(probe: str, variant: str) -> None:
    module, name, changes = registry.load_agent("dqn"), f"rljax/{probe}-discrete", CHOOSING[variant]
    common = {key: value for key, value in QUICK.items() if key not in ("actor_lr", "critic_lr")}
    learning = {"learning_rate": 3e-3, "target_every": 1, "num_steps": 1, "epsilon_steps": 6_000.0}
    state, config = trained(module, name, common | learning | changes)
    # There a second step sums what exploring brought.
    if probe != "Memory" or "n_step" not in changes:
        q = module.values(state.critic, observed(name), state, config)
        assert_values(name, q.max(axis=-1))
    assert_actions(module, name, state, config)


OF_ROLLOUTS: dict[str, Any] = {
    "hidden": (32, 32),
    "learning_rate": 3e-3,
    "num_envs": 16,
    "num_steps": 16,
    "batch_size": 64,
    "discount": DISCOUNT,
    "decay_steps": 100 * 16 * 16.0,
    "epsilon_steps": 50 * 16 * 16.0,
    "num_epochs": 10,
    # With biases, for an observation of zeros.
    "initialisation": "torch",
}


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe_of_values_of_actions_on_policy(probe: str) -> None:
    module, name = registry.load_agent("pqn"), f"rljax/{probe}-discrete"
    state, config = trained(module, name, OF_ROLLOUTS, 100)
    assert_actions(module, name, state, config)
    if probe not in ACTS:  # there returns count actions that explored
        assert_values(name, state.critic(observed(name)).max(axis=-1))


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe_of_a_flow_on_policy(probe: str) -> None:
    module, name = registry.load_agent("reinflow"), f"rljax/{probe}"
    changes = {
        "hidden": (32, 32),
        "critic_hidden": (32, 32),
        "actor_lr": 3e-3,
        "critic_lr": 3e-3,
        "num_envs": 16,
        "num_steps": 16,
        "batch_size": 64,
        "discount": DISCOUNT,
        "clip_ratio": 0.05,
        "entropy_cost": 0.0,
        "noise_min": 0.05,
        "normalise_rewards": False,
        "initialisation": "torch",
    }
    state, config = trained(module, name, changes, 100)
    assert_actions(module, name, state, config)
    if probe not in ACTS:  # there values are those of a noisy policy
        assert_values(name, state.critic(observed(name))[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe_of_a_chain_on_policy(probe: str) -> None:
    """All steps of a fresh denoiser are tuned."""
    module, name = registry.load_agent("dppo"), f"rljax/{probe}"
    changes = {
        "hidden": (32, 32),
        "critic_hidden": (32, 32),
        "denoising_steps": 4,
        "tuned_steps": 4,
        "actor_lr": 3e-3,
        "critic_lr": 3e-3,
        "num_envs": 16,
        "num_steps": 16,
        "batch_size": 64,
        "discount": DISCOUNT,
        "clip_ratio": 0.05,
        "clip_first": 0.05,
        "normalise_rewards": False,
    }
    state, config = trained(module, name, changes, 100)
    assert_actions(module, name, state, config)
    if probe not in ACTS:  # there values are those of a noisy policy
        assert_values(name, state.critic(observed(name))[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe_of_actions_on_policy(probe: str) -> None:
    module, name = registry.load_agent("reppo"), f"rljax/{probe}"
    changes = {
        "hidden": (32, 32),
        "critic_hidden": (32,),
        "embedding_size": 32,
        "learning_rate": 3e-3,
        "num_envs": 16,
        "num_steps": 16,
        "batch_size": 64,
        "discount": DISCOUNT,
        "target_entropy_share": 2.0,
        "v_min": -15.0,
        "v_max": 15.0,
        "normalise_rewards": False,
        "normalise_observations": False,
    }
    state, config = trained(module, name, changes, 100)
    assert_actions(module, name, state, config)
    outputs, _, _ = state.critic(observed(name), greedy(module, name, state, config))
    assert_values(name, heads.of_numbers(config).mean(outputs))


def recorded(name: str, steps: int = 2_000, num_envs: int = 8) -> Transition:
    """Uniform actions, environment by environment."""
    environment = envs.make(name)
    keys = jax.random.split(jax.random.key(0), num_envs)
    observation, state = environment.reset(keys)
    shape = (num_envs, *environment.spec.action_shape)

    def one(carry: Any, key: jax.Array) -> Any:
        observation, state = carry
        key_action, key_step = jax.random.split(key)
        action = jax.random.uniform(key_action, shape, minval=-1.0, maxval=1.0)
        step, state = environment.step(jax.random.split(key_step, num_envs), state, action)
        row = (observation, action, step.reward, step.terminated, step.truncated)
        return (step.observation, state), Transition(*row, step.next_observation)

    keys = jax.random.split(jax.random.key(1), steps // num_envs)
    _, rows = jax.lax.scan(one, (observation, state), keys)
    return jax.tree.map(lambda x: np.asarray(x).swapaxes(0, 1).reshape(-1, *x.shape[2:]), rows)


@pytest.mark.parametrize("agent", quick(OFFLINE, {"iql"}))
@pytest.mark.parametrize("probe", quick(("Endless", *VALUES), {"Endless"}))
def test_probe_from_data(agent: str, probe: str) -> None:
    """Where no action matters, the values of the data's policy are the known ones."""
    module, name = registry.load_agent(agent), f"rljax/{probe}"
    known = {field.name for field in dataclasses.fields(module.Config)}
    changes = {x: FROM_DATA[x] for x in FROM_DATA if x in known} | OFFLINE[agent]
    config = configuration.replace(module.Config(), changes, "test")
    stacked = configuration.stack(config, 1)
    learner, data = Learner(module, envs.make(name).spec, 1), recorded(name)
    driver = OfflineDriver(learner, module.experience(config).prepare(data), stacked)
    driver.start([0])
    driver.advance(2_500)
    state, config = jax.tree.map(lambda x: x[0], (driver.agent_state.state, stacked))
    assert_values(name, smallest(module, name, state, config))


@pytest.mark.slow
def test_bootstrap_that_stops_at_truncation_is_caught() -> None:
    """The same agent with the usual mistake is far off."""
    td3 = registry.load_agent("td3")
    wrong = types.ModuleType("wrong")
    wrong.__dict__.update(td3.__dict__)

    def update(state: Any, batch: Any, *arguments: Any) -> Any:
        ended = batch.terminated | batch.truncated
        return td3.update(state, batch.replace(terminated=ended), *arguments)

    wrong.__dict__["update"] = update
    state, config = trained(wrong, "rljax/Endless", QUICK | REPLAY["td3"])
    assert smallest(wrong, "rljax/Endless", state, config).max() < 0.6 / (1 - DISCOUNT)


STREAM: dict[str, Any] = {
    "hidden": (32, 32),
    "discount": DISCOUNT,
    "time_feature": False,
    "normalise_observations": False,
    "normalise_rewards": False,
    "bootstrap_truncated": True,
}
STREAMS: dict[str, dict[str, Any]] = {
    "stream_ac": {},
    "stream_q": {"epsilon_steps": 6_000.0},
    "stream_sarsa": {"epsilon_steps": 6_000.0},
    "stream_td": {},
}


@pytest.mark.parametrize("agent", quick(STREAMS, {"stream_q"}))
@pytest.mark.parametrize("probe", PROBES)
def test_probe_of_streams(agent: str, probe: str) -> None:
    module = registry.load_agent(agent)
    if probe in ACTS and agent == "stream_td":
        pytest.skip("it predicts, and chooses no action")
    discrete = agent in ("stream_q", "stream_sarsa")
    name = f"rljax/{probe}{'-discrete' if discrete else ''}"
    state, config = trained(module, name, STREAM | STREAMS[agent], 10_000)
    assert_values(name, state.critic(observed(name)).max(axis=-1))
    assert_actions(module, name, state, config)
