"""RO2O [hybrid]: SAC with many critics, smooth around the data, that goes on online.

The minimum of many critics is low wherever they disagree, as in SAC-N. Around each observation of the data, critics
and policy are held to their values there, and critics are lowered where they disagree about the policy's actions. So
little changes where new experience begins, and nothing has to change in the losses.

gamma discount, alpha temperature, Q_c critics, Q'_c their targets, pi actor;  a' ~ pi(.|s'),  a~ ~ pi(.|s);
s^ = s + u of n u ~ U(-eps, eps)^O, new ones for each of the three terms;  a^ ~ pi(.|s^)
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - alpha log pi(a'|s') ]
  D_c      = Q_c(s^, a) - Q_c(s, a)
  S        = mean_s max_s^ mean_c [ (1 - tau) max(D_c, 0)^2 + tau min(D_c, 0)^2 ]             [1, section 4.1]
  U        = mean [ Q_c(s^, a^) - y^ ]^2,  y^ = Q_c(s^, a^) - kappa std_c Q_c(s^, a^) without gradient
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2 + eta_1 S + eta_2 U
  P        = mean_s max_s^ [ KL(pi(.|s) || pi(.|s^)) + KL(pi(.|s^) || pi(.|s)) ]
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ] + eta_3 P
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

kappa falls linearly from ood_penalty to ood_penalty_end during the run.

Departs from the paper: the actor sees the temperature from before its step, in the authors' code [2] from after it. As
there, all rows of a batch have the same u.

[1] Wen et al., Towards Robust Offline-to-Online Reinforcement Learning via Uncertainty and Smoothness, arXiv:2309.16973
[2] github.com/BattleWen/RO2O

  rljax train ro2o --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import dataclasses

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
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards; [2]
    normalise_observations: bool = True  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    # Smoothness
    num_perturbed: int = 20  # n, perturbed observations for each one of the batch, in each term; [2]
    value_weight: float = 1e-4  # eta_1, of S; [2]
    value_radius: float = 0.01  # eps of S, in the units in which networks see observations; [2], 0 on AntMaze
    value_asymmetry: float = 0.2  # tau: weight of values that fall, 1 - tau that of values that rise; [2]
    policy_weight: float = 1.0  # eta_3, of P; [2]
    policy_radius: float = 0.01  # eps of P; [2], 0.005 on AntMaze
    # Uncertainty
    ood_weight: float = 0.1  # eta_2, of U; [2], 0.3 or 0.5 on AntMaze
    ood_radius: float = 0.01  # eps of U; [2]
    ood_penalty: float = 1.0  # kappa at the start; [2]
    ood_penalty_end: float = 0.1  # and at the end; [2]
    ood_steps: float = 0.72  # share of the run (above 1: updates) over which kappa falls; [2], of 2.5M updates
    # Policy
    init_temperature: float = 1.0  # alpha at the start; [2]
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, [2]
    log_std_min: float = -5.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    # Networks
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers, actor and critics alike; [2]
    num_critics: int = 10  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    initialisation: networks.Initialisation = "edac"  # of all layers; [2] with kernels and last layers as in EDAC


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    target_critic: networks.Network
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set; online, half of each batch is new experience."""
    online = buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
    )
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        reward_transform=config.reward_transform,
        online=online,
    )


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of updates."""
    return dataclasses.replace(config, ood_steps=agent.in_steps(config.ood_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("ro2o", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("ro2o", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_range(config, value_weight=(0, None), policy_weight=(0, None), ood_weight=(0, None))
    agent.require_range(config, value_radius=(0, None), policy_radius=(0, None), ood_radius=(0, None))
    agent.require_range(config, value_asymmetry=(0, 1), ood_penalty=(0, None), ood_penalty_end=(0, None))
    agent.require_above(config, ood_steps=0)
    agent.require_at_least(config, num_critics=2, num_perturbed=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    actor = networks.create(networks.MLP(config.hidden, 2 * spec.action_size, *style), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style)
    critic = networks.create(ensemble, key_critic, observation, action)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or the tanh of the mean when not exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    if not explore:
        return jnp.tanh(jnp.split(state.actor(observation), 2, axis=-1)[0]), {}
    return policy(state.actor, observation, config).sample(seed=key), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, log_std = jnp.split(actor(observation), 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))


def perturbed(key: Array, observation: Array, radius: Array, number: int) -> Array:
    """Observations [n, B, O] around those of a batch [B, O]: the same n steps from each."""
    steps = jax.random.uniform(key, (number, 1, observation.shape[-1]), minval=-1.0, maxval=1.0)
    return observation + radius * steps


# [1, section 4.1]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the soft target, summed over critics, and the terms around observations."""
    keys = jax.random.split(key, 4)
    next_action, next_log_prob = policy(state.actor, batch.next_observation, config).sample_and_log_prob(seed=keys[0])
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * (next_q.min(axis=0) - jnp.exp(state.log_temperature) * next_log_prob)
    q = critic(batch.observation, batch.action)  # [C, B]
    error = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()

    near = perturbed(keys[1], batch.observation, config.value_radius, config.num_perturbed)  # [n, B, O]
    change = critic(near, jnp.broadcast_to(batch.action, (*near.shape[:2], batch.action.shape[-1]))) - q[:, None]
    weight = jnp.where(change > 0.0, 1.0 - config.value_asymmetry, config.value_asymmetry)
    smoothness = networks.largest((weight * jnp.square(change)).mean(axis=0)).mean()

    near = perturbed(keys[2], batch.observation, config.ood_radius, config.num_perturbed)
    near_q = critic(near, policy(state.actor, near, config).sample(seed=keys[3]))  # [C, n, B]
    deviation = near_q.std(axis=0, ddof=1)
    lower = jax.lax.stop_gradient(near_q - ood_penalty(step, config) * deviation)
    uncertainty = jnp.square(near_q - lower).mean()

    loss = error + config.value_weight * smoothness + config.ood_weight * uncertainty
    metrics = {"critic/loss": loss, "critic/error": error, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | {"critic/smoothness": smoothness, "critic/deviation": deviation.mean()}


def ood_penalty(step: Array, config: Config) -> Array:
    """kappa [] after `step` updates."""
    passed = jnp.minimum(step / config.ood_steps, 1.0)
    return config.ood_penalty + (config.ood_penalty_end - config.ood_penalty) * passed


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value, and the policy's change nearby."""
    key_action, key_near = jax.random.split(key)
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key_action)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    near = perturbed(key_near, batch.observation, config.policy_radius, config.num_perturbed)
    smoothness = networks.largest(divergence(actor(batch.observation), actor(near), config)).mean()
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean() + config.policy_weight * smoothness
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean(), "actor/smoothness": smoothness}


def divergence(output: Array, other: Array, config: Config) -> Array:
    """KL of two policies in both directions, summed, [...] of their outputs [..., 2 A]; tanh does not change it."""
    (mean, log_std), (other_mean, other_log_std) = (jnp.split(x, 2, axis=-1) for x in (output, other))
    log_std, other_log_std = (jnp.clip(x, config.log_std_min, config.log_std_max) for x in (log_std, other_log_std))
    ratio, gap = jnp.exp(2.0 * (log_std - other_log_std)), jnp.square(mean - other_mean)
    spread = gap * (jnp.exp(-2.0 * log_std) + jnp.exp(-2.0 * other_log_std))
    return 0.5 * (ratio + 1.0 / ratio + spread - 2.0).sum(axis=-1)


def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha."""
    target_entropy = -batch.action.shape[-1] if config.target_entropy is None else config.target_entropy
    loss = log_temperature * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the actor, the temperature, the critics and the targets."""
    key_critic, key_actor = jax.random.split(key)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    new = state.replace(actor=optax.apply_updates(state.actor, changes), actor_optimiser=actor_optimiser)
    gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(
        state.log_temperature, actor_metrics["actor/entropy"], batch, config
    )
    changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
    log_temperature = optax.apply_updates(state.log_temperature, changes)
    new = new.replace(log_temperature=log_temperature, temperature_optimiser=temperature_optimiser)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, new, batch, key_critic, step, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    new = new.replace(critic=critic, critic_optimiser=critic_optimiser, target_critic=target_critic)
    return new, metrics | actor_metrics | temperature_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
