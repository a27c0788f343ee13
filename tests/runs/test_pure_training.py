"""`rljax.make_train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.runs.policies import loading
from tests.helpers import small_runs

DISCRETE, CONTINUOUS = "gymnax/CartPole-v1", "tests/environments/reach.py:ReachInside"
PPO: dict[str, Any] = small_runs.ON_POLICY | {"num_steps": 25}


def made(agent: str, env: str, config: dict[str, Any], eval_episodes: int = 2) -> Any:
    """150 steps in three chunks."""
    return rljax.make_train(
        agent, env, config, steps=150, eval_every=50, eval_episodes=eval_episodes
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("agent", "env", "config"),
    [
        ("ppo", DISCRETE, PPO),
        ("dqn", DISCRETE, small_runs.SMALL),
        ("r2d2", DISCRETE, small_runs.SEQUENCES),
        ("sac", "gymnax/Pendulum-v1", small_runs.SMALL),
        ("stream_q", DISCRETE, small_runs.EXPLORING),
    ],
)
def test_the_learner_of_a_run_bit_for_bit(
    agent: str, env: str, config: dict[str, Any], tmp_path: Path
) -> None:
    state, metrics = jax.jit(made(agent, env, config))(jax.random.key(3))
    every = {"log_every": 50, "eval_every": 50, "eval_episodes": 2, "checkpoint_every": 150}
    out = rljax.train(agent, env, 150, seeds=[3], config=config, out=tmp_path / "run", **every)
    policies = loading.load_named(str(out))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[0]), state, policies.state)
    run = rljax.Run(out)
    np.testing.assert_array_equal(metrics["evaluation/return"], run.evaluations()["returns"][:, 0])
    lines = run.metrics()
    means = set(metrics) - {"evaluation/return", "evaluation/length", "step"}
    assert means
    assert means <= set(lines)
    for name in means:
        np.testing.assert_array_equal(metrics[name], lines[name][:, 0].astype(np.float32), name)
    np.testing.assert_array_equal(metrics["step"], lines["step"])


@pytest.mark.slow
def test_learners_mapped_over_keys_and_settings_are_those_alone() -> None:
    train = made("ppo", DISCRETE, PPO, eval_episodes=0)
    keys, rates = jax.random.split(jax.random.key(0), 3), np.float32([1e-3, 3e-4, 3e-3])
    mapped = jax.jit(jax.vmap(lambda key, rate: train(key, learning_rate=rate)))
    states, metrics = mapped(keys, rates)
    alone = jax.jit(lambda key, rate: train(key, learning_rate=rate))
    for learner in range(3):
        state, line = alone(keys[learner], rates[learner])
        for whole, single in ((states, state), (metrics, line)):
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x[learner], y, rtol=2e-4, atol=1e-5),  # noqa: B023
                whole,
                single,
            )
    assert metrics["step"].shape == (3, 3)
    assert len({float(x) for x in metrics["actor/loss"][:, -1]}) == 3


@pytest.mark.slow
def test_a_setting_is_the_same_traced_and_in_the_config() -> None:
    rate, key = 0.01, jax.random.PRNGKey(1)
    small = PPO | {"normalise_rewards": False}
    traced, _ = jax.jit(made("ppo", DISCRETE, small, 0))(key, learning_rate=rate)
    fixed, _ = jax.jit(made("ppo", DISCRETE, small | {"learning_rate": rate}, 0))(key)
    jax.tree.map(np.testing.assert_array_equal, traced, fixed)
    action, memory = made("ppo", DISCRETE, small).act(traced, np.zeros((5, 4)), key)
    assert action.shape == (5,)
    assert memory is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rljax.make_train("ppo", "CartPole-v1"), "'CartPole-v1' is on the host"),
        (lambda: rljax.make_train("ppo", DISCRETE, {"learning_rate": (1e-3, 2e-3)}), "2 values"),
        (lambda: rljax.make_train("ppo", DISCRETE, {"num_step": 3}), "no setting 'num_step'"),
        (lambda: rljax.make_train("ppo", DISCRETE, eval_every=0), "--eval-every is 0"),
        (lambda: made("ppo", DISCRETE, PPO)(jax.random.key(0), num_steps=3), "the program's str"),
        (lambda: made("ppo", DISCRETE, PPO)(jax.random.key(0), rate=0.1), "no setting 'rate'"),
        (
            lambda: made("dqn", DISCRETE, {})(jax.random.key(0), epsilon_steps=0.2),
            "'epsilon_steps' decides the program's structure or is a share of the run",
        ),
        (
            lambda: jax.jit(made("dqn", DISCRETE, {}))(jax.random.key(0), prioritised=0.5),
            "one of prioritised decides",
        ),
    ],
)
def test_what_cannot_be_a_pure_function_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
