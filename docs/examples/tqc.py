"""TQC [off-policy]: SAC whose critics learn quantiles of the return, and drop the largest.

gamma discount, alpha temperature, Z_c critics with M quantiles each, Z'_c targets
a' ~ pi(.|s'),  a~ ~ pi(.|s),  tau_m = (m - 1/2) / M
  z        = all Z'_c(s', a') together, without the d C largest
  y_i      = r + gamma (1 - terminated) (z_i - alpha log pi(a'|s'))
  L(Z)     = mean_{c, m, i} |tau_m - 1{y_i < Z_cm}| huber(y_i - Z_cm)
  L(pi)    = mean (alpha log pi(a~|s) - mean_{c, m} Z_cm(s, a~))
  L(alpha) = mean (-log alpha (log pi(a~|s) + target_entropy))
  Z'_c    <- (1 - rho) Z'_c + rho Z_c  rho: target_rate

pi(.|s) is tanh of a Gaussian, as in agents/sac.py. The losses are as in [2].

Departs from the paper: the actor moves after the critics, as in agents/sac.py,
and uniform actions come first; [2] has neither.

[1] Kuznetsov et al., Controlling Overestimation Bias with Truncated Mixture of
    Continuous Distributional Quantile Critics, arXiv:2005.04269
[2] The authors' code: github.com/SamsungLabs/tqc_pytorch

  rljax train docs/examples/tqc.py --env Hopper-v5
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Share, Whole, Widths


@agent.config
class Config(buffers.ReplaySettings, temperatures.WithTemperature):
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    warmup_steps: int = 10_000  # uniform actions, no update; Spinning Up
    # Targets
    discount: Share = 0.99  # gamma, per environment step; [2]
    target_rate: Share = 0.005  # rho, per update; [2]
    dropped: Whole = 2  # d, quantiles per critic; [2]
    # Policy and networks
    log_std_min: LogStd = -20.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    encoder: encoders.Kind = "auto"  # of observations that are no vectors
    actor_hidden: Widths = (256, 256)  # widths of layers; [2]
    critic_hidden: Widths = (512, 512, 512)  # widths of layers; [2]
    num_critics: Count = 5  # C; [2]
    num_quantiles: Count = 25  # M, of each critic; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C, M]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience, or half of them from a data set."""
    return buffers.Replay.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for discrete actions or settings that do not fit."""
    agent.require_continuous("tqc", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.dropped >= config.num_quantiles:
        raise ValueError(
            f"--config.dropped is {config.dropped}, it must be below the "
            f"--config.num-quantiles {config.num_quantiles} of each critic."
        )
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    net = networks.MLP(config.actor_hidden, 2 * spec.action_size)
    actor = encoders.create(spec, encoding, net, key_actor)
    size, features = config.num_critics, config.num_quantiles
    net = networks.Ensemble(size, config.critic_hidden, features=features)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.Trained.create(actor, optax.adam(config.actor_lr)),
        critic=networks.Trained.create(critic, optax.adam(config.critic_lr)),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or tanh of the mean."""
    output = state.actor(observation)
    if explore:
        return distributions.squashed(output, config).sample(seed=key), {}
    mean, _ = jnp.split(output, 2, axis=-1)
    return jnp.tanh(mean), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    return state.critic(observation, action).mean(axis=(0, -1))


def truncated(quantiles: Array, config: Config) -> Array:
    """The smallest (M - d) C of all critics' quantiles [C, B, M], in order [B, (M - d) C]."""
    pooled = jnp.moveaxis(quantiles, 0, -2)  # [B, C, M]
    pooled = pooled.reshape(*pooled.shape[:-2], -1)
    number = (config.num_quantiles - config.dropped) * config.num_critics
    return jnp.sort(pooled, axis=-1)[..., :number]


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Quantile Huber loss to the truncated target, its mean over critics and quantiles."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_quantiles = state.target_critic(batch.next_observation, next_action)  # [C, B, M]
    entropy_cost = jnp.exp(state.log_temperature.parameters) * next_log_prob  # [B]
    next_values = truncated(next_quantiles, config) - entropy_cost[:, None]
    head = heads.Quantile(config.num_quantiles)
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = head.target(next_values, batch.reward, bootstrap)  # [B, (M - d) C]
    quantiles = critic(batch.observation, batch.action)  # [C, B, M]
    loss = head.loss(quantiles, target).mean() / config.num_quantiles
    metrics = {
        "critic/loss": loss,
        "critic/q": quantiles.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Temperature-weighted log-probability minus the mean of all quantiles."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = value(state, batch.observation, action, config)  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics, actor, temperature and targets."""
    key_critic, key_actor = jax.random.split(key)
    adam = optax.adam(config.critic_lr)
    critic, metrics = state.critic.step(adam, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)
    adam = optax.adam(config.actor_lr)
    actor, actor_metrics = state.actor.step(adam, actor_loss, state, batch, key_actor, config)
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature, actor_metrics["actor/entropy"], batch.action.shape[-1], config
    )
    state = state.replace(
        actor=actor,
        log_temperature=log_temperature,
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
    )
    return state, metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
