"""IQL: offline actor-critic that never evaluates an action outside the data.

A state's value is an upper expectile of its actions' values in the data. The critics bootstrap from it. The policy
imitates the data's actions, each weighted by the exponential of its advantage.

gamma discount, V value, Q_c critics, Q'_c their targets, pi actor, tau expectile, beta inverse temperature
  Q(s, a)  = min_c Q'_c(s, a),  u = Q(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]                              [1, eq. 5]
  w        = min(exp(beta (Q(s, a) - V(s))), max_weight)                V after its step
  L(pi)    = mean [ -w log pi(a|s) ]                                    [1, eq. 7]; deterministic: w |mu(s) - a|^2
  y        = r + gamma (1 - terminated) V(s')                           V after its step
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [1, eq. 6]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

pi(.|s) is a diagonal Gaussian around tanh of the actor's output, with the same std in all states. Where actions are
discrete, it is a softmax of the actor's output, and the critics put out the values of all actions.

Departs from the paper: the weights' bound, the actor's falling learning rate and the clipped log std are those of the
authors' code [2]. With `values = "old"`, advantages and targets use V from before its step (CORL). With
`value_head`, the error of Q_c is the cross-entropy to classes of y [3].

[1] Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, arXiv:2110.06169
[2] github.com/ikostrikov/implicit_q_learning
[3] Farebrother et al., Stop Regressing: Training Value Functions via Classification, arXiv:2403.03950

  rljax train iql --data d4rl/hopper-medium-v2
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
from rljax.networks import Actor, distributions, encoders, heads, normalise


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
    normalise_observations: bool = False  # by the data set's mean and std; CORL: True
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; [2]
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    expectile: float = 0.7  # tau, in [0, 1]: 0.5 is the mean, towards 1 the maximum; [2] for locomotion
    values: Literal["new", "old"] = "new"  # V of advantages and targets: after its step, or before it (CORL); [2]
    value_head: heads.Kind = "squared"  # how critics learn values: by squared error, or by classes of them; [3]
    bins: int = 101  # of two_hot and hl_gauss: classes of values; own choice
    v_min: float | None = None  # lower end of the bins; None: a margin below the data's returns; own choice
    v_max: float | None = None  # upper end of the bins; None: a margin above the data's returns; own choice
    # Policy
    inverse_temperature: float = 3.0  # beta: 0 imitates the data, more follows the advantage; [2] for locomotion
    max_weight: float = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "gaussian"  # CORL: deterministic on hopper-medium; [2]
    log_std_min: float = -5.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    exploration_noise: float = 0.03  # online: std of the noise on actions of a deterministic policy; CORL
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, of all networks; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    dropout: float | None = None  # share of the actor's hidden units left out while learning; [2] on Adroit: 0.1
    initialisation: networks.Initialisation = "orthogonal"  # of all layers, with gain sqrt 2; [2]


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
    agent.require_unmixed("iql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), expectile=(0, 1), inverse_temperature=(0, None))
    agent.require_range(config, max_weight=(0, None), exploration_noise=(0, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_above(config, decay_steps=0)
    if config.dropout is not None:
        agent.require_range(config, dropout=(0, 0.99))
    agent.require_at_least(config, num_critics=1)
    heads.check_bins(heads.Settings(config.value_head, config.bins, config.v_min, config.v_max))
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.Settings:
    """The settings of the encoders."""
    return encoders.Settings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape, spec.action_dtype)
    style, gain = (config.activation, config.initialisation), 2.0**0.5
    mean = networks.MLP(config.hidden, spec.action_size, *style, output_scale=gain)
    actor = Actor(
        mean=networks.create(encoders.encoded(spec, encoding(config), mean), key_actor, observation),
        log_std=jnp.zeros(spec.action_size) if config.policy == "gaussian" and not spec.discrete else None,
        discrete=spec.discrete,
        choices=spec.choices,
    )
    ensemble = networks.ensemble(spec, config.num_critics, config.hidden, *style, config.layer_norm, output_scale=gain)
    classes = heads.Settings(config.value_head, config.bins, config.v_min, config.v_max)
    encoded = encoders.encoded(spec, encoding(config), ensemble)
    critic = networks.create_critic(encoded, classes, spec, key_critic, observation, action)
    head = networks.MLP(config.hidden, 1, *style, output_scale=gain)
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
    """Count the observations of a data set [N, O] into the input statistics; its returns bound the critics' bins."""
    state = networks.fitted(state, data, config.discount)
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


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] or [...] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


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


def expected(value: networks.Network, batch: Transition) -> tuple[Array, Array]:
    """V(s) and V(s') [B] of a batch, in one pass."""
    both = jax.tree.map(lambda *x: jnp.concatenate(x), batch.observation, batch.next_observation)
    v = value(both)[:, 0]
    return v[: batch.reward.size], v[batch.reward.size :]


# [1, eq. 5]
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared distance to the actions' values q [B]; weight `expectile` above V, 1 - `expectile` below."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = jnp.where(q < v, 1.0 - config.expectile, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# [1, eq. 7]
def actor_loss(actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """Distance to the data's actions, weighted by the exponential of their advantage [B]."""
    weight = jnp.minimum(jnp.exp(config.inverse_temperature * advantage), config.max_weight)
    loss = (weight * distance(actor, batch, key, config)).mean()
    return loss, {"actor/loss": loss, "actor/advantage": advantage.mean(), "actor/weight": weight.mean()}


# [1, eq. 6]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared error, or cross-entropy, of all critics to the target from V(s') [B], summed over critics."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    outputs, head = networks.judged(critic, batch.observation, batch.action)  # [C, B], or [C, B, K] of bins
    loss = head.loss(outputs, head.encode(target)).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": head.mean(outputs).mean(), "critic/target": target.mean()}
    return loss, metrics | head.clipped(target)


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the actor, the critics and their targets; the actor's rate falls with `step`."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [B]

    gradient, value_metrics = jax.grad(value_loss, has_aux=True)(state.value, q, batch, config)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)
    v, next_v = expected(value if config.values == "new" else state.value, batch)

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
