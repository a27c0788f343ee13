"""PQN [on-policy]: Q-learning in many environments, without replay and target networks.

gamma discount, lambda trace decay, Q critic, t a step of the rollout;  s'_t the true successor, also where t ended
  V'_t   = max_a Q(s'_t, a)                                            over the allowed actions, before any step below
  G_t    = r_t + gamma (1 - terminated_t) V'_t                         where t ended, and in the rollout's last step
         = r_t + gamma ((1 - lambda) V'_t + lambda G_{t+1})            elsewhere: Peng's Q(lambda) [1, 2]
  L(Q)   = mean (Q(s_t, a_t) - G_t)^2 / 2                              num_epochs passes in minibatches; RAdam [3]

Ended: terminated | truncated. Actions are greedy except for a share epsilon of uniform ones, which falls linearly. An
encoder (rljax/networks/encoders.py) takes pictures and dictionaries. With a `memory`, s_t is what the episode has shown
until t, and minibatches are the whole rollouts of environments, at least one.

Departs from the paper: it bootstraps at time limits. The learning rate falls once per rollout, not once per minibatch.
Pictures are divided by 255 only where they are bytes. Inputs are normalised by running statistics and not by BatchNorm.

[1] Gallici et al., Simplifying Deep Temporal Difference Learning, arXiv:2407.04811; its code is purejaxql
[2] Peng and Williams, Incremental Multi-Step Q-Learning, Machine Learning 22, 1996
[3] Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, arXiv:1908.03265

  rljax train pqn --env gymnax/Breakout-MinAtar
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, memories, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 5e-4  # of RAdam; [1] for MinAtar, 2.5e-4 for Atari
    decay_steps: float | None = None  # share of the run (above 1: steps) in which the learning rate falls to 0; [1]: 1
    max_grad_norm: float = 10.0  # limit of the gradient's norm over all parameters, 0 for none; [1]
    num_epochs: int = 2  # passes over each rollout; [1]
    batch_size: int = 128  # transitions per minibatch, a divisor of a rollout; [1]
    # Experience
    num_envs: int = 128  # environments stepped side by side; [1]
    num_steps: int = 32  # steps of each environment per rollout; [1]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    trace_decay: float = 0.65  # lambda, in [0, 1]; [1]
    reward_scale: float = 1.0  # factor on rewards; 0.1 for CartPole in [1]
    # Policy
    epsilon_start: float = 1.0  # share of uniform actions at first; [1]
    epsilon_end: float = 0.05  # and at the end; [1] for MinAtar, 0.001 for Atari
    epsilon_steps: float = 0.1  # share of the run (above 1: environment steps) over which it falls; [1]
    # Networks
    encoder: encoders.Kind = "auto"  # the convolutions before the hidden layers, where pictures are observed
    hidden: tuple[int, ...] = (256, 256)  # widths of hidden layers; [1] for CartPole, none after an encoder
    memory: memories.Kind = "none"  # what is kept from step to step, after the hidden layers; [1]: gru for Craftax
    memory_hidden: tuple[int, ...] = (128,)  # widths of the memory's layers
    memory_length: int = 64  # steps that gtrxl sees
    memory_span: int | None = None  # steps that the other memories bridge at the start; None: as published
    activation: networks.Activation = "relu"  # of the hidden layers; [1]
    layer_norm: networks.Norm = True  # normalise all hidden layers, convolutions too, before activation; [1]
    initialisation: networks.Initialisation = "lecun_uniform"  # of all layers; [1] draws normal numbers as large
    normalise_observations: bool = False  # running mean and std of observations; [1]: BatchNorm, off


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    critic: networks.Network  # [O...] -> [A]: Q of each action
    critic_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    steps: Array  # [] int32: rollouts so far, for epsilon
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    size = {"num_envs": config.num_envs, "num_steps": config.num_steps, "batch_size": config.batch_size}
    return buffers.Rollout(**size, learns_until=config.decay_steps, remembers=config.memory != "none")


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run's `steps` into numbers of environment steps."""
    decay_steps, epsilon_steps = (agent.in_steps(x, steps) for x in (config.decay_steps, config.epsilon_steps))
    return dataclasses.replace(config, decay_steps=decay_steps, epsilon_steps=epsilon_steps)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for continuous or several actions, a hyperparameter out of range, and too small pictures."""
    agent.require_widths(config, "hidden")
    agent.require_discrete("pqn", spec, "ppo")
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1), learning_rate=(0, None), max_grad_norm=(0, None))
    agent.require_range(config, reward_scale=(None, None), epsilon_start=(0, 1), epsilon_end=(0, 1))
    agent.require_above(config, epsilon_steps=0)
    agent.require_above(config, decay_steps=0)
    agent.require_at_least(config, num_epochs=1)
    torsos.check(spec, layers(config))


def layers(config: Config) -> torsos.TorsoSettings:
    """The settings of the layers before the values of actions."""
    style = (config.activation, config.initialisation, config.layer_norm)
    kept = (config.memory, config.memory_hidden, config.memory_length, config.memory_span)
    return torsos.TorsoSettings("mlp", 1, None, *style, None, config.encoder, *kept)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    chosen = layers(config)
    if config.memory == "none":
        critic = networks.create(torsos.network(spec, chosen, config.hidden, spec.action_size), key, spec.example())
    else:
        body, last = torsos.torso(spec, chosen, config.hidden), torsos.last(chosen, spec.action_size)
        critic, _ = memories.create(body, chosen, key, spec.example(), last)
    return State(
        critic=critic,
        critic_optimiser=optimiser(0, config).init(critic),
        statistics=normalise.of_observations(spec),
        steps=jnp.zeros((), jnp.int32),
        spec=spec,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """RAdam on gradients of limited norm; the learning rate falls with the environment steps of `step` [] rollouts."""
    rate: Any = config.learning_rate
    if config.decay_steps is not None:  # in float32, since int32 could overflow
        rate *= jnp.maximum(0.0, 1.0 - jnp.float32(step) * (config.num_envs * config.num_steps) / config.decay_steps)
    limit = jnp.where(jnp.asarray(config.max_grad_norm) > 0, config.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.radam(rate))


def remember(spec: EnvSpec, config: Config) -> Any:
    """The memory of one environment where an episode begins."""
    return memories.initial(layers(config))


def act(
    state: State, observation: Any, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [...] for observations [..., O...]: the greedy ones, except for a share epsilon when exploring.

    With them come the values of the greedy ones, as `extras["value"]`, for the targets.
    """
    q, memory = memories.step(state.critic, scaled(state, observation, config), memory)
    mask = agent.mask_of(observation)
    greedy = distributions.allowed(q, mask).argmax(axis=-1).astype(jnp.int32)
    if not explore:
        return greedy, {}, memory
    key_choice, key_action = jax.random.split(key)
    uniform = distributions.uniform(key_action, state.spec, greedy.shape, mask)
    chance = jax.random.uniform(key_choice, greedy.shape)
    return jnp.where(chance < epsilon(state, config), uniform, greedy), {"value": best(q, mask)}, memory


def epsilon(state: State, config: Config) -> Array:
    """The share of uniform actions []. It falls with the environment steps of the rollouts so far."""
    passed = jnp.minimum(state.steps * jnp.float32(config.num_envs * config.num_steps) / config.epsilon_steps, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * passed


def scaled(state: State, observation: Any, config: Config) -> Any:
    """Observations [..., O...] as the critic sees them."""
    return normalise.normalise(state.statistics, observation) if config.normalise_observations else observation


def best(q: Array, mask: Array | None) -> Array:
    """max_a Q(s, a) [...] over the allowed ones of q [..., A]; 0 where none is allowed, as nothing follows."""
    largest = distributions.allowed(q, mask).max(axis=-1)
    return largest if mask is None else jnp.where(mask.any(axis=-1), largest, 0.0)


def next_values(critic: networks.Network, batch: Transition) -> Array:
    """V'_t [T, E] of a rollout with scaled observations.

    Where the next row begins with s'_t, acting has computed it. It is missing where t was truncated and in the last
    row. A pass of the loop computes it once per environment, so that there is seldom more than one pass. A critic with
    a memory does likewise.
    """
    if agent.MEMORY in batch.extras:
        return best(memories.following(critic, batch)[1], agent.mask_of(batch.next_observation))
    value = jnp.roll(batch.extras["value"], -1, axis=0)
    missing = batch.truncated.at[-1].set(True)  # [T, E]
    each = jnp.arange(missing.shape[1])

    def compute(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        value, missing = carry
        row = missing.argmax(axis=0)  # [E], the first one
        successor = jax.tree.map(lambda x: x[row, each], batch.next_observation)
        found = best(critic(successor), agent.mask_of(successor))
        value = value.at[row, each].set(jnp.where(missing[row, each], found, value[row, each]))
        return value, missing.at[row, each].set(False)

    return jax.lax.while_loop(lambda carry: carry[1].any(), compute, (value, missing))[0]


# [1, 2]
def targets(critic: networks.Network, batch: Transition, config: Config) -> Array:
    """G_t [T, E] of a rollout with scaled observations."""
    value = next_values(critic, batch)
    ended = (batch.terminated | batch.truncated).at[-1].set(True)
    share = config.trace_decay * (1.0 - ended)  # of G_{t+1}
    discount = config.discount * (1.0 - batch.terminated)
    return buffers.discounted_sums(batch.reward + discount * (1.0 - share) * value, discount * share)


# [1]
def critic_loss(critic: networks.Network, batch: Transition, target: Array) -> tuple[Array, Metrics]:
    """Half the squared error of Q(s, a) [B]."""
    q = jnp.take_along_axis(memories.embedded(critic, batch), batch.action[..., None], axis=-1).squeeze(-1)
    loss = 0.5 * jnp.square(q - target).mean()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...]: `num_epochs` passes over it in minibatches."""
    seen, radam = batch.observation, optimiser(step, config)
    batch = batch.replace(
        observation=scaled(state, batch.observation, config),
        next_observation=scaled(state, batch.next_observation, config),
        reward=config.reward_scale * batch.reward,
    )
    target, rows = targets(state.critic, batch, config), batch.reward.size
    batch = batch.replace(next_observation=None)  # no minibatch needs it

    def learn(carry: tuple[Any, Any], minibatch: Any) -> tuple[tuple[Any, Any], Metrics]:
        critic, moments = carry
        gradient, metrics = jax.grad(critic_loss, has_aux=True)(critic, *minibatch)
        changes, moments = radam.update(gradient, moments)
        return (optax.apply_updates(critic, changes), moments), metrics

    def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Metrics]:
        return jax.lax.scan(learn, carry, buffers.minibatches(key, (batch, target), config.batch_size))

    carry = (state.critic, state.critic_optimiser)
    (critic, moments), metrics = jax.lax.scan(epoch, carry, jax.random.split(key, config.num_epochs))
    if config.normalise_observations:
        seen = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), seen)
        statistics = normalise.update(state.statistics, seen)
        state = state.replace(statistics=statistics)
    metrics = jax.tree.map(jnp.mean, metrics) | {"actor/epsilon": epsilon(state, config)}
    steps = optax.safe_increment(state.steps)
    return state.replace(critic=critic, critic_optimiser=moments, steps=steps), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
