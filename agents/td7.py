"""TD7 [off-policy]: TD3 with embeddings, priorities and checkpoints.

gamma discount, mu actor, Q_c critics, f and g encoders
mu' and Q'_c targets, p least_priority, unit(x) = x / mean |x|
z_s = unit(f(s)),  z_sa = g(z_s, a)
f1, g1 fixed encoders of z1;  f0, g0 those before, of z0
[l, h] the range of all y until the last copy, e clipped noise
  L(f, g)  = mean (z_sa - z_s')^2  no gradient of z_s'  [1, eq. 1]
  a'       = clip(mu'(s', z0_s') + e, -1, 1)
  q'       = min_c Q'_c(s', a', [z0_s'a', z0_s'])
  y        = r + gamma (1 - terminated) clip(q', l, h)
  d_c      = |Q_c(s, a, [z1_sa, z1_s]) - y|
  L(Q)     = sum_c mean (d_c^2 / 2 if d_c < p, else p d_c)
  p_i      = max(p, max_c d_c)  priority
  L(mu)    = -mean Q_c(s, mu(s, z1_s), .)
             offline: + lambda mean |Q_c| mean (mu - a)^2
  every target_every updates: mu' <- mu,  Q'_c <- Q_c,
  (f0, g0) <- (f1, g1) <- (f, g),  new rows get the rows' largest p_i
Online the best policy is kept.

Departs from [2]: updates go on while a policy is assessed.

[1] Fujimoto et al., For SALE, arXiv:2306.02451
[2] github.com/sfujim/TD7

  rljax train td7 --env Hopper-v5
  rljax train td7 --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Step, Transition
from rljax.networks import encoders
from rljax.networks.blocks import embeddings
from rljax.networks.blocks.embeddings import EmbeddedPolicy, Embedding
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import assessment
from rljax.networks.optimisation.assessment import Assessment
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(
    networks.WithCritics,
    buffers.DatasetSettings,
    assessment.WithCheckpoints,
    embeddings.WithEmbeddings,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # Adam; [2]
    critic_lr: NonNegative = 3e-4  # Adam; [2]
    encoder_lr: NonNegative = 3e-4  # Adam; [2]
    # Experience
    offline: bool = False  # learn from a data set: --data
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 25_000  # uniform actions, no update; [2]
    prioritised: Share = 0.4  # exponent, 0: uniform draws; [2]
    correction: Share = 0.0  # of weights that correct for it; [2]
    least_priority: Positive = 1.0  # p, where the loss turns linear; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_every: Count = 250  # updates between copies; [2]
    target_noise: NonNegative = 0.2  # std on target actions; [2]
    target_noise_clip: NonNegative = 0.5  # bound of that noise; [2]
    # Policy
    exploration_noise: NonNegative = 0.1  # std of noise on actions; [2]
    policy_delay: Count = 2  # updates per update of the actor; [2]
    imitation: NonNegative = 0.1  # lambda, offline; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # one before the embedding; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of the actor; [2]
    critic_activation: networks.Activation = "elu"  # and of f and g; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O], [Z] -> [A]: before tanh
    critic: networks.Trained  # [O], [A], [2 Z] -> [C]
    encoder: networks.Trained  # an `Embedding`: f and g
    target_actor: networks.Network
    target_critic: networks.Network
    fixed_encoder: Embedding  # f1, g1
    past_encoder: Embedding  # f0, g0
    clip_range: Array  # [2]: l, h
    seen_range: Array  # [2]: of all y so far
    assessment: Assessment | None  # of each `EmbeddedPolicy`


def experience(config: Config) -> buffers.Replay | buffers.Dataset:
    """Batches of new experience, or of a data set."""
    if config.offline:
        draw, online = buffers.data_draw_of(config), buffers.Replay.of(config, uniform_warmup=False)
        return buffers.Dataset.of(config, draw=draw, online=online)
    draw = buffers.draw_of(config, renewal=config.target_every)
    return buffers.Replay.of(config, draw=draw)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("td7", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_encoder = jax.random.split(key, 3)
    encoding, size = EncoderSettings.of(config), config.embedding_size
    style = (config.critic_activation, config.initialisation)
    encoder = embeddings.create_encoders(key_encoder, spec, encoding, config, *style)
    net = embeddings.EmbeddedEnsemble(config.num_critics, config.critic_widths, *style)
    inputs = (jnp.zeros(spec.action_shape), jnp.zeros(2 * size))
    critic = encoders.create(spec, encoding, net, key_critic, *inputs)
    style = (config.activation, config.initialisation)
    net = embeddings.EmbeddedMLP(config.hidden, spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor, jnp.zeros(size))
    first = EmbeddedPolicy(actor, encoder.of_state)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        encoder=networks.trained(encoder, config.encoder_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        fixed_encoder=networks.copy(encoder),
        past_encoder=networks.copy(encoder),
        clip_range=jnp.zeros(2),
        seen_range=jnp.asarray([1e8, -1e8]),
        assessment=None if config.offline else Assessment.create(first, config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    policy = latest(state)
    if state.assessment is not None:
        policy = state.assessment.candidate if explore else state.assessment.best
    action = policy(observation)
    if not explore:
        return action, {}
    action += config.exploration_noise * jax.random.normal(key, action.shape)
    return jnp.clip(action, -1.0, 1.0), {}


def review(state: State, outcome: Step, time: Array, config: Config) -> State:
    """Assess the exploring policy by episodes [E] that end."""
    if state.assessment is None:
        return state
    inputs = (latest(state), outcome, time, config)
    return state.replace(assessment=state.assessment.reviewed(*inputs))


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.fixed_encoder.values(state.critic, observation, action).mean(axis=0)


def latest(state: State) -> EmbeddedPolicy:
    """The policy learnt so far."""
    return EmbeddedPolicy(state.actor.parameters, state.fixed_encoder.of_state)


# [1, eq. 1]
def encoder_loss(encoder: Embedding, batch: Transition) -> Loss:
    """Error of the embedded next states."""
    loss = embeddings.prediction_error(encoder, batch).mean()
    return loss, {"encoder/loss": loss}


# [1, section 4.2]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Error of the critics to the target."""
    smoothing = config.target_noise * jax.random.normal(key, batch.action.shape)
    smoothing = jnp.clip(smoothing, -config.target_noise_clip, config.target_noise_clip)
    encoder, following = state.past_encoder, batch.next_observation
    target_policy = EmbeddedPolicy(state.target_actor, encoder.of_state)
    action = jnp.clip(target_policy(following) + smoothing, -1.0, 1.0)
    next_q = encoder.values(state.target_critic, following, action)
    next_q = jnp.clip(next_q.min(axis=0), *state.clip_range)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)
    target = batch.reward + bootstrap * next_q
    q = state.fixed_encoder.values(critic, batch.observation, batch.action)  # [C, B]
    error, least = jnp.abs(q - target), config.least_priority
    loss = jnp.where(error < least, 0.5 * jnp.square(error), least * error)
    loss = buffers.weighted(loss, batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
        "critic/smallest_target": target.min(),
        "critic/largest_target": target.max(),
    }
    return loss, metrics | buffers.priorities(jnp.maximum(error, least), batch)


# [1, section 4.2 and 4.3]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Minus the values, offline with the distance to the data."""
    encoder, observation = state.fixed_encoder, batch.observation
    action = EmbeddedPolicy(actor, encoder.of_state)(observation)
    q = encoder.values(state.critic, observation, action)  # [C, B]
    if not config.offline:
        return -q.mean(), {"actor/loss": -q.mean()}
    distance = jnp.square(action - batch.action).mean()
    size = jax.lax.stop_gradient(jnp.abs(q).mean())
    loss = config.imitation * size * distance - q.mean()
    return loss, {"actor/loss": loss, "actor/imitation": distance}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update encoders and critics and, if due, the rest."""
    optimiser = networks.optimiser(config.encoder_lr, step, config)
    encoder, metrics = state.encoder.step(optimiser, encoder_loss, batch)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, critic_metrics = state.critic.step(optimiser, critic_loss, state, batch, key, config)
    low = jnp.minimum(state.seen_range[0], critic_metrics["critic/smallest_target"])
    high = jnp.maximum(state.seen_range[1], critic_metrics["critic/largest_target"])
    state = state.replace(encoder=encoder, critic=critic, seen_range=jnp.stack([low, high]))

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, config)
        return state.replace(actor=actor), metrics

    def renew(state: State) -> tuple[State, Metrics]:
        state = state.replace(
            target_actor=state.actor.parameters,
            target_critic=state.critic.parameters,
            past_encoder=state.fixed_encoder,
            fixed_encoder=state.encoder.parameters,
            clip_range=state.seen_range,
        )
        return state, {}

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    state, _ = agent.every(config.target_every, step, renew, state)
    if state.assessment is not None:
        state = state.replace(assessment=state.assessment.updated())
    return state, metrics | critic_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
