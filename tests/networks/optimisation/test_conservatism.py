"""Conservative penalties by hand."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from rljax.networks.optimisation import conservatism
from rljax.networks.optimisation.conservatism import Candidates, WithConservatism
from tests.agents import reference

KEY = jax.random.key(0)
CONFIG = WithConservatism(lagrange=True, penalty_weight=4.0, target_gap=2.0)


@pytest.mark.parametrize(
    ("weighted", "expected"), [(False, 0.5 * (4.0 * 3.0 - 2.0)), (True, 0.5 * 4.0 * (3.0 - 2.0))]
)
def test_penalty_by_hand(weighted: bool, expected: float) -> None:
    config = dataclasses.replace(CONFIG, weighted_target=weighted)
    log_multiplier, gap = jnp.log(0.5), jnp.float32(3.0)
    penalty = conservatism.penalty(log_multiplier, gap, config)
    loss = conservatism.multiplier_loss(log_multiplier, gap, config)[0]
    np.testing.assert_allclose([penalty, loss], [expected, -expected], rtol=1e-6)
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
    step = conservatism.step_multiplier(multiplier, jnp.float32(9.0), config, 0.1)
    assert step == (multiplier, {})


def test_gap_by_hand() -> None:
    """Two critics, N = 1, one row."""
    samples = Candidates(
        action=jnp.zeros((2, 1, 1)),
        next_action=jnp.zeros((2, 1, 1)),
        uniform=jnp.zeros((1, 1, 1)),
        log_prob=jnp.log(jnp.array([[9.0], [2.0]])),  # the first is the policy's, no candidate
        next_log_prob=jnp.log(jnp.array([[9.0], [4.0]])),
    )
    q = jnp.log(jnp.array([[1.0, 1.0, 2.0, 4.0], [2.0, 1.0, 2.0, 4.0]]))[..., None]
    # Sums of exp(Q) / p: 1 / 0.5 + 2 / 2 + 4 / 4 = 4; without sampling's weights 1 + 1 + 2 + 4 = 8
    cases = [({}, [4.0, 2.0]), ({"importance_sampling": False}, [8.0, 9.0 / 2.0])]
    cases += [({"importance_sampling": False, "gap_max": 2.0}, [np.exp(2.0), 4.5])]
    for changes, expected in cases:
        gap = conservatism.gap(q, samples, KEY, dataclasses.replace(CONFIG, **changes))
        np.testing.assert_allclose(gap, np.log(expected), rtol=1e-5)


def test_best_of_several_actions_is_each_critics_or_the_smallest_ones() -> None:
    q = jnp.array([[[1.0], [4.0]], [[3.0], [2.0]]])  # two critics, two actions
    samples = Candidates(*[jnp.zeros((3, 1, 1)) for _ in range(5)])

    def value(backup: conservatism.Backup) -> jax.Array:
        critic = lambda _, action: q[:, : len(action)]  # noqa: E731
        config = WithConservatism(backup=backup)
        return conservatism.next_values(critic, reference.transitions(size=1), samples, KEY, config)

    assert [float(value(x)[0]) for x in ("max", "max_of_min", "deterministic")] == [3.0, 2.0, 1.0]


def wsrl_mean_gap(q: np.ndarray, samples: Candidates, drawn: tuple[int, int]) -> float:
    """WSRL's `cql_q_diff.mean()` for the critics that it has drawn; values [C, 1 + 3 N, B]."""
    number, size, actions = samples.uniform.shape
    q_samples, q_pred = q[list(drawn), 1:], q[list(drawn), 0]
    random_density = np.full((number, size), np.log(0.5**actions))
    importance = np.concatenate([random_density, samples.log_prob[1:], samples.next_log_prob[1:]])
    return float((logsumexp(q_samples - importance, axis=1) - q_pred).mean())


def test_with_a_number_of_critics_the_gap_is_the_mean_of_random_ones() -> None:
    """As `jax.random.randint` of WSRL draws them."""
    generator = np.random.default_rng(0)
    number, size, critics = 2, 3, 4

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(generator.normal(size=shape), jnp.float32)

    actions = (normal(1 + number, size, 2), normal(1 + number, size, 2), normal(number, size, 2))
    samples = Candidates(*actions, normal(1 + number, size), normal(1 + number, size))
    q = normal(critics, 1 + 3 * number, size)
    config = WithConservatism(min_critics=2)
    keys = jax.random.split(KEY, 600)
    gaps = jax.jit(jax.vmap(lambda key: conservatism.gap(q, samples, key, config)))(keys)
    pairs = list(itertools.combinations_with_replacement(range(critics), 2))
    expected = np.array([wsrl_mean_gap(np.asarray(q, np.float64), samples, x) for x in pairs])
    means = np.asarray(gaps).mean(axis=1)
    nearest = np.abs(means[:, None] - expected).argmin(axis=1)
    np.testing.assert_allclose(means, expected[nearest], atol=1e-5)
    same = np.array([left == right for left, right in pairs])[nearest].mean()
    assert abs(same - 1 / critics) < 4 * np.sqrt(3 / 16 / 600), "twice the same: one time in four"
    assert (np.count_nonzero(np.asarray(gaps), axis=1) <= 2).all(), "the others have no penalty"


def test_with_a_number_of_critics_the_target_is_the_smallest_of_random_ones() -> None:
    """WSRL takes the smallest first, and then the best of N actions."""
    q = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 5)), jnp.float32)
    samples = Candidates(*[jnp.zeros((5, 5, 1)) for _ in range(5)])
    batch = reference.transitions(size=5)
    config = WithConservatism(backup="max_of_min", min_critics=2)

    @jax.jit
    @jax.vmap
    def values(key: jax.Array) -> jax.Array:
        return conservatism.next_values(lambda *_: q, batch, samples, key, config)

    rows = np.asarray(values(jax.random.split(KEY, 300)))
    pairs = itertools.combinations_with_replacement(range(3), 2)
    expected = [np.asarray(q)[list(pair)].min(axis=0).max(axis=0) for pair in pairs]
    counts = [sum(np.array_equal(row, one) for row in rows) for one in expected]
    assert sum(counts) == 300
    assert min(counts) > 15, "each pair is drawn, and each critic alone"
