"""Draws from a ring: uniform ones, and along episodes, n steps ahead or of goals in hindsight,
against plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from rljax.buffers.replay import Draw
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.training import configuration, registry
from rljax.training.plan import Experiment, plan
from rljax.training.settings import Settings
from tests.helpers.replay_buffers import (
    DISCOUNT,
    LEARNERS,
    Row,
    drawn,
    empty,
    filled,
    history,
    keys,
    named,
    nbytes,
    numbered,
    of_all_kinds,
    of_episodes,
    transitions,
)

# Uniform: every stored transition equally often, nothing else ever, at a cost that knows no
# capacity.


def draw(buffer: ReplayBuffer, key: jax.Array, num_updates: int, batch_size: int) -> Any:
    """Uniform batches."""
    declared = buffers.Replay(
        replay_size=buffer.capacity, batch_size=batch_size, num_updates=num_updates
    )
    return declared.sample(buffer, None, key)


uniform = jax.jit(draw, static_argnums=(2, 3))


# One step, half full, full, after two wraps and a half.
@pytest.mark.parametrize("steps", [1, 5, 10, 25])
def test_each_stored_transition_is_drawn_equally_often(steps: int) -> None:
    replay = filled(30, 3, steps)
    drawn = np.asarray(uniform(replay, keys(), 50, 200).action)  # [P, batches, B] numbers
    stored = min(3 * steps, 30)
    for learner in range(LEARNERS):
        latest = [int(x) for time in range(steps) for x in numbered(time, 3)[learner]][-stored:]
        values, counts = np.unique(drawn[learner], return_counts=True)
        assert values.tolist() == sorted(latest), (
            "all that is stored, and no row that is not or no longer"
        )
        expected = drawn[learner].size / stored
        chi_square = float((np.square(counts - expected) / expected).sum())  # mean k, variance 2 k
        freedom = stored - 1
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
        assert chi_square > freedom - 5 * np.sqrt(2 * freedom), "draws, not a rotation"


def test_fields_of_a_transition_stay_together() -> None:
    batch = uniform(filled(30, 3, 25), keys(), 4, 16)
    assert batch.reward.shape == (LEARNERS, 4, 16)
    assert batch.observation.shape == (LEARNERS, 4, 16, 2)
    expected = transitions(np.asarray(batch.action))
    jax.tree.map(np.testing.assert_array_equal, batch, expected)


def test_batches_learners_and_keys_differ() -> None:
    replay = filled(3000, 3, 900)
    drawn = np.asarray(uniform(replay, keys(), 3, 64).action)
    rows = drawn % 100_000  # the same in both learners where the same rows are drawn
    assert len({tuple(row) for row in rows.reshape(-1, 64)}) == 3 * LEARNERS
    again = np.asarray(uniform(replay, keys(), 3, 64).action)
    np.testing.assert_array_equal(drawn, again)
    other = np.asarray(uniform(replay, keys(1), 3, 64).action)
    assert (drawn != other).mean() > 0.9


@pytest.mark.slow
def test_learner_draws_the_same_rows_alone_and_in_a_population() -> None:
    replay = filled(30, 3, 25)
    together = uniform(replay, keys(), 2, 8)
    for learner in range(LEARNERS):
        one = slice(learner, learner + 1)
        alone = uniform(
            replay.replace(data=jax.tree.map(lambda x, one=one: x[one], replay.data)),
            keys()[one],
            2,
            8,
        )
        jax.tree.map(
            lambda x, y, one=one: np.testing.assert_array_equal(x[one], y), together, alone
        )


def sizes(jaxpr: Any) -> Iterator[int]:
    """Elements of everything that a program computes, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (int(np.prod(variable.aval.shape)) for variable in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from sizes(inner)


def test_nothing_that_a_uniform_draw_computes_grows_with_the_capacity() -> None:
    small, large = empty(10_000, 1), empty(160_000, 1)
    programs = [
        jax.make_jaxpr(lambda r, k: draw(r, k, 4, 32))(replay, keys()) for replay in (small, large)
    ]
    first, second = (list(sizes(program.jaxpr)) for program in programs)
    assert first == second
    assert max(first) <= LEARNERS * 4 * 32 * 2 * 2, "batches and little beside them"


def test_drawing_needs_no_memory_for_the_ring() -> None:
    temporary = []
    for rows in (10_000, 160_000):
        replay = empty(rows, 1)
        memory: Any = uniform.lower(replay, keys(), 4, 32).compile().memory_analysis()
        temporary.append(memory.temp_size_in_bytes)
        assert memory.temp_size_in_bytes < 0.1 * nbytes(replay.data)
    assert temporary[0] == temporary[1]


# Along episodes.


def each(values: Any) -> Any:
    """One value for each learner."""
    values = np.asarray(values, np.float32)
    return jnp.asarray(values if values.ndim else np.full(LEARNERS, values))


def declare(
    num_envs: int, kind: Draw, batch_size: int = 200, num_updates: int = 3
) -> buffers.Replay:
    """A replay from which batches are drawn so."""
    return buffers.Replay(
        replay_size=10_000,
        batch_size=batch_size,
        num_updates=num_updates,
        num_envs=num_envs,
        draw=kind,
    )


sample = jax.jit(lambda declared, replay, keys: declared.sample(replay, None, keys))


def along(
    replay: ReplayBuffer, num_envs: int, kind: Draw, own: Any = None, **changes: Any
) -> Transition:
    """Batches of a draw; `own` are the learners' keys where there are fewer of them."""
    return sample(declare(num_envs, kind, **changes), replay, keys() if own is None else own)


@pytest.mark.slow_after(1)
@of_all_kinds
@pytest.mark.parametrize(
    "n", [pytest.param(1, marks=pytest.mark.learn), pytest.param(2, marks=pytest.mark.learn), 4, 30]
)
def test_n_steps_equal_a_loop_over_the_episode(
    n: int, num_envs: int, slots: int, steps: int
) -> None:
    rows = history(num_envs, steps)
    batch = along(
        of_episodes(rows, slots, timed=False),
        num_envs,
        buffers.NStep(steps=n, discount=each(DISCOUNT)),
    )
    assert batch.reward.shape == (LEARNERS, 3, 200)
    found = set()
    for learner, row in drawn(batch):
        _, environment, episode, time = row.observation[:4].astype(int)
        own = rows[environment][-slots:]
        (start,) = [i for i, x in enumerate(own) if (x.episode, x.time) == (episode, time)]
        reward, length = 0.0, 0
        for x in own[start : start + n]:
            reward += float(DISCOUNT[learner]) ** length * x.reward
            length += 1
            if x.terminated or x.truncated:
                break
        last = own[start + length - 1]
        assert (row.terminated, row.truncated) == (last.terminated, last.truncated)
        assert row.action == time
        np.testing.assert_allclose(row.reward, reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(row.extras["discount"], DISCOUNT[learner] ** length, rtol=1e-6)
        np.testing.assert_array_equal(row.next_observation, named(last, 1, learner))
        found.add((learner, environment, episode, time))
    assert len(found) == LEARNERS * num_envs * min(slots, steps), (
        "every stored row, the newest ones too"
    )


def test_one_step_is_the_uniform_draw() -> None:
    replay = of_episodes(history(3, 17), 7, timed=False)
    one_step = buffers.NStep(steps=1, discount=each(DISCOUNT))
    uniform, one = (along(replay, 3, kind) for kind in (buffers.Uniform(), one_step))
    jax.tree.map(np.testing.assert_array_equal, uniform, one.replace(extras={}))


class Goals:
    """A goal is what observations begin with; it is reached by being there."""

    def achieved(self, observation: Any) -> Any:
        """The first four."""
        return observation[..., :4]

    def desired(self, observation: Any) -> Any:
        """The last four."""
        return observation[..., 4:]

    def relabelled(self, observation: Any, goal: Any) -> Any:
        """With other last four."""
        return jnp.concatenate([observation[..., :4], goal], axis=-1)

    def goal_reward(self, achieved: Any, goal: Any) -> Any:
        """10 for being there: no stored reward is."""
        return 10.0 * (achieved == goal).all(axis=-1)


def hindsight(share: Any = 1.0, discount: Any = DISCOUNT) -> buffers.Hindsight:
    """Goals of the environment above in hindsight."""
    return buffers.Hindsight(share=each(share), discount=each(discount), environment=Goals())


def relabelled(
    replay: ReplayBuffer, num_envs: int, share: Any = 1.0, discount: Any = DISCOUNT, **changes: Any
) -> Transition:
    """Batches with goals in hindsight."""
    return along(replay, num_envs, hindsight(share, discount), **changes)


@pytest.mark.slow_after(1)
@of_all_kinds
def test_goals_are_of_the_same_episodes_future_or_of_others(
    num_envs: int, slots: int, steps: int
) -> None:
    rows = history(num_envs, steps)
    batch = relabelled(of_episodes(rows, slots), num_envs)
    assert not batch.extras, "times are of no use to an agent"
    future = 0
    for learner, row in drawn(batch):
        _, environment, episode, time = row.observation[:4].astype(int)
        own = rows[environment][-slots:]
        here = next(x for x in own if (x.episode, x.time) == (episode, time))
        np.testing.assert_array_equal(row.observation[:4], named(here, 0, learner)[:4])
        np.testing.assert_array_equal(row.next_observation[:4], named(here, 1, learner)[:4])
        assert (row.terminated, row.truncated) == (here.terminated, here.truncated)
        np.testing.assert_array_equal(row.observation[4:], row.next_observation[4:])
        goal = row.observation[4:].astype(int)
        assert goal[0] == learner
        reached = {(x.environment, x.episode, x.time + 1) for each in rows for x in each[-slots:]}
        assert tuple(goal[1:]) in reached, "what is in the ring, and never what it has lost"
        assert row.reward == 10.0 * (tuple(goal[1:]) == (environment, episode, time + 1))
        if num_envs > 1:
            assert (goal[1] != environment) or (goal[2] == episode and goal[3] > time)
            future += goal[1] == environment
    if num_envs > 1:
        np.testing.assert_allclose(future / (LEARNERS * 600), 0.5, atol=0.06)


@pytest.mark.slow
def test_future_goals_are_geometric_up_to_the_end() -> None:
    """Of one episode of 5 steps, all of it in the ring,
    and of one that goes on beyond its newest row.
    """
    lasting = [Row(0, 0, t, 0.0, t == 4, False) for t in range(5)] + [
        Row(0, 1, t, 0.0, False, False) for t in range(4)
    ]
    other = [x._replace(environment=1) for x in lasting]
    batch = relabelled(of_episodes([lasting, other], 9), 2, num_updates=20, batch_size=4_000)
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(LEARNERS, -1, *x.shape[3:]), batch)
    for learner in range(LEARNERS):
        seen, goal = flat.observation[learner, :, 1:4], flat.observation[learner, :, 5:]
        for episode, length in ((0, 5), (1, 4)):
            for time in (0, 1, length - 1):
                of = (seen[:, 1:] == (episode, time)).all(axis=1) & (seen[:, 0] == goal[:, 0])
                steps = (goal[of, 2] - time).astype(int)
                left = length - time
                expected = DISCOUNT[learner] ** np.arange(left)
                shares = np.bincount(steps, minlength=left + 1)[1:] / len(steps)
                np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.03)


@pytest.mark.slow
def test_the_oldest_rows_do_not_go_on_with_the_newest() -> None:
    """Of an episode of 8 steps the last 4 are left, right behind the first 4 of the next,
    as if they were its own.
    """
    row = [Row(0, 0, t, 0.0, t == 7, False) for t in range(8)] + [
        Row(0, 1, t, 0.0, False, False) for t in range(4)
    ]
    replay = of_episodes([row, [x._replace(environment=1) for x in row]], 8)
    batch = relabelled(replay, 2, discount=np.ones(2, np.float32))
    observation = np.asarray(batch.observation).reshape(-1, 8)
    own = observation[observation[:, 1] == observation[:, 5]]
    assert len(own) > 300
    np.testing.assert_array_equal(own[:, 2], own[:, 6])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_future_goals_at_the_discounts_limits(discount: float) -> None:
    row = [Row(0, 0, t, 0.0, False, False) for t in range(8)]
    limits = np.full(LEARNERS, discount, np.float32)
    replay = of_episodes([row, [x._replace(environment=1) for x in row]], 8)
    observation = np.asarray(
        relabelled(replay, 2, discount=limits, batch_size=4_000).observation
    ).reshape(-1, 8)
    first = observation[(observation[:, 1] == observation[:, 5]) & (observation[:, 3] == 0)]
    shares = np.bincount(first[:, 7].astype(int), minlength=9)[1:] / len(first)
    np.testing.assert_allclose(
        shares, np.eye(8)[0] if discount == 0 else np.full(8, 1 / 8), atol=0.05
    )


@pytest.mark.slow
def test_a_share_of_goals_is_replaced() -> None:
    rows = history(3, 17)
    replay = of_episodes(rows, 7)
    batch = relabelled(replay, 3, [0.25, 0.0], batch_size=2_000)
    own = np.asarray(batch.observation[..., 7]) == -1
    np.testing.assert_allclose(own.mean(axis=(1, 2)), [0.75, 1.0], atol=0.03)
    stored = {(x.environment, x.episode, x.time): x.reward for each in rows for x in each}
    for learner, row in drawn(batch):
        if row.observation[7] == -1:
            np.testing.assert_array_equal(row.observation[4:7], [learner, *row.observation[1:3]])
            np.testing.assert_allclose(
                row.reward, stored[tuple(row.observation[1:4].astype(int))], rtol=1e-6
            )


KINDS = ("n_step", "hindsight")


def of_kind(kind: str, share: Any = 1.0, discount: Any = DISCOUNT) -> Draw:
    """A draw along episodes."""
    return (
        buffers.NStep(steps=3, discount=each(discount))
        if kind == "n_step"
        else hindsight(share, discount)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learner_draws_the_same_alone_and_in_a_population(kind: str) -> None:
    replay, share = of_episodes(history(3, 17), 7), np.array([1.0, 0.5], np.float32)
    together = along(replay, 3, of_kind(kind, share))
    for learner in range(LEARNERS):
        one = slice(learner, learner + 1)
        own = of_kind(kind, share[one], DISCOUNT[one])
        part = replay.replace(data=jax.tree.map(lambda x, one=one: x[one], replay.data))
        alone = along(part, 3, own, keys()[one])
        jax.tree.map(
            lambda x, y, one=one: np.testing.assert_allclose(x[one], y, rtol=1e-6), together, alone
        )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_computed_grows_with_the_capacity(kind: str) -> None:
    declared, temporary = declare(1, of_kind(kind)), []
    for slots in (5_000, 80_000):
        replay = of_episodes(history(1, 2), slots)
        draw = jax.jit(lambda replay, key: declared.sample(replay, None, key))
        memory: Any = draw.lower(replay, keys()).compile().memory_analysis()
        temporary.append(memory.temp_size_in_bytes)
    assert temporary[0] == temporary[1]


@pytest.mark.learn
def test_rewards_of_box_pick_in_hindsight_are_the_environments() -> None:
    """Its own goal, handed to a transition in hindsight, leaves all of it as it is."""
    dqn, asked = registry.load_agent("dqn"), Settings("dqn", "rljax/BoxPick-2x4", 350)
    changes = {
        "num_envs": 4,
        "num_steps": 50,
        "replay_size": 1_000,
        "batch_size": 64,
        "warmup_steps": 10**6,
    }
    config = configuration.replace(dqn.Config(), changes | {"hindsight": 1.0}, "test")
    planned = plan(Experiment(asked, dqn, config, None))
    driver: Any = planned.stages[0].driver
    goals: Any = driver.loop.simulators.environment.environment
    assert driver.hyper.experience.draw.environment is goals, (
        "the plan names the environment to the draw"
    )
    driver.start([0])
    driver.advance(7)  # 350 steps: round the ring
    stored = driver.learners.storage
    assert isinstance(stored, ReplayBuffer)
    times = np.asarray(stored.data.extras["time"])[0].reshape(250, 4)
    assert (times == (np.r_[250:350, 100:250] % 100 + 1)[:, None]).all(), (
        "episodes of 100 steps, the newest first"
    )
    sample = jax.jit(lambda buffer, keys, experience: experience.sample(buffer, None, keys))
    batch = sample(stored, keys()[:1], driver.hyper.experience)
    observation, following = np.asarray(batch.observation), np.asarray(batch.next_observation)
    np.testing.assert_array_equal(goals.desired(observation), goals.desired(following))
    expected = goals.goal_reward(goals.achieved(following), goals.desired(following))
    np.testing.assert_array_equal(batch.reward, expected)
    assert 0.2 < expected.mean() < 1.0


# Episodes that have ended, beside a data set.

OLD = 1e6  # the reward of the data set's rows


def old_rows(buffer: ReplayBuffer, number: int = 4) -> Transition:
    """A data set whose rows are none of the buffer's."""
    return jax.tree.map(lambda x: jnp.zeros((number, *x.shape[2:]), x.dtype), buffer.data).replace(
        reward=jnp.full(number, OLD)
    )


def ended_batches(buffer: ReplayBuffer, num_envs: int, share: Any) -> np.ndarray:
    """Rewards [P, rows] of many batches of 8."""
    declared = buffers.Mixed(
        replay_size=400,
        batch_size=8,
        num_updates=400,
        num_envs=num_envs,
        draw=buffers.EndedEpisodes(),
        offline_share=share,
    )
    declared.check()
    batch = mixture(declared, buffer, old_rows(buffer), keys())
    return np.asarray(batch.reward).reshape(LEARNERS, 400, 8)


mixture = jax.jit(lambda declared, buffer, data, keys: declared.sample(buffer, data, keys))


@pytest.mark.slow_after(6)
@of_all_kinds
@pytest.mark.parametrize("share", [0.5, "pooled", (1.0, 0.25, 1)])
def test_only_rows_of_ended_episodes_are_drawn_and_all_of_them_alike(
    num_envs: int, slots: int, steps: int, share: Any
) -> None:
    rows = history(num_envs, steps, seed=6)
    stored = [environment[max(0, steps - slots) :] for environment in rows]
    expected = []
    for environment in stored:
        ends = [i for i, row in enumerate(environment) if row.terminated or row.truncated]
        expected += [row.reward for row in environment[: max(ends, default=-1) + 1]]
    assert 0 < len(expected) < sum(map(len, stored)), "some have ended, some have not"
    for rewards in ended_batches(of_episodes(rows, slots), num_envs, share):
        old = rewards == OLD
        values, counts = np.unique(rewards[~old], return_counts=True)
        np.testing.assert_allclose(values, sorted(np.float32(expected)), rtol=1e-6)
        mean = counts.sum() / len(expected)
        assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)
        if share == "pooled":
            assert abs(old.mean() - 4 / (4 + len(expected))) < 0.05
        else:
            assert (old.sum(axis=1) == (4 if share == 0.5 else 2)).all()


@pytest.mark.parametrize("share", [0.5, "pooled", (1.0, 0.25, 1)])
def test_a_learner_without_an_ended_episode_draws_from_the_data_set_alone(share: Any) -> None:
    """Whatever the other learner has."""
    buffer = of_episodes(history(2, 11, seed=5), 11)
    first = np.arange(LEARNERS)[:, None] == 0
    data = buffer.data.replace(
        terminated=buffer.data.terminated & first, truncated=buffer.data.truncated & first
    )
    rewards = ended_batches(buffer.replace(data=data), 2, share)
    assert (rewards[0] != OLD).any()
    assert (rewards[1] == OLD).all()


def test_long_episodes_are_read_in_blocks() -> None:
    """One of two environments has ended after 3 of 150 steps, the other after 149."""
    number = 150
    example = transitions(np.zeros((LEARNERS, 2)))
    buffer, add = (
        jax.jit(ReplayBuffer.create, static_argnums=1)(example, 400),
        jax.jit(ReplayBuffer.add),
    )
    for time in range(number):
        step = transitions(numbered(time, 2))
        never = np.zeros((LEARNERS, 2), bool)
        ends = never | [time == 2, time == 148]
        buffer = add(buffer, step.replace(terminated=never, truncated=ends))
    rewards = ended_batches(buffer, 2, 0.5)[0]
    expected = [x / 2 for t in range(3) for x in numbered(t, 2)[0][:1]]
    expected += [x / 2 for t in range(149) for x in numbered(t, 2)[0][1:]]
    values = np.unique(rewards[rewards != OLD])
    np.testing.assert_array_equal(values, sorted(expected))


def test_ended_episodes_alone_are_refused_without_a_data_set() -> None:
    declared = buffers.Replay(replay_size=20, batch_size=4, draw=buffers.EndedEpisodes())
    with pytest.raises(ValueError, match=r"until one has: name it with --data DATA\.$"):
        declared.check()
    assert list(buffers.EndedEpisodes().oddities(200)) == []
    (warning,) = buffers.EndedEpisodes().oddities(None)
    assert "no time limit of the environment is known" in warning
