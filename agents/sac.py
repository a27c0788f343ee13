"""SAC [off-policy]: off-policy actor-critic of maximum entropy.

gamma discount, alpha temperature, pi actor
Q_c critics, Q'_c targets
a' ~ pi(.|s'),  a~ ~ pi(.|s)
  y        = r + gamma (1 - terminated) (min_c Q'_c(s', a') - alpha log pi(a'|s'))
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [1, eq. 5, without its 1/2]
  L(pi)    = mean (alpha log pi(a~|s) - min_c Q_c(s, a~))  [1, eq. 9]
  L(alpha) = mean (-log alpha (log pi(a~|s) + target_entropy))  [1, eq. 18]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

pi(.|s) is tanh of a Gaussian, with the density of actions in [-1, 1].

Departs from the paper: log alpha for alpha in L(alpha), as in SB3.

[1] Haarnoja et al., Soft Actor-Critic Algorithms, arXiv:1812.05905
[2] Chen et al., Randomized Ensembled Double Q-Learning, arXiv:2101.05982
[3] Andrychowicz et al., Hindsight Experience Replay, arXiv:1707.01495

  rljax train sac --env Hopper-v5
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import resets, temperatures
from rljax.requirements import (
    Count,
    DropoutRate,
    LogStd,
    NonNegative,
    Positive,
    Real,
    Share,
    Widths,
)


@agent.config
class Config(
    buffers.ReplaySettings,
    buffers.PrioritySettings,
    temperatures.WithTemperature,
    heads.WithCriticHead,
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
    warmup_steps: int = 10_000  # uniform actions, no update; Spinning Up
    shift: int = 0  # pixels, at most; 4 in DrQ-v2
    # Targets
    discount: Share = 0.99  # gamma; [1]
    target_rate: Share = 0.005  # rho; [1]
    reward_scale: Positive = 1.0  # factor on rewards; Brax: 5 to 30
    reward_shift: Real | None = None  # then added to them; -1 in RLPD on AntMaze
    entropy_backup: bool = True  # entropy in the target; False in SERL
    num_next_actions: Count = 1  # the best one counts; 10 in WSRL on AntMaze
    # Policy
    target_entropy_share: Real = 1.0  # of -A, the target; RLPD, Brax: 0.5
    exploration: noise.Kind = "white"  # "held" in arXiv:2604.04539
    log_std_min: LogStd = -20.0  # lower clip of log std; Spinning Up
    log_std_max: LogStd = 2.0  # upper clip of log std; Spinning Up
    actor_value: Literal["smallest", "mean"] = "smallest"  # of critics; mean in [2]
    policy_delay: Count = 1  # updates per update of the actor
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [1]
    num_critics: Count = 2  # C; the smallest counts; [1]
    min_critics: int | None = None  # random ones that count; 2 in [2]
    with_replacement: bool = False  # they may be the same; True in WSRL
    activation: networks.Activation = "relu"  # of hidden layers; [1]
    layer_norm: bool = False  # of the critics; True in RLPD
    dropout: DropoutRate | None = None  # of critics' hidden units; 0.01 in DroQ
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; code of [1]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C (, K)]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("sac", spec, "sac_discrete")
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_subset(config.min_critics, config.num_critics)
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = policies.gaussian_network(config.hidden, spec, config, *style)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    size, features = (config.num_critics, config.critic_widths), heads.of_critics(config).features
    net = networks.Ensemble(*size, *style, config.layer_norm, features)
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
    """The critics' mean [...] of actions [..., A]."""
    return heads.of_critics(config).mean(state.critic(observation, action)).mean(axis=0)


# [1, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Error of the critics to the soft target."""
    head = heads.of_critics(config)
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    shape = () if config.num_next_actions == 1 else (config.num_next_actions,)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key, sample_shape=shape)
    dropout = networks.Dropout.of(config.dropout, key, 2)
    next_outputs = state.target_critic(batch.next_observation, next_action, dropout=dropout)
    subset = (config.min_critics, jax.random.fold_in(key, 1), config.with_replacement)
    next_outputs = networks.subset(next_outputs, *subset)  # [C, (N,) B (, K)]
    next_outputs = heads.combined(next_outputs, head, config.target_value)
    penalty = jnp.exp(state.log_temperature.parameters) * next_log_prob  # [(N,) B]
    penalty = penalty if config.entropy_backup else jnp.zeros_like(penalty)
    if shape:
        next_outputs, penalty = heads.best_of_actions(next_outputs, penalty, head)
    reward = config.reward_scale * batch.reward
    if config.reward_shift is not None:
        reward += config.reward_shift
    discount = config.discount * (1.0 - batch.terminated)  # [B]
    target = head.target(next_outputs, reward, discount, penalty)
    dropout = networks.Dropout.of(config.dropout, key, 3)
    outputs = critic(batch.observation, batch.action, dropout=dropout)  # [C, B (, K)]
    loss = buffers.weighted(head.loss(outputs, target), batch).mean(axis=-1).sum()
    means = {"critic/q": head.mean(outputs), "critic/target": head.target_mean(target)}
    means |= head.clipped_mass(next_outputs, reward, discount, penalty)
    metrics = {"critic/loss": loss} | jax.tree.map(jnp.mean, means)
    return loss, metrics | buffers.priorities(head.error(outputs, target), batch)


# [1, eq. 9]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    dropout = networks.Dropout.of(config.dropout, key, 1)
    outputs = state.critic(batch.observation, action, dropout=dropout)
    q = heads.of_critics(config).mean(outputs)  # [C, B]
    q = networks.smallest(q) if config.actor_value == "smallest" else q.mean(axis=0)  # [B]
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
