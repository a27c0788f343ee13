"""One step inside a trust region: natural gradients and a backtracking line search.

theta parameters in one vector, H the Hessian of the KL divergence at theta, delta its limit
  H v        = d/d theta (dKL/d theta . v) + damping v      Fisher-vector product
  H x        = g                                            solved by conjugate gradients
  theta_new  = theta + beta^k change                        the first k that is accepted

Schulman et al., Trust Region Policy Optimization, arXiv:1502.05477, appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

from rljax.agent import Array


class LineSearch(NamedTuple):
    """The result of a line search."""

    point: Array  # [N]: the new parameters, or those from before where no step was accepted
    share: Array  # []: the share of the full step that was taken, 0 where none was accepted


def fisher_vector_product(
    kl: Callable[[Array], Array], point: Array, damping: Array | float
) -> Callable[[Array], Array]:
    """The function that maps a vector [N] to (H + damping I) v [N].

    `kl` maps parameters [N] to a divergence [], whose Hessian at `point` [N] is H. The product is
    the gradient of the divergence's slope along v, which any network has.
    """
    _, hessian_product = jax.vjp(jax.grad(kl), point)

    def product(vector: Array) -> Array:
        return hessian_product(vector)[0] + damping * vector

    return product


def natural_gradient(product: Callable[[Array], Array], gradient: Array, steps: int) -> Array:
    """H^-1 g [N], by `steps` steps of conjugate gradients."""
    return cg(product, gradient, tol=1e-10, maxiter=steps)[0]


def line_search(
    start: Array,
    change: Array,
    accepts: Callable[[Array], Array],
    backtrack: Array | float,
    most: int,
) -> LineSearch:
    """Shorten a `change` [N] of the parameters `start` [N] until it is accepted.

    `accepts` maps parameters [N] to whether they are accepted []. Each try is `backtrack` times as
    long as the one before; there are at most `most` tries.
    """

    def refused(carry: tuple[Array, Array, Array]) -> Array:
        tries, _, accepted = carry
        return ~accepted & (tries < most)

    def shorten(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tries, share, _ = carry
        share = share * backtrack
        return tries + 1, share, accepts(start + share * change)

    full = jnp.ones(())
    first = (jnp.ones((), jnp.int32), full, accepts(start + full * change))
    _, share, accepted = jax.lax.while_loop(refused, shorten, first)
    share = jnp.where(accepted, share, 0.0)
    return LineSearch(jnp.where(accepted, start + share * change, start), share)
