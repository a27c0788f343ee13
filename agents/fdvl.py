"""f-DVL [offline]: IQL whose values are those of a dual under an f-divergence; also XQL.

A state's value is pushed up by actions of the data that are worth more and down by all; the divergence says how much.
Total variation makes it a quantile, chi-square and reverse KL weigh a large surplus by more.

V value, Q_c critics, Q'_c their targets, lambda optimism; pi, y, beta and the weights as in agents/iql.py
  Q(s, a)  = min_c Q'_c(s, a),  u = Q(s, a) - V(s)
  L(V)     = mean [ lambda max(u, 0) - (1 - lambda) u ]                 total variation [1]
           = mean [ lambda max(u + u^2 / 4, 0) - (1 - lambda) u ]       chi-square, as [2] where u >= -4
           = mean [ exp(z) - z - 1 ], z = min(u / T, max_exponent)      reverse KL, T temperature: XQL [3]
  L(pi)    = mean [ -w log pi(a|s) ],  w = min(exp(beta u), max_weight)              V after its step
  L(Q)     = sum_c mean huber(Q_c(s, a) - y)                            V after its step

Departs from the paper: it follows the authors' code [2], which begins from XQL's: the policy's weights are IQL's, the
critics' loss is Huber's, and reverse KL's loss is divided by its largest exponential.

[1] Sikchi et al., Dual RL: Unification and New Methods for Reinforcement and Imitation Learning, arXiv:2302.08560
[2] github.com/hari-sikchi/DVL
[3] Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy, arXiv:2301.02328; github.com/Div99/XQL

  rljax train fdvl --data d4rl/hopper-medium-v2
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
    batch_size: int = 1024  # transitions per update; [2], 256 in [3]
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
    divergence: Literal["total_variation", "chi_square", "reverse_kl"] = "total_variation"  # reverse_kl is XQL; [2]
    optimism: float = 0.8  # lambda, in [0.5, 1]: 0.5 is the minimum, towards 1 the maximum; [2] for antmaze-large-play
    temperature: float = 2.0  # T of reverse_kl: towards 0 the maximum; [3] for locomotion, with one setting for all
    max_exponent: float = 7.0  # bound of u / T in reverse_kl; [3]
    uniform_actions: int = 0  # per row, beside the data's action in L(V); 1 in [2] for halfcheetah-medium-expert
    huber: float = 20.0  # error of the critics from which on their loss is linear; [2]
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
    layer_norm: bool = True  # normalise hidden layers of critics and value before activation; [2]
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
    agent.require_unmixed("fdvl", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), optimism=(0.5, 1), inverse_temperature=(0, None))
    agent.require_range(config, temperature=(1e-8, None), max_exponent=(0, 50), huber=(1e-8, None))
    agent.require_range(config, max_weight=(0, None), exploration_noise=(0, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_above(config, decay_steps=0)
    if config.dropout is not None:
        agent.require_range(config, dropout=(0, 0.99))
    agent.require_at_least(config, num_critics=1, uniform_actions=0)
    if config.uniform_actions and spec.discrete:
        raise ValueError("--config.uniform-actions is for continuous actions: of discrete ones, use 0.")
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


# [2], [3]
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """What pushes V up where the values q [K, B] of K actions are above it, minus what pushes it down everywhere."""
    v = value(batch.observation)[:, 0]  # [B]
    surplus = q - v  # [K, B]
    if config.divergence == "reverse_kl":
        z = jnp.minimum(surplus / config.temperature, config.max_exponent)
        largest = jax.lax.stop_gradient(jnp.maximum(z.max(), -1.0))
        loss = (jnp.exp(z - largest) - (z + 1.0) * jnp.exp(-largest)).mean()
    else:
        above = jnp.maximum(surplus, 0.0)
        if config.divergence == "chi_square":
            above = above + jnp.square(above) / 4.0
        loss = (config.optimism * above - (1.0 - config.optimism) * surplus).mean()
    return loss, {"value/loss": loss, "value/v": v.mean(), "value/above": (surplus > 0).mean()}


# IQL's, arXiv:2110.06169, equation 7
def actor_loss(actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """Distance to the data's actions, weighted by the exponential of their advantage [B]."""
    weight = jnp.minimum(jnp.exp(config.inverse_temperature * advantage), config.max_weight)
    loss = (weight * distance(actor, batch, key, config)).mean()
    return loss, {"actor/loss": loss, "actor/advantage": advantage.mean(), "actor/weight": weight.mean()}


# [2]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Huber's loss of all critics' errors to the target from V(s') [B], summed over critics."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = 2.0 * optax.huber_loss(q, jnp.broadcast_to(target, q.shape), delta=config.huber).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the actor, the critics and their targets; the actor's rate falls with `step`."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    key, key_uniform = jax.random.split(key)
    uniform = (config.uniform_actions, *batch.action.shape)
    uniform = jax.random.uniform(key_uniform, uniform, minval=-1.0, maxval=1.0).astype(batch.action.dtype)
    tried = jnp.concatenate([batch.action[None], uniform])  # [K, B, A]
    values = jax.vmap(lambda action: state.target_critic(batch.observation, action).min(axis=0))(tried)  # [K, B]

    gradient, value_metrics = jax.grad(value_loss, has_aux=True)(state.value, values, batch, config)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)
    v, next_v = expected(value, batch)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, values[0] - v, batch, key, config)
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
