"""EDAC [offline]: SAC from a data set, with many diverse critics.

gamma discount, alpha temperature, pi actor
Q_c critics, Q'_c targets
a' ~ pi(.|s'), a~ ~ pi(.|s)
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - alpha log pi(a'|s') ]
  g_c      = d Q_c(s, a) / da, divided by its length
  D        = mean [ sum_{c != k} <g_c, g_k> ] / (C - 1)  [1, algorithm 1]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2 + eta D  eta: diversity_weight
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ]
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

Departs from the paper: first and last layers begin a little differently
than in the authors' code [2], see the page.

[1] An et al., Offline RL with Diversified Q-Ensemble, arXiv:2110.01548
[2] github.com/snu-mllab/EDAC
[3] github.com/corl-team/CORL

  rljax train edac --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.networks.optimisation.temperatures import Temperature
from rljax.requirements import Count, LogStd, NonNegative, Real, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2], 3e-5 for pen
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    temperature_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    # Diversity
    diversity_weight: NonNegative | None = 1.0  # eta; None: SAC-N; [2]
    # Policy
    update_order: Literal["together", "actor_first"] = "together"  # of losses; [2], [3]
    init_temperature: Temperature = 1.0  # alpha at the start; [2]
    target_entropy: Real | None = None  # in nats; None: -A, [2]
    log_std_min: LogStd = -5.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [2]
    num_critics: Count = 10  # C; the smallest counts; [2], 50 on Hopper
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "edac"  # of all layers; [3]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("edac", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.diversity_weight is not None:
        agent.require_at_least(config, num_critics=2)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    pi = distributions.squashed(state.actor(observation), config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


# [1, algorithm 1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics, plus the penalty."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_q = state.target_critic(batch.next_observation, next_action).min(axis=0)  # [B]
    next_q -= jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_q
    metrics = {}
    penalty = 0.0
    if config.diversity_weight is None:
        q = critic(batch.observation, batch.action)  # [C, B]
    else:
        q, slope = networks.values_and_slopes(critic, batch.observation, batch.action)
        similarity = likeness(slope).mean()
        penalty = config.diversity_weight * len(slope) * similarity
        metrics["critic/similarity"] = similarity
    error = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    loss = error + penalty
    return loss, metrics | {
        "critic/loss": loss,
        "critic/error": error,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def likeness(slope: Array) -> Array:
    """Mean cosine [B] between the critics' slopes [C, B, A]."""
    number = len(slope)
    # With only inactive units, a slope is 0: its gradient stays finite.
    length = optax.safe_norm(slope, 1e-20, axis=-1, keepdims=True)
    direction = slope / (length + 1e-10)
    # |sum_c g_c|^2 = sum_c |g_c|^2 + sum_{c != k} <g_c, g_k>
    total = jnp.square(direction.sum(axis=0)).sum(axis=-1)
    pairs = total - jnp.square(direction).sum(axis=(0, -1))
    return pairs / float(number * (number - 1))  # an int may exceed int32


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the networks and alpha."""
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature, actor_metrics["actor/entropy"], batch.action.shape[-1], config
    )
    teacher = state
    if config.update_order == "actor_first":
        teacher = state.replace(actor=actor, log_temperature=log_temperature)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, teacher, batch, key_critic, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, target_critic, log_temperature)
    return state, metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
