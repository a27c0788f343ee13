"""GCIQL [goals]: IQL for goals, which can be any state of the data.

The data need no rewards. Each transition gets a new goal, another state of its own trajectory or of any other, and the
agent learns how many steps away that goal is.

gamma discount, g goal of the values, h goal of the actor, V value, Q_c critics, Q'_c their targets, tau expectile,
alpha imitation weight, beta inverse temperature, pi(.|s, h) = N(mu(s, h), 1) with mu the actor
  r, end       = 0, terminated where s is the state that g was drawn as, else -1, not terminated
  Q(s, a, g)   = min_c Q'_c(s, a, g),  u = Q(s, a, g) - V(s, g)
  L(V)         = mean [ |tau - 1(u < 0)| u^2 ]                          [1, appendix]; [3, eq. 5]
  q            = min_c Q_c(s, clip(mu(s, h)), h)
  L(pi)        = -mean q / mean |q| - alpha mean log pi(a|s, h)         [1, appendix], "ddpg_bc"; mean |q| is a number
  w            = min(exp(beta (min_c Q_c(s, a, h) - V(s, h))), max_weight)
  L(pi)        = mean [ -w log pi(a|s, h) ]                             [1, appendix], "awr"
  y            = r + gamma (1 - terminated) V(s', g)
  L(Q)         = sum_c mean (Q_c(s, a, g) - y)^2                        [3, eq. 6]
  Q'_c        <- (1 - rho) Q'_c + rho Q_c                               rho target_rate

All losses use the networks from before the update, and targets follow the new critics. `rljax.buffers.Goals` draws
the goals.

Departs from the paper: goals drawn evenly from the future of a trajectory are all equally likely. In the authors' code
[2] the next state and the last one have half the chance of the others, and targets follow the critics from before
their step.

[1] Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, arXiv:2410.20092
[2] github.com/seohongpark/ogbench, impls/agents/gciql.py and impls/utils/datasets.py
[3] Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, arXiv:2110.06169

  rljax train gciql --data ogbench/cube-single-play-v0
  rljax train gciql --data ogbench/cube-single-play-v0 --config.torso iru --config.compute 3 --config.hidden 256
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, normalise, torsos

STD = 1.0  # of the policy; [2]
OUTPUT_SCALE = 0.1  # factor on the actor's last layer at the start; [2]


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    value_lr: float = 3e-4  # Adam learning rate of the value; [2]
    batch_size: int = 1024  # transitions per update; [2]
    # Experience
    normalise_observations: bool = False  # states and goals, by the data set's mean and std; own choice
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Goals
    value_goal_current: float = 0.2  # share of the values' goals that are the state itself, in [0, 1]; [2]
    value_goal_future: float = 0.5  # share that come later in its trajectory; the rest are any states; [2]
    value_goal_times: Literal["geometric", "even"] = "geometric"  # how much later: by the discount, or at any time; [2]
    actor_goal_current: float = 0.0  # share of the actor's goals that are the state itself, in [0, 1]; [2]
    actor_goal_future: float = 1.0  # share that come later in its trajectory; the rest are any states; [2], presets
    actor_goal_times: Literal["geometric", "even"] = "even"  # how much later: by the discount, or at any time; [2]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2], presets
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    expectile: float = 0.9  # tau, in [0, 1]: 0.5 is the mean, towards 1 the maximum; [2]
    # Policy
    policy_loss: Literal["ddpg_bc", "awr"] = "ddpg_bc"  # follow the critics near the data, or weight the data; [2]
    imitation_weight: float = 0.3  # alpha of ddpg_bc: more imitates, less follows the critics; [2], presets
    inverse_temperature: float = 3.0  # beta of awr: 0 imitates the data, more follows the advantage; [2]
    max_weight: float = 100.0  # bound of the weights of awr; [2]
    # Networks
    hidden: tuple[int, ...] = (512, 512, 512)  # parts of each torso, of all networks; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "gelu_tanh"  # of the hidden layers; [2]
    layer_norm: bool = True  # of an mlp: normalise hidden layers of values and critics, after activation; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]
    torso: Literal["mlp", "resnet", "iru", "recall"] = "mlp"  # of all networks; [2]; arXiv:2602.05999: iru
    compute: int = 1  # T, thinking steps of torsos that take any number of them; arXiv:2602.05999: 3
    progressive: float | None = None  # weight of the loss after a part of the thinking steps; arXiv:2202.05826


class State(struct.PyTreeNode):
    """Everything that learning changes. An observation [O] is a state followed by a goal, each [O / 2]."""

    actor: networks.Network  # [O] -> [A]
    critic: networks.Network  # [O], [A] -> [C]
    value: networks.Network  # [O] -> [1]
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]: those of states, twice


def experience(config: Config) -> buffers.Dataset:
    """Batches of a data set, each row with a goal for the values and one for the actor."""
    goals = buffers.Goals(
        discount=config.discount,
        value_current=config.value_goal_current,
        value_future=config.value_goal_future,
        value_times=config.value_goal_times,
        actor_current=config.actor_goal_current,
        actor_future=config.actor_goal_future,
        actor_times=config.actor_goal_times,
    )
    return buffers.Dataset(batch_size=config.batch_size, num_updates=config.num_updates, draw=goals)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("gciql", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("gciql", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), expectile=(0, 1), inverse_temperature=(0, None))
    agent.require_range(config, max_weight=(0, None), imitation_weight=(0, None))
    agent.require_range(config, value_goal_current=(0, 1), value_goal_future=(0, 1))
    agent.require_range(config, actor_goal_current=(0, 1), actor_goal_future=(0, 1))
    for name in ("value", "actor"):
        shares = [np.asarray(getattr(config, f"{name}_goal_{kind}")) for kind in ("current", "future")]
        if np.max(sum(shares)) > 1.0 + 1e-6:
            raise ValueError(
                f"--config.{name}-goal-current and --config.{name}-goal-future are shares of all goals, and together "
                f"{np.max(sum(shares)):g}: they must be at most 1."
            )
    agent.require_at_least(config, num_critics=1)
    torsos.check(spec, layers(config), config.hidden)


def layers(config: Config) -> torsos.TorsoSettings:
    """The settings of the torsos."""
    thinking = (config.torso, config.compute, config.progressive)
    return torsos.TorsoSettings(*thinking, config.activation, config.initialisation, "last" if config.layer_norm else False)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    normed = layers(config)
    plain = normed._replace(layer_norm=False)
    actor = networks.create(torsos.network(spec, plain, config.hidden, spec.action_size), key_actor, observation)
    output = jax.tree.map(lambda x: OUTPUT_SCALE * x, actor.params["output"])
    actor = actor.replace(params=actor.params | {"output": output})
    ensemble = torsos.ensemble(spec, normed, config.num_critics, config.hidden, 1)
    critic = networks.create(ensemble, key_critic, observation, action)
    value = networks.create(torsos.network(spec, normed, config.hidden, 1), key_value, observation)
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
    """Count the states of a data set [N, O / 2] into the input statistics. Goals have the same statistics."""
    if not config.normalise_observations:
        return state
    statistics = normalise.of_data(data.observation)
    return state.replace(statistics=jax.tree.map(lambda x: jnp.tile(x, 2) if x.ndim else x, statistics))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., O]: the policy's mean, or a sample around it when exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    mean = state.actor(observation)
    if not explore:
        return jnp.clip(mean, -1.0, 1.0), {}
    return jnp.clip(mean + STD * jax.random.normal(key, mean.shape), -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


# [3, eq. 5]
def value_loss(
    value: networks.Network, q: Array, batch: Transition, config: Config, key: Array
) -> tuple[Array, Metrics]:
    """Squared distance to the actions' values q [B]; weight `expectile` above V, 1 - `expectile` below."""
    del key
    v = value(batch.observation)[:, 0]  # [B]
    weight = jnp.where(q < v, 1.0 - config.expectile, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


# [1, appendix], "ddpg_bc"
def guided_loss(
    actor: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> tuple[Array, Metrics]:
    """Minus the critics' values of the policy's mean over their mean absolute value, plus imitation of the data."""
    del key
    observation = batch.extras["actor_observation"]
    mean = actor(observation)  # [B, A]
    q = networks.smallest(state.critic(observation, jnp.clip(mean, -1.0, 1.0)))  # [B]
    imitation = jnp.negative(distributions.gaussian(mean, jnp.asarray(STD)).log_prob(batch.action)).mean()
    size = jax.lax.stop_gradient(jnp.abs(q).mean()) + 1e-6
    loss = -q.mean() / size + config.imitation_weight * imitation
    return loss, {"actor/loss": loss, "actor/q": q.mean(), "actor/imitation": imitation}


# [1, appendix], "awr"
def weighted_loss(
    actor: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> tuple[Array, Metrics]:
    """Distance to the data's actions, weighted by the exponential of their advantage."""
    del key
    observation = batch.extras["actor_observation"]
    advantage = state.critic(observation, batch.action).min(axis=0) - state.value(observation)[:, 0]  # [B]
    weight = jnp.minimum(jnp.exp(config.inverse_temperature * advantage), config.max_weight)
    distance = jnp.negative(distributions.gaussian(actor(observation), jnp.asarray(STD)).log_prob(batch.action))
    loss = (weight * distance).mean()
    return loss, {"actor/loss": loss, "actor/advantage": advantage.mean(), "actor/weight": weight.mean()}


# [3, eq. 6]
def critic_loss(
    critic: networks.Network, next_v: Array, batch: Transition, config: Config, key: Array
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the target from V(s', g) [B], summed over critics."""
    del key
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the actor, the critics and their targets.

    `batch.observation` and `batch.next_observation` [B, O] hold the values' goals, and
    `batch.extras["actor_observation"]` [B, O] holds the actor's.
    """
    del step
    key_value, key_actor, key_critic = jax.random.split(key, 3)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
        batch = batch.replace(extras={k: normalise.standardise(state.statistics, x) for k, x in batch.extras.items()})
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [B]
    next_v = state.value(batch.next_observation)[:, 0]

    loss = torsos.progressive(value_loss, layers(config))
    gradient, value_metrics = jax.grad(loss, has_aux=True)(state.value, q, batch, config, key_value)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)

    loss = torsos.progressive(guided_loss if config.policy_loss == "ddpg_bc" else weighted_loss, layers(config))
    gradient, actor_metrics = jax.grad(loss, has_aux=True)(state.actor, state, batch, config, key_actor)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)

    loss = torsos.progressive(critic_loss, layers(config))
    gradient, metrics = jax.grad(loss, has_aux=True)(state.critic, next_v, batch, config, key_critic)
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
