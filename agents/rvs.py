"""RvS [offline]: supervised learning of the data's actions, given the return that follows.

s_t state, a_t action, R_t sum of the rewards from t on, T the most steps of a
trajectory of the data, pi(.|s, w) = N(mu(s, w), std^2) with the actor mu
  w     = R_t / (T - t)  outcome "average"
  w     = R_t  outcome "sum"
  L(pi) = mean [ -log pi(a|s, w) ]  [1, eq. 1]

Acts by mu(s, w) with w = target / T throughout, "average", or with R_t = target -
(rewards of the episode so far), "sum". The target is `target_return`, or the
largest return of the data.

Departs from the paper's code [2]: its targets are shares of an expert's return.

[1] Emmons et al., RvS, arXiv:2112.10751; [2] github.com/scottemmons/rvs

  rljax train rvs --data d4rl/hopper-medium-replay-v2
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, distributions
from rljax.networks.layers import Dropout
from rljax.networks.recurrent import returns_to_go
from rljax.requirements import NonNegative, Share, Widths


@agent.config
class Config(networks.WithSchedule, returns_to_go.WithTargetReturn):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-3  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Data
    normalise_observations: bool = False  # by mean and std; [2]
    num_updates: int = 1  # updates per iteration
    # Policy
    outcome: Literal["average", "sum"] = "average"  # of the rewards to come; [2]
    # Network
    hidden: Widths = (1024, 1024)  # of the actor; [2]
    dropout: Share = 0.1  # of hidden units; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor
    best_return: Array  # [] the data's largest
    most_steps: Array  # [] T


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches, with the return from each step on."""
    return buffers.Dataset.of(
        config,
        columns=(buffers.ReturnToGo(), buffers.Time()),
        last_step=True,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("rvs", spec)
    agent.require_continuous("rvs", spec)
    agent.require_range(config, dropout=(0, 0.99))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    module = networks.MLP(config.hidden, spec.action_size, config.activation, config.initialisation)
    history = returns_to_go.history(spec, 1)
    network = networks.create(module, key, history.state[0], jnp.zeros(1))
    actor = Actor(network, jnp.zeros(spec.action_size), discrete=False, choices=())
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        best_return=jnp.zeros(()),
        most_steps=jnp.ones(()),
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """What is left of the return."""
    return returns_to_go.history(spec, 1)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O] with the last action and reward."""
    target = config.target(state.best_return)
    memory = memory.after(observation, target)
    w = memory.left
    if config.outcome == "average":
        w = jnp.broadcast_to(target / state.most_steps, w.shape)
    actor = state.actor.parameters
    action = actor.mean(memory.state[..., -1, :], w[..., None])
    if explore:
        action += jnp.exp(actor.log_std) * jax.random.normal(key, action.shape)
    return jnp.clip(action, -1.0, 1.0), {}, memory


def prepare(state: State, data: Transition, config: Config) -> State:
    """Keep the largest return of the data, and the most steps of a trajectory."""
    del config
    most_steps = 1.0 + data.extras["time"].max()
    return state.replace(best_return=returns_to_go.largest(data), most_steps=most_steps)


# [1, eq. 1]
def actor_loss(actor: Actor, state: State, batch: Transition, config: Config, key: Array) -> Loss:
    """Minus the log-likelihood of the data's actions."""
    observation, _, _ = returns_to_go.split(batch.observation, batch.action.shape[-1])
    w = batch.extras["return_to_go"]  # [B]
    if config.outcome == "average":
        w = w / jnp.maximum(state.most_steps - batch.extras["time"], 1.0)
    dropout = Dropout(key, config.dropout)
    mean = actor.mean(observation, w[:, None], dropout=dropout)  # [B, A]
    assert actor.log_std is not None
    pi = distributions.gaussian(mean, jnp.exp(actor.log_std))
    loss = -pi.log_prob(batch.action).mean()
    return loss, {"actor/loss": loss, "actor/log_std": actor.log_std.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the actor."""
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, config, key)
    return state.replace(actor=actor), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
