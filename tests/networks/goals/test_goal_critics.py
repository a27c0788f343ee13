"""Critics of goals against float64 NumPy, and what distances promise."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.networks.goals import contrast, energies, quasimetrics
from rljax.networks.goals.bilinear import Bilinear
from rljax.networks.goals.quasimetrics import Quasimetric
from rljax.networks.torsos import TorsoSettings
from tests.networks.reference import assert_close, doubles, normal, redrawn

SPEC = EnvSpec("test/Example-v0", (6,), 2)
SETTINGS = TorsoSettings("mlp", 1, None, "tanh", "torch")
KEY = jax.random.key(0)


def made(create: Any, *arguments: Any) -> Any:
    """Networks with random numbers."""
    shapes = jax.eval_shape(lambda key: create(key, SPEC, SETTINGS, *arguments), KEY)
    return redrawn(shapes, 0.5)


def points(*shape: int) -> np.ndarray:
    """Features [..., 16], in float64."""
    return np.random.default_rng(1).normal(size=(*shape, 16))


def in_float64(function: Any, *inputs: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(function(*map(jnp.asarray, inputs)))


def forward(params: Any, x: np.ndarray) -> np.ndarray:
    """An MLP of one hidden layer of tanh units."""
    hidden = np.tanh(x @ params["hidden_0"]["kernel"] + params["hidden_0"]["bias"])
    return hidden @ params["output"]["kernel"] + params["output"]["bias"]


def distance_by_hand(kind: str, x: np.ndarray, y: np.ndarray, share: float = 0.3) -> float:
    """Of features [16]: of iqe each piece of the line between ends is covered or not."""
    if kind == "mrn":
        return float(np.linalg.norm(x[:8] - y[:8])) + max(0.0, (x[8:] - y[8:]).max())
    lengths = []
    for left, right in zip(x.reshape(-1, 8), y.reshape(-1, 8), strict=True):
        ends = np.sort(np.concatenate([left, right]))
        middles = (ends[1:] + ends[:-1]) / 2.0
        covered = [((left < middle) & (middle < right)).any() for middle in middles]
        lengths.append((np.diff(ends) * covered).sum())
    return share * np.mean(lengths) + (1.0 - share) * np.max(lengths)


DISTANCES = {"iqe": functools.partial(quasimetrics.iqe, mean_share=0.3), "mrn": quasimetrics.mrn}
kinds = pytest.mark.parametrize("kind", DISTANCES)


@kinds
def test_distances_are_the_papers(kind: str) -> None:
    x, y = points(2, 30)
    expected = [distance_by_hand(kind, *pair) for pair in zip(x, y, strict=True)]
    actual = in_float64(DISTANCES[kind], x, y)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_the_union_of_intervals_with_equal_ends_and_empty_ones() -> None:
    """Of whole numbers, so that many ends are equal: the cells of a line that are covered."""
    left, right = np.sort(np.random.default_rng(3).integers(0, 7, (2, 500, 8)), axis=0)
    cells = np.arange(7)[:, None, None]
    expected = ((left <= cells) & (cells < right)).any(axis=2).sum(axis=0)
    assert (left == right).any()
    length, slopes = jax.vmap(jax.value_and_grad(quasimetrics.union, (0, 1)))(
        jnp.asarray(left, jnp.float32), jnp.asarray(right, jnp.float32)
    )
    np.testing.assert_array_equal(length, expected)
    for slope, sign in zip(slopes, (-1.0, 1.0), strict=True):
        assert set(np.unique(slope)) == {0.0, sign}
    np.testing.assert_array_equal((slopes[0] + slopes[1]).sum(axis=1), 0.0)


@kinds
def test_distances_of_nan_are_nan(kind: str) -> None:
    x, y = points(2)
    x[3] = np.nan
    assert np.isnan(DISTANCES[kind](x, y))


@kinds
def test_distances_are_quasimetrics(kind: str) -> None:
    """0 on the diagonal, positive elsewhere, no longer than a way over a third point, and other in
    the other direction.
    """
    x = points(12)
    d = in_float64(DISTANCES[kind], x[:, None], x[None])
    np.testing.assert_allclose(np.diag(d), 0.0, atol=2e-6)
    apart = ~np.eye(12, dtype=bool)
    assert d[apart].min() > 0.0
    assert np.abs(d - d.T)[apart].min() > 1e-3
    assert (d[:, None, :] <= d[:, :, None] + d[None] + 1e-12).all()


@kinds
def test_slopes_of_distances_are_those_of_differences(kind: str) -> None:
    x, y = points(2, 1)[:, 0]
    distance = DISTANCES[kind]
    slope = in_float64(jax.grad(distance), x, y)
    for i in range(16):
        width = 1e-6 * (np.arange(16) == i)
        change = distance_by_hand(kind, x + width, y) - distance_by_hand(kind, x - width, y)
        np.testing.assert_allclose(slope[i], change / 2e-6, atol=1e-6)


@kinds
def test_slopes_are_finite_from_a_point_to_itself(kind: str) -> None:
    x = jnp.asarray(points(), jnp.float32)
    assert np.isfinite(jax.grad(DISTANCES[kind])(x, x)).all()


@pytest.mark.parametrize("kind", ["iqe", "mrn"])
def test_a_quasimetric_embeds_states_and_goals_alike(kind: Any) -> None:
    network = made(Quasimetric.create, (5,), 16, kind)
    observation = normal(7, 6)
    x, y = (
        forward(doubles(network.embedding.params), part) for part in np.split(observation, 2, 1)
    )
    share = 0.0 if network.mixing is None else 1.0 / (1.0 + np.exp(-float(network.mixing)))
    expected = [distance_by_hand(kind, *pair, share) for pair in zip(x, y, strict=True)]
    assert_close(network(observation), np.asarray(expected))
    assert_close(network.between(*network.embedded(observation)), np.asarray(expected))


@pytest.mark.parametrize("with_actions", [True, False])
def test_bilinear_critics_are_products_of_features(with_actions: bool) -> None:
    actions = [normal(7, 2, seed=3)] if with_actions else []
    example = [jnp.zeros(2)] if with_actions else []
    critic = made(Bilinear.create, 2, (5,), 4, *example)
    observation = normal(7, 6)
    left, right = [], []
    for i in range(2):
        of_state, of_goal = (
            jax.tree.map(lambda x, i=i: x[i], doubles(net.params["members"]))
            for net in (critic.state_features, critic.goal_features)
        )
        left.append(forward(of_state, np.concatenate([observation[:, :3], *actions], axis=1)))
        right.append(forward(of_goal, observation[:, 3:]))
    expected = np.einsum("cik,cjk->cij", left, right) / 2.0
    assert_close(critic.pairs(observation, *actions), expected)
    assert_close(critic(observation, *actions), np.diagonal(expected, axis1=1, axis2=2))


def test_networks_begin_apart() -> None:
    one = Bilinear.create(KEY, SPEC, SETTINGS, 2, (5,), 4)
    kernels = [
        net.params["members"]["hidden_0"]["kernel"][i]
        for net in (one.state_features, one.goal_features)
        for i in range(2)
    ]
    assert len({np.asarray(kernel).tobytes() for kernel in kernels}) == 4
    assert Quasimetric.create(KEY, SPEC, SETTINGS, (5,), 8, "iqe").mixing == 0.0


@pytest.mark.parametrize("kind", ["binary", "info_nce"])
def test_contrastive_losses_are_cross_entropies(kind: Any) -> None:
    score = np.random.default_rng(2).normal(size=(2, 5, 5)) * 3.0
    positive = np.eye(5, dtype=bool)
    if kind == "binary":
        chance = 1.0 / (1.0 + np.exp(-score))
        expected = -np.where(positive, np.log(chance), np.log(1.0 - chance)).mean()
    else:
        total = np.exp(score).sum(axis=2, keepdims=True)
        expected = 0.1 * np.square(np.log(total)).mean()
        expected -= np.log((np.exp(score) / total)[:, positive]).mean()
    loss, metrics = contrast.loss(jnp.asarray(score, jnp.float32), kind, "critic")
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["critic/positive"], score[:, positive].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["critic/negative"], score[:, ~positive].mean(), rtol=1e-5)
    best = score.mean(axis=0).argmax(axis=1) == np.arange(5)
    np.testing.assert_allclose(metrics["critic/accuracy"], best.mean(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "info_nce"])
def test_contrastive_losses_are_finite_for_far_scores_and_one_row(kind: Any) -> None:
    far = jnp.asarray([[[1e4, -1e4], [-1e4, 1e4]]])
    for score in (far, -far, jnp.zeros((1, 1, 1))):
        loss, metrics = contrast.loss(score, kind, "critic")
        assert np.isfinite(loss)
        assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(("kind", "features", "parts"), [("iqe", 12, 8), ("mrn", 7, 2)])
def test_refuses_features_without_equal_parts(kind: Any, features: int, parts: int) -> None:
    message = rf"--config.latent-size is {features}, it must be a multiple of {parts} .* {kind}"
    with pytest.raises(ValueError, match=message):
        quasimetrics.check(features, kind)
    quasimetrics.check(parts, kind)


@pytest.mark.parametrize("direction", ["forward", "backward", "symmetric"])
def test_directed_losses_are_cross_entropies_with_a_penalty(direction: Any) -> None:
    score = 2.0 * normal(6, 6)
    shares = {axis: np.exp(score) / np.exp(score).sum(axis, keepdims=True) for axis in (0, 1)}
    entropies = {axis: -np.log(np.diag(share)).mean() for axis, share in shares.items()}
    axes = {"forward": (1,), "backward": (0,), "symmetric": (0, 1)}[direction]
    penalty = 0.3 * np.square(np.log(np.exp(score).sum(axis=1))).mean()
    loss, metrics = contrast.directed_loss(jnp.asarray(score), direction, 0.3, "critic")
    np.testing.assert_allclose(loss, sum(entropies[x] for x in axes) + penalty, rtol=1e-5)
    assert metrics["critic/loss"] == loss
    best = score.argmax(axis=1) == np.arange(6)
    np.testing.assert_allclose(metrics["critic/accuracy"], best.mean(), rtol=1e-6)
    others = (score.sum() - np.trace(score)) / 30
    np.testing.assert_allclose(metrics["critic/negative"], others, rtol=1e-5, atol=1e-6)


def test_one_direction_is_the_loss_of_single_goals() -> None:
    """`info_nce` of one critic, and its metrics."""
    score = jnp.asarray(normal(5, 5), jnp.float32)
    one, metrics = contrast.loss(score[None], "info_nce", "critic")
    other, more = contrast.directed_loss(score, "forward", contrast.PENALTY, "critic")
    np.testing.assert_allclose(one, other, rtol=1e-6)
    for name, metric in metrics.items():
        np.testing.assert_allclose(metric, more[name], rtol=1e-6)


@pytest.mark.parametrize("kind", ["distance", "square", "product"])
def test_energies_are_the_papers(kind: Any) -> None:
    x, y = points(2, 7)
    expected = {
        "distance": -np.sqrt(np.linalg.norm(x - y, axis=1) ** 2 + 1e-6),
        "square": -(np.linalg.norm(x - y, axis=1) ** 2),
        "product": (x * y).sum(axis=1),
    }[kind]
    energy = functools.partial(energies.energy, kind=kind)
    np.testing.assert_allclose(in_float64(energy, x, y), expected, rtol=1e-12)
    pairs = in_float64(energy, x[:, None], y)
    assert pairs.shape == (7, 7)
    np.testing.assert_allclose(np.diag(pairs), expected, rtol=1e-12)
    np.testing.assert_allclose(pairs[1, 4], in_float64(energy, x[1], y[4]), rtol=1e-12)
    same = jnp.asarray(x, jnp.float32)
    slope = jax.grad(lambda z: energy(z, same).sum())(same)
    assert np.isfinite(slope).all(), "also from a point to itself"
