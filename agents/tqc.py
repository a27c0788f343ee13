"""TQC [off-policy]: SAC whose critics learn quantiles; targets are without the largest.

gamma discount, alpha temperature, pi actor
theta_c,i quantiles of the critics, theta'_c,i of their targets
a' ~ pi(.|s'),  a~ ~ pi(.|s)
z_1 <= z_2 <= ... all theta'_c,i(s', a') together
  y_j      = r + gamma (1 - terminated) (z_j - alpha log pi(a'|s'))
             without the largest, `dropped_quantiles` for each critic
  u        = y_j - theta_c,i(s, a)
  L(theta) = sum_c mean |tau_i - 1(u < 0)| l(u)
             l: Huber's of kappa, divided by it
             tau_i = (2 i - 1) / (2 quantiles)
  L(pi)    = mean (alpha log pi(a~|s) - mean_c,i theta_c,i(s, a~))
  theta'  <- (1 - rho) theta' + rho theta  rho: target_rate
The equations are those of algorithm 1 in [1].
L(alpha) is SAC's [2, eq. 18].

Departs from the paper: the warm-up of uniform actions, as in SAC.

[1] Kuznetsov et al., Truncated Quantile Critics, arXiv:2005.04269
[2] Haarnoja et al., Soft Actor-Critic Algorithms, arXiv:1812.05905
[3] github.com/SamsungLabs/tqc_pytorch
[4] Hiraoka et al., Dropout Q-Functions, arXiv:2110.02034

  rljax train tqc --env Hopper-v5
"""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import resets, temperatures
from rljax.requirements import (
    AtLeast,
    Count,
    DropoutRate,
    LogStd,
    NonNegative,
    Positive,
    Real,
    Share,
    Whole,
    Widths,
)


@agent.config
class Config(
    buffers.ReplaySettings,
    buffers.PrioritySettings,
    temperatures.WithTemperature,
    resets.WithResets,
    policies.WithPolicyNetwork,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [1]
    critic_lr: NonNegative = 3e-4  # of Adam; [1]
    batch_size: int = 256  # transitions per update; [1]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [1]
    warmup_steps: int = 10_000  # uniform actions, no update; 256 in [3]
    shift: int = 0  # pixels, at most; 4 in DrQ-v2
    # Targets
    discount: Share = 0.99  # gamma; [1]
    target_rate: Share = 0.005  # rho; [1]
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    # Distribution of returns
    quantiles: Annotated[int, AtLeast(2)] = 25  # of each critic; [1]
    dropped_quantiles: Whole = 2  # the largest, for each critic; [1], 0 to 5 by task
    kappa: Positive = 1.0  # error up to which the loss is quadratic; [1]
    # Policy
    target_entropy_share: Real = 1.0  # of -A, the target; [1]
    exploration: noise.Kind = "white"  # "held" in arXiv:2604.04539
    log_std_min: LogStd = -20.0  # lower clip of log std; [3]
    log_std_max: LogStd = 2.0  # upper clip of log std; [3]
    policy_delay: Count = 1  # updates per update of the actor
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of the actor; [1]
    critic_hidden: Widths | None = (512, 512, 512)  # of the critics; [1]
    num_critics: Count = 5  # C; [1]
    activation: networks.Activation = "relu"  # of hidden layers; [1]
    layer_norm: bool = False  # of the critics; True in [4]
    dropout: DropoutRate | None = None  # of critics' hidden units; 0.01 in [4]
    initialisation: networks.Initialisation = "torch"  # of all layers; [3]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("tqc", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.dropped_quantiles >= config.quantiles:
        raise ValueError(
            f"--config.dropped-quantiles is {config.dropped_quantiles}, it must be below "
            f"--config.quantiles {config.quantiles}."
        )
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = policies.gaussian_network(config.hidden, spec, config, *style)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    size = (config.num_critics, config.critic_widths)
    net = networks.Ensemble(*size, *style, config.layer_norm, config.quantiles)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        spec=spec,
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


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The mean [...] of all quantiles of actions [..., A]."""
    return state.critic(observation, action).mean(axis=(0, -1))


# [1, algorithm 1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Error of the quantiles to the truncated target."""
    head = heads.Quantile(config.quantiles, config.kappa)
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    dropout = networks.Dropout.of(config.dropout, key, 2)
    next_outputs = state.target_critic(batch.next_observation, next_action, dropout=dropout)
    next_outputs = heads.truncated(next_outputs, config.dropped_quantiles)  # [B, J]
    penalty = jnp.exp(state.log_temperature.parameters) * next_log_prob  # [B]
    reward = config.reward_scale * batch.reward
    discount = config.discount * (1.0 - batch.terminated)  # [B]
    target = head.target(next_outputs, reward, discount, penalty)
    dropout = networks.Dropout.of(config.dropout, key, 3)
    outputs = critic(batch.observation, batch.action, dropout=dropout)  # [C, B, K]
    error = head.loss(outputs, target) / config.quantiles
    loss = buffers.weighted(error, batch).mean(axis=-1).sum()
    means = {"critic/q": head.mean(outputs), "critic/target": head.target_mean(target)}
    metrics = {"critic/loss": loss} | jax.tree.map(jnp.mean, means)
    return loss, metrics | buffers.priorities(head.error(outputs, target), batch)


# [1, algorithm 1]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    dropout = networks.Dropout.of(config.dropout, key, 1)
    outputs = state.critic(batch.observation, action, dropout=dropout)  # [C, B, K]
    q = outputs.mean(axis=(0, -1))  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
        )
        state = state.replace(actor=actor, log_temperature=log_temperature)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(target_critic=target_critic)
    return resets.renewed(state, init, key, step, config), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
