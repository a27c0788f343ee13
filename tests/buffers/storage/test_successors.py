"""Observations stored once, against a list of true transitions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.buffers.storage import successors
from rljax.buffers.storage.ring import ReplayBuffer
from tests.helpers import counting
from tests.helpers.replay_buffers import LEARNERS, assert_in_place, keys, nbytes, sample

Step = list[list[dict[str, Any]]]  # [P][E] of transitions


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small observations are stored once, and finals are so few that they overflow."""
    monkeypatch.setattr(successors, "LARGE", 1)
    monkeypatch.setattr(successors, "FEWEST", 2)


class World:
    """Environments whose frames are random bytes; the first of an episode is repeated in stacks."""

    def __init__(self, num_envs: int, length: int, stack: int, seed: int = 0) -> None:
        self.generator, self.length, self.stack = np.random.default_rng(seed), length, stack
        self.shown = [[self._first() for _ in range(num_envs)] for _ in range(LEARNERS)]

    def _frame(self) -> np.ndarray:
        return self.generator.integers(0, 256, (2, 3, 2), np.uint8)

    def _first(self) -> np.ndarray:
        return np.concatenate([self._frame()] * self.stack, axis=-1)

    def step(self) -> Step:
        """One transition of each environment; an episode ends in one step of `length`, in either
        way or both.
        """
        found = []
        for shown in self.shown:
            found.append([])
            for environment, observation in enumerate(shown):
                following = np.concatenate([observation[..., 2:], self._frame()], axis=-1)
                ends = self.generator.random() < 1 / self.length
                kind = self.generator.integers(3) if ends else 3
                found[-1].append(
                    {
                        "observation": observation,
                        "action": self.generator.integers(1000, dtype=np.int32),
                        "reward": np.float32(self.generator.normal()),
                        "terminated": np.bool_(kind in (0, 2)),
                        "truncated": np.bool_(kind in (1, 2)),
                        "next_observation": following,
                    }
                )
                shown[environment] = self._first() if ends else following
        return found

    def reset(self) -> None:
        self.shown = [[self._first() for _ in shown] for shown in self.shown]


def stacked(step: Step) -> Transition:
    trees = [[Transition(**transition) for transition in learner] for learner in step]
    rows = [jax.tree.map(lambda *x: np.stack(x), *learner) for learner in trees]
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *rows)


add = jax.jit(ReplayBuffer.add)
every_row = jax.jit(
    lambda ring: jax.vmap(
        lambda ring: ring.transitions(jnp.arange(ring.capacity)), in_axes=(ring.axes,)
    )(ring)
)


def expected_number(steps: list[Step], learner: int, capacity: int, finals: int, stack: int) -> int:
    """Rows that may be drawn: those newer than the newest step that has lost a final."""
    num_envs, owners = len(steps[0][learner]), []
    for number, step in enumerate(steps):
        owners += [number for x in step[learner] if x["terminated"] or x["truncated"]]
    held = min(len(steps), capacity // num_envs)
    if len(steps) >= capacity // num_envs:
        held -= stack - 1
    lost = owners[:-finals]
    return num_envs * (min(held, len(steps) - 1 - lost[-1]) if lost else held)


def assert_row(found: Any, transition: dict[str, Any]) -> None:
    for name, value in transition.items():
        np.testing.assert_array_equal(getattr(found, name), value, name)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize(
    ("num_envs", "capacity", "length"),
    [(1, 20, 2), (1, 40, 30), (3, 41, 1), (3, 60, 5), (4, 96, 100)],
)
def test_all_rows_that_may_be_drawn_are_exact(
    num_envs: int, capacity: int, length: int, stack: int
) -> None:
    world = World(num_envs, length, stack)
    history = [world.step()]
    ring = jax.jit(lambda first: ReplayBuffer.create(first, capacity, stack))(stacked(history[0]))
    assert ring.successors is not None
    assert ring.successors.stack == stack
    assert ring.data.next_observation is None
    finals, rows, fewest = ring.successors.owned.shape[1], ring.capacity, capacity
    ring = add(ring, stacked(history[0]))
    for number in range(1, 3 * rows // num_envs + 2):
        history.append(world.step())
        ring = add(ring, stacked(history[-1]))
        if number % 3 and number > 8:
            continue
        found = jax.tree.map(np.asarray, every_row(ring))
        for learner in range(LEARNERS):
            drawable = int(ring.successors.usable[learner])
            assert drawable == expected_number(history, learner, rows, finals, stack)
            fewest = min(fewest, drawable) if number * num_envs >= rows else fewest
            for back in range(drawable // num_envs):
                for environment in range(num_envs):
                    row = (number - back) * num_envs % rows + environment
                    here = jax.tree.map(lambda x, at=(learner, row): x[at], found)
                    assert_row(here, history[number - back][learner][environment])
    assert fewest >= num_envs
    if length < 10:
        assert fewest < rows / 2, "finals overflow"
    if length == 100:
        assert fewest == rows - num_envs * (stack - 1), "none is lost"


def named(history: list[Step], learner: int) -> dict[bytes, tuple[int, int]]:
    """The step and the environment of each observation with its reward."""
    return {
        x["observation"].tobytes() + x["reward"].tobytes(): (number, environment)
        for number, step in enumerate(history)
        for environment, x in enumerate(step[learner])
    }


def flat_rows(batch: Transition, learner: int) -> list[Transition]:
    one = jax.tree.map(lambda x: np.asarray(x[learner]).reshape(-1, *x.shape[3:]), batch)
    return [jax.tree.map(lambda x, i=i: x[i], one) for i in range(len(one.reward))]


def played(
    num_envs: int, capacity: int, length: int, stack: int, steps: int
) -> tuple[Any, list[Step], World]:
    world = World(num_envs, length, stack)
    history = [world.step() for _ in range(steps)]
    ring = jax.jit(lambda first: ReplayBuffer.create(first, capacity, stack))(stacked(history[0]))
    for step in history:
        ring = add(ring, stacked(step))
    return ring, history, world


@pytest.mark.slow
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("length", [2, 30])
def test_draws_are_of_the_list(length: int, stack: int) -> None:
    ring, history, _ = played(2, 60, length, stack, 77)
    declared = buffers.Replay(
        replay_size=60, batch_size=300, num_envs=2, num_updates=2, columns=(buffers.NextAction(),)
    )
    batch = sample(declared, ring, None, keys())
    discounts: Any = jnp.asarray([0.9, 0.5])
    n_step = buffers.NStep(steps=3, discount=discounts)
    summing = buffers.Replay(replay_size=60, batch_size=300, num_envs=2, draw=n_step)
    summed = sample(summing, ring, None, keys())
    for learner in range(LEARNERS):
        names, seen = named(history, learner), set()
        newest = len(history) - 1
        for row in flat_rows(batch, learner):
            number, environment = names[row.observation.tobytes() + row.reward.tobytes()]
            here = history[number][learner][environment]
            assert_row(row, here)
            has = number < newest and not (here["terminated"] or here["truncated"])
            assert row.extras["has_next_action"] == has
            if has:
                assert (
                    row.extras["next_action"] == history[number + 1][learner][environment]["action"]
                )
            seen.add((number, environment))
        assert len(seen) == int(ring.successors.usable[learner]), "all that may be drawn"
        starts = {
            x["observation"].tobytes(): at
            for at, x in ((at, history[at[0]][learner][at[1]]) for at in seen)
        }
        for row in flat_rows(summed, learner):
            number, environment = starts[row.observation.tobytes()]
            total, discount = 0.0, 1.0
            for last in range(number, min(number + 3, newest + 1)):
                here = history[last][learner][environment]
                total, discount = total + discount * here["reward"], discount * [0.9, 0.5][learner]
                if here["terminated"] or here["truncated"]:
                    break
            np.testing.assert_allclose(row.reward, total, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(row.extras["discount"], discount, rtol=1e-6)
            np.testing.assert_array_equal(row.next_observation, here["next_observation"])


@pytest.mark.slow
def test_old_and_new_rows_of_pictures() -> None:
    ring, history, _ = played(2, 60, 2, 1, 77)
    data = jax.tree.map(lambda x: x[0], stacked([[x for step in history[:10] for x in step[0]]]))
    declared = buffers.Mixed(replay_size=60, batch_size=300, num_envs=2, offline_share="pooled")
    batch = sample(declared, ring, data, keys())
    usable, names = int(ring.successors.usable[0]), named(history, 0)
    assert usable < 60
    numbers = []
    for row in flat_rows(batch, 0):
        number, environment = names[row.observation.tobytes() + row.reward.tobytes()]
        assert_row(row, history[number][0][environment])
        numbers.append(number)
    assert set(numbers) == set(range(10)) | set(range(77 - usable // 2, 77))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("stack", [1, 3])
def test_lost_simulators_cut_the_episodes(stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successors, "FEWEST", 12)
    ring, history, world = played(3, 60, 8, stack, 30)
    ring = jax.jit(lambda ring: ring.cut_episodes(3))(ring)
    for learner in history[-1]:
        for x in learner:
            x["truncated"] = np.bool_(x["truncated"] or not x["terminated"])
    world.reset()
    for _ in range(4):
        history.append(world.step())
        ring = add(ring, stacked(history[-1]))
    found = jax.tree.map(np.asarray, every_row(ring))
    for learner in range(LEARNERS):
        drawable = int(ring.successors.usable[learner])
        assert drawable > 5 * 3
        for number in range(34 - drawable // 3, 34):
            for environment in range(3):
                at = (learner, number * 3 % 60 + environment)
                assert_row(
                    jax.tree.map(lambda x, at=at: x[at], found),
                    history[number][learner][environment],
                )


def test_the_ring_is_written_and_read_in_place() -> None:
    example = stacked(World(3, 2, 1).step())
    ring = ReplayBuffer.create(example, 300_000)
    step = jax.jit(ReplayBuffer.add, donate_argnums=0).lower(ring, example).compile()
    assert_in_place(step, ring)
    declared, own = buffers.Replay(replay_size=300_000, batch_size=16, num_envs=3), keys()

    def one(_: Any, carry: Any) -> Any:
        ring, total = carry
        ring = ring.add(example)
        return ring, total + declared.sample(ring, None, own).reward.sum()

    loop = jax.jit(lambda ring, n: jax.lax.fori_loop(0, n, one, (ring, 0.0)), donate_argnums=0)
    assert_in_place(loop.lower(ring, 5).compile(), ring)


def shapes(spec: EnvSpec, rows: int) -> ReplayBuffer:

    def example(leading: int) -> Transition:
        flag = jnp.zeros((1, leading), bool)
        action = jnp.zeros((1, leading, *spec.action_shape), spec.action_dtype)
        return Transition(
            spec.example(1, leading), action, flag * 1.0, flag, flag, spec.example(1, leading)
        )

    return jax.eval_shape(
        lambda: buffers.Replay(replay_size=rows, batch_size=1).create(example(1), spec.stack)
    )


def size(tree: Any) -> int:
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def test_memory_of_frames_and_of_large_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successors, "LARGE", 1024)
    monkeypatch.setattr(successors, "FEWEST", 64)
    frames = EnvSpec("Pictures", (84, 84, 4), 4, True, observation_dtype="uint8", stack=4)
    assert size(shapes(frames, 200_000)) <= 1.1 * 200_000 * 84 * 84
    humanoid = EnvSpec("Humanoid", (348,), 17)
    twice = 1_000_000 * (4 * (2 * 348 + 17 + 1) + 2)
    assert size(shapes(humanoid, 1_000_000)) <= 0.56 * twice
    small = shapes(EnvSpec("Hopper", (11,), 3), 1_000)
    assert small.successors is None
    assert size(small) == 1_000 * (4 * (2 * 11 + 3 + 1) + 2) + 8


def test_the_estimate_of_batches_counts_whole_stacks() -> None:
    ring, _, _ = played(1, 20, 5, 3, 3)
    declared = buffers.Replay(replay_size=20, batch_size=7, num_updates=2)
    estimate = declared.batch_bytes(ring, None, LEARNERS)
    np.testing.assert_allclose(estimate, nbytes(sample(declared, ring, None, keys())), rtol=0.02)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_no_step_copies_the_successors(num_envs: int) -> None:
    """A sixteenth of the ring in each step is most of a step's time."""
    picture = jnp.zeros((1, num_envs, 40, 40, 4), jnp.uint8)
    rows = jnp.zeros((1, num_envs))
    example = Transition(picture, rows, rows, rows > 0, rows > 0, picture)

    def one(time: Any, ring: ReplayBuffer) -> ReplayBuffer:
        seen = picture + time.astype(jnp.uint8)
        ended = jnp.broadcast_to(time % 7 == 0, rows.shape)
        return ring.add(
            example.replace(observation=seen, next_observation=seen + 1, truncated=ended)
        )

    loop = jax.jit(lambda ring, n: jax.lax.fori_loop(0, n, one, ring), donate_argnums=0)
    ring = ReplayBuffer.create(example, 30_000, 4)
    assert_in_place(loop.lower(ring, 5).compile(), ring.successors)


@pytest.mark.slow
def test_drivers_store_the_same_and_resume_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes that do not learn act alike, however experience is stored."""
    changes: Any = {
        "learning_rate": 0.0,
        "num_envs": 2,
        "replay_size": 30,
        "warmup_steps": 0,
    }
    once = counting.driven([0, 1], 25, environment=counting.Counter(limit=7), **changes)
    again = counting.driven([0, 1], 3, environment=counting.Counter(limit=7), **changes)
    monkeypatch.setattr(successors, "LARGE", 1024)
    twice = counting.driven([0, 1], 25, environment=counting.Counter(limit=7), **changes)
    rings = [driver.learners.storage for driver in (once, twice)]
    assert [ring.successors is None for ring in rings] == [False, True]
    found = [jax.tree.map(np.asarray, every_row(ring)) for ring in rings]
    drawable = rings[0].successors.usable.tolist()
    assert min(drawable) > 8
    for learner, number in enumerate(drawable):
        rows = (int(rings[0].position) - 1 - np.arange(number)) % 30
        parts = [
            jax.tree.map(lambda x, at=(learner, rows): x[at[0]][at[1]], rows_) for rows_ in found
        ]
        jax.tree.map(np.testing.assert_array_equal, *parts)
    again.restore(jax.tree.map(jnp.copy, once.arrays()), None)
    for driver in (once, again):
        driver.advance(9)
    counting.assert_equal(once.arrays(), again.arrays())
