"""TD3+BC: TD3 on a data set, with an actor that regression holds near the data's actions.

Two changes to TD3: the actor's loss has a term that imitates the data, beside a critic's value that is scaled to one
size for any rewards, and observations are normalised by the data's mean and std.

alpha value weight, Q_0 first critic, mu actor, A action dimensions; critics and targets as in TD3
  s       <- (s - mean) / (std + 1e-3)                                  [1, eq. 4], over the data set
  lambda   = alpha / mean |Q_0(s, mu(s))|                               [1, eq. 5], without a gradient
  L(mu)    = mean [ |mu(s) - a|^2 / A - lambda Q_0(s, mu(s)) ]          [1, eq. 3], every policy_delay-th update

Departs from the paper where the authors' code [2] does, which made its results. The code has 1 / A, where eq. 3 has the
sum over dimensions (`imitation = "sum"`). Its lambda is a mean over the policy's actions, where eq. 5 has the data's.
With `value_head`, the error of Q_c is the cross-entropy to classes of its target [3].

[1] Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning, arXiv:2106.06860
[2] github.com/sfujim/TD3_BC
[3] Farebrother et al., Stop Regressing: Training Value Functions via Classification, arXiv:2403.03950

  rljax train td3_bc --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import heads, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; [2]
    normalise_observations: bool = True  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online networks in the targets per move; [2]
    reward_scale: float = 1.0  # factor on rewards inside the target; own choice, 1 is the paper
    target_noise: float = 0.2  # std of the noise on target actions; [2]
    target_noise_clip: float = 0.5  # bound of that noise; [2]
    value_head: heads.Kind = "squared"  # how critics learn values: by squared error, or by classes of them; [3]
    bins: int = 101  # of two_hot and hl_gauss: classes of values; own choice
    v_min: float | None = None  # lower end of the bins; None: a margin below the data's returns; own choice
    v_max: float | None = None  # upper end of the bins; None: a margin above the data's returns; own choice
    # Policy
    value_weight: float = 2.5  # alpha: 0 imitates the data, more follows the critic; [2]
    imitation: Literal["mean", "sum"] = "mean"  # over action dimensions; [2], sum in [1] and ReBRAC
    exploration_noise: float = 0.1  # online: std of the noise on actions while exploring; [2]
    policy_delay: int = 2  # updates between moves of the actor and of all targets; [2]
    # Networks
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, actor and critics alike; [2]
    num_critics: int = 2  # C; the smallest value makes the target; [2]
    min_critics: int | None = None  # random critics per update of which the smallest counts; None: all; 2 in REDQ, RLPD
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [A]: before tanh
    critic: networks.Network  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


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
        online=online,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("td3_bc", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("td3_bc", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, reward_scale=(None, None), value_weight=(0, None))
    agent.require_range(config, target_noise=(0, None), target_noise_clip=(0, None), exploration_noise=(0, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)
    agent.require_subset(config.min_critics, config.num_critics)
    heads.check_bins(heads.Settings(config.value_head, config.bins, config.v_min, config.v_max))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the actor and the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    actor = networks.create(networks.MLP(config.hidden, spec.action_size, *style), key_actor, observation)
    head = heads.Settings(config.value_head, config.bins, config.v_min, config.v_max)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create_critic(ensemble, head, spec, key_critic, observation, action)
    return State(
        actor=actor,
        critic=critic,
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics; its returns bound the critics' bins."""
    state = networks.fitted(state, data, config.discount, config.reward_scale)
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: mu(s), with Gaussian noise when exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    action = policy(state.actor, observation)
    if not explore:
        return action, {}
    return jnp.clip(action + config.exploration_noise * jax.random.normal(key, action.shape), -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# TD3's, arXiv:1802.09477, algorithm 1
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error, or cross-entropy, of all critics to the smoothed target, summed over critics."""
    noise = config.target_noise * jax.random.normal(key, batch.action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    next_action = jnp.clip(policy(state.target_actor, batch.next_observation) + noise, -1.0, 1.0)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    outputs, head = networks.judged(critic, batch.observation, batch.action)  # [C, B], or [C, B, K] of bins
    q = head.mean(outputs)
    loss = buffers.weighted(head.loss(outputs, head.encode(target)), batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | head.clipped(target) | buffers.priorities(q - target, batch)


# [1, eq. 3]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared distance to the data's actions minus the first critic's value, which is scaled to `value_weight`."""
    first_critic = networks.member(state.critic, 0)
    action = policy(actor, batch.observation)
    q = first_critic(batch.observation, action)  # [1, B]
    scale = config.value_weight / jax.lax.stop_gradient(jnp.abs(q).mean())
    distance = jnp.square(action - batch.action).mean(axis=0)  # [A]
    imitation = distance.mean() if config.imitation == "mean" else distance.sum()
    loss = imitation - scale * q.mean()
    return loss, {"actor/loss": loss, "actor/imitation": imitation, "actor/value_scale": scale}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `policy_delay`-th time, the actor and all targets."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, config)
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
