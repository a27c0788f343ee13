"""Features of every kind of observation; convolutions equal XLA's."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import MASK, EnvSpec, Part
from rljax.networks import encoders
from rljax.networks.encoders import EncoderSettings
from tests.networks import reference
from tests.networks.reference import assert_close, dense, doubles, normal, normed

KEY = jax.random.key(0)
WIDTHS = {"nature": 512, "impala": 256, "small": 128, "efficient": 256}


def pictures(*shape: int, dtype: str = "uint8") -> EnvSpec:
    return EnvSpec("test/Pictures-v0", shape, 3, discrete=True, observation_dtype=dtype)


MIXED = EnvSpec(
    "test/Mixed-v0", (), 3, discrete=True,
    parts=(
        Part(MASK, (3,), "bool"), Part("camera", (5, 6, 2), "uint8"),
        Part("map", (4, 4)), Part("speed", (2,)),
    ),
)  # fmt: skip


def example(spec: EnvSpec, *leading: int) -> Any:
    generator = np.random.default_rng(0)

    def draw(x: Any) -> Any:
        if x.dtype == bool:
            return jnp.ones(x.shape, bool)
        size = {"size": x.shape}
        whole = x.dtype == jnp.uint8
        return jnp.asarray(
            generator.integers(256, **size) if whole else generator.normal(**size), x.dtype
        )

    return jax.tree.map(draw, spec.shaped(*leading))


def drawn(spec: EnvSpec, settings: EncoderSettings, observation: Any) -> networks.Network:
    return reference.drawn(encoders.encoder(spec, settings), observation, std=0.1)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=len)
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("nature", 36),
        ("nature", 84),
        ("impala", 2),
        ("impala", 64),
        ("small", 3),
        ("efficient", 25),
        ("efficient", 84),
    ],
)
def test_pictures_become_one_vector(kind: Any, size: int, leading: tuple[int, ...]) -> None:
    spec = pictures(size, size + 3, 4)
    module, observation = encoders.encoder(spec, EncoderSettings(kind)), spec.example(*leading)
    features = jax.eval_shape(lambda: networks.create(module, KEY, observation)(observation))
    assert (features.shape, features.dtype) == ((*leading, WIDTHS[kind]), jnp.float32)


@pytest.mark.parametrize(
    ("size", "kind"), [(84, "nature"), (36, "nature"), (35, "small"), (3, "small"), (2, "impala")]
)
def test_auto_goes_by_the_size(size: int, kind: str) -> None:
    assert encoders.chosen(EncoderSettings("auto"), (size, 90, 1)) == kind
    encoders.check(pictures(size, 90, 1), EncoderSettings("auto"))


@pytest.mark.parametrize(
    ("kind", "size", "advice"),
    [
        ("nature", 35, "small"),
        ("nature", 2, "impala"),
        ("small", 2, "impala"),
        ("efficient", 24, "small"),
    ],
)
def test_too_small_pictures_are_one_error(kind: Any, size: int, advice: str) -> None:
    message = f"--config.encoder {kind} needs .*\n?.*Use: --config.encoder {advice}"
    with pytest.raises(ValueError, match=message):
        encoders.encoder(pictures(90, size, 1), EncoderSettings(kind))


def test_vectors_leave_the_body_itself() -> None:
    body = networks.MLP((4,), 2)
    assert encoders.encoded(EnvSpec("test/Vector-v0", (3,), 2), EncoderSettings(), body) is body
    assert encoders.encoded(pictures(5, 5, 1), EncoderSettings(), body) is not body


@pytest.mark.slow
def test_dictionaries_are_concatenated_by_name_without_the_mask() -> None:
    observation = example(MIXED, 3)
    network = drawn(MIXED, EncoderSettings(), observation)
    features = network(observation)
    assert features.shape == (3, 128 + 16 + 2)
    np.testing.assert_array_equal(features[:, 128:144], observation["map"].reshape(3, -1))
    np.testing.assert_array_equal(features[:, 144:], observation["speed"])
    np.testing.assert_array_equal(network(observation | {MASK: jnp.zeros((3, 3), bool)}), features)
    moved = network(observation | {"camera": observation["camera"] + 1})
    assert (moved[:, :128] != features[:, :128]).any()
    np.testing.assert_array_equal(moved[:, 128:], features[:, 128:])


def test_bytes_are_divided_by_255() -> None:
    bytes_, floats = pictures(5, 5, 2), pictures(5, 5, 2, dtype="float32")
    observation = example(bytes_, 2)
    network = drawn(bytes_, EncoderSettings("small"), observation)
    of_floats = network.replace(module=encoders.encoder(floats, EncoderSettings("small")))
    np.testing.assert_allclose(network(observation), of_floats(observation / 255.0), rtol=1e-6)
    assert (of_floats(observation / 1.0) != network(observation)).any()


@pytest.mark.slow
def test_leading_axes_are_rows() -> None:
    observation = example(MIXED, 2, 3)
    network = drawn(MIXED, EncoderSettings(), observation)
    rows = network(jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), observation))
    assert_close(network(observation).reshape(6, -1), rows, atol=1e-5)


@pytest.mark.slow_after(4)
@pytest.mark.parametrize(
    ("size", "channels", "width", "stride"),
    [
        (10, 4, 3, 1),
        (11, 2, 3, 2),
        (21, 3, 8, 4),
        (20, 3, 8, 4),
        (9, 3, 4, 2),
        (8, 2, 2, 2),
        (7, 2, 5, 3),
    ],
)
def test_convolutions_equal_those_of_xla(size: int, channels: int, width: int, stride: int) -> None:
    generator = np.random.default_rng(0)
    seen = jnp.asarray(generator.normal(size=(2, size, size + 1, channels)), jnp.float32)
    kernel = jnp.asarray(generator.normal(size=(width, width, channels, 5)), jnp.float32)

    def of_xla(seen: Any, kernel: Any, stride: int) -> Any:
        layout, strides = ("NHWC", "HWIO", "NHWC"), (stride, stride)
        return jax.lax.conv_general_dilated(
            seen, kernel, strides, "VALID", dimension_numbers=layout
        )

    shape = of_xla(seen, kernel, stride).shape
    weight = jnp.asarray(generator.normal(size=shape), jnp.float32)

    def both(convolve: Any) -> Any:
        slopes = jax.grad(lambda x, k: (weight * convolve(x, k, stride)).sum(), (0, 1))
        return jax.jit(lambda x, k: (convolve(x, k, stride), slopes(x, k)))(seen, kernel)

    assert_close(both(encoders.convolve), both(of_xla), rtol=1e-4, atol=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("norm", "activation"),
    [(False, "relu"), (True, "relu"), ("plain", "relu"), ("last", "relu"), (False, "tanh")],
)
def test_small_equals_numpy(norm: Any, activation: Any) -> None:
    """16 3x3, whose activation is relu, and a dense layer of 128, each normalised over its
    channels.
    """
    spec = pictures(5, 4, 2, dtype="float32")
    observation = example(spec, 3)
    network = drawn(spec, EncoderSettings("small", activation, layer_norm=norm), observation)
    params = doubles(network.params["pictures"])

    def hidden(x: np.ndarray, name: str) -> np.ndarray:
        epsilon = 1e-5 if norm == "plain" else 1e-6
        normalised = functools.partial(normed, p=params.get(f"{name}_norm"), epsilon=epsilon)
        x = normalised(x) if norm in (True, "plain") else x
        x = np.tanh(x) if (name, activation) == ("dense", "tanh") else np.maximum(x, 0.0)
        return normalised(x) if norm == "last" else x

    x, output = doubles(observation), np.zeros((3, 3, 2, 16))
    for i, j in np.ndindex(3, 2):
        patch = x[:, i : i + 3, j : j + 3]
        output[:, i, j] = np.einsum("nhwk,hwkc->nc", patch, params["convolution_0_kernel"])
    x = hidden(output + params["convolution_0_bias"], "convolution_0")
    x = hidden(dense(x.reshape(3, -1), params["dense"]), "dense")
    assert_close(network(observation), x, rtol=1e-4, atol=1e-4)
    names = {name for name in params if name.endswith("_norm")}
    assert names == ({"convolution_0_norm", "dense_norm"} if norm in (True, "last") else set())


@pytest.mark.slow
def test_initial_kernels_depend_on_the_fan_in() -> None:
    spec = pictures(5, 5, 2)
    encoder = encoders.encoder(spec, EncoderSettings("small"))
    params = encoder.init(KEY, spec.example(1))["params"]["pictures"]
    bound = 1.0 / math.sqrt(3 * 3 * 2)  # the initialisation "torch"
    largest = np.abs(params["convolution_0_kernel"]).max()
    assert 0.9 * bound < largest <= bound


def test_neighbours_lie_within_the_radius_and_are_the_same_for_all_rows() -> None:
    observation = normal(5, 3)
    near = np.asarray(encoders.perturbed(KEY, jnp.asarray(observation), 0.3, 50)) - observation
    assert 0.25 < np.abs(near).max() <= 0.3 + 1e-6
    np.testing.assert_allclose(near, np.broadcast_to(near[:, :1], near.shape), atol=1e-6)
    np.testing.assert_allclose(near.mean(), 0.0, atol=0.03)


def test_neighbours_of_pictures_are_in_units_of_networks() -> None:
    camera, joints = jnp.full((2, 4, 4, 1), 51, jnp.uint8), jnp.full((2, 3), 51.0)
    near = encoders.perturbed(KEY, {"camera": camera, "joints": joints}, 0.1, 20)
    assert near["camera"].shape == (20, 2, 4, 4, 1)
    assert near["joints"].shape == (20, 2, 3)
    np.testing.assert_allclose(near["camera"], 0.2, atol=0.1 + 1e-6)
    np.testing.assert_allclose(near["joints"], 51.0, atol=0.1 + 1e-5)
    np.testing.assert_allclose(np.asarray(near["camera"]).mean(), 0.2, atol=0.02)
