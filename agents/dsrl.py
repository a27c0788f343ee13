"""DSRL [generative]: a policy of the noise from which a flow makes actions.

gamma discount, h chunk_length, m noise_scale, v flow, v' its slow copy
Q_c critics of actions, W_c critics of noise, pi tanh-Gaussian of noise
a the chunk of the data, x and z standard normal, R and w as in QC
flow(s, z) flow_steps Euler steps along v' from z, or what `--base` makes
  n'      = m b', b' ~ pi(.|s')
  y       = R + gamma^h (1 - terminated) lower_c Q'_c(s', flow(s', n'))
            lower: mean - pessimism std
  L(Q)    = mean_c mean w (Q_c(s, a) - y)^2
  L(W)    = mean_c mean (W_c(s, z) - Q_c(s, flow(s, z)))^2
  L(pi)   = mean [alpha log pi(b|s) - mean_c W_c(s, m b)]  [1]
  L(alpha)= alpha (H(pi) + target_entropy_share h A)
  L(v)    = mean w (v(s, a_u, u) - (a - x))^2  as in FQL
  Q', v' <- (1 - rho) . + rho (those before the step)  rho: target_rate

Acts by flow(s, m b). With `decoder` "base" the flow is another run's, which
stays as it is, and there is no data set: [1], which has W learn ten times.

Departs from the paper: with "learnt", the flow goes on learning, as in [2].

[1] Wagenmaker et al., DSRL, arXiv:2506.15799
[2] github.com/ColinQiyangLi/qam, agents/dsrl.py

  rljax train dsrl --data ogbench/cube-double-play-singletask-task2-v0
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, Base, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, generative, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Real, Share


@agent.config
class Config(
    temperatures.WithTemperature,
    generative.WithFlowNetworks,
    buffers.WithChunks,
    buffers.DatasetSettings,
):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam, of all networks; [2]
    temperature_lr: NonNegative = 3e-4  # of Adam, for log alpha; [2]
    temperature_loss: temperatures.Form = "alpha"  # what moves alpha; [2]
    batch_size: int = 256  # chunks; [2]
    distillation_steps: Count = 1  # of W in an update; [2]; [1]: 10
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    pessimism: NonNegative = 0.5  # std of the critics off their mean; [2]
    target_entropy_share: Real = 0.5  # of -A, the target; [2]; [1]: 0
    # Policy
    decoder: Literal["learnt", "base"] = "learnt"  # whose flow: of the data, or of --base
    noise_scale: NonNegative = 1.0  # m: 0.4 to 1.4 in [2], 1.5 to 2.5 in [1]
    flow_steps: Count = 10  # Euler steps to a chunk; [2]
    log_std_min: LogStd = -20.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    # Networks
    num_critics: Count = 10  # C, of actions and of noise each; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 h A]
    critic: networks.Trained  # [O], [h A] -> [C]
    noise_critic: networks.Trained  # [O], [h A] -> [C]
    log_temperature: networks.Trained  # log alpha []
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks
    flow: Any = None  # v: x, s, t -> velocity [h A], if it is learnt
    target_flow: Any = None
    base: Base | None = None  # whose flow decodes, if none is learnt


def experience(config: Config) -> buffers.Dataset | buffers.Replay:
    """Uniform chunks, half new online; with a base, only new ones."""
    replay = buffers.Replay.of(config)
    if config.decoder == "base":
        return replay.with_policy()
    return buffers.Dataset.of(config, online=replay)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("dsrl", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    encoders.check(spec, EncoderSettings.of(config))


def check_base(base: Base | None, config: Config) -> None:
    """Raise `ValueError` for a base where the flow is learnt, and for one without a flow."""
    if config.decoder == "base":
        agent.require_decoder("dsrl", base, config.chunk_length)
    elif base is not None:
        raise ValueError("agent 'dsrl' takes --base with --config.decoder base alone.")


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    keys = jax.random.split(key, 4)
    spec = policies.chunk_spec(spec, config.chunk_length)
    critic = config.create_critics(spec, keys[0])
    noise_critic = config.create_critics(spec, keys[1])
    style = networks.style_of(config)
    net = networks.MLP(config.hidden, 2 * spec.action_size, **style)
    actor = encoders.create(spec, EncoderSettings.of(config), net, keys[2])
    rate = config.learning_rate
    state = State(
        actor=networks.trained(actor, rate, config),
        critic=networks.trained(critic, rate, config),
        noise_critic=networks.trained(noise_critic, rate, config),
        log_temperature=temperatures.create(config),
        target_critic=networks.copy(critic),
        spec=spec,
    )
    if config.decoder == "base":
        return state
    flow = config.create_field(spec, keys[3])
    return state.replace(
        flow=networks.trained(flow, rate, config),
        target_flow=networks.copy(flow),
    )


def use_base(state: State, base: Base | None, config: Config) -> State:
    """Decode by the base."""
    return state.replace(base=base)


def remember(spec: EnvSpec, config: Config) -> Any:
    """The chunk that is played."""
    return policies.first_chunk(spec, config.chunk_length)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    return policies.act_in_chunks(
        lambda: policy(state, observation, key, config), memory, config.chunk_length
    )


def policy(state: State, observation: Array, key: Array, config: Config) -> Array:
    """flow(s, m b) [..., h A]."""
    pi = distributions.squashed(state.actor(observation), config)
    return decode(state, observation, config.noise_scale * pi.sample(seed=key), config)


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """flow(s, z) [..., h A]."""
    if state.target_flow is None:
        return state.base.decode(observation, noise)  # pyright: ignore[reportOptionalMemberAccess]
    velocity = state.target_flow
    return generative.euler(lambda x, t: velocity(x, observation, t), noise, config.flow_steps)


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the target, of whole chunks."""
    following = policy(state, batch.next_observation, key, config)
    next_q = state.target_critic(batch.next_observation, following)  # [C, B]
    next_q = networks.lower_bound(next_q, config.pessimism)
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    return buffers.squared_loss(q, target, batch)


def noise_critic_loss(
    noise_critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the values of noise to those of its actions."""
    noise = generative.action_noise(state.spec, batch.observation, key)
    action = decode(state, batch.observation, noise, config)
    error = noise_critic(batch.observation, noise) - state.critic(batch.observation, action)
    loss = jnp.square(error).mean()
    return loss, {"critic/distillation": loss}


# [1]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Entropy and the values of noise."""
    pi = distributions.squashed(actor(batch.observation), config)
    noise, log_prob = pi.sample_and_log_prob(seed=key)
    q = state.noise_critic(batch.observation, config.noise_scale * noise).mean(axis=0)
    temperature = jnp.exp(state.log_temperature.parameters)
    loss = (temperature * jnp.asarray(log_prob) - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -jnp.asarray(log_prob).mean()}


# as FQL's
def flow_loss(flow: networks.Network, batch: Transition, key: Array) -> Loss:
    """Squared error of the velocity from noise to whole chunks."""
    velocity = lambda x, t: flow(x, batch.observation, t)  # noqa: E731
    whole = buffers.whole_chunks(batch)
    loss = generative.flow_matching_loss(velocity, batch.action, key, whole)
    return loss, {"actor/flow": loss}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of all networks, from before each other's step, and of targets."""
    batch = buffers.with_chunk_return(batch, config.discount)
    keys = jax.random.split(key, 4)
    optimiser = networks.optimiser(config.learning_rate, step, config)
    about = (state, batch)
    critic, metrics = state.critic.step(optimiser, critic_loss, *about, keys[0], config)

    def distil(noise_critic: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        return noise_critic.step(optimiser, noise_critic_loss, *about, key, config)

    steps = jax.random.split(keys[1], config.distillation_steps)
    noise_critic, distilled = jax.lax.scan(distil, state.noise_critic, steps)
    actor, acted = state.actor.step(optimiser, actor_loss, *about, keys[2], config)
    entropy, size = acted["actor/entropy"], state.spec.action_size
    log_temperature, warmed = temperatures.step(state.log_temperature, entropy, size, config)
    metrics |= jax.tree.map(lambda x: x.mean(), distilled) | acted | warmed
    rate, old = config.target_rate, state
    state = state.replace(
        actor=actor,
        critic=critic,
        noise_critic=noise_critic,
        log_temperature=log_temperature,
        target_critic=networks.polyak(old.critic.parameters, old.target_critic, rate),
    )
    if old.flow is None:
        return state, metrics
    flow, imitated = old.flow.step(optimiser, flow_loss, batch, keys[3])
    target_flow = networks.polyak(old.flow.parameters, old.target_flow, rate)
    return state.replace(flow=flow, target_flow=target_flow), metrics | imitated


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
