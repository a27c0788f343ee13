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
from rljax.networks.layers import RMSNorm, uniform_hash
from rljax.runs import checkpoints
from tests.agents import reference as mlps
from tests.networks.reference import (
    apply,
    assert_close,
    dense,
    doubles,
    gelu_tanh,
    normal,
    normed,
    relu,
    silu,
)

KEY = jax.random.key(0)
X = normal(5, 3)


def create(module: Any, *inputs: Any) -> Any:
    """In one program: separate operations would compile for a second."""
    return jax.jit(lambda key: networks.create(module, key, *inputs))(KEY)


def assert_uniform(values: Any, bound: float) -> None:
    """As drawn from U(-bound, bound)."""
    assert 0.98 * bound < np.abs(values).max() <= bound
    assert abs(values.mean()) < 0.05 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("initialisation", "bound"),
    [
        ("torch", 1 / math.sqrt(64)),
        ("lecun_uniform", math.sqrt(3 / 64)),
        ("fan_in_uniform", 1 / math.sqrt(64)),
        ("glorot_uniform", math.sqrt(6 / (64 + 200))),
    ],
)
def test_uniform_initialisations_have_their_bounds(initialisation: Any, bound: float) -> None:
    params = create(Dense(200, initialisation), jnp.zeros(64)).params
    assert_uniform(params["kernel"], bound)
    if initialisation == "torch":
        assert_uniform(params["bias"], bound)
    else:
        assert not params["bias"].any()


def test_a_small_last_layer_is_drawn_from_a_narrow_gaussian() -> None:
    params = create(MLP((64,), 200, initialisation="torch_small"), jnp.zeros(32)).params
    for part in params["hidden_0"].values():
        assert 0.9 / math.sqrt(32) < np.abs(part).max() <= 1 / math.sqrt(32)
    assert params["output"]["kernel"].std() == pytest.approx(0.01, rel=0.05)
    assert np.abs(params["output"]["kernel"]).max() > 0.03
    assert not params["output"]["bias"].any()


def test_a_last_layer_of_zeros_follows_hidden_ones_as_in_pytorch() -> None:
    params = create(MLP((64,), 20, initialisation="torch_zero"), jnp.zeros(32)).params
    for part in params["hidden_0"].values():
        assert 0.9 / math.sqrt(32) < np.abs(part).max() <= 1 / math.sqrt(32)
    assert not any(part.any() for part in params["output"].values())


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(32, 32), (64, 16), (16, 64)])
def test_orthogonal_initialisation_is_flaxs(shape: tuple[int, int]) -> None:
    kernel = networks.initialisers("orthogonal", shape[0], 1.5)[0](KEY, shape)
    np.testing.assert_allclose(kernel, jax.nn.initializers.orthogonal(1.5)(KEY, shape), atol=1e-5)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("module", "gain"),
    [
        (MLP((32, 32), 4, "tanh", "orthogonal", output_scale=0.01), 0.01),
        (Ensemble(2, (32,), "relu", "orthogonal", output_scale=3.0), 3.0),
        (MLP((32, 32), 4, "relu", "orthogonal_small"), 1e-2),
        (MLP((32, 32), 4, "relu", "orthogonal_relu"), np.sqrt(2.0)),
    ],
    ids=["MLP", "ensemble", "Cal-QL's model.py", "WSRL's initialization.py"],
)
def test_gains_are_those_of_relu_but_for_the_last_layers(module: Any, gain: float) -> None:
    params = create(module, jnp.zeros(32)).params
    for name, layer in params.get("members", params).items():
        sizes = np.linalg.svd(np.asarray(layer["kernel"]), compute_uv=False)
        expected = gain if name == "output" else np.sqrt(2.0)
        np.testing.assert_allclose(sizes, expected, rtol=1e-4)
        assert not np.any(layer["bias"])


def test_orthogonal_initialisation_of_many_learners_does_not_deadlock() -> None:
    # Three calls of QR in one program, each on a batch of eight, deadlocked with two threads.
    module = Ensemble(2, (256, 256), initialisation="orthogonal")
    create = jax.jit(jax.vmap(lambda key: networks.create(module, key, jnp.zeros(17))))
    learners = create(jax.random.split(KEY, 4))
    kernel = np.asarray(learners.params["members"]["hidden_1"]["kernel"])  # [4, 2, 256, 256]
    product = np.swapaxes(kernel, -1, -2) @ kernel
    np.testing.assert_allclose(
        product, np.broadcast_to(2.0 * np.eye(256), product.shape), atol=1e-4
    )


def test_edac_initialisation_has_small_outputs() -> None:
    params = create(Ensemble(2, (500,), initialisation="edac"), jnp.zeros(9)).params["members"]
    assert_uniform(params["hidden_0"]["kernel"], 1 / math.sqrt(500))
    np.testing.assert_array_equal(params["hidden_0"]["bias"], np.full((2, 500), 0.1, np.float32))
    assert_uniform(params["output"]["kernel"], 3e-3)
    assert 0.0 < np.abs(params["output"]["bias"]).max() <= 3e-3


def test_fan_in_counts_all_inputs() -> None:
    network = create(MLP((4000,), 1), jnp.zeros(6), jnp.zeros(3))
    assert network.params["hidden_0"]["kernel"].shape == (9, 4000)
    assert_uniform(network.params["hidden_0"]["bias"], 1 / 3)


ACTIVATIONS: dict[Any, Any] = {
    "relu": relu,
    "tanh": np.tanh,
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


def forward(network: Network, activation: Any, order: Any = False) -> np.ndarray:
    """Normalised before the activation, or "last", after it."""
    params, x = doubles(network.params), doubles(X)
    for i in range(2):
        x = dense(x, params[f"hidden_{i}"])
        x = activation(x) if order == "last" else x
        x = normed(x, params[f"norm_{i}"]) if order else x
        x = x if order == "last" else activation(x)
    return dense(x, params["output"])


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_mlp_equals_a_loop(activation: Any) -> None:
    network = create(MLP((6, 7), 2, activation), jnp.zeros(3))
    result = apply(network, X)
    assert result.shape == (5, 2)
    assert_close(result, forward(network, ACTIVATIONS[activation]), rtol=1e-4, atol=1e-5)


def test_inputs_of_other_leading_axes_broadcast() -> None:
    ensemble = create(Ensemble(2, (6, 7)), jnp.zeros(3), jnp.zeros(2))
    action = np.stack([X[:, :2], 2.0 * X[:, :2]])  # [2, 5, 2]
    each = np.stack([apply(ensemble, X, x) for x in action], axis=1)
    assert_close(apply(ensemble, X, action), each)


def test_inputs_are_concatenated() -> None:
    network = create(MLP((6,), 2), jnp.zeros(2), jnp.zeros(1))
    np.testing.assert_array_equal(apply(network, X[:, :2], X[:, 2:]), apply(network, X))


def test_mish_is_finite_far_out() -> None:
    x = jnp.array([-1e4, -50.0, 50.0, 1e4])
    np.testing.assert_allclose(networks.mish(x), [0.0, 0.0, 50.0, 1e4], atol=1e-6)
    slopes = jax.jit(jax.vmap(jax.grad(networks.mish)))(x)
    np.testing.assert_allclose(slopes, [0.0, 0.0, 1.0, 1.0], atol=1e-6)


@pytest.mark.parametrize("order", [True, "last"])
def test_layer_norm_comes_before_the_activation_or_last(order: Any) -> None:
    network = create(MLP((6, 7), 2, layer_norm=order), jnp.zeros(3))
    assert sorted(network.params) == ["hidden_0", "hidden_1", "norm_0", "norm_1", "output"]
    moved = jax.tree.map(lambda x: x + 0.1, network)
    assert_close(apply(moved, X), forward(moved, relu, order), rtol=1e-3, atol=1e-4)


@jax.jit
def thinned(network: Network, x: Any, rate: float) -> jax.Array:
    return network(x, dropout=networks.Dropout(KEY, rate))


@pytest.mark.slow
def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    network = networks.create(RMSNorm(), KEY, X)
    network = network.replace(params={"scale": jnp.array([1.0, -2.0, 0.5])})
    x = doubles(X)
    expected = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * [1.0, -2.0, 0.5]
    assert_close(network(X), expected)


def test_convolutions_equal_a_loop() -> None:
    """With strides that leave a remainder; alone and in a batch."""
    module = networks.Convolutional(((3, 4, 2), (5, 2, 3)), (6,), 2, initialisation="torch")
    pictures = np.random.default_rng(0).normal(size=(2, 11, 9, 2))
    network = create(module, jnp.asarray(pictures, jnp.float32))
    params = doubles(network.params)

    def normalised(x: np.ndarray) -> np.ndarray:
        return ACTIVATIONS["leaky_relu"](normed(x.ravel(), epsilon=1e-5).reshape(x.shape))

    every = []
    for picture in pictures:
        x = picture
        for i, (channels, width, stride) in enumerate(module.convolutions):
            high, wide = ((size - width) // stride + 1 for size in x.shape[:2])
            y = np.zeros((high, wide, channels))
            for row, column in np.ndindex(high, wide):
                top, left = stride * row, stride * column
                patch = x[top : top + width, left : left + width]
                y[row, column] = np.einsum("ijk,ijkc->c", patch, params[f"kernel_{i}"])
            x = normalised(y + params[f"bias_{i}"])
        hidden = normalised(dense(x.ravel(), params["dense"]["hidden_0"]))
        expected = dense(hidden, params["dense"]["output"])
        alone = apply(network, picture.astype(np.float32))
        assert_close(alone, expected, rtol=1e-4, atol=1e-5)
        every.append(alone)
    assert_close(apply(network, pictures.astype(np.float32)), every, rtol=1e-4, atol=1e-5)


def test_dropout_comes_after_each_hidden_layer_and_its_rate_is_traced() -> None:
    network = create(MLP((6, 7), 2), jnp.zeros(3))
    for rate in (0.0, 0.4):
        keys = [jax.random.fold_in(KEY, i) for i in range(2)]
        kept = [uniform_hash(key, (5, 6 + i)) < 1.0 - rate for i, key in enumerate(keys)]
        shares = [x / (1.0 - rate) for x in doubles(kept)]
        expected = mlps.forward(mlps.mlp(network), doubles(X), shares)[0]
        assert_close(thinned(network, X, rate), expected, rtol=1e-4, atol=1e-5)
    assert thinned._cache_size() == 1


def test_numbers_of_masks_equal_a_plain_loop() -> None:
    words = [int(word) for word in jax.random.key_data(KEY)[-2:]]
    for place, drawn in enumerate(np.ravel(uniform_hash(KEY, (3, 4)))):
        x = (place * 0x9E3779B1 + words[0]) % 2**32
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13 ^ words[1]) * 0xC2B2AE35 % 2**32
        assert drawn == np.float32(((x ^ x >> 16) >> 8) / 2**24)


def test_numbers_of_masks_are_uniform_and_not_related() -> None:
    """Over places, over folded keys and over neighbouring seeds."""
    keys = [
        jax.random.fold_in(jax.random.fold_in(jax.random.key(i), 1), j)
        for i in range(8)
        for j in range(8)
    ]
    drawn = np.asarray(jax.vmap(lambda key: uniform_hash(key, (64, 64)))(jnp.stack(keys)))
    drawn = drawn.reshape(64, -1).astype(np.float64)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    counts = np.histogram(drawn, bins=100, range=(0.0, 1.0))[0]
    expected = drawn.size / 100
    assert ((counts - expected) ** 2 / expected).sum() < 99 + 4 * np.sqrt(2 * 99)
    for rate in (0.1, 0.5):
        kept = (drawn < 1.0 - rate) - (1.0 - rate)
        spread = np.sqrt(rate * (1.0 - rate) / 4096)
        assert np.abs(kept.mean(axis=1)).max() < 4.5 * spread  # the largest of 64
        by_key = np.corrcoef(kept) - np.eye(64)
        assert np.abs(by_key).max() < 5.0 / np.sqrt(4096)  # the largest of 2,016
        for shift in (1, 2, 63, 64, 65):
            related = (kept[:, shift:] * kept[:, :-shift]).mean() / (rate * (1.0 - rate))
            assert abs(related) < 4.0 / np.sqrt(kept[:, shift:].size)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_ensemble_is_separate_mlps(layer_norm: bool) -> None:
    ensemble = create(
        Ensemble(3, (6, 7), "tanh", layer_norm=layer_norm), jnp.zeros((5, 3)), jnp.zeros((5, 2))
    )
    y = normal(5, 2, seed=1)
    result = apply(ensemble, X, y)
    assert result.shape == (3, 5)
    assert jax.eval_shape(ensemble, normal(4, 5, 3), normal(4, 5, 2)).shape == (3, 4, 5)
    alone = MLP((6, 7), 1, "tanh", layer_norm=layer_norm)
    for c in range(3):
        params = jax.tree.map(lambda leaf, c=c: leaf[c], ensemble.params["members"])
        assert_close(result[c], apply(Network(params, alone), X, y)[:, 0])
        assert_close(apply(networks.member(ensemble, c), X, y), result[c : c + 1])


def test_members_begin_apart_and_with_an_mlps_bounds() -> None:
    ensemble = create(Ensemble(2, (2000,)), jnp.zeros(9))
    kernels = np.asarray(ensemble.params["members"]["hidden_0"]["kernel"])  # [C, I, H]
    assert not (kernels[0] == kernels[1]).any()
    for kernel in kernels:
        assert_uniform(kernel, 1 / 3)


def test_network_is_a_pytree_of_its_parameters() -> None:
    network = create(MLP((4,), 1), jnp.zeros(3))
    assert len(jax.tree.leaves(network)) == 4

    @jax.jit
    @chex.assert_max_traces(n=1)
    def traced(network: Network, x: Any) -> Any:
        return network(x)

    other = networks.create(MLP((4,), 1), jax.random.key(1), jnp.zeros(3))
    assert not np.allclose(traced(network, X), traced(other, X))


@pytest.mark.slow
def test_members_have_inputs_of_their_own() -> None:
    ensemble = create(Ensemble(3, (4,)), jnp.zeros(2))
    x = normal(3, 5, 2)
    outputs = jax.jit(jax.vmap(lambda member, x: member(x)))(networks.members(ensemble), x)
    assert outputs.shape == (3, 1, 5)
    for c in range(3):
        assert_close(outputs[c, 0], apply(ensemble, x[c])[c])


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
    online, target = (
        {"a": normal(5, 3, seed=seed), "b": normal(4, seed=seed)} for seed in range(2)
    )
    result = networks.polyak(online, target, rate)
    expected = jax.tree.map(lambda new, old: (1 - rate) * old + rate * new, online, target)
    assert_close(result, expected)
    if rate == 0.0:
        np.testing.assert_array_equal(result["a"], target["a"])
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
    """Batch normalisation, which may count its calls."""

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
    """With other statistics than its first batch's."""
    network = create(Normalised(counts), jnp.zeros((5, 3)))
    return network.replace(collections=jax.tree.map(lambda x: x + 2.0, network.collections))


def test_create_keeps_all_collections() -> None:
    network = create(Normalised(), jnp.zeros((5, 3)))
    statistics = network.collections["batch_stats"]["norm"]
    np.testing.assert_array_equal(statistics["mean"], np.zeros(3))
    np.testing.assert_array_equal(statistics["var"], np.ones(3))
    assert sorted(network.params) == ["Dense_0", "norm"]


def test_a_call_reads_batch_statistics() -> None:
    network = batch_normalised()
    p = doubles(network.params)
    x = (X - 2.0) / np.sqrt(3.0 + 1e-5) * p["norm"]["scale"] + p["norm"]["bias"]
    assert_close(apply(network, X), dense(x, p["Dense_0"]))


def test_apply_mutable_updates_batch_statistics_and_nothing_else() -> None:
    network = batch_normalised()
    output, moved = jax.jit(lambda network: network.apply_mutable(X, train=True))(network)
    statistics = moved.collections["batch_stats"]["norm"]
    np.testing.assert_allclose(statistics["mean"], 0.75 * 2.0 + 0.25 * X.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics["var"], 0.75 * 3.0 + 0.25 * X.var(axis=0), rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, moved.params, network.params)
    assert jax.tree.structure(moved) == jax.tree.structure(network)
    other, _ = network.replace(collections=moved.collections).apply_mutable(X, train=True)
    assert_close(output, other)  # in training the batch's own statistics count
    with pytest.raises(ValueError, match="leave 'params' out of `mutable`"):
        network.apply_mutable(X, mutable=("params",))


@pytest.mark.parametrize("counts", [False, True])
def test_an_optimiser_step_leaves_collections_unchanged(counts: bool) -> None:
    network = batch_normalised(counts)
    optimiser = optax.adam(1e-2)

    @jax.jit
    def step(network: Network) -> tuple[Network, Network]:
        gradient = jax.grad(lambda network: jnp.square(network(X)).sum())(network)
        changes, _ = optimiser.update(gradient, optimiser.init(network))
        return gradient, optax.apply_updates(network, changes)

    gradient, learnt = step(network)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient.collections))
    jax.tree.map(np.testing.assert_array_equal, learnt.collections, network.collections)
    changed = jax.tree.map(lambda x, y: (x != y).any(), network.params, learnt.params)
    assert all(jax.tree.leaves(changed))


def test_a_gradient_flows_through_apply_mutable_but_not_through_new_statistics() -> None:
    network = batch_normalised()

    def loss(network: Network, x: Any) -> tuple[Any, Network]:
        output, moved = network.apply_mutable(x, train=True)
        return jnp.square(output).sum(), moved

    def statistics(network: Network, x: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree.leaves(loss(network, x)[1].collections))

    gradient, moved = jax.jit(jax.grad(loss, has_aux=True))(network, X)
    assert jax.tree.structure(gradient) == jax.tree.structure(moved)
    assert np.asarray(gradient.params["norm"]["scale"]).all()
    slopes = jax.jit(jax.grad(statistics, argnums=(0, 1)))(network, X)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(slopes))


def test_collections_are_averaged_and_stacked_like_parameters() -> None:
    target = batch_normalised()
    _, online = target.apply_mutable(X, train=True)
    mean, new = (
        x.collections["batch_stats"]["norm"]["mean"]
        for x in (networks.polyak(online, target, 0.25), online)
    )
    np.testing.assert_allclose(mean, 0.75 * 2.0 + 0.25 * np.asarray(new), rtol=1e-6)
    stacked = jax.vmap(lambda key: networks.create(Normalised(), key, jnp.zeros((5, 3))))(
        jax.random.split(KEY, 2)
    )
    assert stacked.collections["batch_stats"]["norm"]["mean"].shape == (2, 3)


def test_integers_and_truth_values_of_collections_are_stored_as_floats() -> None:
    network = create(Normalised(counts=True), jnp.zeros((5, 3)))
    assert {leaf.dtype for leaf in jax.tree.leaves(network)} == {jnp.dtype(jnp.float32)}
    train = jax.jit(lambda network: network.apply_mutable(X, train=True)[1])
    moved = train(train(network))
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
        *(".params['hidden_0']['bias']", ".params['hidden_0']['kernel']"),
        *(".params['output']['bias']", ".params['output']['kernel']"),
    ]
    marked = jax.tree_util.tree_leaves_with_path(batch_normalised())
    assert jax.tree_util.keystr(marked[-1][0]) == ".collections['batch_stats']['norm']['var']"


def test_checkpoints_hold_collections(tmp_path: Path) -> None:
    network = batch_normalised(counts=True)
    checkpoints.save(tmp_path, 1, {"agent": network}, {})
    expected = jax.tree.map(jnp.zeros_like, network)
    restored = checkpoints.restore(checkpoints.newest(tmp_path), "agent", expected)
    assert jax.tree.structure(restored) == jax.tree.structure(network)
    jax.tree.map(np.testing.assert_array_equal, restored, network)
