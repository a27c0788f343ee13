"""Policies of on-policy agents: distributions over raw actions.

A raw action becomes the environment's action when it leaves the agent: it is clipped to [-1, 1],
or squashed by tanh. Log-probabilities are those of the raw action, or of the squashed one.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rljax.agent import Array, EnvSpec, mask_of
from rljax.networks import distributions
from rljax.networks.layers import Network

Kind = Literal["gaussian", "tanh_gaussian"]  # of continuous actions


@dataclasses.dataclass(frozen=True)
class RawActions:
    """What an environment's raw actions are, and how a network's output describes them."""

    spec: EnvSpec
    squashed: bool = False  # actions are tanh of a Gaussian

    @classmethod
    def of(cls, spec: EnvSpec, kind: Kind = "gaussian") -> RawActions:
        """Those of an environment. Where there are choices, nothing is squashed."""
        return cls(spec, kind == "tanh_gaussian" and not (spec.discrete or spec.choices))

    @property
    def features(self) -> int:
        """Outputs of the actor's network: means or logits; mean and deviation where squashed."""
        return self.spec.action_size * (2 if self.squashed else 1)

    def log_std(self, value: Array | float) -> Array | None:
        """Log std [A], the same in all states; None for discrete and for squashed actions."""
        if self.spec.discrete or self.squashed:
            return None
        return jnp.full(self.spec.numbers, value, jnp.float32)

    def distribution(
        self, output: Array, log_std: Array | None, mask: Array | None = None
    ) -> distributions.Distribution:
        """pi(.|s) over raw actions for outputs [..., `features`].

        `mask` [..., A] says which discrete actions are allowed; None: all.
        """
        if self.squashed:
            mean, deviation = jnp.split(output, 2, axis=-1)
            std = jax.nn.softplus(deviation) + 1e-3  # Brax's lower limit
            return distributions.gaussian(mean, std)
        if log_std is None:
            return distributions.discrete(output, self.spec.choices, mask)
        return distributions.gaussian_beside(output, jnp.exp(log_std), self.spec.choices)

    def actor(self, network: Network, log_std: Array | float) -> distributions.Actor:
        """The parameters of a policy: `network` maps [O] to [`features`], `log_std` is of all states."""
        return distributions.Actor(
            network, self.log_std(log_std), self.spec.discrete, self.spec.choices
        )

    def policy(self, actor: distributions.Actor, observation: Any) -> distributions.Distribution:
        """pi(.|s) over raw actions for observations [..., O...], which may hold a mask."""
        return self.distribution(actor.mean(observation), actor.log_std, mask_of(observation))

    def emit(self, raw: Any) -> Array:
        """The action that the environment gets."""
        return jnp.tanh(raw) if self.squashed else distributions.clipped(raw, self.spec)

    def log_prob(self, pi: distributions.Distribution, raw: Any) -> Array:
        """log pi(a|s) [...] of raw actions [..., A] or [...]."""
        density: Any = pi.log_prob(raw)
        return density - distributions.tanh_log_slope(raw) if self.squashed else density

    def entropy(self, pi: distributions.Distribution, key: Array) -> Array:
        """H(pi(.|s)) [...]; an estimate by one sample where squashed: it has no closed form."""
        entropy: Any = pi.entropy()
        if not self.squashed:
            return entropy
        sample: Any = pi.sample(seed=key)
        return entropy + distributions.tanh_log_slope(sample)
