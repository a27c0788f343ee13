"""Sequence RL [off-policy]: SAC whose policy decides once and acts several times.

gamma discount, alpha temperature, Q_c critics, Q'_c targets, M model
pi actor, h the memory of its GRU, sg: no gradient
a' the first action of a sequence from s'
  a_k      ~ pi(.|h_k),  h_k = GRU(h_{k-1}, [s, sg a_{k-1}])  h_-1, a_-1 = 0
  s_{k+1}  = sg (s_k + M(s_k, a_k))  s_0 = s, k = 0 ... J - 1
  L(M)     = mean |s + M(s, a) - s'|^2 / O  O: numbers of an observation
  y        = r + gamma (1 - terminated) (min_c Q'_c(s', a') - alpha log pi(a'|s'))
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2  [2, eq. 5]
  L(pi)    = mean 1/J sum_k (alpha log pi(a_k|h_k) - min_c Q_c(s_k, a_k))
The temperature's loss is SAC's, of the mean entropy over k.

Departs from the paper: it is our reading of parts of it. The page
says how a class of its authors differs, which no program trains.

[1] Patel and Siegelmann, Overcoming Slow Decision Frequencies, arXiv:2410.08979
[2] Haarnoja et al., Soft Actor-Critic Algorithms, arXiv:1812.05905

  rljax train sequence_rl --env Pendulum-v1
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, memories, policies, torsos
from rljax.networks.optimisation import temperatures
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(buffers.ReplaySettings, buffers.PrioritySettings, temperatures.WithTemperature):
    """Hyperparameters."""

    acting = agent.Acting(sequence="sequence_length")
    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    model_lr: NonNegative = 3e-4  # of Adam; own choice
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [2]
    warmup_steps: int = 10_000  # uniform actions, no update; code of [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    # Policy
    sequence_length: Count = 4  # J, actions per decision; own choice
    target_entropy_share: Real = 1.0  # of -A, the target; RLPD, Brax: 0.5
    log_std_min: LogStd = -20.0  # lower clip of log std; Spinning Up
    log_std_max: LogStd = 2.0  # upper clip of log std; Spinning Up
    policy_delay: Count = 1  # updates per update of the actor; own choice
    # Networks
    hidden: Widths = (256, 256)  # of all networks, before the GRU
    memory_hidden: Widths = (64,)  # of the GRU's layers; own choice
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; code of [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O + A] and a memory -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    model: networks.Trained  # [O], [A] -> [O]: s' - s
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("sequence_rl", spec)
    agent.require_continuous("sequence_rl", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    torsos.check(spec, layers(config), config.hidden)


def layers(config: Config) -> TorsoSettings:
    """The actor's: a GRU after the hidden layers."""
    fixed = {"torso": "mlp", "compute": 1, "progressive": None, "memory": "gru"}
    return TorsoSettings.of(config, **fixed, layer_norm=False)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic, key_model = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    body = networks.MLP(config.hidden, None, *style)
    last = networks.MLP((), 2 * spec.action_size, *style)
    inputs = jnp.concatenate([observation, action])
    actor, _ = memories.create(body, layers(config), key_actor, inputs, last)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm)
    critic = networks.create(net, key_critic, observation, action)
    net = networks.MLP(config.hidden, len(observation), *style)
    model = networks.create(net, key_model, observation, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        model=networks.trained(model, config.model_lr, config),
        log_temperature=temperatures.create(config),
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """The sequence that is played."""
    return policies.first_chunk(spec, config.sequence_length)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """The next actions [..., A], of new sequences if used up."""
    actor, length = state.actor.parameters, config.sequence_length

    def decide() -> Array:  # [..., J A]
        actions, _ = sequence(actor, observation, key, config, length, explore)
        return jnp.concatenate(list(actions), axis=-1)

    action, memory = policies.play(decide, memory, length)
    return action, {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def sequence(
    actor: networks.Network,
    observation: Array,
    key: Array,
    config: Config,
    number: int,
    explore: bool = True,
) -> tuple[Array, Array]:
    """The first actions [K, ..., A], and log pi [K, ...]."""

    def emit(carry: tuple[Array, Any], key: Array) -> Any:
        action, memory = carry
        inputs = jnp.concatenate([observation, jax.lax.stop_gradient(action)], axis=-1)
        output, memory = memories.step(actor, inputs, memory)
        if explore:
            pi = distributions.squashed(output, config)
            action, log_prob = pi.sample_and_log_prob(seed=key)
        else:
            mean, _ = jnp.split(output, 2, axis=-1)
            action, log_prob = jnp.tanh(mean), mean[..., 0]  # no log-probability
        return (action, memory), (action, log_prob)

    leading = observation.shape[:-1]
    action = jnp.zeros((*leading, actor.module.head.features // 2))
    first = (action, memories.initial(layers(config), *leading))
    return jax.lax.scan(emit, first, jax.random.split(key, number))[1]


def imagined(model: networks.AnyNetwork, observation: Array, actions: Array) -> Array:
    """The states s_k [K, B, O] before actions [K, B, A]."""

    def move(state: Array, action: Array) -> tuple[Array, Array]:
        return state + model(state, action), state

    return jax.lax.stop_gradient(jax.lax.scan(move, observation, actions)[1])


def model_loss(model: networks.Network, batch: Transition) -> Loss:
    """Squared error of the next observation."""
    prediction = batch.observation + model(batch.observation, batch.action)
    loss = jnp.square(prediction - batch.next_observation).mean()
    return loss, {"model/loss": loss}


# [2, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the soft target."""
    actions, log_prob = sequence(state.actor.parameters, batch.next_observation, key, config, 1)
    next_q = networks.smallest(state.target_critic(batch.next_observation, actions[0]))  # [B]
    next_q -= jnp.exp(state.log_temperature.parameters) * log_prob[0]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = buffers.weighted(jnp.square(error), batch).mean(axis=-1).sum()
    metrics = {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | buffers.priorities(error, batch)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """SAC's loss along imagined sequences."""
    actions, log_prob = sequence(actor, batch.observation, key, config, config.sequence_length)
    states = imagined(state.model, batch.observation, actions)  # [J, B, O]
    q = networks.smallest(state.critic(states, actions))  # [J, B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of model, critics and, if due, the rest."""
    key_critic, key_actor = jax.random.split(key)
    model, model_metrics = state.model.step(
        networks.optimiser(config.model_lr, step, config), model_loss, batch
    )
    state = state.replace(model=model)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
        )
        state = state.replace(actor=actor, log_temperature=log_temperature)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    return state.replace(target_critic=target_critic), metrics | model_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
