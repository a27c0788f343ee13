"""FQE [evaluation]: the value of another run's policy, from a data set alone; fitted Q evaluation.

Critics learn what the policy would earn from each state and action of the data. Their mean over the data's first
states estimates the policy's discounted return, without an environment. So runs can be compared before any is played.

gamma discount, Q_c critics, Q'_c their targets, pi the policy of `--base`, s_0 the first observations of the data
  a'       ~ pi(.|s')                                        as evaluation plays it; without a base: the data's
  y        = r + gamma (1 - terminated) mean_c Q'_c(s', a')  [1, alg. 3]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                    or the cross-entropy to classes of y: `value_head`
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                        rho target_rate
  V        = mean over s_0 of mean_c Q_c(s_0, a_0),  a_0 ~ pi(.|s_0)             the metric `value/initial`

Departs from the paper: one step of Adam on a batch in place of each whole regression, with targets that follow slowly,
as in [2]. Without `--base` it judges the policy that recorded the data, whose return is known.

[1] Le et al., Batch Policy Learning under Constraints, arXiv:1903.08738
[2] Paine et al., Hyperparameter Selection for Offline Reinforcement Learning, arXiv:2007.09055

  rljax train fqe --data d4rl/hopper-medium-v2 --base runs/iql
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, Base, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, heads, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    critic_lr: float = 3e-4  # Adam learning rate of the critics; own choice
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; own choice
    normalise_observations: bool = True  # by the data set's mean and std; own choice
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; own choice
    value_head: heads.Kind = "squared"  # how critics learn values: by squared error, or by classes of them; own choice
    bins: int = 101  # of two_hot and hl_gauss: classes of values; own choice
    v_min: float | None = None  # lower end of the bins; None: a margin below the data's returns; own choice
    v_max: float | None = None  # upper end of the bins; None: a margin above the data's returns; own choice
    # Estimate
    num_starts: int = 256  # first observations of which the value is the mean, at most; own choice
    initial_every: int = 20  # updates between two estimates; own choice
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers; own choice
    num_critics: int = 2  # C; their mean counts; own choice
    activation: networks.Activation = "relu"  # of the hidden layers; own choice
    layer_norm: bool = True  # normalise the hidden layers before activation, against divergence; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; own choice


class Starts(struct.PyTreeNode):
    """First rows of episodes of the data, [S, ...]."""

    observation: Any  # [S, O...]
    action: Array  # [S, A] or [S]: the data's
    weight: Array  # [S]: 1, or 0 where there is no such row


class State(struct.PyTreeNode):
    """Everything that learning changes, and what it reads."""

    critic: networks.Network  # [O], [A] or [] -> [C]
    target_critic: networks.Network
    critic_optimiser: optax.OptState
    statistics: Any  # of observations [O...]
    starts: Starts
    spec: EnvSpec = struct.field(pytree_node=False)
    base: Base | None = None  # the policy that is judged; None: that of the data


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set with the next actions."""
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        reward_transform=config.reward_transform,
        columns=(buffers.NextAction(),),
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_unmixed("fqe", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), critic_lr=(0, None))
    agent.require_at_least(config, num_critics=1, num_starts=1, initial_every=1)
    heads.check_bins(heads.HeadSettings(config.value_head, config.bins, config.v_min, config.v_max))
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoder."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    observation, action = spec.example(), jnp.zeros(spec.action_shape, spec.action_dtype)
    style = (config.activation, config.initialisation)
    ensemble = networks.ensemble(spec, config.num_critics, config.hidden, *style, config.layer_norm)
    classes = heads.HeadSettings(config.value_head, config.bins, config.v_min, config.v_max)
    encoded = encoders.encoded(spec, encoding(config), ensemble)
    critic = networks.create_critic(encoded, classes, spec, key, observation, action)
    number = config.num_starts
    starts = Starts(spec.example(number), jnp.zeros((number, *spec.action_shape), spec.action_dtype), jnp.zeros(number))
    return State(
        critic=critic,
        target_critic=networks.copy(critic),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        statistics=normalise.of_observations(spec),
        starts=starts,
        spec=spec,
    )


def use_base(state: State, base: Base, config: Config) -> State:
    """Keep the policy that is judged."""
    del config
    return state.replace(base=base)


def prepare(state: State, data: Transition, config: Config) -> State:
    """Keep first rows of episodes of a data set [N, ...], evenly spread over it, and count its observations."""
    state = networks.fitted(state, data, config.discount)
    rows, weight = first_rows(data, config.num_starts)
    observation, action = buffers.rows_of((data.observation, data.action), rows)
    state = state.replace(starts=Starts(observation, action, weight))
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def first_rows(data: Transition, number: int) -> tuple[Array, Array]:
    """Rows [S] of a data set [N, ...] that begin episodes, evenly spread over all, and which of them there are."""
    begins = jnp.concatenate([jnp.ones((1,), bool), (data.terminated | data.truncated)[:-1]])
    order, places = jnp.cumsum(begins), jnp.arange(number)  # the first row of episode k, from 1 on, has order k
    episodes = order[-1]
    spread = (places * (episodes // number)) + (places * (episodes % number)) // number
    chosen = jnp.where(episodes > number, spread, jnp.minimum(places, episodes - 1))
    return jnp.searchsorted(order, chosen + 1), (places < episodes).astype(jnp.float32)


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] or [...] of the policy that is judged, for observations [..., O].

    Without a base there is no policy to act with: actions are 0, and uniform ones when exploring.
    """
    del config
    if state.base is not None:
        return state.base.act(observation, key, explore), {}
    mask = agent.mask_of(observation)
    seen, single = jax.tree.leaves(observation)[0], jax.tree.leaves(state.spec.observation)[0]
    leading = seen.shape[: seen.ndim - len(single.shape)]
    if explore:
        return distributions.uniform(key, state.spec, leading, mask), {}
    return jnp.zeros((*leading, *state.spec.action_shape), state.spec.action_dtype), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] or [...] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def initial(state: State, key: Array, config: Config) -> Array:
    """V []: the mean value of the policy's actions for the data's first observations."""
    starts = state.starts
    action = starts.action if state.base is None else state.base.act(starts.observation, key)
    found = value(state, starts.observation, action, config)
    return (starts.weight * found).sum() / jnp.maximum(starts.weight.sum(), 1.0)


# [1, algorithm 3]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, next_action: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error, or cross-entropy, of all critics to the target, summed over critics.

    Where the data's own policy is judged, rows at which the data were cut do not count: no next action is known.
    """
    next_q = state.target_critic(batch.next_observation, next_action).mean(axis=0)  # [B]
    target = batch.reward + config.discount * (1.0 - batch.terminated) * next_q
    outputs, head = networks.judged(critic, batch.observation, batch.action)  # [C, B], or [C, B, K] of bins
    known = jnp.ones_like(batch.reward)
    if state.base is None:
        known = (batch.extras["has_next_action"] | batch.terminated).astype(jnp.float32)
    error = head.loss(outputs, head.encode(target))  # [C, B]
    loss = (known * error).sum() / jnp.maximum(known.sum(), 1.0)
    metrics = {"critic/loss": loss, "critic/q": head.mean(outputs).mean(), "critic/target": target.mean()}
    return loss, metrics | head.clipped(target)


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and their targets, and every `initial_every`-th time an estimate of the return."""
    key_next, key_first = jax.random.split(key)
    next_action = batch.extras["next_action"]
    if state.base is not None:
        next_action = state.base.act(batch.next_observation, key_next)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, next_action, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(critic=critic, target_critic=target_critic, critic_optimiser=critic_optimiser)

    def judge(state: State) -> tuple[State, Metrics]:
        return state, {"value/initial": initial(state, key_first, config)}

    state, judged = agent.every(config.initial_every, step, judge, state)
    return state, metrics | judged


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
