"""EDAC [offline]: SAC with many critics, whose smallest value counts, kept diverse.

The minimum of many critics is low wherever they disagree, which is where data are missing. A penalty on critics with
similar slopes lets fewer of them disagree as much. Without the penalty it is SAC-N.

gamma discount, alpha temperature, Q_c critics, Q'_c their targets, pi actor;  a' ~ pi(.|s'),  a~ ~ pi(.|s)
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - alpha log pi(a'|s') ]
  g_c      = d Q_c(s, a) / da, divided by its length
  D        = mean [ sum_{c != k} <g_c, g_k> ] / (C - 1)                 [1, algorithm 1]; C times the mean cosine
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2 + eta D                       eta diversity_weight; None: SAC-N
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ]
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

Departs from the paper: first and last layers begin a little differently than in the authors' code [2] (see the page).

[1] An et al., Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble, arXiv:2110.01548
[2] github.com/snu-mllab/EDAC, [3] github.com/corl-team/CORL

  rljax train edac --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2], 3e-5 on Adroit's pen
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [2], the actor's
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards; [2], standardise on Adroit
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    # Diversity
    diversity_weight: float | None = 1.0  # eta, of D; None is SAC-N and does not compute D; [2] for most of gym
    # Policy
    update_order: Literal["together", "actor_first"] = "together"  # target by the old actor [2], the new one [3]
    init_temperature: float = 1.0  # alpha at the start; [2]
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, [2]
    log_std_min: float = -5.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    # Networks
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers, actor and critics alike; [2]
    num_critics: int = 10  # C; the smallest value counts; [2], 50 on Hopper
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    initialisation: networks.Initialisation = "edac"  # of all layers; [3], close to [2]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    target_critic: networks.Network
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
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
    agent.require_vectors("edac", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("edac", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    if config.diversity_weight is not None:
        agent.require_range(config, diversity_weight=(0, None))
    agent.require_at_least(config, num_critics=1 if config.diversity_weight is None else 2)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    actor = networks.create(networks.MLP(config.hidden, 2 * spec.action_size, *style), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style)
    critic = networks.create(ensemble, key_critic, observation, action)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or the tanh of the mean when not exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    if not explore:
        return jnp.tanh(jnp.split(state.actor(observation), 2, axis=-1)[0]), {}
    return policy(state.actor, observation, config).sample(seed=key), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, log_std = jnp.split(actor(observation), 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))


# [1, algorithm 1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the soft target, summed over critics, plus the penalty on their similarity."""
    next_action, next_log_prob = policy(state.actor, batch.next_observation, config).sample_and_log_prob(seed=key)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * (next_q.min(axis=0) - jnp.exp(state.log_temperature) * next_log_prob)
    if config.diversity_weight is None:
        q, cost, metrics = critic(batch.observation, batch.action), 0.0, {}  # [C, B]
    else:
        q, slope = values(critic, batch.observation, batch.action)
        similarity = likeness(slope).mean()
        cost, metrics = config.diversity_weight * len(slope) * similarity, {"critic/similarity": similarity}
    error = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    loss = error + cost
    metrics = metrics | {"critic/loss": loss, "critic/error": error, "critic/q": q.mean()}
    return loss, metrics | {"critic/target": target.mean()}


def values(critic: networks.Network, observation: Array, action: Array) -> tuple[Array, Array]:
    """Q_c(s, a) [C, B] and its slope in the action [C, B, A], in one pass."""

    def total(member: networks.Network, action: Array) -> tuple[Array, Array]:
        q = member(observation, action)[0]
        return q.sum(), q

    slopes = jax.vmap(jax.value_and_grad(total, argnums=1, has_aux=True), in_axes=(0, None))
    (_, q), slope = slopes(networks.members(critic), action)
    return q, slope


def likeness(slope: Array) -> Array:
    """Mean cosine [B] of the angles between the critics' slopes [C, B, A]: 1 where all point the same way."""
    number = len(slope)
    # A critic with only inactive units has a slope of zero, without direction; safe_norm keeps its gradient finite.
    direction = slope / (optax.safe_norm(slope, 1e-20, axis=-1, keepdims=True) + 1e-10)
    # The sum over all pairs: |sum_c g_c|^2 = sum_c |g_c|^2 + sum_{c != k} <g_c, g_k>.
    pairs = jnp.square(direction.sum(axis=0)).sum(axis=-1) - jnp.square(direction).sum(axis=(0, -1))
    return pairs / float(number * (number - 1))  # an int may be more than int32 holds


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value."""
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha."""
    target_entropy = -batch.action.shape[-1] if config.target_entropy is None else config.target_entropy
    loss = log_temperature * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the actor, the temperature, the critics and the targets."""
    key_critic, key_actor = jax.random.split(key)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    new = state.replace(actor=optax.apply_updates(state.actor, changes), actor_optimiser=actor_optimiser)
    gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(
        state.log_temperature, actor_metrics["actor/entropy"], batch, config
    )
    changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
    log_temperature = optax.apply_updates(state.log_temperature, changes)
    new = new.replace(log_temperature=log_temperature, temperature_optimiser=temperature_optimiser)

    teacher = new if config.update_order == "actor_first" else state
    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, teacher, batch, key_critic, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    new = new.replace(critic=critic, critic_optimiser=critic_optimiser, target_critic=target_critic)
    return new, metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
