"""FlashSAC [off-policy]: SAC with constant norms and classes of values.

gamma discount, alpha temperature, pi actor
Q_c critics with outputs l_c, Q'_c targets
z_i classes of values, p = softmax(l)
a' ~ pi(.|s'),  a~ ~ pi(.|s)
r is scaled by returns
first, once in `policy_delay` updates:
  L(pi)     = mean (alpha log pi(a~|s) - min_c Q_c(s, a~))
              + beta mean |min_c Q_c| mean (a~ - a)^2  [3]
              the actor in training mode over [s; s']
              critics by running statistics
  L(alpha)  = mean (-alpha (log pi(a~|s) + target_entropy))
then, with the new actor and the new alpha:
  [l_c; .]  = Q_c([s; s'], [a; a'])
              one pass in training mode over both halves, Q'_c alike
  c*        = argmin_c mean Q'_c(s', a'),  for each row
  y_i       = r + gamma (1 - terminated) (z_i - alpha log pi(a'|s'))
  m         = projection of the y_i on the z_i, by p'_c*
  L(Q)      = mean_c mean (-sum_i m_i log p_ci)
  W        <- W / |W|  after each step; scales and shifts alike
  Q'_c     <- (1 - rho) Q'_c + rho Q_c

pi(.|s) is tanh of a Gaussian,
whose log std is kept in bounds by tanh.
Exploring noise is held for some steps.
target_entropy is that of a Gaussian
with a std of `target_std`.

Departs from [2]: mean and log std are one layer of the actor.
Each environment holds noise of its own, within an episode.

[1] Kim et al., FlashSAC, arXiv:2604.04539
[2] github.com/Holiday-Robot/FlashSAC
[3] arXiv:2306.02451, as [2] has it

  rljax train flashsac --env Hopper-v5
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise
from rljax.networks.blocks import batch_norm
from rljax.networks.blocks import inverted_bottleneck as blocks
from rljax.networks.blocks.batch_norm import MovedLoss
from rljax.networks.blocks.ensemble import BlockEnsemble
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import optimisers, temperatures
from rljax.networks.optimisation.temperatures import TemperatureSettings
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(
    buffers.ReplaySettings,
    heads.WithCriticHead,
    temperatures.WithTemperature,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    critic_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    rate_schedule: optimisers.Schedule = "cosine"  # of learning rates; [2]
    rate_end: Share = 0.5  # share of rates at the end; [2]
    policy_delay: Count = 2  # updates per step of the actor; [2]
    unit_norm: bool = True  # constant norms of weights; [1]
    batch_size: int = 512  # transitions per update; [2] on a CPU
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 10_000  # uniform actions, no update; [2]
    n_step: Count = 1  # rewards in r; [2], 3 on IsaacLab
    normalise_rewards: bool = True  # by std and size of returns; [1]
    carry_rewards: bool = True  # a last one begins the next sum; [2]
    return_limit: Positive = 5.0  # in size, after scaling; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.01  # rho; [2]
    value_head: heads.CriticKind = "c51"  # critics learn classes; [1]
    v_min: Real = -5.0  # lower end of the classes; [2]
    v_max: Real = 5.0  # upper end of the classes; [2]
    # Policy
    init_temperature: temperatures.Temperature = 0.01  # alpha; [2]
    temperature_loss: temperatures.Form = "alpha"  # not of its log; [2]
    target_std: Positive = 0.15  # whose entropy is the target; [2]
    exploration: noise.Kind = "held"  # how noise lasts; [1]
    imitation_weight: NonNegative = 0.0  # beta, towards the data; [2]
    log_std_min: LogStd = -10.0  # lower bound of log std; [2]
    log_std_max: LogStd = 2.0  # upper bound of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (128, 128)  # of the actor's blocks; [2]
    critic_hidden: Widths = (256, 256)  # of the critics' blocks; [2]
    expansion: Count = 4  # of a block's inner layer; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]


class State(struct.PyTreeNode):
    """What learning changes; statistics are in the networks."""

    actor: networks.Trained  # [O] -> [2 A]
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    draw, scale = buffers.draw_of(config), buffers.RewardScale.of(config)
    return buffers.Replay.of(config, draw=draw, rewards=scale)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("flashsac", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_one_width(config, "hidden", "critic_hidden")
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters and statistics; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.expansion, config.activation, config.unit_norm)
    size = (config.hidden, 2 * spec.action_size)
    net = blocks.InvertedBottleneckMLP(*size, *style)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    size = (config.critic_hidden, heads.of_critics(config).features)
    net = blocks.InvertedBottleneckMLP(*size, *style)
    net = BlockEnsemble(config.num_critics, net)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
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
    pi = distributions.squashed_within(state.actor(observation), config)
    action, memory = noise.action(pi, key, explore, memory)
    return action, {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    outputs = state.critic(observation, action)
    return heads.of_critics(config).mean(outputs).mean(axis=0)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Weighted log-probability minus the critics' value, and the moved actor."""
    both = batch_norm.joint(batch.observation, batch.next_observation)
    output, moved = actor.apply_mutable(both, train=True)
    pi = distributions.squashed_within(output[: len(batch.action)], config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    outputs = state.critic(batch.observation, action)
    q = heads.of_critics(config).mean(outputs)  # [C, B]
    q = networks.smallest(q)
    temperature = jnp.exp(state.log_temperature.parameters)
    loss = (temperature * log_prob - q).mean()
    size = jax.lax.stop_gradient(jnp.abs(q).mean())
    distance = jnp.square(action - batch.action).mean()
    loss += config.imitation_weight * size * distance
    return loss, (moved, {"actor/loss": loss, "actor/entropy": -log_prob.mean()})


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Cross-entropy of all critics to one target, and the moved critics."""
    head = heads.of_critics(config)
    pi = distributions.squashed_within(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    both = batch_norm.joint(batch.observation, batch.next_observation)
    actions = batch_norm.joint(batch.action, next_action)
    outputs, moved = critic.apply_mutable(both, actions, train=True)  # [C, 2 B, K]
    next_outputs, _ = state.target_critic.apply_mutable(both, actions, train=True)
    number = len(next_action)
    outputs, next_outputs = outputs[:, :number], next_outputs[:, number:]
    next_outputs = heads.combined(next_outputs, head, config.target_value)  # [B, K]
    discount = batch.extras.get("discount", config.discount)
    discount *= 1.0 - batch.terminated  # [B]
    cost = jnp.exp(state.log_temperature.parameters) * next_log_prob
    target = head.target(next_outputs, batch.reward, discount, cost)
    loss = head.loss(outputs, target).mean()
    clipped = head.clipped_mass(next_outputs, batch.reward, discount, cost)
    metrics = {
        "critic/loss": loss,
        "critic/q": head.mean(outputs).mean(),
        "critic/target": head.target_mean(target).mean(),
    }
    return loss, (moved, metrics | {name: x.mean() for name, x in clipped.items()})


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update actor and temperature, if due, then the rest."""
    key_actor, key_critic = jax.random.split(key)
    steps = step // config.policy_delay  # of the actor; [2]

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, steps, config)
        inputs = (state, batch, key_actor, config)
        actor, metrics = state.actor.step_mutable(optimiser, actor_loss, *inputs)
        share = -0.5 * jnp.log(2.0 * math.pi * math.e * config.target_std**2)
        pace = TemperatureSettings.of(
            config,
            temperature_lr=optimisers.scheduled(config.temperature_lr, steps, config),
            target_entropy_share=share,
        )
        entropy, size = metrics["actor/entropy"], batch.action.shape[-1]
        log_temperature, more = temperatures.step(state.log_temperature, entropy, size, pace)
        return state.replace(actor=actor, log_temperature=log_temperature), metrics | more

    state, actor_metrics = agent.every(config.policy_delay, step - 1, improve, state)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    inputs = (state, batch, key_critic, config)
    critic, metrics = state.critic.step_mutable(optimiser, critic_loss, *inputs)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(critic=critic, target_critic=target_critic)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
