"""FQE against float64 NumPy written from the paper, and the exact values of a small process."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import cli
from rljax.agent import Base, EnvSpec, Transition, Weighted
from rljax.agents import bc, fqe
from rljax.buffers import NextAction
from rljax.networks.inputs import Raw
from rljax.runs import records, run
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY, SPEC
from tests.datasets.files import arrays, npz
from tests.environments import reach

CONFIG = fqe.Config(
    hidden=(8, 8),
    batch_size=5,
    critic_lr=2e-2,
    target_rate=0.1,
    num_starts=4,
    initial_every=1,
    layer_norm=False,
    normalise_observations=False,
)
# Without a base: the values of the data's policy.
PROBE = {"critic_lr": 3e-3, "target_rate": 0.05}
NORMALISES_ITSELF = True  # its base sees raw observations
KEEPS_ROWS = True  # `prepare` keeps first rows of episodes


def columns(batch: Transition) -> Transition:
    """A batch with next actions."""
    data = jax.tree.map(np.asarray, batch)
    return batch.replace(extras=jax.tree.map(jnp.asarray, NextAction().of_data(data)))


def example() -> Any:
    return SPEC, CONFIG, columns(reference.transitions())


def cloned() -> tuple[Base, Any]:
    """Another agent's policy, and its parameters in float64."""
    config = bc.Config(hidden=(8, 8), normalise_observations=False)
    state = reference.state(bc, SPEC, config)
    return Base(state, config, bc, SPEC, Raw(), None), reference.mlp(state.actor.parameters.mean)


update = jax.jit(fqe.update)


@pytest.mark.parametrize(
    "judged", [True, pytest.param(False, marks=pytest.mark.learn)], ids=["a base", "the data's"]
)
def test_updates_equal_the_papers(judged: bool) -> None:
    (base, actor), data = cloned(), columns(reference.transitions(9, 12))
    state = reference.state(fqe, SPEC, CONFIG)
    state = fqe.prepare(fqe.use_base(state, base, CONFIG) if judged else state, data, CONFIG)
    critics, targets = reference.critics(state.critic), reference.critics(state.target_critic)
    adam = reference.Adam(CONFIG.critic_lr)
    begins = np.flatnonzero([True, *np.asarray(data.terminated | data.truncated)[:-1]])
    rows = begins[np.arange(4) * len(begins) // 4]  # 9 episodes begin

    def mean(of: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.mean([reference.value(critic, observation, action)[0] for critic in of], axis=0)

    def policy(observation: np.ndarray) -> np.ndarray:
        return np.tanh(reference.forward(actor, observation)[0])

    first, first_action = (np.asarray(x, np.float64)[rows] for x in (data.observation, data.action))
    for step in range(4):
        batch = columns(reference.transitions(step))
        state, metrics = update(state, batch, KEY, step, CONFIG)
        observation, action, following, reward, alive = value_learning.arrays(batch)
        next_action = np.asarray(batch.extras["next_action"], np.float64)
        has = np.asarray(batch.extras["has_next_action"])
        known = np.ones(5, bool) if judged else has | (alive == 0.0)
        next_action = policy(following) if judged else next_action
        y = reward + CONFIG.discount * alive * mean(targets, following, next_action)
        loss, _, gradient = reference.squared_errors(
            critics, observation[known], action[known], y[known]
        )
        q = np.mean([mean([critic], observation, action) for critic in critics])
        critics = adam.step(critics, gradient)
        targets = reference.towards(critics, targets, CONFIG.target_rate)
        value = mean(critics, first, policy(first) if judged else first_action).mean()
        expected = {"critic/loss": loss, "critic/q": q, "critic/target": y.mean()}
        reference.assert_metrics(metrics, expected | {"value/initial": value})
    assert judged or not known.all()
    reference.assert_same(reference.critics(state.critic), critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), targets, "target_critic")
    if judged:
        action, _ = fqe.act(state, jnp.asarray(first), KEY, CONFIG, False)
        np.testing.assert_allclose(action, policy(first), rtol=1e-5)


# A Markov decision process of 4 states that are seen as one-hot vectors, with 2 actions; state 3
# ends.
STATES, DISCOUNT = 4, 0.8
TRANSITIONS = np.random.default_rng(3).dirichlet(np.ones(STATES) * 0.7, size=(STATES, 2))
REWARDS = np.random.default_rng(4).normal(0.5, 1.0, size=(STATES, 2))
CHAIN = EnvSpec("test/Chain-v0", (STATES,), 2, discrete=True)


def exact(policy: np.ndarray) -> float:
    """The value of state 0 of policies [states, actions]: (1 - gamma P)^-1 r."""
    moves, rewards = np.einsum("sa,sat->st", policy, TRANSITIONS), (policy * REWARDS).sum(axis=1)
    moves[:, 3] = 0.0  # nothing follows
    return float(np.linalg.solve(np.eye(STATES) - DISCOUNT * moves, rewards)[0])


def walks(rows: int = 4_000, limit: int = 20) -> Transition:
    """Uniform actions from state 0 on."""
    generator, steps, state, age = np.random.default_rng(0), [], 0, 0
    for _ in range(rows):
        action = int(generator.integers(2))
        following = int(generator.choice(STATES, p=TRANSITIONS[state, action]))
        age += 1
        ends, cut = following == 3, age == limit
        steps.append((state, action, REWARDS[state, action], ends, cut, following))
        state, age = (0, 0) if ends or cut else (following, age)
    states, actions, rewards, ends, cuts, nexts = map(np.array, zip(*steps, strict=True))
    one_hot = np.eye(STATES, dtype=np.float32)
    rewards, actions = rewards.astype(np.float32), actions.astype(np.int32)
    batch: Any = (one_hot[states], actions, rewards, ends, cuts & ~ends, one_hot[nexts])
    return columns(Transition(*jax.tree.map(jnp.asarray, batch)))


def always(state: Any, observation: Any, key: Any, config: Any, explore: bool) -> tuple[Any, dict]:
    """The action `state` everywhere, or a uniform one where it is 2."""
    uniform = jax.random.randint(key, observation.shape[:-1], 0, 2)
    return jnp.where(state == 2, uniform, jnp.broadcast_to(state, uniform.shape)), {}


def test_values_are_those_of_the_policy() -> None:
    """Of two constant policies, of the uniform one, and of the data's own, from uniform actions."""
    agent: Any = types.ModuleType("always")
    agent.act = always
    data = walks()
    config = dataclasses.replace(
        CONFIG, discount=DISCOUNT, critic_lr=3e-3, target_rate=0.05, hidden=(32,), num_starts=64
    )

    @jax.jit
    def learnt(state: fqe.State) -> Any:
        def one(state: fqe.State, inputs: Any) -> Any:
            key, step = inputs
            rows = jax.random.randint(key, (64,), 0, len(data.reward))
            batch = jax.tree.map(lambda x: x[rows], data)
            state, metrics = fqe.update(state, batch, key, step, config)
            return state, metrics["value/initial"]

        inputs = (jax.random.split(KEY, 2_000), jnp.arange(2_000))
        return jax.lax.scan(one, fqe.prepare(state, data, config), inputs)[1][-200:].mean()

    state = fqe.init(KEY, CHAIN, config)
    bases = (Base(jnp.asarray(x), (), agent, CHAIN, Raw(), None) for x in range(3))
    values = [learnt(fqe.use_base(state, base, config)) for base in bases] + [learnt(state)]
    constant, uniform = (np.eye(2)[np.full(STATES, a)] for a in (0, 1)), np.full((STATES, 2), 0.5)
    expected = np.array([exact(policy) for policy in (*constant, uniform, uniform)])
    assert np.ptp(expected) > 0.5, "the policies differ"
    np.testing.assert_allclose(values, expected, atol=0.1)


@pytest.mark.parametrize(
    ("number", "expected"), [(2, [0, 5]), (4, [0, 3, 5, 6]), (6, [0, 3, 5, 6, 6, 6])]
)
def test_first_rows_begin_episodes(number: int, expected: list[int]) -> None:
    batch = reference.transitions(0, 8)
    batch = batch.replace(
        terminated=jnp.arange(8) == 2, truncated=(jnp.arange(8) == 4) | (jnp.arange(8) == 5)
    )
    rows, weight = jax.jit(fqe.first_rows, static_argnums=1)(batch, number)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(weight, np.arange(number) < 4)


def test_the_return_is_estimated_now_and_then() -> None:
    batch = columns(reference.transitions())
    config = dataclasses.replace(CONFIG, initial_every=3)
    state = fqe.prepare(reference.state(fqe, SPEC, config), batch, config)
    shapes: Any = jax.eval_shape(fqe.update, state, batch, KEY, 0, config)[1]["value/initial"]
    assert isinstance(shapes, Weighted)


def test_a_run_ends_with_its_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = npz(tmp_path / "a.npz", arrays([9, 8], "to")), tmp_path / "run"
    words = ["--env", "none", "--steps", "40", "--seeds", "2", "--config.hidden", "4"]
    words += ["--config.batch-size", "8"]
    cli.main(["train", "fqe", "--data", str(data), "--out", str(out), *words])
    last = records.read(out, "metrics")[-1]["value/initial"]
    estimate = records.read_summary(out)["estimate"]
    assert estimate == {"mean": pytest.approx(np.mean(last)), "learners": last}
    said = f"estimate of the discounted return: {estimate['mean']:,.4g}"
    assert said in capsys.readouterr().err


def test_without_a_base_actions_are_uniform() -> None:
    state = reference.state(fqe, SPEC, CONFIG)
    action = np.asarray(fqe.act(state, jnp.zeros((500, 3)), KEY, CONFIG, explore=True)[0])
    assert action.shape == (500, 2)
    assert action.min() < -0.9 < 0.9 < action.max()
    assert not np.any(fqe.act(state, jnp.zeros((500, 3)), KEY, CONFIG, explore=False)[0])


@pytest.mark.learn
def test_defaults_tell_good_policies_from_bad(tmp_path: Path) -> None:
    data, returns, values = str(reach.journeys(tmp_path / "reach.npz")), [], []
    for name, updates, config in (
        ("random", 1, {}),
        ("cloned", 1_500, {}),
        ("better", 2_000, {"inverse_temperature": 10.0}),
    ):
        out = run.train(
            "iql" if name == "better" else "bc",
            f"{reach.__file__}:Reach",
            updates,
            out=tmp_path / name,
            data=data,
            config=config,
            eval_every=updates,
            eval_episodes=50,
        )
        returns.append(records.read_summary(out)["final"]["mean"])
        judge = tmp_path / f"fqe-{name}"
        out = run.train("fqe", "none", 1_500, out=judge, data=data, base=str(out))
        values.append(records.read(out, "metrics")[-1]["value/initial"][0])
    assert np.array_equal(np.argsort(returns), np.argsort(values)), (returns, values)
