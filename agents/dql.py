"""Diffusion-QL [generative]: a diffusion model of the data's actions that follows the critics.

The policy starts from noise and removes it step by step, so that it can be as multimodal as the data. It learns to
remove noise from the data's actions, and to choose actions of high value.

gamma discount, pi noise predictor, pi' its moving average, Q_c twin critics, Q'_c their targets, eta value weight, beta
inverse temperature, e standard normal noise, abar_t the share of an action's variance that is left after t steps,
(i, j) = (1, 2) or (2, 1) by tossing a coin
  a(s)     = DDPM's reverse process from noise: denoising_steps times   [1, eq. 1]
  t        ~ U{1..T},  a_t = sqrt(abar_t) a + sqrt(1 - abar_t) e
  L(pi)    = mean (pi(a_t, s, t) - e)^2 - eta mean Q_i(s, a(s)) / mean |Q_j(s, a(s))|    [1, eqs. 2 and 3]
  a'       = a(s') of pi'; max_q_backup > 1: so many, and the best counts for each critic
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [1, eq. 4]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate
  pi'     <- (1 - rho') pi' + rho' pi    every average_every-th update from average_from on; rho' average_rate
  acts by one of num_candidates actions a(s), drawn with weights exp(beta min_c Q'_c(s, a))

With `improvement = "one_step"`, a(s) of L(pi) is pi's estimate from a_t in one step, EDP's action approximation
[3, eq. 10]. The gradients of actor and critics are each scaled down to max_gradient_norm. Losses are means over
dimensions.

Departs from the paper: nowhere. The noise, the average and the norms' limits are those of the authors' code [2].

[1] Wang et al., Diffusion Policies as an Expressive Policy Class for Offline RL, arXiv:2208.06193
[2] github.com/Zhendong-Wang/Diffusion-Policies-for-Offline-RL
[3] Kang et al., Efficient Diffusion Policies for Offline Reinforcement Learning, arXiv:2305.20081

  rljax train dql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import generative, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2], presets
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    max_gradient_norm: float | None = 9.0  # of the actor's gradient, and of the critics'; None: no limit; [2], presets
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; presets
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    average_rate: float = 0.005  # rho', share of the actor in its average per move; [2]
    average_every: int = 5  # updates between moves of the average; [2]
    average_from: int = 1_000  # updates before its first move; [2]
    max_q_backup: int = 1  # actions per next state; the best makes the target; 10 on AntMaze; [2], presets
    # Policy
    value_weight: float = 1.0  # eta: 0 imitates the data, more follows the critics; [2], presets
    improvement: Literal["chain", "one_step"] = "chain"  # gradient through all denoising steps [1], or EDP's one [3]
    denoising_steps: int = 5  # T; [2]
    noising: generative.Noising = "vp"  # how noise grows over the steps; [2]
    num_candidates: int = 50  # actions drawn to act by one of them; [2]
    inverse_temperature: float = 1.0  # beta: 0 draws them uniformly, much takes the best; Diffusion-QL
    average_acts: bool = False  # act by the moving average, as targets do, not by the policy itself; [2]
    # Networks
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers, of all networks; [2]
    activation: networks.Activation = "mish"  # of the hidden layers; [2]
    embedding: int = 16  # features of the step; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]
    precision: networks.Precision = "float32"  # of the factors of products on the way forward; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # a_t [A], s [O], t [] -> [A]: the noise in a_t
    critic: networks.Network  # [O], [A] -> [2]
    average_actor: networks.Network
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set; online, half of each batch is new experience."""
    online = buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
    )
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        reward_transform=config.reward_transform,
        online=online,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("dql", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("dql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, average_rate=(0, 1), value_weight=(0, None))
    agent.require_range(config, inverse_temperature=(0, None))
    if config.max_gradient_norm is not None:
        agent.require_range(config, max_gradient_norm=(0, None))
    agent.require_at_least(config, average_every=1, average_from=0, max_q_backup=1, num_candidates=1, embedding=4)
    agent.require_at_least(config, denoising_steps=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, the average equal to the actor and targets to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    field = generative.Field(
        config.hidden, spec.action_size, *style, precision=config.precision, embedding=config.embedding
    )
    actor = networks.create(field, key_actor, action, observation, jnp.zeros(()))
    ensemble = networks.Ensemble(2, config.hidden, *style, precision=config.precision)
    critic = networks.create(ensemble, key_critic, observation, action)
    return State(
        actor=actor,
        critic=critic,
        average_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        actor_optimiser=optimiser(config.actor_lr, config).init(actor),
        critic_optimiser=optimiser(config.critic_lr, config).init(critic),
        statistics=normalise.create(spec.observation_shape),
    )


def optimiser(rate: Array | float, config: Config) -> optax.GradientTransformation:
    """Adam on gradients whose norm is limited to `max_gradient_norm`."""
    if config.max_gradient_norm is None:
        return optax.adam(rate)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate))


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O], drawn by value from `num_candidates`, whether exploring or not."""
    del explore
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    key_candidates, key_choice = jax.random.split(key)
    candidates = generative.repeated(observation, config.num_candidates)  # [..., N, O]
    actor = state.average_actor if config.average_acts else state.actor
    action = policy(actor, candidates, key_candidates, config)
    q = state.target_critic(candidates, action).min(axis=0)  # [..., N]
    return generative.chosen(action, jax.random.categorical(key_choice, config.inverse_temperature * q)), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, key: Array, config: Config) -> Array:
    """Actions a(s) [..., A] for observations [..., O], made from noise."""
    schedule = generative.schedule(config.noising, config.denoising_steps)
    shape = (*observation.shape[:-1], actor.module.features)
    return generative.ancestral(schedule, lambda a, t: actor(a, observation, t), key, shape)


# [1, eq. 4]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of both critics to the average policy's value in the next state, summed over critics."""
    next_observation = generative.repeated(batch.next_observation, config.max_q_backup)  # [B, N, O]
    next_action = policy(state.average_actor, next_observation, key, config)
    next_q = state.target_critic(next_observation, next_action).max(axis=-1)  # [C, B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_q.min(axis=0)
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


# [1, eq. 2]
def imitation_loss(actor: networks.Network, batch: Transition, key: Array, config: Config) -> tuple[Array, Array]:
    """Squared error [] to the noise in noisy actions, and the actions [B, A] that pi estimates without it."""
    key_step, key_noise = jax.random.split(key)
    schedule = generative.schedule(config.noising, config.denoising_steps)
    step = jax.random.randint(key_step, batch.reward.shape, 0, config.denoising_steps)
    noise = jax.random.normal(key_noise, batch.action.shape)
    noisy = generative.noised(schedule, batch.action, step, noise)
    predicted = actor(noisy, batch.observation, step)
    return jnp.square(predicted - noise).mean(), generative.denoised(schedule, noisy, step, predicted)


# [1, eq. 3]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """The imitation loss minus one critic's value of the policy's actions over the other's mean absolute value."""
    key_imitation, key_policy, key_coin = jax.random.split(key, 3)
    imitation, action = imitation_loss(actor, batch, key_imitation, config)
    if config.improvement == "chain":
        action = policy(actor, batch.observation, key_policy, config)
    q = state.critic(batch.observation, action)  # [C, B]
    followed, other = jnp.where(jax.random.bernoulli(key_coin), q, q[::-1])
    value = followed.mean() / jax.lax.stop_gradient(jnp.abs(other).mean())
    loss = imitation - config.value_weight * value
    return loss, {"actor/loss": loss, "actor/imitation": imitation, "actor/q": followed.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics, the actor, the targets and, every `average_every`-th time, the actor's average."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    key_critic, key_actor = jax.random.split(key)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
    changes, critic_optimiser = optimiser(config.critic_lr, config).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
    changes, actor_optimiser = optimiser(config.actor_lr, config).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)

    moves = (step >= config.average_from) & (step % config.average_every == 0)
    rate = jnp.where(moves, config.average_rate, 0.0)
    state = state.replace(
        actor=actor,
        average_actor=networks.polyak(actor, state.average_actor, rate),
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
        actor_optimiser=actor_optimiser,
    )
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
