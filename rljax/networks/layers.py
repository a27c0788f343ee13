"""Layers, multilayer perceptrons and ensembles of them.

Modules map inputs [..., I_1], [..., I_2], ..., `joined`, to outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array, Number, same_fields
from rljax.networks.initialisation import Initialisation, initialisers

Activation = Literal["relu", "tanh", "gelu", "gelu_tanh", "silu", "mish", "elu", "leaky_relu"]
# Of hidden layers. True: before the activation; "plain": there, without scale and bias; "last":
# after the activation; "rms": before it, an `RMSNorm`.
Norm = bool | Literal["last", "plain", "rms"]

Precision = Literal["float32", "bfloat16"]


def mish(x: Array) -> Array:
    """x tanh(log(1 + e^x)), Misra, arXiv:1908.08681, by tanh(log y) = (y^2 - 1) / (y^2 + 1)."""
    power = jnp.exp(jnp.minimum(x, 20.0))  # above, the quotient is 1
    rest = power * (power + 2.0)  # (1 + e^x)^2 - 1
    return x * (rest / (rest + 2.0))


def leaky_relu(x: Array) -> Array:
    """x where x > 0, else 0.01 x. The slope at 0, of sparse units, is 0.01 as in PyTorch; JAX's is
    1.
    """
    return jnp.where(x > 0, x, 0.01 * x)


def gelu(x: Array) -> Array:
    """x P(N < x) by erf, as PyTorch has it; Flax's, by its complement, takes longer on a CPU."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "gelu": gelu,
    "gelu_tanh": nn.gelu,  # approximated as x tanh(...), which is Flax's default
    "silu": nn.silu,
    "mish": mish,
    "elu": nn.elu,
    "leaky_relu": leaky_relu,
}


class Dropout(NamedTuple):
    """Dropout of hidden units."""

    key: Array
    # the share of units set to 0, in [0, 1); others are multiplied by 1 / (1 - rate)
    rate: Number

    @classmethod
    def of(cls, rate: Number | None, key: Array, index: int) -> Dropout | None:
        """The dropout of one pass, whose key is `key` with an `index`; None without a rate."""
        return None if rate is None else cls(jax.random.fold_in(key, index), rate)

    def __call__(self, x: Array, layer: int) -> Array:
        """Units [..., H] of a layer, of which some are 0."""
        kept = 1.0 - self.rate
        drawn = uniform_hash(jax.random.fold_in(self.key, layer), x.shape)
        return jnp.where(drawn < kept, x / kept, 0.0)


def uniform_hash(key: Array, shape: tuple[int, ...]) -> Array:
    """Numbers in [0, 1) for masks, in a seventh of the time of `jax.random.uniform` on a CPU.

    Each is a hash of its place and of the key's last two words, with MurmurHash3's last step:
    good enough for what is dropped, not for noise that is added.
    """
    first, second = jax.random.key_data(key)[-2:]
    x = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    x = x * jnp.uint32(0x9E3779B1) + first
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13) ^ second) * jnp.uint32(0xC2B2AE35)
    return ((x ^ (x >> 16)) >> 8).astype(jnp.float32) * 2.0**-24


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "options", "collections"],
    meta_fields=["module", "dtypes"],
)
@dataclasses.dataclass(frozen=True)
class Network:
    """A Flax module with its variables, a pytree: `network(x)` applies the module, which is static.

    Only `apply_mutable` updates the `collections`, variables other than parameters. Their gradient
    is 0: weight decay would shrink them, and `polyak` averages them. Integers and truth values are
    stored as float32, exact up to 2^24, and reach the module rounded to their `dtypes`.
    """

    params: Any
    module: nn.Module
    options: Any = None  # arguments of every call, by name; those of a single call replace them
    collections: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # declared by the module, one per leaf of `collections`; () if all are floats
    dtypes: tuple[str, ...] = ()

    def __call__(self, *inputs: Array, **options: Any) -> Any:
        """Apply the module to `inputs` with arguments `options`; None omits one."""
        return self.module.apply(self._variables(), *inputs, **self._given(options))

    def apply_mutable(
        self, *inputs: Array, mutable: Sequence[str] = ("batch_stats",), **options: Any
    ) -> tuple[Any, Network]:
        """The output, and the network with the collections in `mutable` updated, without gradient.

        Raises `ValueError` for `params`.
        """
        names = [mutable] if isinstance(mutable, str) else list(mutable)
        if "params" in names:
            raise ValueError("optimisers update parameters: leave 'params' out of `mutable`.")
        options = self._given(options)
        output, changed = self.module.apply(self._variables(), *inputs, mutable=names, **options)
        changed = jax.lax.stop_gradient(dict(changed))
        collections, dtypes = _as_floats({**self._declared(), **changed})
        return output, self.replace(collections=collections, dtypes=dtypes)

    def replace(self, **changes: Any) -> Network:
        """See `dataclasses.replace`."""
        return dataclasses.replace(self, **changes)

    def projected(self) -> Network:
        """The network with the parameters of the module's `project`, if it has one."""
        project = getattr(self.module, "project", None)
        return self if project is None else self.replace(params=project(self.params))

    def _given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        options = {**(self.options or {}), **options}
        return {name: option for name, option in options.items() if option is not None}

    def _variables(self) -> dict[str, Any]:
        return {"params": self.params, **jax.lax.stop_gradient(self._declared())}

    def _declared(self) -> dict[str, Any]:
        if not self.dtypes:
            return dict(self.collections)

        def declared(leaf: Array, dtype: str) -> Array:
            return leaf if jnp.issubdtype(dtype, jnp.inexact) else jnp.round(leaf).astype(dtype)

        leaves, structure = jax.tree.flatten(dict(self.collections))
        return structure.unflatten(map(declared, leaves, self.dtypes))


def create(module: nn.Module, key: Array, *inputs: Any, **options: Any) -> Network:
    """Initialise `module` and its collections for `inputs` and `options` of this call, projected.

    Raises `ValueError` for collections that are no numbers or truth values.
    """
    collections = dict(module.init(key, *inputs, **options))
    params = collections.pop("params", {})
    collections, dtypes = _as_floats(collections)
    return Network(params, module, collections=collections, dtypes=dtypes).projected()


def _as_floats(collections: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Collections as floats, and the types of all leaves; () if all are floats."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(collections):
        if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool):
            raise ValueError(
                f"the variable {jax.tree_util.keystr(path, simple=True, separator='/')} is of type "
                f"{leaf.dtype}, which no network can hold: its leaves must be numbers or truth "
                "values. Give it to the module in each call."
            )
    dtypes = tuple(str(leaf.dtype) for leaf in jax.tree.leaves(collections))

    def as_float(x: Array) -> Array:
        return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)

    are_floats = all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes)
    return jax.tree.map(as_float, dict(collections)), () if are_floats else dtypes


class Known:
    """Parameters that are there are looked up, without their initialisers."""

    def param(self: Any, name: str, init_fn: Callable, *arguments: Any, **options: Any) -> Any:
        """See `nn.Module.param`; `arguments` begin with the shape."""
        if self.has_variable("params", name):
            value = self.get_variable("params", name)
            if jnp.shape(value) == tuple(arguments[0]):
                return value
        return super().param(name, init_fn, *arguments, **options)  # pyright: ignore[reportAttributeAccessIssue]


class Module(Known, nn.Module):
    """A Flax module that looks its parameters up."""


class LayerNorm(Known, nn.LayerNorm):
    """Flax's layer normalisation."""


class RMSNorm(Module):
    """y = scale x / sqrt(mean x^2 + epsilon), the mean over the last axis.

    Zhang and Sennrich, arXiv:1910.07467, equation 4.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        mean = jnp.square(x).mean(axis=-1, keepdims=True)
        return scale * x * jax.lax.rsqrt(mean + self.epsilon)


class Dense(Module):
    """y = x W + b for x [..., I]."""

    features: int
    initialisation: Initialisation = "torch"
    scale: float = 1.0  # gain of the orthogonal initialisation
    last: bool = False  # of its network
    precision: Precision = "float32"  # of the forward pass's factors; all else is float32
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        fan_in = x.shape[-1]
        kernel_init, bias_init = initialisers(self.initialisation, fan_in, self.scale, self.last)
        kernel = self.param("kernel", kernel_init, (fan_in, self.features))
        bias = self.param("bias", bias_init, (self.features,)) if self.use_bias else 0.0
        if self.precision == "float32":
            return x @ kernel + bias
        factors = (x.astype(self.precision), kernel.astype(self.precision))
        return jnp.dot(*factors, preferred_element_type=jnp.float32) + bias


def style_of(config: Any) -> dict[str, Any]:
    """What a Config says of all its layers: activation, initialisation and any precision."""
    return same_fields(config, ("activation", "initialisation", "precision"))


def joined(inputs: Sequence[Array]) -> Array:
    """Inputs [..., I_1], ... concatenated on their last axis; the other axes broadcast."""
    leading = jnp.broadcast_shapes(*(x.shape[:-1] for x in inputs))
    return jnp.concatenate([jnp.broadcast_to(x, (*leading, x.shape[-1])) for x in inputs], axis=-1)


def activated(x: Array, activation: Activation, norm: Norm, name: str) -> Array:
    """A layer's activation, with its normalisation; `name` is that of its scale and bias."""
    if norm is True:
        x = LayerNorm(name=name)(x)
    if norm == "plain":
        x = centred(x)
    if norm == "rms":
        x = RMSNorm(name=name)(x)
    x = ACTIVATIONS[activation](x)
    return LayerNorm(name=name)(x) if norm == "last" else x


class MLP(Module):
    """Dense layers with activations between them, to [..., features]."""

    hidden: tuple[int, ...]
    features: int | None  # None: hidden layers only, no last layer
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"
    output_scale: float = 1.0  # gain of the last layer's orthogonal initialisation
    layer_norm: Norm = False
    precision: Precision = "float32"
    drops_first: bool = False  # dropout before a layer's normalisation: arXiv:2110.02034

    @nn.compact
    def __call__(self, *inputs: Array, dropout: Dropout | None = None) -> Array:
        """`dropout` comes after each activation, unless it `drops_first`."""
        x = joined(inputs)
        style = (self.initialisation, math.sqrt(2.0), False, self.precision)
        for i, width in enumerate(self.hidden):
            x = Dense(width, *style, name=f"hidden_{i}")(x)
            if dropout is not None and self.drops_first:
                x = dropout(x, i)
            x = activated(x, self.activation, self.layer_norm, f"norm_{i}")
            if dropout is not None and not self.drops_first:
                x = dropout(x, i)
        if self.features is None:
            return x
        style = (self.initialisation, self.output_scale, True, self.precision)
        return Dense(self.features, *style, name="output")(x)


class Convolutional(Module):
    """Convolutions without padding, then dense layers; hidden layers are normalised ("plain").

    Each convolution is (channels, width, stride).
    """

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: tuple[int, ...]
    features: int
    activation: Activation = "leaky_relu"
    initialisation: Initialisation = "sparse"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map pictures [..., H, W, K] to [..., features]."""
        leading, pictures = x.shape[:-3], x.reshape(-1, *x.shape[-3:])
        for i, (channels, width, stride) in enumerate(self.convolutions):
            shape = (width, width, pictures.shape[-1], channels)
            fan_in = math.prod(shape[:-1])
            kernel_init, bias_init = initialisers(self.initialisation, fan_in, math.sqrt(2.0))
            kernel = self.param(f"kernel_{i}", kernel_init, shape)
            bias = self.param(f"bias_{i}", bias_init, (channels,))
            pictures = patches(pictures, width, stride) @ kernel.reshape(-1, channels)
            pictures = ACTIVATIONS[self.activation](centred(pictures + bias, axes=(-3, -2, -1)))
        flat = pictures.reshape(*leading, -1)
        style = (self.activation, self.initialisation)
        return MLP(self.hidden, self.features, *style, layer_norm="plain", name="dense")(flat)


def patches(pictures: Array, width: int, stride: int) -> Array:
    """The patches under a kernel of width x width: pictures [N, H, W, K] to [N, H', W', width width
    K].
    """

    def windows(x: Array, axis: int) -> Array:
        last = (x.shape[axis] - width) // stride * stride
        parts = [jax.lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(width)]
        return jnp.stack(parts, axis=axis + 1)

    neighbours = windows(windows(pictures, 1), 3).swapaxes(2, 3)  # [N, H', W', width, width, K]
    return neighbours.reshape(*neighbours.shape[:3], -1)


def feedforward(
    convolutions: tuple[tuple[int, int, int], ...],
    hidden: tuple[int, ...],
    features: int,
    activation: Activation,
    initialisation: Initialisation,
) -> nn.Module:
    """A network with normalised ("plain") layers; `convolutions` are for pictures [H, W, K]."""
    if convolutions:
        return Convolutional(convolutions, hidden, features, activation, initialisation)
    return MLP(hidden, features, activation, initialisation, layer_norm="plain")


def copies(target: Any, size: int, in_axes: Any = None) -> Any:
    """A module, or a function of one, with `size` sets of parameters and batch statistics for the
    same inputs, or for parts of those with an axis.
    """
    return nn.vmap(
        target,
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True},
        in_axes=in_axes,
        axis_size=size,
    )


class Ensemble(Module):
    """`size` independent MLPs as one batched product: to [C, ...], or [C, ..., K] with K > 1.

    Dropout comes before a layer's normalisation, with units of its own in each member.
    """

    size: int
    hidden: tuple[int, ...]
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"
    layer_norm: Norm = False
    features: int = 1  # K
    output_scale: float = 1.0  # gain of the last layer's orthogonal initialisation
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, *inputs: Array, dropout: Dropout | None = None) -> Array:
        style = (self.activation, self.initialisation, self.output_scale)
        options = {"layer_norm": self.layer_norm, "precision": self.precision, "name": "members"}
        options["drops_first"] = True
        if dropout is None:
            members = copies(MLP, self.size)(self.hidden, self.features, *style, **options)
            outputs = members(joined(inputs))
        else:
            member = MLP(self.hidden, self.features, *style, **options)
            keys = jax.random.split(dropout.key, self.size)

            def drop(member: MLP, x: Array, key: Array) -> Array:
                return member(x, dropout=Dropout(key, dropout.rate))

            outputs = copies(drop, self.size, (None, 0))(member, joined(inputs), keys)
        return outputs.squeeze(-1) if self.features == 1 else outputs


class Encoded(Module):
    """A network behind an encoder of its first input."""

    encoder: nn.Module
    body: nn.Module

    @nn.compact
    def __call__(self, observation: Any, *inputs: Array, **options: Any) -> Array:
        return self.body(self.encoder(observation), *inputs, **options)

    def project(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters after the body's `project`, if it has one."""
        project = getattr(self.body, "project", None)
        return params if project is None else {**params, "body": project(params["body"])}


def centred(x: Array, axes: tuple[int, ...] = (-1,)) -> Array:
    """Layer normalisation without parameters: zero mean and unit variance over `axes`."""
    x = x - x.mean(axis=axes, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=axes, keepdims=True) + 1e-5)
