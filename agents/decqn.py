"""DecQN [off-policy]: Q-learning with values for each dimension of actions.

gamma discount, n rewards in R, epsilon share of uniform bins
b = 1 ... K bins of each dimension d, from -1 to 1
Q_c,d(s, b) critics, Q' targets
  Q_c(s, a) = mean_d Q_c,d(s, b_d(a))  b_d(a): the bin next to a_d
  b*_c,d    = argmax_b Q_c,d(s', b)
  y_c       = R + gamma^n (1 - terminated) mean_c',d Q'_c',d(s', b*_c,d)
              [1, eq. 2 and 4]
  L(Q)      = sum_c mean l(Q_c(s, a) - y_c)  l: Huber's  [2]
  Q'       <- Q  every `target_every` updates
  a_d       = the bin of largest max_c Q_c,d(s, b)
              with probability epsilon a uniform one, for each d

With K = 2 actions are bang-bang.

Departs from the paper: a plain network, not a residual one;
a row's priority is the larger error of two critics.
It is not ARSQ [3], with soft values and bins within bins.

[1] Seyde et al., Continuous Control via Q-learning, arXiv:2210.12566
[2] github.com/tseyde/decqn
[3] Liu et al., ARSQ, arXiv:2502.00288

  rljax train decqn --env Hopper-v5
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, heads
from rljax.networks.blocks.layer_norm_mlp import LayerNormEnsemble
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import AtLeast, Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithSchedule, buffers.ReplaySettings, buffers.PrioritySettings):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 1e-4  # of Adam; [2]
    max_grad_norm: NonNegative | None = 40.0  # of the gradient; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 1_000  # uniform actions, no update; [2]
    num_steps: int = 8  # per update; [2]: 32 samples of a step
    n_step: Count = 3  # n, rewards in R; [2]
    prioritised: Share = 0.6  # exponent of errors; [2]
    correction: Share = 0.2  # exponent of the weights; [2]
    correction_steps: Positive = 1e12  # until it is 1; never in [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 1.0  # 1 is a copy; [2]
    target_every: Count = 100  # updates between; [2]
    # Policy
    bins: Annotated[int, AtLeast(2)] = 2  # K of each dimension; [2]
    epsilon: Share = 0.1  # share of uniform bins; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (512, 512)  # of the critics; [2]
    num_critics: Count = 2  # C; [2]
    activation: networks.Activation = "elu"  # of hidden layers; [2]


class DecoupledEnsemble(LayerNormEnsemble):
    """Critics with `bins` values for each dimension of actions."""

    bins: int = 2

    def __call__(self, observation: Array, action: Array | None = None) -> Array:
        """Q_c,d [C, ..., A, K], or Q_c [C, ...] of actions [..., A]."""
        outputs = super().__call__(observation)
        outputs = outputs.reshape(*outputs.shape[:-1], -1, self.bins)
        return outputs if action is None else of_bins(outputs, nearest(action, self.bins))


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O] -> [C, A, K]; [O], [A] -> [C]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("decqn", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    size = (config.num_critics, config.hidden, spec.action_size * config.bins)
    net = DecoupledEnsemble(*size, config.activation, "layer", bins=config.bins)
    critic = encoders.create(spec, EncoderSettings.of(config), net, key)
    return State(
        critic=networks.trained(critic, config.learning_rate, config),
        target_critic=networks.copy(critic),
    )


def nearest(action: Array, bins: int) -> Array:
    """The bins int32 [..., A] next to actions [..., A]."""
    place = 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (bins - 1)
    return jnp.round(place).astype(jnp.int32)


def of_bins(outputs: Array, index: Array) -> Array:
    """The mean [...] over dimensions of outputs [..., A, K] of bins [..., A]."""
    index = jnp.broadcast_to(index, outputs.shape[:-1])[..., None]
    return jnp.take_along_axis(outputs, index, axis=-1).mean(axis=(-2, -1))


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    index = state.critic(observation).max(axis=0).argmax(axis=-1)  # [..., A]
    if explore:
        key_choice, key_bin = jax.random.split(key)
        uniform = jax.random.randint(key_bin, index.shape, 0, config.bins)
        is_uniform = jax.random.uniform(key_choice, index.shape) < config.epsilon
        index = jnp.where(is_uniform, uniform, index)
    return jnp.linspace(-1.0, 1.0, config.bins)[index], {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


# [1, eq. 2 and 4]
def critic_loss(critic: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Error of the critics to their targets."""
    head = heads.Scalar("huber")
    best = state.critic(batch.next_observation).argmax(axis=-1)  # [C, B, A]
    outputs = state.target_critic(batch.next_observation).mean(axis=0)  # [B, A, K]
    next_q = jax.vmap(of_bins, in_axes=(None, 0))(outputs, best)  # [C, B]
    discount = batch.extras.get("discount", config.discount) * (1.0 - batch.terminated)
    target = head.target(next_q, batch.reward, discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = buffers.weighted(head.loss(q, target), batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | buffers.priorities(head.error(q, target), batch)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics and, if due, targets."""
    optimiser = networks.optimiser(config.learning_rate, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, config)
    every, rate = config.target_every, config.target_rate
    target = state.target_critic
    target = networks.polyak_every(every, step, critic, target, rate)
    return State(critic, target), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
