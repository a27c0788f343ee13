"""Stream AC(lambda) [streaming]: actor-critic from each transition once.

V critic, pi actor, gamma discount, lambda trace decay
tau entropy cost, end_t: the episode ended with s'_t
  delta_t = r_t + gamma (1 - end_t) V(s'_t) - V(s_t)  [1, stream AC]
  e_V     <- gamma lambda e_V  + grad V(s_t)
  e_pi    <- gamma lambda e_pi + grad [log pi(a_t|s_t) + tau sign(delta_t) H(pi(.|s_t))]
  V       <- V + alpha delta_t e_V
  pi      <- pi + alpha delta_t e_pi
             ObGD: optimisation/traces.py
  e_V, e_pi <- 0 where end_t

Departs from the paper: actions are in normalised units.

[1] Elsayed et al., Streaming Deep RL Finally Works, arXiv:2410.14606

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
from rljax.networks import distributions, normalise
from rljax.networks.optimisation import traces
from rljax.requirements import Decay, NonNegative, Real, Share, Widths


@agent.config
class Config(buffers.StreamSettings):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 1.0  # alpha, before its bound; [1]
    actor_kappa: NonNegative = 3.0  # larger: smaller steps; [1]
    critic_kappa: NonNegative = 2.0  # larger: smaller steps; [1]
    adaptive: bool = False  # traces by the RMS of steps; [1]
    second_moment_decay: Decay = 0.999  # beta (adaptive); [1]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    trace_decay: Share = 0.8  # lambda; [1]
    bootstrap_truncated: bool = False  # V(s') at time limits; [1]: no
    entropy_cost: Real = 0.01  # tau; [1]
    # Inputs
    normalise_rewards: bool = True  # by the std of returns; [1]
    # Networks
    hidden: Widths = (128, 128)  # with LayerNorm; [1]
    convolutions: tuple[tuple[int, int, int], ...] = ()  # of pictures
    activation: networks.Activation = "leaky_relu"  # of hidden layers; [1]
    initialisation: networks.Initialisation = "sparse"  # of all layers; [1]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and raw std; or [A]: logits
    critic: networks.Trained  # [O] -> [1]
    returns: normalise.DiscountedSum  # of rewards []
    discrete: bool = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Stream:
    """One transition at a time."""
    return buffers.Stream.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_one_action("stream_ac", spec)
    agent.require_fit(spec, config.convolutions)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; empty traces."""
    key_actor, key_critic = jax.random.split(key)
    observation = spec.example()
    style = (config.activation, config.initialisation)
    outputs = spec.action_size * (1 if spec.discrete else 2)
    actor = networks.feedforward(config.convolutions, config.hidden, outputs, *style)
    critic = networks.feedforward(config.convolutions, config.hidden, 1, *style)
    actor = networks.create(actor, key_actor, observation)
    critic = networks.create(critic, key_critic, observation)
    return State(
        actor=networks.Trained.create(actor, optimiser(config.actor_kappa, config)),
        critic=networks.Trained.create(critic, optimiser(config.critic_kappa, config)),
        returns=normalise.create_discounted_sum(),
        discrete=spec.discrete,
    )


def optimiser(kappa: Array | float, config: Config) -> optax.GradientTransformationExtraArgs:
    """ObGD with traces, of the actor or of the critic."""
    return traces.optimiser(
        adaptive=config.adaptive,
        kappa=kappa,
        discount=config.discount,
        trace_decay=config.trace_decay,
        learning_rate=config.learning_rate,
        second_moment_decay=config.second_moment_decay,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    pi = policy(state.actor, observation, state.discrete)
    raw: Any = pi.sample(seed=key) if explore else pi.mode()
    action = raw if state.discrete else jnp.clip(raw, -1.0, 1.0)
    return action, {"raw": raw} if explore else {}


def policy(
    actor: networks.AnyNetwork, observation: Array, discrete: bool
) -> distributions.Distribution:
    """pi(.|s) over actions that are not yet clipped."""
    output = actor(observation)
    if discrete:
        return distributions.categorical(output)
    mean, raw_std = jnp.split(output, 2, axis=-1)
    return distributions.gaussian(mean, jax.nn.softplus(raw_std))


def critic_gain(critic: networks.Network, observation: Array) -> Array:
    """V(s) [], which a positive error raises."""
    return critic(observation).squeeze(-1)


def actor_gain(
    actor: networks.Network, state: State, batch: Transition, error: Array, config: Config
) -> tuple[Array, Metrics]:
    """log pi(a|s) + tau sign(delta) H(pi(.|s)) [].

    Multiplied by delta, the bonus always raises the entropy.
    """
    pi = policy(actor, batch.observation, state.discrete)
    entropy = pi.entropy()
    log_prob = jnp.asarray(pi.log_prob(batch.extras["raw"]))
    gain = log_prob + config.entropy_cost * jnp.sign(error) * entropy
    return gain, {"actor/entropy": entropy}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one transition, of observations [O]."""
    ended = batch.terminated | batch.truncated
    final = batch.terminated if config.bootstrap_truncated else ended
    if config.normalise_rewards:
        returns, batch = normalise.scale_transition(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    actor, critic = state.actor, state.critic
    value, critic_gradient = jax.value_and_grad(critic_gain)(critic.parameters, batch.observation)
    next_value = critic_gain(critic.parameters, batch.next_observation)
    error = batch.reward + config.discount * (1.0 - final) * next_value - value
    actor_gradient, metrics = jax.grad(actor_gain, has_aux=True)(
        actor.parameters, state, batch, error, config
    )
    obgd = optimiser(config.critic_kappa, config)
    critic = critic.apply(obgd, critic_gradient, error=error, reset=ended)
    obgd = optimiser(config.actor_kappa, config)
    actor = actor.apply(obgd, actor_gradient, error=error, reset=ended)
    metrics |= {
        "critic/value": value,
        "critic/error": jnp.abs(error),
        "critic/reward": batch.reward,
    }
    return state.replace(actor=actor, critic=critic), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
