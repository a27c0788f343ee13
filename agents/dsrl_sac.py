"""DSRL-SAC [hybrid]: SAC whose actions are the noise of another run's flow.

gamma discount, h chunk_length, m noise_scale, alpha temperature
flow(s, z) the chunk that the policy of `--base` makes of noise z
Q_c critics of noise, Q'_c targets, pi tanh-Gaussian of noise
k the steps played of a chunk, h or fewer, R the sum of gamma^i r_i over them
b the noise that was played, b' ~ pi(.|s_k), b~ ~ pi(.|s)
  y        = R + gamma^k (1 - terminated) (min_c Q'_c(s_k, b') - alpha log pi(b'|s_k))
  L(Q)     = mean_c mean (Q_c(s, b) - y)^2
  L(pi)    = mean (alpha log pi(b~|s) - min_c Q_c(s, b~))
  L(alpha) = mean (-log alpha (log pi(b~|s) + target_entropy))
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

Acts by flow(s, m b), whose chunk is played to its end or the episode's. The
target_entropy is -target_entropy_share h A.

Departs from the paper: rewards inside a chunk are discounted, too.

[1] Wagenmaker et al., DSRL, arXiv:2506.15799
[2] github.com/ajwagen/dsrl, with SAC of Stable-Baselines3

  rljax train dsrl_sac --env Hopper-v5 --base runs/flow
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, Base, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Real, Share, Widths


@agent.config
class Config(temperatures.WithTemperature, buffers.WithChunks, buffers.ReplaySettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # decisions per update; [2]
    # Experience
    warmup_steps: int = 8_000  # by the first policy, no update; [2]: 24,000
    # Targets
    discount: Share = 0.99  # gamma, of one step; [2]: of a chunk
    target_rate: Share = 0.005  # rho; [2]
    target_entropy_share: Real = 0.0  # of -h A, the target; [2]
    # Policy
    noise_scale: NonNegative = 1.5  # m; [2]: 1.5 to 2.5
    log_std_min: LogStd = -20.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (1024, 1024, 1024)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "tanh"  # of hidden layers; [2]
    layer_norm: bool = True  # of all networks, before activation; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 h A]: mean and log std
    critic: networks.Trained  # [O], [h A] -> [C]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks
    base: Base | None = None  # whose flow decodes


def experience(config: Config) -> buffers.Replay:
    """Batches of decisions, of the first policy in the warm-up."""
    draw = buffers.Decisions(length=config.chunk_length, discount=config.discount)
    return buffers.Replay.of(config, draw=draw, chunk_length=1).with_policy()


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("dsrl_sac", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    encoders.check(spec, EncoderSettings.of(config))


def check_base(base: Base | None, config: Config) -> None:
    """Raise `ValueError` for a base without a flow, and for none."""
    agent.require_decoder("dsrl_sac", base, config.chunk_length)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    spec, encoding = policies.chunk_spec(spec, config.chunk_length), EncoderSettings.of(config)
    style = networks.style_of(config) | {"layer_norm": config.layer_norm}
    net = networks.MLP(config.hidden, 2 * spec.action_size, **style)
    actor = encoders.create(spec, encoding, net, key_actor)
    net = networks.Ensemble(config.num_critics, config.critic_widths, **style)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        spec=spec,
    )


def use_base(state: State, base: Base | None, config: Config) -> State:
    """Decode by the base."""
    return state.replace(base=base)


def remember(spec: EnvSpec, config: Config) -> Any:
    """The chunk that is played, and its noise."""
    chunk = policies.first_chunk(spec, config.chunk_length)
    size = config.chunk_length * spec.action_size
    return None if chunk is None else chunk | {"noise": jnp.zeros(size)}


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O], and their chunks' noise [..., h A]."""
    length = config.chunk_length
    noise = distributions.squashed(state.actor(observation), config).sample(seed=key)
    if memory is not None:
        noise = agent.choose(memory["played"] == length, noise, memory["noise"])
    scaled = config.noise_scale * noise
    decide = lambda: decode(state, observation, scaled, config)  # noqa: E731
    action, after = policies.play(decide, memory, length)
    if after is None:
        played = jnp.zeros(noise.shape[:-1], jnp.int32)
        return action, {"noise": noise, buffers.PLAYED: played}, None
    extras = {"noise": noise, buffers.PLAYED: after["played"] - 1}
    return action, extras, after | {"noise": noise}


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """flow(s, z) [..., h A]; z itself without a base."""
    del config
    if state.base is None:
        return jnp.clip(noise, -1.0, 1.0)
    return state.base.decode(observation, noise)


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the soft target."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    noise, log_prob = pi.sample_and_log_prob(seed=key)
    next_q = networks.smallest(state.target_critic(batch.next_observation, noise))  # [B]
    next_q -= jnp.exp(state.log_temperature.parameters) * jnp.asarray(log_prob)
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.extras["noise"])  # [C, B]
    return buffers.squared_loss(q, target, batch)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the smallest value."""
    pi = distributions.squashed(actor(batch.observation), config)
    noise, log_prob = pi.sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, noise))  # [B]
    log_prob = jnp.asarray(log_prob)
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics, actor and temperature."""
    key_critic, key_actor = jax.random.split(key)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, acted = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
    entropy, size = acted["actor/entropy"], state.spec.action_size
    log_temperature, warmed = temperatures.step(state.log_temperature, entropy, size, config)
    state = state.replace(
        actor=actor,
        log_temperature=log_temperature,
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
    )
    return state, metrics | acted | warmed


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
