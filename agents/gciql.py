"""GCIQL [goals]: IQL for goals, which all networks see beside the state.

gamma discount, g goal of the values, h goal of the actor, V value, Q_c critics,
Q'_c targets, pi(.|s, h) = N(mu(s, h), 1) with the actor mu, tau expectile
  r, end       = 0, terminated where s was drawn as g, else -1, not terminated
  Q(s, a, g)   = min_c Q'_c(s, a, g),  u = Q(s, a, g) - V(s, g)
  L(V)         = mean [ |tau - 1(u < 0)| u^2 ]  [3, eq. 5]
  q            = min_c Q_c(s, clip(mu(s, h)), h)
  L(pi)        = -mean q / mean |q| - alpha mean log pi(a|s, h)  "ddpg_bc"
  w            = min(exp(beta (min_c Q_c(s, a, h) - V(s, h))), max_weight)
  L(pi)        = mean [ -w log pi(a|s, h) ]  "awr"
  y            = r + gamma (1 - terminated) V(s', g)
  L(Q)         = sum_c mean (Q_c(s, a, g) - y)^2  [3, eq. 6]
  Q'_c        <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

All losses use the networks from before the update.

Departs from the paper's code [2]: evenly drawn goals are all equally likely,
and targets follow the new critics.

[1] Park et al., OGBench, arXiv:2410.20092; [2] github.com/seohongpark/ogbench
[3] Kostrikov et al., Implicit Q-Learning, arXiv:2110.06169

  rljax train gciql --data ogbench/cube-single-play-v0
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import policies, torsos
from rljax.networks.goals import extraction, pairs
from rljax.networks.optimisation import expectiles
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, NonNegative, Share, Widths


@agent.config
class Config(
    networks.WithCritics,
    networks.WithPessimism,
    torsos.WithThinking,
    extraction.WithExtraction,
    buffers.WithGoals,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 1024  # transitions per update; [2]
    # Data
    normalise_observations: bool = False  # states and goals, by the data
    num_updates: int = 1  # updates per iteration
    # Targets
    discount: Share = 0.99  # gamma; [2], presets
    target_rate: Share = 0.005  # rho; [2]
    expectile: Share = 0.9  # tau: 0.5 is the mean; [2]
    # Policy
    imitation_weight: NonNegative = 0.3  # alpha of ddpg_bc; [2], presets
    # Networks
    hidden: Widths = (512, 512, 512)  # parts of each torso; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "gelu_tanh"  # of hidden layers; [2]
    layer_norm: bool = True  # of values and critics; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]
    torso: torsos.OfVectors = "mlp"  # of all networks; [2]


class State(struct.PyTreeNode):
    """What learning changes; [O] is [state; goal]."""

    actor: networks.Trained  # [O] -> [A]
    critic: networks.Trained  # [O], [A] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Batches of data, with goals for values and actor."""
    return buffers.goal_dataset(config, buffers.Goals.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("gciql", spec)
    agent.require_continuous("gciql", spec)
    buffers.check_goals(config)
    torsos.check(spec, TorsoSettings.of(config), config.hidden, config.critic_widths)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    plain = TorsoSettings.of(config, layer_norm=False)
    settings = TorsoSettings.of(config, layer_norm="last") if config.layer_norm else plain
    net = torsos.network(spec, plain, config.hidden, spec.action_size)
    actor = pairs.actor_of(net, key_actor, observation)
    net = torsos.ensemble(spec, settings, config.num_critics, config.critic_widths, 1)
    critic = networks.create(net, key_critic, observation, action)
    net = torsos.network(spec, settings, config.critic_widths, 1)
    value = networks.create(net, key_value, observation)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        value=networks.trained(value, config.value_lr, config),
        target_critic=networks.copy(critic),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., O]."""
    return policies.unit_action(state.actor(observation), key, explore), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


# [3, eq. 5]
def value_loss(
    value: networks.Network, q: Array, batch: Transition, config: Config, key: Array
) -> Loss:
    """Expectile loss of V to the actions' values q [B]."""
    del key
    return expectiles.loss(value, q, batch.observation, config.expectile)


# [1, appendix], "ddpg_bc"
def guided_loss(
    actor: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> Loss:
    """Minus the critics' scaled values, plus imitation."""
    del key
    observation = batch.extras["actor_observation"]
    mean = actor(observation)  # [B, A]
    action = jnp.clip(mean, -1.0, 1.0)
    q = networks.lower_bound(state.critic(observation, action), config.pessimism)  # [B]
    return extraction.guided(mean, q, batch.action, config.imitation_weight)


# [1, appendix], "awr"
def weighted_loss(
    actor: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> Loss:
    """Distance to the actions, weighted by advantage."""
    del key
    observation = batch.extras["actor_observation"]
    q = networks.lower_bound(state.critic(observation, batch.action), config.pessimism)  # [B]
    advantage = q - state.value(observation)[:, 0]
    return extraction.weighted(actor(observation), advantage, batch.action, config)


# [3, eq. 6]
def critic_loss(
    critic: networks.Network, next_v: Array, batch: Transition, config: Config, key: Array
) -> Loss:
    """Squared error of the critics, from V(s', g) [B]."""
    del key
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; extras hold the actor's goals."""
    key_value, key_actor, key_critic = jax.random.split(key, 3)
    settings = TorsoSettings.of(config)
    q = state.target_critic(batch.observation, batch.action)  # [C, B]
    q = networks.lower_bound(q, config.pessimism)  # [B]
    next_v = state.value(batch.next_observation)[:, 0]
    optimiser = networks.optimiser(config.value_lr, step, config)
    loss = torsos.progressive(value_loss, settings)
    value, value_metrics = state.value.step(optimiser, loss, q, batch, config, key_value)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    loss = guided_loss if config.policy_loss == "ddpg_bc" else weighted_loss
    loss = torsos.progressive(loss, settings)
    actor, actor_metrics = state.actor.step(optimiser, loss, state, batch, config, key_actor)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    loss = torsos.progressive(critic_loss, settings)
    critic, metrics = state.critic.step(optimiser, loss, next_v, batch, config, key_critic)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, critic, value, target_critic)
    return state, metrics | value_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
