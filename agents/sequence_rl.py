"""Sequence RL: a recurrent policy that decides once and acts several times, with SAC's critics and temperature.

From one state the actor emits J actions, played without seeing what comes of them. A model imagines the states
between them, so that the critics judge every action at the environment's own rate. Acting needs no model.

gamma discount, alpha temperature, Q_c critics, Q'_c their targets, M model, pi actor, h the memory of its GRU;
a' the first action of a sequence from s';  h_-1 = 0, a_-1 = 0, s_0 = s;  sg no gradient, O numbers of an observation
  a_k      ~ pi(.|h_k),  h_k = GRU(h_{k-1}, [s, sg a_{k-1}])            k = 0 ... J - 1
  s_{k+1}  = sg (s_k + M(s_k, a_k))                                     imagined states
  L(M)     = mean |s + M(s, a) - s'|^2 / O                              over real transitions
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - alpha log pi(a'|s') ]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               [2, eq. 5], without its 1/2
  L(pi)    = mean 1/J sum_k [ alpha log pi(a_k|h_k) - min_c Q_c(s_k, a_k) ]
  L(alpha) = mean 1/J sum_k [ -log alpha (log pi(a_k|h_k) + target_entropy) ]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

Departs from the paper: its code is not published, and only this is surely from it: a GRU that emits a sequence from one
state, a model, and critics that judge every action at imagined states. The rest is our reading: what the GRU sees, how
gradients flow, that the model predicts differences and no ends, and that training plays J actions from one state, too.

[1] Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control, arXiv:2410.08979
[2] Haarnoja et al., Soft Actor-Critic Algorithms and Applications, arXiv:1812.05905

  rljax train sequence_rl --env Pendulum-v1
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, memories, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2, table 1]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2, table 1]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [2, table 1]
    model_lr: float = 3e-4  # Adam learning rate of the model; own choice
    batch_size: int = 256  # transitions per update; [2, table 1]
    # Experience
    replay_size: int = 1_000_000  # transitions kept; the oldest are overwritten; [2, table 1]
    warmup_steps: int = 10_000  # environment steps with uniform actions and no update; the authors' code of SAC
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    prioritised: float = 0.0  # exponent of errors by which transitions are drawn, 0: uniformly; 0.6 in arXiv:1511.05952
    correction: float = 0.4  # exponent of the weights that correct for this; arXiv:1511.05952
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2, table 1]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2, table 1]
    reward_scale: float = 1.0  # factor on rewards inside the target; own choice, 1 is the paper
    # Policy
    sequence_length: int = 4  # J, actions of a sequence, also between two decisions; own choice
    init_temperature: float = 1.0  # alpha at the start; SB3 "auto", CleanRL
    target_entropy: float | None = None  # in nats of one normalised action; None is -A, SAC's rule
    target_entropy_share: float = 1.0  # of -A, where target_entropy is None; 0.5 in RLPD and Brax
    learn_temperature: bool = True  # False keeps alpha at init_temperature
    temperature_loss: Literal["log_alpha", "alpha"] = "log_alpha"  # factor of the entropy error; SB3 or CleanRL, Brax
    log_std_min: float = -20.0  # lower clip of log std; SB3, Spinning Up
    log_std_max: float = 2.0  # upper clip of log std; SB3, Spinning Up
    policy_delay: int = 1  # updates between actor and temperature updates; own choice
    # Networks
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers: critics, model, and actor before the GRU
    memory_hidden: tuple[int, ...] = (64,)  # widths of the GRU's layers; own choice
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2, table 1]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; own choice
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; SAC's authors' code
    normalise_observations: bool = False  # running mean and std of observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O + A], the state and the action before, and a memory -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    target_critic: networks.Network
    model: networks.Network  # [O], [A] -> [O]: difference to the next observation
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    model_optimiser: optax.OptState
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
    agent.require_vectors("sequence_rl", spec)
    agent.require_widths(config, "hidden", "memory_hidden")
    agent.require_continuous("sequence_rl", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, prioritised=(0, 1), correction=(0, 1), model_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), reward_scale=(None, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_range(config, target_entropy_share=(None, None))
    agent.require_order(config, "log_std_min", "log_std_max")
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(None, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1, sequence_length=1)
    torsos.check(spec, layers(config), config.hidden)


def layers(config: Config) -> torsos.Settings:
    """The settings of the actor's layers: a GRU after the hidden ones."""
    style = (config.activation, config.initialisation)
    return torsos.Settings("mlp", 1, None, *style, memory="gru", memory_hidden=config.memory_hidden)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_model = jax.random.split(key, 3)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    body, seen = networks.MLP(config.hidden, None, *style), jnp.concatenate([observation, action])
    actor, _ = memories.create(body, layers(config), key_actor, seen, networks.MLP((), 2 * spec.action_size, *style))
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(ensemble, key_critic, observation, action)
    model = networks.create(networks.MLP(config.hidden, len(observation), *style), key_model, observation, action)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        model=model,
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        model_optimiser=optax.adam(config.model_lr).init(model),
        statistics=normalise.create(spec.observation_shape),
    )


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count observations [E, O] into the input statistics; `first` [E] marks the starts of episodes."""
    del first
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.update(state.statistics, observation))


def remember(spec: EnvSpec, config: Config) -> Any:
    """The sequence that one environment plays, and the number of its actions that were played: all, at first."""
    actions = jnp.zeros((config.sequence_length, *spec.action_shape))
    return {"actions": actions, "played": jnp.asarray(config.sequence_length, jnp.int32)}


def acting(config: Config) -> agent.Acting:
    """Evaluations may change the number of actions from one decision to the next."""
    return agent.Acting(sequence="sequence_length")


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A]: the next ones of sequences, and for observations [..., O] where these are used up, new ones.

    New ones are sampled, or the tanh of the means when not exploring. Without a memory all are new.
    """
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)

    def decide() -> Array:  # [..., J, A]
        return jnp.moveaxis(sequence(state.actor, observation, key, config, config.sequence_length, explore)[0], 0, -2)

    if memory is None:
        actions, played = decide(), jnp.zeros(observation.shape[:-1], jnp.int32)
    else:
        used_up = memory["played"] == config.sequence_length
        actions = jax.lax.cond(used_up.any(), decide, lambda: memory["actions"])
        actions = agent.choose(used_up, actions, memory["actions"])
        played = jnp.where(used_up, 0, memory["played"])
    action = jnp.take_along_axis(actions, played[..., None, None], axis=-2)[..., 0, :]
    return action, {}, {"actions": actions, "played": played + 1}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.normalise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def sequence(
    actor: networks.Network, observation: Array, key: Array, config: Config, number: int, explore: bool = True
) -> tuple[Array, Array]:
    """The first `number` actions [K, ..., A] that the actor emits from observations [..., O], and log pi [K, ...]."""

    def one(before: tuple[Array, Any], key: Array) -> Any:
        action, memory = before
        seen = jnp.concatenate([observation, jax.lax.stop_gradient(action)], axis=-1)
        output, memory = memories.step(actor, seen, memory)
        mean, log_std = jnp.split(output, 2, axis=-1)
        policy = distributions.squashed_gaussian(mean, jnp.clip(log_std, config.log_std_min, config.log_std_max))
        action, log_prob = policy.sample_and_log_prob(seed=key) if explore else (jnp.tanh(mean), mean[..., 0])
        return (action, memory), (action, log_prob)

    leading, size = observation.shape[:-1], actor.module.head.features // 2
    start = (jnp.zeros((*leading, size)), memories.initial(layers(config), *leading))
    return jax.lax.scan(one, start, jax.random.split(key, number))[1]


def imagined(model: networks.Network, observation: Array, actions: Array) -> Array:
    """The states s_k [K, B, O] before each of the actions [K, B, A], from observations [B, O]."""

    def one(state: Array, action: Array) -> tuple[Array, Array]:
        return state + model(state, action), state

    return jax.lax.stop_gradient(jax.lax.scan(one, observation, actions)[1])


def model_loss(model: networks.Network, batch: Transition) -> tuple[Array, Metrics]:
    """Squared error of the next observation."""
    error = batch.observation + model(batch.observation, batch.action) - batch.next_observation
    loss = jnp.square(error).mean()
    return loss, {"model/loss": loss}


# [2, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the soft target, summed over critics."""
    next_action, next_log_prob = (x[0] for x in sequence(state.actor, batch.next_observation, key, config, 1))
    next_q = networks.smallest(state.target_critic(batch.next_observation, next_action))  # [B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = config.reward_scale * batch.reward + bootstrap * (next_q - jnp.exp(state.log_temperature) * next_log_prob)
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = buffers.weighted(jnp.square(error), batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | buffers.priorities(error, batch)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value, the mean over imagined sequences."""
    actions, log_prob = sequence(actor, batch.observation, key, config, config.sequence_length)  # [J, B, A], [J, B]
    states = imagined(state.model, batch.observation, actions)  # [J, B, O]
    q = networks.smallest(state.critic(states, actions))  # [J, B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


# [2, eq. 18]
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
    """One update of the model, the critics, the targets and, every `policy_delay`-th time, actor and temperature."""
    key_critic, key_actor = jax.random.split(key)
    if config.normalise_observations:
        batch = batch.replace(
            observation=normalise.normalise(state.statistics, batch.observation),
            next_observation=normalise.normalise(state.statistics, batch.next_observation),
        )

    gradient, model_metrics = jax.grad(model_loss, has_aux=True)(state.model, batch)
    changes, model_optimiser = optax.adam(config.model_lr).update(gradient, state.model_optimiser)
    state = state.replace(model=optax.apply_updates(state.model, changes), model_optimiser=model_optimiser)

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
    return state.replace(target_critic=target_critic), metrics | model_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
