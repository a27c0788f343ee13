"""ReBRAC [offline]: TD3+BC whose critics are also penalised.

beta_1 actor's penalty, beta_2 critics' penalty, mu actor
a'_data next action of the data; targets as in TD3
  a'       = clip(mu'(s') + clip(noise))
  v        = min_c Q'_c(s', a') - beta_2 |a' - a'_data|^2
  y        = r + gamma (1 - terminated) v
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [1, eq. 5]
  lambda   = 1 / mean |min_c Q_c(s, mu(s))|  [2], without a gradient
  L(mu)    = mean [ beta_1 |mu(s) - a|^2 - lambda min_c Q_c(s, mu(s)) ]  [1, eq. 6]

With chunk_length h above 1, a is a chunk [4]: r its discounted rewards, gamma
to the power of h. L(Q) and the distance to a count whole chunks alone.

Departs from the paper: lambda scales the value, as in the code [2].
The last row of a cut trajectory has no next action, and no penalty.
Online, beta_1 can fall: to `penalty_end` of itself, as in [3].

[1] Tarasov et al., ReBRAC, arXiv:2305.09836
[2] github.com/DT6A/ReBRAC
[3] github.com/corl-team/CORL, algorithms/*/rebrac.py
[4] Q-learning with Adjoint Matching, arXiv:2601.14234, code

  rljax train rebrac --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, policies
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share, Widths


@agent.config
class Config(
    networks.WithCritics, networks.WithPessimism, buffers.WithChunks, buffers.DatasetSettings
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-3  # of Adam; [2], Adroit, AntMaze: 3e-4
    critic_lr: NonNegative = 1e-3  # of Adam; [2], AntMaze: 5e-5
    batch_size: int = 1024  # transitions per update; [2], AntMaze: 256
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    critic_penalty: NonNegative = 1.0  # beta_2; [3], tuned in [2]; online 0 in [3]
    target_noise: NonNegative = 0.2  # std on target actions; [2]
    target_noise_clip: NonNegative = 0.5  # bound of that noise; [2]
    # Policy
    actor_penalty: NonNegative = 1.0  # beta_1; [3], tuned in [2]
    penalty_end: Share = 1.0  # of beta_1, to which it falls; online 0.5 in [3]
    decay_begin: NonNegative = 0.0  # update, or share, where it begins to fall
    decay_end: NonNegative = 1.0  # update, or share, where it has fallen
    exploration_noise: NonNegative = 0.1  # std of noise on actions; TD3, 0 in [3]
    policy_delay: Count = 2  # updates per update of actor and targets; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    min_critics: int | None = None  # random ones that count; 2 in REDQ
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: networks.Norm = "last"  # of the critics, after activation; [2]
    initialisation: networks.Initialisation = "edac"  # close to [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [A]: before tanh
    critic: networks.Trained  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches with next actions; half new online."""
    columns = (buffers.NextAction(),) if config.chunk_length == 1 else ()
    online = buffers.Replay.of(config, columns=columns)
    return buffers.Dataset.of(config, columns=columns, online=online)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into updates."""
    return agent.in_steps(config, steps, "decay_begin", "decay_end")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("rebrac", spec)
    agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, EncoderSettings.of(config))
    if config.chunk_length > 1 and np.any(np.asarray(config.critic_penalty) > 0.0):
        raise ValueError(
            "the critics' penalty is of single actions: with --config.chunk-length "
            f"{config.chunk_length}, use --config.critic-penalty 0."
        )


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    spec = policies.chunk_spec(spec, config.chunk_length)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """The chunk that is played."""
    return policies.first_chunk(spec, config.chunk_length)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""

    def decide() -> Array:
        action = policy(state.actor, observation)
        if not explore:
            return action
        action += config.exploration_noise * jax.random.normal(key, action.shape)
        return jnp.clip(action, -1.0, 1.0)

    return policies.act_in_chunks(decide, memory, config.chunk_length)


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    policies.refuse_chunks(config.chunk_length)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.AnyNetwork, observation: Array) -> Array:
    """mu(s) [..., h A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# [1, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the target."""
    smoothing = config.target_noise * jax.random.normal(key, batch.action.shape)
    smoothing = jnp.clip(smoothing, -config.target_noise_clip, config.target_noise_clip)
    next_action = policy(state.target_actor, batch.next_observation)
    next_action = jnp.clip(next_action + smoothing, -1.0, 1.0)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    key_subset = jax.random.fold_in(key, 1)
    next_q = networks.subset(next_q, config.min_critics, key_subset)
    next_q = networks.lower_bound(next_q, config.pessimism)  # [B]
    penalty = jnp.zeros_like(next_q)
    if config.chunk_length == 1:
        distance = jnp.square(next_action - batch.extras["next_action"]).sum(axis=-1)  # [B]
        distance = jnp.where(batch.extras["has_next_action"], distance, 0.0)
        penalty = config.critic_penalty * distance
    target = buffers.bootstrapped(batch, next_q - penalty, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = buffers.weighted(jnp.square(error), batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
        "critic/penalty": penalty.mean(),
    }
    return loss, metrics | buffers.priorities(error, batch)


def penalty_share(step: Array, config: Config) -> Array:
    """The share of beta_1 [] after `step` updates."""
    ends = jnp.stack([config.decay_begin, config.decay_end])
    return jnp.interp(step, ends, jnp.stack([1.0, config.penalty_end]))


# [1, eq. 6]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, step: Array, config: Config
) -> Loss:
    """Distance to the data minus value."""
    action = policy(actor, batch.observation)
    q = networks.lower_bound(state.critic(batch.observation, action), config.pessimism)  # [B]
    scale = 1.0 / jax.lax.stop_gradient(jnp.abs(q).mean())
    distance = jnp.square(action - batch.action).sum(axis=-1)
    imitation = buffers.weighted(distance, batch).mean()
    beta = config.actor_penalty * penalty_share(step, config)
    loss = beta * imitation - scale * q.mean()
    return loss, {
        "actor/loss": loss,
        "actor/imitation": imitation,
        "actor/value_scale": scale,
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    batch = buffers.with_chunk_return(batch, config.discount)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, step, config)
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
