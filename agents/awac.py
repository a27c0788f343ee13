"""AWAC [offline]: actions of the data, weighted by their advantage over the policy.

gamma discount, Q_c critics, Q'_c targets, pi actor, lambda temperature
clip() to [-1, 1],  b ~ clip(pi(.|s)),  b' ~ clip(pi(.|s'))
  y        = r + gamma (1 - terminated) min_c Q'_c(s', b')
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [1, algorithm 1]
  V(s)     = mean_b min_c Q_c(s, b)  Q after its step
  A        = min_c Q_c(s, a) - V(s)
  w        = min(exp(A / lambda), max_weight)
             `normalise_weights`: over its mean in the batch  [2]
  L(pi)    = mean [ -w log pi(a|s) ]  [1, eq. 13]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho target_rate

pi(.|s) is a Gaussian with one std, or a softmax. AWR [4] has returns of
whole trajectories in place of critics, and is not here.

Departs from the paper: one b, bounded weights that are not normalised
and all sizes are CORL's [3]. Discrete actions are ours.

[1] Nair et al., AWAC, arXiv:2006.09359
[2] github.com/rail-berkeley/rlkit, its awac_trainer.py
[3] github.com/tinkoff-ai/CORL, its awac.py
[4] Peng et al., Advantage-Weighted Regression, arXiv:1910.00177

  rljax train awac --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, encoders, heads, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import HeadSettings
from rljax.networks.policies import Imitation
from rljax.requirements import Count, LogStd, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.RowSettings, heads.WithHead):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [3]
    critic_lr: NonNegative = 3e-4  # of Adam; [3]
    batch_size: int = 256  # transitions per update; [3]
    # Data
    normalise_observations: bool = True  # by mean and std; [3]
    # Targets
    discount: Share = 0.99  # gamma; [3]
    target_rate: Share = 0.005  # rho; [3]
    # Policy
    temperature: Positive = 1.0  # lambda; [3], by data set
    max_weight: Positive = 100.0  # bound of the weights; [3]
    normalise_weights: bool = False  # over their mean; True in [2]
    num_actions: Count = 1  # b for each V(s); [3]
    mean_action: bool = False  # b is the policy's mean or mode; True in [2]
    log_std_min: LogStd = -20.0  # lower clip of log std; [3]
    log_std_max: LogStd = 2.0  # upper clip of log std; [3]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of all networks; [3]
    num_critics: Count = 2  # C; the smallest counts; [3]
    activation: networks.Activation = "relu"  # of hidden layers; [3]
    layer_norm: networks.Norm = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [3]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    critic: networks.Trained  # [O], [A] or [] -> [C]
    target_critic: networks.Network


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("awac", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    heads.check_bins(HeadSettings.of(config))
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    encoding = EncoderSettings.of(config)
    style = networks.style_of(config)
    net = networks.MLP(config.hidden, spec.action_size, **style)
    actor = policies.create_actor(spec, encoders.encoded(spec, encoding, net), key_actor)
    norm = config.layer_norm
    net = networks.ensemble(
        spec, config.num_critics, config.critic_widths, layer_norm=norm, **style
    )
    net = encoders.encoded(spec, encoding, net)
    head = HeadSettings.of(config)
    critic = networks.create_critic(net, head, spec, key_critic, spec.example(), action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Fit any bins to the returns of the data [N, ...]."""
    return state.replace(
        critic=networks.fit_bins(state.critic, data, config.discount),
        target_critic=networks.fit_bins(state.target_critic, data, config.discount),
    )


def policy(config: Config) -> Imitation:
    """How pi(.|s) follows from the actor."""
    return Imitation.of(config, exploration_noise=0.0, dropout=None, squashes=False)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    return policy(config).act(state.actor.parameters, observation, key, explore), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A] or [...]."""
    return state.critic(observation, action).mean(axis=0)


# [1, algorithm 1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Error of the critics to the target."""
    observation = batch.next_observation
    next_action = policy(config).act(state.actor.parameters, observation, key, explore=True)
    next_q = state.target_critic(observation, next_action).min(axis=0)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_q
    # outputs are [C, B], or [C, B, K] of bins
    outputs, head = networks.outputs_and_head(critic, batch.observation, batch.action)
    loss = head.loss(outputs, head.encode(target)).mean(axis=-1).sum()
    q = head.mean(outputs)
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | head.clipped(target)


def advantages(state: State, batch: Transition, key: Array, config: Config) -> Array:
    """A [B] of the batch's actions."""

    def smallest(action: Array) -> Array:
        return state.critic(batch.observation, action).min(axis=0)

    def sampled(key: Array) -> Array:
        explore, actor = not config.mean_action, state.actor.parameters
        return smallest(policy(config).act(actor, batch.observation, key, explore))

    keys = jax.random.split(key, config.num_actions)
    return smallest(batch.action) - jax.vmap(sampled)(keys).mean(axis=0)


# [1, eq. 13]
def actor_loss(
    actor: Actor, advantage: Array, batch: Transition, key: Array, config: Config
) -> Loss:
    """Distance to the actions, weighted by advantage [B]."""
    log_weight = jnp.minimum(advantage / config.temperature, jnp.log(config.max_weight))
    weight = jnp.exp(log_weight)
    if config.normalise_weights:
        weight = len(advantage) * jax.nn.softmax(log_weight)
    distance = policy(config).distance(actor, batch.observation, batch.action, key)
    loss = (weight * distance).mean()
    return loss, {
        "actor/loss": loss,
        "actor/advantage": advantage.mean(),
        "actor/weight": weight.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics, actor and targets."""
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    advantage = advantages(state.replace(critic=critic), batch, key_actor, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    inputs = (advantage, batch, key_actor, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, *inputs)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    return State(actor, critic, target_critic), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
