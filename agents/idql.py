"""IDQL [generative]: IQL's values, and a diffusion model that imitates the data.

gamma discount, tau expectile, V value, Q_c critics, Q'_c targets
eps noise predictor, eps' its average, e standard normal
T denoising_steps, abar_t share of variance
  t        ~ U{1..T},  a_t = sqrt(abar_t) a + sqrt(1 - abar_t) e
  L(eps)   = mean |eps(s, a_t, t) - e|^2  [1]
  u        = min_c Q'_c(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]  [3, eq. 5]
  y        = r + gamma (1 - terminated) V(s')  V after its step
  L(Q)     = mean_c mean (Q_c(s, a) - y)^2  [3, eq. 6]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  eps'    <- (1 - rho') eps' + rho' eps  rho': average_rate
  a_i      = DDPM's reverse process from noise, T steps along eps'
  acts by the a_i with the largest min_c Q'_c(s, a_i), i = 1..num_candidates

With selection "implicit" by a_i with a probability proportional to
|tau - 1(u_i < 0)|, u_i = min_c Q'_c(s, a_i) - V(s).

Departs from the paper: nowhere; the networks are those of [2].

[1] Hansen-Estruch et al., IDQL, arXiv:2304.10573
[2] github.com/philippe-eecs/IDQL
[3] Kostrikov et al., Implicit Q-Learning, arXiv:2110.06169

  rljax train idql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative
from rljax.networks.encoders import EncoderSettings
from rljax.networks.layers import LayerNorm, Module
from rljax.networks.optimisation import expectiles
from rljax.requirements import Count, DropoutRate, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of AdamW, at the start; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    decay_steps: Positive | None = 1.0  # share of the run to rate 0; [2]
    actor_weight_decay: NonNegative | None = 1e-4  # of the actor; [2]
    batch_size: int = 512  # transitions per update; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    average_rate: Share = 0.001  # rho'; [2]
    expectile: Share = 0.7  # tau: 0.5 is the mean; [2]
    # Policy
    denoising_steps: Count = 5  # T; [2]
    noising: generative.Noising = "vp"  # growth of noise; [2]
    sampling: generative.Sampling = "free"  # a step's draw; [2]
    num_candidates: Count = 64  # actions drawn; [2]
    selection: Literal["best", "implicit"] = "best"  # of one; [1]
    dropout: DropoutRate | None = 0.1  # in the actor's blocks; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of the actor's blocks; [2]
    critic_hidden: Widths | None = (256, 256)  # of critics and V; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "silu"  # of the actor; [2]
    critic_activation: networks.Activation = "relu"  # of critics and V; [2]
    normalise_value: bool = True  # V's inputs; [2]
    embedding: generative.Embedding = 128  # waves of the step; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_t, s, t -> noise in a_t [A]
    critic: networks.Trained  # [O], [A] -> [C]
    value: networks.Trained  # [O] -> [1]
    average_actor: networks.Network
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)


class InputNormed(Module):
    """A network whose inputs are normalised."""

    net: nn.Module

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return self.net(LayerNorm(name="norm")(x))


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config, learns_until=config.decay_steps)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("idql", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; average and targets are copies."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    encoding = EncoderSettings.of(config)
    width = 2 * config.embedding
    field = generative.Field(
        config.hidden,
        spec.action_size,
        config.activation,
        config.initialisation,
        embedding=config.embedding,
        time_widths=(width, width),
        encoder=encoders.encoder_or_none(spec, encoding),
        residual=True,
    )
    actor = networks.create(field, key_actor, action, observation, jnp.zeros(()))
    style = {
        "activation": config.critic_activation,
        "initialisation": config.initialisation,
    }
    net = networks.Ensemble(config.num_critics, config.critic_widths, **style)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    net = networks.MLP(config.critic_widths, 1, **style)
    net = InputNormed(net) if config.normalise_value else net
    value = encoders.create(spec, encoding, net, key_value)
    settings = actor_settings(config)
    return State(
        actor=networks.trained(actor, config.actor_lr, settings),
        critic=networks.trained(critic, config.critic_lr, config),
        value=networks.trained(value, config.value_lr, config),
        average_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        spec=spec,
    )


def actor_rate(step: Array, config: Config) -> Array | float:
    """The actor's rate [] after `step` updates."""
    return networks.cosine_rate(config.actor_lr, step, config.decay_steps)


def actor_settings(config: Config) -> Config:
    """Those of the actor's optimiser."""
    return dataclasses.replace(config, weight_decay=config.actor_weight_decay)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    key_candidates, key_choice = jax.random.split(key)
    candidates = generative.repeated(state.spec, observation, config.num_candidates)
    action = policy(state, candidates, key_candidates, config)  # [..., N, A]
    q = state.target_critic(candidates, action).min(axis=0)  # [..., N]
    if config.selection == "best":
        return generative.candidate(action, q.argmax(axis=-1)), {}
    v = state.value(observation)  # [..., 1]
    weight = expectiles.weight(q, v, config.expectile)
    index = jax.random.categorical(key_choice, jnp.log(weight))
    return generative.candidate(action, index), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def policy(state: State, observation: Array, key: Array, config: Config) -> Array:
    """Actions [..., A] of the average for observations [..., O]."""
    schedule = generative.schedule(config.noising, config.denoising_steps)
    shape = (*state.spec.leading(observation), state.spec.action_size)

    def noise(noisy: Array, step: Array) -> Array:
        return state.average_actor(noisy, observation, step)

    return generative.ancestral(schedule, noise, key, shape, config.sampling)


# [1]
def actor_loss(actor: networks.Network, batch: Transition, key: Array, config: Config) -> Loss:
    """Squared distance to the noise in noisy actions."""
    key_step, key_noise, key_dropout = jax.random.split(key, 3)
    schedule = generative.schedule(config.noising, config.denoising_steps)
    step = jax.random.randint(key_step, batch.reward.shape, 0, config.denoising_steps)
    noise = jax.random.normal(key_noise, batch.action.shape)
    noisy = generative.noised(schedule, batch.action, step, noise)
    dropout = networks.Dropout.of(config.dropout, key_dropout, 0)
    predicted = actor(noisy, batch.observation, step, dropout=dropout)
    loss = jnp.square(predicted - noise).sum(axis=-1).mean()
    return loss, {"actor/loss": loss}


# [3, eq. 6]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Squared error of the critics, from V(s') [B]."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the noise predictor, value, critics, average and targets."""
    rate, settings = actor_rate(step, config), actor_settings(config)
    optimiser = networks.optimiser(rate, step, settings)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, batch, key, config)
    q = state.target_critic(batch.observation, batch.action).min(axis=0)
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, value_metrics = state.value.step(
        optimiser, expectiles.loss, q, batch.observation, config.expectile
    )
    next_v = value(batch.next_observation)[:, 0]
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_v, batch, config)
    average = networks.polyak(actor, state.average_actor, config.average_rate)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, value, average, target_critic, state.spec)
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
