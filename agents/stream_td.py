"""Stream TD(lambda) [streaming]: the values of states from each transition once.

V critic, gamma discount, lambda trace decay
end_t: the episode ended with s'_t
  delta_t = r_t + gamma (1 - end_t) V(s'_t) - V(s_t)  [1, stream TD]
  e       <- gamma lambda e + grad V(s_t)
  V       <- V + alpha delta_t e  ObGD: optimisation/traces.py
  e       <- 0 where end_t

Departs from the paper: nowhere. `values` are in units of rewards.

[1] Elsayed et al., Streaming Deep RL Finally Works, arXiv:2410.14606

  rljax train stream_td --env rljax/RandomWalk
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, normalise
from rljax.networks.optimisation import traces
from rljax.requirements import Decay, NonNegative, Share, Widths


@agent.config
class Config(buffers.StreamSettings):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 1.0  # alpha, before its bound; [1]
    critic_kappa: NonNegative = 2.0  # larger: smaller steps; [1]
    adaptive: bool = False  # traces by the RMS of steps; [1]
    second_moment_decay: Decay = 0.999  # beta (adaptive); [1]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    trace_decay: Share = 0.8  # lambda; [1]
    bootstrap_truncated: bool = False  # V(s') at time limits; [1]: no
    # Inputs
    normalise_rewards: bool = True  # by the std of returns; [1]
    time_feature: bool = False  # observe the time passed; [1]: control
    # Networks
    hidden: Widths = (128, 128)  # with LayerNorm; [1]
    convolutions: tuple[tuple[int, int, int], ...] = ()  # of pictures
    activation: networks.Activation = "leaky_relu"  # of hidden layers; [1]
    initialisation: networks.Initialisation = "sparse"  # of all layers; [1]


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O] -> [1]
    returns: normalise.DiscountedSum  # of rewards []
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Stream:
    """One transition at a time."""
    return buffers.Stream.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_one_action("stream_td", spec)
    agent.require_fit(spec, config.convolutions)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; an empty trace."""
    style = (config.activation, config.initialisation)
    critic = networks.feedforward(config.convolutions, config.hidden, 1, *style)
    critic = networks.create(critic, key, spec.example())
    return State(
        critic=networks.Trained.create(critic, optimiser(config)),
        returns=normalise.create_discounted_sum(),
        spec=spec,
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
    """Uniform actions [..., A] or [...]."""
    leading = state.spec.leading(observation)
    return distributions.uniform(key, state.spec, leading), {}


def values(state: State, observation: Array, config: Config) -> Array:
    """V(s) [...] in the units of the rewards."""
    value = critic_gain(state.critic.parameters, observation)
    if not config.normalise_rewards:
        return value
    return value * jnp.sqrt(state.returns.moments.variance + 1e-8)


def critic_gain(critic: networks.Network, observation: Array) -> Array:
    """V(s) [...], which a positive error raises."""
    return critic(observation).squeeze(-1)


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
    value, gradient = jax.value_and_grad(critic_gain)(critic, batch.observation)
    next_value = critic_gain(critic, batch.next_observation)
    error = batch.reward + config.discount * (1.0 - final) * next_value - value
    trained = state.critic.apply(optimiser(config), gradient, error=error, reset=ended)
    metrics = {
        "critic/value": value,
        "critic/error": jnp.abs(error),
        "critic/reward": batch.reward,
    }
    return state.replace(critic=trained), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
