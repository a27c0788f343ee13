"""CQL for discrete actions [offline]: double Q-learning, with low values outside the data.

The critics' loss has a penalty beside its error: the gap between the soft maximum over all actions and the value of the
data's action. It lowers actions that the greedy policy would choose and the data lack.

gamma discount, Q_c critics, Q'_c their targets, Q the mean of the critics, w penalty_weight
  y        = r + gamma (1 - terminated) min_c Q'_c(s', argmax_a Q(s', a))
  G_c      = mean [ log sum_a exp Q_c(s, a) - Q_c(s, a) ]
  L(Q)     = sum_c [ mean h(Q_c(s, a) - y) + w G_c ]                    [1, eq. 4]; h: e^2 / 2, |e| - 1/2 beyond 1
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   every target_every-th update, rho target_rate

Departs from the paper: plain values with a double target in place of QR-DQN's quantiles, as in d3rlpy [2]. Defaults are
d3rlpy's, but for its copy of the critics every 8,000 updates: here it is made every 1,000.

[1] Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, arXiv:2006.04779
[2] Seno and Imai, d3rlpy: An Offline Deep Reinforcement Learning Library, arXiv:2111.03788

  rljax train cql_discrete --data cartpole.npz --env CartPole-v1
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    critic_lr: float = 6.25e-5  # Adam learning rate of the critics; [2]
    batch_size: int = 32  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; [2]
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 1.0  # rho, share of the online critics in the targets: 1 is a copy; [2]
    target_every: int = 1_000  # updates between moves of the targets; own choice, 8,000 in [2]
    # Conservatism
    penalty_weight: float = 1.0  # w, alpha in [1, eq. 4]; [2]
    # Policy
    epsilon: float = 0.05  # online: share of uniform actions; own choice
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the critics' hidden layers; [2]
    num_critics: int = 1  # C; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    critic: networks.Network  # [O] -> [C, A], or [O], [] -> [C]
    target_critic: networks.Network
    critic_optimiser: optax.OptState
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
        online=online,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for continuous actions or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_discrete("cql_discrete", spec, "cql")
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), critic_lr=(0, None), epsilon=(0, 1))
    agent.require_range(config, penalty_weight=(0, None))
    agent.require_at_least(config, num_critics=1, target_every=1)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    style = (config.activation, config.initialisation)
    ensemble = networks.ensemble(spec, config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key, spec.example())
    return State(
        critic=critic,
        target_critic=networks.copy(critic),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        statistics=normalise.of_observations(spec),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O]: greedy, but for a share `epsilon` of uniform ones when exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    mask = agent.mask_of(observation)
    q = distributions.allowed(state.critic(observation).mean(axis=0), mask)  # [..., A]
    greedy = jnp.asarray(q.argmax(axis=-1), jnp.int32)
    if not explore:
        return greedy, {}
    key_choice, key_action = jax.random.split(key)
    uniform = jnp.asarray(distributions.categorical(jnp.zeros_like(q), mask).sample(seed=key_action), jnp.int32)
    return jnp.where(jax.random.uniform(key_choice, greedy.shape) < config.epsilon, uniform, greedy), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [...] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


# [1, eq. 4]
def critic_loss(critic: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Huber's loss of all critics to the double target, plus the penalty on their gaps, summed over critics."""
    next_q = state.critic(batch.next_observation).mean(axis=0)
    next_action = distributions.allowed(next_q, agent.mask_of(batch.next_observation)).argmax(axis=-1)  # [B]
    next_q = state.target_critic(batch.next_observation, next_action).min(axis=0)  # [B]
    target = batch.reward + config.discount * (1.0 - batch.terminated) * next_q
    each = critic(batch.observation)  # [C, B, A]
    q = jnp.take_along_axis(each, batch.action[None, :, None], axis=-1)[..., 0]  # [C, B]
    allowed = distributions.allowed(each, agent.mask_of(batch.observation))
    gap = (jax.nn.logsumexp(allowed, axis=-1) - q).mean(axis=-1)  # [C]
    error = optax.losses.huber_loss(q, jax.lax.stop_gradient(target)).mean(axis=-1)  # [C]
    loss = (error + config.penalty_weight * gap).sum()
    metrics = {"critic/loss": loss, "critic/error": error.sum(), "critic/gap": gap.mean()}
    return loss, metrics | {"critic/q": q.mean(), "critic/target": target.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `target_every`-th time, of the targets."""
    del key  # nothing is drawn
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)

    def move(target: networks.Network) -> tuple[networks.Network, Metrics]:
        return networks.polyak(critic, target, config.target_rate), {}

    target_critic, _ = agent.every(config.target_every, step, move, state.target_critic)
    return state.replace(critic=critic, target_critic=target_critic, critic_optimiser=critic_optimiser), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
