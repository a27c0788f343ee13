"""Learning from a data set: every row equally often, alone as in company, continued exactly; then in environments."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.buffers import samplers
from rljax.buffers.storage import Fixed, Mixed, Replay
from rljax.envs.autoreset import AutoReset
from rljax.training import configuration
from rljax.training.drivers.compiled import CompiledDriver
from rljax.training.drivers.offline import GROUP, OfflineDriver
from rljax.training.learner import Learner
from tests.training.test_learner import Config, Counter, Fake

ROWS = 40


class Prepared(Fake):
    """A Fake that looks at its data set before it learns."""

    storage = "dataset"

    def prepare(self, state: Any, data: Transition, config: Any) -> Any:
        """Remember the sum of all observations [N, O]."""
        del config
        return state.replace(total=data.observation.sum(axis=0), count=jnp.asarray(1.0 * data.reward.shape[0]))


def dataset(rows: int = ROWS) -> Transition:
    """Transitions whose fields all tell their row's number, from 1 on."""
    number = np.arange(1, rows + 1, dtype=np.float32)
    flags = np.zeros(rows, np.bool_)
    observation = np.stack([number, -number], axis=1)
    fields: dict[str, Any] = dict(observation=observation, action=number[:, None], reward=number, terminated=flags)
    return Transition(**fields, truncated=flags, next_observation=observation + 0.5)


def driver(seeds: list[int], agent: Any = None, on_host: bool = False, **changes: Any) -> OfflineDriver:
    """Started, with a learning rate per learner."""
    rates = tuple(0.1 * (1 + seed) for seed in seeds)
    config = configuration.stack(Config(learning_rate=rates, **changes), len(seeds))  # pyright: ignore
    made: Any = Learner(agent or Prepared(), EnvSpec("data", (2,), 1), len(seeds), 1, storage="dataset")
    result = OfflineDriver(made, dataset(), config, on_host)
    result.start(seeds)
    return result


def same(left: Any, right: Any) -> None:
    """The same bits."""
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(_plain(a), _plain(b)), left, right)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def test_every_row_is_drawn_equally_often_and_whole() -> None:
    config: Any = Config(batch_size=64, num_updates=50)
    keys = jax.random.split(jax.random.key(0), 2)
    batches = jax.jit(lambda data, keys: samplers.resident(Fixed(data), keys, config))(dataset(), keys)
    assert batches.observation.shape == (2, 50, 64, 2)
    for learner in np.asarray(batches.reward).reshape(2, -1):
        values, counts = np.unique(learner, return_counts=True)
        assert values.tolist() == list(range(1, ROWS + 1))
        expected = learner.size / ROWS
        chi_square = float((np.square(counts - expected) / expected).sum())
        assert abs(chi_square - (ROWS - 1)) < 5 * np.sqrt(2 * (ROWS - 1)), "uniform, and not a rotation"
    assert np.any(np.asarray(batches.reward)[0] != np.asarray(batches.reward)[1]), "each learner draws its own"
    np.testing.assert_array_equal(batches.observation[..., 0], batches.reward)
    np.testing.assert_array_equal(batches.next_observation[..., 1], -batches.reward + 0.5)


def test_updates_are_the_agents_on_the_drawn_batches() -> None:
    trained = driver([3])
    start = jax.tree.map(np.asarray, driver([3]).agent_state)
    trained.advance(4)
    state, rewards = trained.agent_state, np.asarray(trained.agent_state.rewards)[0]
    weight = start.weight[0]
    for step in range(4):
        weight = weight + np.float32(0.4) * (rewards[step].mean() * (step + 1) - weight)
    np.testing.assert_allclose(np.asarray(state.weight)[0], weight, rtol=1e-5)
    assert np.isin(rewards[:4], np.arange(1, ROWS + 1)).all()
    report = trained.report()
    assert report.updates == 4
    np.testing.assert_allclose(report.metrics["loss"], np.asarray(state.losses)[:, :4].mean(axis=1), rtol=1e-5)
    assert np.isnan(report.metrics["episode/return"]).all(), "there were no episodes"


def test_several_updates_of_an_iteration_come_from_one_gather() -> None:
    trained = driver([0], num_updates=3)
    trained.advance(2)
    assert trained.report().updates == 6
    assert np.asarray(trained.agent_state.rewards)[0, :6].min() >= 1


def test_agents_are_prepared_once_by_the_whole_data_set() -> None:
    trained = driver([0, 1])
    trained.advance(3)
    np.testing.assert_array_equal(trained.agent_state.count, [ROWS, ROWS])
    np.testing.assert_array_equal(trained.agent_state.total, np.tile(dataset().observation.sum(axis=0), (2, 1)))


def test_seed_learns_the_same_alone_and_in_company() -> None:
    together, alone = driver([5, 2]), driver([2])
    for trained in (together, alone):
        trained.advance(6)
    np.testing.assert_array_equal(np.asarray(together.agent_state.rewards)[1], np.asarray(alone.agent_state.rewards)[0])
    np.testing.assert_allclose(
        np.asarray(together.agent_state.weight)[1], np.asarray(alone.agent_state.weight)[0], rtol=1e-5
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
    assert not any(ROWS in leaf.shape for leaf in jax.tree.leaves(saved)), "the data set is no part of the state"
    second = driver([0, 1])
    second.start([7, 8])
    second.restore(saved, None)
    second.advance(4)
    same(second.arrays(), whole.arrays())


def test_where_the_data_lie_does_not_matter() -> None:
    here, there = driver([0, 1], num_updates=2), driver([0, 1], num_updates=2, on_host=True)
    for trained in (here, there):
        for iterations in (3, GROUP + 5):  # less than what is handed over together, and more
            trained.advance(iterations)
    same(there.arrays(), here.arrays())


def test_chunks_of_any_length_are_one_program() -> None:
    trained = driver([0])
    with jax.log_compiles(False):
        trained.advance(1)
        compiled = trained._advance._cache_size()  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
        trained.advance(2)
        trained.advance(5)
    assert trained._advance._cache_size() == compiled == 1  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]


def mixture(size: int = 20, online: int = 6) -> Mixed:
    """A data set beside a ring that holds `online` transitions with rewards below 0."""
    data = dataset()
    example = jax.tree.map(lambda x: jnp.asarray(x[None, :1]), data)
    replay = Replay.create(example, Config(replay_size=size))
    for i in range(online):
        replay = replay.add(example.replace(reward=jnp.full((1, 1), -1.0 - i)))
    return Mixed(replay, Fixed(jax.tree.map(jnp.asarray, data)))


@pytest.mark.parametrize(("share", "rows"), [(0.5, 8), (0.25, 4), (0.0, 0)])
def test_a_fixed_share_of_a_batch_is_old(share: float, rows: int) -> None:
    config: Any = Config(batch_size=16, num_updates=30)
    draw = jax.jit(lambda mixture, key: samplers.mixed(mixture, key, config, offline_share=share))
    batch = draw(mixture(), jax.random.split(jax.random.key(0), 1))
    old = np.asarray(batch.reward)[0] > 0
    assert (old.sum(axis=1) == rows).all()
    new = np.asarray(batch.reward)[0][~old]
    assert sorted(set(new.tolist())) == [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0], "what is stored, and no empty row"


def test_pooled_old_and_new_are_one_storage() -> None:
    config: Any = Config(batch_size=16, num_updates=2_000)
    draw = jax.jit(lambda mixture, key: samplers.pooled(mixture, key, config))
    batch = draw(mixture(), jax.random.split(jax.random.key(0), 1))
    reward, number = np.asarray(batch.reward)[0], ROWS + 6
    drawn, counts = np.unique(reward, return_counts=True)
    assert drawn.tolist() == [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, *range(1, ROWS + 1)], "all of them, and no empty row"
    expected = reward.size / number
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected), "each as often"
    old = np.asarray(dataset().observation)[np.maximum(reward, 1).astype(int) - 1]
    np.testing.assert_array_equal(np.asarray(batch.observation)[0][reward > 0], old[reward > 0], "whole rows")


@pytest.mark.parametrize("sampler", [samplers.mixed, samplers.pooled])
def test_new_rewards_are_transformed_as_the_old_ones_were(sampler: Any) -> None:
    config: Any = Config(batch_size=16, num_updates=10)
    keys = jax.random.split(jax.random.key(0), 1)
    draw = jax.jit(lambda mixture, key, affine: sampler(mixture, key, config, affine=affine))
    plain, changed = (draw(mixture(), keys, affine) for affine in ((1.0, 0.0), (10.0, -5.0)))
    new = np.asarray(plain.reward) < 0
    assert 0 < new.sum() < new.size
    np.testing.assert_array_equal(changed.reward, np.where(new, 10.0 * plain.reward - 5.0, plain.reward))


def online(seeds: list[int], learnt: Any = None) -> CompiledDriver:
    """Learners in an environment, with the data set beside what they see there."""
    config: Any = configuration.stack(Config(batch_size=4, warmup_steps=0), len(seeds))
    sampler = functools.partial(samplers.mixed, offline_share=0.5)
    made: Any = Learner(Prepared(), Counter().spec, len(seeds), 1, sampler, storage="mixed")
    environment: Any = AutoReset(Counter(5))  # pyright: ignore[reportArgumentType]
    result = CompiledDriver(made, environment, config, dataset())
    result.start(seeds, learnt)
    return result


def test_what_was_learnt_from_data_goes_on_in_an_environment() -> None:
    before = driver([0, 1])
    before.advance(3)
    after = online([0, 1], before.learners)
    np.testing.assert_array_equal(after.agent_state.weight, before.agent_state.weight)
    after.advance(4)
    report = after.report()
    assert report.updates == 7, "updates are counted on"
    rewards = np.asarray(after.agent_state.rewards)[:, 3:7]
    assert np.isin(rewards[..., :2], np.arange(1, ROWS + 1)).all(), "half of each batch is from the data set"
    assert dataclasses.asdict(after.learner.spec)["name"] == "Counter"
