"""CrossQ: SAC without target networks. Batch normalisation in actor and critics makes up for them.

An example of an agent whose networks have statistics beside their parameters.

gamma discount, alpha temperature, Q_c critics, pi actor;  a' ~ pi(.|s'),  a~ ~ pi(.|s)
  q, q'    = Q_c([s; s'], [a; a'])                  one pass in training mode over both halves           [1, section 3]
  y        = r + gamma (1 - terminated) [ min_c q'_c - alpha log pi(a'|s') ]      without a gradient
  L(Q)     = sum_c mean (q_c - y)^2
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ]                       every policy_delay-th update
  L(alpha) = mean [ -log alpha (log pi(a~|s) - A) ]

Departs from the paper: batch normalisation in its plain form, critics of the actor's width.

[1] Bhatt et al., CrossQ: Batch Normalization in Deep Reinforcement Learning, arXiv:1902.05605

  rljax train docs/examples/crossq.py --env Pendulum-v1 --steps 10_000
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    learning_rate: float = 1e-3  # of Adam, for all networks and log alpha; [1]
    adam_b1: float = 0.5  # decay of Adam's first moment; [1]
    momentum: float = 0.99  # of the running statistics of batch normalisation; [1]
    batch_size: int = 256  # transitions per update; [1]
    replay_size: int = 1_000_000  # transitions kept, the oldest give way; [1]
    warmup_steps: int = 5_000  # environment steps with uniform actions and no update; [1]
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    policy_delay: int = 3  # updates between those of actor and temperature; [1]
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers; [1] has 2048 for the critics
    num_critics: int = 2  # C; the smallest value counts; [1]


class Normalised(nn.Module):
    """Layers that each normalise their input over the batch; in training by its own statistics."""

    hidden: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, *inputs: Array, train: bool = False, momentum: Array | float = 0.99) -> Array:
        """[..., features] of inputs [..., n]."""
        x = jnp.concatenate(inputs, axis=-1)
        for width in (*self.hidden, self.features):
            x = nn.Dense(width)(nn.BatchNorm(use_running_average=not train, momentum=momentum)(x))
            x = x if width is self.features else nn.relu(x)
        return x


class Critics(nn.Module):
    """C critics."""

    hidden: tuple[int, ...]
    number: int

    @nn.compact
    def __call__(self, observation: Array, action: Array, **options: Array | float) -> Array:
        """Values [C, ...] of actions [..., A] for observations [..., O]."""
        each = [Normalised(self.hidden, 1)(observation, action, **options) for _ in range(self.number)]
        return jnp.stack(each).squeeze(-1)


class State(struct.PyTreeNode):
    """Everything that learning changes; batch statistics are in the networks."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    log_temperature: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState


def experience(config: Config) -> buffers.Replay:
    """Uniform batches of new experience; with a data set, half of each batch is from there."""
    return buffers.Replay(
        replay_size=config.replay_size, batch_size=config.batch_size, warmup_steps=config.warmup_steps
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("crossq", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("crossq", spec)
    agent.require_range(config, discount=(0, 1), learning_rate=(0, None), adam_b1=(0, 1), momentum=(0, 1))
    agent.require_at_least(config, policy_delay=1, num_critics=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters and statistics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    actor = networks.create(Normalised(config.hidden, 2 * spec.action_size), key_actor, observation)
    critic = networks.create(Critics(config.hidden, config.num_critics), key_critic, observation, action)
    log_temperature, adam = jnp.zeros(()), optimiser(config)
    return State(actor, critic, log_temperature, adam.init(actor), adam.init(critic), adam.init(log_temperature))


def optimiser(config: Config) -> optax.GradientTransformation:
    """Adam. It leaves batch statistics as they are: their gradient is 0."""
    return optax.adam(config.learning_rate, b1=config.adam_b1)


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or the tanh of the mean when not exploring."""
    output = state.actor(observation)
    if not explore:
        return jnp.tanh(jnp.split(output, 2, axis=-1)[0]), {}
    return policy(output).sample(seed=key), {}


def policy(output: Array) -> distributions.SquashedGaussian:
    """pi(.|s) for the actor's output [..., 2 A]."""
    mean, log_std = jnp.split(output, 2, axis=-1)
    return distributions.squashed_gaussian(mean, jnp.clip(log_std, -20.0, 2.0))


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, tuple[networks.Network, Metrics]]:
    """Squared error of all critics, and the critics with new statistics."""
    next_action, next_log_prob = policy(state.actor(batch.next_observation)).sample_and_log_prob(seed=key)
    observation = jnp.concatenate([batch.observation, batch.next_observation])
    action = jnp.concatenate([batch.action, next_action])
    values, moved = critic.apply_mutable(observation, action, train=True, momentum=config.momentum)
    q, next_q = jnp.split(values, 2, axis=-1)  # [C, B]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * (next_q.min(axis=0) - jnp.exp(state.log_temperature) * next_log_prob)
    loss = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    return loss, (moved, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()})


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, tuple[networks.Network, Metrics]]:
    """Temperature-weighted log-probability minus the smallest critic's value, and the actor with new statistics."""
    output, moved = actor.apply_mutable(batch.observation, train=True, momentum=config.momentum)
    action, log_prob = policy(output).sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    return loss, (moved, {"actor/loss": loss, "actor/entropy": -log_prob.mean()})


def temperature_loss(log_temperature: Array, entropy: Array, action_size: int) -> Array:
    """The policy's entropy [] minus its target -A, times log alpha."""
    return log_temperature * (entropy + action_size)


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `policy_delay`-th time, the actor and the temperature."""
    key_critic, key_actor = jax.random.split(key)
    adam = optimiser(config)
    gradient, (critic, metrics) = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key_critic, config)
    changes, critic_optimiser = adam.update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(critic, changes)  # the new statistics, and parameters moved from the old ones
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, (actor, metrics) = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, key_actor, config)
        changes, actor_optimiser = adam.update(gradient, state.actor_optimiser)
        entropy, size = metrics["actor/entropy"], batch.action.shape[-1]
        slope = jax.grad(temperature_loss)(state.log_temperature, entropy, size)
        change, temperature_optimiser = adam.update(slope, state.temperature_optimiser)
        state = state.replace(
            actor=optax.apply_updates(actor, changes),
            log_temperature=optax.apply_updates(state.log_temperature, change),
            actor_optimiser=actor_optimiser,
            temperature_optimiser=temperature_optimiser,
        )
        return state, metrics | {"temperature/value": jnp.exp(state.log_temperature)}

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
