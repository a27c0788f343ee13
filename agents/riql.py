"""RIQL [offline]: IQL for corrupted data.

A Huber loss limits the heavy tails of corrupted successors.
Critics may disagree on corrupted data: a low quantile of several
penalises it, less than the minimum does.

gamma discount, V value, Q_c critics, Q'_c targets, mu actor
tau expectile, beta inverse_temperature, alpha quantile
t = 1 / huber_sigma^2
  Q(s, a)  = quantile_alpha over c of Q'_c(s, a)  [1, section 5]
  u        = Q(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]  IQL's
  w        = min(exp(beta u), max_weight)
  L(mu)    = mean [ w |mu(s) - a|^2 ]  gaussian: -w log pi(a|s)
  y        = clip(r + gamma (1 - terminated) V(s'), target_min, target_max)
  h(e)     = e^2 / (2 t) where |e| < t, |e| - t / 2 elsewhere  [2]
  L(Q)     = mean h(y - Q_c(s, a)), over critics too  [1, section 5]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
u and y take V from before its step.

Departs from the paper: it follows the authors' code [2], which
clips the targets and has this scale and threshold of the Huber loss.
Discrete actions, as in iql, are ours.

[1] Yang et al., Offline RL under Diverse Data Corruption, arXiv:2310.12955
[2] github.com/YangRui2015/RIQL

  rljax train riql --data d4rl/hopper-medium-replay-v2
"""

from __future__ import annotations

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, encoders, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import expectiles
from rljax.networks.policies import Imitation
from rljax.requirements import Between, Count, NonNegative, Positive, Real, Share, Widths

Sigma = Annotated[float, Between(1e-3, 1e3)]


@agent.config
class Config(networks.WithCritics, buffers.RowSettings, policies.WithImitation):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    decay_steps: Positive | None = 1.0  # share of the run to rate 0; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Data
    normalise_observations: bool = True  # by mean and std; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    expectile: Share = 0.7  # tau: 0.5 is the mean; [2]
    quantile: Share = 0.25  # alpha: 0 is the smallest; [2]
    huber_sigma: Sigma = 1.0  # linear past 1 / sigma^2; [2]
    target_min: Real = -100.0  # lower clip of y; [2]
    target_max: Real = 1000.0  # upper clip of y; [2]
    # Policy
    inverse_temperature: NonNegative = 3.0  # beta; [2]
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "deterministic"  # form of pi; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 5  # C; their quantile counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # of actor and value; [2]
    critic_initialisation: networks.Initialisation = "edac"  # of the critics; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    critic: networks.Trained  # [O], [A] or [] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    until = config.decay_steps
    return buffers.row_dataset(config, counts_successors=True, learns_until=until)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("riql", spec)
    agent.require_order(config, "target_min", "target_max")
    Imitation.of(config).check()
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, spec.action_size, *style)
    net = encoders.encoded(spec, encoding, net)
    actor = policies.create_actor(spec, net, key_actor, config.policy == "gaussian")
    critic_style = (config.activation, config.critic_initialisation, config.layer_norm)
    net = networks.ensemble(spec, config.num_critics, config.critic_widths, *critic_style)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    net = networks.MLP(config.critic_widths, 1, *style)
    value = encoders.create(spec, encoding, net, key_value)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        value=networks.trained(value, config.value_lr, config),
        target_critic=networks.copy(critic),
    )


def actor_rate(step: Array, config: Config) -> Array | float:
    """The actor's rate [] after `step` updates."""
    return networks.cosine_rate(config.actor_lr, step, config.decay_steps)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    policy = Imitation.of(config, squashes=False)
    return policy.act(state.actor.parameters, observation, key, explore), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A] or [...]."""
    return state.critic(observation, action).mean(axis=0)


# IQL's, arXiv:2110.06169, eq. 5
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> Loss:
    """Expectile loss of V to the actions' values q [B]."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = expectiles.weight(q, v, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# IQL's, arXiv:2110.06169, eq. 7
def actor_loss(
    actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config
) -> Loss:
    """Distance to the actions, weighted by advantage [B]."""
    weight = jnp.exp(config.inverse_temperature * advantage)
    weight = jnp.minimum(weight, config.max_weight)
    policy = Imitation.of(config, squashes=False)
    distance = policy.distance(actor, batch.observation, batch.action, key)
    loss = (weight * distance).mean()
    return loss, {
        "actor/loss": loss,
        "actor/advantage": advantage.mean(),
        "actor/weight": weight.mean(),
    }


# [1, section 5]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Huber's loss of the critics, from V(s') [B]."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    target = jnp.clip(target, config.target_min, config.target_max)
    q = critic(batch.observation, batch.action)  # [C, B]
    error = jnp.abs(target - q)
    threshold = config.huber_sigma**-2.0
    inside = error < threshold
    quadratic = jnp.square(error) / (2.0 * threshold)
    loss = jnp.where(inside, quadratic, error - threshold / 2.0).mean()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
        "critic/linear": (~inside).mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of value, actor, critics and targets."""
    q = state.target_critic(batch.observation, batch.action)  # [C, B]
    q = jnp.quantile(q, config.quantile, axis=0)  # [B]
    v = state.value(batch.observation)[:, 0]
    next_v = state.value(batch.next_observation)[:, 0]
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, value_metrics = state.value.step(optimiser, value_loss, q, batch, config)
    optimiser = networks.optimiser(actor_rate(step, config), step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, q - v, batch, key, config)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_v, batch, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, value, target_critic)
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
