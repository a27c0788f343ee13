"""Multipliers, which weigh a cost so that it stays within a limit.

J mean cost of the episodes that have ended since the last time, d the limit, nu >= 0 the
multiplier, w_P and w_D the shares of the past in running means:

  gradient   nu  <- max(0, nu + Adam's step along J - d)                           [1]
  pid        I   <- max(0, I + K_I (J - d))                                        [2, alg. 2]
             P   <- w_P P + (1 - w_P) (J - d)                                      [1]
             J_w <- w_D J_w + (1 - w_D) J                                          [1]
             nu  <- max(0, K_P P + I + K_D max(0, J_w - J_w of `delay` moves ago)) [1]

With w_P = w_D = 0 and a delay of 1, "pid" is that of [2]. `dual` is for one step within a trust
region [3]. `positive_loss` is for costs of each batch [4]:

             L(z) = exp(z) (d - J), nu = exp(z), by any optimiser

[1] OmniSafe: PKU-Alignment/omnisafe, common/lagrange.py and common/pid_lagrange.py
[2] Stooke et al., arXiv:2007.03964
[3] Achiam et al., arXiv:1705.10528
[4] Wang et al., arXiv:2304.01203, and its code
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from rljax.agent import Array, Loss, Number, Transition, Weighted, config, same_fields
from rljax.networks import normalise
from rljax.networks.layers import Network
from rljax.networks.layers import create as create_network
from rljax.requirements import Count, NonNegative, Positive, Share

Kind = Literal["gradient", "pid"]


@config
class WithMultiplier:
    """Settings of agents whose multiplier is learnt: a base of their Config."""

    multiplier: Kind = "gradient"  # how nu moves: rljax/networks/optimisation/multipliers.py
    max_multiplier: Positive | None = None  # largest nu; OmniSafe: none where 1 + nu divides
    gain_p: NonNegative = 0.1  # K_P, of the excess (pid); OmniSafe, CPPOPID
    gain_i: NonNegative = 0.01  # K_I, of its sum (pid); OmniSafe, CPPOPID
    gain_d: NonNegative = 0.01  # K_D, of the cost's growth (pid); OmniSafe, CPPOPID
    smoothing_p: Share = 0.95  # w_P, the past's share in the mean excess (pid); OmniSafe
    smoothing_d: Share = 0.95  # w_D, the past's share in the mean cost (pid); OmniSafe
    delay: Count = 10  # moves over which the mean cost grows (pid); OmniSafe


@dataclasses.dataclass(frozen=True)
class MultiplierSettings:
    """Numbers may be tracers, but for the delay."""

    kind: Kind
    limit: Any  # d
    rate: Any  # of Adam, for "gradient"
    gains: tuple[Any, Any, Any]  # K_P, K_I and K_D, for "pid"
    smoothing: tuple[Any, Any] = (0.95, 0.95)  # w_P and w_D, for "pid"
    delay: int = 10  # moves, for "pid"
    largest: Any = None  # nu; None: no upper limit

    @classmethod
    def of(cls, config: Any, limit: Any = None) -> MultiplierSettings:
        """Those of a Config with `multiplier_rate` and the fields of `WithMultiplier`; `limit`
        stands in for its `cost_limit`.
        """
        names = ("multiplier", "cost_limit", "multiplier_rate", "delay", "max_multiplier")
        kind, cost_limit, rate, delay, largest = same_fields(config, names).values()
        gains = same_fields(config, ("gain_p", "gain_i", "gain_d")).values()
        smoothing = same_fields(config, ("smoothing_p", "smoothing_d")).values()
        limit = cost_limit if limit is None else limit
        return cls(kind, limit, rate, tuple(gains), tuple(smoothing), delay, largest)


class Controller(NamedTuple):
    """What the next move of "pid" depends on."""

    integral: Array  # [] I
    excess: Array  # [] P
    costs: Array  # [delay] J_w after the last moves, the oldest first


class Multiplier(struct.PyTreeNode):
    """A multiplier and its moments."""

    value: Array  # [] nu
    moments: Any  # of Adam for "gradient"; a Controller for "pid"


class Costs(struct.PyTreeNode):
    """Costs of running episodes."""

    discounted: normalise.Returns
    running: Array  # [E] sums without discount


class ValueAndCost(struct.PyTreeNode):
    """Two critics of states: V of rewards and V_c of costs."""

    critic: Network  # [O] -> [1]
    cost_critic: Network  # [O] -> [1]

    @classmethod
    def create(cls, module: nn.Module, key: Array, observation: Any) -> ValueAndCost:
        """Fresh critics for an example of observations [O...]."""
        critic = create_network(module, key, observation)
        return cls(critic, create_network(module, jax.random.fold_in(key, 1), observation))

    def __call__(self, observation: Any) -> Array:
        """V(s) and V_c(s) [..., 2] for observations [..., O...]."""
        values = [self.critic(observation), self.cost_critic(observation)]
        return jnp.concatenate(values, axis=-1)


def critic_loss(critics: ValueAndCost, batch: Transition, target: Array) -> Loss:
    """Half the squared errors of V(s) and V_c(s) to `target` [B, 2], and their sum []."""
    value = critics(batch.observation)
    loss, cost_loss = 0.5 * jnp.square(value - target).mean(axis=0)
    mean, cost_mean = value.mean(axis=0)
    return loss + cost_loss, {
        "critic/loss": loss,
        "critic/value": mean,
        "critic/cost_loss": cost_loss,
        "critic/cost_value": cost_mean,
    }


def create(first: Any, settings: MultiplierSettings) -> Multiplier:
    """The multiplier before the first episode: `first` []; for "pid" 0, and I is `first`."""
    first = jnp.asarray(first, jnp.float32) + 0.0
    if settings.kind == "pid":
        controller = Controller(first, jnp.zeros(()), jnp.zeros(settings.delay))
        return Multiplier(jnp.zeros(()), controller)
    return Multiplier(first, optax.adam(settings.rate).init(first))


def update(multiplier: Multiplier, cost: Weighted, settings: MultiplierSettings) -> Multiplier:
    """The multiplier after episodes of mean cost J; unchanged where its weight is 0."""
    moments: Any
    if settings.kind == "pid":
        value, moments = control(multiplier.moments, cost.value, settings)
    else:
        excess: Any = settings.limit - cost.value
        change, moments = optax.adam(settings.rate).update(excess, multiplier.moments)
        value = multiplier.value + jnp.asarray(change)
    moved = Multiplier(jnp.clip(value, 0.0, settings.largest), moments)
    return jax.tree.map(lambda new, old: jnp.where(cost.weight > 0, new, old), moved, multiplier)


def control(
    before: Controller, cost: Array, settings: MultiplierSettings
) -> tuple[Array, Controller]:
    """The next output [] of the controller "pid", which may be negative, for a mean cost J []."""
    gain_p, gain_i, gain_d = settings.gains
    smoothing_p, smoothing_d = settings.smoothing
    excess = cost - settings.limit
    integral = jnp.maximum(0.0, before.integral + gain_i * excess)
    mean_excess = smoothing_p * before.excess + (1.0 - smoothing_p) * excess
    mean_cost = smoothing_d * before.costs[-1] + (1.0 - smoothing_d) * cost
    growth = jnp.maximum(0.0, mean_cost - before.costs[0])
    costs = jnp.append(before.costs[1:], mean_cost)
    value = gain_p * mean_excess + integral + gain_d * growth
    return value, Controller(integral, mean_excess, costs)


def create_costs(num_envs: int) -> Costs:
    """Before the first step."""
    return Costs(normalise.create_returns(num_envs), jnp.zeros(num_envs))


def observe(
    costs: Costs, cost: Array, ended: Array, discount: Number
) -> tuple[Costs, Array, Weighted]:
    """Count the costs of a rollout [T, E]; `ended` [T, E] marks last steps of episodes.

    Returns the counts, the costs [T, E] divided by the std of their discounted sum, and J, of
    weight 0 where no episode ended. Costs are not clipped.
    """
    running, sums = normalise.running_sums(costs.running, cost, ended)
    number = ended.sum()
    mean = jnp.where(ended, sums, 0.0).sum() / jnp.maximum(number, 1)
    discounted, scaled = normalise.scale_rewards(
        costs.discounted, cost, ended, discount, limit=jnp.inf
    )
    return Costs(discounted, running), scaled, Weighted(mean, (number > 0).astype(jnp.float32))


def observe_rollout(
    costs: Costs, batch: Transition, discount: Number, normalised: bool
) -> tuple[Costs, Transition, Weighted]:
    """`observe` the signal "cost" of a rollout [T, E, ...], in which costs are divided if
    `normalised`.
    """
    cost, ended = batch.extras["cost"], batch.terminated | batch.truncated
    costs, scaled_cost, episodes = observe(costs, cost, ended, discount)
    cost = scaled_cost if normalised else cost
    return costs, batch.replace(extras={**batch.extras, "cost": cost}), episodes


def scale(costs: Costs, normalised: bool) -> Array:
    """The unit [] of values of costs: the std of their discounted sums if `normalised`, else 1."""
    return jnp.sqrt(costs.discounted.statistics.variance + 1e-8) if normalised else jnp.ones(())


def centred(costs: Costs, advantage: Array, normalised: bool) -> Array:
    """Advantages of costs [T, E] in units of the cost, less their mean."""
    advantage = advantage * scale(costs, normalised)
    return advantage - advantage.mean()


def positive_loss(log_multiplier: Array, cost: Array, limit: Number) -> Loss:
    """L(z) of a cost [] and its limit [], which raises nu where the cost is above."""
    multiplier = jnp.exp(log_multiplier)
    loss = multiplier * (limit - jax.lax.stop_gradient(cost))
    return loss, {"multiplier/loss": loss, "multiplier/value": multiplier}


class Dual(NamedTuple):
    """The solution x of `dual` is -(of_gain H^-1 g + of_cost H^-1 b)."""

    of_gain: Array  # [] 1 / lambda; 0 in recovery
    of_cost: Array  # [] nu / lambda
    recovers: Array  # [] bool: no x within the trust region keeps the limit


def dual(q: Array, r: Array, s: Array, excess: Array, kl_limit: Number) -> Dual:
    """Minimise g.x where e + b.x <= 0 and x.Hx / 2 <= D, with e `excess`, D `kl_limit`; [3, eq.
    12].

    q = g.H^-1 g, r = g.H^-1 b, s = b.H^-1 b, [] each. The dual in lambda has two parts, each with a
    maximum in closed form: nu = (lambda e - r) / s where this is above 0, else nu = 0.
    """
    least = 1e-12  # of lambda and s
    radius, floor = 2.0 * kl_limit, jnp.maximum(s, least)
    beyond = excess * excess / floor - radius  # above 0: e + b.x = 0 misses the trust region
    free = (excess < 0) & (beyond > 0) | (s <= least)
    recovers = (excess > 0) & (beyond > 0) & (s > least)
    rest = jnp.maximum(q - r * r / floor, 0.0)
    border = jnp.maximum(r / jnp.where(excess == 0, -least, excess), 0.0)  # of the parts
    limited, plain = jnp.sqrt(rest / jnp.maximum(-beyond, least)), jnp.sqrt(q / radius)
    inside = jnp.where(excess > 0, jnp.maximum(limited, border), jnp.minimum(limited, border))
    outside = jnp.where(excess > 0, jnp.minimum(plain, border), jnp.maximum(plain, border))
    scales = jnp.maximum(jnp.stack([inside, outside, plain]), least)
    with_limit = -0.5 * rest / scales + 0.5 * scales * beyond - r * excess / floor
    without = -0.5 * (q / scales + scales * radius)
    value = jnp.where(scales * excess > r, with_limit, without)[:2]
    scale = jnp.where(free, scales[2], scales[value.argmax()])  # lambda
    multiplier = jnp.where(free, 0.0, jnp.maximum(scale * excess - r, 0.0) / floor)  # nu
    of_gain, of_cost = jnp.where(recovers, 0.0, 1.0 / scale), multiplier / scale
    return Dual(of_gain, jnp.where(recovers, jnp.sqrt(radius / floor), of_cost), recovers)
