"""A step inside a trust region.

For parameters theta [N] and the Hessian H of the KL divergence:

  H v        = d/d theta (dKL/d theta . v) + damping v      Fisher-vector product
  H x        = g                                            solved by conjugate gradients
  theta_new  = theta + beta^k change                        the first k that is accepted

Schulman et al., arXiv:1502.05477, appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from rljax.agent import Array, Metrics, Number
from rljax.networks.distributions import Actor
from rljax.networks.policies import RawActions


class LineSearch(NamedTuple):
    """What a line search found."""

    point: Array  # [N]: the new parameters; the old ones where no step was accepted
    share: Array  # []: of the full step, 0 where none was accepted


class Neighbourhood:
    """Policies pi near pi_old, which acted, by parameters [N] in one vector.

    surrogate = mean [ pi(a|s) / pi_old(a|s) A ],   kl = mean KL(pi_old(.|s) || pi(.|s))
    """

    start: Array  # [N]: those of pi_old

    def __init__(self, actions: RawActions, actor: Actor, observation: Any, raw: Array) -> None:
        """`raw` are pi_old's raw actions [..., A] or [...] for observations [..., O...]."""
        self.start, self._unravel = ravel_pytree(actor)
        self._actions, self._observation, self._raw = actions, observation, raw
        self._old: Any = actions.policy(actor, observation)
        self._old_log_prob = self._old.log_prob(raw)

    def actor(self, point: Array) -> Actor:
        """The actor with the parameters `point` [N]."""
        return self._unravel(point)

    def surrogate(self, point: Array, advantage: Array) -> Array:
        """The surrogate [] of advantages [...]."""
        log_prob: Any = self._policy(point).log_prob(self._raw)
        return jnp.mean(jnp.exp(log_prob - self._old_log_prob) * advantage)

    def kl(self, point: Array) -> Array:
        """The mean KL divergence [] from pi_old."""
        return jnp.mean(self._old.kl_divergence(self._policy(point)))

    def metrics(self, point: Array, share: Array, advantage: Array) -> Metrics:
        """Of a step to `point` [N], a share [] of the full step."""
        return {
            "actor/loss": -self.surrogate(point, advantage),
            "actor/kl": self.kl(point),
            "actor/step": share,
            "actor/entropy": jnp.mean(self._old.entropy()),
        }

    def _policy(self, point: Array) -> Any:
        return self._actions.policy(self.actor(point), self._observation)


def fisher_vector_product(
    kl: Callable[[Array], Array], point: Array, damping: Number
) -> Callable[[Array], Array]:
    """The function that maps a vector [N] to (H + damping I) v [N].

    H is the Hessian of `kl`, from parameters [N] to a divergence [], at `point` [N].
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
    backtrack: Number,
    most: int,
) -> LineSearch:
    """Shorten a `change` [N] of `start` [N] until `accepts(parameters)` [] is true.

    Each of at most `most` tries is `backtrack` times as long as the last.
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
