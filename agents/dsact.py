"""DSAC-T [off-policy]: SAC whose critics learn distributions of returns (DSACv2).

gamma discount, alpha temperature, pi actor, pi' its target, sg: no gradient
Q_c, sigma_c mean and std of the critics, Q'_c, sigma'_c of their targets
a' ~ pi'(.|s'),  a~ ~ pi(.|s)
j = argmin_c Q'_c(s', a'),  z ~ N(0, 1) within +-3
  y        = r + gamma (1 - terminated) (Q'_j(s', a') - alpha log pi'(a'|s'))
  y_z      = y + gamma (1 - terminated) z sigma'_j(s', a')
  b_c     <- (1 - rho) b_c + rho mean sigma_c(s, a)  before the losses
  Y_c      = Q_c(s, a) + clip(y_z - Q_c(s, a), -3 b_c, 3 b_c)
  g_c      = (y - Q_c) / (sigma_c^2 + epsilon)
  h_c      = ((Y_c - Q_c)^2 - sigma_c^2) / (sigma_c^3 + epsilon)
  L(Q_c)   = -(b_c^2 + epsilon) mean (Q_c sg g_c + sigma_c sg h_c)
  Q'_c    <- (1 - rho) Q'_c + rho Q_c,  pi' likewise  rho: target_rate
The losses of pi and alpha are SAC's, for the smallest mean.

Departs from the paper: log-probabilities are those of actions
in [-1, 1].

[1] Duan et al., DSAC-T, arXiv:2310.05858
[2] Duan et al., Distributional Soft Actor-Critic, arXiv:2001.02811
[3] github.com/Jingliang-Duan/DSAC-v2

  rljax train dsact --env Hopper-v5
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(
    buffers.ReplaySettings,
    buffers.PrioritySettings,
    temperatures.WithTemperature,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-4  # of Adam; [1]
    critic_lr: NonNegative = 1e-4  # of Adam; [1]
    batch_size: int = 256  # transitions per update; [1]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [1]
    warmup_steps: int = 10_000  # uniform actions, no update; [3]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    target_rate: Share = 0.005  # rho; [1]
    reward_scale: Positive = 1.0  # factor on rewards; [3]
    # Distribution of returns
    critic_loss: Literal["paper", "huber", "v1"] = "paper"  # huber: [3]; v1: [2]
    std_rate: Share = 0.005  # rho of b, per update; [3]
    std_epsilon: NonNegative = 0.1  # epsilon; [1]
    clip_range: NonNegative = 3.0  # bound of Y, in moving stds; [1]
    fixed_bound: NonNegative = 10.0  # of Y in "v1"; [3], Hopper
    huber_limit: NonNegative = 50.0  # of "huber"; [3]
    # Policy
    init_temperature: temperatures.Temperature = 2.718281828  # alpha at the start; [3]
    target_entropy_share: Real = 1.0  # of -A, the target; RLPD, Brax: 0.5
    exploration: noise.Kind = "white"  # "held" in arXiv:2604.04539
    log_std_min: LogStd = -20.0  # lower clip of log std; [3]
    log_std_max: LogStd = 0.5  # upper clip of log std; [3]
    policy_delay: Count = 2  # updates per update of actor and targets; [1]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [1]
    num_critics: Count = 2  # C; the smallest mean counts; 1 in [2]
    activation: networks.Activation = "gelu"  # of hidden layers; [1]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [3]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C, 2]: mean, raw std
    target_actor: networks.Network
    target_critic: networks.Network
    moving_std: Array  # b [C], 0 until the first update
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("dsact", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm, 2)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        moving_std=jnp.zeros(config.num_critics),
        log_temperature=temperatures.create(config),
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts between steps of an episode."""
    return noise.initial(config.exploration, spec)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    pi = distributions.squashed(state.actor(observation), config)
    action, memory = noise.action(pi, key, explore, memory)
    return action, {}, memory


def returns(critic: networks.AnyNetwork, observation: Array, action: Array) -> tuple[Array, Array]:
    """Mean and std [C, B] of the soft returns."""
    mean, raw = jnp.moveaxis(critic(observation, action), -1, 0)
    return mean, jax.nn.softplus(raw)


def targets(state: State, batch: Transition, key: Array, config: Config) -> tuple[Array, Array]:
    """The expected target y [B] and the random y_z [B]."""
    key_action, key_return = jax.random.split(key)
    pi = distributions.squashed(state.target_actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key_action)
    next_q, next_std = returns(state.target_critic, batch.next_observation, next_action)
    smallest = next_q.argmin(axis=0, keepdims=True)
    next_q = jnp.take_along_axis(next_q, smallest, axis=0)[0]  # [B]
    next_std = jnp.take_along_axis(next_std, smallest, axis=0)[0]  # [B]
    next_q -= jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    z = jnp.clip(jax.random.normal(key_return, next_std.shape), -3.0, 3.0)
    return jax.lax.stop_gradient((target, target + bootstrap * z * next_std))


def likelihood_loss(
    q: Array, std: Array, target: Array, random_target: Array, moving_std: Array, config: Config
) -> Array:
    """The loss [C, B] of q and std [C, B]; b is [C, 1]."""
    epsilon = config.std_epsilon
    fixed_q, fixed_std = jax.lax.stop_gradient((q, std))
    variance = jnp.square(fixed_std)
    bound = config.fixed_bound if config.critic_loss == "v1" else config.clip_range * moving_std
    error = jnp.clip(random_target - fixed_q, -bound, bound)
    if config.critic_loss == "huber":
        huber: Any = functools.partial(optax.losses.huber_loss, delta=config.huber_limit)
        ratio = jnp.square(moving_std) / (variance + epsilon)
        ratio = jnp.clip(ratio, 0.1, 10.0)
        slope = (variance - huber(error)) / (fixed_std + epsilon)
        return ratio * (huber(q - target) + slope * std)
    factor = jnp.square(moving_std) + epsilon
    if config.critic_loss == "v1":
        factor = 1.0
        target = random_target
    slope = (target - fixed_q) / (variance + epsilon)
    slope_std = (jnp.square(error) - variance) / (fixed_std**3 + epsilon)
    return -factor * (slope * q + slope_std * std)


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, tuple[Array, Metrics]]:
    """Loss of the critics, and the moving std [C]."""
    target, random_target = targets(state, batch, key, config)
    q, std = returns(critic, batch.observation, batch.action)  # [C, B]
    mean_std = jax.lax.stop_gradient(std).mean(axis=-1)  # [C]
    change = mean_std - state.moving_std
    moving_std = state.moving_std + config.std_rate * change
    moving_std = jnp.where(state.moving_std == 0.0, mean_std, moving_std)
    loss = likelihood_loss(q, std, target, random_target, moving_std[:, None], config)
    loss = buffers.weighted(loss, batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
        "critic/std": std.mean(),
    }
    return loss, (moving_std, metrics | buffers.priorities(q - target, batch))


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q, _ = returns(state.critic, batch.observation, action)  # [C, B]
    q = networks.smallest(q)  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    key_critic, key_actor = jax.random.split(key)
    gradient, (moving_std, metrics) = jax.grad(critic_loss, has_aux=True)(
        state.critic.parameters, state, batch, key_critic, config
    )
    critic = state.critic.apply(networks.optimiser(config.critic_lr, step, config), gradient)
    state = state.replace(critic=critic, moving_std=moving_std)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
        )
        state = state.replace(
            actor=actor,
            log_temperature=log_temperature,
            target_actor=networks.polyak(actor, state.target_actor, config.target_rate),
            target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
        )
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
