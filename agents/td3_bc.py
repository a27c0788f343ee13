"""TD3+BC [offline]: TD3 on a data set, with an actor near the data's actions.

alpha value weight, Q_0 first critic, mu actor, A action dimensions
critics and targets as in TD3
  s       <- (s - mean) / (std + 1e-3)  [1, eq. 4], over the data set
  lambda   = alpha / mean |Q_0(s, mu(s))|  [1, eq. 5], without a gradient
  L(mu)    = mean [ |mu(s) - a|^2 / A - lambda Q_0(s, mu(s)) ]  [1, eq. 3]

Departs from the paper where the authors' code [2] does: it has 1 / A,
where eq. 3 has the sum over dimensions (`imitation = "sum"`).
Its lambda is a mean over the policy's actions.
With `value_head`, the error of Q_c is a cross-entropy [3].

[1] Fujimoto and Gu, A Minimalist Approach to Offline RL, arXiv:2106.06860
[2] github.com/sfujim/TD3_BC
[3] Farebrother et al., Stop Regressing, arXiv:2403.03950

  rljax train td3_bc --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, heads
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import HeadSettings
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings, heads.WithHead):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Data
    normalise_observations: bool = True  # by mean and std; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    target_noise: NonNegative = 0.2  # std on target actions; [2]
    target_noise_clip: NonNegative = 0.5  # bound of that noise; [2]
    # Policy
    value_weight: NonNegative = 2.5  # alpha: 0 imitates the data; [2]
    imitation: Literal["mean", "sum"] = "mean"  # over dimensions; [2], sum in [1]
    exploration_noise: NonNegative = 0.1  # std of noise on actions; [2]
    policy_delay: Count = 2  # updates per update of actor and targets; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    min_critics: int | None = None  # random ones that count; 2 in REDQ
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [A]: before tanh
    critic: networks.Trained  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("td3_bc", spec)
    agent.require_subset(config.min_critics, config.num_critics)
    heads.check_bins(HeadSettings.of(config))
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm)
    net = encoders.encoded(spec, encoding, net)
    head, action = HeadSettings.of(config), jnp.zeros(spec.action_shape)
    critic = networks.create_critic(net, head, spec, key_critic, spec.example(), action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Fit any bins to the returns of the data [N, ...]."""
    settings = (data, config.discount, config.reward_scale)
    return state.replace(
        critic=networks.fit_bins(state.critic, *settings),
        target_critic=networks.fit_bins(state.target_critic, *settings),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    action = policy(state.actor, observation)
    if not explore:
        return action, {}
    action += config.exploration_noise * jax.random.normal(key, action.shape)
    return jnp.clip(action, -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.AnyNetwork, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# TD3's, arXiv:1802.09477, algorithm 1
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Error of the critics to the target."""
    smoothing = config.target_noise * jax.random.normal(key, batch.action.shape)
    smoothing = jnp.clip(smoothing, -config.target_noise_clip, config.target_noise_clip)
    next_action = policy(state.target_actor, batch.next_observation)
    next_action = jnp.clip(next_action + smoothing, -1.0, 1.0)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    key_subset = jax.random.fold_in(key, 1)
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key_subset)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    # outputs are [C, B], or [C, B, K] of bins
    outputs, head = networks.outputs_and_head(critic, batch.observation, batch.action)
    q = head.mean(outputs)
    errors = head.loss(outputs, head.encode(target))
    loss = buffers.weighted(errors, batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | head.clipped(target) | buffers.priorities(q - target, batch)


# [1, eq. 3]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Distance to the data minus the first critic's value."""
    first_critic = networks.member(state.critic, 0)
    action = policy(actor, batch.observation)
    q = first_critic(batch.observation, action)  # [1, B]
    scale = config.value_weight / jax.lax.stop_gradient(jnp.abs(q).mean())
    distance = jnp.square(action - batch.action).mean(axis=0)  # [A]
    imitation = distance.mean() if config.imitation == "mean" else distance.sum()
    loss = imitation - scale * q.mean()
    return loss, {
        "actor/loss": loss,
        "actor/imitation": imitation,
        "actor/value_scale": scale,
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, config)
        rate = config.target_rate
        state = state.replace(
            actor=actor,
            target_actor=networks.polyak(actor, state.target_actor, rate),
            target_critic=networks.polyak(critic, state.target_critic, rate),
        )
        return state, metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
