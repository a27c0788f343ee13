"""FQL [generative]: a flow imitates the data; a one-step policy learns from it and the critics.

The flow can be as multimodal as the data, and maximises nothing. The policy maps noise to actions in one step. It stays
near the flow's actions from the same noise, and follows the critics' gradient. Only the policy acts.

gamma discount, v flow, mu one-step policy, Q_c critics, Q'_c their targets, x and z standard normal noise, alpha
distillation weight, flow(s, z) the action that flow_steps Euler steps along v reach from z
  t        ~ U(0, 1),  a_t = (1 - t) x + t a
  L(v)     = mean (v(s, a_t, t) - (a - x))^2                            [1, eq. 4]
  L(mu)    = alpha mean (mu(s, z) - flow(s, z))^2 - mean Q(s, mu(s, z)) [1, eq. 7]; Q = mean_c Q_c
  a'       = mu(s', z')
  y        = r + gamma (1 - terminated) mean_c Q'_c(s', a')             [1, eq. 8]; `target = "min"`: min_c
  L(Q)     = mean_c mean (Q_c(s, a) - y)^2
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

The actions of mu and of the flow are clipped to [-1, 1]. Means are over rows and dimensions.

Departs from the paper: nowhere. What the paper leaves open is as in the authors' code [2], but for one thing: targets
follow the critics after their step, and in [2] the critics from before it, which is a lag of one update.

[1] Park et al., Flow Q-Learning, arXiv:2502.02538
[2] github.com/seohongpark/fql

  rljax train fql --data ogbench/cube-single-play-singletask-v0
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import generative, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the flow and the policy; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; presets
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; [2]
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    target: Literal["mean", "min"] = "mean"  # of the target critics: their mean, or the smallest; [2], presets
    # Policy
    distillation_weight: float = 10.0  # alpha: more imitates, less follows the critics; [2], to be tuned, presets
    normalise_value: bool = False  # divide Q by mean |Q| in the policy's loss: alpha then fits all rewards; [2]
    flow_steps: int = 10  # steps of Euler from noise to an action; [2]
    # Networks
    hidden: tuple[int, ...] = (512, 512, 512, 512)  # widths of the hidden layers, of all networks; [2]
    num_critics: int = 2  # C; [2]
    activation: networks.Activation = "gelu_tanh"  # of the hidden layers; [2]
    layer_norm: bool = True  # normalise the critics' hidden layers, after their activation; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]
    precision: networks.Precision = "float32"  # of the factors of products on the way forward; own choice


class Actor(struct.PyTreeNode):
    """The parameters that the actor's optimiser moves."""

    flow: networks.Network  # a_t [A], s [O], t [] -> [A]: velocity at t
    one_step: networks.Network  # z [A], s [O] -> [A]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: Actor
    critic: networks.Network  # [O], [A] -> [C]
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
    agent.require_vectors("fql", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("fql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, distillation_weight=(0, None))
    agent.require_at_least(config, num_critics=1, flow_steps=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_flow, key_one_step, key_critic = jax.random.split(key, 3)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    field = generative.Field(config.hidden, spec.action_size, *style, precision=config.precision)
    actor = Actor(
        flow=networks.create(field, key_flow, action, observation, jnp.zeros(())),
        one_step=networks.create(field, key_one_step, action, observation),
    )
    layer_norm = "last" if config.layer_norm else False
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, layer_norm, precision=config.precision)
    critic = networks.create(ensemble, key_critic, observation, action)
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O], drawn from the one-step policy, whether exploring or not."""
    del explore
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    noise = jax.random.normal(key, (*observation.shape[:-1], state.actor.one_step.module.features))
    return policy(state.actor, observation, noise), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: Actor, observation: Array, noise: Array) -> Array:
    """mu(s, z) [..., A] for observations [..., O] and noise [..., A]."""
    return jnp.clip(actor.one_step(noise, observation), -1.0, 1.0)


# [1, eq. 8]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the policy's value in the next state."""
    noise = jax.random.normal(key, batch.action.shape)
    next_action = policy(state.actor, batch.next_observation, noise)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = next_q.mean(axis=0) if config.target == "mean" else next_q.min(axis=0)
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


# [1, eqs. 4 and 7], which share no parameter
def actor_loss(actor: Actor, state: State, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """The flow's loss, plus the policy's distance to the flow, minus the critics' value of the policy."""
    key_flow, key_noise = jax.random.split(key)
    imitation = generative.flow_matching_loss(lambda a, t: actor.flow(a, batch.observation, t), batch.action, key_flow)
    noise = jax.random.normal(key_noise, batch.action.shape)
    velocity = state.actor.flow
    flow = generative.euler(lambda a, t: velocity(a, batch.observation, t), noise, config.flow_steps)
    action = actor.one_step(noise, batch.observation)  # its distance is taken before the clip
    distillation = jnp.square(action - flow).mean()
    q = state.critic(batch.observation, jnp.clip(action, -1.0, 1.0)).mean(axis=0)  # [B]
    scale = 1.0 / jax.lax.stop_gradient(jnp.abs(q).mean()) if config.normalise_value else 1.0
    loss = imitation + config.distillation_weight * distillation - scale * q.mean()
    return loss, {"actor/loss": loss, "actor/flow": imitation, "actor/distillation": distillation, "actor/q": q.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics, the flow, the policy and the targets."""
    del step
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    key_critic, key_actor = jax.random.split(key)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)

    state = state.replace(
        actor=actor,
        critic=critic,
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
    )
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
