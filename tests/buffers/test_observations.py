"""Observations that are dictionaries: buffers keep their dtypes and rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import MASK, EnvSpec, Part, Step, Transition
from rljax.buffers.experience import Experience
from rljax.learning.learner import TRANSITION, Learner
from rljax.learning.tally import empty_tally
from tests.helpers.replay_buffers import LEARNERS, begin, keys, sample

SPEC = EnvSpec(
    "Dictionary",
    (),
    3,
    True,
    parts=(Part(MASK, (3,), "bool"), Part("picture", (2, 2, 1), "uint8"), Part("pole", (2,))),
)
DTYPES = {MASK: np.bool_, "picture": np.uint8, "pole": np.float32}


def observations(numbers: Any) -> dict[str, np.ndarray]:
    """Dictionaries [...] that tell their numbers in every part."""
    number = np.asarray(numbers)
    return {
        MASK: (number[..., None] >> np.arange(3)) % 2 == 1,
        "picture": np.broadcast_to(
            (number % 251)[..., None, None, None], (*number.shape, 2, 2, 1)
        ).astype(np.uint8),
        "pole": np.stack([number, -number], axis=-1).astype(np.float32),
    }


def transitions(numbers: Any) -> Transition:
    """With an end at every fifth number."""
    number = np.asarray(numbers)
    return Transition(
        observation=observations(number),
        action=number.astype(np.int32),  # pyright: ignore[reportArgumentType]
        reward=number.astype(np.float32),  # pyright: ignore[reportArgumentType]
        terminated=number % 5 == 4,
        truncated=number % 7 == 6,
        next_observation=observations(number + 1),
    )


def filled(declared: Experience, steps: int) -> Any:
    """A buffer of one environment for each learner, numbered from 0 and from 1000."""
    starts = np.array([[0], [1000]])
    buffer, add = begin(declared, transitions(starts)), jax.jit(lambda buffer, new: buffer.add(new))
    for step in range(steps):
        buffer = add(buffer, transitions(starts + step))
    return buffer


def assert_rows(found: Any, numbers: Any) -> None:
    """Observations are those of the numbers, in their dtypes."""
    assert {name: x.dtype for name, x in found.items()} == DTYPES
    jax.tree.map(
        np.testing.assert_array_equal, found, observations(np.asarray(numbers).astype(int))
    )


def replay(**changes: Any) -> buffers.Replay:
    return buffers.Replay(**{"replay_size": 16, "batch_size": 64} | changes)


def test_uniform_rows_of_dictionaries() -> None:
    batch = sample(replay(), filled(replay(), 25), None, keys())
    assert_rows(batch.observation, batch.action)
    assert_rows(batch.next_observation, batch.action + 1)


def test_n_steps_of_dictionaries() -> None:
    discounts: Any = jnp.ones(LEARNERS)
    declared = replay(draw=buffers.NStep(steps=3, discount=discounts))
    batch = sample(declared, filled(declared, 25), None, keys())
    assert_rows(batch.observation, batch.action)
    last = np.asarray(batch.next_observation["pole"])[..., 0]
    assert set((last - np.asarray(batch.action)).ravel().tolist()) == {1, 2, 3}
    assert_rows(batch.next_observation, last)


@pytest.mark.parametrize("share", [0.5, "pooled"])
def test_dictionaries_of_two_sources(share: Any) -> None:
    declared = buffers.Mixed.of(replay(num_updates=3), share)
    data = jax.tree.map(jnp.asarray, transitions(np.arange(2000, 2020)))
    batch = sample(declared, filled(declared, 25), data, keys())
    assert 0 < (np.asarray(batch.action) >= 2000).mean() < 1
    assert_rows(batch.observation, batch.action)
    assert_rows(batch.next_observation, batch.action + 1)


def test_a_rollout_of_dictionaries() -> None:
    declared = buffers.Rollout(num_steps=4)
    batch = sample(declared, filled(declared, 4), None, keys())
    assert_rows(batch.observation, batch.action)


class Masked:
    """An agent that counts its updates and takes the first allowed action."""

    Config = dict

    def __init__(self, experience: Experience) -> None:
        self.experience = lambda config: experience

    def init(self, *_: Any) -> Any:
        return jnp.zeros(())

    def act(self, state: Any, observation: Any, *_: Any) -> tuple[Any, dict]:
        return observation[MASK].argmax(axis=-1).astype(jnp.int32), {}

    def update(self, state: Any, batch: Transition, *_: Any) -> tuple[Any, dict]:
        return state + 1, {"picture": batch.observation["picture"].astype(jnp.float32).mean()}


def learners(declared: Experience, number: int = LEARNERS) -> tuple[Learner, Any, Any]:
    agent: Any = Masked(declared)
    learner = Learner(agent, SPEC, number)
    hyper = learner.hyperparameters({})
    return learner, hyper, learner.init(keys()[:number], hyper)


@pytest.mark.slow
def test_the_warm_up_takes_only_allowed_actions() -> None:
    learner, hyper, state = learners(replay(replay_size=1_000, num_envs=500, warmup_steps=10**6))
    mask = jnp.asarray(np.random.default_rng(0).integers(1, 8, (LEARNERS, 500)))
    observation = observations(mask)
    action, _ = jax.jit(learner.act)(state, observation, hyper)
    assert (action.shape, action.dtype) == ((LEARNERS, 500), jnp.int32)
    assert np.take_along_axis(observation[MASK], np.asarray(action)[..., None], axis=-1).all()
    free = np.asarray(action)[observation[MASK].all(axis=-1)]
    assert np.bincount(free, minlength=3).min() > 0.2 * len(free)


def test_a_replay_has_the_specs_dtypes() -> None:
    _, _, state = learners(replay())
    for tree in (state.storage.data.observation, state.storage.data.next_observation):
        assert {name: x.dtype for name, x in tree.items()} == DTYPES


@pytest.mark.slow
@pytest.mark.parametrize(("value", "learnt"), [(0.5, 1), (np.nan, 0)])
def test_a_stream_of_dictionaries_learns_from_finite_numbers_alone(
    value: float, learnt: int
) -> None:
    learner, hyper, state = learners(buffers.Stream(), 1)
    shown = observations(np.array([[3]]))
    following = shown | {"pole": np.full((1, 1, 2), value, np.float32)}
    one = jnp.ones((1, 1))
    step: Any = Step(following, following, one, one < 0, one < 0, one, one.astype(jnp.int32))  # pyright: ignore
    transition = hyper.experience.transition(shown, one.astype(jnp.int32), {}, step)
    state = learner.learn_from_step(state, transition, hyper)
    assert float(state.agent.state[0]) == learnt
    assert (int(state.tally.first_bad[TRANSITION][0]) < 0) == bool(learnt)
    assert set(empty_tally(("picture", TRANSITION), 1).total) == set(state.tally.total)
