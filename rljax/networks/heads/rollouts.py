"""Critics of rollouts: means of returns by squared errors, or quantiles of returns."""

from __future__ import annotations

from typing import Annotated, Any

import jax.numpy as jnp

from rljax.agent import Array, Loss, Transition, config
from rljax.networks.heads.kinds import Quantile
from rljax.requirements import AtLeast, Positive


@config
class WithRolloutValues:
    """Settings of what a critic of rollouts learns: a base of an agent's Config."""

    clip_values: bool = False  # of V too, by epsilon; Huang et al., 2022
    quantiles: Annotated[int, AtLeast(2)] | None = None  # of returns; None: their mean; Brax: 32
    kappa: Positive = 1.0  # error up to which the quantiles' loss is quadratic; Brax


def outputs(settings: WithRolloutValues) -> int:
    """K, the outputs of a critic."""
    return settings.quantiles or 1


def value_loss(outputs: Array, batch: Transition, settings: Any) -> Loss:
    """The loss [] of outputs [B, K] by a Config, for targets A + V of a batch whose extras have
    both [B].

    Half the mean squared error, or the larger one of V and of V within `clip_ratio` of its value
    before; or the mean Huber loss of all quantiles, arXiv:1710.10044, times kappa as in Brax.
    """
    value, old = outputs.mean(axis=-1), batch.extras["value"]
    target = old + batch.extras["advantage"]
    if settings.quantiles is None:
        error = jnp.square(value - target)
        if settings.clip_values:
            near = old + jnp.clip(value - old, -settings.clip_ratio, settings.clip_ratio)
            error = jnp.maximum(error, jnp.square(near - target))
        loss = 0.5 * error.mean()
    else:
        losses = Quantile(settings.quantiles, settings.kappa).loss(outputs, target[..., None])
        loss = settings.kappa * losses.mean() / settings.quantiles
    return loss, {"critic/loss": loss, "critic/value": value.mean()}
