"""CrossQ [off-policy]: SAC without target networks, as batch normalisation makes up for them.

An example of an agent whose networks have statistics beside their parameters.

gamma discount, alpha temperature, Q_c critics, pi actor
a' ~ pi(.|s'),  a~ ~ pi(.|s)
  q, q'    = Q_c([s; s'], [a; a'])  one pass in training mode over both halves
  y        = r + gamma (1 - terminated) (min_c q'_c - alpha log pi(a'|s'))
  L(Q)     = sum_c mean (q_c - y)^2
  L(pi)    = mean (alpha log pi(a~|s) - min_c Q_c(s, a~))
  L(alpha) = mean (-log alpha (log pi(a~|s) + target_entropy))

Departs from the paper: batch normalisation in its plain form, without the 1/2 of
L(Q), critics of the actor's width.

[1] Bhatt et al., CrossQ: Batch Normalization in Deep Reinforcement Learning,
    arXiv:1902.05605
[2] The authors' code: github.com/adityab/CrossQ

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
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Share, Widths

MovedLoss = tuple[Array, tuple[networks.Network, Metrics]]  # with the network's new statistics


@agent.config
class Config(buffers.ReplaySettings, temperatures.WithTemperature):
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: NonNegative = 1e-3  # of Adam, for actor and critics; [2]
    temperature_lr: NonNegative = 1e-3  # of Adam, for log alpha; [2]
    adam_b1: Share = 0.5  # decay of Adam's first moment, not log alpha's; [2]
    policy_delay: Count = 3  # updates per update of the actor; [2]
    warmup_steps: int = 5_000  # uniform actions, no update; [2]
    # Targets
    discount: Share = 0.99  # gamma, per environment step; [2]
    # Policy and networks
    log_std_min: LogStd = -20.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    momentum: Share = 0.99  # of the statistics of batch normalisation; [2]
    hidden: Widths = (256, 256)  # of all networks; [2]: 2,048 for critics
    num_critics: Count = 2  # C; the smallest value counts; [2]


class Normalised(nn.Module):
    """Layers that each normalise their input over the batch; in training by its own statistics."""

    hidden: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(
        self, *inputs: Array, train: bool = False, momentum: Array | float = 0.99
    ) -> Array:
        """[..., features] of inputs [..., n]."""
        x = jnp.concatenate(inputs, axis=-1)
        for width in self.hidden:
            x = nn.BatchNorm(use_running_average=not train, momentum=momentum)(x)
            x = nn.relu(nn.Dense(width)(x))
        x = nn.BatchNorm(use_running_average=not train, momentum=momentum)(x)
        return nn.Dense(self.features)(x)


class Critics(nn.Module):
    """C critics."""

    hidden: tuple[int, ...]
    number: int

    @nn.compact
    def __call__(self, observation: Array, action: Array, **options: Array | float) -> Array:
        """Values [C, ...] of actions [..., A] for observations [..., O]."""
        critics = [Normalised(self.hidden, 1) for _ in range(self.number)]
        return jnp.stack([critic(observation, action, **options)[..., 0] for critic in critics])


class State(struct.PyTreeNode):
    """Everything that learning changes; statistics are in the networks."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience, or half of them from a data set."""
    return buffers.Replay.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for anything but vectors and continuous actions."""
    agent.require_vectors("crossq", spec)
    agent.require_continuous("crossq", spec)
    agent.require_order(config, "log_std_min", "log_std_max")


def optimiser(config: Config) -> optax.GradientTransformation:
    """Adam. It leaves statistics as they are: their gradient is 0."""
    return optax.adam(config.learning_rate, b1=config.adam_b1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters and statistics."""
    key_actor, key_critic = jax.random.split(key)
    observation = spec.example()
    actor = Normalised(config.hidden, 2 * spec.action_size)
    actor = networks.create(actor, key_actor, observation)
    critic = Critics(config.hidden, config.num_critics)
    critic = networks.create(critic, key_critic, observation, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.Trained.create(actor, optimiser(config)),
        critic=networks.Trained.create(critic, optimiser(config)),
        log_temperature=temperatures.create(config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or tanh of the mean."""
    output = state.actor(observation)
    if explore:
        return distributions.squashed(output, config).sample(seed=key), {}
    return jnp.tanh(jnp.split(output, 2, axis=-1)[0]), {}


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Squared error of all critics, and the critics with new statistics."""
    pi = distributions.squashed(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    observation = jnp.concatenate([batch.observation, batch.next_observation])
    action = jnp.concatenate([batch.action, next_action])
    options = {"train": True, "momentum": config.momentum}
    values, moved = critic.apply_mutable(observation, action, **options)
    q, next_q = jnp.split(values, 2, axis=-1)  # [C, B]
    entropy_cost = jnp.exp(state.log_temperature.parameters) * next_log_prob
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * (next_q.min(axis=0) - entropy_cost)
    loss = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, (moved, metrics)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> MovedLoss:
    """Weighted log-probability minus the smallest value, and the actor with new statistics."""
    options = {"train": True, "momentum": config.momentum}
    output, moved = actor.apply_mutable(batch.observation, **options)
    pi = distributions.squashed(output, config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, (moved, {"actor/loss": loss, "actor/entropy": -log_prob.mean()})


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the critics and, if due, of actor and temperature."""
    key_critic, key_actor = jax.random.split(key)
    adam = optimiser(config)
    critic, metrics = state.critic.step_mutable(adam, critic_loss, state, batch, key_critic, config)
    state = state.replace(critic=critic)

    def improve(state: State) -> tuple[State, Metrics]:
        actor, metrics = state.actor.step_mutable(adam, actor_loss, state, batch, key_actor, config)
        log_temperature, temperature_metrics = temperatures.step(
            state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
        )
        state = state.replace(actor=actor, log_temperature=log_temperature)
        return state, metrics | temperature_metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
