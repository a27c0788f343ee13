"""Stream SARSA(lambda) [streaming]: on-policy control from each transition once.

Q critic, gamma discount, lambda trace decay, end_t: the episode ended with s'_t
  delta_t = r_t + gamma (1 - end_t) Q(s'_t, a_{t+1}) - Q(s_t, a_t)           [1, algorithm of stream SARSA]
  e       <- gamma lambda e + grad Q(s_t, a_t)
  Q       <- Q + alpha delta_t e                                             ObGD, rljax/networks/optimisation/traces.py
  e       <- 0 where end_t

a_{t+1} is drawn before this update. A transition waits for its successor's action, unless it is an episode's last one.

Actions are greedy except for a share epsilon of uniform ones, which falls linearly. Observations are standardised by
statistics of all so far, this one included. Rewards are divided by the std of their discounted sum.

Departs from the paper: only in how pictures of Atari are scaled (see docs/agents/stream_sarsa.md).

[1] Elsayed et al., Streaming Deep Reinforcement Learning Finally Works, arXiv:2410.14606

  rljax train stream_sarsa --env CartPole-v1
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import normalise, traces


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 1.0  # alpha before it is bounded; [1]
    critic_kappa: float = 2.0  # kappa: larger values allow only smaller steps; [1]
    adaptive: bool = False  # divide traces by the root mean square of their steps; [1] adaptive ObGD
    second_moment_decay: float = 0.999  # beta of that mean (adaptive only), in [0, 1); [1]
    # Experience
    num_envs: int = 1  # a stream is one environment: for N streams, --seeds N
    num_steps: int = 1  # transitions between updates; a stream has one
    num_updates: int = 1  # updates per transition; a stream has one
    epsilon_start: float = 1.0  # share of uniform actions at first; [1]
    epsilon_end: float = 0.01  # and at the end; [1]
    epsilon_steps: float = 0.05  # share of the run (above 1: environment steps) over which it falls; [1]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    trace_decay: float = 0.8  # lambda, in [0, 1]; [1]
    bootstrap_truncated: bool = False  # bootstrap with Q(s', .) at a time limit; [1] does not, and observes the time
    # Inputs
    normalise_observations: bool = True  # by mean and std of all observations so far, no clip; [1]
    normalise_rewards: bool = True  # divide by the std of their discounted sum, no clip; [1]
    time_feature: bool = True  # observe the passed share of the time limit, minus 0.5; [1]
    # Networks
    hidden: tuple[int, ...] = (32, 32)  # widths of hidden layers, each with LayerNorm; [1] for classic control
    convolutions: tuple[tuple[int, int, int], ...] = ()  # channels, width and stride of each layer, for pictures
    activation: networks.Activation = "leaky_relu"  # of the hidden layers; [1]
    initialisation: networks.Initialisation = "sparse"  # of all layers; [1]


class Waiting(struct.PyTreeNode):
    """A transition whose successor's action is not yet known."""

    observation: Array  # [O] scaled, with the statistics of when its action was taken
    action: Array  # [] int32
    reward: Array  # [] scaled
    valid: Array  # [] bool: whether a transition waits


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    critic: networks.Network  # [O] -> [A]: Q of each action
    critic_optimiser: optax.OptState
    statistics: normalise.Moments  # of observations [O]
    returns: normalise.DiscountedSum  # of rewards []
    steps: Array  # [] int32: environment steps so far, for epsilon
    waiting: Waiting


def experience(config: Config) -> buffers.Stream:
    """One transition at a time."""
    return buffers.Stream(
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        time_feature=config.time_feature,
    )


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of environment steps."""
    return dataclasses.replace(config, epsilon_steps=agent.in_steps(config.epsilon_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for continuous actions, a hyperparameter out of range, and pictures without convolutions."""
    agent.require_widths(config, "hidden")
    agent.require_discrete("stream_sarsa", spec, "stream_ac")
    agent.require_range(config, learning_rate=(0, None), critic_kappa=(0, None), second_moment_decay=(0, None))
    agent.require_below(config, second_moment_decay=1)
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1))
    agent.require_above(config, epsilon_steps=0)
    agent.require_range(config, epsilon_start=(0, 1), epsilon_end=(0, 1))
    agent.require_fit(spec, config.convolutions)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, most of them 0; an empty trace."""
    style = (config.activation, config.initialisation)
    critic = networks.feedforward(config.convolutions, config.hidden, spec.action_size, *style)
    critic = networks.create(critic, key, jnp.zeros(spec.observation_shape))
    return State(
        critic=critic,
        critic_optimiser=optimiser(config).init(critic),
        statistics=normalise.create_moments(spec.observation_shape),
        returns=normalise.create_discounted_sum(),
        steps=jnp.zeros((), jnp.int32),
        waiting=Waiting(
            observation=jnp.zeros(spec.observation_shape),
            action=jnp.zeros((), jnp.int32),
            reward=jnp.zeros(()),
            valid=jnp.zeros((), jnp.bool_),
        ),
    )


def optimiser(config: Config) -> optax.GradientTransformationExtraArgs:
    """ObGD with traces."""
    settings = (config.critic_kappa, config.discount, config.trace_decay, config.learning_rate)
    return traces.adaptive_obgd(*settings, config.second_moment_decay) if config.adaptive else traces.obgd(*settings)


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count the first observation [1, O] of an episode; `update` counts the others, as successors."""
    state = state.replace(waiting=state.waiting.replace(valid=state.waiting.valid & ~first[0]))
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.count_where(first[0], state.statistics, observation[0]))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O]: the greedy ones, except for a share epsilon when exploring."""
    q = state.critic(scaled(state, observation, config))
    greedy = q.argmax(axis=-1).astype(jnp.int32)
    if not explore:
        return greedy, {}
    key_choice, key_action = jax.random.split(key)
    uniform = jax.random.randint(key_action, greedy.shape, 0, q.shape[-1])
    action = jnp.where(jax.random.uniform(key_choice, greedy.shape) < epsilon(state, config), uniform, greedy)
    return action, {}


def epsilon(state: State, config: Config) -> Array:
    """The share of uniform actions, []."""
    passed = jnp.minimum(state.steps / config.epsilon_steps, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * passed


def scaled(state: State, observation: Array, config: Config) -> Array:
    """Observations [..., O] as the network sees them; their last element, the time, is not scaled."""
    if not config.normalise_observations:
        return observation
    score = normalise.standard_score(state.statistics, observation)
    return score.at[..., -1].set(observation[..., -1]) if config.time_feature else score


def critic_gain(critic: networks.Network, observation: Array, action: Array) -> Array:
    """Q(s, a) [], which a positive error raises."""
    return critic(observation)[action]


def learn(state: State, of: Waiting, next_q: Array, ended: Array, config: Config) -> tuple[State, Array]:
    """Learn from a transition and return its error; `next_q` [] is Q(s', a'), 0 where there is none."""
    q, gradient = jax.value_and_grad(critic_gain)(state.critic, of.observation, of.action)
    error = of.reward + config.discount * next_q - q
    change, critic_optimiser = optimiser(config).update(gradient, state.critic_optimiser, error=error, reset=ended)
    return state.replace(critic=optax.apply_updates(state.critic, change), critic_optimiser=critic_optimiser), error


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from the previous transition, whose next action is known now, and from this one if it ends an episode."""
    del key, step
    ended = batch.terminated | batch.truncated
    observation = scaled(state, batch.observation, config)
    if config.normalise_observations:
        state = state.replace(statistics=normalise.count(state.statistics, batch.next_observation))
    next_observation = scaled(state, batch.next_observation, config)
    reward = batch.reward
    if config.normalise_rewards:
        returns, reward = normalise.scale_reward(state.returns, reward, ended, config.discount)
        state = state.replace(returns=returns)

    def before(state: State) -> tuple[State, Array]:
        next_q = critic_gain(state.critic, observation, batch.action)
        return learn(state, state.waiting, next_q, jnp.zeros((), jnp.bool_), config)

    def last(state: State) -> tuple[State, Array]:
        next_q = jnp.zeros(())
        if config.bootstrap_truncated:  # no action follows a time limit: take the mean over the possible ones
            q, share = state.critic(next_observation), epsilon(state, config)
            next_q = jnp.where(batch.terminated, 0.0, (1.0 - share) * q.max() + share * q.mean())
        return learn(state, this, next_q, ended, config)

    def nothing(state: State) -> tuple[State, Array]:
        return state, jnp.zeros(())

    valid = state.waiting.valid
    this = Waiting(observation, batch.action, reward, ~ended)
    state, error = jax.lax.cond(valid, before, nothing, state)
    state, last_error = jax.lax.cond(ended, last, nothing, state)
    state = state.replace(waiting=this, steps=optax.safe_increment(state.steps))
    return state, {
        "critic/q": critic_gain(state.critic, observation, batch.action),
        "critic/error": agent.Weighted(jnp.abs(error) + jnp.abs(last_error), valid * 1.0 + ended),
        "critic/reward": reward,
        "critic/epsilon": epsilon(state, config),
    }


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
