"""BC [offline]: supervised learning of the data's actions. It does not read rewards.

mu actor, pi its Gaussian, A action dimensions
  mse_mean   L = mean [ |mu(s) - a|^2 ] / A  [2]
  mse_sum    L = mean [ |mu(s) - a|^2 ]
  log_prob   L = mean [ -log pi(a|s) ]

mu(s) is tanh of the actor's output.
For discrete actions pi is a softmax.

Departs from the paper: it gives only the idea, for a car.
Losses and numbers are those of baselines, as in CORL [2].

[1] Pomerleau, ALVINN, NIPS 1988
[2] Tarasov et al., CORL, arXiv:2210.07105

  rljax train bc --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, encoders, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.policies import Imitation
from rljax.requirements import NonNegative, Positive, Widths


@agent.config
class Config(networks.WithSchedule, buffers.DatasetSettings, policies.WithImitation):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam, at the start; [2]
    decay_steps: Positive | None = None  # share of the run to rate 0; JAXRL: 1
    batch_size: int = 256  # transitions per update; [2]
    # Data
    normalise_observations: bool = True  # by mean and std; [2]
    # Policy
    loss: Literal["mse_mean", "mse_sum", "log_prob"] = "mse_mean"  # CORL, ReBRAC, IQL
    exploration_noise: NonNegative = 0.1  # std of noise on actions; TD3
    # Network
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all layers; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    online = buffers.Replay.of(config)
    return buffers.Dataset.of(config, learns_until=config.decay_steps, online=online)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("bc", spec)
    Imitation.of(config).check()
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    style = (config.activation, config.initialisation)
    mean_net = networks.MLP(config.hidden, spec.action_size, *style)
    mean_net = encoders.encoded(spec, EncoderSettings.of(config), mean_net)
    actor = policies.create_actor(spec, mean_net, key, config.loss == "log_prob")
    return State(networks.trained(actor, config.actor_lr, config))


def actor_rate(step: Array, config: Config) -> Array | float:
    """The actor's rate [] after `step` updates."""
    return networks.cosine_rate(config.actor_lr, step, config.decay_steps)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    policy = Imitation.of(config)
    return policy.act(state.actor.parameters, observation, key, explore), {}


def actor_loss(actor: Actor, batch: Transition, key: Array, config: Config) -> Loss:
    """Distance to the data's actions."""
    policy = Imitation.of(config)
    loss = policy.distance(actor, batch.observation, batch.action, key).mean()
    if config.loss == "mse_mean" and not actor.discrete:
        loss = loss / batch.action.shape[-1]
    return loss, {"actor/loss": loss}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the actor; its rate falls with `step`."""
    optimiser = networks.optimiser(actor_rate(step, config), step, config)
    actor, metrics = state.actor.step(optimiser, actor_loss, batch, key, config)
    return State(actor), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
