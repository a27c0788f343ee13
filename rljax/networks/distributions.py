"""Distributions of actions, from distrax, parameters of actors, and random permutations."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec, Number
from rljax.networks.layers import Network

if TYPE_CHECKING:
    from distrax import Categorical, Distribution
    from distrax import Transformed as SquashedGaussian


class Actor(struct.PyTreeNode):
    """An actor's parameters.

    All agents share this class: JAX (0.10) confuses compiled functions of dataclasses with equal
    fields.
    """

    mean: Network  # [O] -> [A]: before tanh, or logits
    log_std: Array | None  # [A]; None for deterministic policies and discrete actions
    discrete: bool = struct.field(default=False, pytree_node=False)
    choices: tuple[int, ...] = struct.field(default=(), pytree_node=False)  # as in the spec


def squashed_gaussian(mean: Array, log_std: Array) -> SquashedGaussian:
    """tanh of a diagonal Gaussian, over [..., A] in (-1, 1).

    The log-probability is summed over A, in normalised units:

      log p(a) = sum_i [ log N(u_i; mean_i, std_i) - 2 (log 2 - u_i - softplus(-2 u_i)) ],
      a = tanh u

    `sample_and_log_prob` is exact near the bounds.
    """
    import distrax

    base = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
    return distrax.Transformed(base, distrax.Block(distrax.Tanh(), ndims=1))


def squashed(output: Array, settings: Any, offset: Array | float = 0.0) -> SquashedGaussian:
    """tanh of a Gaussian with the halves of an output [..., 2 A] as mean and log std.

    `offset` is added to log std, which is then clipped by the settings.
    """
    mean, log_std = jnp.split(output, 2, axis=-1)
    log_std = jnp.clip(log_std + offset, settings.log_std_min, settings.log_std_max)
    return squashed_gaussian(mean, log_std)


def squashed_within(output: Array, settings: Any) -> SquashedGaussian:
    """As `squashed`, with a log std between its limits by another tanh:

    log std = min + (max - min) (1 + tanh x) / 2
    """
    mean, x = jnp.split(output, 2, axis=-1)
    low, high = settings.log_std_min, settings.log_std_max
    return squashed_gaussian(mean, low + 0.5 * (high - low) * (1.0 + jnp.tanh(x)))


def squashed_above(output: Array, least: Number) -> SquashedGaussian:
    """As `squashed`, with a std of `least` plus exp of the second half."""
    mean, log_std = jnp.split(output, 2, axis=-1)
    return squashed_gaussian(mean, jnp.log(jnp.exp(log_std) + least))


def sampled_kl(p: SquashedGaussian, q: SquashedGaussian, key: Array, number: int) -> Array:
    """KL(p || q) [...] of policies over [..., A] by samples of p, at most 1 - 1e-4 large so that
    log q is finite.
    """
    action, log_prob = p.sample_and_log_prob(seed=key, sample_shape=(number,))
    other: Any = q.log_prob(jnp.clip(action, -1.0 + 1e-4, 1.0 - 1e-4))
    return (log_prob - other).mean(axis=0)


def gaussian(mean: Array, std: Array) -> Distribution:
    """A diagonal Gaussian over [..., A]."""
    import distrax

    return distrax.MultivariateNormalDiag(mean, jnp.broadcast_to(std, mean.shape))


def symmetric_kl(mean: Array, log_std: Array, other_mean: Array, other_log_std: Array) -> Array:
    """KL(p || q) + KL(q || p) [...] of Gaussians [..., A], or of their tanh."""
    ratio = jnp.exp(2.0 * (log_std - other_log_std))
    precision = jnp.exp(-2.0 * log_std) + jnp.exp(-2.0 * other_log_std)
    spread = jnp.square(mean - other_mean) * precision
    return 0.5 * (ratio + 1.0 / ratio + spread - 2.0).sum(axis=-1)


def positive_std(output: Array, first: Number) -> Array:
    """A std [..., A] of outputs [..., A]: `first` where these are 0, and more than 1e-6."""
    return first * jax.nn.softplus(output) / jnp.log(2.0) + 1e-6


def decoupled_kl(mean: Array, std: Array, other_mean: Array, other_std: Array) -> Array:
    """KL(p || Normal(other_mean, std)) and KL(p || Normal(mean, other_std)) of each dimension:
    [2, ..., A] for p = Normal(mean, std) over [..., A]. Abdolmaleki et al., arXiv:1812.02256.
    """
    by_mean = 0.5 * jnp.square((mean - other_mean) / std)
    ratio = std / other_std
    by_std = 0.5 * (jnp.square(ratio) - 1.0) - jnp.log(ratio)
    return jnp.stack([by_mean, by_std])


# Logit and value of an action that is not allowed; gradients stay finite.
FORBIDDEN = -1e9


def allowed(values: Array, mask: Array | None) -> Array:
    """Logits or values [..., A], `FORBIDDEN` where `mask` [..., A] is False."""
    return values if mask is None else jnp.where(mask, values, FORBIDDEN)


def categorical(logits: Array, mask: Array | None = None) -> Categorical:
    """A softmax over `logits` [..., A] of the actions that `mask` allows; of all if none."""
    import distrax

    return distrax.Categorical(logits=allowed(logits, mask))


@dataclasses.dataclass(frozen=True)
class Independent:
    """Categorical distributions side by side: an action is int32 [..., K].

    Log-probabilities, entropies and divergences [...] are sums.
    """

    parts: tuple[Any, ...]

    def sample(self, *, seed: Array) -> Array:
        """Choices [..., K]."""
        keys = jax.random.split(seed, len(self.parts))
        pairs = zip(self.parts, keys, strict=True)
        return jnp.stack([part.sample(seed=key) for part, key in pairs], axis=-1)

    def mode(self) -> Array:
        """The likeliest choices [..., K]."""
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, action: Array) -> Array:
        """Of choices [..., K]."""
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts))  # type: ignore[return-value]

    def entropy(self) -> Array:
        """See the class."""
        return sum(part.entropy() for part in self.parts)  # type: ignore[return-value]

    def kl_divergence(self, other: Independent) -> Array:
        """KL(self || other)."""
        pairs = zip(self.parts, other.parts, strict=True)
        return sum(part.kl_divergence(another) for part, another in pairs)  # type: ignore[return-value]


def discrete(
    logits: Array, choices: tuple[int, ...] = (), mask: Array | None = None
) -> Distribution:
    """The distribution of discrete actions for `logits` [..., A], of which `mask` [..., A] allows
    some.

    With `choices`, an action is one of each, and A is their sum.
    """
    if not choices:
        return categorical(logits, mask)
    edges = [sum(choices[: i + 1]) for i in range(len(choices) - 1)]
    parts = jnp.split(allowed(logits, mask), edges, axis=-1)
    return Independent(tuple(categorical(part) for part in parts))  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Both:
    """Numbers and choices side by side: actions are float32 [..., N + K], choices whole numbers.

    Log-probabilities, entropies and divergences [...] are sums.
    """

    numbers: Any  # a distribution over [..., N]
    choices: Any  # a distribution over [..., K]

    def sample(self, *, seed: Array) -> Array:
        """Actions [..., N + K]."""
        key_numbers, key_choices = jax.random.split(seed)
        numbers = self.numbers.sample(seed=key_numbers)
        return self._joined(numbers, self.choices.sample(seed=key_choices))

    def mode(self) -> Array:
        """The likeliest actions [..., N + K]."""
        return self._joined(self.numbers.mode(), self.choices.mode())

    def log_prob(self, action: Array) -> Array:
        """Of actions [..., N + K]."""
        numbers, choices = jnp.split(action, [self.numbers.event_shape[0]], axis=-1)
        return self.numbers.log_prob(numbers) + self.choices.log_prob(choices.astype(jnp.int32))

    def entropy(self) -> Array:
        """See the class."""
        return self.numbers.entropy() + self.choices.entropy()

    def kl_divergence(self, other: Both) -> Array:
        """KL(self || other)."""
        return self.numbers.kl_divergence(other.numbers) + self.choices.kl_divergence(other.choices)

    def _joined(self, numbers: Array, choices: Array) -> Array:
        return jnp.concatenate([numbers, choices.astype(numbers.dtype)], axis=-1)


def gaussian_beside(output: Array, std: Array, choices: tuple[int, ...] = ()) -> Distribution:
    """A diagonal Gaussian with `std` [N], and a softmax for each of `choices`, if any.

    `output` is [..., N + sum(choices)].
    """
    if not choices:
        return gaussian(output, std)
    mean, logits = jnp.split(output, [std.shape[-1]], axis=-1)
    return Both(gaussian(mean, std), discrete(logits, choices))  # type: ignore[return-value]


def clipped(action: Array, spec: EnvSpec) -> Array:
    """Actions whose numbers lie in [-1, 1]."""
    if spec.discrete or not spec.choices:
        return action if spec.discrete else jnp.clip(action, -1.0, 1.0)
    return action.at[..., : spec.numbers].set(jnp.clip(action[..., : spec.numbers], -1.0, 1.0))


def uniform(
    key: Array, spec: EnvSpec, leading: tuple[int, ...], mask: Array | None = None
) -> Array:
    """Uniform actions with these leading axes, among those that `mask` [*leading, A] allows."""
    if not spec.discrete:
        numbers = jax.random.uniform(key, (*leading, spec.numbers), minval=-1.0, maxval=1.0)
        if not spec.choices:
            return numbers
        key, shape = jax.random.fold_in(key, 1), (*leading, len(spec.choices))
        choices = jax.random.randint(key, shape, 0, jnp.asarray(spec.choices))
        return jnp.concatenate([numbers, choices.astype(jnp.float32)], axis=-1)
    if mask is not None:
        pi = discrete(jnp.zeros((*leading, spec.action_size)), spec.choices, mask)
        return pi.sample(seed=key).astype(jnp.int32)
    most = jnp.asarray(spec.choices) if spec.choices else spec.action_size
    return jax.random.randint(key, (*leading, *spec.action_shape), 0, most)


def tanh_log_slope(raw: Array) -> Array:
    """sum_i log(1 - tanh(u_i)^2) [...] of raw actions [..., A]."""
    return (2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))).sum(axis=-1)


def permutation(key: Array, rows: int) -> Array:
    """The indices 0 to `rows` - 1 in random order, int32 [rows].

    It is faster than JAX's. At most 2^-16 of all pairs have equal random bits and keep their order.
    """
    width = max(1, (rows - 1).bit_length())
    if width > 16:  # too few random bits would remain
        return jax.random.permutation(key, rows)
    bits = jax.random.bits(key, (rows,)) << width
    return (jnp.sort(bits | jnp.arange(rows, dtype=jnp.uint32)) & (2**width - 1)).astype(jnp.int32)
