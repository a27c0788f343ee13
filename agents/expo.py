"""EXPO [generative]: the best of a flow's actions and of edits of them.

gamma discount, h chunk_length, N num_candidates, C min_critics, v flow
e Gaussian of edits, alpha its temperature, Q_c critics, Q'_c targets
x and z standard normal, a the chunk of the data, R and w as in QC
  a_i      = flow(s, z_i), flow_steps Euler steps along v  i = 1 ... N
  e(a)     = clip(a + edit_scale b),  b ~ e(.|s, a)
  best(s)  = that of a_i and e(a_i) with the largest value: the smallest of
             C random Q'_c
  y        = R + gamma^h (1 - terminated) min of C new Q'_c(s', best(s'))
  L(Q)     = mean_c mean w (Q_c(s, a) - y)^2
  L(v)     = mean w (v(s, a_u, u) - (a - x))^2  as in FQL
  L(e)     = mean w (alpha log e(b|s, a) - mean_c Q_c(s, e(a)))
  L(alpha) = alpha (H(e) + target_entropy_share h A)
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  Q before its step, rho: target_rate

Acts by best(s). With edit_source "flow", L(e) has a = flow(s, z) and w = 1.
With pessimism, best has mean_c Q_c, and y mean - pessimism std of Q'_c.

Departs from the paper: v is a flow, not a diffusion, and acts itself, not
its average. Edited actions are clipped. Losses have networks from before
the step. H is that of b, not of edit_scale b.

[1] Dong et al., EXPO, arXiv:2507.07986
[2] github.com/pd-perry/EXPO
[3] github.com/ColinQiyangLi/qam, agents/fedit.py

  rljax train expo --data ogbench/cube-single-play-singletask-v0
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, NonNegative, Share


@agent.config
class Config(
    temperatures.WithTemperature,
    policies.WithEdits,
    networks.WithPessimism,
    generative.WithFlowNetworks,
    buffers.WithChunks,
    buffers.RowSettings,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, of the flow; 0 freezes it; [2]
    edit_lr: NonNegative = 3e-4  # of Adam, of the edits; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    temperature_loss: temperatures.Form = "alpha"  # what Adam moves; [2]
    batch_size: int = 256  # chunks; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    # Policy
    num_candidates: Count = 8  # N, of the flow; [2]; [3]: 1
    keep_unedited: bool = True  # candidates beside the edited; False in [3]
    edit_scale: NonNegative = 0.05  # of changes; [2]; to be tuned
    edit_source: Literal["data", "flow"] = "data"  # of a in L(e); [2]; "flow" in [3]
    policy_delay: Count = 1  # critics' updates to one of the rest; [2]: 20
    flow_steps: Count = 10  # Euler steps to an action; [3]
    # Networks
    num_critics: Count = 10  # all learn; [2]
    min_critics: int | None = 2  # C, random ones; None: all; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_u, s, u -> velocity [h A]
    edit: networks.Trained  # a, s -> [2 h A]: mean and log std
    critic: networks.Trained  # [O], [h A] -> [C]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks


def experience(config: Config) -> buffers.Dataset:
    """Uniform chunks; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("expo", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.pessimism is None:
        agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_flow, key_edit, key_critic = jax.random.split(key, 3)
    spec = policies.chunk_spec(spec, config.chunk_length)
    actor = config.create_field(spec, key_flow)
    edit = config.create_field(spec, key_edit, 2 * spec.action_size, times=0)
    critic = config.create_critics(spec, key_critic)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        edit=networks.trained(edit, config.edit_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        spec=spec,
    )


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
        lambda: best(state, observation, key, config), memory, config.chunk_length
    )


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    policies.refuse_chunks(config.chunk_length)
    return state.critic(observation, action).mean(axis=0)


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """flow(s, z) [..., h A]."""
    return generative.euler(lambda x, t: state.actor(x, observation, t), noise, config.flow_steps)


def best(state: State, observation: Array, key: Array, config: Config) -> Array:
    """best(s) [..., h A] for observations [..., O]."""
    key_noise, key_edit, key_critics = jax.random.split(key, 3)
    each = generative.repeated(state.spec, observation, config.num_candidates)
    noise = generative.action_noise(state.spec, each, key_noise)  # [..., N, h A]
    unedited = decode(state, each, noise, config)
    output = state.edit(unedited, each)
    actions, _ = policies.edited(output, unedited, key_edit, config)
    if config.keep_unedited:
        actions = jnp.concatenate([unedited, actions], axis=-2)  # [..., 2 N, h A]
    each = generative.repeated(state.spec, observation, actions.shape[-2])
    if config.pessimism is None:
        q = networks.smallest(targets(state, key_critics, config)(each, actions))
    else:
        q = state.critic(each, actions).mean(axis=0)
    return generative.candidate(actions, q.argmax(axis=-1))


def targets(state: State, key: Array, config: Config) -> networks.Network:
    """C random targets; with pessimism, all."""
    if config.pessimism is not None or config.min_critics is None:
        return state.target_critic
    return networks.random_members(state.target_critic, config.min_critics, key)


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the target, of whole chunks."""
    key_action, key_critics = jax.random.split(key)
    following = best(state, batch.next_observation, key_action, config)
    next_q = targets(state, key_critics, config)(batch.next_observation, following)
    next_q = networks.lower_bound(next_q, config.pessimism)  # [B]
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    return buffers.squared_loss(q, target, batch)


def actor_loss(actor: networks.Network, batch: Transition, key: Array) -> Loss:
    """Squared error of the velocity from noise to whole chunks."""
    whole = buffers.whole_chunks(batch)
    loss = generative.flow_matching_loss(
        lambda a, t: actor(a, batch.observation, t), batch.action, key, whole
    )
    return loss, {"actor/loss": loss}


def edit_loss(
    edit: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability of edits minus the critics' value."""
    key_noise, key_edit = jax.random.split(key)
    action, whole = batch.action, buffers.whole_chunks(batch)
    if config.edit_source == "flow":
        noise = generative.action_noise(state.spec, batch.observation, key_noise)
        action, whole = decode(state, batch.observation, noise, config), None
    output = edit(action, batch.observation)
    edited, log_prob = policies.edited(output, action, key_edit, config)
    q = state.critic(batch.observation, edited).mean(axis=0)  # [B]
    loss = jnp.exp(state.log_temperature.parameters) * log_prob - q
    loss = (loss if whole is None else whole[:, 0] * loss).mean()
    return loss, {"edit/loss": loss, "edit/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics, targets and, if due, the rest."""
    batch = buffers.with_chunk_return(batch, config.discount)
    key_critic, key_actor, key_edit = jax.random.split(key, 3)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    old = state.critic.parameters
    target_critic = networks.polyak(old, state.target_critic, config.target_rate)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        actor, actor_metrics = state.actor.step(optimiser, actor_loss, batch, key_actor)
        optimiser = networks.optimiser(config.edit_lr, step, config)
        edit, metrics = state.edit.step(optimiser, edit_loss, state, batch, key_edit, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["edit/entropy"], batch.action.shape[-1], config
        )
        state = state.replace(actor=actor, edit=edit, log_temperature=log_temperature)
        return state, actor_metrics | metrics | temperature_metrics

    state, policy_metrics = agent.every(config.policy_delay, step, improve, state)
    state = state.replace(critic=critic, target_critic=target_critic)
    return state, metrics | policy_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
