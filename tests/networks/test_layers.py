"""Networks: outputs, initialisation, collections, and their behaviour as pytrees."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from rljax import networks
from rljax.networks import MLP, Dense, Ensemble, Network
from rljax.runs import checkpoints

KEY = jax.random.key(0)
apply = jax.jit(lambda network, *inputs: network(*inputs))


def create(module: Any, *inputs: Any) -> Any:
    """A fresh network, created in one program.

    Separate operations would take a second to compile.
    """
    return jax.jit(lambda key: networks.create(module, key, *inputs))(KEY)


def layer(
    fan_in: int, features: int, initialisation: Any, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias of a fresh dense layer."""
    network = create(Dense(features, initialisation, scale), jnp.zeros(fan_in))
    return np.asarray(network.params["kernel"]), np.asarray(network.params["bias"])


def assert_uniform(values: np.ndarray, bound: float) -> None:
    """Many values look drawn from U(-bound, bound)."""
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.98 * bound
    assert abs(values.mean()) < 0.05 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("initialisation", "bound"),
    [
        ("torch", 1 / math.sqrt(64)),
        ("lecun_uniform", math.sqrt(3 / 64)),
        ("glorot_uniform", math.sqrt(6 / (64 + 200))),
    ],
)
def test_uniform_initialisations_have_their_bounds(initialisation: Any, bound: float) -> None:
    kernel, bias = layer(64, 200, initialisation)
    assert_uniform(kernel, bound)
    if initialisation == "torch":
        assert_uniform(bias, bound)
    else:
        assert not bias.any()


@pytest.mark.parametrize(("fan_in", "features"), [(32, 32), (64, 16), (16, 64)])
def test_orthogonal_initialisation_is_orthogonal_times_its_gain(fan_in: int, features: int) -> None:
    kernel, bias = layer(fan_in, features, "orthogonal", 1.5)
    assert not bias.any()
    product = kernel.T @ kernel if features <= fan_in else kernel @ kernel.T
    np.testing.assert_allclose(product, 1.5**2 * np.eye(min(fan_in, features)), atol=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(32, 32), (64, 16), (16, 64)])
def test_orthogonal_initialisation_is_flaxs(shape: tuple[int, int]) -> None:
    kernel = networks.initialisers("orthogonal", shape[0], 1.5)[0](KEY, shape)
    np.testing.assert_allclose(kernel, jax.nn.initializers.orthogonal(1.5)(KEY, shape), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gain"), [("orthogonal_small", 1e-2), ("orthogonal_relu", np.sqrt(2.0))]
)
def test_orthogonal_initialisations_of_authors_have_their_own_last_layers(
    name: Any, gain: float
) -> None:
    """Cal-QL's model.py: sqrt 2 in hidden layers and 1e-2 in the last; WSRL's initialization.py:
    sqrt 2 in all. Biases are 0.
    """
    network = create(MLP((16, 16), 4, "relu", name), jnp.zeros(16))
    for layer, expected in (
        ("hidden_0", np.sqrt(2.0)),
        ("hidden_1", np.sqrt(2.0)),
        ("output", gain),
    ):
        kernel = np.asarray(network.params[layer]["kernel"])
        sizes = np.linalg.svd(kernel, compute_uv=False)
        np.testing.assert_allclose(sizes, expected, rtol=1e-4)
        assert not np.any(network.params[layer]["bias"])


def test_orthogonal_initialisation_of_many_learners_does_not_deadlock() -> None:
    # Three calls of QR in one program, each on a batch of eight, deadlocked with two threads.
    module = Ensemble(2, (256, 256), initialisation="orthogonal")
    learners = jax.jit(jax.vmap(lambda key: networks.create(module, key, jnp.zeros(17))))(
        jax.random.split(KEY, 4)
    )
    kernel = np.asarray(learners.params["members"]["hidden_1"]["kernel"])  # [4, 2, 256, 256]
    product = np.swapaxes(kernel, -1, -2) @ kernel
    np.testing.assert_allclose(
        product, np.broadcast_to(2.0 * np.eye(256), product.shape), atol=1e-4
    )


def test_gains_of_an_mlp() -> None:
    network = create(MLP((32, 32), 4, "tanh", "orthogonal", output_scale=0.01), jnp.zeros(32))
    for name, gain in (("hidden_0", math.sqrt(2)), ("hidden_1", math.sqrt(2)), ("output", 0.01)):
        singular = np.linalg.svd(np.asarray(network.params[name]["kernel"]), compute_uv=False)
        np.testing.assert_allclose(singular, gain, rtol=1e-4)


def test_gains_of_an_ensemble() -> None:
    ensemble = Ensemble(2, (32,), "relu", "orthogonal", output_scale=3.0)
    kernels = np.asarray(create(ensemble, jnp.zeros(32)).params["members"]["output"]["kernel"])
    np.testing.assert_allclose(np.linalg.svd(kernels, compute_uv=False), 3.0, rtol=1e-4)


def test_edac_initialisation_has_small_outputs() -> None:
    params = create(Ensemble(2, (500,), initialisation="edac"), jnp.zeros(9)).params["members"]
    assert_uniform(np.asarray(params["hidden_0"]["kernel"]), 1 / math.sqrt(500))
    np.testing.assert_array_equal(params["hidden_0"]["bias"], np.full((2, 500), 0.1, np.float32))
    assert_uniform(np.asarray(params["output"]["kernel"]), 3e-3)
    assert 0.0 < np.abs(params["output"]["bias"]).max() <= 3e-3


def test_fan_in_counts_all_inputs() -> None:
    network = create(MLP((4000,), 1), jnp.zeros(6), jnp.zeros(3))
    assert network.params["hidden_0"]["kernel"].shape == (9, 4000)
    assert_uniform(np.asarray(network.params["hidden_0"]["bias"]), 1 / 3)


RELU = lambda x: np.maximum(x, 0)  # noqa: E731
ACTIVATIONS: dict[Any, Any] = {
    "relu": RELU,
    "tanh": np.tanh,
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


def forward(params: Any, x: np.ndarray, activation: Any, normalised: Any = False) -> np.ndarray:
    """An MLP in float64, its hidden layers normalised before the activation, or "last",
    after it.
    """
    hidden = sorted(name for name in params if name.startswith("hidden_"))
    for i, name in enumerate(hidden):
        x = x @ np.asarray(params[name]["kernel"], np.float64) + np.asarray(
            params[name]["bias"], np.float64
        )
        x = activation(x) if normalised == "last" else x
        if normalised:
            x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
            x = x * np.asarray(params[f"norm_{i}"]["scale"]) + np.asarray(
                params[f"norm_{i}"]["bias"]
            )
        x = x if normalised == "last" else activation(x)
    return x @ np.asarray(params["output"]["kernel"], np.float64) + np.asarray(
        params["output"]["bias"], np.float64
    )


def inputs(seed: int = 0, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape or (5, 3)).astype(np.float32)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_mlp_equals_a_loop(activation: Any) -> None:
    network = create(MLP((6, 7), 2, activation), jnp.zeros(3))
    x = inputs()
    result = apply(network, x)
    assert result.shape == (5, 2)
    np.testing.assert_allclose(
        result, forward(network.params, x, ACTIVATIONS[activation]), rtol=1e-4, atol=1e-5
    )


def test_inputs_of_other_leading_axes_broadcast() -> None:
    ensemble = create(Ensemble(2, (6, 7)), jnp.zeros(3), jnp.zeros(2))
    # [5, 3], [2, 5, 2]
    observation, action = inputs(), np.stack([inputs()[:, :2], 2.0 * inputs()[:, :2]])
    each = np.stack([apply(ensemble, observation, x) for x in action], axis=1)
    np.testing.assert_allclose(apply(ensemble, observation, action), each, rtol=1e-5, atol=1e-6)


def test_inputs_are_concatenated() -> None:
    network = create(MLP((6,), 2), jnp.zeros(2), jnp.zeros(1))
    x = inputs()
    np.testing.assert_array_equal(apply(network, x[:, :2], x[:, 2:]), apply(network, x))


def test_mish_is_finite_far_out() -> None:
    x = jnp.array([-1e4, -50.0, 50.0, 1e4])
    np.testing.assert_allclose(networks.mish(x), [0.0, 0.0, 50.0, 1e4], atol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(jax.grad(networks.mish)))(x), [0.0, 0.0, 1.0, 1.0], atol=1e-6
    )


@pytest.mark.parametrize("order", [True, "last"])
def test_layer_norm_comes_before_the_activation_or_last(order: Any) -> None:
    network = create(MLP((6, 7), 2, layer_norm=order), jnp.zeros(3))
    assert sorted(network.params) == ["hidden_0", "hidden_1", "norm_0", "norm_1", "output"]
    moved = jax.tree.map(lambda x: x + 0.1, network)  # scales and biases that do something
    x = inputs()
    np.testing.assert_allclose(
        apply(moved, x), forward(moved.params, x, RELU, normalised=order), rtol=1e-3, atol=1e-4
    )


@jax.jit
def thinned(network: Network, x: Any, rate: float) -> jax.Array:
    """Outputs with some units dropped out."""
    return network(x, dropout=networks.Dropout(KEY, rate))


@pytest.mark.slow
def test_convolutions_equal_a_loop() -> None:
    """Two convolutions, with strides that leave a remainder, against loops in float64;
    alone and in a batch.
    """
    module = networks.Convolutional(((3, 4, 2), (5, 2, 3)), (6,), 2, initialisation="torch")
    pictures = np.random.default_rng(0).normal(size=(2, 11, 9, 2))
    network = create(module, jnp.asarray(pictures, jnp.float32))
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), network.params)

    def normalised(x: np.ndarray) -> np.ndarray:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return np.where(x > 0, x, 0.01 * x)

    for picture in pictures:
        x = picture
        for i, (channels, width, stride) in enumerate(module.convolutions):
            high, wide = ((size - width) // stride + 1 for size in x.shape[:2])
            y = np.zeros((high, wide, channels))
            for row in range(high):
                for column in range(wide):
                    seen = x[
                        stride * row : stride * row + width,
                        stride * column : stride * column + width,
                    ]
                    y[row, column] = (
                        np.einsum("ijk,ijkc->c", seen, params[f"kernel_{i}"]) + params[f"bias_{i}"]
                    )
            x = normalised(y)
        dense = params["dense"]
        hidden = normalised(x.ravel() @ dense["hidden_0"]["kernel"] + dense["hidden_0"]["bias"])
        expected = hidden @ dense["output"]["kernel"] + dense["output"]["bias"]
        np.testing.assert_allclose(
            apply(network, picture.astype(np.float32)), expected, rtol=1e-4, atol=1e-5
        )
    both = apply(network, pictures.astype(np.float32))
    alone = np.stack([apply(network, picture.astype(np.float32)) for picture in pictures])
    np.testing.assert_allclose(both, alone, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean_and_its_rate_is_traced() -> None:
    network = create(MLP((5000,), 1), jnp.zeros(3))
    # Each unit is x_1 + x_2 + x_3 + 1, and their sum the output less 1.
    ones = jax.tree.map(jnp.ones_like, network)
    x = np.full((2, 3), 1.0, np.float32)
    for rate in (0.0, 0.25, 0.5):
        kept = (thinned(ones, x, rate) - 1.0) * (1.0 - rate) / (4.0 * 5000)
        np.testing.assert_allclose(kept, 1.0 - rate, atol=0.03)
        assert (kept[0] == kept[1]) == (rate == 0.0), "each row has units of its own"
    np.testing.assert_allclose(thinned(network, x, 0.0), apply(network, x), rtol=1e-5, atol=1e-6)
    assert thinned._cache_size() == 1


def test_dropout_comes_after_each_hidden_layer() -> None:
    network = create(MLP((6, 7), 2), jnp.zeros(3))
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), network.params)
    x = inputs()
    h: Any = np.asarray(x, np.float64)
    for i, width in enumerate((6, 7)):
        h = RELU(h @ params[f"hidden_{i}"]["kernel"] + params[f"hidden_{i}"]["bias"])
        h = h * np.asarray(jax.random.bernoulli(jax.random.fold_in(KEY, i), 0.6, (5, width))) / 0.6
    expected = h @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(thinned(network, x, 0.4), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_ensemble_is_separate_mlps(layer_norm: bool) -> None:
    ensemble = create(
        Ensemble(3, (6, 7), "tanh", layer_norm=layer_norm), jnp.zeros((5, 3)), jnp.zeros((5, 2))
    )
    x, y = inputs(), inputs(1, 5, 2)
    result = apply(ensemble, x, y)
    assert result.shape == (3, 5)
    assert jax.eval_shape(ensemble, inputs(0, 4, 5, 3), inputs(1, 4, 5, 2)).shape == (3, 4, 5)
    alone = MLP((6, 7), 1, "tanh", layer_norm=layer_norm)
    for c in range(3):
        params = jax.tree.map(lambda leaf, c=c: leaf[c], ensemble.params["members"])
        np.testing.assert_allclose(
            result[c], apply(Network(params, alone), x, y)[:, 0], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            apply(networks.member(ensemble, c), x, y), result[c : c + 1], rtol=1e-5, atol=1e-6
        )


def test_members_begin_apart_and_with_an_mlps_bounds() -> None:
    ensemble = create(Ensemble(2, (2000,)), jnp.zeros(9))
    kernels = np.asarray(ensemble.params["members"]["hidden_0"]["kernel"])  # [C, I, H]
    assert not (kernels[0] == kernels[1]).any()
    for kernel in kernels:
        assert_uniform(kernel, 1 / 3)


def test_members_learn_apart() -> None:
    ensemble = create(Ensemble(2, (6,)), jnp.zeros(3))
    gradient = jax.jit(jax.grad(lambda network: network(inputs())[0].sum()))(ensemble)
    for leaf in jax.tree.leaves(gradient):
        assert not np.asarray(leaf[1]).any()


def test_network_is_a_pytree_of_its_parameters() -> None:
    network = create(MLP((4,), 1), jnp.zeros(3))
    assert len(jax.tree.leaves(network)) == 4

    @jax.jit
    @chex.assert_max_traces(n=1)  # an equal module is the same program
    def traced(network: Network, x: Any) -> Any:
        return network(x)

    other = networks.create(MLP((4,), 1), jax.random.key(1), jnp.zeros(3))
    assert not np.allclose(traced(network, inputs()), traced(other, inputs()))


def test_network_learns_with_grad_and_optax() -> None:
    network = create(MLP((16,), 1, "tanh"), jnp.zeros(1))
    x = jnp.linspace(-1, 1, 32)[:, None]

    def loss(network: Network) -> jax.Array:
        return jnp.square(network(x) - x**2).mean()

    optimiser = optax.adam(1e-2)

    @jax.jit
    def learn(network: Network) -> Network:
        def one(_: Any, carry: Any) -> Any:
            network, state = carry
            changes, state = optimiser.update(jax.grad(loss)(network), state)
            return optax.apply_updates(network, changes), state

        return jax.lax.fori_loop(0, 300, one, (network, optimiser.init(network)))[0]  # type: ignore[arg-type]

    gradient = jax.eval_shape(jax.grad(loss), network)
    assert isinstance(gradient, Network)
    assert jax.tree.structure(gradient) == jax.tree.structure(network)
    assert float(loss(learn(network))) < 0.02 * float(loss(network))


@pytest.mark.slow
def test_networks_are_stacked_and_mapped_over() -> None:
    module = MLP((4,), 2)
    stacked = jax.jit(jax.vmap(lambda key: networks.create(module, key, jnp.zeros(3))))(
        jax.random.split(KEY, 2)
    )
    x = inputs(0, 2, 5, 3)
    outputs = jax.jit(jax.vmap(lambda network, x: network(x)))(stacked, x)
    for i in range(2):
        alone = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        np.testing.assert_allclose(outputs[i], apply(alone, x[i]), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_members_have_inputs_of_their_own() -> None:
    ensemble = create(Ensemble(3, (4,)), jnp.zeros(2))
    x = inputs(0, 3, 5, 2)
    outputs = jax.jit(jax.vmap(lambda member, x: member(x)))(networks.members(ensemble), x)
    assert outputs.shape == (3, 1, 5)
    for c in range(3):
        np.testing.assert_allclose(outputs[c, 0], apply(ensemble, x[c])[c], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("extreme", "expected"), [(networks.smallest, np.min), (networks.largest, np.max)]
)
def test_the_gradient_of_an_extreme_goes_to_one_value(
    extreme: Any, expected: Any, axis: int
) -> None:
    values = np.random.default_rng(0).integers(-3, 3, (4, 5, 6)).astype(np.float32)  # with ties
    np.testing.assert_array_equal(extreme(jnp.asarray(values), axis), expected(values, axis=axis))
    gradient = np.asarray(jax.jit(jax.grad(lambda x: extreme(x, axis).sum()))(values))
    np.testing.assert_array_equal(gradient.sum(axis=axis), 1.0)
    np.testing.assert_array_equal((gradient * values).sum(axis=axis), expected(values, axis=axis))
    assert set(np.unique(gradient)) == {0.0, 1.0}
    values[:, 2, 2] = np.nan
    assert np.isnan(np.asarray(extreme(jnp.asarray(values), axis))).any()


@pytest.mark.parametrize("rate", [0.0, 0.005, 1.0])
def test_polyak_moves_the_target_by_its_rate(rate: float) -> None:
    online, target = ({"a": inputs(seed), "b": inputs(seed + 2, 4)} for seed in range(2))
    result = networks.polyak(online, target, rate)
    for name in online:
        np.testing.assert_allclose(
            result[name], (1 - rate) * target[name] + rate * online[name], rtol=1e-5, atol=1e-6
        )
    if rate == 0.0:
        np.testing.assert_array_equal(result["a"], target["a"])


def buffers(tree: Any) -> set[int]:
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)}


def test_copies_share_no_buffer_and_can_be_donated_together() -> None:
    network = create(MLP((4,), 1), jnp.zeros(3))
    target = networks.copy(network)
    assert not buffers(network) & buffers(target)

    def swap(online: Network, target: Network) -> tuple[Network, Network]:
        return networks.polyak(online, target, 0.5), networks.polyak(target, online, 0.5)

    kernel = np.asarray(network.params["output"]["kernel"])
    for result in jax.jit(swap, donate_argnums=(0, 1))(network, target):
        np.testing.assert_allclose(result.params["output"]["kernel"], kernel, rtol=1e-6)


class Normalised(nn.Module):
    """Batch normalisation, which may count its calls, and a dense layer."""

    counts: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        if self.counts:
            calls = self.variable("batch_stats", "calls", lambda: jnp.zeros((), jnp.int32))
            seen = self.variable("batch_stats", "seen", lambda: jnp.zeros((), bool))
            assert (calls.value.dtype, seen.value.dtype) == (jnp.int32, bool)
            if train:
                calls.value, seen.value = calls.value + 1, jnp.ones((), bool)
        return Dense(2)(nn.BatchNorm(use_running_average=not train, momentum=0.75, name="norm")(x))


def batch_normalised(counts: bool = False) -> Network:
    """A network with batch statistics that are not those of its first batch."""
    network = create(Normalised(counts), jnp.zeros((5, 3)))
    return network.replace(collections=jax.tree.map(lambda x: x + 2.0, network.collections))


def test_create_keeps_all_collections() -> None:
    network = create(Normalised(), jnp.zeros((5, 3)))
    statistics = network.collections["batch_stats"]["norm"]
    np.testing.assert_array_equal(statistics["mean"], np.zeros(3))
    np.testing.assert_array_equal(statistics["var"], np.ones(3))
    assert sorted(network.params) == ["Dense_0", "norm"]


def test_a_call_reads_batch_statistics() -> None:
    network, x = batch_normalised(), jnp.asarray(inputs())
    params = network.params
    normalised = (x - 2.0) / np.sqrt(3.0 + 1e-5) * params["norm"]["scale"] + params["norm"]["bias"]
    expected = normalised @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    np.testing.assert_allclose(apply(network, x), expected, rtol=1e-5, atol=1e-6)


def test_apply_mutable_updates_batch_statistics_and_nothing_else() -> None:
    network, x = batch_normalised(), jnp.asarray(inputs())
    output, moved = jax.jit(lambda network, x: network.apply_mutable(x, train=True))(network, x)
    statistics = moved.collections["batch_stats"]["norm"]
    np.testing.assert_allclose(statistics["mean"], 0.75 * 2.0 + 0.25 * x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics["var"], 0.75 * 3.0 + 0.25 * x.var(axis=0), rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, moved.params, network.params)
    assert jax.tree.structure(moved) == jax.tree.structure(network)
    other, _ = network.replace(collections=moved.collections).apply_mutable(x, train=True)
    # In training the batch's own statistics count.
    np.testing.assert_allclose(output, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="leave 'params' out of `mutable`"):
        network.apply_mutable(x, mutable=("params",))


@pytest.mark.parametrize("counts", [False, True])
def test_an_optimiser_step_leaves_collections_unchanged(counts: bool) -> None:
    network, x = batch_normalised(counts), jnp.asarray(inputs())
    optimiser = optax.adam(1e-2)

    @jax.jit
    def step(network: Network) -> tuple[Network, Network]:
        gradient = jax.grad(lambda network: jnp.square(network(x)).sum())(network)
        changes, _ = optimiser.update(gradient, optimiser.init(network))  # type: ignore[arg-type]
        return gradient, optax.apply_updates(network, changes)  # type: ignore[return-value, arg-type]

    gradient, learnt = step(network)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, np.zeros_like(x)), gradient.collections)
    jax.tree.map(np.testing.assert_array_equal, learnt.collections, network.collections)
    for before, after in zip(
        jax.tree.leaves(network.params), jax.tree.leaves(learnt.params), strict=True
    ):
        assert (before != after).any()


def test_a_gradient_flows_through_apply_mutable_but_not_through_new_statistics() -> None:
    network, x = batch_normalised(), jnp.asarray(inputs())

    def loss(network: Network, x: Any) -> tuple[Any, Network]:
        output, moved = network.apply_mutable(x, train=True)
        return jnp.square(output).sum(), moved

    def statistics(network: Network, x: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree.leaves(loss(network, x)[1].collections))

    gradient, moved = jax.jit(jax.grad(loss, has_aux=True))(network, x)
    assert jax.tree.structure(gradient) == jax.tree.structure(moved)
    assert np.asarray(gradient.params["norm"]["scale"]).all()
    for leaf in jax.tree.leaves(jax.jit(jax.grad(statistics, argnums=(0, 1)))(network, x)):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_collections_are_copied_averaged_and_stacked_like_parameters() -> None:
    network = batch_normalised()
    target = networks.copy(network)
    assert not buffers(network) & buffers(target)
    _, online = network.apply_mutable(jnp.asarray(inputs()), train=True)
    mean = networks.polyak(online, target, 0.25).collections["batch_stats"]["norm"]["mean"]
    expected = 0.75 * 2.0 + 0.25 * np.asarray(online.collections["batch_stats"]["norm"]["mean"])
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    stacked = jax.vmap(lambda key: networks.create(Normalised(), key, jnp.zeros((5, 3))))(
        jax.random.split(KEY, 2)
    )
    assert stacked.collections["batch_stats"]["norm"]["mean"].shape == (2, 3)


def test_integers_and_truth_values_of_collections_are_stored_as_floats() -> None:
    network = create(Normalised(counts=True), jnp.zeros((5, 3)))
    assert {leaf.dtype for leaf in jax.tree.leaves(network)} == {jnp.dtype(jnp.float32)}
    train = jax.jit(lambda network, x: network.apply_mutable(x, train=True)[1])
    moved = train(train(network, inputs()), inputs())
    assert float(moved.collections["batch_stats"]["calls"]) == 2.0
    assert float(moved.collections["batch_stats"]["seen"]) == 1.0
    assert jax.tree.structure(moved) == jax.tree.structure(network)


def test_a_collection_of_keys_is_refused() -> None:
    class Random(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("noise", "key", lambda: jax.random.key(0))
            return Dense(1)(x)

    with pytest.raises(
        ValueError, match=r"^the variable noise/key is of type key<fry>, which no network can hold"
    ):
        networks.create(Random(), KEY, jnp.zeros(3))


def test_a_network_without_collections_has_two_children() -> None:
    network = create(MLP((4,), 1), jnp.zeros(3))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(network)]
    assert paths == [
        f".params['{layer}']['{name}']"
        for layer in ("hidden_0", "output")
        for name in ("bias", "kernel")
    ]
    marked = jax.tree_util.tree_leaves_with_path(batch_normalised())
    assert jax.tree_util.keystr(marked[-1][0]) == ".collections['batch_stats']['norm']['var']"


def test_checkpoints_hold_collections(tmp_path: Path) -> None:
    network = batch_normalised(counts=True)
    checkpoints.save(tmp_path, 1, {"agent": network}, {})
    found = checkpoints.restore(
        checkpoints.newest(tmp_path), "agent", jax.tree.map(jnp.zeros_like, network)
    )
    assert jax.tree.structure(found) == jax.tree.structure(network)
    jax.tree.map(np.testing.assert_array_equal, found, network)
