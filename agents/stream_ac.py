"""Stream AC(lambda) [streaming]: actor-critic that learns from each transition once.

V critic, pi actor, gamma discount, lambda trace decay, tau entropy cost, end_t: the episode ended with s'_t
  delta_t = r_t + gamma (1 - end_t) V(s'_t) - V(s_t)                         [1, algorithm of stream AC]
  e_V     <- gamma lambda e_V  + grad V(s_t)
  e_pi    <- gamma lambda e_pi + grad [log pi(a_t|s_t) + tau sign(delta_t) H(pi(.|s_t))]
  V, pi   <- V + alpha_V delta_t e_V,  pi + alpha_pi delta_t e_pi            ObGD, rljax/networks/optimisation/traces.py
  e_V, e_pi <- 0 where end_t

Observations are standardised by statistics of all so far, this one included. Rewards are divided by the std of their
discounted sum. pi(.|s) is a softmax, or a diagonal Gaussian whose actions are clipped to [-1, 1] on output.

Departs from the paper: actions are in normalised units.

[1] Elsayed et al., Streaming Deep Reinforcement Learning Finally Works, arXiv:2410.14606

  rljax train stream_ac --env HalfCheetah-v5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, normalise, traces


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 1.0  # alpha before it is bounded, of actor and critic; [1]
    actor_kappa: float = 3.0  # kappa of the actor: larger values allow only smaller steps; [1]
    critic_kappa: float = 2.0  # kappa of the critic, in the same way; [1]
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
    entropy_cost: float = 0.01  # tau; [1]
    # Inputs
    normalise_observations: bool = True  # by mean and std of all observations so far, no clip; [1]
    normalise_rewards: bool = True  # divide by the std of their discounted sum, no clip; [1]
    time_feature: bool = True  # observe the passed share of the time limit, minus 0.5; [1]
    # Networks
    hidden: tuple[int, ...] = (128, 128)  # widths of hidden layers, each with LayerNorm; [1]
    convolutions: tuple[tuple[int, int, int], ...] = ()  # channels, width and stride of each layer, for pictures
    activation: networks.Activation = "leaky_relu"  # of the hidden layers; [1]
    initialisation: networks.Initialisation = "sparse"  # of all layers; [1]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and raw std; or [A]: logits
    critic: networks.Network  # [O] -> [1]
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    statistics: normalise.Moments  # of observations [O]
    returns: normalise.DiscountedSum  # of rewards []
    discrete: bool = struct.field(pytree_node=False)


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
    agent.require_range(config, learning_rate=(0, None), actor_kappa=(0, None), critic_kappa=(0, None))
    agent.require_range(config, second_moment_decay=(0, None), discount=(0, 1), trace_decay=(0, 1))
    agent.require_below(config, second_moment_decay=1)
    agent.require_range(config, entropy_cost=(None, None))
    agent.require_one_action("stream_ac", spec)
    agent.require_fit(spec, config.convolutions)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, most of them 0; empty traces."""
    key_actor, key_critic = jax.random.split(key)
    observation = jnp.zeros(spec.observation_shape)
    style = (config.activation, config.initialisation)
    outputs = spec.action_size * (1 if spec.discrete else 2)
    actor = networks.feedforward(config.convolutions, config.hidden, outputs, *style)
    critic = networks.feedforward(config.convolutions, config.hidden, 1, *style)
    actor = networks.create(actor, key_actor, observation)
    critic = networks.create(critic, key_critic, observation)
    return State(
        actor=actor,
        critic=critic,
        actor_optimiser=optimiser(config.actor_kappa, config).init(actor),
        critic_optimiser=optimiser(config.critic_kappa, config).init(critic),
        statistics=normalise.create_moments(spec.observation_shape),
        returns=normalise.create_discounted_sum(),
        discrete=spec.discrete,
    )


def optimiser(kappa: Array | float, config: Config) -> optax.GradientTransformationExtraArgs:
    """ObGD with traces, of the actor or of the critic."""
    settings = (kappa, config.discount, config.trace_decay, config.learning_rate)
    return traces.adaptive_obgd(*settings, config.second_moment_decay) if config.adaptive else traces.obgd(*settings)


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count the first observation [1, O] of an episode; `update` counts the others, as successors."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.count_where(first[0], state.statistics, observation[0]))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]: sampled, or the mode when not exploring."""
    pi = policy(state.actor, scaled(state, observation, config), state.discrete)
    raw: Any = pi.sample(seed=key) if explore else pi.mode()
    action: Any = raw if state.discrete else jnp.clip(raw, -1.0, 1.0)
    return action, {"raw": raw} if explore else {}


def scaled(state: State, observation: Array, config: Config) -> Array:
    """Observations [..., O] as the networks see them; their last element, the time, is not scaled."""
    if not config.normalise_observations:
        return observation
    score = normalise.standard_score(state.statistics, observation)
    return score.at[..., -1].set(observation[..., -1]) if config.time_feature else score


def policy(actor: networks.Network, observation: Array, discrete: bool) -> distributions.Distribution:
    """pi(.|s) for observations [..., O], over actions that are not yet clipped."""
    output = actor(observation)
    if discrete:
        return distributions.categorical(output)
    mean, raw_std = jnp.split(output, 2, axis=-1)
    return distributions.gaussian(mean, jax.nn.softplus(raw_std))


def critic_gain(critic: networks.Network, observation: Array) -> Array:
    """V(s) [], which a positive error raises."""
    return critic(observation).squeeze(-1)


def actor_gain(
    actor: networks.Network, state: State, observation: Array, raw: Array, error: Array, config: Config
) -> tuple[Array, Metrics]:
    """log pi(a|s) + tau sign(delta) H(pi(.|s)) []. Multiplied by delta, the bonus always raises the entropy."""
    pi = policy(actor, observation, state.discrete)
    entropy, log_prob = pi.entropy(), jnp.asarray(pi.log_prob(raw))
    return log_prob + config.entropy_cost * jnp.sign(error) * entropy, {"actor/entropy": entropy}


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

    value, critic_gradient = jax.value_and_grad(critic_gain)(state.critic, observation)
    error = reward + config.discount * (1.0 - final) * critic_gain(state.critic, next_observation) - value
    actor_gradient, metrics = jax.grad(actor_gain, has_aux=True)(
        state.actor, state, observation, batch.extras["raw"], error, config
    )
    signal = {"error": error, "reset": ended}
    critic_step, critic_optimiser = optimiser(config.critic_kappa, config).update(
        critic_gradient, state.critic_optimiser, **signal
    )
    actor_step, actor_optimiser = optimiser(config.actor_kappa, config).update(
        actor_gradient, state.actor_optimiser, **signal
    )
    state = state.replace(
        actor=optax.apply_updates(state.actor, actor_step),
        critic=optax.apply_updates(state.critic, critic_step),
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
    )
    return state, metrics | {"critic/value": value, "critic/error": jnp.abs(error), "critic/reward": reward}


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
