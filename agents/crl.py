"""CRL [goals]: critics that tell which goal follows which action.

gamma of the goals' times, g goal of the values, h goal of the actor, C critics of
features f_c(s, a), k_c(g) in K dimensions, pi(.|s, h) = N(mu(s, h), 1) with the
actor mu, i and j rows of the batch
  g            = s of k rows later, with probability (1 - gamma) gamma^(k - 1)
  Q_c(s, a, g) = f_c(s, a) . k_c(g) / sqrt(K)  [1, sec. 4]
  x_ij         = Q_c(s_i, a_i, g_j)
  L(Q)         = mean_cij [ softplus(x_ij) - 1(i = j) x_ij ]  "binary"
  n_ci         = log sum_j exp(x_ij)
  L(Q)         = mean_ci [ n_ci - x_ii + 0.1 n_ci^2 ]  "info_nce" [3]
  V(s, g)      = f(s) . k(g) / sqrt(K),  L(V) as L(Q)  "awr"
  q            = min_c Q_c(s, clip(mu(s, h)), h)
  L(pi)        = -mean q / mean |q| - alpha mean log pi(a|s, h)  "ddpg_bc"
  w            = min(exp(beta (min_c Q_c(s, a, h) - V(s, h))), max_weight)
  L(pi)        = mean [ -w log pi(a|s, h) ]  "awr"

All losses use the networks from before the update. Q is the logarithm of how much
likelier g is after a than by chance: there are no rewards and no targets.

Departs from the paper's form in OGBench [2]: evenly drawn goals are all equally
likely.

[1] Eysenbach et al., Contrastive Learning as Goal-Conditioned RL, arXiv:2206.07568
[2] Park et al., OGBench, arXiv:2410.20092; github.com/seohongpark/ogbench
[3] Bortkiewicz et al., JaxGCRL, arXiv:2408.11052

  rljax train crl --data ogbench/antmaze-medium-navigate-v0
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import policies, torsos
from rljax.networks.goals import contrast, extraction, pairs
from rljax.networks.goals.bilinear import Bilinear
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
    # Goals
    value_goal_current: Share = 0.0  # the state itself; [2]
    value_goal_future: Share = 1.0  # later ones, rest any; [2]
    # Values
    objective: contrast.Kind = "binary"  # of values and critics; [2]
    # Policy
    imitation_weight: NonNegative = 0.1  # alpha of ddpg_bc; [2], presets
    # Networks
    hidden: Widths = (512, 512, 512)  # parts of each torso; [2]
    latent_size: Count = 512  # K; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "gelu_tanh"  # of hidden layers; [2]
    layer_norm: bool = True  # of values and critics; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]
    torso: torsos.OfVectors = "mlp"  # of all networks; [2]


class State(struct.PyTreeNode):
    """What learning changes; [O] is [state; goal]."""

    actor: networks.Trained  # [O] -> [A]
    critic: networks.Trained  # [O], [A] -> [C]
    value: networks.Trained | None  # [O] -> [1]; for awr


def experience(config: Config) -> buffers.Dataset:
    """Batches of data, with goals for values and actor."""
    return buffers.goal_dataset(config, buffers.Goals.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("crl", spec)
    agent.require_continuous("crl", spec)
    buffers.check_goals(config)
    agent.require_at_least(config, latent_size=2)
    torsos.check(spec, TorsoSettings.of(config), config.hidden, config.critic_widths)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    key_actor, key_critic, key_value = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    plain = TorsoSettings.of(config, layer_norm=False)
    settings = TorsoSettings.of(config, layer_norm="last") if config.layer_norm else plain
    net = torsos.network(spec, plain, config.hidden, spec.action_size)
    actor = pairs.actor_of(net, key_actor, observation)
    sizes = (config.critic_widths, config.latent_size)
    critic = Bilinear.create(key_critic, spec, settings, config.num_critics, *sizes, action)
    value = None
    if config.policy_loss == "awr":
        value = Bilinear.create(key_value, spec, settings, 1, *sizes)
        value = networks.trained(value, config.value_lr, config)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        value=value,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., O]."""
    return policies.unit_action(state.actor(observation), key, explore), {}


# [1, sec. 4], [3]
def critic_loss(critic: Bilinear, batch: Transition, config: Config, key: Array) -> Loss:
    """Contrast of each row's own goal to those of others."""
    del key
    score = critic.pairs(batch.observation, batch.action)  # [C, B, B]
    return contrast.loss(score, config.objective, "critic")


# [2], "awr"
def value_loss(value: Bilinear, batch: Transition, config: Config, key: Array) -> Loss:
    """The same of states without actions."""
    del key
    score = value.pairs(batch.observation)  # [1, B, B]
    return contrast.loss(score, config.objective, "value")


# [2], "ddpg_bc"
def guided_loss(
    actor: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> Loss:
    """Minus the critics' scaled values, plus imitation."""
    del key
    observation = batch.extras["actor_observation"]
    mean = actor(observation)  # [B, A]
    q = state.critic(observation, jnp.clip(mean, -1.0, 1.0))  # [C, B]
    q = networks.lower_bound(q, config.pessimism)
    return extraction.guided(mean, q, batch.action, config.imitation_weight)


# [2], "awr"
def weighted_loss(
    actor: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> Loss:
    """Distance to the actions, weighted by advantage."""
    del key
    assert state.value is not None
    observation = batch.extras["actor_observation"]
    q = networks.lower_bound(state.critic(observation, batch.action), config.pessimism)
    advantage = q - state.value(observation)[0]  # [B]
    return extraction.weighted(actor(observation), advantage, batch.action, config)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; extras hold the actor's goals."""
    key_critic, key_value, key_actor = jax.random.split(key, 3)
    settings = TorsoSettings.of(config)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    loss = torsos.progressive(critic_loss, settings)
    critic, metrics = state.critic.step(optimiser, loss, batch, config, key_critic)
    value = state.value
    if value is not None:
        optimiser = networks.optimiser(config.value_lr, step, config)
        loss = torsos.progressive(value_loss, settings)
        value, value_metrics = value.step(optimiser, loss, batch, config, key_value)
        metrics |= value_metrics
    optimiser = networks.optimiser(config.actor_lr, step, config)
    loss = guided_loss if config.policy_loss == "ddpg_bc" else weighted_loss
    loss = torsos.progressive(loss, settings)
    actor, actor_metrics = state.actor.step(optimiser, loss, state, batch, config, key_actor)
    return State(actor, critic, value), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
