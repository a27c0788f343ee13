"""TD3: off-policy deterministic actor-critic with twin critics, smoothed targets and a delayed actor.

Noise on the target action smooths the critics. The smaller of two critics makes the targets, which limits
overestimation. The actor and all targets move only every second update.

gamma discount, Q_c critics, Q'_c and mu' targets, mu actor;  e ~ clip(N(0, target_noise^2), +-target_noise_clip)
  a'       = clip(mu'(s') + e, -1, 1)                                   [1, algorithm 1]
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')              [1, algorithm 1]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [1, algorithm 1]
  L(mu)    = -mean Q_0(s, mu(s))                                        every policy_delay-th update
  Q'_c    <- (1 - rho) Q'_c + rho Q_c,  mu' <- (1 - rho) mu' + rho mu   with the actor; rho target_rate

Actions are in [-1, 1], and so is all noise.

Departs from the paper: the smoothed action is clipped to [-1, 1]. Sizes, learning rates and batch are those of the
authors' later code [2].

[1] Fujimoto et al., Addressing Function Approximation Error in Actor-Critic Methods, arXiv:1802.09477
[2] github.com/sfujim/TD3

  rljax train td3 --env Hopper-v5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import encoders, noise, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; [2]
    warmup_steps: int = 25_000  # environment steps with uniform actions and no update; [2]
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    shift: int = 0  # most pixels by which pictures of a batch are moved at random, 0 for none; 4 in arXiv:2107.09645
    prioritised: float = 0.0  # exponent of errors by which transitions are drawn, 0: uniformly; 0.6 in arXiv:1511.05952
    correction: float = 0.4  # exponent of the weights that correct for this; arXiv:1511.05952
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online networks in the targets per move; [2]
    reward_scale: float = 1.0  # factor on rewards inside the target; own choice, 1 is the paper
    target_noise: float = 0.2  # std of the noise on target actions; [2]
    target_noise_clip: float = 0.5  # bound of that noise; [2]
    # Policy
    exploration_noise: float = 0.1  # std of the noise on actions while exploring; [2]
    exploration: noise.Kind = "white"  # noise of exploring actions; "held" in arXiv:2604.04539, "pink" in ICLR 2023
    policy_delay: int = 2  # updates between moves of the actor and of all targets; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, actor and critics alike; [2]
    num_critics: int = 2  # C; the smallest value makes the target; [2]
    min_critics: int | None = None  # random critics per update of which the smallest counts; None: all; 2 in REDQ, RLPD
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]
    normalise_observations: bool = False  # running mean and std of observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [A]: before tanh
    critic: networks.Network  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


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
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_continuous("td3", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, reward_scale=(None, None), prioritised=(0, 1), correction=(0, 1))
    agent.require_range(config, target_noise=(0, None), target_noise_clip=(0, None), exploration_noise=(0, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)
    agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the actor and the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    head = networks.MLP(config.hidden, spec.action_size, *style)
    actor = networks.create(encoders.encoded(spec, encoding(config), head), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, observation, action)
    return State(
        actor=actor,
        critic=critic,
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        statistics=normalise.of_observations(spec),
    )


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count observations [E, O] into the input statistics; `first` [E] marks the starts of episodes."""
    del first
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.update(state.statistics, observation))


def remember(spec: EnvSpec, config: Config) -> Any:
    """The noise of one environment where an episode begins, if it lasts."""
    return noise.initial(config.exploration, spec)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]: mu(s), with Gaussian noise when exploring."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    action = policy(state.actor, observation)
    if not explore:
        return action, {}, memory
    drawn, memory = noise.draw(key, action.shape, memory)
    return jnp.clip(action + config.exploration_noise * drawn, -1.0, 1.0), {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# [1, algorithm 1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the smoothed target, summed over critics."""
    noise = config.target_noise * jax.random.normal(key, batch.action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    next_action = jnp.clip(policy(state.target_actor, batch.next_observation) + noise, -1.0, 1.0)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = buffers.weighted(jnp.square(error), batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | buffers.priorities(error, batch)


# [1, algorithm 1]
def actor_loss(actor: networks.Network, state: State, batch: Transition) -> tuple[Array, Metrics]:
    """Minus the first critic's value; the first critic alone, not the smallest."""
    first_critic = networks.member(state.critic, 0)
    q = first_critic(batch.observation, policy(actor, batch.observation))  # [1, B]
    loss = -q.mean()
    return loss, {"actor/loss": loss}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `policy_delay`-th time, the actor and all targets."""
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch)
        changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
        actor = optax.apply_updates(state.actor, changes)
        state = state.replace(actor=actor, actor_optimiser=actor_optimiser)
        target_actor = networks.polyak(state.actor, state.target_actor, config.target_rate)
        target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
        return state.replace(target_actor=target_actor, target_critic=target_critic), metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
