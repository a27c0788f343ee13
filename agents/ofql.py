"""OFQL [generative]: Diffusion-QL with a flow that turns noise into an action in one step.

The policy is the average velocity of a flow between data and noise. It learns from the data by an identity, without a
teacher (MeanFlow [2]). Noise minus that velocity is an action. The critics' gradient passes through that one step.

gamma discount, u average velocity, u' its moving average, Q_c twin critics, Q'_c their targets, eta value weight, beta
inverse temperature, e standard normal noise, sg without a gradient, (i, j) = (1, 2) or (2, 1) by tossing a coin
  a(s)     = e - u(e, s, 0, 1)                                          [1, one-step generation]
  r <= t   ~ sorted logit-normal(-0.4, 1); r = t in a share flow_ratio of rows
  a_t      = (1 - t) a + t e,  v = e - a
  u*       = v - (t - r) (v . grad_a u + d_t u)  at (a_t, s, r, t)      [2, eq. 6]
  L(u)     = mean (u(a_t, s, r, t) - sg u*)^2 - eta mean Q_i(s, a(s)) / mean |Q_j(s, a(s))|
  a'       = a(s') of u'; max_q_backup > 1: so many, and the best counts for each critic
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate
  u'      <- (1 - rho') u' + rho' u      every average_every-th update from average_from on; rho' average_rate
  acts by one of num_candidates actions a(s), drawn with weights exp(beta min_c Q'_c(s, a))

Departs from the paper: nowhere that it is explicit. docs/agents/ofql.md lists what it leaves open. There, OFQL is as
Diffusion-QL's code [3], except that the average acts, as in [4], whose evaluation the paper follows. The authors have
published no code.

[1] Nguyen and Yoo, One-Step Flow Q-Learning: Addressing the Diffusion Policy Bottleneck in Offline RL,
    arXiv:2508.13904
[2] Geng et al., Mean Flows for One-step Generative Modeling, arXiv:2505.13447
[3] github.com/Zhendong-Wang/Diffusion-Policies-for-Offline-RL
[4] github.com/CleanDiffuserTeam/CleanDiffuser, pipelines/dql_d4rl_mujoco.py

  rljax train ofql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

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
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [1]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [1]
    max_gradient_norm: float | None = None  # of the actor's gradient, and of the critics'; None: no limit; own choice
    batch_size: int = 256  # transitions per update; [1]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; presets
    normalise_observations: bool = False  # by the data set's mean and std; [3]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [3]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [3]
    average_rate: float = 0.005  # rho', share of the actor in its average per move; [3]
    average_every: int = 5  # updates between moves of the average; [3]
    average_from: int = 1_000  # updates before its first move; [3]
    max_q_backup: int = 1  # actions per next state; the best makes the target; 10 on AntMaze; [1], presets
    # Policy
    value_weight: float = 0.1  # eta: 0 imitates the data, more follows the critics; [1] tunes it in 0.001 to 0.5
    flow_ratio: float = 0.5  # share of rows with r = t, where u is the flow's velocity itself, in [0, 1]; [1]
    num_candidates: int = 50  # actions drawn to act by one of them; [3]
    inverse_temperature: float = 1.0  # beta: 0 draws them uniformly, much takes the best; Diffusion-QL
    average_acts: bool = True  # act by the moving average, as targets do, not by the policy itself; [4]
    # Networks
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers, of all networks; [1]
    activation: networks.Activation = "mish"  # of the hidden layers; [1]
    embedding: int = 64  # features of each time; [1]
    initialisation: networks.Initialisation = "torch"  # of all layers; [3]
    precision: networks.Precision = "float32"  # of the factors of products on the way forward; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # a_t [A], s [O], r [], t [] -> [A]: average velocity from r to t
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
    agent.require_vectors("ofql", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("ofql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, average_rate=(0, 1), value_weight=(0, None), flow_ratio=(0, 1))
    agent.require_range(config, inverse_temperature=(0, None))
    if config.max_gradient_norm is not None:
        agent.require_range(config, max_gradient_norm=(0, None))
    agent.require_at_least(config, average_every=1, average_from=0, max_q_backup=1, num_candidates=1, embedding=4)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, the average equal to the actor and targets to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    field = generative.Field(
        config.hidden, spec.action_size, *style, precision=config.precision, embedding=config.embedding
    )
    actor = networks.create(field, key_actor, action, observation, jnp.zeros(()), jnp.zeros(()))
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
    del config
    shape = observation.shape[:-1]
    noise = jax.random.normal(key, (*shape, actor.module.features))
    return jnp.clip(noise - actor(noise, observation, jnp.zeros(shape), jnp.ones(shape)), -1.0, 1.0)


# Diffusion-QL's, arXiv:2208.06193, eq. 4
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


def times(key: Array, number: int, config: Config) -> tuple[Array, Array]:
    """r and t [number], r <= t; the first rows, a share `flow_ratio`, have r = t."""
    drawn = generative.logit_normal(key, (2, number))
    time = drawn.max(axis=0)
    return jnp.where(jnp.arange(number) < config.flow_ratio * number, time, drawn.min(axis=0)), time


# [2, eqs. 6 and 9]
def imitation_loss(actor: networks.Network, batch: Transition, key: Array, config: Config) -> Array:
    """Squared distance [] of u from u*, the target that follows from u's own change along the flow."""
    key_times, key_noise = jax.random.split(key)
    start, time = times(key_times, batch.reward.size, config)
    noise = jax.random.normal(key_noise, batch.action.shape)
    noisy = generative.interpolated(noise, batch.action, 1.0 - time)
    u, target = generative.average_velocity(
        lambda a, r, t: actor(a, batch.observation, r, t), noisy, start, time, noise - batch.action
    )
    return jnp.square(u - target).mean()


# [1]; the scale of Q is that of Diffusion-QL's eq. 3 and code
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """The imitation loss minus one critic's value of the policy's actions over the other's mean absolute value."""
    key_imitation, key_policy, key_coin = jax.random.split(key, 3)
    imitation = imitation_loss(actor, batch, key_imitation, config)
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
