"""The trust-region step against linear algebra in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.networks.optimisation import trust_region

GENERATOR = np.random.default_rng(0)
ROOT = GENERATOR.normal(size=(4, 4))
HESSIAN = ROOT @ ROOT.T + np.eye(4)
POINT, VECTOR = GENERATOR.normal(size=(2, 4)).astype(np.float32)


def kl(point: jnp.ndarray) -> jnp.ndarray:
    """A divergence whose Hessian is known: (x - POINT).H (x - POINT) / 2."""
    away = point - POINT
    return 0.5 * away @ jnp.asarray(HESSIAN, jnp.float32) @ away


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_the_product_is_that_with_the_hessian(damping: float) -> None:
    product = trust_region.fisher_vector_product(kl, jnp.asarray(POINT), damping)
    expected = HESSIAN @ VECTOR + damping * VECTOR
    np.testing.assert_allclose(product(jnp.asarray(VECTOR)), expected, rtol=1e-4)


def test_the_natural_gradient_solves_for_the_gradient() -> None:
    product = trust_region.fisher_vector_product(kl, jnp.asarray(POINT), 0.0)
    solution = trust_region.natural_gradient(product, jnp.asarray(VECTOR), 10)
    np.testing.assert_allclose(solution, np.linalg.solve(HESSIAN, VECTOR), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("longest", "tries", "share"),
    [(2.0, 10, 1.0), (0.6, 10, 0.5), (0.2, 10, 0.125), (0.2, 3, 0.0), (0.0, 10, 0.0)],
)
def test_the_line_search_takes_the_first_share_that_is_accepted(
    longest: float, tries: int, share: float
) -> None:
    start, change = jnp.array([1.0, 1.0]), jnp.array([1.0, 0.0])
    accepted = lambda point: (point - start)[0] <= longest - 1e-6  # noqa: E731
    result = trust_region.line_search(start, change, accepted, 0.5, tries)
    np.testing.assert_allclose(result.share, share)
    np.testing.assert_allclose(result.point, [1.0 + share, 1.0])
