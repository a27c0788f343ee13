"""Critics that classify values, of IQL, TD3+BC and CQL, against float64 NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

from rljax import networks
from rljax.agent import EnvSpec
from rljax.agents import cql, iql, td3_bc
from rljax.networks import heads
from rljax.runs import records, run
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY, SPEC
from tests.environments import reach

BINS, ENDS = 21, (-1.0, 2.0)
SIZES: dict[str, Any] = {
    "batch_size": 5,
    "bins": BINS,
    "critic_lr": 2e-2,
    "v_min": ENDS[0],
    "v_max": ENDS[1],
}
KINDS = pytest.mark.parametrize(
    "kind", ["hl_gauss", pytest.param("two_hot", marks=pytest.mark.learn)]
)


def reader(kind: str) -> Any:
    """The head of a kind, which tests/networks/test_heads.py checks."""
    return (heads.TwoHot if kind == "two_hot" else heads.HLGauss)(BINS, *ENDS)


def fresh(agent: Any, config: Any) -> Any:
    state = reference.state(agent, SPEC, config)
    options = {"bounds": jnp.array(ENDS)}
    critic = state.critic.replace(parameters=state.critic.parameters.replace(options=options))
    return state.replace(
        critic=critic, target_critic=state.target_critic.replace(options=dict(options))
    )


def values(critics: Any, support: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    """sum_i p_i z_i [C, B] of critics."""
    x = np.concatenate(parts, axis=-1)
    outputs = [reference.forward(critic, x)[0] for critic in critics]
    return np.stack([softmax(logits, axis=-1) @ support for logits in outputs])


def learnt(critics: Any, y: np.ndarray, kind: str, *parts: np.ndarray) -> tuple[float, Any]:
    """Cross-entropy to classes of y [B], summed over critics, and these after a step of Adam."""
    head, x, loss, gradients = reader(kind), np.concatenate(parts, axis=-1), 0.0, []
    target = np.asarray(head.encode(y.astype(np.float32)), np.float64)
    for critic in critics:
        outputs, layers = reference.forward(critic, x)
        loss -= (target * log_softmax(outputs, axis=-1)).sum(axis=-1).mean()
        change = (softmax(outputs, axis=-1) - target) / len(y)
        gradients.append(reference.backward(critic, layers, change)[0])
    return loss, reference.Adam(SIZES["critic_lr"]).step(critics, gradients)


def clipped(y: np.ndarray) -> float:
    return float(((y < ENDS[0]) | (y > ENDS[1])).mean())


@KINDS
def test_iql_is_the_papers(kind: Any) -> None:
    config = iql.Config(**SIZES, hidden=(8, 8), value_head=kind, values="old")
    state, batch = fresh(iql, config), reference.transitions(1)
    observation, action, following, reward, alive = value_learning.arrays(batch)
    next_v = value_learning.state_values(reference.mlp(state.value), following)
    y = reward + config.discount * alive * next_v
    before = reference.critics(state.critic)
    loss, critics = learnt(before, y, kind, observation, action)
    q = values(before, np.asarray(reader(kind).support), observation, action)
    new, metrics = jax.jit(iql.update)(state, batch, KEY, 0, config)
    reference.assert_same(reference.critics(new.critic), critics, "critic")
    expected = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": y.mean(),
        "critic/clipped": clipped(y),
    }
    reference.assert_metrics({name: metrics[name] for name in expected}, expected)
    assert 0 < clipped(y) < 1
    np.testing.assert_array_equal(new.critic.parameters.options["bounds"], ENDS)
    np.testing.assert_array_equal(new.target_critic.options["bounds"], ENDS)


@KINDS
def test_td3_bc_is_the_papers(kind: Any) -> None:
    config = td3_bc.Config(
        **SIZES,
        hidden=(8, 8),
        value_head=kind,
        normalise_observations=False,
        target_noise=0.0,
        policy_delay=1,
    )
    state, batch = fresh(td3_bc, config), reference.transitions(1)
    observation, action, following, reward, alive = value_learning.arrays(batch)
    support = np.asarray(reader(kind).support, np.float64)
    next_action = np.tanh(reference.forward(reference.mlp(state.target_actor), following)[0])
    targets = reference.critics(state.target_critic)
    next_q = values(targets, support, following, next_action).min(axis=0)
    y = reward + config.discount * alive * next_q
    loss, critics = learnt(reference.critics(state.critic), y, kind, observation, action)
    new, metrics = jax.jit(td3_bc.update)(state, batch, KEY, 0, config)
    reference.assert_same(reference.critics(new.critic), critics, "critic")
    policy_action = np.tanh(reference.forward(reference.mlp(state.actor), observation)[0])
    # By the first critic, after its step.
    first_values = values(critics[:1], support, observation, policy_action)
    expected = {"critic/loss": loss, "critic/target": y.mean(), "critic/clipped": clipped(y)}
    expected["actor/value_scale"] = config.value_weight / np.abs(first_values).mean()
    reference.assert_metrics({name: metrics[name] for name in expected}, expected)


@pytest.mark.learn  # the quick tests of the others share all of it but two lines
@KINDS
def test_cql_is_the_papers(kind: Any) -> None:
    config = cql.Config(
        **SIZES, hidden=(8, 8), critic_hidden=(8, 8), value_head=kind, num_actions=3, num_parts=1
    )
    state, batch = fresh(cql, config), reference.transitions(1)
    observation, action, following, reward, alive = value_learning.arrays(batch)
    samples = cql.candidates(state, batch, KEY, config)
    loss, metrics = jax.jit(cql.critic_loss)(
        state.critic.parameters, (batch, samples), state, KEY, config
    )
    of = {name: np.asarray(x, np.float64) for name, x in samples.actions_first()._asdict().items()}
    support = np.asarray(reader(kind).support, np.float64)
    critics, targets = reference.critics(state.critic), reference.critics(state.target_critic)
    next_q = values(targets, support, following, of["next_action"][0]).min(axis=0)
    y = reward + config.discount * alive * next_q
    candidates = np.concatenate([of["uniform"], of["action"][1:], of["next_action"][1:]])
    density = [np.full((3, 5), -2 * np.log(2.0)), of["log_prob"][1:], of["next_log_prob"][1:]]
    # [C, 3 N, B]
    q = values(critics, support, np.broadcast_to(observation, (9, *observation.shape)), candidates)
    gap = logsumexp(q - np.concatenate(density), axis=1)
    gap -= values(critics, support, observation, action)
    error = learnt(critics, y, kind, observation, action)[0]
    expected = {"critic/error": error, "critic/gap": gap.mean(), "critic/clipped": clipped(y)}
    expected["critic/loss"] = error + config.penalty_weight * gap.mean(axis=1).sum()
    reference.assert_metrics({name: metrics[name] for name in expected}, expected)
    np.testing.assert_allclose(loss, expected["critic/loss"], rtol=1e-4)


def made(spec: EnvSpec, **changes: Any) -> Any:
    config = iql.Config(hidden=(4,), value_head="hl_gauss", bins=BINS, **changes)
    return jax.jit(lambda: iql.init(KEY, spec, config))(), config


@pytest.mark.slow
def test_ends_of_the_bins_are_the_users_or_the_datas() -> None:
    batch = reference.transitions(0, 30)
    for ends, expected in (
        ({"v_min": -3.0, "v_max": 7.0}, [-3.0, 7.0]),
        ({}, heads.bounds_of_bins(heads.range_of_returns(batch, 0.9), BINS)),
    ):
        state, config = made(SPEC, discount=0.9, **ends)
        assert np.isnan(state.critic.parameters.options["bounds"]).all() == (not ends)
        state = jax.jit(iql.prepare)(state, batch, config)
        for critic in (state.critic.parameters, state.target_critic):
            np.testing.assert_allclose(critic.options["bounds"], expected, rtol=1e-5)
    doubled = td3_bc.Config(
        hidden=(4,), value_head="hl_gauss", bins=BINS, discount=0.9, reward_scale=2.0
    )
    state = jax.jit(lambda: td3_bc.prepare(td3_bc.init(KEY, SPEC, doubled), batch, doubled))()
    np.testing.assert_allclose(
        state.critic.parameters.options["bounds"], 2.0 * np.asarray(expected), rtol=1e-4
    )


@pytest.mark.parametrize(
    "spec",
    [
        EnvSpec("Choice", (3,), 4, discrete=True),
        EnvSpec("Choices", (3,), 5, discrete=True, choices=(3, 2)),
        pytest.param(
            EnvSpec("Pictures", (6, 6, 1), 2, observation_dtype="uint8"), marks=pytest.mark.learn
        ),
    ],
    ids=["Choice", "Choices", "Pictures"],
)
def test_critics_of_all_actions_and_observations_classify(spec: EnvSpec) -> None:
    """Each action has a value of its own."""
    state, config = made(spec, v_min=-3.0, v_max=7.0, encoder="small")
    observation = jax.random.normal(KEY, (5, *spec.observation_shape)).astype(
        spec.observation_dtype
    )
    action = jax.random.uniform(KEY, (5, *spec.action_shape))
    if spec.discrete:
        action = jnp.zeros((5, *spec.action_shape), jnp.int32)
    outputs, head = networks.outputs_and_head(state.critic, observation, action)
    assert outputs.shape == (2, 5, BINS)
    q = iql.value(state, observation, action, config)
    np.testing.assert_allclose(q, head.mean(outputs).mean(axis=0), rtol=1e-5)
    other = iql.value(state, observation, action + 1, config)
    assert np.all(np.asarray(other) != np.asarray(q))


@pytest.mark.learn
@KINDS
@pytest.mark.parametrize(("agent", "updates"), [("iql", 2_000), ("td3_bc", 3_000)])
def test_classes_learn_to_reach(agent: str, updates: int, kind: str, tmp_path: Path) -> None:
    """With squared errors the defaults reach -8.0, too. Few targets leave the bins."""
    out = run.train(
        agent,
        f"{reach.__file__}:Reach",
        updates,
        out=tmp_path / "run",
        data=str(reach.journeys(tmp_path / "reach.npz")),
        seeds=2,
        config={"value_head": kind},
        eval_every=updates,
        eval_episodes=30,
    )
    assert records.read_summary(out)["final"]["mean"] >= -8.0
    lines = records.read(out, "metrics")
    assert np.mean([line["critic/clipped"] for line in lines]) < 0.05
