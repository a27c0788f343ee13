"""Temperatures alpha, learnt so that a policy's entropy H meets a target:

  L(alpha) = log alpha (H - target_entropy)    Stable-Baselines3
       or    alpha (H - target_entropy)        [1, eq. 18]

Adam moves log alpha in both. For a softmax of values:

  L(alpha) = mean (H(softmax(Q(s, .) / alpha)) - target_entropy)^2    [2], its code

[1] Haarnoja et al., arXiv:1812.05905
[2] Ghugare et al., arXiv:2602.05999
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
import optax

from rljax.agent import Array, Loss, Metrics, Number, config, same_fields
from rljax.networks import distributions
from rljax.networks.optimisation.optimisers import WithCritics
from rljax.networks.optimisation.trained import Trained
from rljax.requirements import Between, NonNegative, Real

Form = Literal["log_alpha", "alpha"]
Temperature = Annotated[float, Between(1e-8, None)]


@config
class WithTemperature(WithCritics):
    """Settings of a temperature learnt as in SAC, and of the networks: a base of an
    agent's Config.
    """

    temperature_lr: NonNegative = 3e-4  # of Adam, for log alpha; arXiv:1812.05905
    init_temperature: Temperature = 1.0  # alpha at the start; SB3 "auto", CleanRL
    target_entropy: Real | None = None  # in nats; None: -A, or a share of it; arXiv:1812.05905
    learn_temperature: bool = True  # False keeps alpha at init_temperature
    temperature_loss: Form = "log_alpha"  # SB3; "alpha" in CleanRL, Brax


class TemperatureSettings(NamedTuple):
    """What moves a temperature; numbers may be tracers."""

    temperature_lr: Any = 3e-4
    init_temperature: Any = 1.0
    target_entropy: Any = None  # [], None: -`target_entropy_share` A
    target_entropy_share: Any = 1.0
    learn_temperature: bool = True
    temperature_loss: Form = "log_alpha"
    temperature_momentum: Any = 0.9  # beta_1 of Adam
    temperature_second_moment: Any = 0.999  # beta_2 of Adam
    temperature_decay: Any = None  # of log alpha in each step, times the learning rate: AdamW

    @classmethod
    def of(cls, config: Any, **others: Any) -> TemperatureSettings:
        """By a Config, with `others` in place of its fields."""
        return cls(**same_fields(config, cls._fields) | others)

    def optimiser(self) -> optax.GradientTransformation:
        """What moves log alpha."""
        betas = {"b1": self.temperature_momentum, "b2": self.temperature_second_moment}
        if self.temperature_decay is None:
            return optax.adam(self.temperature_lr, **betas)
        return optax.adamw(self.temperature_lr, **betas, weight_decay=self.temperature_decay)


def create(config: Any) -> Trained:
    """log alpha [] before the first step, by a Config or `TemperatureSettings`."""
    settings = TemperatureSettings.of(config)
    log_temperature = jnp.log(jnp.asarray(settings.init_temperature, jnp.float32))
    return Trained.create(log_temperature, settings.optimiser())


def loss(
    log_temperature: Array, entropy: Array, action_size: int, settings: TemperatureSettings
) -> Loss:
    """L(alpha) of the policy's entropy []."""
    target_entropy = settings.target_entropy
    if target_entropy is None:
        target_entropy = -settings.target_entropy_share * action_size
    temperature = jnp.exp(log_temperature)
    factor = log_temperature if settings.temperature_loss == "log_alpha" else temperature
    loss = factor * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": temperature}


def step(
    log_temperature: Trained, entropy: Array, action_size: int, config: Any
) -> tuple[Trained, Metrics]:
    """log alpha [] after one step, if it is learnt, and metrics; `config` as in `create`."""
    settings = TemperatureSettings.of(config)
    optimiser = settings.optimiser()
    moved, metrics = log_temperature.step(optimiser, loss, entropy, action_size, settings)
    return (moved if settings.learn_temperature else log_temperature), metrics


def softmax(log_temperature: Array, q: Array) -> distributions.Distribution:
    """softmax(q / alpha) for values [..., A]."""
    return distributions.categorical(q / jnp.maximum(jnp.exp(log_temperature), 1e-6))


def softmax_loss(
    log_temperature: Array, q: Array, mask: Array | None, target_entropy: Number | None
) -> Loss:
    """The last L(alpha) for values [B, A] and the `mask` [B, A] of allowed actions, if any.

    A target of None is log(n / 2) for n allowed actions, as in [2]'s code, where n is A.
    """
    if target_entropy is None:
        number = q.shape[-1] if mask is None else jnp.maximum(mask.sum(axis=-1), 1)
        target_entropy = jnp.log(number / 2)
    entropy = softmax(log_temperature, q).entropy()  # [B]
    loss = jnp.square(entropy - target_entropy).mean()
    return loss, {
        "temperature/loss": loss,
        "temperature/value": jnp.exp(log_temperature),
        "actor/entropy": entropy.mean(),
    }


def softmax_step(
    log_temperature: Trained, q: Array, mask: Array | None, config: Any
) -> tuple[Trained, Metrics]:
    """log alpha [] after one step of `softmax_loss`, and metrics; `config` as in `create`."""
    settings = TemperatureSettings.of(config)
    optimiser = settings.optimiser()
    return log_temperature.step(optimiser, softmax_loss, q, mask, settings.target_entropy)
