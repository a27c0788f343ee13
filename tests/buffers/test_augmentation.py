"""Random shifts of pictures against padding and cropping by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from rljax.buffers.storage.ring import ReplayBuffer
from tests.helpers.replay_buffers import LEARNERS, begin, keys, sample

SIZE, MOST = 6, 2


def picture(number: Any) -> np.ndarray:
    """Pixels that all differ."""
    pixels = np.arange(SIZE * SIZE * 2, dtype=np.uint8).reshape(SIZE, SIZE, 2)
    return pixels + np.asarray(number, np.uint8)[..., None, None, None]


def transitions(numbers: Any) -> Transition:
    number: Any = np.asarray(numbers)
    vector = np.stack([number, number], axis=-1).astype(np.float32)
    flags = np.zeros(number.shape, bool)
    following = {"picture": picture(number + 100), "vector": vector}
    rest: Any = (number.astype(np.int32), number.astype(np.float32), flags, flags)
    return Transition({"picture": picture(number), "vector": vector}, *rest, following)


def ring(declared: buffers.Replay, steps: int = 5) -> Any:
    start = np.arange(LEARNERS)[:, None] * 50
    buffer, add = begin(declared, transitions(start)), jax.jit(ReplayBuffer.add)
    for step in range(steps):
        buffer = add(buffer, transitions(start + step))
    return buffer


def shift_of(found: np.ndarray, original: np.ndarray) -> tuple[int, int]:
    """The one shift of a padded picture that was found."""
    padded = np.pad(original, ((MOST, MOST), (MOST, MOST), (0, 0)), mode="edge")
    (shift,) = [
        (down, right)
        for down in range(2 * MOST + 1)
        for right in range(2 * MOST + 1)
        if (padded[down : down + SIZE, right : right + SIZE] == found).all()
    ]
    return shift


@pytest.mark.slow
def test_shifts_are_crops_of_padded_pictures_each_equally_often() -> None:
    declared = buffers.Replay(replay_size=8, batch_size=400, num_updates=2, shift=MOST)
    plain = buffers.Replay(replay_size=8, batch_size=400, num_updates=2)
    buffer = ring(declared)
    batch, as_stored = (sample(x, buffer, None, keys()) for x in (declared, plain))
    np.testing.assert_array_equal(batch.action, as_stored.action, "the same rows")
    assert batch.observation["picture"].dtype == jnp.uint8
    for moved, stored in (
        (batch.observation, as_stored.observation),
        (batch.next_observation, as_stored.next_observation),
    ):
        np.testing.assert_array_equal(moved["vector"], stored["vector"])
    number = np.asarray(batch.action).ravel()
    shifts = []
    for name, of in (("observation", number), ("next_observation", number + 100)):
        found = np.asarray(getattr(batch, name)["picture"]).reshape(-1, SIZE, SIZE, 2)
        shifts.append([shift_of(x, picture(n)) for x, n in zip(found, of, strict=True)])
    now, after = np.array(shifts) @ (2 * MOST + 1, 1)  # numbers from 0 to 24
    for counts, cells in (
        (np.bincount(now, minlength=25), 25),
        (np.bincount(after, minlength=25), 25),
    ):
        expected = len(number) / cells
        assert ((counts - expected) ** 2 / expected).sum() < 24 + 5 * np.sqrt(48)
    assert 0.01 < (now == after).mean() < 0.08, "of their own"
    assert 0.01 < (now.reshape(LEARNERS, -1)[0] == now.reshape(LEARNERS, -1)[1]).mean() < 0.08


@pytest.mark.slow
def test_pictures_of_a_data_set_move_too() -> None:
    plain = buffers.Mixed(replay_size=8, batch_size=60, offline_share=0.5)
    moving = buffers.Mixed(replay_size=8, batch_size=60, offline_share=0.5, shift=MOST)
    data = jax.tree.map(jnp.asarray, transitions(np.arange(7)))
    stored, moved = (
        sample(x, ring(plain), data, keys()).observation["picture"] for x in (plain, moving)
    )
    differs = np.asarray(stored != moved).any(axis=(-1, -2, -3))
    assert (differs.reshape(LEARNERS, 2, 30).mean(axis=-1) > 0.8).all()


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^--config\.shift is -1, it must be at least 0\.$"):
        buffers.Replay(replay_size=8, batch_size=4, shift=-1).check()
    example = transitions(np.zeros((LEARNERS, 1), int))
    vectors = example.replace(
        observation=example.observation["vector"], next_observation=example.observation["vector"]
    )
    with pytest.raises(
        ValueError, match=r"^--config\.shift is 4, and no part of the observations is a picture"
    ):
        buffers.Replay(replay_size=8, batch_size=4, shift=4).create(vectors)
