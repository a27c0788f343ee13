"""XQC [off-policy]: SAC with batch norm, unit weights and classes of values.

gamma discount, alpha temperature, pi actor
Q_c critics with outputs l_c, Q'_c targets
z_i classes of values, p = softmax(l)
a' ~ pi(.|s'),  a~ ~ pi(.|s)
r is scaled by the std of returns
  [l_c; .]  = Q_c([s; s'], [a; a'])
              one pass in training mode over both halves, Q'_c alike
  c*        = argmin_c mean Q'_c(s', a'),  for each row
  y_i       = r + gamma (1 - terminated) (z_i - alpha log pi(a'|s'))
  m         = projection of the y_i on the z_i, by p'_c*
  L(Q)      = sum_c mean (-sum_i m_i log p_ci)  [1, eq. 3 and 4]
              or, with "squared", 1/2 mean (Q_c - y)^2
  L(pi)     = mean (alpha log pi(a~|s) - min_c Q_c(s, a~))
              critics by running statistics
  L(alpha)  = mean (-alpha (log pi(a~|s) + target_entropy))
  W        <- W / |W|  after each step  [1, section 4.2]
              W: the weights into each unit of a dense layer
  Q'_c     <- (1 - rho) Q'_c + rho Q_c

pi(.|s) is tanh of a Gaussian.
With `norm_place = "after"`, without unit weights, classes and scaled rewards
it is the authors' CrossQ, which has targets, and not that of [3].

Departs from [2]: mean and log std are one layer of the actor.

[1] Palenicek et al., XQC: Well-conditioned Optimization, arXiv:2509.25174
[2] github.com/danielpalenicek/xqc
[3] Bhatt et al., CrossQ, arXiv:1902.05605

  rljax train xqc --env Hopper-v5
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise
from rljax.networks.blocks import batch_norm
from rljax.networks.blocks.batch_norm import MovedLoss
from rljax.networks.blocks.ensemble import BlockEnsemble
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import optimisers, temperatures
from rljax.networks.optimisation.temperatures import TemperatureSettings
from rljax.requirements import Count, LogStd, NonNegative, Real, Share, Widths


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
    rate_schedule: optimisers.Schedule = "linear"  # of learning rates; [2]
    rate_end: Share = 0.1  # share of the rates at the end; [2]
    policy_delay: Count = 3  # updates per step of actor and temperature; [2]
    unit_norm: bool = True  # weights into each unit have length 1; [1]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 5_000  # uniform actions, no update; [2]
    num_updates: int = 2  # per step; [2]
    normalise_rewards: bool = True  # by the std of discounted returns; [1]
    carry_rewards: bool = True  # an episode's last begins the next sum; [2]
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
    log_std_min: LogStd = -10.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256, 256)  # of the actor; [2]
    critic_hidden: Widths = (512, 512, 512, 512)  # of the critics; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    norm_place: batch_norm.Place = "before"  # before or after the activation; [1]


class State(struct.PyTreeNode):
    """What learning changes; statistics are in the networks."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, rewards=buffers.RewardScale.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("xqc", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters and statistics; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.norm_place, config.activation)
    net = batch_norm.BatchNormMLP(
        config.hidden, 2 * spec.action_size, *style, unit_norm=config.unit_norm
    )
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    features = heads.of_critics(config).features
    net = batch_norm.BatchNormMLP(
        config.critic_hidden, features, *style, unit_norm=config.unit_norm
    )
    net = BlockEnsemble(config.num_critics, net)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
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
    return heads.of_critics(config).mean(state.critic(observation, action)).mean(axis=0)


# [1, eq. 3 and 4]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Cross-entropy of all critics to one target, and the critics with new statistics."""
    head = heads.of_critics(config)
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    both = batch_norm.joint(batch.observation, batch.next_observation)
    actions = batch_norm.joint(batch.action, next_action)
    outputs, moved = critic.apply_mutable(both, actions, train=True)  # [C, 2 B, K]
    next_outputs, _ = state.target_critic.apply_mutable(both, actions, train=True)
    number = len(next_action)
    outputs, next_outputs = outputs[:, :number], next_outputs[:, number:]
    next_outputs = heads.combined(next_outputs, head, config.target_value)  # [B, K]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    cost = jnp.exp(state.log_temperature.parameters) * next_log_prob
    target = head.target(next_outputs, batch.reward, bootstrap, cost)
    loss = head.loss(outputs, target).mean(axis=-1).sum()
    loss = 0.5 * loss if config.value_head == "squared" else loss
    clipped = head.clipped_mass(next_outputs, batch.reward, bootstrap, cost)
    metrics = {
        "critic/loss": loss,
        "critic/q": head.mean(outputs).mean(),
        "critic/target": head.target_mean(target).mean(),
    }
    return loss, (moved, metrics | {name: x.mean() for name, x in clipped.items()})


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    output, _ = actor.apply_mutable(batch.observation, train=True)
    pi = distributions.squashed(output, config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = heads.of_critics(config).mean(state.critic(batch.observation, action))  # [C, B]
    loss = jnp.exp(state.log_temperature.parameters) * log_prob - networks.smallest(q)
    loss = loss.mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    inputs = (state, batch, key_critic, config)
    critic, metrics = state.critic.step_mutable(optimiser, critic_loss, *inputs)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(critic=critic, target_critic=target_critic)
    _, observed = state.actor.parameters.apply_mutable(batch.observation, train=True)
    steps = step // config.policy_delay  # of the actor: its rate falls with them [2]

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, steps, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
        rate = optimisers.scheduled(config.temperature_lr, steps, config)
        pace = TemperatureSettings.of(config, temperature_lr=rate)
        entropy, size = metrics["actor/entropy"], batch.action.shape[-1]
        log_temperature, more = temperatures.step(state.log_temperature, entropy, size, pace)
        return state.replace(actor=actor, log_temperature=log_temperature), metrics | more

    state, actor_metrics = agent.every(config.policy_delay, step - 1, improve, state)
    statistics = state.actor.parameters.replace(collections=observed.collections)
    state = state.replace(actor=state.actor.replace(parameters=statistics))
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
