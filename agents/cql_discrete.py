"""CQL for discrete actions [offline]: Q-learning from data, with low values beyond.

gamma discount, Q_c critics, Q'_c targets, Q their mean, w penalty_weight
  y        = r + gamma (1 - terminated) min_c Q'_c(s', argmax_a Q(s', a))
  G_c      = mean [ log sum_a exp Q_c(s, a) - Q_c(s, a) ]
  L(Q)     = sum_c [ mean h(Q_c(s, a) - y) + w G_c ]  [1, eq. 4]
  h(e)     = e^2 / 2, |e| - 1/2 beyond 1
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
             in every target_every-th update

Departs from the paper: a double target in place of QR-DQN's quantiles.
That and defaults are d3rlpy's [2], but targets move more often.

[1] Kumar et al., Conservative Q-Learning, arXiv:2006.04779
[2] Seno and Imai, d3rlpy, arXiv:2111.03788

  rljax train cql_discrete --data cartpole.npz --env CartPole-v1
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share, Widths


@agent.config
class Config(networks.WithSchedule, buffers.RowSettings):
    """Hyperparameters."""

    # Optimisation
    critic_lr: NonNegative = 6.25e-5  # of Adam; [2]
    batch_size: int = 32  # transitions; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 1.0  # rho: 1 is a copy; [2]
    target_every: Count = 1_000  # updates between moves; 8,000 in [2]
    # Conservatism
    penalty_weight: NonNegative = 1.0  # w, alpha in [1, eq. 4]; [2]
    # Policy
    epsilon: Share = 0.05  # of uniform actions; own choice
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of the critics; [2]
    num_critics: Count = 1  # C, all count; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O] -> [C, A], or [O], [] -> [C]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_discrete("cql_discrete", spec, "cql")
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    style = (config.activation, config.initialisation, config.layer_norm)
    net = networks.ensemble(spec, config.num_critics, config.hidden, *style)
    critic = encoders.create(spec, EncoderSettings.of(config), net, key)
    return State(
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O]."""
    mask = agent.mask_of(observation)
    q = state.critic(observation).mean(axis=0)
    q = distributions.allowed(q, mask)  # [..., A]
    greedy = jnp.asarray(q.argmax(axis=-1), jnp.int32)
    if not explore:
        return greedy, {}
    key_choice, key_action = jax.random.split(key)
    pi = distributions.categorical(jnp.zeros_like(q), mask)
    uniform = jnp.asarray(pi.sample(seed=key_action), jnp.int32)
    is_uniform = jax.random.uniform(key_choice, greedy.shape) < config.epsilon
    return jnp.where(is_uniform, uniform, greedy), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [...]."""
    return state.critic(observation, action).mean(axis=0)


# [1, eq. 4]
def critic_loss(
    critic: networks.Network,
    state: State,
    batch: Transition,
    config: Config,
) -> Loss:
    """Huber's loss of the critics, plus their penalties."""
    next_q = state.critic(batch.next_observation).mean(axis=0)
    next_q = distributions.allowed(next_q, agent.mask_of(batch.next_observation))
    next_action = next_q.argmax(axis=-1)  # [B]
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = next_q.min(axis=0)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)
    target = batch.reward + bootstrap * next_q
    q_of_all = critic(batch.observation)  # [C, B, A]
    action = batch.action[None, :, None]
    q = jnp.take_along_axis(q_of_all, action, axis=-1)[..., 0]  # [C, B]
    allowed = distributions.allowed(q_of_all, agent.mask_of(batch.observation))
    gap = (jax.nn.logsumexp(allowed, axis=-1) - q).mean(axis=-1)  # [C]
    error = optax.losses.huber_loss(q, jax.lax.stop_gradient(target))
    error = error.mean(axis=-1)  # [C]
    loss = (error + config.penalty_weight * gap).sum()
    return loss, {
        "critic/loss": loss,
        "critic/error": error.sum(),
        "critic/gap": gap.mean(),
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics and, if due, of targets."""
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, config)

    def move(target: networks.Network) -> tuple[networks.Network, Metrics]:
        return networks.polyak(critic, target, config.target_rate), {}

    target_critic, _ = agent.every(config.target_every, step, move, state.target_critic)
    return State(critic, target_critic), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
