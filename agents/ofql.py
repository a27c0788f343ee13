"""OFQL [generative]: one-step flow Q-learning, Diffusion-QL with a policy of one step.

gamma discount, u average velocity, u' its moving average
Q_c two critics, Q'_c targets, (i, j) = (1, 2) or (2, 1) by a coin
eta value_weight, beta inverse_temperature
e standard normal, sg without a gradient
  a(s)     = e - u(e, s, 0, 1)  [1, one-step generation]
  a'       = a(s') of u', the best of max_q_backup for each critic
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  r <= t   ~ sorted logit-normal(-0.4, 1); r = t in a share flow_ratio of rows
  a_t      = (1 - t) a + t e,  v = e - a
  u*       = v - (t - r) (v . grad_a u + d_t u)  at (a_t, s, r, t)  [2, eq. 6]
  L(u)     = mean (u(a_t, s, r, t) - sg u*)^2
             - eta mean Q_i(s, a(s)) / mean |Q_j(s, a(s))|
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  u'      <- (1 - rho') u' + rho' u  rho': average_rate, now and then
  acts by one of num_candidates a(s), with weights exp(beta min_c Q'_c(s, a))

Departs from the paper: nowhere that it is explicit.
The rest is Diffusion-QL's code [3], but the average acts [4].

[1] Nguyen and Yoo, One-Step Flow Q-Learning, arXiv:2508.13904
[2] Geng et al., Mean Flows for One-step Generative Modeling, arXiv:2505.13447
[3] github.com/Zhendong-Wang/Diffusion-Policies-for-Offline-RL
[4] github.com/CleanDiffuserTeam/CleanDiffuser, pipelines/dql_d4rl_mujoco.py

  rljax train ofql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share, Whole, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [1]
    critic_lr: NonNegative = 3e-4  # of Adam; [1]
    max_grad_norm: NonNegative | None = None  # None: no limit
    batch_size: int = 256  # transitions; [1]
    # Targets
    discount: Share = 0.99  # gamma; [3]
    target_rate: Share = 0.005  # rho; [3]
    average_rate: Share = 0.005  # rho', per move; [3]
    average_every: Count = 5  # updates between its moves; [3]
    average_from: Whole = 1_000  # updates before its first move; [3]
    max_q_backup: Count = 1  # per next state; [1], AntMaze: 10
    # Policy
    value_weight: NonNegative = 0.1  # eta: 0 imitates the data; 0.001 to 0.5 in [1]
    flow_ratio: Share = 0.5  # share of rows with r = t; [1]
    num_candidates: Count = 50  # actions drawn; [3]
    inverse_temperature: NonNegative = 1.0  # beta: 0 is uniform; [3]
    average_acts: bool = True  # act by the average; [4]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [1]
    activation: networks.Activation = "mish"  # of hidden layers; [1]
    embedding: generative.Embedding = 64  # features of each time; [1]
    initialisation: networks.Initialisation = "torch"  # of all layers; [3]
    precision: networks.Precision = "float32"  # of products forwards; own choice


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_t, s, r, t -> u [A]
    critic: networks.Trained  # [O], [A] -> [2]
    average_actor: networks.Network
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("ofql", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; average and targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    action = jnp.zeros(spec.action_shape)
    encoding = EncoderSettings.of(config)
    style = networks.style_of(config)
    size, sizes = spec.action_size, {"hidden": config.hidden, "embedding": config.embedding}
    actor = generative.create_field(spec, encoding, key_actor, size, times=2, **sizes, **style)
    net = networks.Ensemble(2, config.critic_widths, **style)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        average_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        spec=spec,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    key_candidates, key_choice = jax.random.split(key)
    spec = state.spec
    observation = generative.repeated(spec, observation, config.num_candidates)  # [..., N, O]
    actor = state.average_actor if config.average_acts else state.actor
    action = policy(actor, spec, observation, key_candidates, config)
    q = state.target_critic(observation, action).min(axis=0)  # [..., N]
    index = jax.random.categorical(key_choice, config.inverse_temperature * q)
    return generative.candidate(action, index), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def policy(
    actor: networks.AnyNetwork, spec: EnvSpec, observation: Array, key: Array, config: Config
) -> Array:
    """Actions [..., A] for observations [..., O]."""
    noise = generative.action_noise(spec, observation, key)
    start = jnp.zeros(noise.shape[:-1])
    velocity = actor(noise, observation, start, jnp.ones(noise.shape[:-1]))
    return jnp.clip(noise - velocity, -1.0, 1.0)


# Diffusion-QL's, arXiv:2208.06193, eq. 4
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of both critics to the target."""
    spec, number = state.spec, config.max_q_backup
    next_observation = generative.repeated(spec, batch.next_observation, number)  # [B, N, O]
    next_action = policy(state.average_actor, spec, next_observation, key, config)
    next_q = state.target_critic(next_observation, next_action).max(axis=-1)  # [C, B]
    bootstrap = config.discount * (1.0 - batch.terminated)
    target = batch.reward + bootstrap * next_q.min(axis=0)
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def times(key: Array, number: int, config: Config) -> tuple[Array, Array]:
    """r <= t [number]; r = t in a share of the first rows."""
    draws = generative.logit_normal(key, (2, number))
    time = draws.max(axis=0)
    is_flow = jnp.arange(number) < config.flow_ratio * number
    return jnp.where(is_flow, time, draws.min(axis=0)), time


# [2, eqs. 6 and 9]
def imitation_loss(actor: networks.Network, batch: Transition, key: Array, config: Config) -> Array:
    """Squared distance [] of u from u*."""
    key_times, key_noise = jax.random.split(key)
    start, time = times(key_times, batch.reward.size, config)
    noise = jax.random.normal(key_noise, batch.action.shape)
    noisy = generative.interpolated(noise, batch.action, 1.0 - time)
    velocity = noise - batch.action
    u, target = generative.average_velocity(
        lambda a, r, t: actor(a, batch.observation, r, t), noisy, start, time, velocity
    )
    return jnp.square(u - target).mean()


# [1]; Q is scaled as in Diffusion-QL's eq. 3 and code
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """The imitation loss minus one critic's scaled value."""
    key_imitation, key_policy, key_coin = jax.random.split(key, 3)
    imitation = imitation_loss(actor, batch, key_imitation, config)
    action = policy(actor, state.spec, batch.observation, key_policy, config)
    q = state.critic(batch.observation, action)  # [C, B]
    followed, other = jnp.where(jax.random.bernoulli(key_coin), q, q[::-1])
    value = followed.mean() / jax.lax.stop_gradient(jnp.abs(other).mean())
    loss = imitation - config.value_weight * value
    return loss, {
        "actor/loss": loss,
        "actor/imitation": imitation,
        "actor/q": followed.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the networks and, if due, the average."""
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
    moves = (step >= config.average_from) & (step % config.average_every == 0)
    rate = jnp.where(moves, config.average_rate, 0.0)
    state = state.replace(
        actor=actor,
        average_actor=networks.polyak(actor, state.average_actor, rate),
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
    )
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
