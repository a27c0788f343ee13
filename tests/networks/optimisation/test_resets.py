"""Resets: when, to what, and in runs that are resumed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax.agent import EnvSpec
from rljax.networks.optimisation import resets
from rljax.runs import run
from tests.helpers import small_runs

SPEC = EnvSpec("test/Example-v0", (3,), 2)


class State(struct.PyTreeNode):
    """A number that is learnt."""

    number: Any
    spec: EnvSpec = struct.field(pytree_node=False, default=SPEC)


@pytest.mark.parametrize(
    ("every", "at", "expected"),
    [(None, (), []), (4, (), [4, 8, 12]), (None, (1, 7), [1, 7]), (5, (7, 10), [5, 7, 10])],
)
def test_resets_come_after_the_updates_that_the_settings_name(
    every: int | None, at: tuple[int, ...], expected: list[int]
) -> None:
    settings = resets.WithResets(reset_every=every, reset_at=at)
    due = [step + 1 for step in range(12) if resets.is_due(jnp.asarray(step), settings)]
    assert due == expected


def test_a_state_is_renewed_with_a_key_of_the_update() -> None:
    """Each learner of a population has its own; the number of updates is shared."""
    settings = resets.WithResets(reset_at=(2,))
    init = lambda key, spec, config: State(jax.random.normal(key, spec.observation_shape), spec)  # noqa: E731
    keys = jax.random.split(jax.random.key(0), 3)
    before = State(jnp.zeros((3, *SPEC.observation_shape)))
    renew = jax.jit(
        jax.vmap(
            lambda state, key, step: resets.renewed(state, init, key, step, settings),
            in_axes=(0, 0, None),
        )
    )
    np.testing.assert_array_equal(renew(before, keys, 0).number, 0.0)
    fresh = [
        jax.random.normal(jax.random.fold_in(key, resets.RESET), SPEC.observation_shape)
        for key in keys
    ]
    np.testing.assert_allclose(renew(before, keys, 1).number, fresh, rtol=1e-6)
    never: Any = SimpleNamespace(reset_every=None, reset_at=())
    assert resets.renewed(before, init, keys[0], jnp.asarray(1), never) is before


@pytest.mark.slow
def test_a_resumed_run_has_the_same_resets(tmp_path: Path) -> None:
    """Before the interruption, and after it."""
    config = {"reset_every": 60, "reset_at": (20,)}
    small_runs.train("sac", "rljax/Pendulum", 200, tmp_path / "whole", config, seeds=2)
    small_runs.train("sac", "rljax/Pendulum", 100, tmp_path / "half", config, seeds=2)
    run.resume(tmp_path / "half", 200)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    small_runs.train("sac", "rljax/Pendulum", 200, tmp_path / "without", seeds=2)
    assert small_runs.different_arrays(tmp_path / "whole", tmp_path / "without")
