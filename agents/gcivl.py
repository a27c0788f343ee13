"""GCIVL [goals]: GCIQL without critics, whose values learn from one another.

gamma discount, g goal of the values, h goal of the actor, V_c values,
V'_c targets, pi(.|s, h) = N(mu(s, h), 1) with the actor mu, tau expectile
  r, end = 0, terminated where s was drawn as g, else -1, not terminated
  y_c    = r + gamma (1 - terminated) V'_c(s', g)
  u      = min_c y_c - mean_c V'_c(s, g)
  L(V)   = sum_c mean [ |tau - 1(u < 0)| (y_c - V_c(s, g))^2 ]  [2]
  A      = mean_c V_c(s', h) - mean_c V_c(s, h)
  w      = min(exp(beta A), max_weight)
  L(pi)  = mean [ -w log pi(a|s, h) ]
  V'_c  <- (1 - rho) V'_c + rho (V_c before the step)  rho: target_rate

All losses use the networks from before the update.

Departs from the paper's code [2]: evenly drawn goals are all equally likely.

[1] Park et al., OGBench, arXiv:2410.20092; [2] github.com/seohongpark/ogbench
[3] Park et al., HIQL, arXiv:2307.11949

  rljax train gcivl --data ogbench/cube-single-play-v0
"""

from __future__ import annotations

import jax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import policies
from rljax.networks.goals import pairs
from rljax.networks.optimisation import expectiles
from rljax.requirements import Count, NonNegative, Share


@agent.config
class Config(networks.WithCritics, pairs.WithGoalNetworks, buffers.WithGoals):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
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
    inverse_temperature: NonNegative = 10.0  # beta: 0 imitates; [2]
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    # Networks
    num_values: Count = 2  # C; [2]


class State(struct.PyTreeNode):
    """What learning changes; [O] is [state; goal]."""

    actor: networks.Trained  # [O] -> [A]
    value: networks.Trained  # [O] -> [C]
    target_value: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Batches of data, with goals for values and actor."""
    return buffers.goal_dataset(config, buffers.Goals.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("gcivl", spec)
    agent.require_continuous("gcivl", spec)
    buffers.check_goals(config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_value = jax.random.split(key)
    actor = pairs.create_actor(spec, key_actor, config)
    value = config.create_values(spec, key_value, config.num_values)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        value=networks.trained(value, config.value_lr, config),
        target_value=networks.copy(value),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., O]."""
    return policies.unit_action(state.actor(observation), key, explore), {}


# [2]; [3, eq. 4] with an advantage of its own
def value_loss(value: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Expectile loss of each V to its own target."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    y = batch.reward + bootstrap * state.target_value(batch.next_observation)  # [C, B]
    target_v = state.target_value(batch.observation)
    return expectiles.ensemble_loss(value(batch.observation), target_v, y, config.expectile)


# [1, appendix], "awr"
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> Loss:
    """Distance to the actions, weighted by advantage."""
    observation = batch.extras["actor_observation"]
    successor = buffers.toward(batch.next_observation, observation)
    advantage = (state.value(successor) - state.value(observation)).mean(axis=0)  # [B]
    beta, most = config.inverse_temperature, config.max_weight
    mean = actor(observation)  # [B, A]
    return pairs.weighted_imitation("actor", mean, batch.action, advantage, beta, most)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; extras hold the actor's goals."""
    del key
    optimiser = networks.optimiser(config.value_lr, step, config)
    value, metrics = state.value.step(optimiser, value_loss, state, batch, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, state, batch, config)
    before = state.value.parameters
    target_value = networks.polyak(before, state.target_value, config.target_rate)
    return State(actor, value, target_value), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
