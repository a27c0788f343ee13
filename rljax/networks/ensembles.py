"""Critics of discrete actions, and what agents do with an ensemble: its smallest value, that of a subset, members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, EnvSpec
from rljax.networks.layers import Encoded, Ensemble, Network


def ensemble(spec: EnvSpec, *arguments: Any, **options: Any) -> Ensemble:
    """Critics for an environment's actions, which take (observation, action) to values [C, ...].

    They are a `DiscreteEnsemble` where an action is one discrete one, a `ChoicesEnsemble` where it is several, and an
    `Ensemble` elsewhere.
    """
    if spec.choices:
        return ChoicesEnsemble(*arguments, choices=spec.choices, **options)
    if spec.discrete:
        return DiscreteEnsemble(*arguments, features=spec.action_size, **options)
    return Ensemble(*arguments, **options)


class DiscreteEnsemble(Ensemble):
    """Independent MLPs whose outputs are the values of `features` discrete actions."""

    def __call__(self, observation: Array, action: Array | None = None) -> Array:
        """The values [C, ..., A] of all actions for observations [..., O], or those [C, ...] of actions int32 [...]."""
        q = super().__call__(observation)
        q = q[..., None] if self.features == 1 else q
        return q if action is None else (q * jax.nn.one_hot(action, self.features)).sum(axis=-1)


class ChoicesEnsemble(Ensemble):
    """Independent MLPs with several discrete actions as an input: each as a vector that is 1 at its choice."""

    choices: tuple[int, ...] = ()

    def __call__(self, observation: Array, action: Array) -> Array:
        """The values [C, ...] of actions int32 [..., K] for observations [..., O]."""
        chosen = [jax.nn.one_hot(action[..., i], number) for i, number in enumerate(self.choices)]
        return super().__call__(observation, *chosen)


def smallest(values: Array, axis: int = 0) -> Array:
    """The smallest value over `axis`: of critics [C, ...], their minimum [...]. Its gradient goes to one value only.

    The gradient of `values.min(axis)` is divided by the number of values that equal the minimum. If XLA computes the
    values twice and rounds them differently, that number can be 0, and the gradient is 0 / 0.
    """
    chosen = jnp.argmin(jax.lax.stop_gradient(values), axis=axis)
    return jnp.where(jax.nn.one_hot(chosen, values.shape[axis], axis=axis, dtype=bool), values, 0.0).sum(axis=axis)


def smallest_of_subset(values: Array, number: int | None, key: Array) -> Array:
    """The smallest value [...] of `number` critics, which are drawn from the C of `values` [C, ...]; None: of all.

    One subset serves the whole batch, as in REDQ (Chen et al., arXiv:2101.05982, algorithm 1).
    """
    if number is None:
        return values.min(axis=0)
    chosen = jax.random.choice(jax.random.fold_in(key, 1), values.shape[0], (number,), replace=False)
    return values[chosen].min(axis=0)


def member(ensemble: Network, index: int) -> Network:
    """One member of an `Ensemble` network, as an ensemble of one: [C, ...] becomes [1, ...]."""
    return _of_one(ensemble, lambda x: x[index : index + 1])


def members(ensemble: Network) -> Network:
    """An `Ensemble` network as a stack [C, ...] of ensembles of one: under `vmap` each member has its own inputs."""
    return _of_one(ensemble, lambda x: x[:, None])


def _of_one(ensemble: Network, select: Callable[[Array], Array]) -> Network:
    """An ensemble of size 1, or a stack of them, with `select` of each leaf of the ensemble; its encoder is shared."""
    if isinstance(ensemble.module, Encoded):
        inner = _of_one(ensemble.replace(params=ensemble.params["body"], module=ensemble.module.body), select)
        module = ensemble.module.clone(body=inner.module)
        return ensemble.replace(params={**ensemble.params, "body": inner.params}, module=module)
    params, collections = jax.tree.map(select, (ensemble.params, dict(ensemble.collections)))
    return Network(params, ensemble.module.clone(size=1), collections=collections, dtypes=ensemble.dtypes)
