"""SAC-Lagrangian: SAC that keeps a cost per episode below a limit, by a multiplier that weighs the cost.

gamma discount, alpha temperature, Q_c critics, Q'_c their targets, pi actor;  a' ~ pi(.|s'),  a~ ~ pi(.|s)
k cost, d cost limit of an episode of T steps, C critic of costs with target C', gamma_k its discount, nu multiplier
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - alpha log pi(a'|s') ]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [2, eq. 5, without its 1/2]
  L(C)     = mean (C(s, a) - k - gamma_k (1 - terminated) C'(s', a'))^2
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) + nu C(s, a~) ] / (1 + nu)         [1], [3]
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]        [2, eq. 18, log alpha in place of alpha]
  d_k      = d / T (1 - gamma_k^T) / (1 - gamma_k)       the limit in units of C: equal costs at all steps [1]
  nu      <- max(0, nu + Adam's step along mean C(s, a~) - d_k)         [1], or by PID control [3, alg. 2]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c,  C' likewise                     rho target_rate

pi(.|s) is tanh of a diagonal Gaussian, in normalised units. The environment gives the cost as its signal "cost".

Departs from the paper [1]: the policy's loss is divided by 1 + nu, as in [3], and nu moves, not its soft plus.

[1] Ray et al., Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019, and openai/safety-starter-agents
[2] Haarnoja et al., Soft Actor-Critic Algorithms and Applications, arXiv:1812.05905
[3] Stooke et al., Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, arXiv:2007.03964

  rljax train sac_lagrangian --env velocity/Hopper-v5
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition, Weighted
from rljax.networks import distributions, encoders, multipliers, noise, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2, table 1]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2, table 1]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [2, table 1]
    batch_size: int = 256  # transitions per update; [2, table 1]
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; [2, table 1]
    warmup_steps: int = 10_000  # environment steps with uniform actions and no update; Spinning Up, SB3 zoo
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    shift: int = 0  # most pixels by which pictures of a batch are moved at random, 0 for none; 4 in arXiv:2107.09645
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2, table 1]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2, table 1]
    reward_scale: float = 1.0  # factor on rewards inside the target; Brax's presets use 5 to 30
    # Costs
    cost_limit: float = 25.0  # d, per episode, without discount; [1]
    cost_discount: float = 0.99  # gamma_k of costs, in [0, 1]; [1]
    cost_lr: float = 3e-4  # Adam learning rate of the critic of costs; own choice, as critic_lr
    multiplier: multipliers.Kind = "gradient"  # how nu moves; [1]: gradient, [3]: pid
    init_multiplier: float = 0.0  # nu at the start (gradient only); own choice
    multiplier_rate: float = 1e-3  # learning rate of Adam for nu (gradient only); [1]
    gain_p: float = 0.1  # K_P, of the excess (pid only); own choice
    gain_i: float = 1e-5  # K_I, of its sum over updates (pid only); own choice
    gain_d: float = 0.01  # K_D, of the growth of the cost (pid only); own choice
    # Policy
    init_temperature: float = 1.0  # alpha at the start; SB3 "auto", CleanRL
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, the paper's rule
    learn_temperature: bool = True  # False keeps alpha at init_temperature
    temperature_loss: Literal["log_alpha", "alpha"] = "log_alpha"  # factor of the entropy error; SB3 or CleanRL, Brax
    exploration: noise.Kind = "white"  # noise of exploring actions; "held" in arXiv:2604.04539, "pink" in ICLR 2023
    log_std_min: float = -20.0  # lower clip of log std; SB3, Spinning Up
    log_std_max: float = 2.0  # upper clip of log std; SB3, Spinning Up
    policy_delay: int = 1  # updates between actor and temperature updates; CleanRL: 2
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, actor and critics alike; [2, table 1]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2, table 1]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; RLPD, Playground
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; the authors' code, Dopamine
    normalise_observations: bool = False  # running mean and std of observations; Brax: True


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    target_critic: networks.Network
    cost_critic: networks.Network  # [O], [A] -> [1]
    target_cost_critic: networks.Network
    multiplier: multipliers.Multiplier  # nu
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    cost_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Uniform batches of new experience, with its costs."""
    return buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        shift=config.shift,
        signals=("cost",),
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_continuous("sac_lagrangian", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, cost_limit=(None, None), cost_discount=(0, 1), cost_lr=(0, None))
    gains = {"gain_p": (0, None), "gain_i": (0, None), "gain_d": (0, None)}
    agent.require_range(config, init_multiplier=(0, None), multiplier_rate=(0, None), **gains)
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), reward_scale=(None, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)
    if spec.max_episode_steps is None:
        raise ValueError(
            f"agent 'sac_lagrangian' spreads the cost limit over an episode's steps: '{spec.name}' has no time limit. "
            "Use: rljax train ppo_lagrangian, or register the environment with max_episode_steps."
        )
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_cost = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    head = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = networks.create(encoders.encoded(spec, encoding(config), head), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, observation, action)
    ensemble = networks.Ensemble(1, config.hidden, *style, config.layer_norm)
    cost_critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_cost, observation, action)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        cost_critic=cost_critic,
        target_cost_critic=networks.copy(cost_critic),
        multiplier=multipliers.create(config.init_multiplier, control(config, 0.0)),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        cost_optimiser=optax.adam(config.cost_lr).init(cost_critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.of_observations(spec),
        spec=spec,
    )


def limit(spec: EnvSpec, config: Config) -> Array:
    """d_k []: the discounted cost of an episode whose steps cost d together, and all the same."""
    steps, discount = spec.max_episode_steps or 1, jnp.minimum(config.cost_discount, 1.0 - 1e-6)
    return config.cost_limit / steps * (1.0 - discount**steps) / (1.0 - discount)


def control(config: Config, limit: Any) -> multipliers.MultiplierSettings:
    """How the multiplier moves."""
    gains = (config.gain_p, config.gain_i, config.gain_d)
    return multipliers.MultiplierSettings(config.multiplier, limit, config.multiplier_rate, gains)


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


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, log_std = jnp.split(actor(observation), 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))


# [2, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the soft target, summed over critics."""
    next_action, next_log_prob = policy(state.actor, batch.next_observation, config).sample_and_log_prob(seed=key)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = networks.smallest(next_q)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * (next_q - jnp.exp(state.log_temperature) * next_log_prob)
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def cost_loss(
    cost_critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of the critic of costs to the cost and the next state's, without entropy."""
    next_action = policy(state.actor, batch.next_observation, config).sample(seed=key)
    next_cost = state.target_cost_critic(batch.next_observation, next_action)[0]  # [B]
    target = batch.extras["cost"] + config.cost_discount * (1.0 - batch.terminated) * next_cost
    loss = jnp.square(cost_critic(batch.observation, batch.action)[0] - jax.lax.stop_gradient(target)).mean()
    return loss, {"cost/loss": loss, "cost/target": target.mean()}


# [1], [3]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value plus the weighted cost, over 1 + nu."""
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    cost, weight = state.cost_critic(batch.observation, action)[0], state.multiplier.value  # [B], []
    loss = (jnp.exp(state.log_temperature) * log_prob - q + weight * cost).mean() / (1.0 + weight)
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean(), "cost/value": cost.mean()}


# [2, eq. 18]
def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha (or alpha)."""
    target_entropy = -batch.action.shape[-1] if config.target_entropy is None else config.target_entropy
    factor = log_temperature if config.temperature_loss == "log_alpha" else jnp.exp(log_temperature)
    loss = factor * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of all critics, the targets and, every `policy_delay`-th time, actor, temperature and multiplier."""
    key_critic, key_actor, key_cost = jax.random.split(key, 3)
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)
    gradient, cost_metrics = jax.grad(cost_loss, has_aux=True)(state.cost_critic, state, batch, key_cost, config)
    changes, cost_optimiser = optax.adam(config.cost_lr).update(gradient, state.cost_optimiser)
    cost_critic = optax.apply_updates(state.cost_critic, changes)
    state = state.replace(cost_critic=cost_critic, cost_optimiser=cost_optimiser)

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
        cost, settings = Weighted(metrics["cost/value"], jnp.ones(())), control(config, limit(state.spec, config))
        state = state.replace(multiplier=multipliers.update(state.multiplier, cost, settings))
        return state, metrics | temperature_metrics | {"cost/multiplier": state.multiplier.value}

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
    target_cost_critic = networks.polyak(state.cost_critic, state.target_cost_critic, config.target_rate)
    metrics = metrics | cost_metrics | actor_metrics
    return state.replace(target_critic=target_critic, target_cost_critic=target_cost_critic), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
