"""Duals and weighted fits by numbers that are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax.networks import Trained, distributions
from rljax.networks.optimisation import duals
from rljax.networks.optimisation.duals import Duals, Samples


def known() -> Duals:
    """eta = 2 and 0.5, alpha = 3 by the mean and 1,000 by the std, of two dimensions."""
    return Duals.create((2.0, 0.5), (3.0, 1_000.0), 2)


def test_duals_begin_at_their_values_and_stay_above_a_limit() -> None:
    dual = duals.positive(known())
    np.testing.assert_allclose(dual.temperatures, [2.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(dual.multipliers, [[3.0, 3.0], [1e3, 1e3]], rtol=1e-6)
    low = jax.tree.map(lambda x: x - 2_000.0, known())
    trained: Trained = duals.bounded(Trained(low, None))  # type: ignore[arg-type]
    assert all(np.all(x == -18.0) for x in jax.tree.leaves(trained.parameters))


def test_weights_are_the_sum_of_softmaxes() -> None:
    values = jnp.asarray([[[0.0], [2.0 * np.log(3.0)]], [[0.0], [0.0]]])  # [2, 2, 1]
    np.testing.assert_allclose(duals.weights(known(), values)[:, 0], [0.75, 1.25], rtol=1e-5)


def test_temperature_is_best_where_the_weights_have_the_bounds_divergence() -> None:
    """The slope of L in eta is epsilon - KL(w || 1 / N)."""
    values = jax.random.normal(jax.random.key(0), (1, 8, 3))
    dual = Duals.create((0.7,), (1.0, 1.0), 1)
    weight = np.asarray(duals.weights(dual, values))
    divergence = (weight * np.log(8.0 * weight)).sum(axis=0).mean()

    def loss(dual: Duals) -> jax.Array:
        return duals.loss(dual, values, jnp.zeros((2, 1)), jnp.asarray([0.1]), jnp.zeros(2))[0]

    slope = jax.grad(loss)(dual).temperatures / jax.nn.sigmoid(dual.temperatures)
    np.testing.assert_allclose(slope, [0.1 - divergence], rtol=1e-4)


def test_multipliers_rise_where_a_divergence_passes_its_bound() -> None:
    kl = jnp.asarray([[0.3, 0.0], [0.0, 0.0]])

    def loss(dual: Duals) -> jax.Array:
        bounds = (jnp.asarray([0.1, 0.1]), jnp.asarray([0.2, 0.2]))
        return duals.loss(dual, jnp.zeros((2, 4, 1)), kl, *bounds)[0]

    signs = np.sign(jax.grad(loss)(known()).multipliers)
    np.testing.assert_array_equal(signs, [[-1.0, 1.0], [1.0, 1.0]])


def test_divergences_of_mean_and_std_are_those_of_gaussians() -> None:
    generator = np.random.default_rng(0)
    mean, other = generator.normal(size=(2, 5, 3))
    std, other_std = np.exp(generator.normal(size=(2, 5, 3)))
    kl = distributions.decoupled_kl(mean, std, other, other_std)
    old = distributions.gaussian(mean, std)
    for i, new in enumerate([(other, std), (mean, other_std)]):
        expected = old.kl_divergence(distributions.gaussian(*new))
        np.testing.assert_allclose(kl[i].sum(axis=-1), expected, rtol=1e-4)


def test_the_best_fit_is_the_weighted_mean_and_spread() -> None:
    """With the other part fixed, the slope is 0 at the weighted moments."""
    generator = np.random.default_rng(1)
    action = jnp.asarray(generator.normal(size=(6, 1, 2)), jnp.float32)
    weight = jax.nn.softmax(jnp.asarray(generator.normal(size=(6, 1)), jnp.float32), axis=0)
    old = (jnp.zeros((1, 2)), jnp.ones((1, 2)))
    samples = Samples(None, old, action, weight[None], weight)
    mean = (weight[..., None] * action).sum(axis=0)
    std = jnp.sqrt((weight[..., None] * action**2).sum(axis=0))  # around the old mean, 0
    for slope in jax.grad(samples.fit, argnums=(0, 1))(mean, std):
        np.testing.assert_allclose(slope, 0.0, atol=1e-5)


def test_a_std_begins_at_its_setting() -> None:
    np.testing.assert_allclose(distributions.positive_std(jnp.zeros(2), 0.7), 0.7, rtol=1e-5)
    assert np.all(distributions.positive_std(jnp.full(2, -1e3), 0.7) > 0.0)
