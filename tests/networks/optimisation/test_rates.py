"""Numbers that change linearly during a run, by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rljax.networks.optimisation import rates


def test_a_rate_falls_to_nothing_and_stays_there() -> None:
    """Updates of 10 steps each, in a decay of 40."""
    decayed = [float(rates.decayed(2.0, updates, 10, 40.0)) for updates in (0, 1, 3, 4, 9)]
    np.testing.assert_allclose(decayed, [2.0, 1.5, 0.5, 0.0, 0.0])
    assert rates.decayed(2.0, jnp.int32(2**15 + 1), 2**16, 1e6) == 0.0, "beyond 2^31 steps"


def test_a_rate_without_decay_stays_as_it_is() -> None:
    assert rates.decayed(2.0, 7, 10, None) == 2.0


def test_a_number_goes_from_one_to_another() -> None:
    numbers = [float(rates.linear(0.8, 0.2, steps, 100.0)) for steps in (0, 50, 100, 1_000)]
    np.testing.assert_allclose(numbers, [0.8, 0.5, 0.2, 0.2], rtol=1e-6)
