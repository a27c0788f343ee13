"""Declarations: pytrees whose floats are leaves, and numbers that can never work."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Step
from tests.helpers.replay_buffers import history as episodes
from tests.helpers.replay_buffers import keys, of_episodes

REPLAY: Any = {"replay_size": 10, "batch_size": 4}


def n_step(discount: Any, steps: int = 3) -> buffers.Replay:
    return buffers.Replay(**REPLAY, draw=buffers.NStep(steps=steps, discount=discount))


def test_floats_are_leaves_and_the_rest_is_static() -> None:
    assert jax.tree.leaves(buffers.Replay(**REPLAY)) == []
    assert jax.tree.leaves(n_step(0.9)) == [0.9]
    hindsight = buffers.Hindsight(share=0.5, discount=0.8)
    assert sorted(jax.tree.leaves(buffers.Replay(**REPLAY, draw=hindsight))) == [0.5, 0.8]
    offline = buffers.Dataset(
        batch_size=4,
        learns_until=100.0,
        columns=(buffers.ReturnToGo(discount=0.7),),
        online=n_step(0.9),
    )
    assert sorted(jax.tree.leaves(offline)) == [0.7, 0.9, 100.0]
    assert jax.tree.leaves(buffers.Mixed(**REPLAY, offline_share=0.25)) == [], (
        "the share shapes the program"
    )
    doubled = jax.tree.map(lambda x: 2 * x, n_step(0.25))
    assert doubled == n_step(0.5)
    assert jax.tree.structure(n_step(0.1)) == jax.tree.structure(n_step(0.2))
    assert jax.tree.structure(n_step(0.1)) != jax.tree.structure(n_step(0.1, steps=4))


def test_declarations_are_frozen_and_by_keyword() -> None:
    declared: Any = buffers.Replay(**REPLAY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        declared.batch_size = 5
    with pytest.raises(TypeError):
        buffers.Replay(10, 4)  # type: ignore[misc]


@pytest.mark.slow
def test_other_floats_do_not_recompile_and_other_sizes_do() -> None:
    buffer, traces = of_episodes(episodes(1, 9), 10, timed=False), 0

    @jax.jit
    def program(declared: buffers.Replay, keys: Any) -> Any:
        nonlocal traces
        traces += 1
        return declared.sample(buffer, None, keys)

    one = program(n_step(jnp.array([0.9, 0.5])), keys())
    other = program(n_step(jnp.array([0.7, 0.5])), keys())
    assert traces == 1
    np.testing.assert_array_equal(one.observation, other.observation)
    changed = (np.asarray(one.reward) != np.asarray(other.reward)).any(axis=(1, 2))
    np.testing.assert_array_equal(changed, [True, False])
    program(n_step(jnp.array([0.7, 0.5]), steps=2), keys())
    assert traces == 2


STREAM = r", it must be 1: a stream learns from one transition of one environment at a time\."
LEAST = r", it must be at least 1\.$"


KINDS: dict[Any, dict[str, Any]] = {
    buffers.Replay: REPLAY,
    buffers.Mixed: REPLAY,
    buffers.Rollout: {"batch_size": 1},
    buffers.Dataset: {"batch_size": 4},
    buffers.Stream: {},
}
SIZES = ["num_envs", "num_steps", "num_updates", "batch_size"]


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_below_one_are_refused_with_the_flags_name(kind: Any) -> None:
    kind(**KINDS[kind]).check()
    sizes = [name for name in SIZES if hasattr(kind(**KINDS[kind]), name)]
    for name, value in itertools.product(sizes, (0, -1)):
        message = rf"^--config\.{name.replace('_', '-')} is {value}" + (
            STREAM if kind is buffers.Stream else LEAST
        )
        with pytest.raises(ValueError, match=message):
            kind(**KINDS[kind] | {name: value}).check()


@pytest.mark.parametrize("name", ["num_envs", "num_steps", "num_updates"])
def test_a_stream_is_one_transition_at_a_time(name: str) -> None:
    message = (
        rf"^--config\.{name.replace('_', '-')} is 4"
        + STREAM
        + " For N streams side by side: --seeds N$"
    )
    with pytest.raises(ValueError, match=message):
        buffers.Stream(**{name: 4}).check()


def test_a_stream_keeps_nothing() -> None:
    stream = buffers.Stream()
    assert (stream.kind, stream.stages(10, 0)) == ("stream", (0, 10))
    assert stream.create(None) is None  # type: ignore[arg-type]
    assert stream.ready(0)


@pytest.mark.parametrize(
    "draw",
    [buffers.NStep(steps=3, discount=0.9), buffers.Hindsight(share=0.5, discount=0.9)],
    ids=lambda x: x.flag,
)
def test_columns_that_a_draw_would_lose_are_refused(draw: Any) -> None:
    buffers.Replay(**REPLAY, draw=draw).check()
    buffers.Replay(**REPLAY, columns=(buffers.Source(),)).check()
    message = rf"^{type(draw).__name__} draws rows without columns, and the agent asks for Source\."
    with pytest.raises(ValueError, match=message):
        buffers.Replay(**REPLAY, draw=draw, columns=(buffers.Source(),)).check()


def test_only_hindsight_needs_the_time_of_a_row() -> None:
    time: Any = jnp.arange(3)
    step = Step(*[time] * 7)
    for declared in (buffers.Replay(**REPLAY), n_step(0.9), buffers.Rollout(), buffers.Stream()):
        assert declared.transition(time, time, {}, step).extras == {}
    declared = buffers.Replay(**REPLAY, draw=buffers.Hindsight(share=0.5, discount=0.9))
    assert declared.transition(time, time, {}, step).extras == {"time": time}
