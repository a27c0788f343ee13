"""Pictures that are stored once are the same pictures."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers, datasets
from rljax.agent import EnvSpec, Transition
from rljax.buffers.rows import rows_of
from rljax.buffers.storage import frames
from rljax.distributed.devices import Spread
from rljax.networks import normalise

ROWS, SHAPE, STACK = 40, (8, 32, 6), 3


def pictures(seed: int = 0, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pictures [N, H, W, c K] whose stacks overlap within episodes of ten, successors, and ends."""
    generator, length = np.random.default_rng(seed), 10
    before, after = [], []
    for _ in range(rows // length):
        seen = generator.integers(0, 256, (length + STACK, *SHAPE[:2], SHAPE[2] // STACK), np.uint8)
        stacks = [np.concatenate(list(seen[t : t + STACK]), axis=-1) for t in range(length + 1)]
        before, after = before + stacks[:-1], after + stacks[1:]
    return np.stack(before), np.stack(after), np.arange(rows) % length == length - 1


def indexed() -> tuple[frames.Frames, frames.Frames]:
    """The same as `pictures`, frame by frame."""
    before, after, _ = pictures()
    unique: dict[bytes, int] = {}

    def numbers(stacks: np.ndarray) -> np.ndarray:
        each = [np.split(stack, STACK, axis=-1) for stack in stacks]
        return np.array(
            [[unique.setdefault(x.tobytes(), len(unique)) for x in stack] for stack in each],
            np.int32,
        )

    index = numbers(before), numbers(after)
    made = np.stack([np.frombuffer(key, np.uint8).reshape(*SHAPE[:2], -1) for key in unique])
    return frames.Frames(pictures=made, index=index[0]), frames.Frames(
        pictures=made, index=index[1]
    )


def test_rows_are_those_of_the_array() -> None:
    before, after, _ = pictures()
    one, other = indexed()
    assert (one.shape, one.ndim, one.dtype, len(one)) == (before.shape, 4, np.uint8, ROWS)
    np.testing.assert_array_equal(np.asarray(one), before)
    np.testing.assert_array_equal(np.asarray(other), after)
    rows = np.random.default_rng(1).integers(ROWS, size=(2, 5))
    for found in (
        one[rows],
        jax.jit(lambda x, rows: x[rows])(one, rows),
        rows_of({"a": one}, rows)["a"],
    ):
        np.testing.assert_array_equal(found, before[rows])
    np.testing.assert_array_equal(one[3:7], before[3:7])
    assert one[0].shape == SHAPE


def test_successors_that_follow_are_not_stored_again() -> None:
    before, after, ends = pictures()
    after[4] = 0  # a successor that no row shows
    one, other = frames.stored_once({"a": before, "b": ends}, {"a": after, "b": ends})
    assert one["b"] is ends
    assert one["a"].pictures is other["a"].pictures
    assert len(one["a"].pictures) == ROWS + ends.sum() + 1
    np.testing.assert_array_equal(np.asarray(one["a"]), before)
    np.testing.assert_array_equal(np.asarray(other["a"]), after)
    assert frames.stored_once(one["a"], other["a"])[0] is one["a"]
    small = before[:, :2, :3]
    assert frames.stored_once(small, small)[0] is small, "small ones stay arrays"


def dataset(seed: int = 0) -> datasets.OfflineDataset:
    before, after, ends = pictures(seed)
    generator = np.random.default_rng(seed)
    reward, action = generator.normal(size=ROWS), generator.integers(3, size=ROWS)
    never, reward = np.zeros(ROWS, bool), reward.astype(np.float32)
    columns: Any = (before, action.astype(np.int32), reward, never, ends, after)
    transitions = Transition(*columns)
    return datasets.OfflineDataset(
        f"made {seed}", transitions, None, None, None, {"num_actions": 3}
    )


def test_subsets_and_joins() -> None:
    one, other = dataset(0), dataset(1)
    both = datasets.join([one, datasets.subset(other, np.arange(5, 25))], "both")
    for name, index in (("observation", 0), ("next_observation", 1)):
        expected = np.concatenate([pictures(0)[index], pictures(1)[index][5:25]])
        np.testing.assert_array_equal(np.asarray(getattr(both.transitions, name)), expected)
    assert len(both.transitions.observation.pictures) == 44 + 23
    assert both.nbytes < 1.2 * 67 * np.prod(SHAPE)
    best = datasets.top_fraction(one, 0.25)
    assert best.num == 10
    assert datasets.check(both) == [
        finding for finding in datasets.check(both) if finding.name in ("no_terminals", "open_end")
    ]
    with pytest.raises(
        ValueError,
        match=r"differ: they show pictures of shape \(8, 32, 6\).* and pictures of shape",
    ):
        datasets.join([one, dataclasses.replace(one, transitions=smaller(one.transitions))], "b")


def smaller(transitions: Transition) -> Transition:
    before, after = transitions.observation, transitions.next_observation
    observation, following = (np.asarray(x)[:, :, :12] for x in (before, after))
    return transitions.replace(observation=observation, next_observation=following)


def test_faults_of_pictures_are_found() -> None:
    made = dataset()
    t = made.transitions
    index = np.array(t.next_observation.index)
    index[3] = index[5]
    odd = t.replace(next_observation=t.next_observation.replace(index=index))
    broken = datasets.OfflineDataset("x", odd, None, None, None, {})
    found = {finding.name: finding for finding in datasets.check(broken)}
    assert found["successors_do_not_follow"].where == "rows 3"
    twice = datasets.join([made, made], "twice")
    assert {finding.name: finding.count for finding in datasets.check(twice)}[
        "duplicated_rows"
    ] == ROWS


def test_batches_on_the_host_are_those_on_the_device() -> None:
    experience = buffers.Dataset(batch_size=6, num_updates=2)
    data = experience.prepare(dataset().transitions)
    keys = jax.vmap(jax.random.key)(np.arange(2, dtype=np.uint32))
    compiled = jax.jit(lambda data: experience.sample(None, data, keys))(data)
    drawn = np.asarray(experience.draw.random(keys, ROWS, experience))
    before, after, _ = pictures()
    on_host = experience.draw.take(data, drawn)
    for batch in (compiled, on_host):
        np.testing.assert_array_equal(batch.observation, before[drawn])
        np.testing.assert_array_equal(batch.next_observation, after[drawn])


@pytest.mark.parametrize("learners", [1, 2])
def test_pictures_are_placed_once(learners: int) -> None:
    placed = Spread(learners).everywhere(dataset().transitions)
    assert placed.observation.pictures is placed.next_observation.pictures
    assert isinstance(placed.observation.pictures, jax.Array)


def test_the_estimate_of_batches_counts_both_pictures() -> None:
    experience = buffers.Dataset(batch_size=7, num_updates=2)
    one, other = indexed()
    data = dataset().transitions.replace(observation=one, next_observation=other, extras={})
    expected = 3 * 2 * 7 * (2 * np.prod(SHAPE) + 4 + 4 + 1 + 1)
    assert experience.batch_bytes(None, data, 3) == expected


def test_statistics_are_of_numbers_alone() -> None:
    numbers = np.random.default_rng(0).normal(3.0, 2.0, (ROWS, 4)).astype(np.float32)
    one, _ = indexed()
    seen = {"mask": np.ones((ROWS, 3), bool), "picture": one, "vector": numbers}
    found = jax.jit(normalise.of_data)(seen)
    assert (found["mask"], found["picture"]) == (None, None)
    np.testing.assert_allclose(found["vector"].mean, numbers.mean(axis=0), rtol=1e-5)
    batch = rows_of(seen, np.arange(5))
    scaled = normalise.standardise(found, batch)
    np.testing.assert_array_equal(scaled["picture"], batch["picture"])
    expected = (numbers[:5] - numbers.mean(axis=0)) / (numbers.std(axis=0) + 1e-3)
    np.testing.assert_allclose(scaled["vector"], expected, rtol=1e-4)
    spec = EnvSpec("x", SHAPE, 3, discrete=True, observation_dtype="uint8")
    assert normalise.of_observations(spec) is None
    assert jax.jit(normalise.of_data)(one) is None
    assert jnp.asarray(normalise.standardise(None, batch["picture"])).dtype == jnp.uint8
