"""Diffusion-QL [generative]: a diffusion model of actions that follows critics.

gamma discount, pi noise predictor, pi' its moving average, Q_c critics,
Q'_c targets, eta value_weight, beta inverse_temperature, e standard normal,
T denoising_steps, abar_t share of variance, (i, j) = (1, 2) or (2, 1)
  a(s)     = DDPM's reverse process from noise, T steps  [1, eq. 1]
  a'       = a(s') of pi', the best of max_q_backup for each critic
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [1, eq. 4]
  t        ~ U{1..T},  a_t = sqrt(abar_t) a + sqrt(1 - abar_t) e
  L(pi)    = mean (pi(a_t, s, t) - e)^2  [1, eq. 2]
             - eta mean Q_i(s, a(s)) / mean |Q_j(s, a(s))|  [1, eq. 3]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  pi'     <- (1 - rho') pi' + rho' pi  rho': average_rate, now and then
  acts by one of num_candidates a(s), with weights exp(beta min_c Q'_c(s, a))

With `improvement = "one_step"`, a(s) of L(pi) is pi's estimate
from a_t [3, eq. 10].

Departs from the paper: nowhere; noise, average and limits are those of [2].

[1] Wang et al., Diffusion Policies for Offline RL, arXiv:2208.06193
[2] github.com/Zhendong-Wang/Diffusion-Policies-for-Offline-RL
[3] Kang et al., Efficient Diffusion Policies, arXiv:2305.20081

  rljax train dql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

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
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    max_grad_norm: NonNegative | None = 9.0  # None: no limit; [2]
    batch_size: int = 256  # transitions; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    average_rate: Share = 0.005  # rho', per move; [2]
    average_every: Count = 5  # updates between its moves; [2]
    average_from: Whole = 1_000  # updates before its first move; [2]
    max_q_backup: Count = 1  # [2]; 10 on AntMaze
    # Policy
    value_weight: NonNegative = 1.0  # eta: 0 imitates the data; [2]
    improvement: Literal["chain", "one_step"] = "chain"  # all steps; one in [3]
    denoising_steps: Count = 5  # T, of a chain; [2]
    noising: generative.Noising = "vp"  # growth of noise; [2]
    num_candidates: Count = 50  # actions drawn; [2]
    inverse_temperature: NonNegative = 1.0  # beta: 0 is uniform; [2]
    average_acts: bool = False  # act by the average; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [2]
    activation: networks.Activation = "mish"  # of hidden layers; [2]
    embedding: generative.Embedding = 16  # features of the step; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]
    precision: networks.Precision = "float32"  # of products forwards; own choice


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_t, s, t -> noise in a_t [A]
    critic: networks.Trained  # [O], [A] -> [2]
    average_actor: networks.Network
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("dql", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    action = jnp.zeros(spec.action_shape)
    encoding = EncoderSettings.of(config)
    style = networks.style_of(config)
    size, sizes = spec.action_size, {"hidden": config.hidden, "embedding": config.embedding}
    actor = generative.create_field(spec, encoding, key_actor, size, **sizes, **style)
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
    schedule = generative.schedule(config.noising, config.denoising_steps)
    shape = (*spec.leading(observation), spec.action_size)
    return generative.ancestral(schedule, lambda a, t: actor(a, observation, t), key, shape)


# [1, eq. 4]
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


# [1, eq. 2]
def imitation_loss(
    actor: networks.Network, batch: Transition, key: Array, config: Config
) -> tuple[Array, Array]:
    """Squared error [] to the noise, and actions [B, A]."""
    key_step, key_noise = jax.random.split(key)
    schedule = generative.schedule(config.noising, config.denoising_steps)
    step = jax.random.randint(key_step, batch.reward.shape, 0, config.denoising_steps)
    noise = jax.random.normal(key_noise, batch.action.shape)
    noisy = generative.noised(schedule, batch.action, step, noise)
    prediction = actor(noisy, batch.observation, step)
    action = generative.denoised(schedule, noisy, step, prediction)
    return jnp.square(prediction - noise).mean(), action


# [1, eq. 3]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """The imitation loss minus one critic's scaled value."""
    key_imitation, key_policy, key_coin = jax.random.split(key, 3)
    imitation, action = imitation_loss(actor, batch, key_imitation, config)
    if config.improvement == "chain":
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
