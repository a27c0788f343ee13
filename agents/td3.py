"""TD3 [off-policy]: off-policy deterministic actor-critic with a delayed actor.

gamma discount, mu actor, Q_c critics
mu' and Q'_c their targets
e ~ clip(N(0, target_noise^2), +-target_noise_clip)
  a'       = clip(mu'(s') + e, -1, 1)  [1, algorithm 1]
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
             - optimism sum_c G_c  MEX's: optimisation/optimism.py
  L(mu)    = -mean Q_0(s, mu(s))  every policy_delay-th update, and then
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  mu'     <- (1 - rho) mu' + rho mu

Actions are in [-1, 1], and so is all noise.

Departs from the paper: the smoothed action is clipped.
Sizes, rates and the batch are of the authors' later code [2].

[1] Fujimoto et al., Addressing Function Approximation Error, arXiv:1802.09477
[2] github.com/sfujim/TD3

  rljax train td3 --env Hopper-v5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, heads, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import optimism
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(
    networks.WithCritics,
    buffers.ReplaySettings,
    buffers.PrioritySettings,
    heads.WithCriticHead,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 25_000  # uniform actions, no update; [2]
    shift: int = 0  # pixels, at most; 4 in DrQ-v2
    n_step: Count = 1  # rewards in a target; 5 in D4PG
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    optimism: NonNegative | None = None  # eta of MEX; arXiv:2305.18258
    target_noise: NonNegative = 0.2  # std on target actions; [2]
    target_noise_clip: NonNegative = 0.5  # bound of that noise; [2]
    # Policy
    exploration_noise: NonNegative = 0.1  # std of noise on actions; [2]
    exploration: noise.Kind = "white"  # "held" in arXiv:2604.04539
    policy_delay: Count = 2  # updates per update of actor and targets; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    min_critics: int | None = None  # random ones that count; 2 in REDQ
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [A]: before tanh
    critic: networks.Trained  # [O], [A] -> [C (, K)]
    target_actor: networks.Network
    target_critic: networks.Network


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("td3", spec)
    agent.require_subset(config.min_critics, config.num_critics)
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, spec.action_size, *style)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    size, features = (config.num_critics, config.critic_widths), heads.of_critics(config).features
    net = networks.Ensemble(*size, *style, config.layer_norm, features)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts between steps of an episode."""
    return noise.initial(config.exploration, spec)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    action = policy(state.actor, observation)
    if not explore:
        return action, {}, memory
    exploration, memory = noise.draw(key, action.shape, memory)
    action += config.exploration_noise * exploration
    return jnp.clip(action, -1.0, 1.0), {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return heads.of_critics(config).mean(state.critic(observation, action)).mean(axis=0)


def policy(actor: networks.AnyNetwork, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# [1, algorithm 1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Error of the critics to the target."""
    head = heads.of_critics(config)
    smoothing = config.target_noise * jax.random.normal(key, batch.action.shape)
    smoothing = jnp.clip(smoothing, -config.target_noise_clip, config.target_noise_clip)
    next_action = policy(state.target_actor, batch.next_observation)
    next_action = jnp.clip(next_action + smoothing, -1.0, 1.0)
    next_outputs = state.target_critic(batch.next_observation, next_action)
    subset = (config.min_critics, jax.random.fold_in(key, 1))
    next_outputs = networks.subset(next_outputs, *subset)  # [C, B (, K)]
    next_outputs = heads.combined(next_outputs, head, config.target_value)
    reward = config.reward_scale * batch.reward
    discount = batch.extras.get("discount", config.discount)
    discount *= 1.0 - batch.terminated  # [B]
    target = head.target(next_outputs, reward, discount)
    outputs = critic(batch.observation, batch.action)  # [C, B (, K)]
    loss = buffers.weighted(head.loss(outputs, target), batch).mean(axis=-1).sum()
    means = {"critic/q": head.mean(outputs), "critic/target": head.target_mean(target)}
    means |= head.clipped_mass(next_outputs, reward, discount)
    if config.optimism is not None:

        def values(action: Array) -> Array:
            return head.mean(critic(batch.observation, action))

        action = policy(state.actor, batch.observation)
        following = policy(state.actor, batch.next_observation)
        inputs = (head.mean(outputs), action, following, jax.random.fold_in(key, 2))
        gains = optimism.gain(values, *inputs)  # [C]
        loss -= config.optimism * gains.sum()
        means["critic/optimism"] = gains
    metrics = {"critic/loss": loss} | jax.tree.map(jnp.mean, means)
    return loss, metrics | buffers.priorities(head.error(outputs, target), batch)


# [1, algorithm 1]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Minus the first critic's value."""
    first_critic = networks.member(state.critic, 0)
    action = policy(actor, batch.observation)
    q = heads.of_critics(config).mean(first_critic(batch.observation, action))  # [1, B]
    loss = -q.mean()
    return loss, {"actor/loss": loss}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, config)
        rate = config.target_rate
        state = state.replace(
            actor=actor,
            target_actor=networks.polyak(actor, state.target_actor, rate),
            target_critic=networks.polyak(critic, state.target_critic, rate),
        )
        return state, metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
