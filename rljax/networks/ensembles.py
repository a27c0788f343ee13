"""Critics of discrete actions or with bins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array, EnvSpec, Number, Transition, config
from rljax.networks import heads
from rljax.networks.layers import Encoded, Ensemble, Network, create
from rljax.networks.optimisation.trained import Trained, parameters_of
from rljax.requirements import NonNegative

T = TypeVar("T")
Reduction = Literal["mean", "min"]  # over critics


def ensemble(spec: EnvSpec, *arguments: Any, **options: Any) -> Ensemble:
    """Critics for an environment's actions, which take (observation, action) to values [C, ...]."""
    if spec.choices:
        return ChoicesEnsemble(*arguments, choices=spec.choices, **options)
    if spec.discrete:
        return DiscreteEnsemble(*arguments, features=spec.action_size, **options)
    return Ensemble(*arguments, **options)


class DiscreteEnsemble(Ensemble):
    """MLPs whose outputs are the values of `features` discrete actions."""

    def __call__(self, observation: Array, action: Array | None = None) -> Array:
        """Values [C, ..., A] of all actions for observations [..., O], or [C, ...] of actions int32
        [...].
        """
        q = super().__call__(observation)
        q = q[..., None] if self.features == 1 else q
        return q if action is None else (q * jax.nn.one_hot(action, self.features)).sum(axis=-1)


def one_hot(action: Array, choices: tuple[int, ...]) -> list[Array]:
    """A vector [..., choices] for each discrete action of int32 [..., K]."""
    return [jax.nn.one_hot(action[..., i], number) for i, number in enumerate(choices)]


class ChoicesEnsemble(Ensemble):
    """MLPs with several discrete actions as inputs, each one-hot."""

    choices: tuple[int, ...] = ()

    def __call__(self, observation: Array, action: Array) -> Array:
        """Values [C, ...] of actions int32 [..., K]."""
        return super().__call__(observation, *one_hot(action, self.choices))


class BinnedEnsemble(Ensemble):
    """MLPs that classify values, with `features` outputs each; discrete actions are one-hot.

    `bounds` [2] are the ends of the bins, without gradient.
    """

    kind: heads.Kind = "hl_gauss"
    choices: tuple[int, ...] = ()

    def __call__(
        self, observation: Array, action: Array, *, bounds: Array, raw: bool = False
    ) -> Array:
        """Values [C, ...] of actions [..., A] for observations [..., O], or `raw` outputs [C, ...,
        K].
        """
        action = action[..., None] if len(self.choices) == 1 else action
        inputs = one_hot(action, self.choices) if self.choices else [action]
        outputs = super().__call__(observation, *inputs)
        return outputs if raw else self.head(bounds).mean(outputs)

    def head(self, bounds: Array) -> heads.TwoHot:
        """The head of the outputs."""
        low, high = jax.lax.stop_gradient(bounds)
        return (heads.TwoHot if self.kind == "two_hot" else heads.HLGauss)(self.features, low, high)


def create_critic(
    module: nn.Module, head: heads.HeadSettings, spec: EnvSpec, key: Array, *inputs: Any
) -> Network:
    """Initialise critics, an `Ensemble` or an `Encoded` one, for example (observation, action)."""
    if head.value_head == "squared":
        return create(module, key, *inputs)
    ensemble: Any = module.body if isinstance(module, Encoded) else module
    choices = (spec.choices or (spec.action_size,)) if spec.discrete else ()
    options = {"features": head.bins, "kind": head.value_head, "choices": choices}
    style = {field.name: getattr(ensemble, field.name) for field in dataclasses.fields(Ensemble)}
    binned = BinnedEnsemble(**style | options)
    module = module.clone(body=binned) if isinstance(module, Encoded) else binned
    ends = [jnp.nan if end is None else end for end in (head.v_min, head.v_max)]
    ends = [jnp.asarray(end, jnp.float32) for end in ends]
    network = create(module, key, *inputs, bounds=jnp.ones(2))
    return network.replace(options={"bounds": jnp.stack(ends)})


def fit_bins(critic: T, data: Transition, discount: Number, scale: Number = 1.0) -> T:
    """Critics whose unknown ends of bins, if any, lie around the discounted returns of data [N,
    ...].

    `scale` multiplies rewards.
    """
    if isinstance(critic, Trained):
        return critic.replace(parameters=fit_bins(critic.parameters, data, discount, scale))
    body = _body(critic)
    if not isinstance(body, BinnedEnsemble):
        return critic
    network: Any = critic
    returns = heads.range_of_returns(data, discount, scale)
    known, fitted = network.options["bounds"], heads.bounds_of_bins(returns, body.features)
    return network.replace(options={"bounds": jnp.where(jnp.isnan(known), fitted, known)})


def outputs_and_head(
    critic: Network | Trained, observation: Any, action: Array
) -> tuple[Array, heads.Scalar | heads.TwoHot]:
    """Outputs [C, ...] or [C, ..., K] for actions [..., A], and the head that reads them."""
    network: Any = parameters_of(critic)
    body = _body(network)
    if not isinstance(body, BinnedEnsemble):
        return network(observation, action), heads.Scalar("squared")
    return network(observation, action, raw=True), body.head(network.options["bounds"])


def _body(critic: Any) -> Any:
    module = getattr(critic, "module", None)  # critics may be any function
    return module.body if isinstance(module, Encoded) else module


def reduced(values: Array, reduction: Reduction) -> Array:
    """The mean or the smallest [...] over critics [C, ...]."""
    return values.mean(axis=0) if reduction == "mean" else values.min(axis=0)


def smallest(values: Array, axis: int = 0) -> Array:
    """The smallest value over `axis`: of critics [C, ...], their minimum [...].

    Its gradient goes to one value; that of `values.min(axis)` can be 0 in XLA.
    """
    index = jnp.argmin(jax.lax.stop_gradient(values), axis=axis)
    mask = jax.nn.one_hot(index, values.shape[axis], axis=axis, dtype=bool)
    return jnp.where(mask, values, 0.0).sum(axis=axis)


@config
class WithPessimism:
    """Settings of what several critics say together: a base of an agent's Config."""

    pessimism: NonNegative | None = None  # std off their mean; None: the smallest; QAM: 0.5


def lower_bound(values: Array, pessimism: Number | None) -> Array:
    """Critics' values [C, ...] as one [...]: their mean minus `pessimism` times their standard
    deviation; None: the smallest.

    arXiv:2601.14234, its code. The gradient is finite where all values are equal.
    """
    if pessimism is None:
        return smallest(values)
    variance = values.var(axis=0)
    differ = variance > 0.0
    std = jnp.where(differ, jnp.sqrt(jnp.where(differ, variance, 1.0)), 0.0)
    return values.mean(axis=0) - pessimism * std


def largest(values: Array, axis: int = 0) -> Array:
    """The largest value over `axis`, with a gradient as of `smallest`."""
    return -smallest(-values, axis)


def subset(values: Array, number: int | None, key: Array, with_replacement: bool = False) -> Array:
    """The values or outputs of `number` critics drawn from [C, ...]; None: of all.

    One subset serves the whole batch (REDQ, arXiv:2101.05982, algorithm 1). Its critics differ,
    unless they are drawn `with_replacement`.
    """
    if number is None:
        return values
    return values[jax.random.choice(key, values.shape[0], (number,), with_replacement)]


def smallest_of_subset(
    values: Array, number: int | None, key: Array, with_replacement: bool = False
) -> Array:
    """The smallest value [...] of a `subset` of critics' values [C, ...]."""
    return subset(values, number, key, with_replacement).min(axis=0)


def member(ensemble: Network | Trained, index: int) -> Network:
    """One member of an `Ensemble` as an ensemble of one: [C, ...] becomes [1, ...]."""
    return _of(parameters_of(ensemble), lambda x: x[index : index + 1])


def random_members(ensemble: Network | Trained, number: int, key: Array) -> Network:
    """An ensemble of `number` different members of an `Ensemble`, drawn at random: its values are
    those of `subset`, without computing the others.
    """
    network: Any = parameters_of(ensemble)
    index = jax.random.choice(key, _body(network).size, (number,), replace=False)
    return _of(network, lambda x: x[index], number)


def members(ensemble: Network | Trained) -> Network:
    """An `Ensemble` as a stack [C, ...] of ensembles of one, for `vmap` over their inputs."""
    return _of(parameters_of(ensemble), lambda x: x[:, None])


def values_and_slopes(
    ensemble: Network | Trained, observation: Any, action: Array
) -> tuple[Array, Array]:
    """Q_c(s, a) [C, B] and its slope in the action [C, B, A], in one pass."""
    stack = members(ensemble)

    def total(critic: Network, action: Array) -> tuple[Array, Array]:
        q = critic(observation, action)[0]
        return q.sum(), q

    slopes = jax.value_and_grad(total, argnums=1, has_aux=True)
    (_, q), slope = jax.vmap(slopes, in_axes=(_member_axes(stack), None))(stack, action)
    return q, slope


def _member_axes(stack: Network) -> Network:
    axes = jax.tree.map(lambda _: 0, stack)
    if isinstance(stack.module, Encoded):
        axes = axes.replace(params={**axes.params, "encoder": None})
    return axes


def _of(ensemble: Network, select: Callable[[Array], Array], size: int = 1) -> Network:
    if isinstance(ensemble.module, Encoded):
        body = ensemble.replace(params=ensemble.params["body"], module=ensemble.module.body)
        body = _of(body, select, size)
        module = ensemble.module.clone(body=body.module)
        return ensemble.replace(params={**ensemble.params, "body": body.params}, module=module)
    params, collections = jax.tree.map(select, (ensemble.params, dict(ensemble.collections)))
    module = ensemble.module.clone(size=size)
    return ensemble.replace(params=params, module=module, collections=collections)
