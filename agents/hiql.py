"""HIQL [goals]: a policy of subgoals above one of actions; OTA's values of options.

gamma discount, k subgoal_steps, g goal of the values, h goal of the high policy,
w the state k steps ahead, not beyond h, x the same beyond h too
z(s, g) = sqrt(d) phi([s; g]) / |phi([s; g])|, phi a network to d numbers
V_c(s, g) values, which see s and z(s, g), V'_c targets with the phi of V_c
high(.|s, h) = N(mu_h(s, h), 1), low(.|s, z) = N(mu_l(s, z), 1), tau expectile
  r, end = 0, terminated where s was drawn as g, else -1, not terminated
  y_c    = r + gamma (1 - terminated) V'_c(s', g)
  u      = min_c y_c - mean_c V'_c(s, g)
  L(V)   = sum_c mean [ |tau - 1(u < 0)| (y_c - V_c(s, g))^2 ]  [2]
  A      = mean_c V_c(s', x) - mean_c V_c(s, x)
  L(low) = mean [ -min(exp(beta_low A), max_weight) log low(a|s, z(s, x)) ]
  A      = mean_c V_c(w, h) - mean_c V_c(s, h)
  L(high) = mean [ -min(exp(beta_high A), max_weight) log high(z(s, w)|s, h) ]
  V'_c  <- (1 - rho) V'_c + rho (V_c before the step)  rho: target_rate
Acts by low at s and high's output, scaled to the length sqrt(d).
With n = option_steps > 1 other values H_c of the same phi stand in for V_c in
A of high [4]. They learn as V_c, from s' n steps ahead, not beyond g, with r = 0
and terminated where that is g. Only L(V) and L(H) move phi.

Departs from the paper: as its code [2], it has one network for two targets.

[1] Park et al., HIQL, arXiv:2307.11949; [2] github.com/seohongpark/ogbench
[3] Park et al., OGBench, arXiv:2410.20092
[4] Ahn et al., Option-aware temporally abstracted value, arXiv:2505.12737

  rljax train hiql --data ogbench/cube-single-play-v0
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
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
    learning_rate: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 1024  # transitions per update; [2]
    # Data
    normalise_observations: bool = False  # states and goals, by the data
    num_updates: int = 1  # updates per iteration
    # Subgoals
    subgoal_steps: Count = 25  # k; [2], presets
    option_steps: Count = 1  # n of the high values; [4]: 5
    # Targets
    discount: Share = 0.99  # gamma; [2], presets
    target_rate: Share = 0.005  # rho; [2]
    expectile: Share = 0.7  # tau: 0.5 is the mean; [2]
    # Policies
    high_inverse_temperature: NonNegative = 3.0  # beta: 0 imitates; [2]
    low_inverse_temperature: NonNegative = 3.0  # beta: 0 imitates; [2]
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    # Networks
    num_values: Count = 2  # C; [2]
    representation_size: Count = 10  # d; [2]


class Networks(struct.PyTreeNode):
    """What the one optimiser moves; goals are [O], as states are."""

    representation: networks.Network  # phi: [O], [O] -> [d]
    value: networks.Network  # [O], [d] -> [C]
    high_value: networks.Network | None  # of options, if any
    high_actor: networks.Network  # [O], [O] -> [d]
    low_actor: networks.Network  # [O], [d] -> [A]


class State(struct.PyTreeNode):
    """What learning changes."""

    networks: networks.Trained  # Networks
    target_value: networks.Network
    target_high_value: networks.Network | None


def experience(config: Config) -> buffers.Dataset:
    """Batches of data, with goals and states before them."""
    return buffers.goal_dataset(config, buffers.Subgoals.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("hiql", spec)
    agent.require_continuous("hiql", spec)
    buffers.check_goals(config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    keys = jax.random.split(key, 5)
    s, _ = buffers.halves(spec.example())
    size, number = config.representation_size, config.num_values
    z = jnp.zeros(size)
    net = networks.MLP(
        config.critic_widths, size, layer_norm=config.norm, **networks.style_of(config)
    )
    value = config.create_values(spec, keys[1], number, s, z)
    has_options = config.option_steps > 1
    high_value = config.create_values(spec, keys[2], number, s, z) if has_options else None
    learnt = Networks(
        representation=networks.create(net, keys[0], s, s),
        value=value,
        high_value=high_value,
        high_actor=pairs.create_actor(spec, keys[3], config, s, s, features=size),
        low_actor=pairs.create_actor(spec, keys[4], config, s, z),
    )
    return State(
        networks=networks.trained(learnt, config.learning_rate, config),
        target_value=networks.copy(value),
        target_high_value=networks.copy(high_value),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., 2 O]."""
    key_high, key_low = jax.random.split(key)
    learnt, (s, h) = state.networks.parameters, buffers.halves(observation)
    z = learnt.high_actor(s, h)  # [..., d]
    if explore:
        z += jax.random.normal(key_high, z.shape)
    mean = learnt.low_actor(s, pairs.scaled_to_sphere(z))
    return policies.unit_action(mean, key_low, explore), {}


def represent(learnt: Networks, s: Array, g: Array) -> Array:
    """z(s, g) [..., d]."""
    return pairs.scaled_to_sphere(learnt.representation(s, g))


def values(learnt: Networks, value: networks.Network, s: Array, g: Array) -> Array:
    """V_c(s, g) [C, ...] of one of the networks of values."""
    return value(s, represent(learnt, s, g))


def gain(learnt: Networks, value: networks.Network, s: Array, successor: Array, g: Array) -> Array:
    """A [B]: the mean value of successors minus that of states."""
    later, now = (values(learnt, value, x, g) for x in (successor, s))
    return (later - now).mean(axis=0)


# [2]; [1, eq. 4] with an advantage of its own; of options [4]
def value_loss(
    learnt: Networks,
    value: networks.Network,
    before: Networks,
    target: networks.Network,
    batch: Transition,
    config: Config,
) -> Loss:
    """Expectile loss of each V to its own target."""
    s, g = buffers.halves(batch.observation)
    successor, _ = buffers.halves(batch.next_observation)
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    y = batch.reward + bootstrap * values(before, target, successor, g)  # [C, B]
    target_v = values(before, target, s, g)
    return expectiles.ensemble_loss(values(learnt, value, s, g), target_v, y, config.expectile)


# [1, eq. 7]
def low_actor_loss(learnt: Networks, before: Networks, batch: Transition, config: Config) -> Loss:
    """Distance to the actions, weighted by how far they lead to the subgoal."""
    s, x = buffers.halves(batch.extras["subgoal_observation"])
    successor, _ = buffers.halves(batch.next_observation)
    advantage = gain(before, before.value, s, successor, x)
    beta, most = config.low_inverse_temperature, config.max_weight
    mean = learnt.low_actor(s, represent(before, s, x))
    return pairs.weighted_imitation("low_actor", mean, batch.action, advantage, beta, most)


# [1, eq. 6]
def high_actor_loss(learnt: Networks, before: Networks, batch: Transition, config: Config) -> Loss:
    """Distance to the subgoals, weighted by how far they lead to the goal."""
    s, h = buffers.halves(batch.extras["actor_observation"])
    _, w = buffers.halves(batch.extras["target_observation"])
    value = before.value if before.high_value is None else before.high_value
    advantage = gain(before, value, s, w, h)
    beta, most = config.high_inverse_temperature, config.max_weight
    mean, z = learnt.high_actor(s, h), represent(before, s, w)
    return pairs.weighted_imitation("high_actor", mean, z, advantage, beta, most)


def loss(learnt: Networks, state: State, batch: Transition, config: Config) -> Loss:
    """The sum of all losses."""
    before = state.networks.parameters
    parts = [
        value_loss(learnt, learnt.value, before, state.target_value, batch, config),
        low_actor_loss(learnt, before, batch, config),
        high_actor_loss(learnt, before, batch, config),
    ]
    if learnt.high_value is not None:
        targets, rows = state.target_high_value, buffers.options(batch)
        part, metrics = value_loss(learnt, learnt.high_value, before, targets, rows, config)
        parts.append((part, {f"high_{name}": x for name, x in metrics.items()}))
    metrics = {name: x for _, part in parts for name, x in part.items()}
    return jnp.asarray(sum(part for part, _ in parts)), metrics


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; extras hold other goals, subgoals and options."""
    del key
    optimiser = networks.optimiser(config.learning_rate, step, config)
    learnt, metrics = state.networks.step(optimiser, loss, state, batch, config)
    before, rate = state.networks.parameters, config.target_rate
    target_value = networks.polyak(before.value, state.target_value, rate)
    target_high_value = networks.polyak(before.high_value, state.target_high_value, rate)
    return State(learnt, target_value, target_high_value), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
