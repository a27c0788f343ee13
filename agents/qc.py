"""QC [generative]: chunks of actions, the best of several of a flow.

gamma discount, h chunk_length, v flow, Q_c critics, Q'_c targets
x and z standard normal, a the chunk (a_t, ..., a_{t+h-1}) of the data
flow(s, z) where flow_steps Euler steps along v lead from z
  best(s)  = the flow(s, z_i) with the largest mean_c Q_c(s, .)
             i = 1 ... num_candidates
  R        = sum_i gamma^i r_{t+i}  i = 0 ... h - 1
  y        = R + gamma^h (1 - terminated) mean_c Q'_c(s', best(s'))
             s' = s_{t+h}  [1, eq. 8]
  L(Q)     = mean_c mean w (Q_c(s, a) - y)^2
             w: 1 where the episode has all of the chunk, else 0
  u        ~ U(0, 1),  a_u = (1 - u) x + u a
  L(v)     = mean m (v(s, a_u, u) - (a - x))^2  [1, eq. 6]
             m: 1 for actions of the row's episode, else 0
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  Q before its step, rho: target_rate

Acts by best(s), whose h actions are played one after the other.

Departs from the paper: nowhere. The file follows [2]. FQL with
chunk_length is the paper's QC-FQL.

[1] Li et al., RL with Action Chunking, arXiv:2507.07969
[2] github.com/ColinQiyangLi/qc

  rljax train qc --data ogbench/cube-single-play-singletask-v0
"""

from __future__ import annotations

from typing import Any, Literal

import jax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative, policies
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share


@agent.config
class Config(
    networks.WithCritics,
    generative.WithFlowNetworks,
    buffers.RowSettings,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, of the flow; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # chunks; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    target: Literal["mean", "min"] = "mean"  # of the critics; [2]
    # Policy
    chunk_length: Count = 5  # h, actions of one decision; [1]
    num_candidates: Count = 32  # chunks of the flow; [1]
    flow_steps: Count = 10  # Euler steps to a chunk; [2]
    # Networks
    num_critics: Count = 2  # C, all count; [2]
    precision: networks.Precision = "float32"  # of products forwards; own choice


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_u, s, u -> velocity [h A]
    critic: networks.Trained  # [O], [h A] -> [C]
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks


def experience(config: Config) -> buffers.Dataset:
    """Uniform chunks; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("qc", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_flow, key_critic = jax.random.split(key)
    spec = policies.chunk_spec(spec, config.chunk_length)
    actor = config.create_field(spec, key_flow)
    critic = config.create_critics(spec, key_critic)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        spec=spec,
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """The chunk that is played."""
    return policies.first_chunk(spec, config.chunk_length)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""

    def decide() -> Array:
        return best(state, observation, key, config)

    return policies.act_in_chunks(decide, memory, config.chunk_length)


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    policies.refuse_chunks(config.chunk_length)
    return state.critic(observation, action).mean(axis=0)


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """flow(s, z) [..., h A]."""
    return generative.euler(lambda a, t: state.actor(a, observation, t), noise, config.flow_steps)


def best(state: State, observation: Array, key: Array, config: Config) -> Array:
    """best(s) [..., h A] for observations [..., O]."""
    observation = generative.repeated(state.spec, observation, config.num_candidates)
    noise = generative.action_noise(state.spec, observation, key)  # [..., N, h A]
    chunks = decode(state, observation, noise, config)
    q = combined(state.critic(observation, chunks), config)  # [..., N]
    return generative.candidate(chunks, q.argmax(axis=-1))


def combined(q: Array, config: Config) -> Array:
    """The critics' [C, ...] mean or smallest value."""
    return q.mean(axis=0) if config.target == "mean" else networks.smallest(q)


# [1, eq. 8]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the target, of whole chunks."""
    following = best(state, batch.next_observation, key, config)
    next_q = combined(state.target_critic(batch.next_observation, following), config)  # [B]
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    return buffers.squared_loss(q, target, batch)


# [1, eq. 6]
def actor_loss(actor: networks.Network, batch: Transition, key: Array) -> Loss:
    """Squared error of the velocity from noise to chunks."""
    loss = generative.flow_matching_loss(
        lambda a, t: actor(a, batch.observation, t),
        batch.action,
        key,
        buffers.valid_actions(batch),
    )
    return loss, {"actor/loss": loss}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics, flow and targets."""
    batch = buffers.with_chunk_return(batch, config.discount)
    key_critic, key_actor = jax.random.split(key)
    target_critic = networks.polyak(
        state.critic.parameters, state.target_critic, config.target_rate
    )
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, batch, key_actor)
    state = State(actor, critic, target_critic, state.spec)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
