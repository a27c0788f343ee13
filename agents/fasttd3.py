"""FastTD3 [off-policy]: TD3 for hundreds of environments side by side.

gamma discount, mu actor, Z_c critics' distributions of returns
Z'_c their targets, z atoms, Pi the projection on them
e ~ clip(N(0, target_noise^2), +-target_noise_clip)
  a'     = clip(mu(s') + e, -1, 1)  the actor has no target
  m_c    = Pi(r + gamma (1 - terminated) Z'_c(s', a'))  [2]
  m      = the m_c whose mean is smallest; "own": each critic its own
  L(Z)   = -sum_c mean sum_i m_i log Z_c(s, a)_i
  Z'_c  <- (1 - rho) Z'_c + rho Z_c  after each update; rho: target_rate
  L(mu)  = -mean min_c E Z_c(s, mu(s))  every policy_delay-th update

Behaviour: clip(mu(s) + sigma N(0, 1), -1, 1)
  sigma ~ U(noise_min, noise_max) for each episode
A batch has the same number of rows of each environment.

Departs from the paper: statistics of observations
see each once. Batches and replay are smaller by default.

[1] Seo et al., FastTD3, arXiv:2505.22642
[2] github.com/younggyoseo/FastTD3, fast_td3/train.py and hyperparams.py

  rljax train fasttd3 --env brax/ant
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
from rljax.requirements import Count, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(
    networks.WithCritics,
    buffers.ReplaySettings,
    heads.WithCriticHead,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of AdamW; [2]
    critic_lr: NonNegative = 3e-4  # of AdamW; [2]
    weight_decay: NonNegative | None = 0.1  # in each step, times the learning rate; [2]
    batch_size: int = 1_024  # transitions per update; own choice, [2]: 32,768
    policy_delay: Count = 2  # updates per update of the actor; [2]
    # Experience
    num_envs: int = 64  # side by side; own choice, [2]: 128
    num_updates: int = 2  # per step of all environments; [2]
    replay_size: int = 1_000_000  # newest transitions; own choice
    warmup_steps: int = 768  # steps without update; [2]: 12 of each environment
    n_step: Count = 1  # rewards in a target; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.1  # rho; [2]
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    target_noise: NonNegative = 0.001  # std on target actions; [2]
    target_noise_clip: NonNegative = 0.5  # bound of that noise; [2]
    value_head: heads.CriticKind = "c51"  # what critics learn; [2]
    v_min: Real = -250.0  # lower end of the atoms; [2]
    v_max: Real = 250.0  # upper end of the atoms; [2]
    # Policy
    noise_min: NonNegative = 0.001  # smallest std of noise on actions; [2]
    noise_max: NonNegative = 0.4  # largest std of noise on actions; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (512, 256, 128)  # of the actor; [2]
    critic_hidden: Widths | None = (1_024, 512, 256)  # of critics; [2]
    num_critics: Count = 2  # C; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "torch_small"  # of the actor; [2]
    critic_initialisation: networks.Initialisation = "torch"  # of critics; [2]
    normalise_observations: bool = True  # by running statistics; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [A]: before tanh
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience; the policy acts from the first step on."""
    return buffers.Replay.of(
        config,
        draw=buffers.draw_of(config),
        by_environment=True,
        uniform_warmup=False,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("fasttd3", spec)
    agent.require_order(config, "noise_min", "noise_max")
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
    style = (config.activation, config.critic_initialisation)
    net = networks.Ensemble(*size, *style, features=features)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
    )


def remember(spec: EnvSpec, config: Config) -> noise.Scaled:
    """The std of an episode's noise."""
    del spec, config
    return noise.initial_scale()


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
    bounds = (config.noise_min, config.noise_max)
    exploration, memory = noise.scaled(key, action.shape, *bounds, memory)
    return jnp.clip(action + exploration, -1.0, 1.0), {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return heads.of_critics(config).mean(state.critic(observation, action)).mean(axis=0)


def policy(actor: networks.AnyNetwork, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# [2, update_main]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Cross-entropy of the critics to the target."""
    head = heads.of_critics(config)
    smoothing = config.target_noise * jax.random.normal(key, batch.action.shape)
    smoothing = jnp.clip(smoothing, -config.target_noise_clip, config.target_noise_clip)
    next_action = policy(state.actor, batch.next_observation)
    next_action = jnp.clip(next_action + smoothing, -1.0, 1.0)
    next_outputs = state.target_critic(batch.next_observation, next_action)  # [C, B, K]
    reward = config.reward_scale * batch.reward
    discount = batch.extras.get("discount", config.discount)
    discount *= 1.0 - batch.terminated  # [B]
    target = head.target(next_outputs, reward, discount)  # [C, B, K]
    if config.target_value == "smallest":
        target = heads.smallest_target(target, head)  # [B, K]
    outputs = critic(batch.observation, batch.action)  # [C, B, K]
    loss = head.loss(outputs, target).mean(axis=-1).sum()
    means = {"critic/q": head.mean(outputs), "critic/target": head.target_mean(target)}
    means |= head.clipped_mass(next_outputs, reward, discount)
    means |= {"critic/loss": loss}
    return loss, jax.tree.map(jnp.mean, means)


# [2, update_pol]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Minus the critics' value."""
    outputs = state.critic(batch.observation, policy(actor, batch.observation))
    q = heads.of_critics(config).mean(outputs)  # [C, B]
    q = networks.smallest(q) if config.target_value == "smallest" else q.mean(axis=0)
    loss = -q.mean()
    return loss, {"actor/loss": loss}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics, their targets and, if due, the actor."""
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(critic=critic, target_critic=target_critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, config)
        return state.replace(actor=actor), metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
