"""CrossQ [off-policy]: SAC with batch normalisation and without targets.

gamma discount, alpha temperature, pi actor, Q_c critics
a' ~ pi(.|s'),  a~ ~ pi(.|s)
  [q_c; q'_c] = Q_c([s; s'], [a; a'])  [1, eq. 4]
                one pass in training mode over both halves
  y           = r + gamma (1 - terminated) (min_c q'_c - alpha log pi(a'|s'))
  L(Q)        = sum_c 1/2 mean (q_c - y)^2
  L(pi)       = mean (alpha log pi(a~|s) - min_c Q_c(s, a~))
                critics by running statistics
  L(alpha)    = mean (-alpha (log pi(a~|s) + target_entropy))

pi(.|s) is tanh of a Gaussian.
Batch normalisation is renormalised after a while [3].

Departs from [2]: mean and log std are one layer of the actor.

[1] Bhatt et al., CrossQ, arXiv:1902.05605
[2] github.com/adityab/CrossQ
[3] Ioffe, Batch Renormalization, arXiv:1702.03275

  rljax train crossq --env Hopper-v5
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, noise
from rljax.networks.blocks import batch_norm
from rljax.networks.blocks.batch_norm import MovedLoss
from rljax.networks.blocks.ensemble import BlockEnsemble
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, Decay, LogStd, NonNegative, Real, Share, Whole, Widths


@agent.config
class Config(
    buffers.ReplaySettings,
    temperatures.WithTemperature,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-3  # of Adam; [2]
    critic_lr: NonNegative = 1e-3  # of Adam; [2]
    temperature_lr: NonNegative = 1e-3  # of Adam, for log alpha; [2]
    momentum: Decay = 0.5  # beta_1 of Adam, but 0.9 for log alpha; [2]
    policy_delay: Count = 3  # updates per step of actor and temperature; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 5_000  # uniform actions, no update; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    # Policy
    temperature_loss: temperatures.Form = "alpha"  # alpha itself, not its log; [2]
    target_entropy_share: Real = 1.0  # of -A, the target; [2]
    log_std_min: LogStd = -20.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of the actor; [2]
    critic_hidden: Widths = (2048, 2048)  # of the critics; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "lecun_normal"  # of all layers; [2]
    renormed_after: Whole = 100_000  # passes in training mode; [2]


class State(struct.PyTreeNode):
    """What learning changes; statistics are in the networks."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("crossq", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters and statistics."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = ("after", config.activation, config.initialisation)
    after = {"renormed_after": config.renormed_after}
    net = batch_norm.BatchNormMLP(config.hidden, 2 * spec.action_size, *style, **after)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    net = batch_norm.BatchNormMLP(config.critic_hidden, 1, *style, **after)
    net = BlockEnsemble(config.num_critics, net)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        log_temperature=temperatures.create(config),
    )


def optimiser(rate: Array | float, step: Array, config: Config) -> optax.GradientTransformation:
    """The optimiser of actor and critics, after `step` [] updates."""
    return networks.optimiser(rate, step, config, momentum=config.momentum)


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


# [1, eq. 4]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Squared error of all critics, and the critics with new statistics."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    both = batch_norm.joint(batch.observation, batch.next_observation)
    actions = batch_norm.joint(batch.action, next_action)
    values, moved = critic.apply_mutable(both, actions, train=True)
    q, next_q = jnp.split(values, 2, axis=-1)  # [C, B]
    cost = jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * (networks.smallest(next_q) - cost)
    loss = 0.5 * jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, (moved, metrics)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Weighted log-probability minus the critics' value, and the actor with new statistics."""
    output, moved = actor.apply_mutable(batch.observation, train=True)
    pi = distributions.squashed(output, config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, (moved, {"actor/loss": loss, "actor/entropy": -log_prob.mean()})


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    key_critic, key_actor = jax.random.split(key)
    adam = optimiser(config.critic_lr, step, config)
    inputs = (state, batch, key_critic, config)
    critic, metrics = state.critic.step_mutable(adam, critic_loss, *inputs)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        adam = optimiser(config.actor_lr, step, config)
        inputs = (state, batch, key_actor, config)
        actor, metrics = state.actor.step_mutable(adam, actor_loss, *inputs)
        entropy, size = metrics["actor/entropy"], batch.action.shape[-1]
        log_temperature, more = temperatures.step(state.log_temperature, entropy, size, config)
        return state.replace(actor=actor, log_temperature=log_temperature), metrics | more

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
