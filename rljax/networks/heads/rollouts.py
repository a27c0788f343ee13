"""Critics of rollouts: means of returns by squared errors, or quantiles of returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax.agent import MEMORY, Array, Loss, Transition, config
from rljax.networks import memories
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


def values(critic: Any, torso: Any, batch: Transition) -> tuple[Array, Array]:
    """A critic's outputs [T, E, ...] for s_t and for s'_t of a rollout.

    Its inputs are features of `torso`, or observations where that is None. Take no gradients.
    """
    if MEMORY in batch.extras:
        features, following = memories.following(torso, batch)
        return critic(features), critic(following)

    def outputs(observation: Any) -> Array:
        return critic(observation if torso is None else torso(observation))

    value = outputs(batch.observation)
    return value, next_values(outputs, value, batch)


def next_values(function: Callable[[Any], Array], values: Array, batch: Transition) -> Array:
    """f(s'_t) [T, E, ...] of a rollout, from its `values` f(s_t) [T, E, ...].

    s'_t is s_{t+1}, except where t was truncated or is the last step. `function` is called for
    those alone, with E observations [E, O...] at a time. Where t terminated, the value is that of
    another episode.
    """
    steps, number = batch.truncated.shape
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.next_observation)
    missing = batch.truncated.at[-1].set(True).reshape(-1)
    shifted = jnp.roll(values, -1, axis=0).reshape(-1, *values.shape[2:])

    def any_missing(carry: tuple[Array, Array]) -> Array:
        return carry[1].any()

    def compute(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        result, missing = carry
        # Writes past the end are dropped.
        (index,) = jnp.nonzero(missing, size=number, fill_value=steps * number)
        computed = function(jax.tree.map(lambda x: x[index], rows))
        result = result.at[index].set(computed, mode="drop")
        return result, missing.at[index].set(False, mode="drop")

    result, _ = jax.lax.while_loop(any_missing, compute, (shifted, missing))
    return result.reshape(values.shape)


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
