"""DSAC-T: SAC with critics that learn the distribution of returns, with the three refinements of DSACv2.

Each critic is a Gaussian over soft returns. Its mean learns from an expected target, its std from a random target
clipped to a moving boundary. The moving variance scales the gradient, so that rewards can have any size.

gamma discount, alpha temperature, pi actor, pi' its target;  a' ~ pi'(.|s'),  a~ ~ pi(.|s)
Q_c, sigma_c mean and std of the critics, Q'_c, sigma'_c of their targets;  j = argmin_c Q'_c(s', a'),  z ~ N(0, 1)
  y        = r + gamma (1 - terminated) [ Q'_j(s', a') - alpha log pi'(a'|s') ]
  y_z      = y + gamma (1 - terminated) z sigma'_j(s', a')              z within +-3
  b_c     <- (1 - rho) b_c + rho mean sigma_c(s, a)                     moving std, before the losses
  Y_c      = Q_c(s, a) + clip(y_z - Q_c(s, a), -3 b_c, 3 b_c)
  L(Q_c)   = -(b_c^2 + epsilon) mean [ Q_c sg (y - Q_c) / (sigma_c^2 + epsilon)
                                       + sigma_c sg ((Y_c - Q_c)^2 - sigma_c^2) / (sigma_c^3 + epsilon) ]
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ]
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c,  pi' likewise                    rho target_rate; sg: no gradient

Departs from the paper: log-probabilities are in normalised units, with actions in [-1, 1]. `critic_loss = "huber"` is
the loss of the authors' code since July 2025, "v1" that of the first DSAC [2] (with `num_critics = 1`).

[1] Duan et al., Distributional Soft Actor-Critic with Three Refinements, arXiv:2310.05858
[2] Duan et al., Distributional Soft Actor-Critic: Off-Policy Reinforcement Learning for Addressing Value Estimation
    Errors, arXiv:2001.02811
[3] github.com/Jingliang-Duan/DSAC-v2

  rljax train dsact --env Hopper-v5
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, noise, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 1e-4  # Adam learning rate of the actor; [1, table 1]
    critic_lr: float = 1e-4  # Adam learning rate of the critics; [1, table 1]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [1, table 1]
    batch_size: int = 256  # transitions per update; [1, table 1]
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; [1, table 1]
    warmup_steps: int = 10_000  # environment steps with uniform actions and no update; [3], where the first policy acts
    num_envs: int = 1  # environments stepped side by side; [3] takes 20 samples per update
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    prioritised: float = 0.0  # exponent of errors by which transitions are drawn, 0: uniformly; 0.6 in arXiv:1511.05952
    correction: float = 0.4  # exponent of the weights that correct for this; arXiv:1511.05952
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1, table 1]
    target_rate: float = 0.005  # rho, share of the online networks in the targets per move; [1, table 1]
    reward_scale: float = 1.0  # factor on rewards inside the target; [3]
    # Distribution of returns
    critic_loss: Literal["paper", "huber", "v1"] = "paper"  # [1]; the authors' code since July 2025 [3]; first DSAC [2]
    std_rate: float = 0.005  # rho of the moving std b, per update, in [0, 1]; [3]
    std_epsilon: float = 0.1  # epsilon keeps the gradient finite as sigma vanishes; [1]
    clip_range: float = 3.0  # bound of the random target's error, in moving stds; [1]
    fixed_bound: float = 10.0  # bound of the random target's error in "v1", in units of return; [3] for Hopper
    huber_limit: float = 50.0  # error beyond which "huber" is linear, in units of return; [3]
    # Policy
    init_temperature: float = 2.718281828  # alpha at the start: log alpha is 1; [3]
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, the paper's rule
    target_entropy_share: float = 1.0  # of -A, where target_entropy is None; 0.5 in RLPD and Brax
    learn_temperature: bool = True  # False keeps alpha at init_temperature
    temperature_loss: Literal["log_alpha", "alpha"] = "log_alpha"  # factor of the entropy error; [3]
    exploration: noise.Kind = "white"  # noise of exploring actions; "held" in arXiv:2604.04539, "pink" in ICLR 2023
    log_std_min: float = -20.0  # lower clip of log std; [3]
    log_std_max: float = 0.5  # upper clip of log std; [3]
    policy_delay: int = 2  # updates between moves of the actor, the temperature and all targets; [1, table 1]
    # Networks
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers, actor and critics alike; [1, table 1]
    num_critics: int = 2  # C; the smallest mean counts; [1], 1 in [2]
    activation: networks.Activation = "gelu"  # of the hidden layers; [1, table 1]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; [3]
    normalise_observations: bool = False  # running mean and std of observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C, 2]: mean and std before softplus
    target_actor: networks.Network
    target_critic: networks.Network
    moving_std: Array  # [C], 0 until the first update
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience: uniform, by priority, or half from a data set."""
    drawn = ("discount", "prioritised", "correction")
    return buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        draw=buffers.chosen(**{name: getattr(config, name) for name in drawn}),
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("dsact", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("dsact", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), reward_scale=(None, None))
    agent.require_range(config, std_rate=(0, 1), std_epsilon=(0, None), clip_range=(0, None), fixed_bound=(0, None))
    agent.require_range(config, huber_limit=(0, None), log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_range(config, prioritised=(0, 1), correction=(0, 1))
    agent.require_range(config, target_entropy_share=(None, None))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the actor and the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    actor = networks.create(networks.MLP(config.hidden, 2 * spec.action_size, *style), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm, 2)
    critic = networks.create(ensemble, key_critic, observation, action)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        moving_std=jnp.zeros(config.num_critics),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.create(spec.observation_shape),
    )


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count observations [E, O] into the input statistics; `first` [E] marks the starts of episodes."""
    del first
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.update(state.statistics, observation))


def remember(spec: EnvSpec, config: Config) -> Any:
    """The noise of one environment where an episode begins, if it lasts."""
    return noise.initial(config.exploration, spec)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]: sampled, or the tanh of the mean when not exploring."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    if not explore:
        return jnp.tanh(jnp.split(state.actor(observation), 2, axis=-1)[0]), {}, memory
    action, memory = noise.sample(policy(state.actor, observation, config), key, memory)
    return action, {}, memory


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, log_std = jnp.split(actor(observation), 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))


def returns(critic: networks.Network, observation: Array, action: Array) -> tuple[Array, Array]:
    """Mean and std [C, B] of the soft return after each action."""
    mean, raw = jnp.moveaxis(critic(observation, action), -1, 0)
    return mean, jax.nn.softplus(raw)


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, tuple[Array, Metrics]]:
    """Loss with the gradient of each critic's likelihood, summed over critics, and the moving std [C]."""
    key_action, key_return = jax.random.split(key)
    next_policy = policy(state.target_actor, batch.next_observation, config)
    next_action, next_log_prob = next_policy.sample_and_log_prob(seed=key_action)
    next_q, next_std = returns(state.target_critic, batch.next_observation, next_action)  # [C, B]
    chosen = next_q.argmin(axis=0, keepdims=True)
    next_q, next_std = (jnp.take_along_axis(x, chosen, axis=0)[0] for x in (next_q, next_std))  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * (next_q - jnp.exp(state.log_temperature) * next_log_prob)
    noise = jnp.clip(jax.random.normal(key_return, next_std.shape), -3.0, 3.0)
    target, random_target = jax.lax.stop_gradient((target, target + bootstrap * noise * next_std))

    q, std = returns(critic, batch.observation, batch.action)  # [C, B]
    fixed_q, fixed_std = jax.lax.stop_gradient((q, std))
    first, seen = state.moving_std == 0.0, fixed_std.mean(axis=-1)  # [C]
    moving_std = jnp.where(first, seen, state.moving_std + config.std_rate * (seen - state.moving_std))
    scale, variance = jnp.square(moving_std)[:, None], jnp.square(fixed_std)
    bound = config.fixed_bound if config.critic_loss == "v1" else config.clip_range * moving_std[:, None]
    error = jnp.clip(random_target - fixed_q, -bound, bound)  # [C, B]
    if config.critic_loss == "huber":
        ratio = jnp.clip(scale / (variance + config.std_epsilon), 0.1, 10.0)
        slope = (variance - huber(error, config)) / (fixed_std + config.std_epsilon)
        loss = ratio * (huber(q - target, config) + slope * std)
    else:
        toward, factor = (random_target, 1.0) if config.critic_loss == "v1" else (target, scale + config.std_epsilon)
        slope = (toward - fixed_q) / (variance + config.std_epsilon)
        slope_std = (jnp.square(error) - variance) / (fixed_std**3 + config.std_epsilon)
        loss = -factor * (slope * q + slope_std * std)
    loss = buffers.weighted(loss, batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean(), "critic/std": std.mean()}
    return loss, (moving_std, metrics | buffers.priorities(q - target, batch))


def huber(error: Array, config: Config) -> Array:
    """error^2 / 2 up to `huber_limit`, linear beyond."""
    return optax.losses.huber_loss(error, delta=config.huber_limit)  # pyright: ignore[reportArgumentType]


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's mean."""
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key)
    q = networks.smallest(returns(state.critic, batch.observation, action)[0])  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha (or alpha)."""
    rule = -config.target_entropy_share * batch.action.shape[-1]
    target_entropy = rule if config.target_entropy is None else config.target_entropy
    factor = log_temperature if config.temperature_loss == "log_alpha" else jnp.exp(log_temperature)
    loss = factor * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `policy_delay`-th time, the actor, the temperature and all targets."""
    key_critic, key_actor = jax.random.split(key)
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, (moving_std, metrics) = jax.grad(critic_loss, has_aux=True)(
        state.critic, state, batch, key_critic, config
    )
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser, moving_std=moving_std)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
        changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
        actor = optax.apply_updates(state.actor, changes)
        gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(
            state.log_temperature, metrics["actor/entropy"], batch, config
        )
        changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
        log_temperature = optax.apply_updates(state.log_temperature, changes)
        state = state.replace(actor=actor, actor_optimiser=actor_optimiser)
        if config.learn_temperature:
            state = state.replace(log_temperature=log_temperature, temperature_optimiser=temperature_optimiser)
        target_actor = networks.polyak(state.actor, state.target_actor, config.target_rate)
        target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
        state = state.replace(target_actor=target_actor, target_critic=target_critic)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
