"""H2O: SAC from real data and a simulator that is wrong; dynamics-aware hybrid offline-and-online learning.

Half of each batch is data of the real system, half is new experience of an imperfect simulator. Two discriminators
tell where a transition is from: from its state and action, and from its successor as well. Their difference says how
much less likely a successor is in the simulator than in reality. Simulated rows count by that, and values are pushed
down where the simulator is wrong.

R real rows, S simulated rows, gamma discount, alpha temperature, Q_c critics, Q'_c their targets, pi actor
  D(s, a), D(s, a, s')  logits [2] of real and simulated, each 2 tanh(MLP), learnt on inputs with added noise [2]
  L(D)     = - mean_R log p_0 - mean_S log p_1,  for p = softmax D(s, a) and p = softmax(D(s, a) + D(s, a, s'))
  g(s')    = D_1(s, a, s') - D_0(s, a, s')        log of simulated over real dynamics: D(s, a) cancels
  w        = clip(exp -g(s'), ratio_min, ratio_max)                       importance of a simulated row [1]
  u        = clip(mean_k g(s' + std_R(s) e_k), 0, gap_max),  e_k ~ N(0, 1);   omega = u / sum_S u       [1, 2]
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a'),  a' ~ pi(.|s')
  G_c      = log sum_S omega exp Q_c(s, a) - mean_R Q_c(s, a)                                           [1]
  L(Q)     = sum_c [ mean_R (Q_c - y)^2 + mean_S w (Q_c - y)^2 + penalty_weight G_c ]                   [1]
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ],  a~ ~ pi(.|s)                    of all rows, as in SAC
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]

Departs from the paper: successors are perturbed by the real states' std, as in the authors' code; the paper takes
them from a learned model. Discriminators learn from the batch of the critics, and not from one of their own. u is at
least 1e-30, so that omega exists where no simulated row is suspect.

[1] Niu et al., When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online RL, arXiv:2206.13464
[2] github.com/t6-thu/H2O

  rljax train h2o --env 'varied/HalfCheetah-v5?{"gravity": 2}' --eval-env HalfCheetah-v5 --data real.hdf5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [2]
    discriminator_lr: float = 3e-4  # Adam learning rate of the discriminators; [2]
    batch_size: int = 256  # transitions per update, half of them real; [2]
    # Experience
    replay_size: int = 1_000_000  # simulated transitions kept; the oldest are overwritten; 10 times the data in [2]
    warmup_steps: int = 1_000  # environment steps with uniform actions and no update; its policy acts in [2]
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Dynamics
    discriminator_noise: float = 0.1  # std of the noise on what discriminators learn from; [2]
    ratio_min: float = 1e-5  # lower clip of w; [2]
    ratio_max: float = 1.0  # upper clip of w; [2]
    num_successors: int = 10  # perturbed successors k per row; [2]
    gap_max: float = 10.0  # upper clip of u; [2]
    penalty_weight: float = 0.01  # of G; [2]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    # Policy
    init_temperature: float = 1.0  # alpha at the start; [2]
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, [2]
    log_std_min: float = -20.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    log_std_offset: float = -1.0  # added to the network's log std; [2], which learns it
    # Networks
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, of all networks alike; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [2], but for small last layers
    normalise_observations: bool = False  # running mean and std of the simulator's observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    target_critic: networks.Network
    pair_discriminator: networks.Network  # [O + A] -> [2]
    successor_discriminator: networks.Network  # [2 O + A] -> [2]
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    discriminator_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Replay:
    """Batches of the simulator's experience, half from the data set, which say what is from where."""
    return buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        columns=(buffers.Source(),),
        beside_data=True,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("h2o", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("h2o", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), discriminator_lr=(0, None), init_temperature=(1e-8, None))
    agent.require_range(config, discriminator_noise=(0, None), ratio_min=(0, None), ratio_max=(0, None))
    agent.require_range(config, gap_max=(0, None), penalty_weight=(0, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30), log_std_offset=(None, None))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_order(config, "ratio_min", "ratio_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_at_least(config, num_critics=1, num_successors=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_pair, key_successor = jax.random.split(key, 4)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    actor = networks.create(networks.MLP(config.hidden, 2 * spec.action_size, *style), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(ensemble, key_critic, observation, action)
    tells, pair = networks.MLP(config.hidden, 2, *style), jnp.concatenate([observation, action])
    pair_discriminator = networks.create(tells, key_pair, pair)
    successor_discriminator = networks.create(tells, key_successor, jnp.concatenate([pair, observation]))
    discriminators = (pair_discriminator, successor_discriminator)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        pair_discriminator=pair_discriminator,
        successor_discriminator=successor_discriminator,
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        discriminator_optimiser=optax.adam(config.discriminator_lr).init(discriminators),
        statistics=normalise.create(spec.observation_shape),
    )


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count observations [E, O] into the input statistics; `first` [E] marks the starts of episodes."""
    del first
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.update(state.statistics, observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or the tanh of the mean when not exploring."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    if not explore:
        return jnp.tanh(jnp.split(state.actor(observation), 2, axis=-1)[0]), {}
    return policy(state.actor, observation, config).sample(seed=key), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, raw = jnp.split(actor(observation), 2, axis=-1)
    log_std = jnp.clip(raw + config.log_std_offset, config.log_std_min, config.log_std_max)
    return distributions.squashed_gaussian(mean, log_std)


def mean_of(x: Array, rows: Array) -> Array:
    """The mean [...] of x [..., B] over the `rows` [B] that are True; 0 where none is."""
    return jnp.where(rows, x, 0.0).sum(axis=-1) / jnp.maximum(rows.sum(), 1)


def logits(discriminator: networks.Network, *inputs: Array) -> Array:
    """Logits [..., 2] of real and simulated, in [-2, 2], for parts [..., N] of a transition."""
    return 2.0 * jnp.tanh(discriminator(jnp.concatenate(inputs, axis=-1)))


def dynamics_gap(discriminator: networks.Network, batch: Transition, next_observation: Array) -> Array:
    """g [..., B]: the log of simulated over real probability of successors [..., B, O] of the batch's rows."""
    shape = next_observation.shape[:-1]
    pair = (jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (batch.observation, batch.action))
    found = logits(discriminator, *pair, next_observation)
    return found[..., 1] - found[..., 0]


# [2], Sim2realSAC.train_discriminator
def discriminator_loss(
    discriminators: tuple[networks.Network, networks.Network], batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Cross-entropy of both discriminators, on noisy inputs, the mean over real rows plus that over simulated ones."""
    parts = (batch.observation, batch.action, batch.next_observation)
    noisy = [
        x + config.discriminator_noise * jax.random.normal(k, x.shape)
        for x, k in zip(parts, jax.random.split(key, 3), strict=True)
    ]
    of_pair = logits(discriminators[0], *noisy[:2])
    of_successor = of_pair + logits(discriminators[1], *noisy)
    real, losses = batch.extras["offline"], []
    for found in (of_pair, of_successor):
        log_prob = jax.nn.log_softmax(found)
        losses.append(-mean_of(log_prob[:, 0], real) - mean_of(log_prob[:, 1], ~real))
    return losses[0] + losses[1], {"discriminator/pair": losses[0], "discriminator/successor": losses[1]}


# [2], Sim2realSAC.train
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error to the target, weighted in simulated rows, plus the penalty, summed over critics."""
    key_action, key_successor = jax.random.split(key)
    next_action = policy(state.actor, batch.next_observation, config).sample(seed=key_action)
    next_q = networks.smallest(state.target_critic(batch.next_observation, next_action))  # [B]
    target = batch.reward + config.discount * (1.0 - batch.terminated) * next_q

    real = batch.extras["offline"]
    center = mean_of(batch.observation.T, real)  # [O]
    deviation = jnp.sqrt(mean_of(jnp.square(batch.observation - center).T, real))  # [O]
    noise = jax.random.normal(key_successor, (config.num_successors, *batch.next_observation.shape))
    judge = state.successor_discriminator
    tried = dynamics_gap(judge, batch, batch.next_observation + deviation * noise).mean(axis=0)  # [B]
    weight = jnp.clip(jnp.exp(-dynamics_gap(judge, batch, batch.next_observation)), config.ratio_min, config.ratio_max)
    counted = ~real | real.all()  # without simulated rows, the gap is not used
    log_u = jnp.where(counted, jnp.log(jnp.clip(tried, 1e-30, config.gap_max)), -jnp.inf)
    log_omega = log_u - jax.nn.logsumexp(log_u)  # [B]

    q = critic(batch.observation, batch.action)  # [C, B]
    error = jnp.square(q - jax.lax.stop_gradient(target))
    squared = mean_of(error, real) + mean_of(jax.lax.stop_gradient(weight) * error, ~real)  # [C]
    pushed = jax.nn.logsumexp(q + jax.lax.stop_gradient(log_omega), axis=-1)
    gap = jnp.where(real.all(), 0.0, pushed) - mean_of(q, real)  # [C]
    loss = (squared + config.penalty_weight * gap).sum()
    metrics = {"critic/loss": loss, "critic/error": squared.sum(), "critic/gap": gap.mean(), "critic/q": q.mean()}
    dynamics = {"dynamics/weight": mean_of(weight, ~real), "dynamics/gap": mean_of(tried, ~real)}
    return loss, metrics | dynamics | {"critic/target": target.mean()}


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value."""
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha."""
    target_entropy = -batch.action.shape[-1] if config.target_entropy is None else config.target_entropy
    loss = log_temperature * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the discriminators, the critics, the targets, the actor and the temperature."""
    del step
    key_discriminator, key_critic, key_actor = jax.random.split(key, 3)
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    both = (state.pair_discriminator, state.successor_discriminator)
    gradient, metrics = jax.grad(discriminator_loss, has_aux=True)(both, batch, key_discriminator, config)
    changes, optimiser = optax.adam(config.discriminator_lr).update(gradient, state.discriminator_optimiser)
    judges: Any = optax.apply_updates(both, changes)
    found = {"pair_discriminator": judges[0], "successor_discriminator": judges[1]}
    state = state.replace(**found, discriminator_optimiser=optimiser)

    gradient, critic_metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    state = state.replace(critic=optax.apply_updates(state.critic, changes), critic_optimiser=critic_optimiser)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)
    inputs = (state.log_temperature, actor_metrics["actor/entropy"], batch, config)
    gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(*inputs)
    changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
    state = state.replace(
        actor=actor,
        actor_optimiser=actor_optimiser,
        log_temperature=optax.apply_updates(state.log_temperature, changes),
        temperature_optimiser=temperature_optimiser,
        target_critic=networks.polyak(state.critic, state.target_critic, config.target_rate),
    )
    return state, metrics | critic_metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
