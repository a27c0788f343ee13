"""MOORL [hybrid]: SAC that learns from data and new experience in turns.

Each epoch takes one of the two sources at random.
It makes updates of SAC on its rows, from the meta-parameters.
These then go a part of the way to its end, as in Reptile.
The meta-policy acts, one step for each epoch.

K inner steps, epsilon meta rate, L the losses of agents/sac.py
theta parameters of actor and critics, Theta the meta-parameters
  source  ~ data set with probability offline_epochs, else new experience
  theta   <- theta - rate grad L(theta; rows of the source)  K times, from Theta
  Theta   <- Theta + epsilon (theta - Theta)  [1], Reptile [2, eq. 1]
  theta   <- Theta

Departs from the paper: no code is published, and we could not
read its text. The page says what is from summaries of it and
what is our choice: all numbers.

[1] MOORL: Integrating Offline-Online RL, arXiv:2506.09574
[2] Nichol et al., First-Order Meta-Learning Algorithms, arXiv:1803.02999

  rljax train moorl --env Hopper-v5 --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(buffers.ReplaySettings, temperatures.WithTemperature):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; SAC
    critic_lr: NonNegative = 3e-4  # of Adam; SAC
    batch_size: int = 512  # half is used; 256 in SAC
    # Experience
    replay_size: int = 1_000_000  # newest transitions; SAC
    warmup_steps: int = 1_000  # uniform actions, no update; own choice
    num_updates: int = 10  # K of them: an epoch per transition; [1]
    shift: int = 0  # pixels, at most; 4 in DrQ-v2
    # Epochs
    inner_steps: Count = 10  # K, per epoch; own choice
    meta_rate: Share = 0.5  # epsilon, of the way; own choice
    offline_epochs: Share = 0.5  # probability of the data set; [1]
    # Targets
    discount: Share = 0.99  # gamma; SAC
    target_rate: Share = 0.005  # rho; SAC
    reward_scale: Positive = 1.0  # factor on rewards; Brax: 5 to 30
    entropy_backup: bool = True  # entropy in the target; False in SERL
    # Policy
    target_entropy_share: Real = 1.0  # of -A, the target; RLPD, Brax: 0.5
    exploration: noise.Kind = "white"  # "held" in arXiv:2604.04539
    log_std_min: LogStd = -20.0  # lower clip of log std; Spinning Up
    log_std_max: LogStd = 2.0  # upper clip of log std; Spinning Up
    policy_delay: Count = 1  # updates per update of the actor
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; SAC
    num_critics: Count = 2  # C; the smallest counts; [1]
    min_critics: int | None = None  # random ones that count; 2 in REDQ
    activation: networks.Activation = "relu"  # of hidden layers; SAC
    layer_norm: bool = False  # of the critics; True in RLPD
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; SAC


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    meta_actor: networks.Network  # which acts
    meta_critic: networks.Network
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    source: Array  # [] bool: whether the data set


def experience(config: Config) -> buffers.Replay:
    """Batches half from a data set; rows with their source."""
    return buffers.Replay.of(config, columns=(buffers.Source(),), beside_data=True)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("moorl", spec)
    agent.require_at_least(config, batch_size=2)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
    key_actor, key_critic, key_source = jax.random.split(key, 3)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        meta_actor=networks.copy(actor),
        meta_critic=networks.copy(critic),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        source=jax.random.bernoulli(key_source, config.offline_epochs),
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts from one step of an episode to the next."""
    return noise.initial(config.exploration, spec)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    pi = distributions.squashed(state.meta_actor(observation), config)
    action, memory = noise.action(pi, key, explore, memory)
    return action, {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The meta-critics' mean value [...] of actions [..., A]."""
    return state.meta_critic(observation, action).mean(axis=0)


def rows_of_source(batch: Transition, source: Array) -> Transition:
    """B / 2 rows of one source, some more than once if few."""
    mask = batch.extras["offline"] == source
    order = jnp.argsort(~mask, stable=True)  # the source's rows, then the others
    rows = order[jnp.arange(len(mask) // 2) % jnp.maximum(mask.sum(), 1)]
    return buffers.rows_of(batch, rows)


# SAC's, arXiv:1812.05905, equation 5
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the soft target."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    key_subset = jax.random.fold_in(key, 1)
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key_subset)  # [B]
    if config.entropy_backup:
        next_q -= jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = jnp.square(error).mean(axis=-1).sum()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


# Equation 9 there
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = state.critic(batch.observation, action)  # [C, B]
    q = networks.smallest(q) if config.min_critics is None else q.mean(axis=0)  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


# [2, eq. 1]
def reptile(state: State, key: Array, config: Config) -> tuple[State, Metrics]:
    """End an epoch: the meta-parameters move."""
    actor = networks.polyak(state.actor, state.meta_actor, config.meta_rate)
    critic = networks.polyak(state.critic, state.meta_critic, config.meta_rate)
    changes = jax.tree.map(jnp.subtract, state.actor.parameters, state.meta_actor)
    squares = jax.tree.map(lambda change: jnp.square(change).sum(), changes)
    state = state.replace(
        meta_actor=actor,
        meta_critic=critic,
        actor=state.actor.replace(parameters=networks.copy(actor)),
        critic=state.critic.replace(parameters=networks.copy(critic)),
        source=jax.random.bernoulli(key, config.offline_epochs),
    )
    return state, {"meta/distance": jnp.sqrt(jax.tree.reduce(jnp.add, squares))}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of SAC; each `inner_steps`-th ends an epoch."""
    key_critic, key_actor, key_source = jax.random.split(key, 3)
    source = state.source
    batch = rows_of_source(batch, source)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
        )
        state = state.replace(actor=actor, log_temperature=log_temperature)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    end = functools.partial(reptile, key=key_source, config=config)
    state, meta_metrics = agent.every(config.inner_steps, step, end, state)
    target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
    metrics = metrics | actor_metrics | meta_metrics | {"meta/offline": source.mean()}
    return state.replace(target_critic=target_critic), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
