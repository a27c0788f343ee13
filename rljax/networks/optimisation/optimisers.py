"""Optimisers by an agent's settings, and numbers that change during a run."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import optax

from rljax.agent import Array, Number, config
from rljax.networks.layers import Network
from rljax.networks.optimisation.trained import Trained, clipped, cosine_rate
from rljax.requirements import NonNegative, Positive, Share, Widths

Kind = Literal["adam", "radam", "rmsprop", "sgd"]
Schedule = Literal["constant", "linear", "cosine"]


@config
class WithOptimiser:
    """Settings of the networks' optimisers: a base of an agent's Config."""

    optimiser: Kind = "adam"  # of all networks; rmsprop, sgd: PyTorch's
    weight_decay: NonNegative | None = None  # in each step, times the learning rate: AdamW
    max_grad_norm: NonNegative | None = None  # of a network's gradient; None, 0: no limit


@config
class WithSchedule(WithOptimiser):
    """Settings of optimisers whose learning rates follow a schedule: a base of a Config."""

    rate_schedule: Schedule = "constant"  # of all networks' learning rates
    rate_end: Share = 0.0  # share of the learning rates that is left at the schedule's end
    rate_updates: Positive | None = None  # updates to its end; None: those of the run

    def in_run(self, updates: float) -> Self:
        """The Config for a run of so many updates."""
        if self.rate_schedule == "constant" or self.rate_updates is not None:
            return self
        return dataclasses.replace(self, rate_updates=updates)


@config
class WithCritics(WithSchedule):
    """Settings of scheduled optimisers, and of critics beside `hidden`: a base of a Config."""

    critic_hidden: Widths | None = None  # of critics and value networks; None: as `hidden`

    @property
    def critic_widths(self) -> tuple[int, ...]:
        """The widths of critics and value networks."""
        settings: Any = self
        return settings.hidden if self.critic_hidden is None else self.critic_hidden


def trained(parameters: Any, rate: Number, settings: WithOptimiser) -> Trained:
    """Parameters before the first step of the optimiser by a Config."""
    return Trained.create(parameters, optimiser(rate, 0, settings))


def optimiser(
    rate: Number,
    step: Array | int,
    settings: WithOptimiser,
    epsilon: Number = 1e-8,
    momentum: float = 0.9,
    second_moment: float = 0.999,
) -> optax.GradientTransformation:
    """The optimiser by a Config, with the learning rate `rate` [] after `step` [] updates.

    `epsilon`, `momentum` and `second_moment` are Adam's epsilon, beta_1 and beta_2. Weight decay is
    decoupled from the gradient and moves parameters alone: Loshchilov and Hutter, arXiv:1711.05101.
    """
    rate = scheduled(rate, step, settings)
    decay = settings.weight_decay
    adam = {"b1": momentum, "b2": second_moment, "eps": epsilon}
    if settings.optimiser == "adam" and decay is None:
        moved = optax.adam(rate, **adam)
    else:
        decayed = [] if decay is None else [optax.add_decayed_weights(decay, are_parameters)]
        parts = (_direction(settings.optimiser, adam), *decayed)
        moved = optax.chain(*parts, optax.scale_by_learning_rate(rate))
    return moved if settings.max_grad_norm is None else clipped(moved, settings.max_grad_norm)


def _direction(kind: Kind, adam: dict[str, Any]) -> optax.GradientTransformation:
    match kind:
        case "adam":
            return optax.scale_by_adam(**adam)
        case "radam":
            return optax.scale_by_radam(**adam)
        case "rmsprop":
            return optax.scale_by_rms(decay=0.99, eps=adam["eps"], eps_in_sqrt=False)
        case "sgd":
            return optax.identity()
    raise ValueError(f"no optimiser '{kind}'.")


def scheduled(rate: Number, step: Array | int, settings: WithOptimiser) -> Number:
    """A learning rate [] after `step` [] updates, by a Config.

    It is constant without a schedule, and where neither a run nor the Config says how many updates
    there are.
    """
    if not isinstance(settings, WithSchedule) or settings.rate_schedule == "constant":
        return rate
    updates = settings.rate_updates
    if updates is None:
        return rate
    end = settings.rate_end
    if settings.rate_schedule == "linear":
        return rate * linear(1.0, end, jnp.float32(step), updates)
    return rate * (end + cosine_rate(1.0 - end, jnp.float32(step), updates))


def decayed(settings: Any, rollouts: Array | int) -> Any:
    """The `learning_rate` [] of a Config after `rollouts` [] of `num_envs` times `num_steps` steps.

    It falls to 0 within `decay_steps`; None: constant.
    """
    if settings.decay_steps is None:
        return settings.learning_rate
    return settings.learning_rate * left(settings, rollouts, settings.decay_steps)


def left(settings: Any, rollouts: Array | int, duration: Number) -> Array:
    """The share [] of `duration` environment steps that is left after `rollouts` [] of a Config."""
    # int32 could overflow
    steps = jnp.float32(rollouts) * (settings.num_envs * settings.num_steps)
    return linear(1.0, 0.0, steps, duration)


def linear(start: Number, end: Number, steps: Any, duration: Number) -> Array:
    """A number [] after `steps` []: it goes from `start` to `end` in `duration` steps."""
    passed = jnp.minimum(steps / duration, 1.0)
    return start + (end - start) * passed


def are_parameters(tree: Any) -> Any:
    """A tree of truth values: which leaves are parameters, and no network's collections."""

    def mark(part: Any) -> Any:
        marked = jax.tree.map(lambda _: True, part)
        if not isinstance(part, Network):
            return marked
        return marked.replace(collections=jax.tree.map(lambda _: False, part.collections))

    return jax.tree.map(mark, tree, is_leaf=lambda x: isinstance(x, Network))
