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

A penalty is taken off Q', Z' or theta' first: alpha log pi(a'|s') in SAC. Of several target critics
the one with the smallest mean makes the target [6], or their average: the mean probabilities [7],
the mean of each quantile [8]; or each its own [9]. `truncated` quantiles are those of all critics
together, without the largest [10].

[1] Mnih et al., DQN, Nature 518, 2015
[2] Bellemare et al., C51, arXiv:1707.06887
[3] Dabney et al., QR-DQN, arXiv:1710.10044
[4] Hessel et al., Rainbow, arXiv:1710.02298
[5] Farebrother et al., Stop Regressing, arXiv:2403.03950
[6] Kim et al., FlashSAC, arXiv:2604.04539
[7] Nauman et al., BRC, arXiv:2505.23150
[8] Nauman et al., BRO, arXiv:2405.16158
[9] FastSAC: amazon-far/holosoma
[10] Kuznetsov et al., TQC, arXiv:2005.04269
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import optax

from rljax.agent import Array, Metrics, Number

SMOOTHING = 0.75  # sigma of HL-Gauss in bins; [5]
CLIPPED = "critic/clipped"  # a metric: the share of targets beyond a support
OUTER = 4  # bins at an end, in which HL-Gauss is inexact


class Head(Protocol):
    """What heads have in common. Leading axes [...] broadcast."""

    features: int  # K, outputs for each value

    def mean(self, outputs: Array) -> Array:
        """The values [...] of outputs [..., K]."""
        ...

    def target(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Array:
        """From outputs [..., K] for the next state, rewards [...] and discounts [...], 0 where
        terminated. The penalty [...] is taken off the next state's return.
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

    def smallest(self, outputs: Array) -> Array:
        """Of critics' outputs [C, ..., K] those [..., K] whose mean is smallest."""
        index = self.mean(outputs).argmin(axis=0)[None, ..., None]
        return jnp.take_along_axis(outputs, index, axis=0)[0]

    def average(self, outputs: Array) -> Array:
        """Outputs [..., K] of the average of critics' outputs [C, ..., K]."""
        return outputs.mean(axis=0)

    def clipped_mass(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Metrics:
        """The probability [...] of the returns that `target` clips to the ends of the support."""
        del outputs, reward, discount, penalty
        return {}


@dataclasses.dataclass(frozen=True)
class Scalar(Head):
    """The value itself: outputs and targets are [...]."""

    kind: Literal["huber", "squared"] = "squared"
    features: int = 1

    def mean(self, outputs: Array) -> Array:
        return outputs

    def smallest(self, outputs: Array) -> Array:
        return outputs.min(axis=0)

    def target(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Array:
        return jax.lax.stop_gradient(reward + discount * less(outputs, penalty))

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

    def average(self, outputs: Array) -> Array:
        """Logarithms of the mean probabilities."""
        return jax.nn.logsumexp(jax.nn.log_softmax(outputs), axis=0) - jnp.log(len(outputs))

    def error(self, outputs: Array, target: Array) -> Array:
        """KL(target, softmax(outputs)); [4]."""
        entropy = -jax.scipy.special.xlogy(target, target).sum(axis=-1)
        return jnp.maximum(self.loss(outputs, target) - entropy, 0.0)

    def projected(self, values: Array, probabilities: Array) -> Array:
        """`probabilities` [..., J] of `values` [..., J], each shared by its two neighbours on the
        support.
        """
        position = (jnp.clip(values, self.low, self.high) - self.low) / self.width
        split = functools.partial(jax.lax.platform_dependent, cpu=scattered, default=gathered)
        return split(position, probabilities, jnp.arange(self.features, dtype=position.dtype))


def scattered(position: Array, probabilities: Array, bins: Array) -> Array:
    """Probabilities [..., J] at positions [..., J] among `bins` 0, 1, ... [K], each added to its
    two neighbours: [..., K]. On a CPU ten times as fast as `gathered`.
    """

    def add(lower: Array, share: Array, probability: Array) -> Array:
        index, empty = lower.astype(jnp.int32), jnp.zeros_like(bins)
        first, second = (1.0 - share) * probability, share * probability
        return empty.at[index].add(first).at[index + 1].add(second)

    lower = jnp.clip(jnp.floor(position), 0.0, bins[-2])
    added = jnp.vectorize(add, signature="(j),(j),(j)->(k)")
    return added(lower, position - lower, probabilities)


def gathered(position: Array, probabilities: Array, bins: Array) -> Array:
    """The same as a sum over all J for each bin, in an order that is the same each time on a
    GPU.
    """
    distance = jnp.abs(position[..., None] - bins)  # [..., J, K]
    return (jnp.clip(1.0 - distance, 0.0, 1.0) * probabilities[..., None]).sum(axis=-2)


@dataclasses.dataclass(frozen=True)
class Categorical(Binned):
    """C51: the return's distribution on K atoms; targets are probabilities [..., K]."""

    def target(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Array:
        values = self._next_support(reward, discount, penalty)
        return jax.lax.stop_gradient(self.projected(values, jax.nn.softmax(outputs)))

    def clipped_mass(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Metrics:
        """See `Head`."""
        values = self._next_support(reward, discount, penalty)
        margin = 1e-3 * self.width  # above float32's rounding
        beyond = (values < self.low - margin) | (values > self.high + margin)
        return {CLIPPED: (jax.nn.softmax(outputs) * beyond).sum(axis=-1)}

    def _next_support(self, reward: Array, discount: Array, penalty: Array | None) -> Array:
        return reward[..., None] + discount[..., None] * less(self.support, penalty, True)


@dataclasses.dataclass(frozen=True)
class TwoHot(Binned):
    """One number as probabilities of its two neighbours among K values."""

    def encode(self, values: Array) -> Array:
        """Probabilities [..., K] of values [...]; those beyond the ends count as the end."""
        return jax.lax.stop_gradient(self.projected(values[..., None], jnp.ones((1,))))

    def clipped(self, values: Array) -> Metrics:
        """The share of values beyond the ends."""
        return {CLIPPED: ((values < self.low) | (values > self.high)).mean()}

    def target(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Array:
        return self.encode(reward + discount * less(self.mean(outputs), penalty))

    def clipped_mass(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Metrics:
        return self.clipped(reward + discount * less(self.mean(outputs), penalty))


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

    def target(
        self, outputs: Array, reward: Array, discount: Array, penalty: Array | None = None
    ) -> Array:
        samples = reward[..., None] + discount[..., None] * less(outputs, penalty, True)
        return jax.lax.stop_gradient(samples)

    def loss(self, outputs: Array, target: Array) -> Array:
        leading = jnp.broadcast_shapes(outputs.shape[:-1], target.shape[:-1])
        outputs = jnp.broadcast_to(outputs, (*leading, self.features))
        return quantile_loss(outputs, target, self.kappa)

    def error(self, outputs: Array, target: Array) -> Array:
        return jnp.abs(self.mean(outputs) - self.mean(target))

    def target_mean(self, target: Array) -> Array:
        return target.mean(axis=-1)


def errors(u: Array, tau: Array, kappa: Number) -> tuple[Array, Array]:
    """|tau - 1{u < 0}| L(u) / kappa of errors u, and its slope in u."""
    clipped = jnp.clip(u, -kappa, kappa)
    slope = jnp.where(u < 0.0, 1.0 - tau, tau) * clipped / kappa
    return slope * (u - 0.5 * clipped), slope


def levels(number: int) -> Array:
    """tau [K]: the probabilities in the middle of each of K equal parts."""
    return (jnp.arange(number) + 0.5) / number


def in_turn(outputs: Array, target: Array, kappa: Number) -> tuple[Array, Array]:
    """Sums over samples [..., J] of the errors of outputs [..., K], and their slopes: [..., K].

    One sample after the other, with the batch as the last axis: on a CPU ten to a hundred times as
    fast as `at_once`.
    """
    outputs, samples = jnp.moveaxis(outputs, -1, 0), jnp.moveaxis(target, -1, 0)
    tau = levels(len(outputs)).reshape(-1, *(1,) * (outputs.ndim - 1))

    def add(sums: tuple[Array, Array], sample: Array) -> tuple[tuple[Array, Array], None]:
        parts = errors(sample - outputs, tau, kappa)
        return (sums[0] + parts[0], sums[1] + parts[1]), None

    nothing = (jnp.zeros_like(outputs), jnp.zeros_like(outputs))
    loss, slope = jax.lax.scan(add, nothing, samples)[0]
    return jnp.moveaxis(loss, 0, -1), jnp.moveaxis(slope, 0, -1)


def at_once(outputs: Array, target: Array, kappa: Number) -> tuple[Array, Array]:
    """The same for all samples together, as it suits a GPU."""
    u = target[..., :, None] - outputs[..., None, :]  # [..., J, K]
    parts = errors(u, levels(outputs.shape[-1]), kappa)
    return parts[0].sum(axis=-2), parts[1].sum(axis=-2)


@jax.custom_vjp
def quantile_loss(outputs: Array, target: Array, kappa: Number) -> Array:
    """l [...] of quantiles [..., K] to samples [..., J]; its gradient is that in the quantiles."""
    return _loss_and_slope(outputs, target, kappa)[0]


def _loss_and_slope(outputs: Array, target: Array, kappa: Number) -> tuple[Array, Array]:
    sums = jax.lax.platform_dependent(outputs, target, kappa, cpu=in_turn, default=at_once)
    loss, slope = (x / target.shape[-1] for x in sums)
    return loss.sum(axis=-1), -slope


def _slope(slope: Array, change: Array) -> tuple[Array, None, None]:
    return change[..., None] * slope, None, None


quantile_loss.defvjp(_loss_and_slope, _slope)


def less(returns: Array, penalty: Array | None, sampled: bool = False) -> Array:
    """Returns [...], or samples of them [..., J], less a penalty [...] if there is one."""
    if penalty is None:
        return returns
    return returns - (penalty[..., None] if sampled else penalty)


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


def truncated(outputs: Array, dropped: int) -> Array:
    """The quantiles of all critics [C, ..., K] in order, without the largest, `dropped` for each
    critic: [..., C (K - dropped)].
    """
    number = len(outputs) * (outputs.shape[-1] - dropped)
    union = jnp.moveaxis(outputs, 0, -2)
    union = union.reshape(*union.shape[:-2], -1)
    return -jax.lax.top_k(-union, number)[0]  # on a CPU three times as fast as a sort


def best_of_actions(outputs: Array, penalty: Array, head: Head) -> tuple[Array, Array]:
    """Outputs [..., B (, K)] and penalty [..., B] of the best of N actions, by their mean less the
    penalty, from outputs [..., N, B (, K)] and penalties [N, B].
    """
    values = head.mean(outputs) - penalty  # [..., N, B]
    best = values.argmax(axis=-2, keepdims=True)
    axis, index = (-2, best) if head.features == 1 else (-3, best[..., None])
    outputs = jnp.take_along_axis(outputs, index, axis).squeeze(axis)
    penalty = jnp.take_along_axis(jnp.broadcast_to(penalty, values.shape), best, -2)
    return outputs, penalty.squeeze(-2)


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
