"""Prioritised replay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec
from rljax.buffers.prioritised import Pending, Priorities
from rljax.buffers.storage import successors, sum_tree
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from tests.buffers import reference
from tests.helpers import counting, replay_buffers
from tests.helpers.replay_buffers import (
    DISCOUNT,
    LEARNERS,
    assert_in_place,
    keys,
    numbered,
    transitions,
)
from tests.learning.drivers import kinds

ALPHA = np.array([0.6, 1.0], np.float32)  # of each learner
BETA = np.array([0.4, 0.7], np.float32)


def each(values: Any) -> Any:
    return jnp.asarray(np.broadcast_to(np.float32(values), LEARNERS))


def prioritised(**changes: Any) -> buffers.Prioritised:
    steps = changes.pop("steps", 1)
    known = {"exponent": ALPHA, "correction": BETA, "correction_steps": np.inf}
    fields = known | {"discount": DISCOUNT} | changes
    return buffers.Prioritised(steps=steps, **{name: each(x) for name, x in fields.items()})


def declare(replay_size: int, num_envs: int, **changes: Any) -> buffers.Replay:
    sizes = {"batch_size": changes.pop("batch_size", 4)}
    sizes |= {"num_updates": changes.pop("num_updates", 2), "num_envs": num_envs}
    return buffers.Replay(replay_size=replay_size, draw=prioritised(**changes), **sizes)


def nothing() -> Pending:
    return Pending.none(jnp.zeros((LEARNERS, 1, 1)))


@jax.jit
def step(ring: ReplayBuffer, rows: Any, pending: Pending, declared: buffers.Replay) -> ReplayBuffer:
    return declared.store(ring, pending, rows)[0]


written = jax.jit(lambda priorities, *arguments: priorities.written(*arguments))


def filled(declared: buffers.Replay, steps: int) -> tuple[ReplayBuffer, np.ndarray]:
    """A ring after so many steps, and the priorities [P, capacity] that its rows were given."""
    ring = replay_buffers.begin(declared, transitions(np.zeros((LEARNERS, declared.num_envs))))
    for time in range(steps):
        ring = step(ring, transitions(numbered(time, declared.num_envs)), nothing(), declared)
    priority = (
        np.random.default_rng(0).exponential(size=(LEARNERS, ring.capacity)).astype(np.float32)
    )
    rows = np.broadcast_to(np.arange(int(ring.size)), (LEARNERS, int(ring.size)))
    pending = Pending(
        jnp.asarray(rows[:, None]),
        jnp.asarray(priority[:, None, : int(ring.size)]),
        jnp.asarray(True),
    )
    kept = written(ring.index, pending, np.full(declared.num_envs, -1), each(ALPHA))
    return ring.replace(index=kept), priority


@pytest.mark.parametrize("steps", [4, 10, 25])  # partly filled, full, after two wraps and a half
def test_draws_have_the_papers_probabilities_and_weights(steps: int) -> None:
    declared = declare(30, 3, batch_size=100, num_updates=200)
    ring, priority = filled(declared, steps)
    batch = jax.tree.map(np.asarray, replay_buffers.sample(declared, ring, None, keys()))
    stored = min(3 * steps, 30)
    for learner in range(LEARNERS):
        mass = (priority[learner, :stored] + 1e-6) ** float(ALPHA[learner])
        rows = batch.extras["row"][learner]
        reference.assert_drawn(rows, mass)
        weight = (stored * mass / mass.sum())[rows] ** -float(BETA[learner])
        np.testing.assert_allclose(
            batch.extras["weight"][learner], weight / weight.max(-1, keepdims=True), rtol=1e-4
        )
        np.testing.assert_array_equal(
            batch.action[learner], np.asarray(ring.data.action)[learner][rows]
        )


@pytest.mark.slow
def test_rows_that_may_not_be_drawn_never_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where observations are stored once, only the newest rows may be drawn."""
    monkeypatch.setattr(successors, "LARGE", 0)
    monkeypatch.setattr(successors, "FEWEST", 4)
    monkeypatch.setattr(successors, "SHARE", 4)
    declared = declare(30, 3, batch_size=100, num_updates=100)
    for steps in (9, 25):
        ring, priority = filled(declared, steps)
        batch, stored = replay_buffers.sample(declared, ring, None, keys()), int(ring.size)
        for learner in range(LEARNERS):
            usable = int(ring.successors.usable[learner])
            assert 0 < usable < stored
            newest = (int(ring.position) - 1 - np.arange(usable)) % 30
            mass = np.zeros(30)
            mass[newest] = (priority[learner, newest] + 1e-6) ** float(ALPHA[learner])
            reference.assert_drawn(batch.extras["row"][learner], mass)


def test_the_correction_rises_to_one_with_the_steps() -> None:
    declared = declare(30, 3, batch_size=20, correction_steps=60.0)
    for steps, beta in ((10, BETA + (1 - BETA) * 30 / 60), (25, np.ones(2))):
        ring, _ = filled(declared, steps)
        ring = ring.replace(index=ring.index.replace(steps=jnp.asarray(steps, jnp.uint32)))
        batch = replay_buffers.sample(declared, ring, None, keys())
        for learner in range(LEARNERS):
            row = batch.extras["row"][learner]
            mass = np.asarray(ring.index.sums)[learner, 32 + row].astype(np.float64)
            expected = (mass / mass.min(axis=-1, keepdims=True)) ** -beta[learner]
            np.testing.assert_allclose(batch.extras["weight"][learner], expected, rtol=1e-4)


def test_priorities_reach_the_drawn_rows_and_no_others() -> None:
    declared = declare(12, 2)
    ring, priority = filled(declared, 9)
    before = np.asarray(ring.index.sums)[:, 16:28]
    row = np.array([[[3, 5], [3, 7]], [[0, 0], [0, 9]]], np.int32)  # the last of equal ones counts
    found = np.array([[[1.0, 2.0], [9.0, np.nan]], [[4.0, 5.0], [6.0, 0.0]]], np.float32)
    fresh = Pending(jnp.asarray(row), jnp.asarray(found), jnp.asarray(True))
    after = step(ring, transitions(numbered(9, 2)), fresh, declared)
    sums, largest = np.asarray(after.index.sums), np.asarray(after.index.largest)
    np.testing.assert_allclose(
        largest, np.maximum([9.0, 6.0], np.maximum(priority.max(axis=1), 1.0))
    )
    expected = before.copy()
    for learner, values in enumerate([{3: 9.0, 5: 2.0}, {0: 6.0, 9: 0.0}]):
        for place, value in values.items():
            expected[learner, place] = (value + 1e-6) ** ALPHA[learner]
        # The step's own rows.
        expected[learner, [6, 7]] = (largest[learner] + 1e-6) ** ALPHA[learner]
    np.testing.assert_allclose(sums[:, 16:28], expected, rtol=1e-6)
    np.testing.assert_array_equal(sums[:, 1:16], sums[:, 2::2] + sums[:, 3::2])
    stale = step(
        ring, transitions(numbered(9, 2)), fresh.replace(fresh=jnp.asarray(False)), declared
    )
    others = np.delete(np.arange(12), [6, 7])
    np.testing.assert_array_equal(np.asarray(stale.index.sums)[:, 16 + others], before[:, others])


@pytest.mark.slow
def test_several_steps_are_summed_as_without_priorities() -> None:
    rows = replay_buffers.history(3, 17)
    ring = replay_buffers.of_episodes(rows, 7, timed=False)
    declared = declare(21, 3, steps=3, batch_size=200)
    empty = declared.create(jax.tree.map(lambda x: x[:, :3], ring.data))
    ring = empty.replace(data=ring.data, position=ring.position, size=ring.size)
    for place in range(7):
        new = jnp.arange(3) + 3 * place
        ring = ring.replace(index=ring.index.written(nothing(), new, each(ALPHA)))
    batch = replay_buffers.sample(declared, ring, None, keys())
    for learner in range(LEARNERS):
        one = ring.of_learner(learner)
        drawn = batch.extras["row"][learner]
        expected = buffers.draws.n_step_batch(one, drawn, 3, 3, jnp.asarray(DISCOUNT[learner]))
        found = counting.one(batch, learner)
        np.testing.assert_allclose(found.reward, expected.reward, rtol=1e-6)
        np.testing.assert_allclose(found.extras["discount"], expected.extras["discount"], rtol=1e-6)
        np.testing.assert_array_equal(found.next_observation, expected.next_observation)
        assert set(np.ravel(drawn)) == set(range(21))
    np.testing.assert_allclose(batch.extras["weight"], 1.0)


# Learners.


class ByReward(counting.Fake):
    """A Fake whose priorities are rewards plus the update's number."""

    def experience(self, config: Any) -> Any:
        return counting.replay(config, draw=buffers.Prioritised(exponent=1.0))

    def update(self, state: Any, batch: Any, key: Any, step: Any, config: Any) -> tuple[Any, dict]:
        state, metrics = super().update(state, batch, key, step, config)
        return state, metrics | buffers.priorities((batch.reward + step)[None], batch)


CHANGES: Any = {
    "num_envs": 3,
    "num_steps": 2,
    "num_updates": 2,
    "warmup_steps": 30,
    "replay_size": 60,
}


@pytest.mark.slow
def test_a_checkpoint_holds_the_priorities() -> None:
    reference.assert_restored_exactly(ByReward(), CHANGES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.ON_HOST)
def test_drivers_agree(kind: str) -> None:
    """On the host an iteration begins with learning, whose priorities its first step writes."""
    inside, outside = (
        kinds.driven(each, [1, 2], 15, ByReward(), limit=5, **CHANGES)
        for each in ("compiled", kind)
    )
    counting.assert_equal(inside.learners.storage, outside.learners.storage, rtol=1e-5, atol=1e-6)
    assert bool(inside.learners.pending.fresh)
    assert not bool(outside.learners.pending.fresh)
    sums = np.asarray(inside.learners.storage.index.sums)
    assert len(np.unique(sums[0, 64:])) > 20
    outside.advance(1)
    assert int(inside.learners.updates) == int(outside.learners.updates)
    counting.assert_equal(inside.agent_state, outside.agent_state, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("num_updates", [1, 2])
def test_learners_write_what_their_updates_found(num_updates: int) -> None:
    """The tree against all priorities in plain Python."""
    changes = CHANGES | {"num_updates": num_updates, "num_steps": 1}
    driver = counting.driven([1, 2], 15, ByReward(), counting.Counter(5), **changes)
    for _ in range(10):
        before = jax.tree.map(np.array, driver.learners.replace(key_act=None, key_update=None))
        driver.advance(1)
        found = np.asarray(driver.learners.storage.index.sums)
        for learner in range(2):
            mass = before.storage.index.sums[learner, 64:124].copy()
            rows, values = (
                np.ravel(x[learner]) for x in (before.pending.row, before.pending.priority)
            )
            largest = max(before.storage.index.largest[learner], values.max())
            for row, value in zip(rows, values, strict=True):
                mass[row] = value + 1e-6
            mass[(int(before.storage.position) + np.arange(3)) % 60] = largest + 1e-6
            np.testing.assert_allclose(found[learner, 64:124], mass, rtol=1e-6)
            np.testing.assert_allclose(driver.learners.storage.index.largest[learner], largest)


@pytest.mark.slow
def test_other_learners_have_nothing_to_write() -> None:

    def kept_for_draws(driver: Any) -> set[str]:
        leaves = jax.tree_util.tree_leaves_with_path(driver.arrays())
        places = " ".join(jax.tree_util.keystr(path) for path, _ in leaves)
        return {name for name in ("pending", "index") if name in places}

    uniform, prioritised = (
        counting.driven([0], 12),
        counting.driven([0], 12, ByReward(), counting.Counter(5), **CHANGES),
    )
    assert uniform.learners.pending is None
    assert kept_for_draws(uniform) == set()
    assert kept_for_draws(prioritised) == {"pending", "index"}


def test_agents_return_priorities_where_they_are_asked_for() -> None:
    class Forgetful(counting.Fake):
        def experience(self, config: Any) -> Any:
            return counting.replay(config, draw=buffers.Prioritised(exponent=1.0))

    with pytest.raises(
        ValueError,
        match=r"^an agent's `update` returns metrics\['priorities'\] exactly where its exp",
    ):
        counting.driven([0], 1, Forgetful())


def test_is_refused_with_goals() -> None:
    message = (
        r"^--config\.prioritised draws by errors on rewards that --config\.hindsight would have "
        r"to replace: "
    )
    with pytest.raises(ValueError, match=message):
        buffers.replay_draw(discount=0.9, hindsight=0.5, prioritised=[0.0, 0.5])


def test_the_draw_follows_the_settings() -> None:
    assert buffers.replay_draw(discount=0.9) == buffers.Uniform()
    assert buffers.replay_draw(discount=0.9, n_step=3) == buffers.NStep(steps=3, discount=0.9)
    assert buffers.replay_draw(discount=0.9, hindsight=0.5) == buffers.Hindsight(
        share=0.5, discount=0.9
    )
    found = buffers.replay_draw(
        discount=0.9, n_step=3, prioritised=0.5, correction=0.6, correction_steps=9.0
    )
    expected = buffers.Prioritised(
        steps=3, discount=0.9, exponent=0.5, correction=0.6, correction_steps=9.0
    )
    assert found == expected


@pytest.mark.slow
def test_driver_inside_the_program_copies_no_ring() -> None:
    changes: Any = CHANGES | {"replay_size": 200_000}
    driver = counting.driven([0, 1], 0, ByReward(), counting.Counter(5), **changes)
    advance = driver.loop.advance.lower(
        driver.carry, jnp.asarray(1, jnp.int32), driver.hyper, None
    ).compile()
    assert_in_place(advance, (driver.learners.storage.data, driver.learners.storage.index))


def test_a_donated_tree_is_written_in_place() -> None:
    declared = declare(300_000, 3)
    ring = declared.create(transitions(np.zeros((LEARNERS, 3))))
    write = jax.jit(
        lambda ring, rows, pending: declared.store(ring, pending, rows)[0], donate_argnums=0
    )
    compiled = write.lower(ring, transitions(numbered(0, 3)), nothing()).compile()
    assert_in_place(compiled, (ring.data, ring.index))
    assert ring.index.sums.shape == (LEARNERS, sum_tree.size(300_000))


def test_the_largest_priority_is_renewed_by_the_rows() -> None:
    """Here after each 4 updates, of which an iteration makes 2."""
    priorities = Priorities.create(LEARNERS, 6)
    given = [[9.0, 2.0], [3.0, 5.0], [7.0, 4.0], [6.0, 1.0]]  # of rows 0 and 1
    expected = [9.0, 5.0, 7.0, 6.0]  # after 2, 4, 6 and 8 updates
    rows = jnp.broadcast_to(jnp.arange(2), (LEARNERS, 2, 2))
    update = jax.jit(lambda priorities, pending: priorities.updated(pending, each(ALPHA), 4))
    for number, (priority, largest) in enumerate(zip(given, expected, strict=True), 1):
        several = jnp.broadcast_to(jnp.asarray(priority), (LEARNERS, 2, 2))
        pending = Pending(rows, several, jnp.asarray(True), jnp.asarray(2 * number))
        priorities = update(priorities, pending)
        np.testing.assert_allclose(priorities.largest, largest, rtol=1e-5)
    stale = pending.replace(fresh=jnp.asarray(False))
    np.testing.assert_array_equal(update(priorities, stale).largest, priorities.largest)


def from_data(**changes: Any) -> OfflineDriver:
    """Two learners on 40 rows, of which each has its exponents."""
    learner = Learner(PrioritisedData(), EnvSpec("data", (2,), 1), LEARNERS)
    driver = OfflineDriver(learner, counting.dataset(), counting.settings(LEARNERS, **changes))
    driver.start(range(LEARNERS))
    return driver


class PrioritisedData(counting.Fake):
    """Each row's priority is its reward: its number."""

    def experience(self, config: Any) -> Any:
        draw = buffers.PrioritisedRows(exponent=ALPHA, correction=BETA)
        return buffers.Dataset.of(config, draw=draw)

    def update(self, state: Any, batch: Any, *arguments: Any) -> Any:
        state, metrics = super().update(state, batch, *arguments)
        return state, metrics | {"priorities": batch.reward}


@pytest.mark.slow_after(1)
def test_rows_of_a_data_set_are_drawn_by_their_priorities() -> None:
    driver = from_data(batch_size=64)
    number = np.arange(1, 41)
    sums = np.asarray(driver.learnt.storage.sums)
    np.testing.assert_array_equal(sums[:, 64 : 64 + 40], np.ones((LEARNERS, 40)))
    driver.advance(200)
    settle = jax.jit(driver.experience.settle)
    storage, _ = settle(driver.learnt.storage, driver.learnt.pending)
    mass = (number + 1e-6) ** ALPHA[:, None]
    sums = np.asarray(storage.sums)
    np.testing.assert_allclose(sums[:, 64 : 64 + 40], mass, rtol=1e-5)
    drawn = driver.experience.sample(storage, driver.data, keys())
    rows = np.asarray(drawn.extras["row"])
    for learner in range(LEARNERS):
        reference.assert_drawn(rows[learner], mass[learner])
        np.testing.assert_array_equal(drawn.reward[learner], number[rows[learner]])


@pytest.mark.slow
def test_priorities_of_a_data_set_are_restored() -> None:
    whole, first = from_data(), from_data()
    for driver in (whole, first):
        driver.advance(3)
        driver.report()
    second = from_data()
    second.restore(jax.tree.map(jnp.copy, first.arrays()), None)
    for driver in (whole, second):
        driver.advance(4)
    counting.assert_equal(second.arrays(), whole.arrays())


def test_priorities_need_data_on_the_device() -> None:
    supply = buffers.Supply("td7", data="some", data_on_host=True)
    declared = buffers.Dataset(batch_size=4, draw=buffers.PrioritisedRows(exponent=0.4))
    with pytest.raises(ValueError, match=r"^agent 'td7' draws rows by their priorities"):
        declared.require_supply(supply)
