"""Multipliers, which weigh a cost so that it stays within a limit.

J mean cost of the episodes that have ended since the last time, d the limit, nu >= 0 the
multiplier:

  gradient   nu <- max(0, nu + Adam's step along J - d)                        [1]
  pid        I  <- max(0, I + J - d)
             nu <- max(0, K_P (J - d) + K_I I + K_D max(0, J - J_before))      [2, alg. 2]

Where no episode has ended, nothing moves. `dual` is for one step within a trust region [3].

[1] Ray et al., Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019
[2] Stooke et al., arXiv:2007.03964
[3] Achiam et al., arXiv:1705.10528
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from rljax.agent import Array, Loss, Number, Transition, Weighted, same_fields
from rljax.networks import normalise
from rljax.networks.layers import Network
from rljax.networks.layers import create as create_network

Kind = Literal["gradient", "pid"]


@dataclasses.dataclass(frozen=True)
class MultiplierSettings:
    """How a multiplier moves. Numbers may be tracers."""

    kind: Kind
    limit: Any  # d
    rate: Any  # of Adam
    gains: tuple[Any, Any, Any]  # K_P, K_I and K_D

    @classmethod
    def of(cls, config: Any, limit: Any = None) -> MultiplierSettings:
        """Those of a Config; `limit` stands in for its `cost_limit`."""
        names = ("multiplier", "cost_limit", "multiplier_rate", "gain_p", "gain_i", "gain_d")
        kind, cost_limit, rate, *gains = same_fields(config, names).values()
        return cls(kind, cost_limit if limit is None else limit, rate, tuple(gains))


class Multiplier(struct.PyTreeNode):
    """A multiplier and its moments."""

    value: Array  # [] nu
    moments: Any  # of Adam, or (I, J_before) for "pid"


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
    """The multiplier before the first episode: `first` [], 0 for "pid"."""
    if settings.kind == "pid":
        return Multiplier(jnp.zeros(()), (jnp.zeros(()), jnp.zeros(())))
    value = jnp.asarray(first, jnp.float32) + 0.0
    return Multiplier(value, optax.adam(settings.rate).init(value))


def update(multiplier: Multiplier, cost: Weighted, settings: MultiplierSettings) -> Multiplier:
    """The multiplier after episodes of mean cost J; unchanged where its weight is 0."""
    excess = cost.value - settings.limit
    if settings.kind == "pid":
        proportional, integral, derivative = settings.gains
        total, before = multiplier.moments
        total = jnp.maximum(0.0, total + excess)
        growth = jnp.maximum(0.0, cost.value - before)
        value: Any = proportional * excess + integral * total + derivative * growth
        moments: Any = (total, cost.value)
    else:
        change: Any
        change, moments = optax.adam(settings.rate).update(-excess, multiplier.moments)
        value = multiplier.value + change
    moved = Multiplier(jnp.maximum(0.0, value), moments)
    return jax.tree.map(lambda new, old: jnp.where(cost.weight > 0, new, old), moved, multiplier)


def create_costs(num_envs: int) -> Costs:
    """Before the first step."""
    return Costs(normalise.create_returns(num_envs), jnp.zeros(num_envs))


def observe(
    costs: Costs, cost: Array, ended: Array, discount: Number
) -> tuple[Costs, Array, Weighted]:
    """Count the costs of a rollout [T, E]; `ended` [T, E] marks last steps of episodes.

    Returns the counts, the costs [T, E] divided by the std of their discounted sum, and J, of
    weight 0 where no episode ended.
    """
    running, sums = normalise.running_sums(costs.running, cost, ended)
    number = ended.sum()
    mean = jnp.where(ended, sums, 0.0).sum() / jnp.maximum(number, 1)
    discounted, scaled = normalise.scale_rewards(costs.discounted, cost, ended, discount)
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
