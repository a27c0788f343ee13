"""Schedules, flows and samplers against closed forms."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import networks
from rljax.agent import Array, EnvSpec, Part
from rljax.networks import generative
from tests.networks.reference import apply, assert_close, normal

KEY = jax.random.key(0)
MEAN, STD = 0.3, 0.2  # of the data

average_velocity = jax.jit(generative.average_velocity, static_argnums=0)


def test_schedules_are_as_published() -> None:
    alpha, signal = generative.schedule("vp", 5)
    # beta(t), from 0.1 to 10, integrated over each fifth of [0, 1]
    integral = [0.1 / 5 + 9.9 * ((t / 5) ** 2 - ((t - 1) / 5) ** 2) / 2 for t in range(1, 6)]
    np.testing.assert_allclose(alpha, np.exp(np.negative(integral)), rtol=1e-6)
    np.testing.assert_allclose(signal, np.cumprod(alpha), rtol=1e-6)
    ends = generative.schedule("linear", 1000).alpha[np.array([0, -1])]
    np.testing.assert_allclose(1.0 - ends, [1e-4, 2e-2], rtol=1e-3)
    alpha, signal = generative.schedule("cosine", 4)
    angle = np.pi / 2 * (np.array([0.0, 0.25, 0.5, 0.75]) + 0.008) / 1.008
    np.testing.assert_allclose(signal[:3], (np.cos(angle[1:]) / np.cos(angle[0])) ** 2, rtol=1e-6)
    np.testing.assert_allclose(alpha[3], 1e-3, rtol=1e-6)  # of 0, which is less


@pytest.mark.parametrize("is_wide", [False, True])
def test_posterior_follows_from_the_rule_of_bayes(is_wide: bool) -> None:
    """q(a_{t-1} | a_t, a_0): the product of two Gaussians in a_{t-1}."""
    schedule = generative.schedule("vp", 3)
    alpha, signal = (np.asarray(x, np.float64) for x in schedule)
    ours = generative.posterior(schedule, is_wide)
    for t in (1, 2):
        precision = alpha[t] / (1 - alpha[t]) + 1 / (1 - signal[t - 1])
        clean = np.sqrt(signal[t - 1]) / (1 - signal[t - 1]) / precision
        noisy = np.sqrt(alpha[t]) / (1 - alpha[t]) / precision
        std = np.sqrt(1 - alpha[t]) if is_wide else precision**-0.5
        actual = [ours.clean[t], ours.noisy[t], ours.std[t]]
        np.testing.assert_allclose(actual, [clean, noisy, std], rtol=1e-5)
    np.testing.assert_allclose([x[0] for x in ours], [1.0, 0.0, 0.0], atol=1e-6)


def test_sinusoidal_by_hand() -> None:
    features = generative.sinusoidal(jnp.array([0.0, 2.0]), 4)
    angle = np.array([2.0, 2.0e-4])
    expected = [[0, 0, 1, 1], [*np.sin(angle), *np.cos(angle)]]
    np.testing.assert_allclose(features, expected, atol=1e-6)


def test_denoising_inverts_noising() -> None:
    schedule = generative.schedule("vp", 5)
    noise = normal(5, 3, 2)
    action = np.tanh(normal(5, 3, 2, seed=1))
    step = np.broadcast_to(np.arange(5)[:, None], (5, 3))
    noisy = np.asarray(jax.jit(lambda *of: generative.noised(schedule, *of))(action, step, noise))
    denoised = jax.jit(lambda *of: generative.denoised(schedule, *of))
    np.testing.assert_allclose(denoised(noisy, step, noise), action, atol=1e-4)
    assert np.abs(denoised(50.0 * noisy, step, noise)).max() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "sampling"),
    [
        ("vp", 500, "posterior"),
        pytest.param("linear", 1000, "posterior", marks=pytest.mark.learn),
        pytest.param("vp", 500, "wide", marks=pytest.mark.learn),
    ],
)
def test_reverse_process_draws_from_the_data(name: Any, steps: int, sampling: Any) -> None:
    schedule = generative.schedule(name, steps)

    def denoiser(noisy: Array, step: Array) -> Array:
        """E[e | a_t] for Gaussian a."""
        signal = schedule.signal[step][..., None]
        variance = signal * STD**2 + 1.0 - signal
        return jnp.sqrt(1.0 - signal) * (noisy - jnp.sqrt(signal) * MEAN) / variance

    draw = functools.partial(generative.ancestral, schedule, denoiser)
    drawn = jax.jit(lambda key: draw(key, (20_000, 1), sampling))(KEY)
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [MEAN, STD], atol=0.01)


def test_clean_steps_go_to_the_estimate_of_the_clean_action() -> None:
    """Noise that leads to one action whatever it is taken from: the last step ends there, and no
    noise is added.
    """
    schedule, action = generative.schedule("vp", 4), jnp.array([0.5, -0.25])

    def denoiser(noisy: Array, step: Array) -> Array:
        signal = schedule.signal[step][..., None]
        return (noisy - jnp.sqrt(signal) * action) / jnp.sqrt(1.0 - signal)

    draw = functools.partial(generative.ancestral, schedule, denoiser, sampling="clean")
    drawn = jax.jit(lambda key: draw(key, (7, 2)))(KEY)
    np.testing.assert_allclose(drawn, np.broadcast_to(action, (7, 2)), atol=1e-5)


def marginal(time: Any) -> tuple[Any, Any]:
    """Mean and std between data at time 0 and noise at time 1."""
    return (1.0 - time) * MEAN, jnp.sqrt((1.0 - time) ** 2 * STD**2 + time**2)


def velocity(action: Array, time: Array) -> Array:
    """From data to noise: E[e - a | a_t] for Gaussian a."""
    mean, std = (x[..., None] for x in marginal(time))
    time = time[..., None]
    return -MEAN + (time - (1.0 - time) * STD**2) / std**2 * (action - mean)


def average(action: Array, start: Array, time: Array) -> Array:
    """u(a_t, r, t): each point keeps its distance from the mean, in stds."""
    (mean, std), (mean_start, std_start) = (
        [x[..., None] for x in marginal(t)] for t in (time, start)
    )
    origin = mean_start + std_start / std * (action - mean)
    return (action - origin) / (time - start)[..., None]


def test_euler_follows_the_flow_with_an_error_of_first_order() -> None:
    noise = jnp.linspace(-2.0, 2.0, 41)[:, None]
    exact = MEAN + STD * noise
    errors = []
    for steps in (10, 20, 40):
        follow = lambda noise, n=steps: generative.euler(  # noqa: E731
            lambda a, t: -velocity(a, 1.0 - t), noise, steps=n
        )
        errors.append(np.abs(jax.jit(follow)(noise) - exact).max())
    assert errors[0] < 0.2
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 2.0, rtol=0.15)


def test_interpolation_begins_with_noise() -> None:
    noise, action = jnp.ones((3, 2)), jnp.zeros((3, 2))
    points = generative.interpolated(noise, action, jnp.array([0.0, 0.25, 1.0]))
    np.testing.assert_allclose(points, [[1, 1], [0.75, 0.75], [0, 0]])


@functools.partial(jax.jit, static_argnums=0)
def points(number: int) -> tuple[Array, Array, Array]:
    """Random a_t, r and t, with r < t."""
    start, time = jnp.sort(jax.random.uniform(KEY, (2, number), minval=0.05, maxval=0.95), axis=0)
    return jax.random.normal(KEY, (number, 1)), start, time + 0.01


def test_average_velocity_is_a_fixed_point_of_its_identity() -> None:
    action, start, time = points(200)
    u, target = average_velocity(average, action, start, time, jax.jit(velocity)(action, time))
    assert_close(u, jax.jit(average)(action, start, time))
    np.testing.assert_allclose(target, u, rtol=1e-3, atol=1e-3)


def test_identity_is_the_plain_flow_where_times_are_equal() -> None:
    action, _, time = points(50)
    field = lambda a, r, t: jnp.sin(3.0 * a) * t[:, None]  # noqa: E731
    _, target = average_velocity(field, action, time, time, action)
    np.testing.assert_array_equal(target, action)


def test_jacobian_product_equals_differences() -> None:
    action, start, time = points(50)
    slope, width = jax.random.normal(KEY, (50, 1)), 1e-3

    @jax.jit
    def field(a: Array, r: Array, t: Array) -> Array:
        return jnp.sin(3.0 * a) * jnp.exp(t - r)[:, None] + a**2

    after, before = (field(action + x * slope, start, time + x) for x in (width, -width))
    expected = slope - (time - start)[:, None] * (after - before) / (2.0 * width)
    _, target = average_velocity(field, action, start, time, slope)
    np.testing.assert_allclose(target, expected, rtol=1e-3, atol=1e-3)


def test_target_has_no_gradient() -> None:
    action, start, time = points(10)

    def loss(scale: Array) -> Array:
        u, target = generative.average_velocity(
            lambda a, r, t: scale * a * t[:, None], action, start, time, action
        )
        return (u - target).sum()

    expected = (np.asarray(action) * np.asarray(time)[:, None]).sum()
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(1.0), expected, rtol=1e-5)


@pytest.mark.learn
def test_learns_the_average_velocity_of_a_known_flow() -> None:
    module = generative.Field((64, 64), 1, "mish", embedding=16)
    zero = jnp.zeros(())
    network = networks.create(module, KEY, jnp.zeros(1), jnp.zeros(0), zero, zero)
    optimiser = optax.adam(optax.cosine_decay_schedule(2e-3, 6_000))

    def loss(network: networks.Network, key: Array) -> Array:
        key_time, key_data, key_noise, key_rows = jax.random.split(key, 4)
        start, time = jnp.sort(jax.random.uniform(key_time, (2, 512)), axis=0)
        start = jnp.where(jax.random.bernoulli(key_rows, 0.5, (512,)), time, start)
        action = MEAN + STD * jax.random.normal(key_data, (512, 1))
        noise = jax.random.normal(key_noise, (512, 1))
        noisy = generative.interpolated(noise, action, 1.0 - time)
        field = lambda a, r, t: network(a, jnp.zeros((512, 0)), r, t)  # noqa: E731
        u, target = generative.average_velocity(field, noisy, start, time, noise - action)
        return jnp.square(u - target).mean()

    @jax.jit
    def train(network: networks.Network) -> networks.Network:
        def step(carry: Any, key: Array) -> tuple[Any, None]:
            network, state = carry
            changes, state = optimiser.update(jax.grad(loss)(network, key), state)
            return (optax.apply_updates(network, changes), state), None

        start = (network, optimiser.init(network))
        return jax.lax.scan(step, start, jax.random.split(KEY, 6_000))[0][0]

    network = train(network)
    noise = jnp.linspace(-2.0, 2.0, 41)[:, None]
    zeros, ones, empty = jnp.zeros(41), jnp.ones(41), jnp.zeros((41, 0))
    for start, time in ((zeros, ones), (zeros, 0.5 * ones), (0.3 * ones, 0.8 * ones)):
        mean, std = (x[:, None] for x in marginal(time))
        velocity = network(mean + std * noise, empty, start, time)
        np.testing.assert_allclose(velocity, average(mean + std * noise, start, time), atol=0.12)
    drawn = noise - network(noise, empty, zeros, ones)
    np.testing.assert_allclose(drawn, MEAN + STD * noise, atol=0.12)


def test_logit_normal_has_its_median_at_the_mean() -> None:
    drawn = np.asarray(jax.jit(lambda key: generative.logit_normal(key, (20_001,)))(KEY))
    assert 0.0 < drawn.min() < drawn.max() < 1.0
    np.testing.assert_allclose(np.median(drawn), 1.0 / (1.0 + np.exp(0.4)), atol=0.01)


def test_candidate_takes_one_of_each() -> None:
    candidates = jnp.arange(24.0).reshape(2, 3, 4, 1)
    rows = generative.candidate(candidates, jnp.array([[0, 1, 2], [3, 0, 1]]))
    np.testing.assert_array_equal(rows[..., 0], [[0, 5, 10], [15, 16, 21]])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("embedding", "widths"), [(0, None), (8, None), (8, (6, 4))])
def test_field_takes_any_leading_axes_and_times(embedding: int, widths: Any) -> None:
    module = generative.Field((16,), 2, embedding=embedding, time_widths=widths)
    example = (jnp.zeros(2), jnp.zeros(3), jnp.zeros(()), jnp.zeros(()))
    network = jax.jit(lambda key: networks.create(module, key, *example))(KEY)
    action, observation = normal(4, 5, 2), normal(4, 5, 3)
    one, other = np.zeros((4, 5), np.float32), np.ones((4, 5), np.float32)
    field = jax.jit(lambda start, time: network(action, observation, start, time))
    assert field(one, other).shape == (4, 5, 2)
    assert np.any(field(one, other) != field(other, one))


@pytest.mark.slow
def test_bfloat16_is_close_and_kept_in_float32() -> None:
    observation, action = jax.random.normal(KEY, (64, 7)), jax.random.normal(KEY, (64, 3))
    outputs = []
    for precision in ("float32", "bfloat16"):
        module = generative.Field((32, 32), 3, "mish", precision=precision)
        create = functools.partial(networks.create, module)
        network = jax.jit(create)(KEY, action, observation)
        assert {x.dtype for x in jax.tree.leaves(network)} == {jnp.dtype("float32")}
        outputs.append(apply(network, action, observation))
    assert outputs[1].dtype == jnp.float32
    assert 0.0 < np.abs(outputs[0] - outputs[1]).max() < 0.02


def test_candidates_of_any_observation_stand_beside_its_leading_axes() -> None:
    parts = (Part("image", (4, 4, 1), "uint8"), Part("vector", (3,)))
    spec = EnvSpec("test/Parts-v0", (), 2, parts=parts)
    observation = {
        "image": jnp.arange(6 * 16, dtype=jnp.uint8).reshape(2, 3, 4, 4, 1),
        "vector": jnp.arange(18.0).reshape(2, 3, 3),
    }
    candidates = generative.repeated(spec, observation, 5)
    assert candidates["image"].dtype == jnp.uint8
    for name, x in observation.items():
        expected = np.broadcast_to(x[:, :, None], (2, 3, 5, *x.shape[2:]))
        np.testing.assert_array_equal(candidates[name], expected)
    assert generative.action_noise(spec, candidates, KEY).shape == (2, 3, 5, 2)
    single = jax.tree.map(lambda x: x[0, 0], observation)
    assert generative.action_noise(spec, single, KEY).shape == (2,)
