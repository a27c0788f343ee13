"""ReCOIL [offline]: imitation of an expert from few of its episodes and many of anybody.

Actions of the expert have the largest value. Actions of everybody have the value of the next state, minus a penalty for
each step. So an action is worth much if it leads to states that the expert visited.

V value, Q_c critics, Q'_c their targets, r reward, L = r / (1 - gamma) the largest value; s, a and s' are rows of all
the data, the mixture; s_e and a_e are rows of the expert; pi and beta as in agents/iql.py
  Q(s, a)  = min_c Q'_c(s, a),  u = Q(s, a) - V(s)
  L(V)     = mean [ exp(z) - z - 1 ], z = min(u / T, max_exponent)         reverse KL, T temperature
           = mean [ |tau - 1(u < 0)| u^2 ] + alpha (mean V(s) - mean V(s_e))            expectile
  L(pi)    = mean [ -w log pi(a|s) ],  w = min(exp(beta u), max_weight)    V after its step
  y        = -r + gamma V(s'), or -r - gamma L where s' is terminal        V after its step
  L(Q)     = sum_c [ mean (Q_c(s_e, a_e) - L)^2 + mean (Q_c(s, a) - y)^2 ] / 2

Departs from the paper: it follows the authors' code [2], which bounds values as LS-IQ does [3] in place of pushing the
expert's up without a bound.

[1] Sikchi et al., Dual RL: Unification and New Methods for Reinforcement and Imitation Learning, arXiv:2302.08560
[2] the authors' code: critic_imitate.py and train_imitate.py, from github.com/Div99/XQL
[3] Al-Hafez et al., LS-IQ: Implicit Reward Regularization for Inverse Reinforcement Learning, arXiv:2303.00599

  rljax data join both.hdf5 expert.hdf5 mixture.hdf5 --mark-parts
  rljax train recoil --data both.hdf5
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
    batch_size: int = 1024  # rows of the mixture per update, and as many of the expert; [2]
    # Experience
    expert_part: int = 0  # which of the joined data sets is the expert's, counted from 0; own choice
    normalise_observations: bool = False  # by the data set's mean and std; own choice
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    expert_reward: float = 2.0  # r, of each step of the expert, and its negative of each other step; [2]
    value_loss: Literal["reverse_kl", "expectile"] = "reverse_kl"  # which maximum over the mixture's actions V is; [2]
    temperature: float = 1.0  # T of reverse_kl: towards 0 the maximum; [2]
    max_exponent: float = 7.0  # bound of u / T in reverse_kl; [2]
    expectile: float = 0.8  # tau of expectile, in [0.5, 1): towards 1 the maximum; [2]
    value_gap: float = 0.1  # alpha of expectile, which pushes the expert's values above the mixture's; [2]
    # Policy
    inverse_temperature: float = 3.0  # beta: 0 imitates the mixture, more follows the advantage; [2]
    max_weight: float = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "gaussian"  # the loss: -log pi, or the squared distance; [2]
    log_std_min: float = -5.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    exploration_noise: float = 0.03  # std of the noise on a deterministic policy's actions, where it explores; CORL
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, of all networks; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = True  # normalise hidden layers of critics and value before activation; [2]
    dropout: float | None = None  # share of the actor's hidden units left out while learning; IQL on Adroit: 0.1
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
    """Batches of 2 B rows: B of all the data, the mixture, then B of the expert."""
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        draw=buffers.PartRows(part=config.expert_part),
        learns_until=config.decay_steps,
    )


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of updates."""
    return dataclasses.replace(config, decay_steps=agent.in_steps(config.decay_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_unmixed("recoil", spec)
    agent.require_range(config, discount=(0, 0.9999), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), expert_reward=(0, None), inverse_temperature=(0, None))
    agent.require_range(config, temperature=(1e-8, None), max_exponent=(0, 50), expectile=(0.5, 0.9999))
    agent.require_range(config, value_gap=(0, None), max_weight=(0, None), exploration_noise=(0, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_above(config, decay_steps=0)
    if config.dropout is not None:
        agent.require_range(config, dropout=(0, 0.99))
    agent.require_at_least(config, num_critics=1, expert_part=0)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


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
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, observation, action)
    head = networks.MLP(config.hidden, 1, *style, output_scale=gain, layer_norm=config.layer_norm)
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


def halves(batch: Any) -> tuple[Any, Any]:
    """The mixture's rows [B, ...] and the expert's [B, ...] of arrays [2 B, ...]."""
    return jax.tree.map(lambda x: x[: len(x) // 2], batch), jax.tree.map(lambda x: x[len(x) // 2 :], batch)


# [2], critic_imitate.py
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """How far V(s) is from a soft maximum of the mixture's values q [B]; `batch` holds both halves [2 B]."""
    v, expert_v = halves(value(batch.observation)[:, 0])  # [B]
    surplus = q - v
    if config.value_loss == "reverse_kl":
        z = jnp.minimum(surplus / config.temperature, config.max_exponent)
        largest = jax.lax.stop_gradient(jnp.maximum(z.max(), -1.0))
        loss = (jnp.exp(z - largest) - (z + 1.0) * jnp.exp(-largest)).mean()
    else:
        weight = jnp.where(surplus > 0, config.expectile, 1.0 - config.expectile)
        loss = (weight * jnp.square(surplus)).mean() + config.value_gap * (v - expert_v).mean()
    return loss, {"value/loss": loss, "value/v": v.mean(), "value/expert_v": expert_v.mean()}


# IQL's, arXiv:2110.06169, equation 7
def actor_loss(actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """Distance to the data's actions, weighted by the exponential of their advantage [B]."""
    weight = jnp.minimum(jnp.exp(config.inverse_temperature * advantage), config.max_weight)
    loss = (weight * distance(actor, batch, key, config)).mean()
    return loss, {"actor/loss": loss, "actor/advantage": advantage.mean(), "actor/weight": weight.mean()}


# LS-IQ's, [3]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared errors of all critics, summed over critics: of the mixture to y from V(s') [B], of the expert to L."""
    largest = config.expert_reward / (1.0 - config.discount)
    terminated = halves(batch.terminated)[0]
    target = config.discount * jnp.where(terminated, -largest, next_v) - config.expert_reward  # [B]
    q, expert_q = jnp.split(critic(batch.observation, batch.action), 2, axis=-1)  # [C, B]
    loss = (jnp.square(q - target) + jnp.square(expert_q - largest)).mean(axis=-1).sum() / 2.0
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/expert_q": expert_q.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the actor, the critics and their targets; the actor's rate falls with `step`."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    mixture = halves(batch)[0]
    q = state.target_critic(mixture.observation, mixture.action).min(axis=0)  # [B]

    gradient, value_metrics = jax.grad(value_loss, has_aux=True)(state.value, q, batch, config)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)
    v, next_v = expected(value, mixture)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, q - v, mixture, key, config)
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
