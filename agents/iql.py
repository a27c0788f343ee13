"""IQL [offline]: offline actor-critic that evaluates no action outside the data.

gamma discount, V value, Q_c critics, Q'_c targets, pi actor, tau expectile,
beta inverse temperature
  Q(s, a)  = min_c Q'_c(s, a),  u = Q(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]  [1, eq. 5]
  w        = min(exp(beta (Q(s, a) - V(s))), max_weight)  V after its step
  L(pi)    = mean [ -w log pi(a|s) ]  [1, eq. 7]
  y        = r + gamma (1 - terminated) V(s')  V after its step
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [1, eq. 6]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho target_rate

pi(.|s) is a Gaussian with one std, or a softmax.
Its mean is tanh of the actor's output.
A deterministic policy has w |mu(s) - a|^2 in place of L(pi).

Departs from the paper: bounded weights, the falling rate and the clipped
log std are the authors' code [2]; `values = "old"` is CORL's order;
`value_head` learns classes of y [3].

[1] Kostrikov et al., Implicit Q-Learning, arXiv:2110.06169
[2] github.com/ikostrikov/implicit_q_learning
[3] Farebrother et al., Stop Regressing, arXiv:2403.03950

  rljax train iql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, encoders, heads, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import HeadSettings
from rljax.networks.optimisation import expectiles
from rljax.networks.policies import Imitation
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings, heads.WithHead, policies.WithImitation):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    decay_steps: Positive | None = 1.0  # share of the run to rate 0; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    expectile: Share = 0.7  # tau: 0.5 is the mean; [2] for locomotion
    values: Literal["new", "old"] = "new"  # V from after its step; old: CORL
    # Policy
    inverse_temperature: NonNegative = 3.0  # beta; [2] for locomotion
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    policy: Literal["gaussian", "deterministic"] = "gaussian"  # form of pi; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: networks.Norm = False  # of the critics; "last" in FQL
    value_layer_norm: networks.Norm = False  # of V; "last" in FQL
    initialisation: networks.Initialisation = "orthogonal"  # gain sqrt 2; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    critic: networks.Trained  # [O], [A] or [] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config, learns_until=config.decay_steps)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("iql", spec)
    Imitation.of(config).check()
    heads.check_bins(HeadSettings.of(config))
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    encoding = EncoderSettings.of(config)
    style = networks.style_of(config) | {"output_scale": 2.0**0.5}
    net = networks.MLP(config.hidden, spec.action_size, **style)
    net = encoders.encoded(spec, encoding, net)
    actor = policies.create_actor(spec, net, key_actor, config.policy == "gaussian")
    norm = config.layer_norm
    net = networks.ensemble(
        spec, config.num_critics, config.critic_widths, layer_norm=norm, **style
    )
    net = encoders.encoded(spec, encoding, net)
    head = HeadSettings.of(config)
    critic = networks.create_critic(net, head, spec, key_critic, spec.example(), action)
    net = networks.MLP(config.critic_widths, 1, layer_norm=config.value_layer_norm, **style)
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


def prepare(state: State, data: Transition, config: Config) -> State:
    """Fit any bins to the returns of the data [N, ...]."""
    return state.replace(
        critic=networks.fit_bins(state.critic, data, config.discount),
        target_critic=networks.fit_bins(state.target_critic, data, config.discount),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    policy = Imitation.of(config)
    return policy.act(state.actor.parameters, observation, key, explore), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A] or [...]."""
    return state.critic(observation, action).mean(axis=0)


# [1, eq. 5]
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> Loss:
    """Expectile loss of V to the actions' values q [B]."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = expectiles.weight(q, v, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# [1, eq. 7]
def actor_loss(
    actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config
) -> Loss:
    """Distance to the actions, weighted by advantage [B]."""
    weight = jnp.exp(config.inverse_temperature * advantage)
    weight = jnp.minimum(weight, config.max_weight)
    policy = Imitation.of(config)
    distance = policy.distance(actor, batch.observation, batch.action, key)
    loss = (weight * distance).mean()
    return loss, {
        "actor/loss": loss,
        "actor/advantage": advantage.mean(),
        "actor/weight": weight.mean(),
    }


# [1, eq. 6]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Error of the critics, from V(s') [B]."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    # outputs are [C, B], or [C, B, K] of bins
    outputs, head = networks.outputs_and_head(critic, batch.observation, batch.action)
    loss = head.loss(outputs, head.encode(target)).mean(axis=-1).sum()
    q = head.mean(outputs)
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | head.clipped(target)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of value, actor, critics and targets."""
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [B]
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, value_metrics = state.value.step(optimiser, value_loss, q, batch, config)
    v, next_v = expectiles.state_values(value if config.values == "new" else state.value, batch)
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
