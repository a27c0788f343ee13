"""FQE [evaluation]: fitted Q evaluation of another run's policy, from a data set alone.

gamma discount, Q_c critics, Q'_c targets, pi the policy of `--base`
s_0 the data's first observations, a_0 ~ pi(.|s_0)
  a'       ~ pi(.|s'), as evaluation plays it; without a base: the data's
  y        = r + gamma (1 - terminated) mean_c Q'_c(s', a')  [1, alg. 3]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  V        = mean over s_0 of mean_c Q_c(s_0, a_0)  the metric `value/initial`

Departs from the paper: a step of Adam in place of each regression, and slow
targets, as in [2]. `value_head` learns classes of y.

[1] Le et al., Batch Policy Learning under Constraints, arXiv:1903.08738
[2] Paine et al., Hyperparameter Selection, arXiv:2007.09055

  rljax train fqe --data d4rl/hopper-medium-v2 --base runs/iql
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, Base, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, normalise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import HeadSettings
from rljax.requirements import Count, NonNegative, Share, Widths


@agent.config
class Config(networks.WithSchedule, heads.WithHead):
    """Hyperparameters."""

    # Optimisation
    critic_lr: NonNegative = 3e-4  # of Adam; own choice
    batch_size: int = 256  # transitions; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # before any update
    normalise_observations: bool = True  # by mean and std; own choice
    num_updates: int = 1  # updates per iteration
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; own choice
    # Estimate
    num_starts: Count = 256  # first states; own choice
    initial_every: Count = 20  # updates per estimate; own choice
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of the critics; own choice
    num_critics: Count = 2  # C; their mean counts; own choice
    activation: networks.Activation = "relu"  # own choice
    layer_norm: bool = True  # before activation; own choice
    initialisation: networks.Initialisation = "torch"  # own choice


class Starts(struct.PyTreeNode):
    """First rows of episodes of the data, [S, ...]."""

    observation: Any  # [S, O...]
    action: Array  # [S, A] or [S]: the data's
    weight: Array  # [S]: 1, or 0 where there is no such row


class State(struct.PyTreeNode):
    """What learning changes, or reads."""

    critic: networks.Trained  # [O], [A] or [] -> [C]
    target_critic: networks.Network
    statistics: Any  # of observations; the base has its own
    starts: Starts
    spec: EnvSpec = struct.field(pytree_node=False)
    base: Base | None = None  # to evaluate; None: the data's


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of data with the next actions."""
    columns = (buffers.NextAction(),)
    return buffers.Dataset.of(config, columns=columns, normalise_observations=False)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("fqe", spec)
    heads.check_bins(HeadSettings.of(config))
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    style = (config.activation, config.initialisation, config.layer_norm)
    net = networks.ensemble(spec, config.num_critics, config.hidden, *style)
    net = encoders.encoded(spec, EncoderSettings.of(config), net)
    head = HeadSettings.of(config)
    critic = networks.create_critic(net, head, spec, key, spec.example(), action)
    number = config.num_starts
    starts = Starts(
        observation=spec.example(number),
        action=jnp.zeros((number, *spec.action_shape), spec.action_dtype),
        weight=jnp.zeros(number),
    )
    return State(
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        statistics=normalise.of_observations(spec),
        starts=starts,
        spec=spec,
    )


def use_base(state: State, base: Base, config: Config) -> State:
    """Keep the policy to evaluate."""
    return state.replace(base=base)


def prepare(state: State, data: Transition, config: Config) -> State:
    """Keep first rows and statistics of the data [N, ...]."""
    rows, weight = first_rows(data, config.num_starts)
    pair = (data.observation, data.action)
    observation, action = buffers.rows_of(pair, rows)
    state = state.replace(
        critic=networks.fit_bins(state.critic, data, config.discount),
        target_critic=networks.fit_bins(state.target_critic, data, config.discount),
        starts=Starts(observation, action, weight),
    )
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def first_rows(data: Transition, number: int) -> tuple[Array, Array]:
    """Rows [S] that begin episodes, spread, and their weights."""
    ends = data.terminated | data.truncated
    begins = jnp.concatenate([jnp.ones((1,), bool), ends[:-1]])
    order = jnp.cumsum(begins)  # of episodes, from 1 on
    places = jnp.arange(number)
    episodes = order[-1]
    whole = places * (episodes // number)
    spread = whole + (places * (episodes % number)) // number
    first = jnp.minimum(places, episodes - 1)
    episode = jnp.where(episodes > number, spread, first)
    weight = (places < episodes).astype(jnp.float32)
    return jnp.searchsorted(order, episode + 1), weight


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """The base's actions [..., A] or [...]; else 0 or uniform."""
    if state.base is not None:
        return state.base.act(observation, key, explore), {}
    spec = state.spec
    leading = spec.leading(observation)
    if explore:
        mask = agent.mask_of(observation)
        return distributions.uniform(key, spec, leading, mask), {}
    return jnp.zeros((*leading, *spec.action_shape), spec.action_dtype), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A] or [...]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def initial_value(state: State, key: Array, config: Config) -> Array:
    """V []: the policy's mean value in the first states."""
    starts = state.starts
    action = starts.action
    if state.base is not None:
        action = state.base.act(starts.observation, key)
    values = value(state, starts.observation, action, config)
    total = (starts.weight * values).sum()
    return total / jnp.maximum(starts.weight.sum(), 1.0)


# [1, algorithm 3]
def critic_loss(
    critic: networks.Network,
    state: State,
    batch: Transition,
    next_action: Array,
    config: Config,
) -> Loss:
    """Error of the critics, where the next action is known."""
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = next_q.mean(axis=0)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)
    target = batch.reward + bootstrap * next_q
    # outputs are [C, B], or [C, B, K] of bins
    outputs, head = networks.outputs_and_head(critic, batch.observation, batch.action)
    weight = jnp.ones_like(batch.reward)
    if state.base is None:
        is_known = batch.extras["has_next_action"] | batch.terminated
        weight = is_known.astype(jnp.float32)
    error = head.loss(outputs, head.encode(target))  # [C, B]
    loss = (weight * error).sum() / jnp.maximum(weight.sum(), 1.0)
    metrics = {
        "critic/loss": loss,
        "critic/q": head.mean(outputs).mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | head.clipped(target)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics and targets; V, if due."""
    key_next, key_first = jax.random.split(key)
    next_action = batch.extras["next_action"]
    if state.base is not None:
        next_action = state.base.act(batch.next_observation, key_next)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, next_action, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(critic=critic, target_critic=target_critic)

    def estimate(state: State) -> tuple[State, Metrics]:
        return state, {"value/initial": initial_value(state, key_first, config)}

    state, estimates = agent.every(config.initial_every, step, estimate, state)
    return state, metrics | estimates


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
