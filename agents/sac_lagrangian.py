"""SAC-Lagrangian [constrained]: SAC with a limit on the cost of an episode.

alpha temperature, Q_c critics, pi actor as in agents/sac.py [2]
k cost, d cost limit of an episode of T steps
C critic of costs, C' its target, gamma_k discount, nu multiplier
a' ~ pi(.|s'),  a~ ~ pi(.|s)
  L(C)     = mean (C(s, a) - k - gamma_k (1 - terminated) C'(s', a'))^2
  L(pi)    = mean (alpha log pi(a~|s) - min_c Q_c(s, a~) + nu C(s, a~)) / (1 + nu)
  d_k      = d / T / (1 - gamma_k)  the limit in units of C
  nu      <- max(0, nu + Adam's step along mean C(s, a~) - d_k)  or by PID [3]
  C'      <- (1 - rho) C' + rho C  rho: target_rate
The losses of Q and alpha are SAC's. The environment's signal "cost" is k.

Departs from the paper [1]: L(pi) is divided by 1 + nu [3].
nu moves, not a number whose soft plus is nu, and by the
policy's actions, not by those in the batch.
d_k is for C that goes on at time limits; [1]: (1 - gamma_k^T) d_k.

[1] Ray et al., Benchmarking Safe Exploration in Deep RL, 2019, and its code
[2] Haarnoja et al., Soft Actor-Critic Algorithms, arXiv:1812.05905
[3] Stooke et al., PID Lagrangian Methods, arXiv:2007.03964

  rljax train sac_lagrangian --env velocity/Hopper-v5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition, Weighted
from rljax.networks import distributions, encoders, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import multipliers, temperatures
from rljax.networks.optimisation.multipliers import MultiplierSettings
from rljax.requirements import Count, Decay, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(buffers.ReplaySettings, temperatures.WithTemperature, multipliers.WithMultiplier):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 10_000  # uniform actions, no update; Spinning Up
    shift: int = 0  # pixels, at most; 4 in DrQ-v2
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    reward_scale: Positive = 1.0  # factor on rewards; Brax: 5 to 30
    # Costs
    cost_limit: Real = 25.0  # d, sum per episode; [1]
    cost_discount: Decay = 0.99  # gamma_k of costs; [1]
    cost_lr: NonNegative = 3e-4  # of Adam; own choice
    init_multiplier: NonNegative = 0.001  # nu, or I (pid), at first; OmniSafe
    multiplier_rate: NonNegative = 1e-3  # of Adam (gradient); [1]
    gain_i: NonNegative = 1e-5  # K_I, of its sum (pid); own choice
    # Policy
    exploration: noise.Kind = "white"  # "held" in arXiv:2604.04539
    log_std_min: LogStd = -20.0  # lower clip of log std; Spinning Up
    log_std_max: LogStd = 2.0  # upper clip of log std; Spinning Up
    policy_delay: Count = 1  # updates per update of the actor
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; True in RLPD
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; code of [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    cost_critic: networks.Trained  # [O], [A] -> [1]
    target_cost_critic: networks.Network
    multiplier: multipliers.Multiplier  # nu
    log_temperature: networks.Trained  # []
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience, with its costs."""
    return buffers.Replay.of(config, signals=("cost",))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("sac_lagrangian", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    if spec.max_episode_steps is None:
        raise ValueError(
            "agent 'sac_lagrangian' spreads the cost limit over an episode's steps: "
            f"'{spec.name}' has no time limit. Use: rljax train ppo_lagrangian, "
            "or register the environment with max_episode_steps."
        )
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_cost = jax.random.split(key, 3)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    net = networks.Ensemble(1, config.critic_widths, *style, config.layer_norm)
    cost_critic = encoders.create(spec, encoding, net, key_cost, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        cost_critic=networks.Trained.create(
            cost_critic, networks.optimiser(config.cost_lr, 0, config)
        ),
        target_cost_critic=networks.copy(cost_critic),
        multiplier=multipliers.create(config.init_multiplier, MultiplierSettings.of(config, 0.0)),
        log_temperature=temperatures.create(config),
        spec=spec,
    )


def limit(spec: EnvSpec, config: Config) -> Array:
    """d_k []: the value of equal costs that never end."""
    each = config.cost_limit / (spec.max_episode_steps or 1)  # step's cost
    return jnp.asarray(each / (1.0 - config.cost_discount))


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts between steps of an episode."""
    return noise.initial(config.exploration, spec)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    pi = distributions.squashed(state.actor(observation), config)
    action, memory = noise.action(pi, key, explore, memory)
    return action, {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


# [2, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the soft target."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = networks.smallest(next_q)  # [B]
    next_q -= jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = jnp.square(error).mean(axis=-1).sum()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def cost_loss(
    cost_critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critic of costs."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action = pi.sample(seed=key)
    next_cost = state.target_cost_critic(batch.next_observation, next_action)[0]  # [B]
    bootstrap = config.cost_discount * (1.0 - batch.terminated)  # [B]
    target = batch.extras["cost"] + bootstrap * next_cost
    cost = cost_critic(batch.observation, batch.action)[0]  # [B]
    loss = jnp.square(cost - jax.lax.stop_gradient(target)).mean()
    return loss, {"cost/loss": loss, "cost/target": target.mean()}


# [1], [3]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """SAC's loss plus the weighted cost, over 1 + nu."""
    pi = distributions.squashed(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    cost = state.cost_critic(batch.observation, action)[0]  # [B]
    weight = state.multiplier.value  # []
    loss = jnp.exp(state.log_temperature.parameters) * log_prob - q + weight * cost
    loss = loss.mean() / (1.0 + weight)
    metrics = {"actor/loss": loss, "actor/entropy": -log_prob.mean()}
    return loss, metrics | {"cost/value": cost.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the rest."""
    key_critic, key_actor, key_cost = jax.random.split(key, 3)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    optimiser = networks.optimiser(config.cost_lr, step, config)
    cost_critic, costs = state.cost_critic.step(
        optimiser, cost_loss, state, batch, key_cost, config
    )
    state = state.replace(critic=critic, cost_critic=cost_critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
        )
        cost = Weighted(metrics["cost/value"], jnp.ones(()))
        pace = MultiplierSettings.of(config, limit(state.spec, config))
        multiplier = multipliers.update(state.multiplier, cost, pace)
        state = state.replace(actor=actor, log_temperature=log_temperature, multiplier=multiplier)
        return state, metrics | temperature_metrics | {"cost/multiplier": multiplier.value}

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    rate = config.target_rate
    state = state.replace(
        target_critic=networks.polyak(critic, state.target_critic, rate),
        target_cost_critic=networks.polyak(cost_critic, state.target_cost_critic, rate),
    )
    return state, metrics | costs | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
