"""Draws along episodes, n steps ahead or of goals in hindsight, against plain Python on rings made by hand."""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import Transition
from rljax.buffers import samplers
from rljax.buffers.storage import Replay
from rljax.training.drivers.compiled import CompiledDriver

LEARNERS = 2
DISCOUNT = np.array([0.9, 0.5], np.float32)  # of each learner


class Row(NamedTuple):
    """A step of an environment's episode, and what it is called in observations."""

    environment: int
    episode: int
    time: int  # steps before it
    reward: float
    terminated: bool
    truncated: bool


def history(num_envs: int, steps: int, seed: int = 0, length: int = 6) -> list[list[Row]]:
    """What each environment did, episodes of 1 to `length` steps with ends of both kinds."""
    generator = np.random.default_rng(seed)
    rows: list[list[Row]] = []
    for environment in range(num_envs):
        rows.append([])
        episode, time, last = 0, 0, generator.integers(1, length + 1)
        for _ in range(steps):
            ends = time + 1 == last
            terminated = bool(ends and generator.random() < 0.5)
            truncated = bool(ends and (not terminated or generator.random() < 0.5))
            rows[-1].append(Row(environment, episode, time, float(generator.normal()), terminated, truncated))
            time += 1
            if ends:
                episode, time, last = episode + 1, 0, generator.integers(1, length + 1)
    return rows


def named(row: Row, later: int, learner: int) -> list[float]:
    """An observation: learner, environment, episode, step; the goal, which is no other's."""
    goal = [learner, row.environment, row.episode, -1]
    return [float(learner), row.environment, row.episode, row.time + later, *goal]


def ring(rows: list[list[Row]], slots: int, timed: bool = True) -> Replay:
    """A ring of so many steps of each environment, after all of `rows`."""
    number, steps = len(rows), len(rows[0])

    def at(t: int) -> Transition:
        now = [environment[t] for environment in rows]

        def each(function: Any, dtype: Any = np.float32) -> Any:
            return jnp.asarray([[function(row, learner) for row in now] for learner in range(LEARNERS)], dtype)

        return Transition(
            observation=each(lambda row, learner: named(row, 0, learner)),
            action=each(lambda row, _: row.time, np.int32),
            reward=each(lambda row, _: row.reward),
            terminated=each(lambda row, _: row.terminated, bool),
            truncated=each(lambda row, _: row.truncated, bool),
            next_observation=each(lambda row, learner: named(row, 1, learner)),
            extras={"time": each(lambda row, _: row.time + 1, np.int32)} if timed else {},
        )

    replay = Replay.create(at(0), types.SimpleNamespace(replay_size=slots * number))
    # What is not yet written would be found out.
    replay = replay.replace(
        data=jax.tree.map(lambda x: x if x.dtype == bool else jnp.asarray(np.full(x.shape, 77, x.dtype)), replay.data),
    )
    add = jax.jit(Replay.add)
    for t in range(steps):
        replay = add(replay, at(t))
    return replay


def settings(num_envs: int, **changes: Any) -> Any:
    """What a sampler reads of a config, stacked over learners."""
    known: dict[str, Any] = {"num_updates": 3, "batch_size": 200, "num_envs": num_envs, "discount": DISCOUNT}
    return types.SimpleNamespace(**known | changes)


def keys(seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), LEARNERS)


def drawn(batch: Transition) -> list[tuple[int, Transition]]:
    """Each row of a batch, with its learner."""
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(LEARNERS, -1, *x.shape[3:]), batch)
    return [
        (learner, jax.tree.map(lambda x, at=(learner, i): x[at], flat))
        for learner in range(LEARNERS)
        for i in range(flat.reward.shape[1])
    ]


# Not full; full; once, and more than twice round, with the seam in the middle.
RINGS = [(1, 8, 5), (3, 8, 5), (3, 8, 8), (1, 7, 17), (3, 7, 17), (2, 5, 11)]
rings = pytest.mark.parametrize(("num_envs", "slots", "steps"), RINGS)


@rings
@pytest.mark.parametrize("n", [1, 2, 4, 30])
def test_n_steps_equal_a_loop_over_the_episode(n: int, num_envs: int, slots: int, steps: int) -> None:
    rows = history(num_envs, steps)
    config = settings(num_envs, n_step=n)
    batch = jax.jit(lambda replay, key: samplers.n_step(replay, key, config))(ring(rows, slots, timed=False), keys())
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
    assert len(found) == LEARNERS * num_envs * min(slots, steps), "every stored row, the newest ones too"


def test_one_step_is_the_uniform_draw() -> None:
    replay = ring(history(3, 17), 7, timed=False)
    config = settings(3, n_step=1)
    uniform, one = (
        jax.jit(lambda replay, key, draw=draw: draw(replay, key, config))(replay, keys())
        for draw in (samplers.uniform, samplers.n_step)
    )
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


def relabelled(replay: Replay, num_envs: int, share: Any = 1.0, seed: int = 0, **changes: Any) -> Transition:
    """Batches with goals in hindsight."""
    config = settings(num_envs, hindsight=np.full(LEARNERS, share, np.float32), **changes)
    return jax.jit(lambda replay, key: samplers.hindsight(replay, key, config, Goals()))(replay, keys(seed))


@rings
def test_goals_are_of_the_same_episodes_future_or_of_others(num_envs: int, slots: int, steps: int) -> None:
    rows = history(num_envs, steps)
    batch = relabelled(ring(rows, slots), num_envs)
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


def test_future_goals_are_geometric_up_to_the_end() -> None:
    """Of one episode of 5 steps, all of it in the ring, and of one that goes on beyond its newest row."""
    lasting = [Row(0, 0, t, 0.0, t == 4, False) for t in range(5)] + [Row(0, 1, t, 0.0, False, False) for t in range(4)]
    other = [x._replace(environment=1) for x in lasting]
    batch = relabelled(ring([lasting, other], 9), 2, num_updates=20, batch_size=4_000)
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


def test_the_oldest_rows_do_not_go_on_with_the_newest() -> None:
    """Of an episode of 8 steps the last 4 are left, right behind the first 4 of the next, as if they were its own."""
    row = [Row(0, 0, t, 0.0, t == 7, False) for t in range(8)] + [Row(0, 1, t, 0.0, False, False) for t in range(4)]
    batch = relabelled(ring([row, [x._replace(environment=1) for x in row]], 8), 2, discount=np.ones(2, np.float32))
    observation = np.asarray(batch.observation).reshape(-1, 8)
    own = observation[observation[:, 1] == observation[:, 5]]
    assert len(own) > 300
    np.testing.assert_array_equal(own[:, 2], own[:, 6])


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_future_goals_at_the_discounts_limits(discount: float) -> None:
    row = [Row(0, 0, t, 0.0, False, False) for t in range(8)]
    limits = np.full(LEARNERS, discount, np.float32)
    replay = ring([row, [x._replace(environment=1) for x in row]], 8)
    observation = np.asarray(relabelled(replay, 2, discount=limits, batch_size=4_000).observation).reshape(-1, 8)
    first = observation[(observation[:, 1] == observation[:, 5]) & (observation[:, 3] == 0)]
    shares = np.bincount(first[:, 7].astype(int), minlength=9)[1:] / len(first)
    np.testing.assert_allclose(shares, np.eye(8)[0] if discount == 0 else np.full(8, 1 / 8), atol=0.05)


def test_a_share_of_goals_is_replaced() -> None:
    rows = history(3, 17)
    replay = ring(rows, 7)
    batch = relabelled(replay, 3, [0.25, 0.0], batch_size=2_000)
    own = np.asarray(batch.observation[..., 7]) == -1
    np.testing.assert_allclose(own.mean(axis=(1, 2)), [0.75, 1.0], atol=0.03)
    stored = {(x.environment, x.episode, x.time): x.reward for each in rows for x in each}
    for learner, row in drawn(batch):
        if row.observation[7] == -1:
            np.testing.assert_array_equal(row.observation[4:7], [learner, *row.observation[1:3]])
            np.testing.assert_allclose(row.reward, stored[tuple(row.observation[1:4].astype(int))], rtol=1e-6)


def test_learner_draws_the_same_alone_and_in_a_population() -> None:
    replay = ring(history(3, 17), 7)
    for sampler in (samplers.n_step, functools.partial(samplers.hindsight, environment=Goals())):

        def draw(replay: Replay, key: jax.Array, config: Any, sampler: Any = sampler) -> Transition:
            return jax.jit(lambda replay, key: sampler(replay, key, config))(replay, key)

        config = settings(3, n_step=3, hindsight=np.array([1.0, 0.5], np.float32))
        together = draw(replay, keys(), config)
        for learner in range(LEARNERS):
            one = slice(learner, learner + 1)
            own = settings(3, n_step=3, discount=DISCOUNT[one], hindsight=config.hindsight[one])
            part = replay.replace(data=jax.tree.map(lambda x, one=one: x[one], replay.data))
            alone = draw(part, keys()[one], own)
            jax.tree.map(lambda x, y, one=one: np.testing.assert_allclose(x[one], y, rtol=1e-6), together, alone)


@pytest.mark.parametrize("kind", ["n_step", "hindsight"])
def test_nothing_that_is_computed_grows_with_the_capacity(kind: str) -> None:
    sampler: Any = samplers.n_step if kind == "n_step" else functools.partial(samplers.hindsight, environment=Goals())
    config, temporary = settings(1, n_step=3, hindsight=np.ones(LEARNERS, np.float32)), []
    for slots in (5_000, 80_000):
        replay = ring(history(1, 2), slots)
        draw = jax.jit(lambda replay, key: sampler(replay, key, config))
        memory: Any = draw.lower(replay, keys()).compile().memory_analysis()
        temporary.append(memory.temp_size_in_bytes)
    assert temporary[0] == temporary[1]


def test_rewards_of_box_pick_in_hindsight_are_the_environments() -> None:
    """Its own goal, handed to a transition in hindsight, leaves all of it as it is."""
    from rljax.training import registry
    from tests.training.test_learner import Learner, configuration

    dqn, environment = registry.load_agent("dqn"), envs.make("rljax/BoxPick-2x4")
    changes = {"num_envs": 4, "num_steps": 50, "replay_size": 1_000, "batch_size": 64, "warmup_steps": 10**6}
    config = configuration.stack(configuration.replace(dqn.Config(), changes | {"hindsight": 1.0}, "test"), 1)
    goals: Any = environment.environment
    sampler = functools.partial(samplers.hindsight, environment=goals)
    learner = Learner(dqn, environment.spec, 1, 4, sampler, timed=True)
    driver = CompiledDriver(learner, environment, config)
    driver.start([0])
    driver.advance(7)  # 350 steps: round the ring
    stored = driver.learners.storage
    assert isinstance(stored, Replay)
    times = np.asarray(stored.data.extras["time"])[0].reshape(250, 4)
    assert (times == (np.r_[250:350, 100:250] % 100 + 1)[:, None]).all(), "episodes of 100 steps, the newest first"
    batch = jax.jit(learner.draw)(driver.learners, config)
    observation, following = np.asarray(batch.observation), np.asarray(batch.next_observation)
    np.testing.assert_array_equal(goals.desired(observation), goals.desired(following))
    expected = goals.goal_reward(goals.achieved(following), goals.desired(following))
    np.testing.assert_array_equal(batch.reward, expected)
    assert 0.2 < expected.mean() < 1.0
