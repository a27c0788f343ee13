"""Learning from a data set, and then in environments."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.envs.autoreset import AutoReset
from rljax.learning import configuration
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.offline import GROUP, OfflineDriver
from rljax.learning.learner import Learner
from tests.helpers.counting import ROWS, Config, Counter, Fake, assert_equal, dataset, replay


class Prepared(Fake):
    def experience(self, config: Any) -> Any:
        sizes = {"batch_size": config.batch_size, "num_updates": config.num_updates}
        return buffers.Dataset(**sizes, online=replay(config))

    def prepare(self, state: Any, data: Transition, config: Any) -> Any:
        del config
        return state.replace(
            total=data.observation.sum(axis=0), count=jnp.asarray(1.0 * data.reward.shape[0])
        )


def driver(
    seeds: list[int], agent: Any = None, on_host: bool = False, **changes: Any
) -> OfflineDriver:
    rates = tuple(0.1 * (1 + seed) for seed in seeds)
    config = configuration.stack(Config(learning_rate=rates, **changes), len(seeds))  # pyright: ignore
    made = Learner(agent or Prepared(), EnvSpec("data", (2,), 1), len(seeds))
    result = OfflineDriver(made, dataset(), config, on_host)
    result.start(seeds)
    return result


@pytest.mark.slow
def test_updates_are_the_agents_on_the_drawn_batches() -> None:
    trained = driver([3])
    start = jax.tree.map(np.asarray, driver([3]).agent_state.state)
    trained.advance(4)
    state, rewards = trained.agent_state.state, np.asarray(trained.agent_state.state.rewards)[0]
    weight = start.weight[0]
    for step in range(4):
        weight = weight + np.float32(0.4) * (rewards[step].mean() * (step + 1) - weight)
    np.testing.assert_allclose(np.asarray(state.weight)[0], weight, rtol=1e-5)
    assert np.isin(rewards[:4], np.arange(1, ROWS + 1)).all()
    report = trained.report()
    assert report.updates == 4
    np.testing.assert_allclose(
        report.metrics["loss"], np.asarray(state.losses)[:, :4].mean(axis=1), rtol=1e-5
    )
    assert np.isnan(report.metrics["episode/return"]).all()


@pytest.mark.slow
def test_several_updates_of_an_iteration_come_from_one_gather() -> None:
    trained = driver([0], num_updates=3)
    trained.advance(2)
    assert trained.report().updates == 6
    assert np.asarray(trained.agent_state.state.rewards)[0, :6].min() >= 1


@pytest.mark.slow
def test_agents_are_prepared_once_by_the_whole_data_set() -> None:
    trained = driver([0, 1])
    trained.advance(3)
    np.testing.assert_array_equal(trained.agent_state.state.count, [ROWS, ROWS])
    np.testing.assert_array_equal(
        trained.agent_state.state.total, np.tile(dataset().observation.sum(axis=0), (2, 1))
    )


@pytest.mark.slow
def test_seed_learns_the_same_alone_and_in_company() -> None:
    together, alone = driver([5, 2]), driver([2])
    for trained in (together, alone):
        trained.advance(6)
    np.testing.assert_array_equal(
        np.asarray(together.agent_state.state.rewards)[1],
        np.asarray(alone.agent_state.state.rewards)[0],
    )
    np.testing.assert_allclose(
        np.asarray(together.agent_state.state.weight)[1],
        np.asarray(alone.agent_state.state.weight)[0],
        rtol=1e-5,
    )


def test_continues_exactly_and_saves_no_data() -> None:
    whole, first = driver([0, 1]), driver([0, 1])
    whole.advance(3)
    whole.report()
    whole.advance(4)
    first.advance(3)
    first.report()
    saved = jax.tree.map(jnp.copy, first.arrays())
    assert jax.tree.structure(saved) == jax.tree.structure(first.template([0, 1]))
    assert not any(ROWS in leaf.shape for leaf in jax.tree.leaves(saved)), (
        "the data set is no part of the state"
    )
    second = driver([0, 1])
    second.start([7, 8])
    second.restore(saved, None)
    second.advance(4)
    assert_equal(second.arrays(), whole.arrays())


@pytest.mark.slow
def test_where_the_data_lie_does_not_matter() -> None:
    here, there = driver([0, 1], num_updates=2), driver([0, 1], num_updates=2, on_host=True)
    for trained in (here, there):
        for iterations in (3, GROUP + 5):  # less than what is handed over together, and more
            trained.advance(iterations)
    assert_equal(there.arrays(), here.arrays())


def test_chunks_of_any_length_are_one_program() -> None:
    trained = driver([0])
    with jax.log_compiles(False):
        trained.advance(1)
        compiled = trained.loop.advance._cache_size()
        trained.advance(2)
        trained.advance(5)
    assert trained.loop.advance._cache_size() == compiled == 1


def online(seeds: list[int], learnt: Any = None) -> CompiledDriver:
    """With the data set beside what learners see."""
    config: Any = configuration.stack(Config(batch_size=4, warmup_steps=0), len(seeds))

    def declare(config: Any) -> buffers.Mixed:
        return buffers.Mixed.of(Prepared().experience(config).online, 0.5)

    made = Learner(Prepared(), Counter().spec, len(seeds), declare)
    environment: Any = AutoReset(Counter(5))  # pyright: ignore[reportArgumentType]
    result = CompiledDriver(made, environment, config, dataset())
    result.start(seeds, learnt)
    return result


def test_what_was_learnt_from_data_goes_on_in_an_environment() -> None:
    before = driver([0, 1])
    before.advance(3)
    after = online([0, 1], before.learners)
    np.testing.assert_array_equal(after.agent_state.state.weight, before.agent_state.state.weight)
    after.advance(4)
    report = after.report()
    assert report.updates == 7
    rewards = np.asarray(after.agent_state.state.rewards)[:, 3:7]
    assert np.isin(rewards[..., :2], np.arange(1, ROWS + 1)).all(), (
        "half of each batch is from the data set"
    )
    assert dataclasses.asdict(after.learner.spec)["name"] == "Counter"
