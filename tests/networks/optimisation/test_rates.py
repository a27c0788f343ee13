"""Numbers that change linearly during a run, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax.networks.optimisation import rates


def settings(**changes: Any) -> SimpleNamespace:
    """Rollouts of 10 steps, in a decay of 40."""
    usual = {"learning_rate": 2.0, "decay_steps": 40.0, "num_envs": 2, "num_steps": 5}
    return SimpleNamespace(**usual | changes)


def test_a_rate_falls_to_nothing_and_stays_there() -> None:
    decayed = [float(rates.decayed(settings(), rollouts)) for rollouts in (0, 1, 3, 4, 9)]
    np.testing.assert_allclose(decayed, [2.0, 1.5, 0.5, 0.0, 0.0])
    large = settings(num_envs=2**8, num_steps=2**8, decay_steps=1e6)
    assert rates.decayed(large, jnp.int32(2**15 + 1)) == 0.0, "beyond 2^31 steps"


def test_a_rate_without_decay_stays_as_it_is() -> None:
    assert rates.decayed(settings(decay_steps=None), 7) == 2.0


def test_a_number_goes_from_one_to_another() -> None:
    numbers = [float(rates.linear(0.8, 0.2, steps, 100.0)) for steps in (0, 50, 100, 1_000)]
    np.testing.assert_allclose(numbers, [0.8, 0.5, 0.2, 0.2], rtol=1e-6)
