"""Stream Q(lambda) [streaming]: Watkins' Q-learning from each transition once.

Q critic, gamma discount, lambda trace decay
end_t: the episode ended with s'_t
  delta_t = r_t + gamma (1 - end_t) max_a Q(s'_t, a) - Q(s_t, a_t)  [1, stream Q]
  e       <- gamma lambda e + grad Q(s_t, a_t)
  Q       <- Q + alpha delta_t e  ObGD: optimisation/traces.py
  e       <- 0 where end_t, and where a_t was not the greedy action

Departs from the paper only in how Atari's pictures are scaled.

[1] Elsayed et al., Streaming Deep RL Finally Works, arXiv:2410.14606

  rljax train stream_q --env CartPole-v1
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import normalise
from rljax.networks.optimisation import optimisers, traces
from rljax.requirements import Decay, NonNegative, Positive, Share, Widths


@agent.config
class Config(buffers.StreamSettings):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 1.0  # alpha, before its bound; [1]
    critic_kappa: NonNegative = 2.0  # larger: smaller steps; [1]
    adaptive: bool = False  # traces by the RMS of steps; [1]
    second_moment_decay: Decay = 0.999  # beta (adaptive); [1]
    # Policy
    epsilon_start: Share = 1.0  # uniform actions at first; [1]
    epsilon_end: Share = 0.01  # and at the end; [1]
    epsilon_steps: Positive = 0.05  # share of the run until then; [1]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    trace_decay: Share = 0.8  # lambda; [1]
    bootstrap_truncated: bool = False  # Q(s', .) at time limits; [1]: no
    # Inputs
    normalise_rewards: bool = True  # by the std of returns; [1]
    # Networks
    hidden: Widths = (32, 32)  # with LayerNorm; [1]
    convolutions: tuple[tuple[int, int, int], ...] = ()  # of pictures
    activation: networks.Activation = "leaky_relu"  # of hidden layers; [1]
    initialisation: networks.Initialisation = "sparse"  # of all layers; [1]


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O] -> [A]: Q of each action
    returns: normalise.DiscountedSum  # of rewards []
    steps: Array  # [] int32: environment steps so far, for epsilon


def experience(config: Config) -> buffers.Stream:
    """One transition at a time."""
    return buffers.Stream.of(config)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into steps."""
    return agent.in_steps(config, steps, "epsilon_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_discrete("stream_q", spec, "stream_ac")
    agent.require_fit(spec, config.convolutions)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; an empty trace."""
    style = (config.activation, config.initialisation)
    layers = (config.convolutions, config.hidden)
    critic = networks.feedforward(*layers, spec.action_size, *style)
    critic = networks.create(critic, key, spec.example())
    return State(
        critic=networks.Trained.create(critic, optimiser(config)),
        returns=normalise.create_discounted_sum(),
        steps=jnp.zeros((), jnp.int32),
    )


def optimiser(config: Config) -> optax.GradientTransformationExtraArgs:
    """ObGD with traces."""
    return traces.optimiser(
        adaptive=config.adaptive,
        kappa=config.critic_kappa,
        discount=config.discount,
        trace_decay=config.trace_decay,
        learning_rate=config.learning_rate,
        second_moment_decay=config.second_moment_decay,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O]."""
    q = state.critic(observation)
    greedy = q.argmax(axis=-1).astype(jnp.int32)
    if not explore:
        return greedy, {}
    key_choice, key_action = jax.random.split(key)
    uniform = jax.random.randint(key_action, greedy.shape, 0, q.shape[-1])
    explores = jax.random.uniform(key_choice, greedy.shape) < epsilon(state, config)
    action = jnp.where(explores, uniform, greedy)
    return action, {"greedy": action == greedy}


def epsilon(state: State, config: Config) -> Array:
    """The share of uniform actions []."""
    start, end = config.epsilon_start, config.epsilon_end
    return optimisers.linear(start, end, state.steps, config.epsilon_steps)


def critic_gain(critic: networks.Network, observation: Array, action: Array) -> Array:
    """Q(s, a) [], which a positive error raises."""
    return critic(observation)[action]


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one transition, of observations [O]."""
    ended = batch.terminated | batch.truncated
    final = batch.terminated if config.bootstrap_truncated else ended
    if config.normalise_rewards:
        returns, batch = normalise.scale_transition(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    critic = state.critic.parameters
    q, gradient = jax.value_and_grad(critic_gain)(critic, batch.observation, batch.action)
    next_q = critic(batch.next_observation).max()
    error = batch.reward + config.discount * (1.0 - final) * next_q - q
    reset = ended | ~batch.extras["greedy"]
    trained = state.critic.apply(optimiser(config), gradient, error=error, reset=reset)
    state = state.replace(critic=trained, steps=optax.safe_increment(state.steps))
    return state, {
        "critic/q": q,
        "critic/error": jnp.abs(error),
        "critic/reward": batch.reward,
        "critic/epsilon": epsilon(state, config),
    }


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
