"""SAC for discrete actions: twin critics and a policy of all actions, exact expectations, a learned temperature.

The policy maximises return plus entropy. Sums over the actions take the place of samples in all three losses.

gamma discount, alpha temperature, Q_c critics, Q'_c their targets, pi actor, H entropy, n(s) number of allowed actions
  V(s')    = sum_a pi(a|s') min_c Q'_c(s', a) + alpha H(pi(.|s'))       [1, eq. 10]
  y        = r + gamma (1 - terminated) V(s')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  L(pi)    = -mean [ sum_a pi(a|s) min_c Q_c(s, a) + alpha H(pi(.|s)) ]  [1, eq. 12]
  L(alpha) = mean [ log alpha (H(pi(.|s)) - entropy_share log n(s)) ]    [1, eq. 11, log alpha in place of alpha]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

Settings add the three parts of [2]: means over critics in place of min_c, and
  L(Q)     = sum_c mean max((Q_c - y)^2, (Q'_c + clip(Q_c - Q'_c, -clip_q, clip_q) - y)^2)
  L(pi)   += entropy_penalty mean (H_old - H(pi(.|s)))^2 / 2            H_old: when the action was taken

Departs from the paper: the target entropy is 0.7 log n(s), not 0.98, with which the temperature often runs away;
the temperature's loss uses log alpha; defaults are SAC's, one update for each step. Masks of actions are ours.

[1] Christodoulou, Soft Actor-Critic for Discrete Action Settings, arXiv:1910.07207
[2] Zhou et al., Revisiting Discrete Soft Actor-Critic, arXiv:2209.10081

  rljax train sac_discrete --env CartPole-v1
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, normalise

LACK = "entropy_lack"  # stored with actions: by how much the policy's entropy was below that of uniform actions


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [1]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [1]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [1]
    batch_size: int = 256  # transitions per update; SAC, 64 in [1]
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; [1]
    warmup_steps: int = 10_000  # environment steps with uniform actions and no update; SAC, 20,000 in [1]
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration; 4 in [1]
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    shift: int = 0  # most pixels by which pictures of a batch are moved at random, 0 for none; 4 in arXiv:2107.09645
    prioritised: float = 0.0  # exponent of errors by which transitions are drawn, 0: uniformly; 0.6 in arXiv:1511.05952
    correction: float = 0.4  # exponent of the weights that correct for this; arXiv:1511.05952
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; SAC
    reward_scale: float = 1.0  # factor on rewards inside the target; own choice
    reduction: Literal["min", "mean"] = "min"  # over critics, in targets and for the actor; [1], mean in [2]
    clip_q: float | None = None  # how far a critic may move from its target within the loss; None: any; 0.5 in [2]
    # Policy
    init_temperature: float = 1.0  # alpha at the start; SB3 "auto", CleanRL
    entropy_share: float = 0.7  # target entropy as a share of log n, that of uniform actions; see the page, 0.98 in [1]
    entropy_penalty: float | None = None  # weight of the change of entropy since the action; None: none; 0.5 in [2]
    learn_temperature: bool = True  # False keeps alpha at init_temperature
    temperature_loss: Literal["log_alpha", "alpha"] = "log_alpha"  # factor of the entropy error; SB3 or [1]
    policy_delay: int = 1  # updates between actor and temperature updates; [1]
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, actor and critics alike; SAC
    num_critics: int = 2  # C; [1]
    activation: networks.Activation = "relu"  # of the hidden layers; [1]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; SAC
    normalise_observations: bool = False  # running mean and std of observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O...] -> [A]: logits
    critic: networks.Network  # [O...] -> [C, A], or [O...], [] -> [C]
    target_critic: networks.Network
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    action_size: int = struct.field(pytree_node=False)  # A


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience: uniform, by priority, or half from a data set."""
    drawn = ("discount", "prioritised", "correction")
    return buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        shift=config.shift,
        draw=buffers.chosen(**{name: getattr(config, name) for name in drawn}),
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for continuous actions or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_discrete("sac_discrete", spec, "sac")
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), reward_scale=(None, None))
    agent.require_range(config, entropy_share=(0, 1), prioritised=(0, 1), correction=(0, 1))
    if config.clip_q is not None:
        agent.require_range(config, clip_q=(0, None))
    if config.entropy_penalty is not None:
        agent.require_range(config, entropy_penalty=(0, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, style = spec.example(), (config.activation, config.initialisation)
    head = networks.MLP(config.hidden, spec.action_size, *style)
    actor = networks.create(encoders.encoded(spec, encoding(config), head), key_actor, observation)
    size = spec.action_size
    ensemble = networks.DiscreteEnsemble(config.num_critics, config.hidden, *style, config.layer_norm, size)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, observation)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.of_observations(spec),
        action_size=spec.action_size,
    )


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count observations [E, O] into the input statistics; `first` [E] marks the starts of episodes."""
    del first
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.update(state.statistics, observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O...]: sampled, or the most likely ones when not exploring."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    pi = policy(state.actor, observation)
    if not explore:
        return jnp.asarray(pi.mode(), jnp.int32), {}
    action = jnp.asarray(pi.sample(seed=key), jnp.int32)
    if config.entropy_penalty is None:
        return action, {}
    return action, {LACK: most_entropy(observation, state.action_size) - pi.entropy()}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [...] for observations [..., O...]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array) -> distributions.Categorical:
    """pi(.|s) over the allowed actions, for observations [..., O...]."""
    return distributions.categorical(actor(observation), agent.mask_of(observation))


def most_entropy(observation: Array, action_size: int) -> Array:
    """The entropy of uniform actions: log n(s) [...] where observations [..., O...] hold masks, log A [] elsewhere."""
    mask = agent.mask_of(observation)
    return jnp.log(float(action_size)) if mask is None else jnp.log(jnp.maximum(mask.sum(axis=-1), 1.0))


def soft_value(pi: distributions.Categorical, q: Array, state: State, config: Config) -> Array:
    """sum_a pi(a|s) Q(s, a) + alpha H(pi) [B], where Q [B, A] is the smallest or the mean of values [C, B, A]."""
    q = q.min(axis=0) if config.reduction == "min" else q.mean(axis=0)
    return (pi.probs * q).sum(axis=-1) + jnp.exp(state.log_temperature) * pi.entropy()


# [1, eq. 10], [2]
def critic_loss(critic: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared error of all critics to the soft target, summed over critics."""
    pi = policy(state.actor, batch.next_observation)
    next_v = soft_value(pi, state.target_critic(batch.next_observation), state, config)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = jax.lax.stop_gradient(config.reward_scale * batch.reward + bootstrap * next_v)
    q = critic(batch.observation, batch.action)  # [C, B]
    each = jnp.square(q - target)
    if config.clip_q is not None:
        old = jax.lax.stop_gradient(state.target_critic(batch.observation, batch.action))
        each = jnp.maximum(each, jnp.square(old + jnp.clip(q - old, -config.clip_q, config.clip_q) - target))
    loss = buffers.weighted(each, batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | buffers.priorities(q - target, batch)


# [1, eq. 12], [2]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Minus the soft value of the policy; with `entropy_penalty` plus that on changes of its entropy."""
    pi = policy(actor, batch.observation)
    entropy = pi.entropy()  # [B]
    loss = -soft_value(pi, state.critic(batch.observation), state, config).mean()
    if config.entropy_penalty is not None:
        if LACK not in batch.extras:
            raise ValueError("--config.entropy-penalty needs experience of the agent's own: leave it out with --data.")
        old = most_entropy(batch.observation, state.action_size) - batch.extras[LACK]
        loss += config.entropy_penalty * 0.5 * jnp.square(old - entropy).mean()
    return loss, {"actor/loss": loss, "actor/entropy": entropy.mean()}


# [1, eq. 11]
def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config, action_size: int
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha (or alpha)."""
    target_entropy = config.entropy_share * most_entropy(batch.observation, action_size).mean()
    factor = log_temperature if config.temperature_loss == "log_alpha" else jnp.exp(log_temperature)
    loss = factor * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics, the targets and, every `policy_delay`-th time, the actor and the temperature."""
    del key  # expectations over the actions are exact
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, config)
        changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
        actor = optax.apply_updates(state.actor, changes)
        gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(
            state.log_temperature, metrics["actor/entropy"], batch, config, state.action_size
        )
        changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
        log_temperature = optax.apply_updates(state.log_temperature, changes)
        state = state.replace(actor=actor, actor_optimiser=actor_optimiser)
        if config.learn_temperature:
            state = state.replace(log_temperature=log_temperature, temperature_optimiser=temperature_optimiser)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
    return state.replace(target_critic=target_critic), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
