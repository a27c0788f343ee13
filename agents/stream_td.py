"""Stream TD(lambda) [streaming]: the values of states under a given behaviour.

V critic, gamma discount, lambda trace decay, end_t: the episode ended with s'_t
  delta_t = r_t + gamma (1 - end_t) V(s'_t) - V(s_t)                         [1, algorithm of stream TD]
  e       <- gamma lambda e + grad V(s_t)
  V       <- V + alpha delta_t e                                             ObGD, rljax/networks/optimisation/traces.py
  e       <- 0 where end_t

It predicts and does not control: actions are uniform, also in evaluation. Observations are standardised by statistics
of all so far, this one included. Rewards are divided by the std of their discounted sum.

Departs from the paper: nowhere. Values are in units of the scaled rewards; `values` converts to the environment's.

[1] Elsayed et al., Streaming Deep Reinforcement Learning Finally Works, arXiv:2410.14606

  rljax train stream_td --env rljax/RandomWalk
"""

from __future__ import annotations

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
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    trace_decay: float = 0.8  # lambda, in [0, 1]; [1]
    bootstrap_truncated: bool = False  # bootstrap with V(s') at a time limit; [1] does not, and observes the time
    # Inputs
    normalise_observations: bool = True  # by mean and std of all observations so far, no clip; [1]
    normalise_rewards: bool = True  # divide by the std of their discounted sum, no clip; [1]
    time_feature: bool = False  # observe the passed share of the time limit, minus 0.5; [1] for control
    # Networks
    hidden: tuple[int, ...] = (128, 128)  # widths of hidden layers, each with LayerNorm; [1]
    convolutions: tuple[tuple[int, int, int], ...] = ()  # channels, width and stride of each layer, for pictures
    activation: networks.Activation = "leaky_relu"  # of the hidden layers; [1]
    initialisation: networks.Initialisation = "sparse"  # of all layers; [1]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    critic: networks.Network  # [O] -> [1]
    critic_optimiser: optax.OptState
    statistics: normalise.Moments  # of observations [O]
    returns: normalise.DiscountedSum  # of rewards []
    discrete: bool = struct.field(pytree_node=False)
    action_size: int = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Stream:
    """One transition at a time."""
    return buffers.Stream(
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        perceives=config.normalise_observations,
        time_feature=config.time_feature,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range, and for pictures without convolutions."""
    agent.require_widths(config, "hidden")
    agent.require_range(config, learning_rate=(0, None), critic_kappa=(0, None), second_moment_decay=(0, None))
    agent.require_below(config, second_moment_decay=1)
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1))
    agent.require_one_action("stream_td", spec)
    agent.require_fit(spec, config.convolutions)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, most of them 0; an empty trace."""
    style = (config.activation, config.initialisation)
    critic = networks.feedforward(config.convolutions, config.hidden, 1, *style)
    critic = networks.create(critic, key, jnp.zeros(spec.observation_shape))
    return State(
        critic=critic,
        critic_optimiser=optimiser(config).init(critic),
        statistics=normalise.create_moments(spec.observation_shape),
        returns=normalise.create_discounted_sum(),
        discrete=spec.discrete,
        action_size=spec.action_size,
    )


def optimiser(config: Config) -> optax.GradientTransformationExtraArgs:
    """ObGD with traces."""
    settings = (config.critic_kappa, config.discount, config.trace_decay, config.learning_rate)
    return traces.adaptive_obgd(*settings, config.second_moment_decay) if config.adaptive else traces.obgd(*settings)


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count the first observation [1, O] of an episode; `update` counts the others, as successors."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.count_where(first[0], state.statistics, observation[0]))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Uniform actions [..., A] or [...] for observations [..., O], whether exploring or not."""
    del config, explore
    leading = observation.shape[: observation.ndim - state.statistics.mean.ndim]
    if state.discrete:
        return jax.random.randint(key, leading, 0, state.action_size), {}
    return jax.random.uniform(key, (*leading, state.action_size), minval=-1.0, maxval=1.0), {}


def scaled(state: State, observation: Array, config: Config) -> Array:
    """Observations [..., O] as the network sees them; their last element, the time, is not scaled."""
    if not config.normalise_observations:
        return observation
    score = normalise.standard_score(state.statistics, observation)
    return score.at[..., -1].set(observation[..., -1]) if config.time_feature else score


def values(state: State, observation: Array, config: Config) -> Array:
    """V(s) [...] of observations [..., O] in units of the environment's rewards."""
    value = critic_gain(state.critic, scaled(state, observation, config))
    return value * jnp.sqrt(state.returns.moments.variance + 1e-8) if config.normalise_rewards else value


def critic_gain(critic: networks.Network, observation: Array) -> Array:
    """V(s) [...], which a positive error raises."""
    return critic(observation).squeeze(-1)


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from one transition, whose observations are [O]."""
    del key, step
    ended = batch.terminated | batch.truncated
    final = batch.terminated if config.bootstrap_truncated else ended
    observation = scaled(state, batch.observation, config)
    if config.normalise_observations:
        state = state.replace(statistics=normalise.count(state.statistics, batch.next_observation))
    next_observation = scaled(state, batch.next_observation, config)
    reward = batch.reward
    if config.normalise_rewards:
        returns, reward = normalise.scale_reward(state.returns, reward, ended, config.discount)
        state = state.replace(returns=returns)

    value, gradient = jax.value_and_grad(critic_gain)(state.critic, observation)
    error = reward + config.discount * (1.0 - final) * critic_gain(state.critic, next_observation) - value
    change, critic_optimiser = optimiser(config).update(gradient, state.critic_optimiser, error=error, reset=ended)
    state = state.replace(critic=optax.apply_updates(state.critic, change), critic_optimiser=critic_optimiser)
    return state, {"critic/value": value, "critic/error": jnp.abs(error), "critic/reward": reward}


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
