"""FQL [generative]: a one-step policy that learns from a flow and from critics.

gamma discount, v flow, mu policy, Q_c critics, Q'_c targets
x and z standard normal, alpha distillation_weight
flow(s, z) where flow_steps Euler steps along v lead from z
  t        ~ U(0, 1),  a_t = (1 - t) x + t a
  a'       = mu(s', z')
  y        = r + gamma (1 - terminated) mean_c Q'_c(s', a')  [1, eq. 8]
  L(Q)     = mean_c mean (Q_c(s, a) - y)^2
  L(v)     = mean (v(s, a_t, t) - (a - x))^2  [1, eq. 4]
  L(mu)    = alpha mean (mu(s, z) - flow(s, z))^2
             - mean_c mean Q_c(s, mu(s, z))  [1, eq. 7]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

The actions of mu and of the flow are clipped to [-1, 1].

Departs from the paper: nowhere. Targets follow the new critics; in [2], the old.

[1] Park et al., Flow Q-Learning, arXiv:2502.02538
[2] github.com/seohongpark/fql
[3] Q-learning with Adjoint Matching, arXiv:2601.14234, code

  rljax train fql --data ogbench/cube-single-play-singletask-v0
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
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
    buffers.WithChunks,
    buffers.RowSettings,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, of flow and policy; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    target: Literal["mean", "min"] = "mean"  # of the target critics; [2]
    pessimism: NonNegative = 0.0  # std of the critics off that mean; [3]: 0.5
    # Policy
    distillation_weight: NonNegative = 10.0  # alpha, to be tuned; [2]
    normalise_value: bool = False  # by mean |Q| in L(mu); [2]
    flow_steps: Count = 10  # Euler steps to an action; [2]
    # Networks
    num_critics: Count = 2  # C, all count; [2]
    precision: networks.Precision = "float32"  # of products forwards; own choice


class Actor(struct.PyTreeNode):
    """The networks that the actor's optimiser moves."""

    flow: networks.Network  # a_t, s, t -> velocity [A]
    one_step: networks.Network  # z [A], s [O] -> [A]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("fql", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_flow, key_one_step, key_critic = jax.random.split(key, 3)
    spec = policies.chunk_spec(spec, config.chunk_length)
    actor = Actor(
        flow=config.create_field(spec, key_flow),
        one_step=config.create_field(spec, key_one_step, times=0),
    )
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
        noise = generative.action_noise(state.spec, observation, key)
        return policy(state.actor.parameters, observation, noise)

    return policies.act_in_chunks(decide, memory, config.chunk_length)


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    policies.refuse_chunks(config.chunk_length)
    return state.critic(observation, action).mean(axis=0)


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """mu(s, z) [..., h A]."""
    del config
    return policy(state.actor.parameters, observation, noise)


def policy(actor: Actor, observation: Array, noise: Array) -> Array:
    """mu(s, z) [..., A] for noise z [..., A]."""
    return jnp.clip(actor.one_step(noise, observation), -1.0, 1.0)


# [1, eq. 8]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the target."""
    noise = jax.random.normal(key, batch.action.shape)
    next_action = policy(state.actor.parameters, batch.next_observation, noise)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    pessimism = config.pessimism if config.target == "mean" else None
    next_q = networks.lower_bound(next_q, pessimism)  # [B]
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    return buffers.squared_loss(q, target, batch)


# [1, eqs. 4 and 7], which share no parameter
def actor_loss(
    actor: Actor,
    state: State,
    batch: Transition,
    key: Array,
    config: Config,
) -> Loss:
    """The flow's loss, plus distance to it, minus value."""
    key_flow, key_noise = jax.random.split(key)
    observation = batch.observation
    imitation = generative.flow_matching_loss(
        lambda a, t: actor.flow(a, observation, t),
        batch.action,
        key_flow,
        buffers.valid_actions(batch),
    )
    noise = jax.random.normal(key_noise, batch.action.shape)
    velocity = state.actor.parameters.flow
    flow = generative.euler(lambda a, t: velocity(a, observation, t), noise, config.flow_steps)
    action = actor.one_step(noise, observation)
    distillation = jnp.square(action - flow).mean()  # before the clip
    clipped = jnp.clip(action, -1.0, 1.0)
    q = state.critic(observation, clipped).mean(axis=0)  # [B]
    scale = 1.0
    if config.normalise_value:
        scale = 1.0 / jax.lax.stop_gradient(jnp.abs(q).mean())
    loss = imitation + config.distillation_weight * distillation - scale * q.mean()
    return loss, {
        "actor/loss": loss,
        "actor/flow": imitation,
        "actor/distillation": distillation,
        "actor/q": q.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics, flow, policy and targets."""
    batch = buffers.with_chunk_return(batch, config.discount)
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(actor=actor, critic=critic, target_critic=target_critic)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
