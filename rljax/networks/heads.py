"""Heads: a critic's outputs as a return or its distribution, and their losses.

K is `features`, the outputs for each value; `Scalar` has no axis K. Targets are without gradient.

    Scalar       y = r + gamma Q',  e = Q - y
                 l: Huber's, the clipped error of [1], or e^2
    Categorical  Z = z_1 ... z_K with softmax(outputs)
                 target: the projection of r + gamma Z' on the z_i                [2, eq. 7]
                 l = -sum_i m_i log p_i                                           [2, alg. 1]
    Quantile     theta_i for tau_i = (2 i - 1) / (2 K)
                 target: r + gamma theta'_j
                 l = sum_i mean_j |tau_i - 1{u < 0}| L(u) / kappa,
                     u = r + gamma theta'_j - theta_i,  L: Huber's of kappa       [3]

    TwoHot       y = r + gamma Q', on its two neighbours among the z_i;  l as above
    HLGauss      m_i ~ Phi((e_i+1 - y) / sigma) - Phi((e_i - y) / sigma), e_i edges of bins;
                 l as above                                                       [5, eq. 3.4]

[1] Mnih et al., DQN, Nature 518, 2015
[2] Bellemare et al., C51, arXiv:1707.06887
[3] Dabney et al., QR-DQN, arXiv:1710.10044
[4] Hessel et al., Rainbow, arXiv:1710.02298
[5] Farebrother et al., Stop Regressing, arXiv:2403.03950
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rljax.agent import Array, Metrics, Number, Transition, config, same_fields
from rljax.requirements import AtLeast, Real, require_at_least, require_range

SMOOTHING = 0.75  # sigma of HL-Gauss in bins; [5]
CLIPPED = "critic/clipped"  # a metric: the share of targets beyond a support
WARNED = 0.25  # the share above which a run warns
OUTER = 4  # bins at an end, in which HL-Gauss is inexact
MARGIN = 0.1  # share of the returns' range that bins add at either end; own choice


class Head(Protocol):
    """What heads have in common. Leading axes [...] broadcast."""

    features: int  # K, outputs for each value

    def mean(self, outputs: Array) -> Array:
        """The values [...] of outputs [..., K]."""
        ...

    def target(self, outputs: Array, reward: Array, discount: Array) -> Array:
        """From outputs [..., K] for the next state, rewards [...] and discounts [...], 0 where
        terminated.
        """
        ...

    def loss(self, outputs: Array, target: Array) -> Array:
        """The loss [...] of outputs [..., K] to a target."""
        ...

    def error(self, outputs: Array, target: Array) -> Array:
        """The priority [...] of learning from outputs again: their distance to a target."""
        ...

    def target_mean(self, target: Array) -> Array:
        """The value [...] of a target."""
        ...

    def clipped_mass(self, outputs: Array, reward: Array, discount: Array) -> Metrics:
        """The probability [...] of the returns that `target` clips to the ends of the support."""
        del outputs, reward, discount
        return {}


@dataclasses.dataclass(frozen=True)
class Scalar(Head):
    """The value itself: outputs and targets are [...]."""

    kind: Literal["huber", "squared"] = "squared"
    features: int = 1

    def mean(self, outputs: Array) -> Array:
        return outputs

    def target(self, outputs: Array, reward: Array, discount: Array) -> Array:
        return jax.lax.stop_gradient(reward + discount * outputs)

    def loss(self, outputs: Array, target: Array) -> Array:
        error = outputs - target
        return optax.losses.huber_loss(error) if self.kind == "huber" else jnp.square(error)

    def error(self, outputs: Array, target: Array) -> Array:
        return jnp.abs(outputs - target)

    def target_mean(self, target: Array) -> Array:
        return target

    def encode(self, values: Array) -> Array:
        """The target of a value: the value itself."""
        return jax.lax.stop_gradient(values)

    def clipped(self, values: Array) -> Metrics:
        """No metric: nothing is clipped."""
        del values
        return {}


@dataclasses.dataclass(frozen=True)
class Binned(Head):
    """Probabilities of K values at equal distances from `low` to `high`: the softmax of outputs."""

    features: int
    low: Number
    high: Number

    @property
    def support(self) -> Array:
        """z [K]."""
        return self.low + self.width * jnp.arange(self.features)

    @property
    def width(self) -> Number:
        """Between neighbours."""
        return (self.high - self.low) / (self.features - 1)

    def mean(self, outputs: Array) -> Array:
        return self.target_mean(jax.nn.softmax(outputs))

    def target_mean(self, target: Array) -> Array:
        return (target * self.support).sum(axis=-1)

    def loss(self, outputs: Array, target: Array) -> Array:
        return -(target * jax.nn.log_softmax(outputs)).sum(axis=-1)

    def error(self, outputs: Array, target: Array) -> Array:
        """KL(target, softmax(outputs)); [4]."""
        entropy = -jax.scipy.special.xlogy(target, target).sum(axis=-1)
        return jnp.maximum(self.loss(outputs, target) - entropy, 0.0)

    def projected(self, values: Array, probabilities: Array) -> Array:
        """`probabilities` [..., J] of `values` [..., J], each shared by its two neighbours on the
        support.
        """
        position = (jnp.clip(values, self.low, self.high) - self.low) / self.width
        # [..., K, J]
        distance = jnp.abs(position[..., None, :] - jnp.arange(self.features)[:, None])
        return (jnp.clip(1.0 - distance, 0.0, 1.0) * probabilities[..., None, :]).sum(axis=-1)


@dataclasses.dataclass(frozen=True)
class Categorical(Binned):
    """C51: the return's distribution on K atoms; targets are probabilities [..., K]."""

    def target(self, outputs: Array, reward: Array, discount: Array) -> Array:
        values = reward[..., None] + discount[..., None] * self.support
        return jax.lax.stop_gradient(self.projected(values, jax.nn.softmax(outputs)))

    def clipped_mass(self, outputs: Array, reward: Array, discount: Array) -> Metrics:
        """See `Head`."""
        values = reward[..., None] + discount[..., None] * self.support
        margin = 1e-3 * self.width  # above float32's rounding
        beyond = (values < self.low - margin) | (values > self.high + margin)
        return {CLIPPED: (jax.nn.softmax(outputs) * beyond).sum(axis=-1)}


@dataclasses.dataclass(frozen=True)
class TwoHot(Binned):
    """One number as probabilities of its two neighbours among K values."""

    def encode(self, values: Array) -> Array:
        """Probabilities [..., K] of values [...]; those beyond the ends count as the end."""
        return jax.lax.stop_gradient(self.projected(values[..., None], jnp.ones((1,))))

    def clipped(self, values: Array) -> Metrics:
        """The share of values beyond the ends."""
        return {CLIPPED: ((values < self.low) | (values > self.high)).mean()}

    def target(self, outputs: Array, reward: Array, discount: Array) -> Array:
        return self.encode(reward + discount * self.mean(outputs))


@dataclasses.dataclass(frozen=True)
class HLGauss(TwoHot):
    """A Gaussian's share of K bins with outer edges `low` and `high`; [5].

    Within `OUTER` bins of an end, the mean is up to a bin further inwards.
    """

    @property
    def support(self) -> Array:
        """The centres of bins."""
        return self.low + self.width * (jnp.arange(self.features) + 0.5)

    @property
    def width(self) -> Number:
        return (self.high - self.low) / self.features

    def encode(self, values: Array) -> Array:
        place = (jnp.clip(values, self.low, self.high) - self.low) / self.width
        edges = (jnp.arange(self.features + 1) - place[..., None]) / SMOOTHING
        # Above y, complements are subtracted: float32 does not tell neighbours near 1 apart.
        below, above = jax.scipy.special.ndtr(edges), jax.scipy.special.ndtr(-edges)
        middle = edges[..., 1:] + edges[..., :-1]
        mass = jnp.where(
            middle > 0, above[..., :-1] - above[..., 1:], below[..., 1:] - below[..., :-1]
        )
        return jax.lax.stop_gradient(mass / mass.sum(axis=-1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class Quantile(Head):
    """K quantiles of the return; targets are samples [..., J] of it."""

    features: int
    kappa: Number = 1.0  # the error up to which the loss is quadratic

    def mean(self, outputs: Array) -> Array:
        return outputs.mean(axis=-1)

    def target(self, outputs: Array, reward: Array, discount: Array) -> Array:
        return jax.lax.stop_gradient(reward[..., None] + discount[..., None] * outputs)

    def loss(self, outputs: Array, target: Array) -> Array:
        tau = (jnp.arange(self.features) + 0.5) / self.features
        error = target[..., None, :] - outputs[..., :, None]  # u [..., K, J]
        huber = optax.losses.huber_loss(error, delta=self.kappa) / self.kappa  # pyright: ignore[reportArgumentType]
        return (jnp.abs(tau[:, None] - (error < 0.0)) * huber).mean(axis=-1).sum(axis=-1)

    def error(self, outputs: Array, target: Array) -> Array:
        return jnp.abs(self.mean(outputs) - self.mean(target))

    def target_mean(self, target: Array) -> Array:
        return target.mean(axis=-1)


Kind = Literal["squared", "two_hot", "hl_gauss"]  # of critics whose targets are numbers


class HeadSettings(NamedTuple):
    """What agents choose for such critics; see `WithHead`."""

    value_head: Kind = "squared"
    bins: int = 101
    v_min: Number | None = None
    v_max: Number | None = None

    @classmethod
    def of(cls, config: Any) -> HeadSettings:
        """Those of a Config."""
        return cls(**same_fields(config, cls._fields))


@config
class WithHead:
    """Settings of how critics learn values: a base of an agent's Config."""

    value_head: Kind = "squared"  # by squared error, or by classes; arXiv:2403.03950
    bins: int = 101  # of two_hot and hl_gauss: classes of values; own choice
    v_min: float | None = None  # lower end of the bins; None: below the data's returns
    v_max: float | None = None  # upper end of the bins; None: above the data's returns


def check_bins(settings: HeadSettings) -> None:
    """Raise `ValueError` for bins that cannot work."""
    require_at_least(settings, bins=2 * OUTER + 3)
    ends = [name for name in ("v_min", "v_max") if getattr(settings, name) is not None]
    require_range(settings, **dict.fromkeys(ends, (None, None)))
    if len(ends) == 1:
        raise ValueError(
            "--config.v-min and --config.v-max go together: give both, or neither for those of "
            "the data."
        )
    if ends:
        _check_ends(settings.v_min, settings.v_max)


def _check_ends(low: Any, high: Any) -> None:
    if not np.all(np.asarray(low) < np.asarray(high)):
        raise ValueError(f"--config.v-min is {low}, it must be below --config.v-max {high}.")


def clipping(metrics: Mapping[str, Any]) -> str | None:
    """A warning where many targets of the metrics [P] of a run are clipped, else None."""
    shares = np.asarray(metrics.get(CLIPPED, np.nan))
    share = np.nanmean(shares) if np.isfinite(shares).any() else 0.0
    if share <= WARNED:
        return None
    return (
        f"{share:.0%} of the targets lie beyond the ends of the critic's support and are clipped "
        f"('{CLIPPED}'): set --config.v-min and --config.v-max to the smallest and the largest "
        "discounted return of this task."
    )


Name = Literal["none", "c51", "quantile"]


@config
class WithDistribution:
    """Settings of what critics learn of the return: a base of an agent's Config."""

    loss: Literal["huber", "squared"] = "squared"  # of the error of a mean; huber in DQN
    distribution: Name = "none"  # of returns: their mean, or arXiv:1707.06887, arXiv:1710.10044
    atoms: Annotated[int, AtLeast(2)] = 51  # of c51; arXiv:1707.06887
    v_min: Real = -10.0  # the lowest atom; arXiv:1707.06887
    v_max: Real = 10.0  # the highest atom; arXiv:1707.06887
    quantiles: Annotated[int, AtLeast(2)] = 200  # of quantile; arXiv:1710.10044
    kappa: Real = 1.0  # error up to which the quantiles' loss is quadratic; arXiv:1710.10044


def of_returns(settings: WithDistribution) -> Head:
    """The head of an agent's settings."""
    match settings.distribution:
        case "c51":
            return Categorical(settings.atoms, settings.v_min, settings.v_max)
        case "quantile":
            return Quantile(settings.quantiles, settings.kappa)
    return Scalar(settings.loss)


def check(head: Head, num_critics: int) -> None:
    """Raise `ValueError` for a head that cannot work; floats may be one per learner."""
    if isinstance(head, Scalar):
        return
    if num_critics > 1:
        raise ValueError(
            f"--config.num-critics is {num_critics}: a distribution of returns is that of one "
            "critic. Use --config.num-critics 1, or --config.distribution none."
        )
    if isinstance(head, Quantile) and not np.all(np.asarray(head.kappa) > 0):
        raise ValueError(f"--config.kappa is {head.kappa}, it must be above 0.")
    if isinstance(head, Binned):
        _check_ends(head.low, head.high)


def of_actions(outputs: Array, head: Head, dueling: bool = False) -> Array:
    """A last layer's outputs [..., A K] as [..., A, K], or [..., A] if K is 1.

    With `dueling` the first K are a value's, the others advantages: arXiv:1511.06581, eq. 9.
    """
    axis = -1 if head.features == 1 else -2
    if head.features > 1:
        outputs = outputs.reshape(*outputs.shape[:-1], -1, head.features)
    if not dueling:
        return outputs
    value, advantage = jnp.split(outputs, [1], axis)
    return value + advantage - advantage.mean(axis=axis, keepdims=True)


def of_action(outputs: Array, action: Array, head: Head) -> Array:
    """The outputs [...] or [..., K] of one action, one-hot in `action` [..., A]."""
    if head.features == 1:
        return (outputs * action).sum(axis=-1)
    return (outputs * action[..., None]).sum(axis=-2)


def rescaled(x: Array, slope: Number | None) -> Array:
    """sign(x) (sqrt(|x| + 1) - 1) + epsilon x, with epsilon `slope`; None: x itself.

    Pohlen et al., arXiv:1805.11593.
    """
    if slope is None:
        return x
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + slope * x


def unscaled(x: Array, slope: Number | None) -> Array:
    """The inverse of `rescaled`: sign(x) (z^2 - 1), with z = (sqrt(1 + 4 epsilon u) - 1) / (2
    epsilon) and u = |x| + 1 + epsilon.
    """
    if slope is None:
        return x
    u = jnp.abs(x) + 1.0 + slope
    z = 2.0 * u / (jnp.sqrt(1.0 + 4.0 * slope * u) + 1.0)  # without a small difference
    return jnp.sign(x) * (jnp.square(z) - 1.0)


def range_of_returns(data: Transition, discount: Number, scale: Number = 1.0) -> Array:
    """The smallest and largest discounted return [2] from any row of data [N, ...] in recorded
    order.

    A cut trajectory goes on with its mean reward, for at most 10,000 steps. `scale` multiplies
    rewards.
    """
    reward = scale * data.reward
    ends = data.terminated | data.truncated
    ends = ends.at[-1].set(True)
    starts = jnp.concatenate([jnp.ones((1,), bool), ends[:-1]])
    total, length = jax.lax.associative_scan(_sums, (reward, jnp.ones_like(reward), starts))[:2]
    going_on = total / length / jnp.maximum(1.0 - discount, 1e-4)
    after = jnp.where(data.terminated, 0.0, discount * going_on)
    inputs = (jnp.where(ends, 0.0, discount), jnp.where(ends, reward + after, reward))
    returns = jax.lax.associative_scan(_backwards, inputs, reverse=True)[1]
    return jnp.stack([returns.min(), returns.max()])


def _sums(left: Any, right: Any) -> Any:
    """Sums of two neighbouring spans of rows, without what lies before a start."""
    pairs = zip(left[:2], right[:2], strict=True)
    sums = [jnp.where(right[2], new, old + new) for old, new in pairs]
    return (*sums, left[2] | right[2])


def _backwards(later: Any, earlier: Any) -> Any:
    """G = b + a G' of two neighbouring spans, from the last row to the first."""
    return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]


def bounds_of_bins(returns: Array, bins: int) -> Array:
    """Bins [2] for returns between two numbers [2], with a margin and outer bins for Gaussians."""
    low, high = returns
    spread = jnp.maximum(high - low, 1e-3 * jnp.maximum(jnp.abs(returns).max(), 1.0))
    wide = spread * (1.0 + 2.0 * MARGIN)
    wide = wide * bins / (bins - 2 * OUTER)
    return (low + high) / 2.0 + jnp.stack([-0.5 * wide, 0.5 * wide])
