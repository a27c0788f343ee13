"""Conservative penalties by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.networks.optimisation import conservatism
from rljax.networks.optimisation.conservatism import Candidates, WithConservatism
from tests.agents import reference

CONFIG = WithConservatism(lagrange=True, penalty_weight=4.0, target_gap=2.0)


@pytest.mark.parametrize(
    ("weighted", "expected"), [(False, 0.5 * (4.0 * 3.0 - 2.0)), (True, 0.5 * 4.0 * (3.0 - 2.0))]
)
def test_penalty_by_hand(weighted: bool, expected: float) -> None:
    config = dataclasses.replace(CONFIG, weighted_target=weighted)
    log_multiplier, gap = jnp.log(0.5), jnp.float32(3.0)
    penalty = conservatism.penalty(log_multiplier, gap, config)
    np.testing.assert_allclose(penalty, expected, rtol=1e-6)
    loss = conservatism.multiplier_loss(log_multiplier, gap, config)[0]
    np.testing.assert_allclose(loss, -expected, rtol=1e-6)
    fixed = dataclasses.replace(config, lagrange=False)
    np.testing.assert_allclose(conservatism.penalty(log_multiplier, gap, fixed), 12.0)


def test_multiplier_rises_while_the_gap_is_above_its_target() -> None:
    multiplier = conservatism.create_multiplier(CONFIG, 0.1)
    for gap, rises in ((0.4, False), (0.6, True)):  # 0.5 is tau / w
        moved, metrics = conservatism.step_multiplier(multiplier, jnp.float32(gap), CONFIG, 0.1)
        assert bool(moved.parameters > multiplier.parameters) == rises
        np.testing.assert_allclose(metrics["multiplier/value"], 1.0)


def test_multiplier_rests_where_it_is_not_learnt() -> None:
    config = dataclasses.replace(CONFIG, lagrange=False)
    multiplier = conservatism.create_multiplier(config, 0.1)
    assert conservatism.step_multiplier(multiplier, jnp.float32(9.0), config, 0.1) == (
        multiplier,
        {},
    )


def test_gap_by_hand() -> None:
    """Two critics, N = 1, one row: values of the data's action and of three candidates."""
    samples = Candidates(
        action=jnp.zeros((2, 1, 1)),
        next_action=jnp.zeros((2, 1, 1)),
        uniform=jnp.zeros((1, 1, 1)),
        log_prob=jnp.log(jnp.array([[9.0], [2.0]])),  # the first is the policy's, no candidate
        next_log_prob=jnp.log(jnp.array([[9.0], [4.0]])),
    )
    q = jnp.log(jnp.array([[1.0, 1.0, 2.0, 4.0], [2.0, 1.0, 2.0, 4.0]]))[..., None]
    # Sums of exp(Q) / p: 1 / 0.5 + 2 / 2 + 4 / 4 = 4; without sampling's weights 1 + 1 + 2 + 4 = 8
    gap = conservatism.gap(q, samples, CONFIG)
    np.testing.assert_allclose(gap, np.log([4.0, 2.0]), rtol=1e-5)
    plain = dataclasses.replace(CONFIG, importance_sampling=False)
    gap = conservatism.gap(q, samples, plain)
    np.testing.assert_allclose(gap, np.log([8.0, 9.0 / 2.0]), rtol=1e-5)
    clipped = dataclasses.replace(plain, gap_max=2.0)
    gap = conservatism.gap(q, samples, clipped)
    np.testing.assert_allclose(gap, [2.0, np.log(4.5)], rtol=1e-5)


def test_best_of_several_actions_is_each_critics_or_the_smallest_ones() -> None:
    q = jnp.array([[[1.0], [4.0]], [[3.0], [2.0]]])  # two critics, two actions
    samples = Candidates(*[jnp.zeros((3, 1, 1)) for _ in range(5)])

    def value(backup: conservatism.Backup) -> jax.Array:
        def critic(observation: jax.Array, action: jax.Array) -> jax.Array:
            del observation
            return q[:, : len(action)]

        return conservatism.next_values(critic, reference.transitions(size=1), samples, backup)

    assert [float(value(x)[0]) for x in ("max", "max_of_min", "deterministic")] == [3.0, 2.0, 1.0]
