"""GCBC [goals]: supervised learning of the data's actions, with later states as goals.

s a state, h its goal, pi(.|s, h) = N(mu(s, h), 1) with the actor mu
  L(pi) = mean [ -log pi(a|s, h) ]

By default h is any later state of the row's trajectory.

Departs from the paper's code [2]: evenly drawn goals are all equally likely.

[1] Park et al., OGBench, arXiv:2410.20092; [2] github.com/seohongpark/ogbench
[3] Ghosh et al., Goal-conditioned supervised learning, arXiv:1912.06088

  rljax train gcbc --data ogbench/cube-single-play-v0
"""

from __future__ import annotations

from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import policies
from rljax.networks.goals import pairs
from rljax.requirements import NonNegative, Widths


@agent.config
class Config(networks.WithSchedule, buffers.WithActorGoals):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 1024  # transitions per update; [2]
    # Data
    normalise_observations: bool = False  # states and goals, by the data
    num_updates: int = 1  # updates per iteration
    # Network
    hidden: Widths = (512, 512, 512)  # of the actor; [2]
    activation: networks.Activation = "gelu_tanh"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes; [O] is [state; goal]."""

    actor: networks.Trained  # [O] -> [A]


def experience(config: Config) -> buffers.Dataset:
    """Batches of data, with goals for the actor."""
    return buffers.goal_dataset(config, buffers.Goals.of(config))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("gcbc", spec)
    agent.require_continuous("gcbc", spec)
    buffers.check_goals(config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    actor = pairs.create_actor(spec, key, config)
    return State(networks.trained(actor, config.actor_lr, config))


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for states with goals [..., O]."""
    return policies.unit_action(state.actor(observation), key, explore), {}


# [3, eq. 2]
def actor_loss(actor: networks.Network, batch: Transition) -> Loss:
    """Minus the log-likelihood of the data's actions."""
    mean = actor(batch.extras["actor_observation"])  # [B, A]
    loss = policies.unit_distance(mean, batch.action).mean()
    return loss, {"actor/loss": loss}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; extras hold the actor's goals."""
    del key
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, metrics = state.actor.step(optimiser, actor_loss, batch)
    return State(actor), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
