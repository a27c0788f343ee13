"""RIQL [offline]: IQL for corrupted data, with a Huber loss and a low quantile of critics.

Corrupted successors give targets heavy tails; a Huber loss limits their effect. Data on which critics disagree may be
corrupted: a low quantile of the critics penalises disagreement, less than the minimum does.

gamma discount, V value, Q_c critics, Q'_c their targets, mu actor, tau expectile, beta inverse temperature
  Q(s, a)  = quantile_alpha over c of Q'_c(s, a),  u = Q(s, a) - V(s)   [1, section 5]; alpha quantile
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]                              IQL's
  w        = min(exp(beta u), max_weight)                               V before its step
  L(mu)    = mean [ w |mu(s) - a|^2 ]                                   gaussian: -w log pi(a|s)
  y        = clip(r + gamma (1 - terminated) V(s'), target_min, target_max)   V before its step
  h(e)     = e^2 / (2 t) where |e| < t, |e| - t / 2 elsewhere           [2], t = 1 / sigma^2
  L(Q)     = mean h(y - Q_c(s, a)), over critics too                    [1, section 5]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

Departs from the paper: it follows the authors' code [2], which clips the targets and has this threshold and this scale
of the Huber loss. Discrete actions, as in iql, are ours.

[1] Yang et al., Towards Robust Offline Reinforcement Learning under Diverse Data Corruption, arXiv:2310.12955
[2] github.com/YangRui2015/RIQL

  rljax train riql --data d4rl/hopper-medium-replay-v2
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import Actor, distributions, encoders, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor, at the start; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    value_lr: float = 3e-4  # Adam learning rate of the value; [2]
    decay_steps: float | None = 1.0  # share of the run (above 1: updates) of actor_lr's cosine to 0; None: none; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; presets
    normalise_observations: bool = True  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    expectile: float = 0.7  # tau, in [0, 1]: 0.5 is the mean, towards 1 the maximum; [2]
    quantile: float = 0.25  # alpha, in [0, 1], of the target critics: 0 is the smallest, 0.5 the median; [2]
    huber_sigma: float = 1.0  # sigma: errors beyond 1 / sigma^2 count linearly; [2], which tunes it from 0.1 to 3
    target_min: float = -100.0  # lower clip of the critics' targets; [2]
    target_max: float = 1000.0  # upper clip of the critics' targets; [2]
    # Policy
    inverse_temperature: float = 3.0  # beta: 0 imitates the data, more follows the advantage; [2]
    max_weight: float = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "deterministic"  # what imitates the data; [2]
    log_std_min: float = -5.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    exploration_noise: float = 0.03  # online: std of the noise on actions of a deterministic policy; CORL
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, of all networks; [2]
    num_critics: int = 5  # C; the quantile of their values counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    dropout: float | None = None  # share of the actor's hidden units left out while learning; RDT on Adroit: 0.1
    initialisation: networks.Initialisation = "torch"  # of the actor's and the value's layers; [2]
    critic_initialisation: networks.Initialisation = "edac"  # of the critics' layers; [2]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: Actor
    critic: networks.Network  # [O], [A] or [] -> [C]
    value: networks.Network  # [O] -> [1]
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState
    statistics: Any  # of observations [O...]


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
        learns_until=config.decay_steps,
        online=online,
    )


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of updates."""
    return dataclasses.replace(config, decay_steps=agent.in_steps(config.decay_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_unmixed("riql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), expectile=(0, 1), inverse_temperature=(0, None))
    agent.require_range(config, max_weight=(0, None), exploration_noise=(0, None), quantile=(0, 1))
    agent.require_range(config, huber_sigma=(1e-3, 1e3), target_min=(None, None), target_max=(None, None))
    agent.require_order(config, "target_min", "target_max")
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_above(config, decay_steps=0)
    if config.dropout is not None:
        agent.require_range(config, dropout=(0, 0.99))
    agent.require_at_least(config, num_critics=1)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape, spec.action_dtype)
    style = (config.activation, config.initialisation)
    mean = networks.MLP(config.hidden, spec.action_size, *style)
    actor = Actor(
        mean=networks.create(encoders.encoded(spec, encoding(config), mean), key_actor, observation),
        log_std=jnp.zeros(spec.action_size) if config.policy == "gaussian" and not spec.discrete else None,
        discrete=spec.discrete,
        choices=spec.choices,
    )
    critic_style = (config.activation, config.critic_initialisation)
    ensemble = networks.ensemble(spec, config.num_critics, config.hidden, *critic_style, config.layer_norm)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, observation, action)
    head = networks.MLP(config.hidden, 1, *style)
    value = networks.create(encoders.encoded(spec, encoding(config), head), key_value, observation)
    return State(
        actor=actor,
        critic=critic,
        value=value,
        target_critic=networks.copy(critic),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        value_optimiser=optax.adam(config.value_lr).init(value),
        statistics=normalise.of_observations(spec),
    )


def actor_rate(step: Array, config: Config) -> Array | float:
    """The actor's learning rate [] after `step` updates: half a cosine, 0 from `decay_steps` on."""
    if config.decay_steps is None:
        return config.actor_lr
    return config.actor_lr * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / config.decay_steps, 1.0)))


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] and their successors into the input statistics."""
    if not config.normalise_observations:
        return state
    statistics = normalise.of_data(data.observation)
    return state.replace(statistics=normalise.update(statistics, data.next_observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]: the policy's mean or mode, or a sample when exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    if state.actor.discrete:
        pi = choice(state.actor, observation)
        return jnp.asarray(pi.sample(seed=key) if explore else pi.mode(), jnp.int32), {}
    action = policy(state.actor, observation)
    if not explore:
        return jnp.clip(action, -1.0, 1.0), {}
    return jnp.clip(action + std(state.actor, config) * jax.random.normal(key, action.shape), -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] or [...] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: Actor, observation: Array, dropout: networks.Dropout | None = None) -> Array:
    """The policy's mean, mu(s), [..., A] for observations [..., O]."""
    mean = actor.mean(observation, dropout=dropout)
    return jnp.tanh(mean) if actor.log_std is None else mean


def choice(actor: Actor, observation: Array, dropout: networks.Dropout | None = None) -> distributions.Distribution:
    """The policy over discrete actions, those that are allowed, for observations [..., O...]."""
    logits = actor.mean(observation, dropout=dropout)
    return distributions.discrete(logits, actor.choices, agent.mask_of(observation))


def std(actor: Actor, config: Config) -> Array | float:
    """The policy's std [A], or the std [] of the noise around a deterministic policy."""
    if actor.log_std is None:
        return config.exploration_noise
    return jnp.exp(jnp.clip(actor.log_std, config.log_std_min, config.log_std_max))


def distance(actor: Actor, batch: Transition, key: Array, config: Config) -> Array:
    """-log pi(a|s), or |mu(s) - a|^2 of a deterministic policy, [B] for the actions of the data."""
    dropout = None if config.dropout is None else networks.Dropout(key, config.dropout)
    if actor.discrete:
        return jnp.negative(choice(actor, batch.observation, dropout).log_prob(batch.action))
    mean = policy(actor, batch.observation, dropout)
    if actor.log_std is None:
        return jnp.square(mean - batch.action).sum(axis=-1)
    return jnp.negative(distributions.gaussian(mean, std(actor, config)).log_prob(batch.action))


# IQL's, arXiv:2110.06169, eq. 5
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared distance to the actions' values q [B]; weight `expectile` above V, 1 - `expectile` below."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = jnp.where(q < v, 1.0 - config.expectile, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# IQL's, arXiv:2110.06169, eq. 7
def actor_loss(actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """Distance to the data's actions, weighted by the exponential of their advantage [B]."""
    weight = jnp.minimum(jnp.exp(config.inverse_temperature * advantage), config.max_weight)
    loss = (weight * distance(actor, batch, key, config)).mean()
    return loss, {"actor/loss": loss, "actor/advantage": advantage.mean(), "actor/weight": weight.mean()}


# [1, section 5]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Huber loss of all critics' errors to the target from V(s') [B], the mean over critics."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = jnp.clip(batch.reward + bootstrap * next_v, config.target_min, config.target_max)
    q = critic(batch.observation, batch.action)  # [C, B]
    error, threshold = jnp.abs(target - q), config.huber_sigma**-2.0
    inside = error < threshold
    loss = jnp.where(inside, jnp.square(error) / (2.0 * threshold), error - threshold / 2.0).mean()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | {"critic/linear": (~inside).mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the actor, the critics and their targets; the actor's rate falls with `step`."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    q = jnp.quantile(state.target_critic(batch.observation, batch.action), config.quantile, axis=0)  # [B]

    gradient, value_metrics = jax.grad(value_loss, has_aux=True)(state.value, q, batch, config)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)
    v, next_v = state.value(batch.observation)[:, 0], state.value(batch.next_observation)[:, 0]

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, q - v, batch, key, config)
    changes, actor_optimiser = optax.adam(actor_rate(step, config)).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, next_v, batch, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(
        actor=actor,
        critic=critic,
        value=value,
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        value_optimiser=value_optimiser,
    )
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
