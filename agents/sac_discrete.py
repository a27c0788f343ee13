"""SAC for discrete actions [off-policy]: sums over actions replace samples.

gamma discount, alpha temperature, pi actor
Q_c critics, Q'_c targets
H the entropy of pi, n(s) the number of allowed actions
  V(s')    = sum_a pi(a|s') min_c Q'_c(s', a) + alpha H(pi(.|s'))  [1, eq. 10]
  y        = r + gamma (1 - terminated) V(s')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  L(pi)    = -mean (sum_a pi(a|s) min_c Q_c(s, a) + alpha H(pi(.|s)))  [1, eq. 12]
  L(alpha) = mean (log alpha (H(pi(.|s)) - entropy_share log n(s)))  [1, eq. 11]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

Settings add the parts of [2]: means over critics in place of min_c, and
  L(Q)     = sum_c mean max((Q_c - y)^2, (Q'_c + clip(Q_c - Q'_c, +-clip_q) - y)^2)
  L(pi)   += entropy_penalty mean (H_old - H(pi(.|s)))^2 / 2
              H_old: when it acted

Departs from the paper: entropy_share is 0.7, not 0.98.
L(alpha) has log alpha for alpha. Defaults are SAC's.
Masks of actions are ours.

[1] Christodoulou, SAC for Discrete Action Settings, arXiv:1910.07207
[2] Zhou et al., Revisiting Discrete Soft Actor-Critic, arXiv:2209.10081

  rljax train sac_discrete --env CartPole-v1
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.networks.optimisation.temperatures import Temperature, TemperatureSettings
from rljax.requirements import Count, NonNegative, Positive, Share, Widths

LACK = "entropy_lack"  # with actions: the largest entropy minus theirs


@agent.config
class Config(networks.WithCritics, buffers.ReplaySettings, buffers.PrioritySettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [1]
    critic_lr: NonNegative = 3e-4  # of Adam; [1]
    temperature_lr: NonNegative = 3e-4  # of Adam; [1]
    batch_size: int = 256  # transitions per update; SAC, 64 in [1]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [1]
    warmup_steps: int = 10_000  # uniform actions, no update; SAC
    shift: int = 0  # pixels, at most; 4 in DrQ-v2
    clip_rewards: bool = False  # to [-1, 1]; CleanRL, for Atari
    # Targets
    discount: Share = 0.99  # gamma; [1]
    target_rate: Share = 0.005  # rho; SAC
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    reduction: networks.Reduction = "min"  # over critics; mean in [2]
    clip_q: NonNegative | None = None  # bound of Q - Q'; None: none; 0.5 in [2]
    # Policy
    init_temperature: Temperature = 1.0  # alpha at the start; SB3, CleanRL
    entropy_share: Share = 0.7  # target, of log n; 0.98 in [1]
    entropy_penalty: NonNegative | None = None  # of its change; 0.5 in [2]
    learn_temperature: bool = True  # False: alpha stays
    temperature_loss: temperatures.Form = "log_alpha"  # SB3; "alpha" in [1]
    policy_delay: Count = 1  # updates per update of the actor; [1]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; SAC
    num_critics: Count = 2  # C; [1]
    activation: networks.Activation = "relu"  # of hidden layers; [1]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; SAC


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O...] -> [A]: logits
    critic: networks.Trained  # [O...] -> [C, A], or [O...], [] -> [C]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    action_size: int = struct.field(pytree_node=False)  # A


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_discrete("sac_discrete", spec, "sac")
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    style = (*style, config.layer_norm, spec.action_size)
    net = networks.DiscreteEnsemble(config.num_critics, config.critic_widths, *style)
    critic = encoders.create(spec, encoding, net, key_critic)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        action_size=spec.action_size,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O...]."""
    pi = policy(state.actor, observation)
    if not explore:
        return jnp.asarray(pi.mode(), jnp.int32), {}
    action = jnp.asarray(pi.sample(seed=key), jnp.int32)
    if config.entropy_penalty is None:
        return action, {}
    lack = most_entropy(observation, state.action_size) - pi.entropy()
    return action, {LACK: lack}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [...]."""
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.AnyNetwork, observation: Array) -> distributions.Categorical:
    """pi(.|s) over the allowed actions."""
    return distributions.categorical(actor(observation), agent.mask_of(observation))


def most_entropy(observation: Array, action_size: int) -> Array:
    """log n(s) [...], or log A [] without masks."""
    mask = agent.mask_of(observation)
    if mask is None:
        return jnp.log(float(action_size))
    return jnp.log(jnp.maximum(mask.sum(axis=-1), 1.0))


def soft_value(pi: distributions.Categorical, q: Array, state: State, config: Config) -> Array:
    """sum_a pi Q + alpha H(pi) [B], of values [C, B, A]."""
    q = networks.reduced(q, config.reduction)
    temperature = jnp.exp(state.log_temperature.parameters)
    return (pi.probs * q).sum(axis=-1) + temperature * pi.entropy()


# [1, eq. 10], [2]
def critic_loss(critic: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Squared error of the critics to the soft target."""
    pi = policy(state.actor, batch.next_observation)
    next_q = state.target_critic(batch.next_observation)  # [C, B, A]
    next_v = soft_value(pi, next_q, state, config)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_v
    target = jax.lax.stop_gradient(target)
    q = critic(batch.observation, batch.action)  # [C, B]
    error = jnp.square(q - target)
    if config.clip_q is not None:
        old = state.target_critic(batch.observation, batch.action)
        old = jax.lax.stop_gradient(old)
        near = old + jnp.clip(q - old, -config.clip_q, config.clip_q)
        error = jnp.maximum(error, jnp.square(near - target))
    loss = buffers.weighted(error, batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | buffers.priorities(q - target, batch)


# [1, eq. 12], [2]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Minus the soft value, plus the entropy's penalty."""
    pi = policy(actor, batch.observation)
    entropy = pi.entropy()  # [B]
    q = state.critic(batch.observation)  # [C, B, A]
    loss = -soft_value(pi, q, state, config).mean()
    if config.entropy_penalty is not None:
        if LACK not in batch.extras:
            raise ValueError(
                "--config.entropy-penalty needs experience of the agent's own: "
                "leave it out with --data."
            )
        old = most_entropy(batch.observation, state.action_size) - batch.extras[LACK]
        loss += config.entropy_penalty * 0.5 * jnp.square(old - entropy).mean()
    return loss, {"actor/loss": loss, "actor/entropy": entropy.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics and, if due, of the rest."""
    del key  # expectations over the actions are exact
    most = most_entropy(batch.observation, state.action_size).mean()
    settings = TemperatureSettings.of(config, target_entropy=config.entropy_share * most)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], state.action_size, settings
        )
        state = state.replace(actor=actor, log_temperature=log_temperature)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    return state.replace(target_critic=target_critic), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
