"""SimbaV2 [off-policy]: SAC with features and weights of length 1.

gamma discount, alpha temperature, pi actor
Q_c critics with outputs l_c, Q'_c targets
z_i classes of values, p = softmax(l)
a~ ~ pi(.|s),  a' ~ pi(.|s') by the new pi
r is scaled by the std and the largest of returns
  L(pi)    = mean (alpha log pi(a~|s) - min_c Q_c(s, a~))
  L(alpha) = mean (-alpha (log pi(a~|s) + target_entropy))
  c*       = argmin_c mean Q'_c(s', a'),  for each row
  y_i      = r + gamma (1 - terminated) (z_i - alpha log pi(a'|s'))
  m        = projection of the y_i on the z_i, by p'_c*
  L(Q)     = sum_c mean (-sum_i m_i log p_ci)
  w       <- w / |w|  after each step of pi and of Q  [1, section 4.3]
             w: the weights into each unit
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  not projected

pi(.|s) is tanh of a Gaussian, whose log std is bounded by tanh.
Networks: rljax/networks/blocks/hypersphere.py.

Departs from [2]: normalised observations are clipped to [-10, 10].

[1] Lee et al., SimbaV2: Hyperspherical Normalization, arXiv:2502.15280
[2] github.com/DAVIAN-Robotics/SimbaV2

  rljax train simbav2 --env Hopper-v5
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise
from rljax.networks.blocks import hypersphere
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
    actor_lr: NonNegative = 1e-4  # of Adam, at the start; [2]
    critic_lr: NonNegative = 1e-4  # of Adam, at the start; [2]
    temperature_lr: NonNegative = 1e-4  # of Adam, at the start; [2]
    rate_schedule: optimisers.Schedule = "linear"  # of learning rates; [2]
    rate_end: Share = 0.5  # share of the rates at the end; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 5_000  # uniform actions, no update; [2]
    num_updates: int = 2  # per step; [1]
    normalise_observations: bool = True  # by running mean and std; [1]
    normalise_rewards: bool = True  # by the std of discounted returns; [1]
    carry_rewards: bool = True  # an episode's last begins the next sum; [2]
    return_limit: Positive | None = 5.0  # of scaled returns; [1]
    # Targets
    discount: Share = 0.99  # gamma; [2]: by the time limit
    target_rate: Share = 0.005  # rho; [2]
    value_head: heads.CriticKind = "c51"  # what critics learn: classes; [1]
    v_min: Real = -5.0  # lower end of the classes; [2]
    v_max: Real = 5.0  # upper end of the classes; [2]
    # Policy
    init_temperature: temperatures.Temperature = 0.01  # alpha; [2]
    temperature_loss: temperatures.Form = "alpha"  # alpha itself, not its log; [2]
    target_entropy_share: Real = 0.5  # of -A, the target; [2]
    log_std_min: LogStd = -10.0  # lower bound of log std; [2]
    log_std_max: LogStd = 2.0  # upper bound of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (128,)  # width, once for each block of the actor; [2]
    critic_hidden: Widths = (512, 512)  # the same of the critics; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]: 1 on DMC and MyoSuite


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and u
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, rewards=buffers.RewardScale.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("simbav2", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_one_width(config, "hidden", "critic_hidden")
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    mean_and_std = (spec.action_size, spec.action_size)
    net = hypersphere.HypersphereMLP(config.hidden, mean_and_std)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    features = heads.of_critics(config).features
    net = hypersphere.HypersphereMLP(config.critic_hidden, (features,))
    net = BlockEnsemble(config.num_critics, net)
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
    pi = distributions.squashed_within(state.actor(observation), config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    head = heads.of_critics(config)
    return head.mean(state.critic(observation, action)).mean(axis=0)


def actor_loss(
    actor: networks.Network,
    state: State,
    batch: Transition,
    key: Array,
    config: Config,
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    head, alpha = heads.of_critics(config), jnp.exp(state.log_temperature.parameters)
    pi = distributions.squashed_within(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = head.mean(state.critic(batch.observation, action))  # [C, B]
    loss = (alpha * log_prob - networks.smallest(q)).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def critic_loss(
    critic: networks.Network,
    state: State,
    batch: Transition,
    key: Array,
    config: Config,
) -> Loss:
    """Cross-entropy of all critics to one target."""
    head, alpha = heads.of_critics(config), jnp.exp(state.log_temperature.parameters)
    output = state.actor(batch.next_observation)
    pi = distributions.squashed_within(output, config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_outputs = state.target_critic(batch.next_observation, next_action)  # [C, B, K]
    next_outputs = heads.combined(next_outputs, head, config.target_value)  # [B, K]
    discount = config.discount * (1.0 - batch.terminated)  # [B]
    cost = alpha * next_log_prob  # [B]
    target = head.target(next_outputs, batch.reward, discount, cost)
    outputs = critic(batch.observation, batch.action)  # [C, B, K]
    loss = head.loss(outputs, target).mean(axis=-1).sum()
    clipped = head.clipped_mass(next_outputs, batch.reward, discount, cost)
    metrics = {
        "critic/loss": loss,
        "critic/q": head.mean(outputs).mean(),
        "critic/target": head.target_mean(target).mean(),
    }
    return loss, metrics | {name: x.mean() for name, x in clipped.items()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update the actor, alpha, the critics and their targets, in this order."""
    key_actor, key_critic = jax.random.split(key)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    inputs = (state, batch, key_actor, config)
    actor, metrics = state.actor.step(optimiser, actor_loss, *inputs)
    rate = optimisers.scheduled(config.temperature_lr, step, config)
    pace = TemperatureSettings.of(config, temperature_lr=rate)
    entropy, size = metrics["actor/entropy"], batch.action.shape[-1]
    inputs = (state.log_temperature, entropy, size, pace)
    log_temperature, more = temperatures.step(*inputs)
    metrics |= more
    state = state.replace(actor=actor, log_temperature=log_temperature)

    optimiser = networks.optimiser(config.critic_lr, step, config)
    inputs = (state, batch, key_critic, config)
    critic, more = state.critic.step(optimiser, critic_loss, *inputs)
    rate = config.target_rate
    target_critic = networks.polyak(critic, state.target_critic, rate)
    state = state.replace(critic=critic, target_critic=target_critic)
    return state, metrics | more


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
