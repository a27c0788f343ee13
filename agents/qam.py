"""QAM [generative]: a flow that is tuned towards values by adjoint matching.

gamma discount, h chunk_length, K flow_steps, t_i = i / K
f flow of the data, f' its slow copy, v the policy's flow, Q_c critics
a the chunk of the data, x and z standard normal, R and w as in QC
eta inverse_temperature, e Gaussian of edits, alpha its temperature
  a'      = clip(flow(s', z)), K Euler steps along v
  y       = R + gamma^h (1 - terminated) lower_c Q'_c(s', a')
            lower: mean - pessimism std
  L(Q)    = mean_c mean w (Q_c(s, a) - y)^2
  L(f)    = mean w (f(s, a_u, u) - (a - x))^2  as in FQL
  g_K     = -eta grad mean_c Q'_c(s, clip(x_K))  x_i, g_i: points of v with
            noise and their adjoints along f', rljax/networks/generative.py
  L(v)    = mean sum_i |2 (v - f')(s, x_i, t_i) / sigma_i + sigma_i g_i|^2
            [1, eq. 9]; sigma_i of that noise
  Q', f'  <- (1 - rho) . + rho (those before the step)  rho: target_rate
Acts by a'. With form "fql", FQL's one-step policy learns from v and acts;
with "edit", a Gaussian adds edit_scale times its action, and acts:
  L(e)    = mean [alpha log e(b|s, a') - mean_c Q_c(s, clip(a' + scale b))]

Departs from the paper: nowhere. The file follows [2].

[1] Li and Levine, Q-learning with Adjoint Matching, arXiv:2601.14234
[2] github.com/ColinQiyangLi/qam

  rljax train qam --data ogbench/cube-triple-play-singletask-task2-v0
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative, policies
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share


@agent.config
class Config(
    networks.WithCritics,
    policies.WithEdits,
    generative.WithFlowNetworks,
    buffers.WithChunks,
    buffers.RowSettings,
):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam; [2]
    max_grad_norm: NonNegative | None = 1.0  # of all networks together; [2]
    batch_size: int = 256  # chunks; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    pessimism: NonNegative = 0.5  # std of the critics off their mean; [2]
    # Policy
    form: Literal["flow", "fql", "edit"] = "flow"  # who acts; [1]
    inverse_temperature: NonNegative = 0.3  # eta, to be tuned; [2]
    flow_steps: Count = 10  # K; [2]
    distillation_weight: NonNegative = 30.0  # of "fql", to be tuned; [1]
    # Networks
    num_critics: Count = 10  # C; [2]


class Networks(struct.PyTreeNode):
    """What the one optimiser moves."""

    critic: networks.Network  # [O], [h A] -> [C]
    base: networks.Network  # f: x, s, t -> velocity [h A]
    tuned: networks.Network  # v: x, s, t -> velocity [h A]
    one_step: networks.Network | None  # z, s -> [h A]
    edit: networks.Network | None  # a', s -> [2 h A]
    log_temperature: Array | None  # log alpha []


class State(struct.PyTreeNode):
    """What learning changes."""

    networks: networks.Trained  # Networks
    target_critic: networks.Network
    target_base: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks


def experience(config: Config) -> buffers.Dataset:
    """Uniform chunks; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("qam", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_critic, key_base, key_tuned, key_form = jax.random.split(key, 4)
    spec = policies.chunk_spec(spec, config.chunk_length)
    field = functools.partial(config.create_field, spec)
    size, form = spec.action_size, config.form
    learnt = Networks(
        critic=config.create_critics(spec, key_critic),
        base=field(key_base),
        tuned=field(key_tuned),
        one_step=field(key_form, size, times=0) if form == "fql" else None,
        edit=field(key_form, 2 * size, times=0) if form == "edit" else None,
        log_temperature=jnp.zeros(()) if form == "edit" else None,
    )
    targets = networks.copy(learnt.critic), networks.copy(learnt.base)
    return State(networks.trained(learnt, config.learning_rate, config), *targets, spec)


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


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """flow(s, z) [..., h A] along v."""
    tuned = state.networks.parameters.tuned
    return generative.euler(lambda x, t: tuned(x, observation, t), noise, config.flow_steps)


def policy(state: State, observation: Array, key: Array, config: Config) -> Array:
    """a' [..., h A], or that of the form's policy."""
    learnt, (key_noise, key_edit) = state.networks.parameters, jax.random.split(key)
    noise = generative.action_noise(state.spec, observation, key_noise)
    if config.form == "fql":
        return jnp.clip(learnt.one_step(noise, observation), -1.0, 1.0)
    action = decode(state, observation, noise, config)
    if config.form == "flow":
        return action
    return policies.edited(learnt.edit(action, observation), action, key_edit, config)[0]


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


# [1, eq. 9]
def matching_loss(
    tuned: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Array:
    """L(v) [], along points that v as it is reaches."""
    observation, (key_first, key_noise) = batch.observation, jax.random.split(key)
    noise = generative.action_noise(state.spec, observation, key_first)

    def gain(x: Array) -> Array:
        q = state.target_critic(observation, jnp.clip(x, -1.0, 1.0)).mean(axis=0)
        return config.inverse_temperature * q.sum()

    flows = (tuned, state.networks.parameters.tuned, state.target_base)
    new, old, base = (lambda x, t, v=v: v(x, observation, t) for v in flows)
    steps = config.flow_steps
    return generative.adjoint_matching_loss(new, old, base, gain, noise, key_noise, steps)


def one_step_loss(
    learnt: Networks, state: State, batch: Transition, key: Array, config: Config
) -> Array:
    """FQL's loss [] of a one-step policy beside v."""
    noise = generative.action_noise(state.spec, batch.observation, key)
    target = decode(state, batch.observation, noise, config)
    action: Any = learnt.one_step(noise, batch.observation)  # pyright: ignore[reportOptionalCall]
    q = state.networks.parameters.critic(batch.observation, jnp.clip(action, -1.0, 1.0))
    return config.distillation_weight * jnp.square(action - target).mean() - q.mean()


def edit_losses(
    learnt: Networks, state: State, batch: Transition, key: Array, config: Config
) -> dict[str, Any]:
    """L(e) [] and that of alpha []."""
    old, (key_noise, key_edit) = state.networks.parameters, jax.random.split(key)
    noise = generative.action_noise(state.spec, batch.observation, key_noise)
    action = decode(state, batch.observation, noise, config)
    output: Any = learnt.edit(action, batch.observation)  # pyright: ignore[reportOptionalCall]
    edited, log_prob = policies.edited(output, action, key_edit, config)
    q = old.critic(batch.observation, edited).mean(axis=0)
    target = -config.target_entropy_share * state.spec.action_size
    surplus = -jax.lax.stop_gradient(log_prob).mean() - target  # of the entropy
    return {
        "actor/edit": (jnp.exp(old.log_temperature) * log_prob - q).mean(),
        "temperature/loss": jnp.exp(learnt.log_temperature) * surplus,
    }


def loss(learnt: Networks, state: State, batch: Transition, key: Array, config: Config) -> Loss:
    """The sum of all losses."""
    key_critic, key_base, key_tuned, key_form = jax.random.split(key, 4)
    total, metrics = critic_loss(learnt.critic, state, batch, key_critic, config)
    base = lambda a, t: learnt.base(a, batch.observation, t)  # noqa: E731
    whole = buffers.whole_chunks(batch)
    losses = {
        "actor/base": generative.flow_matching_loss(base, batch.action, key_base, whole),
        "actor/matching": matching_loss(learnt.tuned, state, batch, key_tuned, config),
    }
    if config.form == "fql":
        losses["actor/one_step"] = one_step_loss(learnt, state, batch, key_form, config)
    elif config.form == "edit":
        losses |= edit_losses(learnt, state, batch, key_form, config)
    return total + sum(losses.values()), metrics | losses


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of all networks and targets."""
    batch = buffers.with_chunk_return(batch, config.discount)
    old = state.networks.parameters
    optimiser = networks.optimiser(config.learning_rate, step, config)
    learnt, metrics = state.networks.step(optimiser, loss, state, batch, key, config)
    target_critic = networks.polyak(old.critic, state.target_critic, config.target_rate)
    target_base = networks.polyak(old.base, state.target_base, config.target_rate)
    return State(learnt, target_critic, target_base, state.spec), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
