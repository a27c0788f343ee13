"""Critics of discrete actions or with bins, and what agents do with an ensemble:
its smallest value, its members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array, EnvSpec, Transition
from rljax.networks import bins, heads
from rljax.networks.layers import Encoded, Ensemble, Network, create
from rljax.networks.optimisation.trained import Trained, parameters_of

T = TypeVar("T")


def ensemble(spec: EnvSpec, *arguments: Any, **options: Any) -> Ensemble:
    """Critics for an environment's actions, which take (observation, action) to values [C, ...].

    They are a `DiscreteEnsemble` where an action is one discrete one, a `ChoicesEnsemble` where it
    is several, and an `Ensemble` elsewhere.
    """
    if spec.choices:
        return ChoicesEnsemble(*arguments, choices=spec.choices, **options)
    if spec.discrete:
        return DiscreteEnsemble(*arguments, features=spec.action_size, **options)
    return Ensemble(*arguments, **options)


class DiscreteEnsemble(Ensemble):
    """Independent MLPs whose outputs are the values of `features` discrete actions."""

    def __call__(self, observation: Array, action: Array | None = None) -> Array:
        """The values [C, ..., A] of all actions for observations [..., O],
        or those [C, ...] of actions int32 [...].
        """
        q = super().__call__(observation)
        q = q[..., None] if self.features == 1 else q
        return q if action is None else (q * jax.nn.one_hot(action, self.features)).sum(axis=-1)


class ChoicesEnsemble(Ensemble):
    """Independent MLPs with several discrete actions as an input:
    each as a vector that is 1 at its choice.
    """

    choices: tuple[int, ...] = ()

    def __call__(self, observation: Array, action: Array) -> Array:
        """The values [C, ...] of actions int32 [..., K] for observations [..., O]."""
        vectors = [jax.nn.one_hot(action[..., i], number) for i, number in enumerate(self.choices)]
        return super().__call__(observation, *vectors)


class BinnedEnsemble(Ensemble):
    """Independent MLPs that classify values: `features` outputs for a value.

    Discrete actions are inputs, as vectors.

    `bounds` [2] are the ends of the bins, an option of the network: they are no parameters, and
    have no gradient.
    """

    kind: heads.Kind = "hl_gauss"
    choices: tuple[int, ...] = ()

    def __call__(
        self, observation: Array, action: Array, *, bounds: Array, raw: bool = False
    ) -> Array:
        """The values [C, ...] of actions [..., A] for observations [..., O],
        or with `raw` the outputs [C, ..., K].
        """
        inputs = [action]
        if self.choices:
            action = action if len(self.choices) > 1 else action[..., None]
            inputs = [
                jax.nn.one_hot(action[..., i], number) for i, number in enumerate(self.choices)
            ]
        outputs = super().__call__(observation, *inputs)
        return outputs if raw else self.head(bounds).mean(outputs)

    def head(self, bounds: Array) -> heads.TwoHot:
        """The head of the outputs."""
        low, high = jax.lax.stop_gradient(bounds)
        return (heads.TwoHot if self.kind == "two_hot" else heads.HLGauss)(self.features, low, high)


def create_critic(
    module: nn.Module, head: heads.HeadSettings, spec: EnvSpec, key: Array, *inputs: Any
) -> Network:
    """Initialise critics, an `Ensemble` or one that is `Encoded`, for example inputs:
    (observation, action).

    They have the head that the settings ask for. Ends of bins that are None are not a number until
    `fitted`.
    """
    if head.value_head == "squared":
        return create(module, key, *inputs)
    ensemble: Any = module.body if isinstance(module, Encoded) else module
    names = (
        "size",
        "hidden",
        "activation",
        "initialisation",
        "layer_norm",
        "output_scale",
        "precision",
    )
    choices = (spec.choices or (spec.action_size,)) if spec.discrete else ()
    style = {name: getattr(ensemble, name) for name in names}
    binned = BinnedEnsemble(**style, features=head.bins, kind=head.value_head, choices=choices)
    ends = [
        jnp.asarray(jnp.nan if end is None else end, jnp.float32)
        for end in (head.v_min, head.v_max)
    ]
    module = module.clone(body=binned) if isinstance(module, Encoded) else binned
    return create(module, key, *inputs, bounds=jnp.ones(2)).replace(
        options={"bounds": jnp.stack(ends)}
    )


def fit_bins(critic: T, data: Transition, discount: Array | float, scale: Array | float = 1.0) -> T:
    """Critics, a `Network` or a `Trained` one, whose unknown ends of bins lie around the returns of
    data [N, ...].

    The returns are discounted, and `scale` multiplies rewards. Critics without bins are returned as
    they are.
    """
    if isinstance(critic, Trained):
        return critic.replace(parameters=fit_bins(critic.parameters, data, discount, scale))
    body = _body(critic)
    if not isinstance(body, BinnedEnsemble):
        return critic
    network: Any = critic
    around_returns = bins.bounds_of_bins(
        bins.range_of_returns(data, discount, scale), body.features
    )
    known = network.options["bounds"]
    return network.replace(options={"bounds": jnp.where(jnp.isnan(known), around_returns, known)})


def outputs_and_head(
    critic: Network | Trained, observation: Any, action: Array
) -> tuple[Array, heads.Scalar | heads.TwoHot]:
    """The outputs of critics for actions [..., A], [C, ...] or [C, ..., K],
    and the head that reads them.
    """
    network: Any = parameters_of(critic)
    body = _body(network)
    if not isinstance(body, BinnedEnsemble):
        return network(observation, action), heads.Scalar("squared")
    return network(observation, action, raw=True), body.head(network.options["bounds"])


def _body(critic: Any) -> Any:
    """The module of critics, without their encoder."""
    # Any function of (observation, action) may stand for critics.
    module = getattr(critic, "module", None)
    return module.body if isinstance(module, Encoded) else module


def smallest(values: Array, axis: int = 0) -> Array:
    """The smallest value over `axis`: of critics [C, ...], their minimum [...].

    Its gradient goes to one value only.

    The gradient of `values.min(axis)` is divided by the number of values that equal the minimum. If
    XLA computes the values twice and rounds them differently, that number can be 0, and the
    gradient is 0 / 0.
    """
    smallest_index = jnp.argmin(jax.lax.stop_gradient(values), axis=axis)
    return jnp.where(
        jax.nn.one_hot(smallest_index, values.shape[axis], axis=axis, dtype=bool), values, 0.0
    ).sum(axis=axis)


def largest(values: Array, axis: int = 0) -> Array:
    """The largest value over `axis`; its gradient goes to one value only, as that of `smallest`."""
    return -smallest(-values, axis)


def smallest_of_subset(
    values: Array, number: int | None, key: Array, with_replacement: bool = False
) -> Array:
    """The smallest value [...] of `number` critics, drawn by `key` from the C of `values` [C, ...];
    None: of all.

    One subset serves the whole batch, as in REDQ (Chen et al., arXiv:2101.05982, algorithm 1).
    Its critics are different ones, unless they are drawn `with_replacement`.
    """
    if number is None:
        return values.min(axis=0)
    subset = jax.random.choice(key, values.shape[0], (number,), with_replacement)
    return values[subset].min(axis=0)


def member(ensemble: Network | Trained, index: int) -> Network:
    """One member of an `Ensemble` network, as an ensemble of one: [C, ...] becomes [1, ...]."""
    return _of_one(parameters_of(ensemble), lambda x: x[index : index + 1])


def members(ensemble: Network | Trained) -> Network:
    """An `Ensemble` network as a stack [C, ...] of ensembles of one:
    under `vmap` each member has its own inputs.
    """
    return _of_one(parameters_of(ensemble), lambda x: x[:, None])


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
    """For `jax.vmap`, which leaves of a stack of members have the axis [C]: not the encoder's."""
    axes = jax.tree.map(lambda _: 0, stack)
    if isinstance(stack.module, Encoded):
        axes = axes.replace(params={**axes.params, "encoder": None})
    return axes


def _of_one(ensemble: Network, select: Callable[[Array], Array]) -> Network:
    """An ensemble of size 1, or a stack of them, with `select` of each leaf of the ensemble;
    its encoder is shared.
    """
    if isinstance(ensemble.module, Encoded):
        inner = _of_one(
            ensemble.replace(params=ensemble.params["body"], module=ensemble.module.body), select
        )
        module = ensemble.module.clone(body=inner.module)
        return ensemble.replace(params={**ensemble.params, "body": inner.params}, module=module)
    params, collections = jax.tree.map(select, (ensemble.params, dict(ensemble.collections)))
    return ensemble.replace(
        params=params, module=ensemble.module.clone(size=1), collections=collections
    )
