"""QRL [goals]: a quasimetric pushes states apart that no single step joins.

f(s) features, d a quasimetric of features, g goal of the distance, h goal of the
actor, T dynamics of features, lambda multiplier, w push_width, o push_offset,
pi(.|s, h) = N(mu(s, h), 1) with the actor mu
  d(s, g)   = d(f(s), f(g)), "iqe" [3] or "mrn" [4]
  excess    = mean max(0, d(s, s') - 1)^2
  f'(s, a)  = f(s) + T(f(s), a)  "ddpg_bc"
  error     = mean (d(f(s'), f'(s, a)) + d(f'(s, a), f(s'))) / 2
  L(f, d)   = mean w softplus((o - d(s, g)) / w) + lambda excess + error
  L(lambda) = lambda (tolerance - excess),  by log lambda
  q         = -d(f'(s, clip(mu(s, h))), f(h))
  L(pi)     = -mean q / mean |q| - alpha mean log pi(a|s, h)  "ddpg_bc"
  weight    = min(exp(beta (d(s, h) - d(s', h))), max_weight)
  L(pi)     = mean [ -weight log pi(a|s, h) ]  "awr"

All losses use the networks from before the update. At the optimum d(s, g) is the
least number of steps from s to g.

Departs from the paper's form in OGBench [2]: evenly drawn goals are all equally
likely.

[1] Wang et al., Optimal Goal-Reaching RL via Quasimetric Learning, arXiv:2304.01203
[2] Park et al., OGBench, arXiv:2410.20092; github.com/seohongpark/ogbench
[3] Wang and Isola, Interval Quasimetric Embeddings, arXiv:2211.15120
[4] Liu et al., Metric Residual Networks, arXiv:2208.08133

  rljax train qrl --data ogbench/pointmaze-large-navigate-v0
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import policies, torsos
from rljax.networks.goals import extraction, pairs, quasimetrics
from rljax.networks.goals.quasimetrics import Quasimetric
from rljax.networks.optimisation import multipliers
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(
    networks.WithCritics, torsos.WithThinking, extraction.WithExtraction, buffers.WithGoals
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    model_lr: NonNegative = 3e-4  # of distance and dynamics; [2]
    multiplier_lr: NonNegative = 3e-4  # of log lambda; [2]
    batch_size: int = 1024  # transitions per update; [2]
    # Data
    normalise_observations: bool = False  # states and goals, by the data
    num_updates: int = 1  # updates per iteration
    # Goals
    value_goal_current: Share = 0.0  # the state itself; [2]
    value_goal_future: Share = 0.0  # later ones, rest any; [2]
    # Distance
    quasimetric: quasimetrics.Kind = "iqe"  # of features; [2]
    push_offset: NonNegative = 500.0  # o: goals farther than this hardly move; [1, 2]
    push_width: Positive = 100.0  # w, of the fall around o; [1, 2]
    tolerance: NonNegative = 0.05  # of the squared excess of a step; [2]
    init_multiplier: Positive = 1.0  # lambda at the start; [2]
    # Policy
    imitation_weight: NonNegative = 0.003  # alpha of ddpg_bc; [2], presets
    # Networks
    hidden: Widths = (512, 512, 512)  # parts of each torso; [2]
    latent_size: Count = 512  # features of a state; [2]
    activation: networks.Activation = "gelu_tanh"  # of hidden layers; [2]
    layer_norm: bool = True  # of distance and dynamics; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]
    torso: torsos.OfVectors = "mlp"  # of all networks; [2]


class Model(struct.PyTreeNode):
    """What d and f' learn together."""

    distance: Quasimetric  # [O] -> []
    dynamics: networks.Network | None  # [K], [A] -> [K]; for ddpg_bc

    def after(self, features: Array, action: Array) -> Array:
        """f'(s, a) [..., K] of features [..., K]."""
        assert self.dynamics is not None
        return features + self.dynamics(features, action)


class State(struct.PyTreeNode):
    """What learning changes; [O] is [state; goal]."""

    actor: networks.Trained  # [O] -> [A]
    model: networks.Trained
    log_multiplier: networks.Trained  # []


def experience(config: Config) -> buffers.Dataset:
    """Batches of data, with goals for distance and actor."""
    return buffers.goal_dataset(config, buffers.Goals.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("qrl", spec)
    agent.require_continuous("qrl", spec)
    buffers.check_goals(config)
    quasimetrics.check(config.latent_size, config.quasimetric)
    torsos.check(spec, TorsoSettings.of(config), config.hidden, config.critic_widths)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    key_actor, key_distance, key_dynamics = jax.random.split(key, 3)
    plain = TorsoSettings.of(config, layer_norm=False)
    settings = TorsoSettings.of(config, layer_norm="last") if config.layer_norm else plain
    net = torsos.network(spec, plain, config.hidden, spec.action_size)
    actor = pairs.actor_of(net, key_actor, spec.example())
    sizes = (config.critic_widths, config.latent_size)
    distance = Quasimetric.create(key_distance, spec, settings, *sizes, config.quasimetric)
    dynamics = None
    if config.policy_loss == "ddpg_bc":
        net = torsos.network(spec, settings, *sizes)
        inputs = (jnp.zeros(config.latent_size), jnp.zeros(spec.action_shape))
        dynamics = networks.create(net, key_dynamics, *inputs)
    log_multiplier = jnp.log(jnp.asarray(config.init_multiplier, jnp.float32))
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        model=networks.trained(Model(distance, dynamics), config.model_lr, config),
        log_multiplier=networks.trained(log_multiplier, config.multiplier_lr, config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., O]."""
    return policies.unit_action(state.actor(observation), key, explore), {}


# [1], [2]
def model_loss(
    model: Model, log_multiplier: Array, batch: Transition, config: Config, key: Array
) -> Loss:
    """Any states far apart, neighbours near, and features foreseen."""
    del key
    distance, pair = model.distance, jnp.split(batch.observation, 2, axis=-1)
    successor, _ = jnp.split(batch.next_observation, 2, axis=-1)
    start, goal, end = distance.embedding(jnp.stack([*pair, successor]))  # [B, K] each
    far, near = distance.between(start, goal), distance.between(start, end)  # [B]
    push = jax.nn.softplus((config.push_offset - far) / config.push_width)
    push = config.push_width * push.mean()
    excess = jnp.square(jax.nn.relu(near - 1.0)).mean()
    loss = push + jnp.exp(log_multiplier) * excess
    metrics = {"model/far": far.mean(), "model/near": near.mean(), "model/excess": excess}
    if model.dynamics is not None:
        foreseen = model.after(start, batch.action)
        error = distance.between(end, foreseen) + distance.between(foreseen, end)
        error = 0.5 * error.mean()
        loss += error
        metrics["model/error"] = error
    return loss, metrics | {"model/loss": loss, "model/push": push}


# [2], "ddpg_bc"
def guided_loss(
    actor: networks.Network, model: Model, batch: Transition, config: Config, key: Array
) -> Loss:
    """The scaled distance of what follows to the goal, plus imitation."""
    del key
    observation = batch.extras["actor_observation"]
    mean = actor(observation)  # [B, A]
    start, goal = model.distance.embedded(observation)
    foreseen = model.after(start, jnp.clip(mean, -1.0, 1.0))
    q = -model.distance.between(foreseen, goal)  # [B]
    return extraction.guided(mean, q, batch.action, config.imitation_weight)


# [2], "awr"
def weighted_loss(
    actor: networks.Network, model: Model, batch: Transition, config: Config, key: Array
) -> Loss:
    """Distance to the actions, weighted by the steps that they save."""
    del key
    observation = batch.extras["actor_observation"]
    successor = buffers.toward(batch.next_observation, observation)
    saved = model.distance(observation) - model.distance(successor)  # [B]
    return extraction.weighted(actor(observation), saved, batch.action, config)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; extras hold the actor's goals."""
    key_model, key_actor = jax.random.split(key)
    settings = TorsoSettings.of(config)
    log_multiplier, before = state.log_multiplier, state.model.parameters
    optimiser = networks.optimiser(config.model_lr, step, config)
    loss = torsos.progressive(model_loss, settings)
    inputs = (log_multiplier.parameters, batch, config, key_model)
    model, metrics = state.model.step(optimiser, loss, *inputs)
    optimiser = networks.optimiser(config.multiplier_lr, step, config)
    inputs = (metrics["model/excess"], config.tolerance)
    log_multiplier, more = log_multiplier.step(optimiser, multipliers.positive_loss, *inputs)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    loss = guided_loss if config.policy_loss == "ddpg_bc" else weighted_loss
    loss = torsos.progressive(loss, settings)
    actor, actor_metrics = state.actor.step(optimiser, loss, before, batch, config, key_actor)
    return State(actor, model, log_multiplier), metrics | more | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
