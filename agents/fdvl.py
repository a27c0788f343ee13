"""f-DVL [offline]: IQL whose values come from the dual of an f-divergence.

A state's value is pushed up by actions that are worth more.
It is pushed down by all.
The divergence says how much: total variation makes it a quantile, chi-square
and reverse KL, which is XQL, weigh a large surplus by more.

V value, Q_c critics, Q'_c targets, lambda optimism, T temperature
pi, y and beta as in agents/iql.py
  u        = min_c Q'_c(s, a) - V(s)
  L(V)     = mean [ lambda max(u, 0) - (1 - lambda) u ]  total variation [1]
           = mean [ lambda max(u + u^2 / 4, 0) - (1 - lambda) u ]  chi-square [2]
           = mean [ exp(z) - z - 1 ], z = min(u / T, max_exponent)  reverse KL [3]
  L(pi)    = mean [ -w log pi(a|s) ],  w = min(exp(beta u), max_weight)
  L(Q)     = sum_c mean huber(Q_c(s, a) - y)
L(pi) and y take V after its step.

Departs from the paper: it follows the authors' code [2], begun from XQL's.
Its weights are IQL's. Reverse KL divides by its largest exponential.

[1] Sikchi et al., Dual RL, arXiv:2302.08560
[2] github.com/hari-sikchi/DVL
[3] Garg et al., Extreme Q-Learning, arXiv:2301.02328; github.com/Div99/XQL

  rljax train fdvl --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, encoders, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import expectiles
from rljax.networks.policies import Imitation
from rljax.requirements import Between, Count, NonNegative, Positive, Share, Whole, Widths

Divergence = Literal["total_variation", "chi_square", "reverse_kl"]
Optimism = Annotated[float, Between(0.5, 1)]
Exponent = Annotated[float, Between(0, 50)]
AboveZero = Annotated[float, Between(1e-8, None)]


@agent.config
class Config(networks.WithCritics, buffers.RowSettings, policies.WithImitation):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    decay_steps: Positive | None = 1.0  # share of the run to rate 0; [2]
    batch_size: int = 1024  # transitions per update; [2], 256 in [3]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    divergence: Divergence = "total_variation"  # reverse_kl is XQL; [2]
    optimism: Optimism = 0.8  # lambda; [2] on AntMaze
    temperature: AboveZero = 2.0  # T; [3] for locomotion
    max_exponent: Exponent = 7.0  # bound of u / T; [3]
    uniform_actions: Whole = 0  # of a row in L(V); [2]
    huber: AboveZero = 20.0  # of the critics' error; [2]
    # Policy
    inverse_temperature: NonNegative = 3.0  # beta; [2] for locomotion
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "gaussian"  # form of pi; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; [2]
    value_layer_norm: bool = True  # of V; [2]
    initialisation: networks.Initialisation = "orthogonal"  # gain sqrt 2; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    critic: networks.Trained  # [O], [A] or [] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; online, half are new experience."""
    return buffers.row_dataset(config, learns_until=config.decay_steps)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("fdvl", spec)
    Imitation.of(config).check()
    encoders.check(spec, EncoderSettings.of(config))
    if config.uniform_actions and spec.discrete:
        raise ValueError(
            "--config.uniform-actions is for continuous actions: of discrete ones, use 0."
        )


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


# [2], [3]
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> Loss:
    """The push of V by values q [K, B] of K actions."""
    v = value(batch.observation)[:, 0]  # [B]
    surplus = q - v  # [K, B]
    if config.divergence == "reverse_kl":
        z = jnp.minimum(surplus / config.temperature, config.max_exponent)
        largest = jax.lax.stop_gradient(jnp.maximum(z.max(), -1.0))
        loss = (jnp.exp(z - largest) - (z + 1.0) * jnp.exp(-largest)).mean()
    else:
        conjugate = surplus
        if config.divergence == "chi_square":
            conjugate = surplus + jnp.square(surplus) / 4.0
        above = jnp.maximum(conjugate, 0.0)
        loss = (config.optimism * above - (1.0 - config.optimism) * surplus).mean()
    return loss, {
        "value/loss": loss,
        "value/v": v.mean(),
        "value/above": (surplus > 0).mean(),
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


# [2]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Huber's loss of the critics, from V(s') [B]."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    error = optax.huber_loss(q, jnp.broadcast_to(target, q.shape), delta=config.huber)
    loss = 2.0 * error.mean(axis=-1).sum()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def action_values(state: State, batch: Transition, key: Array, config: Config) -> Array:
    """min_c Q'_c [K, B] of the actions and K - 1 uniform ones."""
    shape = (config.uniform_actions, *batch.action.shape)
    uniform = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    uniform = uniform.astype(batch.action.dtype)
    actions = jnp.concatenate([batch.action[None], uniform])  # [K, B, A]
    smallest = jax.vmap(lambda action: state.target_critic(batch.observation, action).min(axis=0))
    return smallest(actions)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of value, actor, critics and targets."""
    key, key_uniform = jax.random.split(key)
    q = action_values(state, batch, key_uniform, config)  # [K, B]
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, value_metrics = state.value.step(optimiser, value_loss, q, batch, config)
    v, next_v = expectiles.state_values(value, batch)
    optimiser = networks.optimiser(actor_rate(step, config), step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, q[0] - v, batch, key, config)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_v, batch, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, value, target_critic)
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
