"""Signals on their way to agents and reports."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec
from rljax.envs.autoreset import AutoReset
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.serial import Serial
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.evaluation import CompiledEvaluator, HostedEvaluator
from rljax.learning.learner import Learner
from rljax.trust import TrustedState
from tests.envs.test_signals import DECLARED, Costly, Paying
from tests.helpers.counting import Fake, OnPolicy, assert_equal, settings
from tests.learning.drivers import kinds

SIZES: Any = {"num_envs": 3, "num_steps": 4, "batch_size": 12, "warmup_steps": 0}
SEEDS = [1, 2]


class Asking(OnPolicy):
    """An agent whose metrics are the signals of its rollouts."""

    def experience(self, config: Any) -> Any:
        return dataclasses.replace(super().experience(config), signals=("cost", "objectives"))

    def update(self, state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        cost, objectives = (batch.extras[name] for name in ("cost", "objectives"))
        assert cost.shape == (config.num_steps, config.num_envs)
        assert objectives.shape == (config.num_steps, config.num_envs, 2)
        found = {"costs": cost.sum(), "first": cost[0, 0], "second": objectives[..., 1].sum()}
        return state.replace(weight=state.weight + 0.0), found


def paying() -> Hosted:
    return Hosted(Serial([Paying() for _ in range(6)], "costly"), "costly")


def driver(kind: str, module: Any) -> Any:
    spec = EnvSpec("costly", (1,), 1, signals=DECLARED)
    learner, config = Learner(module, spec, 2), settings(2, **SIZES)
    if kind == "compiled":
        made: Any = CompiledDriver(learner, AutoReset(Costly()), config)
    else:
        made = kinds.ON_HOST[kind](learner, paying(), config)
    made.start(SEEDS)
    return made


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_agents_and_metrics_get_the_signals(kind: str) -> None:
    moved = driver(kind, Asking())
    moved.advance(3)  # 12 steps in each of 3 environments: episodes of 3 steps cost 6
    found = moved.report().metrics
    moved.close()
    for name, sum_ in {"length": 3, "cost": 6, "objectives/0": 6, "objectives/1": -6}.items():
        np.testing.assert_array_equal(found[f"episode/{name}"], [sum_] * 2)
    # On the host, learning comes before the step.
    rollouts = {"compiled": 3, "embedded": 2, "hosted": 2}[kind]
    first, costs = [1, 2, 3][:rollouts], [1 + 2 + 3 + 1, 2 + 3 + 1 + 2, 3 + 1 + 2 + 3][:rollouts]
    np.testing.assert_allclose(found["first"], [np.mean(first)] * 2)
    np.testing.assert_allclose(found["costs"], [3 * np.mean(costs)] * 2)
    np.testing.assert_allclose(found["second"], [-3 * np.mean(costs)] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_others_store_no_signal(kind: str) -> None:
    moved = driver(kind, OnPolicy())
    assert set(moved.learners.storage.data.extras) == {"acted"}
    moved.advance(2)
    np.testing.assert_array_equal(moved.report().metrics["episode/cost"], [6, 6])
    moved.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_state_continues_with_its_sums(kind: str) -> None:
    whole, broken, resumed = (driver(kind, Asking()) for _ in range(3))
    whole.advance(3)
    whole.report()
    whole.advance(2)
    broken.advance(3)
    broken.report()
    arrays, environments = jax.tree.map(jnp.copy, broken.arrays()), broken.environments()
    template = resumed.template(SEEDS)
    assert jax.tree.structure(template) == jax.tree.structure(arrays)
    resumed.restore(arrays, None if environments is None else TrustedState(environments))
    resumed.advance(2)
    assert_equal(whole.report().metrics, resumed.report().metrics)
    for each in (whole, broken, resumed):
        each.close()


def test_evaluations_have_the_sums() -> None:
    config = settings(2, **SIZES)
    spec = EnvSpec("costly", (1,), 1, signals=DECLARED)
    learner = Learner(Fake(), spec, 2)
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    state = learner.init(keys, learner.hyperparameters(config)).agent
    inside = CompiledEvaluator(Fake(), AutoReset(Costly()), 2)
    for evaluator in (inside, HostedEvaluator(Fake(), paying(), 2)):
        episodes = evaluator(state, evaluator.starts(range(2), 3), config)
        assert list(episodes.signals) == ["cost", "objectives/0", "objectives/1"]
        np.testing.assert_array_equal(episodes.signals["cost"], np.full((2, 3), 6))
        assert episodes.details(1) == {
            "signals": {"cost": [6.0] * 3, "objectives/0": [6.0] * 3, "objectives/1": [-6.0] * 3}
        }


def test_draws_that_lose_signals_are_refused() -> None:
    sizes: Any = {"replay_size": 64, "batch_size": 4, "warmup_steps": 0}
    declared = buffers.Replay(**sizes, signals=("cost",), draw=buffers.NStep(steps=3, discount=0.9))
    with pytest.raises(
        ValueError, match="NStep draws rows without columns, and the agent asks for cost"
    ):
        declared.check()
    buffers.Replay(**sizes, signals=("cost",)).check()
