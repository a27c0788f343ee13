"""SAC: off-policy maximum-entropy actor-critic with twin critics and a learned temperature.

The policy maximises return plus entropy. The smaller of two critics makes the targets, which limits overestimation.

gamma discount, alpha temperature, Q_c critics, Q'_c their targets, pi actor;  a' ~ pi(.|s'),  a~ ~ pi(.|s)
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - alpha log pi(a'|s') ]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [1, eq. 5, without its 1/2]
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ]             [1, eq. 9]
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]        [1, eq. 18, log alpha in place of alpha]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

pi(.|s) is tanh of a diagonal Gaussian. Actions are in [-1, 1], and log-probabilities are in these normalised units.

Departs from the paper: the temperature's loss uses log alpha, as in Stable-Baselines3: its steps are smaller while
alpha is small. `temperature_loss = "alpha"` is the paper's form.

With `min_critics`, min_c in y is over so many random critics and the actor follows the mean of all, as in REDQ [2].
Without `entropy_backup`, the log pi in y is left out.
With `hindsight`, goals in batches are replaced by goals that were reached, as in HER [3].

[1] Haarnoja et al., Soft Actor-Critic Algorithms and Applications, arXiv:1812.05905
[2] Chen et al., Randomized Ensembled Double Q-Learning: Learning Fast Without a Model, arXiv:2101.05982
[3] Andrychowicz et al., Hindsight Experience Replay, arXiv:1707.01495

  rljax train sac --env Hopper-v5
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, noise, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [1, table 1]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [1, table 1]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [1, table 1]
    batch_size: int = 256  # transitions per update; [1, table 1]
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; [1, table 1]
    warmup_steps: int = 10_000  # environment steps with uniform actions and no update; Spinning Up, SB3 zoo
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    shift: int = 0  # most pixels by which pictures of a batch are moved at random, 0 for none; 4 in arXiv:2107.09645
    hindsight: float = 0.0  # share of goals replaced, half by later and half by others' states; up to 0.8 in [3]
    prioritised: float = 0.0  # exponent of errors by which transitions are drawn, 0: uniformly; 0.6 in arXiv:1511.05952
    correction: float = 0.4  # exponent of the weights that correct for this; arXiv:1511.05952
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1, table 1]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [1, table 1]
    reward_scale: float = 1.0  # factor on rewards inside the target; Brax's presets use 5 to 30
    entropy_backup: bool = True  # the next state's entropy is a part of y; False in SERL and WSRL
    # Policy
    init_temperature: float = 1.0  # alpha at the start; SB3 "auto", CleanRL
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, the paper's rule, times a share
    target_entropy_share: float = 1.0  # of -A, where target_entropy is None; 0.5 in RLPD and Brax
    learn_temperature: bool = True  # False keeps alpha at init_temperature
    temperature_loss: Literal["log_alpha", "alpha"] = "log_alpha"  # factor of the entropy error; SB3 or CleanRL, Brax
    exploration: noise.Kind = "white"  # noise of exploring actions; "held" in arXiv:2604.04539, "pink" in ICLR 2023
    log_std_min: float = -20.0  # lower clip of log std; SB3, Spinning Up
    log_std_max: float = 2.0  # upper clip of log std; SB3, Spinning Up
    policy_delay: int = 1  # updates between actor and temperature updates; CleanRL: 2
    # Networks
    encoder: encoders.Kind = "auto"  # of observations that are no vectors: rljax/networks/encoders.py
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, actor and critics alike; [1, table 1]
    num_critics: int = 2  # C; the smallest value counts; [1]
    min_critics: int | None = None  # random critics per update of which the smallest counts; None: all; 2 in REDQ, RLPD
    activation: networks.Activation = "relu"  # of the hidden layers; [1, table 1]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; RLPD, Playground
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; the authors' code, Dopamine
    normalise_observations: bool = False  # running mean and std of observations; Brax: True


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


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience: uniform, by priority, with goals replaced, or half from a data set."""
    drawn = ("discount", "hindsight", "prioritised", "correction")
    return buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        shift=config.shift,
        draw=buffers.chosen(**{name: getattr(config, name) for name in drawn}),
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_continuous("sac", spec, "sac_discrete")
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, hindsight=(0, 1), prioritised=(0, 1), correction=(0, 1))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), reward_scale=(None, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_range(config, target_entropy_share=(None, None))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)
    agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.Settings:
    """The settings of the encoders."""
    return encoders.Settings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    head = networks.MLP(config.hidden, 2 * spec.action_size, *style)
    actor = networks.create(encoders.encoded(spec, encoding(config), head), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, observation, action)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.of_observations(spec),
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


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, log_std = jnp.split(actor(observation), 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))


# [1, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the soft target, summed over critics."""
    next_action, next_log_prob = policy(state.actor, batch.next_observation, config).sample_and_log_prob(seed=key)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key)  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    if config.entropy_backup:
        next_q -= jnp.exp(state.log_temperature) * next_log_prob
    target = config.reward_scale * batch.reward + bootstrap * next_q
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = buffers.weighted(jnp.square(error), batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | buffers.priorities(error, batch)


# [1, eq. 9]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value, or their mean with `min_critics`."""
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key)
    q = state.critic(batch.observation, action)  # [C, B]
    q = networks.smallest(q) if config.min_critics is None else q.mean(axis=0)  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


# [1, eq. 18]
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
    """One update of the critics, the targets and, every `policy_delay`-th time, the actor and the temperature."""
    key_critic, key_actor = jax.random.split(key)
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

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
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
    return state.replace(target_critic=target_critic), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
