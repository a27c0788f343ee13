"""MOORL: SAC that learns from a data set and from new experience in turns, with meta-parameters that follow both.

Each epoch takes one of the two sources at random, begins with the parameters of the meta-policy, and makes some updates
of SAC on that source's rows alone. The meta-parameters then go a part of the way to where the epoch ended, as in
Reptile, so that they settle where both sources pull alike. The meta-policy acts.

K inner steps, epsilon meta rate, theta the actor's and the critics' parameters, Theta the meta-parameters
  source  ~ data set with probability offline_epochs, else new experience                  once per epoch
  theta   <- theta - rate grad L(theta; rows of the source)          K times, from theta = Theta; L as in agents/sac.py
  Theta   <- Theta + epsilon (theta - Theta),  theta <- Theta                              [1]: as in Reptile [2]

Departs from the paper: its authors have published no code, and we could not read its text. Summaries of it give SAC's
losses, one buffer per meta-epoch, and Reptile's step for actor and critics. All numbers are ours. So are these: each
of the K steps has a batch of its own, half of it from each source; targets, the temperature and Adam's moments go on
from epoch to epoch.

[1] MOORL: A Framework for Integrating Offline-Online Reinforcement Learning, arXiv:2506.09574
[2] Nichol et al., On First-Order Meta-Learning Algorithms, arXiv:1803.02999

  rljax train moorl --env Hopper-v5 --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import functools
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
    actor_lr: float = 3e-4  # Adam learning rate of the actor; SAC
    critic_lr: float = 3e-4  # Adam learning rate of the critics; SAC
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; SAC
    batch_size: int = 512  # transitions per update; the half from one source is used; 256 in SAC
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; SAC
    warmup_steps: int = 1_000  # environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    shift: int = 0  # most pixels by which pictures of a batch are moved at random, 0 for none; 4 in arXiv:2107.09645
    # Epochs
    inner_steps: int = 10  # K, updates of an epoch, all on one source; own choice
    meta_rate: float = 0.5  # epsilon, share of the way to an epoch's end that the meta-parameters go; own choice
    offline_epochs: float = 0.5  # probability that an epoch's source is the data set, in [0, 1]; [1]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; SAC
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; SAC
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
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, actor and critics alike; SAC
    num_critics: int = 2  # C; the smallest value counts; [1]
    min_critics: int | None = None  # random critics per update of which the smallest counts; None: all; 2 in REDQ, RLPD
    activation: networks.Activation = "relu"  # of the hidden layers; SAC
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; RLPD, Playground
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; the authors' code, Dopamine
    normalise_observations: bool = False  # running mean and std of observations; Brax: True


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    meta_actor: networks.Network  # which acts
    meta_critic: networks.Network
    target_critic: networks.Network
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    source: Array  # [] bool: whether this epoch learns from the data set


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience, half from a data set, which say what is from where."""
    return buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        shift=config.shift,
        columns=(buffers.Source(),),
        beside_data=True,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_continuous("moorl", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, meta_rate=(0, 1), offline_epochs=(0, 1))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), reward_scale=(None, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_range(config, target_entropy_share=(None, None))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1, inner_steps=1, batch_size=2)
    agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_source = jax.random.split(key, 3)
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
        meta_actor=networks.copy(actor),
        meta_critic=networks.copy(critic),
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.of_observations(spec),
        source=jax.random.bernoulli(key_source, config.offline_epochs),
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
        return jnp.tanh(jnp.split(state.meta_actor(observation), 2, axis=-1)[0]), {}, memory
    action, memory = noise.sample(policy(state.meta_actor, observation, config), key, memory)
    return action, {}, memory


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The meta-critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.meta_critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, log_std = jnp.split(actor(observation), 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))


def own_rows(batch: Transition, source: Array) -> Transition:
    """Half as many rows as the batch [B] has: those of one source, which is the data set where `source` is True.

    Rows come more than once where fewer than half are the source's.
    """
    mine = batch.extras["offline"] == source
    first = jnp.argsort(~mine, stable=True)  # its own rows, then the others
    rows = first[jnp.arange(len(mine) // 2) % jnp.maximum(mine.sum(), 1)]
    return buffers.rows_of(batch, rows)


# SAC's, arXiv:1812.05905, equation 5
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
    loss = jnp.square(error).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


# Equation 9 there
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value, or their mean with `min_critics`."""
    action, log_prob = policy(actor, batch.observation, config).sample_and_log_prob(seed=key)
    q = state.critic(batch.observation, action)  # [C, B]
    q = networks.smallest(q) if config.min_critics is None else q.mean(axis=0)  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


# Equation 18 there
def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha (or alpha)."""
    rule = -config.target_entropy_share * batch.action.shape[-1]
    target_entropy = rule if config.target_entropy is None else config.target_entropy
    factor = log_temperature if config.temperature_loss == "log_alpha" else jnp.exp(log_temperature)
    loss = factor * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


# [2, eq. 1]
def reptile(state: State, key: Array, config: Config) -> tuple[State, Metrics]:
    """End an epoch: the meta-parameters go towards where it ended, and the next one begins with them."""
    actor = networks.polyak(state.actor, state.meta_actor, config.meta_rate)
    critic = networks.polyak(state.critic, state.meta_critic, config.meta_rate)
    source = jax.random.bernoulli(key, config.offline_epochs)
    squares = jax.tree.map(lambda x, y: jnp.square(x - y).sum(), state.actor, state.meta_actor)
    metrics = {"meta/distance": jnp.sqrt(jax.tree.reduce(jnp.add, squares))}
    inner = {"actor": networks.copy(actor), "critic": networks.copy(critic)}
    return state.replace(meta_actor=actor, meta_critic=critic, source=source, **inner), metrics


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of SAC on the epoch's source; every `inner_steps`-th time the epoch ends."""
    key_critic, key_actor, key_source = jax.random.split(key, 3)
    metrics = {"meta/offline": state.source.mean()}
    batch = own_rows(batch, state.source)
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, critic_metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
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
    end = functools.partial(reptile, key=key_source, config=config)
    state, meta_metrics = agent.every(config.inner_steps, step, end, state)
    target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
    metrics = metrics | critic_metrics | actor_metrics | meta_metrics
    return state.replace(target_critic=target_critic), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
