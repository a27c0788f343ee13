"""BRO [off-policy]: SAC with large critics, an optimist and resets.

gamma discount, alpha temperature, pi actor with mean m and std d
Q_c critics of quantiles, Q'_c targets, quantile by quantile
a' ~ pi(.|s'),  a~ ~ pi(.|s)
o optimist: the Gaussian of mean m + f(s, m) and std eta d,  a^ ~ o(.|s)
  y        = r + gamma (1 - terminated) (mean_c Q'_c(s', a') - alpha log pi(a'|s'))
  L(Q)     = sum_c mean (quantile loss of Q_c(s, a) to y)  [1, appendix B]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c
  L(pi)    = mean (alpha log pi(a~|s) - mean_c Q_c(s, a~))
  KL       = mean (sum (f(s, m) / d)^2 / 2)
  L(f)     = -mean (mean_c Q_c + beta |Q_1 - Q_2| / 2)(s, a^) + w KL
  L(alpha) = mean (-alpha (log pi(a~|s) + target_entropy))
  L(beta)  = beta (KL / A - kl_target)
  L(w)     = -w (KL / A - kl_target)

Actions are tanh of Gaussians. The optimist explores, pi is evaluated.
All that is learnt begins anew after some numbers of updates.
Networks: BroNet of rljax/networks/blocks/residual.py, with AdamW.

Departs from [2]: after a reset, parameters are drawn anew.

[1] Nauman et al., Bigger, Regularized, Optimistic, arXiv:2405.16158
[2] github.com/naumix/BiggerRegularizedOptimistic

  rljax train bro --env Hopper-v5
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise, torsos
from rljax.networks.blocks.ensemble import BlockEnsemble
from rljax.networks.blocks.residual import BroNet
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import optimism, resets, temperatures
from rljax.networks.optimisation.temperatures import TemperatureSettings
from rljax.requirements import AtLeast, Counts, LogStd, NonNegative, Real, Share, Widths

# Environment steps that resets come before; [2].
RESETS = (15_001, 50_001, 250_001, 500_001, 750_001, 1_000_001, 1_500_001, 2_000_001)


@agent.config
class Config(
    buffers.ReplaySettings,
    heads.WithCriticHead,
    temperatures.WithTemperature,
    optimism.WithOptimism,
    resets.WithResets,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of AdamW; [2]
    critic_lr: NonNegative = 3e-4  # of AdamW; [2]
    weight_decay: NonNegative | None = 1e-4  # of AdamW; [2]
    batch_size: int = 128  # transitions per update; [2]
    reset_at: Counts = tuple(10 * (step - 2_500) for step in RESETS)  # updates; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 2_500  # uniform actions, no update; [2]
    num_updates: int = 10  # per step; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    value_head: heads.CriticKind = "quantile"  # what critics learn; [1]
    quantiles: Annotated[int, AtLeast(2)] = 100  # of each critic; [2]
    target_value: heads.Combination = "mean"  # of target critics; [1]
    # Policy
    temperature_loss: temperatures.Form = "alpha"  # alpha itself, not its log; [2]
    target_entropy_share: Real = 0.5  # of -A, the target; [2]
    log_std_min: LogStd = -10.0  # lower bound of log std; [2]
    log_std_max: LogStd = 2.0  # upper bound of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256,)  # width, once for each block of both actors; [2]
    critic_hidden: Widths = (512, 512)  # the same of the critics; [2]
    num_critics: Annotated[int, AtLeast(2)] = 2  # C; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and u
    optimist: networks.Trained  # [O], [A] -> [A]: what the mean is shifted by
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    weights: networks.Trained  # x [] of beta and w
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("bro", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_one_width(config, "hidden", "critic_hidden")
    heads.check_critics(config)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_optimist, key_critic = jax.random.split(key, 3)
    encoding, action = EncoderSettings.of(config), jnp.zeros(spec.action_shape)
    size, gain = spec.action_size, math.sqrt(2.0)
    blocks = BroNet(config.hidden, config.activation)
    net = torsos.Headed(blocks, 2 * size, "orthogonal", gain)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = torsos.Headed(blocks, size, "orthogonal", 0.01, use_bias=False)
    optimist = encoders.create(spec, encoding, net, key_optimist, action)
    blocks = BroNet(config.critic_hidden, config.activation)
    net = torsos.Headed(blocks, heads.of_critics(config).features, "orthogonal", gain)
    net = BlockEnsemble(config.num_critics, net)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        optimist=networks.trained(optimist, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        weights=optimism.create(config),
        spec=spec,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    pi = distributions.squashed_within(state.actor(observation), config)
    if explore:
        pi, _ = optimistic(state.optimist, state, observation, config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    head = heads.of_critics(config)
    return head.mean(state.critic(observation, action)).mean(axis=0)


def optimistic(
    optimist: networks.AnyNetwork, state: State, observation: Array, config: Config
) -> tuple[distributions.SquashedGaussian, Array]:
    """o(.|s), and its divergence [...] from pi(.|s) before its std shrinks."""
    pi: Any = distributions.squashed_within(state.actor(observation), config)
    mean, std = pi.distribution.loc, pi.distribution.scale_diag
    shift = optimist(observation, mean)
    kl = 0.5 * jnp.square(shift / std).sum(axis=-1)
    log_std = jnp.log(config.optimistic_std * std)
    return distributions.squashed_gaussian(mean + shift, log_std), kl


# [1, appendix B]
def critic_loss(
    critic: networks.Network,
    state: State,
    batch: Transition,
    key: Array,
    config: Config,
) -> Loss:
    """Error of the critics to the soft target."""
    head, alpha = heads.of_critics(config), jnp.exp(state.log_temperature.parameters)
    output = state.actor(batch.next_observation)
    pi = distributions.squashed_within(output, config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_outputs = state.target_critic(batch.next_observation, next_action)  # [C, B (, K)]
    next_outputs = heads.combined(next_outputs, head, config.target_value)
    discount = config.discount * (1.0 - batch.terminated)  # [B]
    cost = alpha * next_log_prob  # [B]
    target = head.target(next_outputs, batch.reward, discount, cost)
    outputs = critic(batch.observation, batch.action)  # [C, B (, K)]
    loss = head.loss(outputs, target).mean(axis=-1).sum()
    means = head.clipped_mass(next_outputs, batch.reward, discount, cost)
    means["critic/q"] = head.mean(outputs)
    means["critic/target"] = head.target_mean(target)
    return loss, {"critic/loss": loss} | jax.tree.map(jnp.mean, means)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' mean value."""
    head, alpha = heads.of_critics(config), jnp.exp(state.log_temperature.parameters)
    pi = distributions.squashed_within(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = head.mean(state.critic(batch.observation, action))  # [C, B]
    loss = (alpha * log_prob - q.mean(axis=0)).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def optimist_loss(
    optimist: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted divergence minus the critics' upper value."""
    pi, kl = optimistic(optimist, state, batch.observation, config)
    q = state.critic(batch.observation, pi.sample(seed=key))  # [C, B (, K)]
    if config.value_head != "quantile":
        q = heads.of_critics(config).mean(q)
    spread = 0.5 * (networks.largest(q) - networks.smallest(q))  # [B (, K)]
    weights = optimism.weights(state.weights.parameters)
    upper = q.mean(axis=0) + weights["optimism"] * spread
    loss = weights["kl_weight"] * kl.mean() - upper.mean()
    metrics = {"optimist/loss": loss, "optimist/kl": kl.mean()}
    return loss, metrics | {"optimist/spread": spread.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics, targets, both actors, and the three weights."""
    key_critic, key_actor, key_optimist = jax.random.split(key, 3)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    inputs = (state, batch, key_critic, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, *inputs)
    rate = config.target_rate
    target_critic = networks.polyak(critic, state.target_critic, rate)
    state = state.replace(critic=critic, target_critic=target_critic)

    optimiser = networks.optimiser(config.actor_lr, step, config)
    inputs = (state, batch, key_actor, config)
    actor, more = state.actor.step(optimiser, actor_loss, *inputs)
    metrics |= more
    state = state.replace(actor=actor)
    inputs = (state, batch, key_optimist, config)
    optimist, more = state.optimist.step(optimiser, optimist_loss, *inputs)
    metrics |= more

    size = batch.action.shape[-1]
    pace = TemperatureSettings.of(config, temperature_momentum=optimism.MOMENTUM)
    entropy, kl = metrics["actor/entropy"], metrics["optimist/kl"]
    inputs = (state.log_temperature, entropy, size, pace)
    log_temperature, more = temperatures.step(*inputs)
    weights, others = optimism.step(state.weights, kl, size, config)
    state = state.replace(optimist=optimist, weights=weights, log_temperature=log_temperature)
    state = resets.renewed(state, init, key, step, config)
    return state, metrics | more | others


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
