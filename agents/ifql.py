"""IFQL [generative]: IQL's values, and a flow that imitates the data.

gamma discount, tau expectile, V value, Q_c critics
Q'_c targets, v flow, x and z standard normal
flow(s, z) where flow_steps Euler steps along v lead from z
  u        = min_c Q'_c(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]  [3, eq. 5]
  t        ~ U(0, 1),  a_t = (1 - t) x + t a
  L(v)     = mean (v(s, a_t, t) - (a - x))^2  [1, eq. 4]
  y        = r + gamma (1 - terminated) V(s')  V before its step
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [3, eq. 6]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  acts by the flow(s, z_i) with the largest min_c Q_c, i = 1..num_candidates

With chunk_length h above 1, a is a chunk [5]: r its discounted rewards, gamma
to the power of h, and L(v) and L(Q) count whole chunks alone.

Departs from the paper: IDQL [4] has a diffusion model. This is FQL's
baseline [1, 2], with targets that follow the new critics.

[1] Park et al., Flow Q-Learning, arXiv:2502.02538
[2] github.com/seohongpark/fql
[3] Kostrikov et al., Implicit Q-Learning, arXiv:2110.06169
[4] Hansen-Estruch et al., IDQL, arXiv:2304.10573
[5] Q-learning with Adjoint Matching, arXiv:2601.14234, code

  rljax train ifql --data ogbench/cube-single-play-singletask-v0
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import expectiles
from rljax.requirements import Count, NonNegative, Share


@agent.config
class Config(
    networks.WithCritics,
    networks.WithPessimism,
    generative.WithFlowNetworks,
    buffers.WithChunks,
    buffers.RowSettings,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, of the flow; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    expectile: Share = 0.9  # tau: 0.5 is the mean; [2]
    # Policy
    num_candidates: Count = 32  # actions of the flow; [2]
    flow_steps: Count = 10  # Euler steps to an action; [2]
    # Networks
    num_critics: Count = 2  # C; the smallest counts; [2]
    precision: networks.Precision = "float32"  # of products forwards; own choice


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_t, s, t -> velocity [A]
    critic: networks.Trained  # [O], [A] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("ifql", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    spec = policies.chunk_spec(spec, config.chunk_length)
    actor = config.create_field(spec, key_actor)
    critic = config.create_critics(spec, key_critic)
    style = networks.style_of(config)
    net = networks.MLP(config.critic_widths, 1, layer_norm=config.norm, **style)
    value = encoders.create(spec, EncoderSettings.of(config), net, key_value)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        value=networks.trained(value, config.value_lr, config),
        target_critic=networks.copy(critic),
        spec=spec,
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """The chunk that is played."""
    return policies.first_chunk(spec, config.chunk_length)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    return policies.act_in_chunks(
        lambda: best(state, observation, key, config), memory, config.chunk_length
    )


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    policies.refuse_chunks(config.chunk_length)
    return state.critic(observation, action).mean(axis=0)


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """flow(s, z) [..., h A]."""
    return generative.euler(lambda a, t: state.actor(a, observation, t), noise, config.flow_steps)


def best(state: State, observation: Array, key: Array, config: Config) -> Array:
    """The flow's action [..., h A] with the largest min_c Q_c."""
    observation = generative.repeated(state.spec, observation, config.num_candidates)
    noise = generative.action_noise(state.spec, observation, key)
    chunks = decode(state, observation, noise, config)  # [..., N, h A]
    q = state.critic(observation, chunks).min(axis=0)  # [..., N]
    return generative.candidate(chunks, q.argmax(axis=-1))


# [3, eq. 5]
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> Loss:
    """Expectile loss of V to the actions' values q [B]."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = expectiles.weight(q, v, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# [1, eq. 4]
def actor_loss(actor: networks.Network, batch: Transition, key: Array) -> Loss:
    """Squared error of the velocity from noise to actions."""
    loss = generative.flow_matching_loss(
        lambda a, t: actor(a, batch.observation, t),
        batch.action,
        key,
        buffers.whole_chunks(batch),
    )
    return loss, {"actor/loss": loss}


# [3, eq. 6]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Squared error of the critics, from V(s') [B]."""
    target = buffers.bootstrapped(batch, next_v, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = buffers.weighted(jnp.square(q - target), batch).mean(axis=-1).sum()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of value, flow, critics and targets."""
    batch = buffers.with_chunk_return(batch, config.discount)
    q = state.target_critic(batch.observation, batch.action)  # [C, B]
    q = networks.lower_bound(q, config.pessimism)  # [B]
    next_v = state.value(batch.next_observation)[:, 0]
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, value_metrics = state.value.step(optimiser, value_loss, q, batch, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, batch, key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_v, batch, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, value, target_critic, state.spec)
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
