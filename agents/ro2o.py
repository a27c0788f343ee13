"""RO2O [hybrid]: SAC from a data set, smooth around the data, then online.

The minimum of many critics is low where they disagree, as in SAC-N.
Around each observation, critics and policy are held to their values.
Critics are lowered where they disagree there.

gamma discount, alpha temperature, pi actor
Q_c critics, Q'_c targets
a' ~ pi(.|s'), a~ ~ pi(.|s), a^ ~ pi(.|s^)
s^ = s + u of n u ~ U(-eps, eps)^O
  D_c      = Q_c(s^, a) - Q_c(s, a)
  S        = mean_s max_s^ mean_c [ (1 - tau) max(D_c, 0)^2 + tau min(D_c, 0)^2 ]
  U        = mean [ Q_c(s^, a^) - y^ ]^2  y^ = Q_c - kappa std_c Q_c, a constant
  P        = mean_s max_s^ [ KL(pi(.|s) || pi(.|s^)) + KL(pi(.|s^) || pi(.|s)) ]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2 + eta_1 S + eta_2 U  y: agents/edac.py
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ] + eta_3 P
  L(alpha), Q'_c: agents/edac.py

Departs from the paper: the actor sees the temperature from before
its step. As in the code [2], all rows of a batch have the same u.
Online, the code drops S, U and P; here and in the paper they stay.

[1] Wen et al., Towards Robust Offline-to-Online RL, arXiv:2309.16973, section 4.1
[2] github.com/BattleWen/RO2O

  rljax train ro2o --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.networks.optimisation.temperatures import Temperature
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    temperature_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Data
    normalise_observations: bool = True  # by mean and std; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    # Smoothness
    num_perturbed: Count = 20  # n, around each one; [2]
    value_weight: NonNegative = 1e-4  # eta_1, of S; [2]
    value_radius: NonNegative = 0.01  # eps of S; [2], AntMaze: 0
    value_asymmetry: Share = 0.2  # tau, weight of falls; [2]
    policy_weight: NonNegative = 1.0  # eta_3, of P; [2]
    policy_radius: NonNegative = 0.01  # eps of P; [2], AntMaze: 0.005
    # Uncertainty
    ood_weight: NonNegative = 0.1  # eta_2, of U; [2], AntMaze: 0.3, 0.5
    ood_radius: NonNegative = 0.01  # eps of U; [2]
    ood_penalty: NonNegative = 1.0  # kappa at the start; [2]
    ood_penalty_end: NonNegative = 0.1  # kappa at the end; [2]
    ood_steps: Positive = 0.72  # share of the run until then; [2]
    # Policy
    init_temperature: Temperature = 1.0  # alpha at the start; [2]
    target_entropy: Real | None = None  # in nats; None: -A, [2]
    log_std_min: LogStd = -5.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [2]
    num_critics: Count = 10  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "edac"  # of all layers; close to [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; online, half are new experience."""
    return buffers.row_dataset(config)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "ood_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("ro2o", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_at_least(config, num_critics=2)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
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
    """The critics' mean value [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


# [1, section 4.1]
def critic_loss(
    critic: networks.Network,
    state: State,
    batch: Transition,
    key: Array,
    step: Array,
    config: Config,
) -> Loss:
    """Squared error of the critics, plus the terms S and U."""
    key_next, key_smooth, key_near, key_action = jax.random.split(key, 4)
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key_next)
    next_q = state.target_critic(batch.next_observation, next_action).min(axis=0)  # [B]
    next_q -= jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    error = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()

    number = config.num_perturbed
    near = encoders.perturbed(key_smooth, batch.observation, config.value_radius, number)
    action = jnp.broadcast_to(batch.action, (number, *batch.action.shape))
    change = critic(near, action) - q[:, None]  # [C, n, B]
    rises = change > 0.0
    weight = jnp.where(rises, 1.0 - config.value_asymmetry, config.value_asymmetry)
    smoothness = networks.largest((weight * jnp.square(change)).mean(axis=0)).mean()

    near = encoders.perturbed(key_near, batch.observation, config.ood_radius, number)
    near_action = distributions.squashed(state.actor(near), config).sample(seed=key_action)
    near_q = critic(near, near_action)  # [C, n, B]
    deviation = near_q.std(axis=0, ddof=1)
    lower = jax.lax.stop_gradient(near_q - ood_penalty(step, config) * deviation)
    uncertainty = jnp.square(near_q - lower).mean()

    loss = error + config.value_weight * smoothness + config.ood_weight * uncertainty
    return loss, {
        "critic/loss": loss,
        "critic/error": error,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
        "critic/smoothness": smoothness,
        "critic/deviation": deviation.mean(),
    }


def ood_penalty(step: Array, config: Config) -> Array:
    """kappa [] after `step` updates."""
    passed = jnp.minimum(step / config.ood_steps, 1.0)
    return config.ood_penalty + (config.ood_penalty_end - config.ood_penalty) * passed


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """SAC's loss, plus the policy's change nearby."""
    key_action, key_near = jax.random.split(key)
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key_action)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    number = config.num_perturbed
    near = encoders.perturbed(key_near, batch.observation, config.policy_radius, number)
    change = divergence(actor(batch.observation), actor(near), config)  # [n, B]
    smoothness = networks.largest(change).mean()
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    loss += config.policy_weight * smoothness
    return loss, {
        "actor/loss": loss,
        "actor/entropy": -log_prob.mean(),
        "actor/smoothness": smoothness,
    }


def divergence(output: Array, other: Array, config: Config) -> Array:
    """KL of policies [..., 2 A] both ways, summed."""
    mean, log_std = jnp.split(output, 2, axis=-1)
    other_mean, other_log_std = jnp.split(other, 2, axis=-1)
    log_std = jnp.clip(log_std, config.log_std_min, config.log_std_max)
    other_log_std = jnp.clip(other_log_std, config.log_std_min, config.log_std_max)
    return distributions.symmetric_kl(mean, log_std, other_mean, other_log_std)


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
    teacher = state.replace(actor=actor, log_temperature=log_temperature)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    inputs = (teacher, batch, key_critic, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, *inputs)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, target_critic, log_temperature)
    return state, metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
