"""IFQL [generative]: IQL's values and a flow; acts by the best of several flow actions.

The values are learnt without the policy, and the policy without the values. They meet only in acting: the critics
choose the best of num_candidates actions of the flow.

gamma discount, V value, Q_c critics, Q'_c their targets, v flow, tau expectile, x and z standard normal noise,
flow(s, z) the action that flow_steps Euler steps along v reach from z
  u        = min_c Q'_c(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]                              [3, eq. 5]
  t        ~ U(0, 1),  a_t = (1 - t) x + t a
  L(v)     = mean (v(s, a_t, t) - (a - x))^2                            [1, eq. 4]
  y        = r + gamma (1 - terminated) V(s')                           V before its step
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [3, eq. 6]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate
  acts by a(s) = flow(s, z_i) with the largest min_c Q_c(s, a), i = 1..num_candidates

Departs from the paper: IDQL [4] has a diffusion model, and samples from IQL's implicit policy. This is the baseline of
FQL's authors, in their paper [1] and code [2], but for its targets, which follow the critics from before their step.

[1] Park et al., Flow Q-Learning, arXiv:2502.02538
[2] github.com/seohongpark/fql
[3] Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, arXiv:2110.06169
[4] Hansen-Estruch et al., IDQL: Implicit Q-Learning as an Actor-Critic Method with Diffusion Policies, arXiv:2304.10573

  rljax train ifql --data ogbench/cube-single-play-singletask-v0
"""

from __future__ import annotations

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
    actor_lr: float = 3e-4  # Adam learning rate of the flow; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    value_lr: float = 3e-4  # Adam learning rate of the value; [2]
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
    expectile: float = 0.9  # tau, in [0, 1]: 0.5 is the mean, towards 1 the maximum; [2]
    # Policy
    num_candidates: int = 32  # actions of the flow; the best one is taken; [2]
    flow_steps: int = 10  # steps of Euler from noise to an action; [2]
    # Networks
    hidden: tuple[int, ...] = (512, 512, 512, 512)  # widths of the hidden layers, of all networks; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "gelu_tanh"  # of the hidden layers; [2]
    layer_norm: bool = True  # normalise the critics' and value's hidden layers, after their activation; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]
    precision: networks.Precision = "float32"  # of the factors of products on the way forward; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # a_t [A], s [O], t [] -> [A]: velocity at t
    critic: networks.Network  # [O], [A] -> [C]
    value: networks.Network  # [O] -> [1]
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState
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
    agent.require_vectors("ifql", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("ifql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), expectile=(0, 1))
    agent.require_at_least(config, num_critics=1, flow_steps=1, num_candidates=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    field = generative.Field(config.hidden, spec.action_size, *style, precision=config.precision)
    actor = networks.create(field, key_actor, action, observation, jnp.zeros(()))
    layer_norm = "last" if config.layer_norm else False
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, layer_norm, precision=config.precision)
    critic = networks.create(ensemble, key_critic, observation, action)
    mlp = networks.MLP(config.hidden, 1, *style, layer_norm=layer_norm, precision=config.precision)
    value = networks.create(mlp, key_value, observation)
    return State(
        actor=actor,
        critic=critic,
        value=value,
        target_critic=networks.copy(critic),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        value_optimiser=optax.adam(config.value_lr).init(value),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O], the best of `num_candidates`, whether exploring or not."""
    del explore
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    candidates = generative.repeated(observation, config.num_candidates)  # [..., N, O]
    noise = jax.random.normal(key, (*candidates.shape[:-1], state.actor.module.features))
    action = generative.euler(lambda a, t: state.actor(a, candidates, t), noise, config.flow_steps)
    q = state.critic(candidates, action).min(axis=0)  # [..., N]
    return generative.chosen(action, q.argmax(axis=-1)), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


# [3, eq. 5]
def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared distance to the actions' values q [B]; weight `expectile` above V, 1 - `expectile` below."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = jnp.where(q < v, 1.0 - config.expectile, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# [1, eq. 4]
def actor_loss(actor: networks.Network, batch: Transition, key: Array) -> tuple[Array, Metrics]:
    """Squared error of the flow's velocity to the straight line from noise to the data's actions."""
    loss = generative.flow_matching_loss(lambda a, t: actor(a, batch.observation, t), batch.action, key)
    return loss, {"actor/loss": loss}


# [3, eq. 6]
def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared error of all critics to the target from V(s') [B], summed over critics."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the flow, the critics and the targets; each uses the others from before the update."""
    del step
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [B]
    next_v = state.value(batch.next_observation)[:, 0]

    gradient, value_metrics = jax.grad(value_loss, has_aux=True)(state.value, q, batch, config)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, batch, key)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, next_v, batch, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(
        actor=actor,
        critic=critic,
        value=value,
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        value_optimiser=value_optimiser,
    )
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
