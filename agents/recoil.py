"""ReCOIL [offline]: imitation of an expert from few of its episodes and any others.

Actions of the expert have the largest value L.
All actions have the next state's value, minus a penalty per step.
So an action is worth much if it leads to the expert's states.

V value, Q_c critics, Q'_c targets, T temperature, tau expectile
r expert_reward, L = r / (1 - gamma), alpha value_gap
s, a, s' rows of all the data, the mixture; s_e, a_e of the expert
pi and beta as in agents/iql.py
  u        = min_c Q'_c(s, a) - V(s)
  L(V)     = mean [ exp(z) - z - 1 ], z = min(u / T, max_exponent)  reverse KL
             divided by its largest exponential, over the expert's rows too
           = mean [ |tau - 1(u < 0)| u^2 ] + alpha (mean V(s) - mean V(s_e))  expectile
  L(pi)    = mean [ -w log pi(a|s) ],  w = min(exp(beta u), max_weight)
  y        = -r + gamma V(s'), or -r - gamma L where s' is terminal
  L(Q)     = sum_c [ mean (Q_c(s_e, a_e) - L)^2 + mean (Q_c(s, a) - y)^2 ] / 2
L(pi) and y take V after its step.

Departs from the paper: it follows the authors' code [2], which
bounds values as LS-IQ does [3]. The paper's have no bound.

[1] Sikchi et al., Dual RL, arXiv:2302.08560
[2] the authors' code, a copy of which is github.com/chufanchen/ReCOIL
[3] Al-Hafez et al., LS-IQ, arXiv:2303.00599

  rljax data join both.hdf5 expert.hdf5 mixture.hdf5 --mark-parts
  rljax train recoil --data both.hdf5
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, encoders, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import expectiles
from rljax.networks.policies import Imitation
from rljax.requirements import Between, Count, NonNegative, Positive, Share, Whole, Widths

Discount = Annotated[float, Between(0, 0.9999)]
Expectile = Annotated[float, Between(0.5, 0.9999)]
Exponent = Annotated[float, Between(0, 50)]
AboveZero = Annotated[float, Between(1e-8, None)]


@agent.config
class Config(networks.WithCritics, policies.WithImitation):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    decay_steps: Positive | None = 1.0  # share of the run to rate 0; [2]
    batch_size: int = 1024  # rows of each part; [2]
    # Experience
    expert_part: Whole = 0  # the expert's data set, from 0
    normalise_observations: bool = False  # by mean and std
    num_updates: int = 1  # updates per iteration
    # Targets
    discount: Discount = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    expert_reward: NonNegative = 2.0  # r of the expert, else -r; [2]
    value_loss: Literal["reverse_kl", "expectile"] = "reverse_kl"  # form of L(V); [2]
    temperature: AboveZero = 1.0  # T of reverse_kl; [2]
    max_exponent: Exponent = 7.0  # bound of u / T; [2]
    expectile: Expectile = 0.7  # tau: towards 1 the maximum; [2]
    value_gap: NonNegative = 0.1  # alpha of expectile; [2]
    # Policy
    inverse_temperature: NonNegative = 3.0  # beta: 0 imitates all; [2]
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "gaussian"  # form of pi; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; [2], True can be better
    value_layer_norm: bool = False  # of V; [2], True on Adroit and Kitchen
    initialisation: networks.Initialisation = "orthogonal"  # gain sqrt 2; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    critic: networks.Trained  # [O], [A] or [] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """B rows of all the data, then B of the expert."""
    draw = buffers.PartRows(part=config.expert_part)
    return buffers.Dataset.of(config, draw=draw, learns_until=config.decay_steps)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("recoil", spec)
    Imitation.of(config).check()
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    encoding = EncoderSettings.of(config)
    style = networks.style_of(config) | {"output_scale": 2.0**0.5}
    net = networks.MLP(config.hidden, spec.action_size, **style)
    net = encoders.encoded(spec, encoding, net)
    actor = policies.create_actor(spec, net, key_actor, config.policy == "gaussian")
    norm = config.layer_norm
    net = networks.ensemble(
        spec, config.num_critics, config.critic_widths, layer_norm=norm, **style
    )
    critic = encoders.create(spec, encoding, net, key_critic, action)
    norm = config.value_layer_norm
    net = networks.MLP(config.critic_widths, 1, layer_norm=norm, **style)
    value = encoders.create(spec, encoding, net, key_value)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        value=networks.trained(value, config.value_lr, config),
        target_critic=networks.copy(critic),
    )


def actor_rate(step: Array, config: Config) -> Array | float:
    """The actor's rate [] after `step` updates."""
    return networks.cosine_rate(config.actor_lr, step, config.decay_steps)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    policy = Imitation.of(config)
    return policy.act(state.actor.parameters, observation, key, explore), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] or [...]."""
    return state.critic(observation, action).mean(axis=0)


def halves(batch: Any) -> tuple[Any, Any]:
    """The halves [B, ...]: the mixture and the expert."""
    mixture = jax.tree.map(lambda x: x[: len(x) // 2], batch)
    expert = jax.tree.map(lambda x: x[len(x) // 2 :], batch)
    return mixture, expert


# [2], critic_imitate.py
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> Loss:
    """Distance of V(s) to a soft maximum of values q [2 B]."""
    values = value(batch.observation)[:, 0]  # [2 B]
    v, expert_v = halves(values)
    if config.value_loss == "reverse_kl":
        z = jnp.minimum((q - values) / config.temperature, config.max_exponent)
        largest = jax.lax.stop_gradient(jnp.maximum(z.max(), -1.0))  # of all rows
        z, _ = halves(z)
        loss = (jnp.exp(z - largest) - (z + 1.0) * jnp.exp(-largest)).mean()
    else:
        surplus, _ = halves(q - values)
        weight = jnp.where(surplus > 0, config.expectile, 1.0 - config.expectile)
        gap = (v - expert_v).mean()
        loss = (weight * jnp.square(surplus)).mean() + config.value_gap * gap
    return loss, {
        "value/loss": loss,
        "value/v": v.mean(),
        "value/expert_v": expert_v.mean(),
    }


# IQL's, arXiv:2110.06169, eq. 7
def actor_loss(
    actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config
) -> Loss:
    """Distance to the actions, weighted by advantage [B]."""
    weight = jnp.exp(config.inverse_temperature * advantage)
    weight = jnp.minimum(weight, config.max_weight)
    policy = Imitation.of(config)
    distance = policy.distance(actor, batch.observation, batch.action, key)
    loss = (weight * distance).mean()
    return loss, {
        "actor/loss": loss,
        "actor/advantage": advantage.mean(),
        "actor/weight": weight.mean(),
    }


# LS-IQ's, [3]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Squared errors: the mixture to y, the expert to L."""
    largest = config.expert_reward / (1.0 - config.discount)
    terminated, _ = halves(batch.terminated)
    value = jnp.where(terminated, -largest, next_v)
    target = config.discount * value - config.expert_reward  # [B]
    outputs = critic(batch.observation, batch.action)
    q, expert_q = jnp.split(outputs, 2, axis=-1)  # [C, B]
    error = jnp.square(q - target) + jnp.square(expert_q - largest)
    loss = error.mean(axis=-1).sum() / 2.0
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/expert_q": expert_q.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of value, actor, critics and targets."""
    mixture, _ = halves(batch)
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [2 B]
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, value_metrics = state.value.step(optimiser, value_loss, q, batch, config)
    v, next_v = expectiles.state_values(value, mixture)
    advantage = halves(q)[0] - v  # [B]
    optimiser = networks.optimiser(actor_rate(step, config), step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, advantage, mixture, key, config)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_v, batch, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, value, target_critic)
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
