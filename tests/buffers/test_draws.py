"""Draws from a ring, uniform or along episodes, against plain Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from rljax.agents import dqn
from rljax.buffers.replay import Draw
from rljax.buffers.storage.ring import ReplayBuffer
from tests.buffers import reference
from tests.helpers import counting
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
    numbered,
    of_all_kinds,
    of_episodes,
    sample,
    transitions,
)
from tests.learning.plan.test_stages import BOX, planned

# Uniform.


def draw(buffer: ReplayBuffer, key: jax.Array, num_updates: int, batch_size: int) -> Any:
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
        values = np.unique(drawn[learner])
        assert values.tolist() == sorted(latest)

        reference.assert_drawn(np.searchsorted(values, drawn[learner]), np.ones(stored))


@pytest.mark.parametrize("batch_size", [12, 10])
def test_batches_have_as_many_rows_of_each_environment(batch_size: int) -> None:
    """Up to one. Steps are uniform, and so is which environments have one row more."""
    declared = buffers.Replay(
        replay_size=30, batch_size=batch_size, num_updates=600, num_envs=4, by_environment=True
    )
    rows = np.asarray(declared.sample(filled(30, 4, 25), None, keys()).action)[0]
    step, environment = np.divmod(rows.astype(int).reshape(600, batch_size) - 1, 4)
    counts = np.array([np.bincount(x, minlength=4) for x in environment])
    assert set(counts.ravel()) == ({3} if batch_size == 12 else {2, 3})
    reference.assert_drawn(step - 18, np.ones(7))  # the newest 7 of 25 fit
    reference.assert_drawn(environment, np.ones(4))


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


# Along episodes.


def each(values: Any) -> Any:
    values = np.asarray(values, np.float32)
    return jnp.asarray(values if values.ndim else np.full(LEARNERS, values))


def declare(
    num_envs: int, kind: Draw, batch_size: int = 200, num_updates: int = 3
) -> buffers.Replay:
    return buffers.Replay(
        replay_size=10_000,
        batch_size=batch_size,
        num_updates=num_updates,
        num_envs=num_envs,
        draw=kind,
    )


def along(
    replay: ReplayBuffer, num_envs: int, kind: Draw, own: Any = None, **changes: Any
) -> Transition:
    """Batches of a draw; `own` are the learners' keys where there are fewer of them."""
    return sample(declare(num_envs, kind, **changes), replay, None, keys() if own is None else own)


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
        stored, start = reference.located(rows, slots, row)
        reward, length = 0.0, 0
        for x in stored[start : start + n]:
            reward += float(DISCOUNT[learner]) ** length * x.reward
            length += 1
            if x.terminated or x.truncated:
                break
        last = stored[start + length - 1]
        assert (row.terminated, row.truncated) == (last.terminated, last.truncated)
        assert row.action == stored[start].time
        np.testing.assert_allclose(row.reward, reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(row.extras["discount"], DISCOUNT[learner] ** length, rtol=1e-6)
        np.testing.assert_array_equal(row.next_observation, named(last, 1, learner))
        found.add((learner, *stored[start][:3]))
    assert len(found) == LEARNERS * num_envs * min(slots, steps)


@pytest.mark.slow_after(1)
@of_all_kinds
@pytest.mark.parametrize("length", [1, 3])
def test_decisions_equal_a_loop_over_their_chunks(
    length: int, num_envs: int, slots: int, steps: int
) -> None:
    rows = history(num_envs, steps)
    replay = of_episodes(rows, slots)
    data = replay.data
    played = (data.extras["time"] - 1) % length  # times begin at 1
    replay = replay.replace(data=data.replace(extras={buffers.PLAYED: played}))
    kind = buffers.Decisions(length=length, discount=each(DISCOUNT))
    found, cut = set(), max(0, length - 1 if steps >= slots else 0)
    for learner, row in drawn(along(replay, num_envs, kind)):
        stored, start = reference.located(rows, slots, row)
        assert stored[start].time % length == 0
        chunk = stored[start : start + length]
        ends = [x.terminated or x.truncated for x in chunk]
        chunk = chunk[: ends.index(True) + 1] if any(ends) else chunk
        last = chunk[-1]
        assert row.extras["weight"] == (any(ends) or len(chunk) == length)
        reward = sum(float(DISCOUNT[learner]) ** i * x.reward for i, x in enumerate(chunk))
        np.testing.assert_allclose(row.reward, reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            row.extras["discount"], DISCOUNT[learner] ** len(chunk), rtol=1e-6
        )
        assert (row.terminated, row.truncated) == (last.terminated, last.truncated)
        np.testing.assert_array_equal(row.next_observation, named(last, 1, learner))
        assert set(row.extras) == {"discount", "weight"}
        found.add((learner, *stored[start][:3]))
    kept = [x for each in rows for x in each[-slots:][cut:] if x.time % length == 0]
    assert found >= {(learner, *x[:3]) for learner in range(LEARNERS) for x in kept}


def test_one_step_is_the_uniform_draw() -> None:
    replay = of_episodes(history(3, 17), 7, timed=False)
    one_step = buffers.NStep(steps=1, discount=each(DISCOUNT))
    uniform, one = (along(replay, 3, kind) for kind in (buffers.Uniform(), one_step))
    jax.tree.map(np.testing.assert_array_equal, uniform, one.replace(extras={}))


class Goals:
    """A goal is what observations begin with."""

    def achieved(self, observation: Any) -> Any:
        return observation[..., :4]

    def desired(self, observation: Any) -> Any:
        return observation[..., 4:]

    def relabelled(self, observation: Any, goal: Any) -> Any:
        return jnp.concatenate([observation[..., :4], goal], axis=-1)

    def goal_reward(self, achieved: Any, goal: Any) -> Any:
        """10 for being there: no stored reward is."""
        return 10.0 * (achieved == goal).all(axis=-1)


PARTS = (slice(None, 10), slice(10, None))  # old and new rows of a batch


def hindsight(share: Any = 1.0, discount: Any = DISCOUNT) -> buffers.Hindsight:
    return buffers.Hindsight(share=each(share), discount=each(discount), environment=Goals())


def relabelled(
    replay: ReplayBuffer, num_envs: int, share: Any = 1.0, discount: Any = DISCOUNT, **changes: Any
) -> Transition:
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
        stored, place = reference.located(rows, slots, row)
        here = stored[place]
        environment, episode, time = here[:3]
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


def test_goals_of_new_rows_are_replaced_beside_a_data_set() -> None:
    """As in a replay alone, and rows of the data keep theirs."""
    replay = of_episodes(history(3, 17), 7)
    number = np.arange(12, dtype=np.float32)
    data = Transition(
        observation=100.0 + np.tile(number[:, None], 8),
        action=number.astype(np.int32),  # pyright: ignore[reportArgumentType]
        reward=-number,  # pyright: ignore[reportArgumentType]
        terminated=np.zeros(12, bool),  # pyright: ignore[reportArgumentType]
        truncated=number == 11,  # pyright: ignore[reportArgumentType]
        next_observation=101.0 + np.tile(number[:, None], 8),
    )
    declared = buffers.Mixed.of(declare(3, hindsight(), batch_size=40), 0.25)
    batch = sample(declared, replay, declared.prepare(data), keys())
    old, new = (jax.tree.map(lambda x, part=part: x[:, :, part], batch) for part in PARTS)
    np.testing.assert_array_equal(old.observation, 100.0 - np.tile(old.reward[..., None], 8))
    assert len(np.unique(old.reward)) == 12
    own = jax.vmap(jax.random.split)(keys())[:, 1]
    alone = relabelled(replay, 3, own=own, batch_size=30)
    jax.tree.map(np.testing.assert_array_equal, new, alone)
    with pytest.raises(ValueError, match="pooled draws all rows alike, and this agent draws rows"):
        buffers.Mixed.of(declare(3, hindsight()), "pooled")


@pytest.mark.parametrize("source", ["future", "final", "episode"])
def test_goals_by_the_papers_strategies(source: Any) -> None:
    """Of one whole episode of 5 steps, and of one of 4 that goes on."""
    draw = dataclasses.replace(hindsight(), goals=source)
    batch = along(twice(5, 4, 9), 2, draw, batch_size=2_000)
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(LEARNERS, -1, *x.shape[3:]), batch)
    for learner in range(LEARNERS):
        seen, goal = flat.observation[learner, :, 1:4], flat.observation[learner, :, 5:]
        assert (seen[:, :2] == goal[:, :2]).all(), "of the same environment and episode"
        for episode, length in ((0, 5), (1, 4)):
            for time in range(length):
                reached = goal[(seen[:, 1:] == (episode, time)).all(axis=1), 2]
                first = {"future": time + 1, "final": length, "episode": 1}[source]
                counts = np.bincount(reached.astype(int), minlength=length + 1)
                assert not counts[:first].any()
                np.testing.assert_allclose(
                    counts[first:] / len(reached), 1 / (length + 1 - first), atol=0.1
                )


def twice(whole: int, begun: int, slots: int) -> ReplayBuffer:
    """A ring of two environments that did the same: a whole episode, and one that goes on."""
    row = [Row(0, 0, t, 0.0, t == whole - 1, False) for t in range(whole)]
    row += [Row(0, int(whole > 0), t, 0.0, False, False) for t in range(begun)]
    return of_episodes([row, [x._replace(environment=1) for x in row]], slots)


@pytest.mark.slow
def test_future_goals_are_geometric_up_to_the_end() -> None:
    """Of one whole episode of 5 steps, and of one that goes on beyond its newest row."""
    batch = relabelled(twice(5, 4, 9), 2, num_updates=20, batch_size=4_000)
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
    """The last 4 steps of an episode of 8 lie right behind the first 4 of the next."""
    batch = relabelled(twice(8, 4, 8), 2, discount=np.ones(2, np.float32))
    observation = np.asarray(batch.observation).reshape(-1, 8)
    own = observation[observation[:, 1] == observation[:, 5]]
    assert len(own) > 300
    np.testing.assert_array_equal(own[:, 2], own[:, 6])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_future_goals_at_the_discounts_limits(discount: float) -> None:
    limits = np.full(LEARNERS, discount, np.float32)
    batch = relabelled(twice(0, 8, 8), 2, discount=limits, batch_size=4_000)
    observation = np.asarray(batch.observation).reshape(-1, 8)
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


def future_goals(discount: Any = DISCOUNT) -> buffers.FutureGoals:
    return buffers.FutureGoals(discount=each(discount), environment=Goals())


@of_all_kinds
def test_all_goals_are_of_the_same_episodes_future(num_envs: int, slots: int, steps: int) -> None:
    rows = history(num_envs, steps)
    batch = along(of_episodes(rows, slots), num_envs, future_goals())
    mask = batch.extras.pop("is_goal")
    np.testing.assert_array_equal(mask, np.broadcast_to([0, 0, 0, 0, 1, 1, 1, 1], mask.shape))
    assert not batch.extras, "times are of no use to an agent"
    for learner, row in drawn(batch):
        stored, place = reference.located(rows, slots, row)
        here = stored[place]
        np.testing.assert_array_equal(row.observation[:4], named(here, 0, learner)[:4])
        np.testing.assert_array_equal(row.next_observation[:4], named(here, 1, learner)[:4])
        np.testing.assert_array_equal(row.observation[4:], row.next_observation[4:])
        np.testing.assert_allclose(row.reward, here.reward, rtol=1e-6)
        _, environment, episode, later = row.observation[4:].astype(int)
        assert (environment, episode) == here[:2]
        assert later > here.time
        reached = {(x.episode, x.time + 1) for x in rows[environment][-slots:]}
        assert (episode, later) in reached, "what is in the ring, and never what it has lost"


def test_the_times_of_future_goals_are_geometric_up_to_the_end() -> None:
    """Of one whole episode of 5 steps, and of one that goes on beyond its newest row."""
    batch = along(twice(5, 4, 9), 2, future_goals(), num_updates=10, batch_size=4_000)
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(LEARNERS, -1, *x.shape[3:]), batch)
    for learner in range(LEARNERS):
        rows = flat.observation[learner]
        for episode, length in ((0, 5), (1, 4)):
            for time in (0, 1, length - 1):
                of = (rows[:, 2:4] == (episode, time)).all(axis=1)
                counts = np.bincount((rows[of, 7] - time).astype(int))[1:]
                expected = DISCOUNT[learner] ** np.arange(length - time)
                np.testing.assert_allclose(
                    counts / counts.sum(), expected / expected.sum(), atol=0.03
                )


KINDS = ("uniform", "n_step", "hindsight", "future_goals")


def of_kind(kind: str, share: Any = 1.0, discount: Any = DISCOUNT) -> Draw:
    if kind == "uniform":
        return buffers.Uniform()
    if kind == "n_step":
        return buffers.NStep(steps=3, discount=each(discount))
    return future_goals(discount) if kind == "future_goals" else hindsight(share, discount)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learner_draws_the_same_alone_and_in_a_population(kind: str) -> None:
    replay, share = of_episodes(history(3, 17), 7), np.array([1.0, 0.5], np.float32)
    together = along(replay, 3, of_kind(kind, share))
    for learner in range(LEARNERS):
        one = slice(learner, learner + 1)
        part = replay.replace(data=jax.tree.map(lambda x, one=one: x[one], replay.data))
        alone = along(part, 3, of_kind(kind, share[one], DISCOUNT[one]), keys()[one])
        tolerance = {} if kind == "uniform" else {"rtol": 1e-6}
        counting.assert_equal(counting.one(together, learner), counting.one(alone, 0), **tolerance)


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
    """Handed its own goal in hindsight, a transition stays as it is."""
    made = planned(dqn, "rljax/BoxPick-2x4", 350, BOX | {"hindsight": 1.0})
    driver: Any = made.stages[0].driver
    goals: Any = driver.loop.simulators.environment.environment
    assert driver.hyper.experience.draw.environment is goals
    driver.start([0])
    driver.advance(7)  # 350 steps: round the ring
    stored = driver.learners.storage
    assert isinstance(stored, ReplayBuffer)
    times = np.asarray(stored.data.extras["time"])[0].reshape(250, 4)
    assert (times == (np.r_[250:350, 100:250] % 100 + 1)[:, None]).all(), (
        "episodes of 100 steps, the newest first"
    )
    batch = sample(driver.hyper.experience, stored, None, keys()[:1])
    observation, following = np.asarray(batch.observation), np.asarray(batch.next_observation)
    np.testing.assert_array_equal(goals.desired(observation), goals.desired(following))
    expected = goals.goal_reward(goals.achieved(following), goals.desired(following))
    np.testing.assert_array_equal(batch.reward, expected)
    assert 0.2 < expected.mean() < 1.0


# Episodes that have ended, beside a data set.

OLD = 1e6  # the reward of the data set's rows


def old_rows(buffer: ReplayBuffer, number: int = 4) -> Transition:
    """A data set of other rows than the buffer's."""
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
    batch = sample(declared, buffer, old_rows(buffer), keys())
    return np.asarray(batch.reward).reshape(LEARNERS, 400, 8)


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
    assert 0 < len(expected) < sum(map(len, stored))
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
    buffer, add = empty(400, 2), jax.jit(ReplayBuffer.add)
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


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("on_host", [False, True])
def test_contexts_are_whole_pieces_of_one_lifetime(shuffled: bool, on_host: bool) -> None:
    lengths, size = [5, 2, 4, 7], 4
    rows = sum(lengths)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    column = np.arange(rows, dtype=np.float32)
    optimal: Any = {buffers.OPTIMAL_ACTION: column % 3}
    numbers: Any = (
        column[:, None],
        column[:, None],
        column,
        ends & (column > 10),
        ends,
        column[:, None],
    )
    draw = buffers.Contexts(length=size, shuffled=shuffled, imitates_data=False)
    declared = buffers.Dataset(batch_size=600, num_updates=2, draw=draw)
    assert declared.labels == (buffers.OPTIMAL_ACTION,)
    data = declared.prepare(Transition(*numbers, extras=optimal))
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = declared.random(keys, rows)
    if on_host:
        batch = declared.take(data, jax.tree.map(np.asarray, drawn))
    else:
        batch = declared.take(jax.tree.map(jnp.asarray, data), drawn)
    assert batch.reward.shape == (2, 2, 600, size)
    assert set(batch.extras) == {buffers.OPTIMAL_ACTION}
    pieces = np.asarray(batch.reward).reshape(-1, size).astype(int)
    np.testing.assert_array_equal(batch.extras[buffers.OPTIMAL_ACTION], batch.reward % 3)
    first, counts = np.unique(pieces.min(axis=1), return_counts=True)
    starts = np.cumsum([0, *lengths[:-1]])
    whole = zip(starts, lengths, strict=True)
    expected = [start + i for start, length in whole for i in range(length - size + 1)]
    assert first.tolist() == expected, "whole pieces"
    mean = len(pieces) / len(expected)
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean), "each as often"
    ordered = pieces.min(axis=1)[:, None] + np.arange(size)
    np.testing.assert_array_equal(np.sort(pieces, axis=1), ordered)
    if not shuffled:
        np.testing.assert_array_equal(pieces, ordered)
        return
    places = np.array(
        [np.bincount(column, minlength=size) for column in (pieces - ordered[:, :1]).T]
    )
    mean = len(pieces) / size
    assert np.abs(places - mean).max() < 5 * np.sqrt(mean), "each place as often"


def test_contexts_longer_than_all_lifetimes_are_refused() -> None:
    draw = buffers.Contexts(length=4, shuffled=True, imitates_data=True)
    assert draw.labels == ()
    message = r"--config\.context-length is 3, with 4 steps .* Lower it"
    with pytest.raises(ValueError, match=message):
        draw.prepare(lifetimes([[1.0]], [0], steps=3))


@pytest.mark.parametrize("on_host", [False, True])
def test_pairs_of_contexts_are_of_the_same_lifetimes(on_host: bool) -> None:
    data = lifetimes(np.ones((4, 3)), np.arange(4))
    draw = buffers.Contexts(length=4, shuffled=False, imitates_data=True, pairs=True)
    declared = buffers.Dataset(batch_size=800, num_updates=2, draw=draw)
    prepared = declared.prepare(data.replace(extras={}))
    drawn = declared.random(jax.random.split(jax.random.key(0), 1), 24)
    if on_host:
        batch = declared.take(prepared, jax.tree.map(np.asarray, drawn))
    else:
        batch = declared.take(jax.tree.map(jnp.asarray, prepared), drawn)
    assert not batch.extras
    pieces = np.asarray(batch.observation)[..., 0].astype(int).reshape(2, 2, 400, 4)
    np.testing.assert_array_equal(pieces, pieces[..., :1] + np.arange(4))
    np.testing.assert_array_equal(
        pieces // 6, np.broadcast_to(pieces[:, :1, :, :1] // 6, pieces.shape)
    )
    for half in (0, 1):
        counts = np.bincount(pieces[:, half, :, 0].ravel() % 6, minlength=6)
        assert (counts[3:] == 0).all()
        assert np.abs(counts[:3] - 800 / 3).max() < 5 * np.sqrt(800 / 3)


def lifetimes(returns: Any, tasks: Any, steps: int = 2) -> Transition:
    """Rows of lifetimes whose episodes have `steps` steps and these returns [L, episodes]."""
    rewards = np.repeat(np.asarray(returns, np.float32) / steps, steps, axis=1)
    ends = np.zeros(rewards.shape, bool)
    ends[:, -1] = True
    extras: Any = {buffers.TASK: np.repeat(np.float32(tasks), rewards.shape[1])}
    row = np.arange(rewards.size, dtype=np.float32)
    never = np.zeros(rewards.size, bool)
    columns: Any = (row[:, None], row[:, None], rewards.ravel(), never, ends.ravel(), row[:, None])
    return Transition(*columns, extras=extras)


def test_lifetimes_that_improve_and_stay_are_drawn_more_often() -> None:
    """LHF by hand, arXiv:2505.15143, equations 6 to 9: of the first task R_max is 4."""
    returns = [[0.0, 2.0, 4.0], [0.0, 4.0, 1.0], [1.0, 1.0, 1.0], [3.0, 0.0, 0.0], [0.0, 3.0, 3.0]]
    tasks = [7, 7, 7, 8, 8]
    first = [(2 + 4) / 8 + 0.5 * 1, (5 / 3 + 4) / 8 + 0.5 * (1 - 3 / 4), (1 + 0) / 8 + 0.5 * 1]
    second = [(1 + 3) / 6 + 0.5 * (1 - 3 / 3), (2 + 3) / 6 + 0.5 * 1]
    expected = [
        (x - min(scores)) / (max(scores) - min(scores))
        for scores in (first, second)
        for x in scores
    ]
    data = lifetimes(returns, tasks)
    draw = buffers.Contexts(
        length=3, shuffled=False, imitates_data=True, episode_steps=2, stability=0.5
    )
    assert draw.labels == (buffers.TASK,)
    declared = buffers.Dataset(batch_size=4_000, draw=draw)
    prepared = declared.prepare(data)
    keys = jax.random.split(jax.random.key(0), 1)
    batch = declared.take(jax.tree.map(jnp.asarray, prepared), declared.random(keys, 30))
    assert not batch.extras
    first_rows = np.asarray(batch.observation)[..., 0, 0].ravel().astype(int)
    shares = np.bincount(first_rows // 6, minlength=5) / len(first_rows)
    np.testing.assert_allclose(shares, np.array(expected) / sum(expected), atol=0.03)
    assert (shares[[2, 3]] == 0).all(), "the last of a task"
    alike = dataclasses.replace(draw, stability=0.0).prepare(lifetimes([[1.0, 2.0]] * 3, [1, 1, 2]))
    whole = np.tile([1, 1, 0, 0], 3)
    np.testing.assert_array_equal(np.asarray(alike.extras["alias_table"])[:, 0] == 0, 1 - whole)


@pytest.mark.parametrize(
    ("stability", "episode_steps", "message"),
    [
        (np.array([0.5, 1.0]), 2, "give one --config.history-stability"),
        (0.5, 4, "one has 6 steps, less than two episodes of --config.episode-steps 4"),
    ],
)
def test_weights_that_cannot_be_computed_are_refused(
    stability: Any, episode_steps: int, message: str
) -> None:
    draw = buffers.Contexts(
        length=3,
        shuffled=False,
        imitates_data=True,
        episode_steps=episode_steps,
        stability=stability,
    )
    with pytest.raises(ValueError, match=message):
        draw.prepare(lifetimes(np.ones((2, 3)), [1, 1]))
