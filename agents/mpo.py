"""MPO [off-policy]: policies fitted to samples weighted by their value.

gamma discount, n rewards in R, N actions a_j
pi = N(mu, sigma) actor, pi' = N(mu', sigma') its target
Q_c critics, Q'_c targets, clip() to [-1, 1]
a_j ~ pi'(.|s),  s all states of a batch, next ones too
  y         = R + gamma^n (1 - terminated) V(s')
              V(s') = min_c mean_j Q'_c(s', clip(a_j))
  L(Q)      = sum_c mean (Q_c(s, a) - y)^2  [3]
  q_j       = min_c Q'_c(s, clip(a_j))
  o_j       = -|a_j - clip(a_j)|
  w_j       = softmax_j(q_j / eta) + softmax_j(o_j / eta_o)
              [1, eq. 5], [4]
  L(eta)    = eta (epsilon + mean log mean_j exp(q_j / eta))
              [2, eq. 4]; eta_o alike
  p_mu      = N(mu, sigma'),  p_sigma = N(mu', sigma)
  K_x       = mean KL(pi' || p_x),  x: mu or sigma
              for each dimension of actions
  L(pi)     = -mean sum_j w_j sum_x log p_x(a_j)
              + sum_x alpha_x K_x  [2, section 4.2.2]
  L(alpha)  = sum_x alpha_x (epsilon_x - K_x)
  Q', pi'  <- Q, pi  every `target_every` updates

eta and alpha are softplus of what Adam moves.
The policy that acts is pi', clipped.

Departs from the paper: constraints of each dimension, o,
expected values in place of Retrace and all settings are Acme's [3].

[1] Abdolmaleki et al., MPO, arXiv:1806.06920
[2] Abdolmaleki et al., its second form, arXiv:1812.02256
[3] Hoffman et al., Acme, arXiv:2006.00979, agents/jax/mpo
[4] Abdolmaleki et al., MO-MPO, arXiv:2005.07513

  rljax train mpo --env Hopper-v5
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Number, Transition
from rljax.networks import distributions, encoders, heads
from rljax.networks.blocks.batch_norm import joint
from rljax.networks.blocks.layer_norm_mlp import LayerNormEnsemble, LayerNormMLP
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import duals
from rljax.networks.optimisation.duals import Duals, Samples
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(
    networks.WithCritics,
    buffers.ReplaySettings,
    heads.WithCriticHead,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [3]
    critic_lr: NonNegative = 3e-4  # of Adam; [3]
    dual_lr: NonNegative = 1e-2  # of Adam, for eta and alpha; [3]
    batch_size: int = 256  # transitions per update; [3]
    # Experience
    replay_size: int = 1_000_000  # newest transitions; [3]
    warmup_steps: int = 1_000  # uniform actions, no update; [3]
    num_steps: int = 4  # per update; [3]: 64 samples of a step
    n_step: Count = 4  # n, rewards in R; [3]
    # Targets
    discount: Share = 0.99  # gamma; [3]
    target_rate: Share = 1.0  # 1 is a copy; [3], 0.005 in Stoix
    target_every: Count = 100  # updates between; [3], 1 in Stoix
    # Policy
    num_actions: Count = 20  # N, of pi' for each state; [3]
    epsilon: Positive = 0.1  # KL of the weights; [3]
    epsilon_mean: Positive = 0.01  # KL by the mean; [3]
    epsilon_std: Positive = 1e-6  # KL by the std; [3]
    epsilon_penalty: Positive | None = 1e-3  # of o; None: no o; [3]
    per_dimension: bool = True  # of K; False: their sum; [3]
    states: Literal["both", "next"] = "both"  # next: s' alone; [3]
    init_temperature: Positive = 10.0  # eta and eta_o at the start; [3]
    init_multiplier_mean: Positive = 10.0  # alpha_mu at the start; [3]
    init_multiplier_std: Positive = 1_000.0  # alpha_sigma at the start; [3]
    init_std: Positive = 0.5  # sigma at the start; [3]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of the actor, and of critics; [3]
    num_critics: Count = 1  # C; the smallest counts; [3]
    activation: networks.Activation = "elu"  # of hidden layers; [3]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean, and std before softplus
    critic: networks.Trained  # [O], [A] -> [C (, K)]
    duals: networks.Trained  # Duals
    target_actor: networks.Network
    target_critic: networks.Network


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("mpo", spec)
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    net = LayerNormMLP(config.hidden, 2 * spec.action_size, config.activation, "policy")
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    features = heads.of_critics(config).features
    output = "value" if features == 1 else "classes"
    size = (config.num_critics, config.critic_widths, features)
    net = LayerNormEnsemble(*size, config.activation, output)
    action = jnp.zeros(spec.action_shape)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    multipliers = (config.init_multiplier_mean, config.init_multiplier_std)
    temperatures = (config.init_temperature,) * len(bounds(config))
    number = spec.action_size if config.per_dimension else 1
    dual = Duals.create(temperatures, multipliers, number)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        duals=networks.trained(dual, config.dual_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    mean, std = policy(state.target_actor, observation, config)
    noise = jax.random.normal(key, mean.shape) if explore else 0.0
    return jnp.clip(mean + std * noise, -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return heads.of_critics(config).mean(state.critic(observation, action)).mean(axis=0)


def policy(actor: networks.AnyNetwork, observation: Array, config: Config) -> tuple[Array, Array]:
    """mu and sigma [..., A] for observations [..., O]."""
    mean, std = jnp.split(actor(observation), 2, axis=-1)
    return mean, distributions.positive_std(std, config.init_std)


def bounds(config: Config) -> tuple[Number, ...]:
    """epsilon [J] of q, and of o if there is one."""
    penalty = config.epsilon_penalty
    return (config.epsilon,) if penalty is None else (config.epsilon, penalty)


def critic_loss(
    critic: networks.Network, next_outputs: Array, batch: Transition, config: Config
) -> Loss:
    """Error of the critics to the target."""
    head = heads.of_critics(config)
    discount = batch.extras.get("discount", config.discount) * (1.0 - batch.terminated)
    target = head.target(next_outputs, batch.reward, discount)
    outputs = critic(batch.observation, batch.action)  # [C, B (, K)]
    loss = head.loss(outputs, target).mean(axis=-1).sum()
    means = {
        "critic/q": head.mean(outputs),
        "critic/target": head.target_mean(target),
    }
    means |= head.clipped_mass(next_outputs, batch.reward, discount)
    return loss, {"critic/loss": loss} | jax.tree.map(jnp.mean, means)


# [2, section 4.2.2]
def actor_loss(actor: networks.Network, state: State, samples: Samples, config: Config) -> Loss:
    """Weighted distance to the actions, and divergences."""
    mean, std = policy(actor, samples.observation, config)
    kl = samples.divergences(mean, std, config.per_dimension)  # [2, A]
    multipliers = duals.positive(state.duals.parameters).multipliers
    loss = samples.fit(mean, std) + (multipliers * kl).sum()
    kl_mean, kl_std = kl.mean(axis=1)
    return loss, {
        "actor/loss": loss,
        "actor/kl_mean": kl_mean,
        "actor/kl_std": kl_std,
        "actor/std": std.mean(),
    }


# [2, eq. 4]
def dual_loss(raw: Duals, state: State, samples: Samples, config: Config) -> Loss:
    """Losses of eta and alpha."""
    mean, std = policy(state.actor, samples.observation, config)
    kl = samples.divergences(mean, std, config.per_dimension)
    kl_bounds = jnp.stack([config.epsilon_mean, config.epsilon_std])
    value_bounds = jnp.stack(bounds(config))
    return duals.loss(raw, samples.values, kl, value_bounds, kl_bounds)


def improvement(
    state: State, batch: Transition, key: Array, config: Config
) -> tuple[Samples, Array]:
    """Samples, and outputs [(C,) B (, K)] for the next states."""
    head, observation = heads.of_critics(config), batch.next_observation
    if config.states == "both":
        observation = joint(batch.observation, observation)
    mean, std = policy(state.target_actor, observation, config)
    action = mean + std * jax.random.normal(key, (config.num_actions, *mean.shape))
    clipped = jnp.clip(action, -1.0, 1.0)
    outputs = state.target_critic(observation, clipped)  # [C, N, R (, K)]
    q = head.mean(outputs)
    smallest = config.target_value == "smallest"
    q = q.min(axis=0) if smallest else q.mean(axis=0)  # [N, R]
    distance = -jnp.linalg.norm(action - clipped, axis=-1)
    values = jnp.stack([q, distance][: len(bounds(config))])
    weight = duals.weights(state.duals.parameters, values)
    old = (mean, std)
    samples = Samples(observation, old, action, values, weight)
    next_outputs = outputs[:, :, -len(batch.reward) :]  # [C, N, B (, K)]
    expected = head.average(jnp.moveaxis(next_outputs, 1, 0))  # [C, B (, K)]
    return samples, heads.combined(expected, head, config.target_value)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics, actor, duals and, if due, targets."""
    samples, next_outputs = improvement(state, batch, key, config)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_outputs, batch, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, state, samples, config)
    optimiser = networks.optimiser(config.dual_lr, step, config)
    moved, dual_metrics = state.duals.step(optimiser, dual_loss, state, samples, config)
    online = (actor.parameters, critic.parameters)
    target = (state.target_actor, state.target_critic)
    target = networks.polyak_every(config.target_every, step, online, target, config.target_rate)
    state = State(actor, critic, duals.bounded(moved), *target)
    return state, metrics | actor_metrics | dual_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
