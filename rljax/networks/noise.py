"""Exploring noise, in weights or on actions.

Noisy layers learn means and standard deviations of weights [1]:

    W = mu_W + sigma_W * f(e_out) f(e_in)^T,  b = mu_b + sigma_b * f(e_out),
    f(x) = sgn(x) sqrt|x|,  e ~ N(0, 1)

sigma starts at sigma_0 / sqrt(I) for I inputs, the means as in other layers.

Noise on actions e_t [A] is N(0, 1) at each step. `exploration` says how an episode's steps depend
on each other:

    white  e_t drawn anew at each step
    held   e_t drawn anew after n steps,  P(n) proportional to n^-2, n = 1 ... 16  [2]
    pink   the power of e falls as 1 / f from the time limit's frequency on        [3]
           our approximation:  e_t = K^-1/2 sum_k x_k,t,  k < K,
           x_k,t = r_k x_k,t-1 + (1 - r_k^2)^1/2 N(0, 1),  r_k = exp(-2^-k),
           with x_k,0 ~ N(0, 1), and 2^(K-1) near 1 / (2 pi) of the time limit,
           1,000 steps where there is none

`scaled` noise has one std for each episode, uniform between two bounds, so that environments side
by side differ [4].

[1] Fortunato et al., arXiv:1706.10295, section 3, equations 10 and 11
[2] FlashSAC, arXiv:2604.04539: a zeta distribution of exponent 2, truncated
[3] Eberhard et al., Pink Noise Is All You Need, ICLR 2023
[4] Seo et al., FastTD3, arXiv:2505.22642
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec, Number, config
from rljax.networks import distributions
from rljax.networks.layers import Network
from rljax.networks.optimisation import optimisers
from rljax.requirements import Positive, Share

if TYPE_CHECKING:
    from distrax import Transformed as SquashedGaussian

Kind = Literal["white", "held", "pink"]

LONGEST = 16  # steps for which noise is held at most; [2]
UNLIMITED = 1_000  # steps of an episode without time limit, for pink noise: Gymnasium's usual one
DEVIATION = "_deviation"  # ending of the names of standard deviations


def noisy(network: Network, deviation: Number) -> Network:
    """A network whose dense layers are noisy; `deviation` is sigma_0."""

    def extended(layer: dict[str, Array]) -> dict[str, Array]:
        start = deviation / jnp.sqrt(layer["kernel"].shape[-2])
        names = ("kernel", "bias")
        return layer | {name + DEVIATION: jnp.full_like(layer[name], start) for name in names}

    return network.replace(params=_changed(network.params, extended))


def _changed(layer: Any, change: Callable[[dict[str, Array]], dict[str, Array]]) -> Any:
    """Parameters with `change` of those of each dense layer."""
    if not isinstance(layer, dict):
        return layer
    layer = {name: _changed(part, change) for name, part in layer.items()}
    return change(layer) if "kernel" in layer and "bias" in layer else layer


def sampled(networks: Any, key: Array) -> Any:
    """A tree of networks, with one draw of noise for each with noisy layers."""
    nodes, structure = jax.tree.flatten(networks, is_leaf=lambda x: isinstance(x, Network))
    keys = [jax.random.fold_in(key, i) for i in range(len(nodes))]
    return structure.unflatten(map(_sampled, nodes, keys))


def _sampled(network: Any, key: Array) -> Any:
    if not isinstance(network, Network):  # a function, in tests
        return network
    number = 0

    def perturbed(layer: dict[str, Array]) -> dict[str, Array]:
        nonlocal number
        if "kernel" + DEVIATION not in layer:
            return layer
        number += 1
        kernel, kernel_deviation = layer["kernel"], layer.pop("kernel" + DEVIATION)
        bias, bias_deviation = layer["bias"], layer.pop("bias" + DEVIATION)
        key_in, key_out = jax.random.split(jax.random.fold_in(key, number))
        inside, outside = _factor(key_in, kernel.shape[:-1]), _factor(key_out, bias.shape)
        kernel = kernel + kernel_deviation * inside[..., :, None] * outside[..., None, :]
        return layer | {"kernel": kernel, "bias": bias + bias_deviation * outside}

    return network.replace(params=_changed(network.params, perturbed))


def _factor(key: Array, shape: tuple[int, ...]) -> Array:
    noise = jax.random.normal(key, shape)
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


class Lasting(struct.PyTreeNode):
    """Noise that lasts: a memory that only exploring actions depend on."""


class Held(Lasting):
    """Noise that is held."""

    noise: Array  # [..., A]
    left: Array  # [...] int32: further steps


class Pink(Lasting):
    """The processes whose sum is pink noise."""

    parts: Array  # [..., K, A]
    begun: Array  # [...] bool: drawn before


class Scaled(Lasting):
    """Noise whose std lasts."""

    scale: Array  # [...]
    begun: Array  # [...] bool: drawn before


def initial_scale() -> Scaled:
    """A std that has not been drawn, where an episode begins."""
    return Scaled(jnp.zeros(()), jnp.zeros((), jnp.bool_))


def scaled(
    key: Array, shape: tuple[int, ...], low: Number, high: Number, memory: Scaled | None = None
) -> tuple[Array, Scaled | None]:
    """Noise [..., A] with an std from `low` to `high`, and the memory [..., M...] after it.

    Without memory each std is drawn anew.
    """
    key_scale, key_noise = jax.random.split(key)
    scale = jax.random.uniform(key_scale, shape[:-1], minval=low, maxval=high)
    if memory is not None:
        scale = jnp.where(memory.begun, memory.scale, scale)
        memory = Scaled(scale, jnp.ones_like(memory.begun))
    return scale[..., None] * jax.random.normal(key_noise, shape), memory


def initial(kind: Kind, spec: EnvSpec) -> Lasting | None:
    """Noise where an episode begins; None for white noise."""
    match kind:
        case "white":
            return None
        case "held":
            return Held(jnp.zeros(spec.action_shape), jnp.zeros((), jnp.int32))
        case "pink":
            slowest = (spec.max_episode_steps or UNLIMITED) / (2.0 * math.pi)
            number = 1 + max(round(math.log2(slowest)), 0)
            return Pink(jnp.zeros((number, *spec.action_shape)), jnp.zeros((), jnp.bool_))


def draw(key: Array, shape: tuple[int, ...], memory: Any = None) -> tuple[Array, Any]:
    """Noise [..., A], and the memory [..., M...] after it; white without memory."""
    if memory is None:
        return jax.random.normal(key, shape), None
    if isinstance(memory, Pink):
        number = memory.parts.shape[-2]
        rate = jnp.exp(-(2.0 ** -jnp.arange(number)))[:, None]  # [K, 1]
        fresh = jax.random.normal(key, memory.parts.shape)
        moved = rate * memory.parts + jnp.sqrt(1.0 - jnp.square(rate)) * fresh
        parts = jnp.where(memory.begun[..., None, None], moved, fresh)
        return parts.sum(axis=-2) / math.sqrt(number), Pink(parts, jnp.ones_like(memory.begun))
    key_noise, key_steps = jax.random.split(key)
    ended = memory.left == 0
    logits = -2.0 * jnp.log(jnp.arange(1.0, LONGEST + 1.0))
    steps = 1 + jax.random.categorical(key_steps, logits, shape=memory.left.shape).astype(jnp.int32)
    drawn = jnp.where(ended[..., None], jax.random.normal(key_noise, shape), memory.noise)
    return drawn, Held(drawn, jnp.where(ended, steps, memory.left) - 1)


def sample(policy: SquashedGaussian, key: Array, memory: Any = None) -> tuple[Array, Any]:
    """Actions [..., A] of a policy, tanh(mean + std e) with e of `draw`, and the memory after."""
    if memory is None:
        return policy.sample(seed=key), None
    gaussian: Any = policy.distribution
    drawn, memory = draw(key, gaussian.loc.shape, memory)
    return jnp.tanh(gaussian.loc + gaussian.scale_diag * drawn), memory


def action(
    policy: SquashedGaussian, key: Array, explore: bool, memory: Any = None
) -> tuple[Array, Any]:
    """Actions [..., A] of a policy, by `sample` to `explore`, else tanh of its mean; and the
    memory after.
    """
    if explore:
        return sample(policy, key, memory)
    gaussian: Any = policy.distribution
    return jnp.tanh(gaussian.loc), memory


@config
class WithEpsilon:
    """Settings of a falling share of uniform actions: a base of an agent's Config."""

    epsilon_start: Share = 1.0  # share of uniform actions at first; DQN
    epsilon_end: Share = 0.05  # and at the end; CleanRL, 0.1 in DQN
    epsilon_steps: Positive = 0.5  # share of the run (above 1: steps) until then; CleanRL


def falling_epsilon(updates: Array, settings: Any) -> Array:
    """The share of uniform actions [] after `updates`, by `WithEpsilon`, linear in environment
    steps.
    """
    steps = updates * (settings.num_envs * settings.num_steps / settings.num_updates)
    start, end = settings.epsilon_start, settings.epsilon_end
    return optimisers.linear(start, end, steps, settings.epsilon_steps)


def epsilon_greedy(
    key: Array, greedy: Array, epsilon: Array, spec: EnvSpec, mask: Array | None = None
) -> Array:
    """Discrete actions [...]: the `greedy` ones, except for a share `epsilon` of uniform ones.

    `epsilon` is [] or has the last axes of actions; `mask` is [..., A].
    """
    key_choice, key_action = jax.random.split(key)
    uniform = distributions.uniform(key_action, spec, greedy.shape, mask)
    return jnp.where(jax.random.uniform(key_choice, greedy.shape) < epsilon, uniform, greedy)
