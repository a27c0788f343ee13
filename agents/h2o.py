"""H2O [hybrid]: SAC from real data and a simulator that may be wrong.

Half of each batch is real. Simulated rows count by their likelihood.

R real rows, S simulated rows, gamma discount, pi actor
Q_c critics, Q'_c targets
D(s, a), D(s, a, s') logits of real and simulated, 2 tanh(MLP), from noisy inputs [2]
a' ~ pi(.|s'),  e_k ~ N(0, 1)
  L(D)  = -mean_R log p_0 - mean_S log p_1
          p: softmax of D(s, a), and of their sum
  g(s') = D_1(s, a, s') - D_0(s, a, s')  log of simulated over real dynamics
  w     = clip(exp -g(s'), ratio_min, ratio_max)  [1]
  u     = clip(mean_k g(s' + std_R(s) e_k), 0, gap_max)
  omega = u / sum_S u
  y     = r + gamma (1 - terminated) min_c Q'_c(s', a')
  G_c   = log sum_S omega exp Q_c(s, a) - mean_R Q_c(s, a)  [1]
  L(Q)  = sum_c (mean_R (Q_c - y)^2 + mean_S w (Q_c - y)^2 + penalty_weight G_c)
The losses of actor and temperature are SAC's, over all rows.

Departs from the paper: details are those of its code [2], but
discriminators learn from the critics' batch, and u is at least 1e-30.

[1] Niu et al., When to Trust Your Simulator, arXiv:2206.13464
[2] github.com/t6-thu/H2O

  rljax train h2o --env 'varied/Hopper-v5?{"gravity": 2}' --eval-env Hopper-v5 --data real.hdf5
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, noise
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.ReplaySettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    temperature_lr: NonNegative = 3e-4  # of Adam; [2]
    discriminator_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update, half real; [2]
    # Experience
    replay_size: int = 1_000_000  # newest simulated transitions
    warmup_steps: int = 1_000  # uniform, no update; not in [2]
    # Dynamics
    discriminator_noise: NonNegative = 0.1  # std on inputs; [2]
    ratio_min: NonNegative = 1e-5  # lower clip of w; [2]
    ratio_max: NonNegative = 1.0  # upper clip of w; [2]
    num_successors: Count = 10  # k, per row; [2]
    buffer_share: Share = 0.0909  # that is real, else zeros, for std_R; [2]
    gap_max: Positive = 10.0  # upper clip of u; [2]
    penalty_weight: NonNegative = 0.01  # weight of G; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    # Policy
    init_temperature: temperatures.Temperature = 1.0  # alpha at the start; [2]
    target_entropy: Real | None = None  # in nats; None: -A; [2]
    log_std_min: LogStd = -20.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    log_std_offset: Real = -1.0  # added to log std; [2] learns it
    # Networks
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; own choice
    initialisation: networks.Initialisation = "torch"  # [2], but for last layers


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    discriminators: networks.Trained  # "pair" and "successor"
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches half from a data set; rows with their source."""
    return buffers.Replay.of(config, columns=(buffers.Source(),), beside_data=True)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("h2o", spec)
    agent.require_continuous("h2o", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_order(config, "ratio_min", "ratio_max")


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
    key_actor, key_critic, key_pair, key_successor = jax.random.split(key, 4)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = networks.create(net, key_actor, observation)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, config.layer_norm)
    critic = networks.create(net, key_critic, observation, action)
    net = networks.MLP(config.hidden, 2, *style)
    discriminators = {
        "pair": networks.create(net, key_pair, observation, action),
        "successor": networks.create(net, key_successor, observation, action, observation),
    }
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        discriminators=networks.trained(discriminators, config.discriminator_lr, config),
        log_temperature=temperatures.create(config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    pi = policy(state.actor, observation, config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def policy(
    actor: networks.AnyNetwork, observation: Array, config: Config
) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    return distributions.squashed(actor(observation), config, config.log_std_offset)


def mean_of(x: Array, rows: Array) -> Array:
    """The mean [...] of x [..., B] over True `rows` [B]; else 0."""
    return jnp.where(rows, x, 0.0).sum(axis=-1) / jnp.maximum(rows.sum(), 1)


def logits(discriminator: networks.Network, *inputs: Array) -> Array:
    """Logits [..., 2] of real and simulated, in [-2, 2]."""
    return 2.0 * jnp.tanh(discriminator(*inputs))


# [2], Sim2realSAC.train_discriminator
def discriminator_loss(
    discriminators: dict[str, networks.Network], batch: Transition, key: Array, config: Config
) -> Loss:
    """Cross-entropy of both discriminators, on noisy inputs."""
    inputs = (batch.observation, batch.action, batch.next_observation)
    noisy = [
        x + config.discriminator_noise * jax.random.normal(key_x, x.shape)
        for x, key_x in zip(inputs, jax.random.split(key, 3), strict=True)
    ]
    pair = logits(discriminators["pair"], *noisy[:2])
    successor = pair + logits(discriminators["successor"], *noisy)
    real = batch.extras["offline"]
    losses = []
    for log_prob in (jax.nn.log_softmax(pair), jax.nn.log_softmax(successor)):
        losses.append(-mean_of(log_prob[:, 0], real) - mean_of(log_prob[:, 1], ~real))
    metrics = {"discriminator/pair": losses[0], "discriminator/successor": losses[1]}
    return losses[0] + losses[1], metrics


def dynamics_gap(state: State, batch: Transition, next_observation: Array) -> Array:
    """g [..., B] of successors [..., B, O] of the batch's rows."""
    discriminator = state.discriminators.parameters["successor"]
    output = logits(discriminator, batch.observation, batch.action, next_observation)
    return output[..., 1] - output[..., 0]


# [2], Sim2realSAC.train
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted squared error of the critics, plus penalty."""
    key_action, key_successor = jax.random.split(key)
    next_action = policy(state.actor, batch.next_observation, config).sample(seed=key_action)
    next_q = networks.smallest(state.target_critic(batch.next_observation, next_action))  # [B]
    target = batch.reward + config.discount * (1.0 - batch.terminated) * next_q
    real = batch.extras["offline"]
    center = mean_of(batch.observation.T, real)  # [O]
    variance = mean_of(jnp.square(batch.observation - center).T, real)  # [O]
    variance += (1.0 - config.buffer_share) * jnp.square(center)
    deviation = jnp.sqrt(config.buffer_share * variance) + 1e-3  # [O]
    noise = jax.random.normal(key_successor, (config.num_successors, *batch.observation.shape))
    successors = batch.next_observation + deviation * noise  # [K, B, O]
    gap = dynamics_gap(state, batch, successors).mean(axis=0)  # [B]
    weight = jnp.exp(-dynamics_gap(state, batch, batch.next_observation))
    weight = jnp.clip(weight, config.ratio_min, config.ratio_max)  # [B]
    log_u = jnp.log(jnp.clip(gap, 1e-30, config.gap_max))
    log_u = jnp.where(~real | real.all(), log_u, -jnp.inf)  # finite
    log_omega = log_u - jax.nn.logsumexp(log_u)  # [B]
    q = critic(batch.observation, batch.action)  # [C, B]
    error = jnp.square(q - jax.lax.stop_gradient(target))
    squared = mean_of(error, real) + mean_of(weight * error, ~real)  # [C]
    pushed = jax.nn.logsumexp(q + log_omega, axis=-1)
    penalty = jnp.where(real.all(), 0.0, pushed) - mean_of(q, real)  # [C]
    loss = (squared + config.penalty_weight * penalty).sum()
    metrics = {"critic/loss": loss, "critic/error": squared.sum(), "critic/q": q.mean()}
    metrics |= {"critic/gap": penalty.mean(), "critic/target": target.mean()}
    metrics |= {"dynamics/weight": mean_of(weight, ~real), "dynamics/gap": mean_of(gap, ~real)}
    return loss, metrics


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = policy(actor, batch.observation, config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the networks and alpha."""
    key_discriminator, key_critic, key_actor = jax.random.split(key, 3)
    optimiser = networks.optimiser(config.discriminator_lr, step, config)
    discriminators, metrics = state.discriminators.step(
        optimiser, discriminator_loss, batch, key_discriminator, config
    )
    state = state.replace(discriminators=discriminators)
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, critic_metrics = state.critic.step(
        optimiser, critic_loss, state, batch, key_critic, config
    )
    state = state.replace(critic=critic)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, state, batch, key_actor, config)
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature, actor_metrics["actor/entropy"], batch.action.shape[-1], config
    )
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = state.replace(actor=actor, log_temperature=log_temperature, target_critic=target_critic)
    return state, metrics | critic_metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
