"""BC: supervised learning of the data's actions, by regression or maximum likelihood. It does not read rewards.

mu actor, pi its Gaussian, A action dimensions
  mse_mean   L = mean [ |mu(s) - a|^2 ] / A                             [2]
  mse_sum    L = mean [ |mu(s) - a|^2 ]
  log_prob   L = mean [ -log pi(a|s) ]

mu(s) is tanh of the actor's output. With log_prob, pi(.|s) is a diagonal Gaussian around it, with the same std in all
states. Where actions are discrete, pi(.|s) is a softmax of the actor's output, and L is always that of log_prob.

Departs from the paper: the paper gives only the idea, for a car that sees the road by a camera. Losses, sizes,
learning rate and batch size are those of current baselines, as in CORL [2].

[1] Pomerleau, ALVINN: An Autonomous Land Vehicle in a Neural Network, NIPS 1988
[2] Tarasov et al., CORL: Research-oriented Deep Offline Reinforcement Learning Library, arXiv:2210.07105

  rljax train bc --data d4rl/hopper-medium-v2
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
    decay_steps: float | None = None  # share of the run (above 1: updates) of actor_lr's cosine to 0; JAXRL: 1
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, which BC does not read
    normalise_observations: bool = True  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Policy
    loss: Literal["mse_mean", "mse_sum", "log_prob"] = "mse_mean"  # in this order: CORL and JAXRL, ReBRAC's term, IQL
    log_std_min: float = -5.0  # lower clip of log std, with log_prob; IQL
    log_std_max: float = 2.0  # upper clip of log std, with log_prob; IQL
    exploration_noise: float = 0.1  # online: std of the noise on actions, unless log_prob learns it; TD3
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    dropout: float | None = None  # share of hidden units left out while learning; JAXRL: 0.1
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: Actor
    actor_optimiser: optax.OptState
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
    agent.require_unmixed("bc", spec)
    agent.require_range(config, actor_lr=(0, None), exploration_noise=(0, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_above(config, decay_steps=0)
    if config.dropout is not None:
        agent.require_range(config, dropout=(0, 0.99))
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.Settings:
    """The settings of the encoders."""
    return encoders.Settings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    mean = networks.MLP(config.hidden, spec.action_size, config.activation, config.initialisation)
    actor = Actor(
        mean=networks.create(encoders.encoded(spec, encoding(config), mean), key, spec.example()),
        log_std=jnp.zeros(spec.action_size) if config.loss == "log_prob" and not spec.discrete else None,
        discrete=spec.discrete,
        choices=spec.choices,
    )
    return State(
        actor=actor,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        statistics=normalise.of_observations(spec),
    )


def actor_rate(step: Array, config: Config) -> Array | float:
    """The actor's learning rate [] after `step` updates: half a cosine, 0 from `decay_steps` on."""
    if config.decay_steps is None:
        return config.actor_lr
    return config.actor_lr * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / config.decay_steps, 1.0)))


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]: the policy's mean or mode, or a sample when exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    if state.actor.discrete:
        pi = choice(state.actor, observation)
        return jnp.asarray(pi.sample(seed=key) if explore else pi.mode(), jnp.int32), {}
    action = policy(state.actor, observation)
    if not explore:
        return action, {}
    return jnp.clip(action + std(state.actor, config) * jax.random.normal(key, action.shape), -1.0, 1.0), {}


def policy(actor: Actor, observation: Array, dropout: networks.Dropout | None = None) -> Array:
    """The policy's mean, mu(s), [..., A] for observations [..., O]."""
    return jnp.tanh(actor.mean(observation, dropout=dropout))


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


def actor_loss(actor: Actor, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """Distance to the data's actions: the mean over the batch and, with mse_mean, over action dimensions."""
    loss = distance(actor, batch, key, config).mean()
    if config.loss == "mse_mean" and not actor.discrete:
        loss = loss / batch.action.shape[-1]
    return loss, {"actor/loss": loss}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the actor; its rate falls with `step`."""
    if config.normalise_observations:
        batch = batch.replace(observation=normalise.standardise(state.statistics, batch.observation))

    gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, batch, key, config)
    changes, actor_optimiser = optax.adam(actor_rate(step, config)).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)
    return state.replace(actor=actor, actor_optimiser=actor_optimiser), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
