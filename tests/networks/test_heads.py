"""Heads of critics against the papers' algorithms, loop by loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from rljax.agent import Transition
from rljax.networks import heads
from tests.agents import distributional, reference
from tests.networks.reference import assert_close, doubles, normal, softmax

ATOMS, LOW, HIGH = 11, -2.0, 3.0
HEADS: dict[str, heads.Head] = {
    "scalar": heads.Scalar("squared"),
    "huber": heads.Scalar("huber"),
    "c51": heads.Categorical(ATOMS, LOW, HIGH),
    "quantile": heads.Quantile(7, 1.0),
    "quantile, kappa 0.3": heads.Quantile(7, 0.3),
}


EXACT: dict[str, Any] = {
    "c51": distributional.Categorical(ATOMS, LOW, HIGH),
    "quantile": distributional.Quantile(7, 1.0),
    "quantile, kappa 0.3": distributional.Quantile(7, 0.3),
}


def inputs(features: int) -> tuple[np.ndarray, ...]:
    """Outputs, next outputs [B, K], rewards and discounts [B]."""
    outputs, following = normal(2, 9, features)
    reward = np.array([0.0, 1.0, -0.3, 5.0, -4.0, 0.5, 0.25, -1.0, 2.0], np.float32)
    discount = np.array([1.0, 0.9, 0.99, 0.9, 0.5, 0.0, 0.0, 0.7, 0.0], np.float32)
    return outputs, following, reward, discount


def test_the_projection_is_the_papers() -> None:
    _, following, reward, discount = inputs(ATOMS)
    head = heads.Categorical(ATOMS, LOW, HIGH)
    target = jax.jit(head.target)(following, reward, discount)
    expected = EXACT["c51"].projected(softmax(doubles(following)), reward, discount)
    np.testing.assert_allclose(target, expected, atol=1e-6)
    np.testing.assert_allclose(target.sum(axis=-1), 1.0, rtol=1e-6)
    inside = np.array([5, 6])  # of the rows whose atoms all stay within the support
    mean = reward + discount * np.asarray(head.mean(following))
    np.testing.assert_allclose(head.target_mean(target)[inside], mean[inside], atol=1e-5)
    # A reward of 2 at the end is atom 8, -2 + 8 / 2.
    np.testing.assert_allclose(target[8, [8, 10]], [1.0, 0.0], atol=1e-6)


def test_a_two_hot_target_is_a_projection() -> None:
    head = heads.Binned(ATOMS, LOW, HIGH)
    found = head.projected(jnp.asarray([[0.6], [9.0]]), jnp.ones((2, 1)))
    expected = np.zeros((2, ATOMS))
    expected[0, 5:7], expected[1, 10] = (0.8, 0.2), 1.0
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(head.target_mean(found), [0.6, HIGH], atol=1e-6)


def test_both_ways_to_a_projection_are_the_same() -> None:
    """The one of CPUs and the one of GPUs, at the ends and on bins too."""
    position = np.concatenate([[0.0, ATOMS - 1.0, 3.0], np.linspace(0.0, ATOMS - 1.0, 26)])
    position = position.astype(np.float32).reshape(1, 29)
    p = softmax(doubles(normal(4, 29))).astype(np.float32)
    places = jnp.arange(ATOMS, dtype=jnp.float32)
    both = [jax.jit(way)(position, p, places) for way in (heads.scattered, heads.gathered)]
    np.testing.assert_allclose(*both, atol=1e-6)
    np.testing.assert_allclose(both[0].sum(axis=1), 1.0, rtol=1e-5)
    value = (p * position).sum(axis=1)
    np.testing.assert_allclose((both[0] * places).sum(axis=1), value, rtol=1e-5)


def test_both_ways_to_a_loss_of_quantiles_are_the_same() -> None:
    """The one of CPUs and the one of GPUs, for two critics and one target."""
    outputs, target = normal(2, 9, 7), 3.0 * normal(9, 11, seed=1)
    ways = [jax.jit(way)(outputs, target, 0.7) for way in (heads.in_turn, heads.at_once)]
    assert_close(*ways, rtol=1e-5, atol=1e-5)
    for i, critic in enumerate(doubles(outputs)):
        loss, slope = distributional.Quantile(7, 0.7).loss(critic, doubles(target))
        np.testing.assert_allclose(ways[0][0][i].sum(axis=-1) / 11, loss, rtol=1e-5)
        np.testing.assert_allclose(-ways[0][1][i] / 11, slope, rtol=1e-4, atol=1e-6)


def losses(name: str, outputs: np.ndarray, target: np.ndarray) -> np.ndarray:
    if name in ("scalar", "huber"):
        error = outputs - target
        huber = np.where(np.abs(error) <= 1.0, 0.5 * error**2, np.abs(error) - 0.5)
        return error**2 if name == "scalar" else huber
    return EXACT[name].loss(outputs, target)[0]


@pytest.mark.parametrize("name", HEADS)
def test_losses_and_gradients_are_the_papers(name: str) -> None:
    head = HEADS[name]
    outputs, following, reward, discount = inputs(head.features)
    if head.features == 1:
        outputs, following = outputs[:, 0], following[:, 0]

    @jax.jit
    def both(outputs: Any, following: Any) -> Any:
        target = head.target(following, reward, discount)
        loss = lambda x, y: head.loss(x, head.target(y, reward, discount)).sum()  # noqa: E731
        slopes = jax.grad(loss, argnums=(0, 1))(outputs, following)
        return target, head.loss(outputs, target), slopes

    target, loss, (of_outputs, of_target) = doubles(both(outputs, following))
    exact = doubles(outputs)
    if name.startswith("quantile"):
        later = doubles(discount)[:, None] * doubles(following)
        now = doubles(reward)[:, None]
        rounding = np.finfo(np.float32).eps * (abs(now) + abs(later))  # their sum may cancel
        assert (abs(target - (now + later)) <= rounding).all()
    np.testing.assert_allclose(loss, losses(name, exact, target), rtol=1e-5)
    gradient = reference.differences(lambda x: losses(name, x, target).sum(), exact)
    np.testing.assert_allclose(of_outputs, gradient, atol=1e-4)
    assert not of_target.any(), "the target is not taught"


CRITICS = 3


@pytest.mark.parametrize("name", ["c51", "quantile"])
@pytest.mark.parametrize("combination", ["smallest", "mean", "own"])
def test_targets_of_several_critics_are_the_papers(name: str, combination: Any) -> None:
    """The penalty is taken off within the bins, and off each quantile."""
    head, outputs = HEADS[name], normal(CRITICS, 9, HEADS[name].features)
    reward, discount = inputs(1)[2:]
    penalty = normal(9, seed=1)

    @jax.jit
    def of_critics(outputs: Any) -> Any:
        together = heads.combined(outputs, head, combination)
        mass = head.clipped_mass(together, reward, discount, penalty)
        return head.target(together, reward, discount, penalty), mass

    target, mass = of_critics(outputs)
    step = (doubles(reward), doubles(discount), doubles(penalty))
    expected, metrics = EXACT[name].target(doubles(outputs), combination, *step)
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)
    assert expected.ndim == (3 if combination == "own" else 2)
    assert set(mass) == set(metrics) - {"critic/target"}
    if mass:
        assert 0.1 < metrics["critic/clipped"] < 0.9
        np.testing.assert_allclose(mass["critic/clipped"].mean(), metrics["critic/clipped"], 1e-4)


def test_a_number_as_target_loses_the_penalty_too() -> None:
    outputs, _, reward, discount = inputs(BINS)
    penalty = normal(9, seed=1)
    for head in (heads.TwoHot(BINS, *ENDS), heads.Scalar()):
        outputs = outputs if head.features > 1 else outputs[:, 0]
        value = reward + discount * (np.asarray(head.mean(outputs)) - penalty)
        target = head.target(outputs, reward, discount, penalty)
        inside = np.clip(value, *ENDS) if head.features > 1 else value
        np.testing.assert_allclose(head.target_mean(target), inside, atol=1e-5)
        share = {"critic/clipped": (inside != value).mean()} if head.features > 1 else {}
        assert head.clipped_mass(outputs, reward, discount, penalty) == share


def test_truncated_quantiles_are_the_lowest_of_all_critics() -> None:
    """[Kuznetsov et al., equation 11]: k N of the N M sorted ones, here of 3 critics with 7."""
    outputs = normal(CRITICS, 9, 7)
    truncated = jax.jit(heads.truncated, static_argnums=1)(outputs, 2)
    rows = [sorted(outputs[:, row].ravel())[: CRITICS * (7 - 2)] for row in range(9)]
    np.testing.assert_array_equal(truncated, rows)
    assert heads.truncated(jnp.asarray(outputs), 0).shape == (9, 21)


@pytest.mark.parametrize("name", ["scalar", "c51"])
def test_the_best_action_is_best_with_its_penalty(name: str) -> None:
    head, actions = HEADS[name], 4
    outputs = normal(CRITICS, actions, 9, head.features)
    penalty = normal(actions, 9, seed=1)
    outputs = outputs if head.features > 1 else outputs[..., 0]
    best, cost = heads.best_of_actions(jnp.asarray(outputs), jnp.asarray(penalty), head)
    means = EXACT[name].mean(doubles(outputs)) if head.features > 1 else doubles(outputs)
    index = (means - penalty).argmax(axis=1)  # [C, B]
    rows = np.arange(9)
    for i in range(CRITICS):
        np.testing.assert_array_equal(best[i], outputs[i, index[i], rows])
        np.testing.assert_array_equal(cost[i], penalty[index[i], rows])


def test_errors_are_priorities() -> None:
    outputs, following, reward, discount = inputs(ATOMS)
    head = heads.Categorical(ATOMS, LOW, HIGH)
    target = doubles(head.target(following, reward, discount))
    p = softmax(doubles(outputs))
    likely = np.maximum(target, 1e-12)
    kl = np.where(target > 1e-12, target * (np.log(likely) - np.log(p)), 0.0).sum(axis=-1)
    assert_close(head.error(outputs, target), kl, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head.error(np.log(np.maximum(p, 1e-9)), p), 0.0, atol=1e-5)
    quantile, scalar = heads.Quantile(ATOMS), heads.Scalar()
    target = quantile.target(following, reward, discount)
    expected = np.abs(outputs.mean(axis=1) - (reward + discount * following.mean(axis=1)))
    np.testing.assert_allclose(quantile.error(outputs, target), expected, rtol=1e-4)
    np.testing.assert_allclose(scalar.error(outputs[:, 0], reward), np.abs(outputs[:, 0] - reward))


@pytest.mark.parametrize("name", ["scalar", "c51", "quantile"])
@pytest.mark.parametrize("dueling", [False, True])
def test_outputs_of_actions(name: str, dueling: bool) -> None:
    """A dueling head's advantages have a mean of 0 in every output."""
    head, actions = HEADS[name], 3
    flat = normal(2, 5, (actions + dueling) * head.features)
    outputs = heads.of_actions(jnp.asarray(flat), head, dueling)
    each = flat.reshape(2, 5, actions + dueling, head.features)
    if dueling:
        each = each[:, :, :1] + each[:, :, 1:] - each[:, :, 1:].mean(axis=2, keepdims=True)
    each = each[..., 0] if head.features == 1 else each
    assert_close(outputs, each)
    action = np.array([0, 2, 1, 1, 0])
    taken = heads.of_action(outputs, jax.nn.one_hot(action, actions), head)
    assert_close(taken, each[:, np.arange(5), action])


@pytest.mark.parametrize(
    ("head", "num_critics", "message"),
    [
        (
            heads.Quantile(5),
            2,
            r"^--config\.num-critics is 2: a distribution of returns is that of one critic\. Use ",
        ),
        (heads.Quantile(5, 0.0), 1, r"^--config\.kappa is 0\.0, it must be above 0\.$"),
        (heads.Categorical(5, (0.0, 3.0), 3.0), 1, r"it must be below --config\.v-max 3\.0\.$"),
    ],
)
def test_refuses_heads_that_cannot_work(head: heads.Head, num_critics: int, message: str) -> None:
    heads.check(heads.Scalar(), num_critics)
    with pytest.raises(ValueError, match=message):
        heads.check(head, num_critics)


BINS, ENDS = 21, (-3.0, 7.0)


def hl_gauss(values: np.ndarray, low: float, high: float, number: int) -> np.ndarray:
    """[Farebrother et al., equation 3.4], by scipy's tails in float64."""
    width = (high - low) / number
    edges = (low + width * np.arange(number + 1) - np.clip(values, low, high)[:, None]) / (
        heads.SMOOTHING * width
    )
    mass = np.where(
        edges[:, 1:] > 0, norm.sf(edges[:, :-1]) - norm.sf(edges[:, 1:]), np.diff(norm.cdf(edges))
    )
    return mass / mass.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("low", "high"), [ENDS, (-1e4, 1e-3), (1e5, 1.1e5)])
def test_hl_gauss_spreads_a_value_as_the_paper_does(low: float, high: float) -> None:
    """Tails too, where a difference in float32 would be 0 or 6e-8."""
    values = np.linspace(low - 0.3 * (high - low), high + 0.3 * (high - low), 57).astype(np.float32)
    target = np.asarray(jax.jit(heads.HLGauss(BINS, low, high).encode)(values))
    expected = hl_gauss(doubles(values), low, high, BINS)
    np.testing.assert_allclose(target.sum(axis=-1), 1.0, rtol=1e-6)
    spacing = 0.02 * np.spacing(np.float32(high)) * BINS
    np.testing.assert_allclose(target, expected, rtol=0.0, atol=spacing + 1e-6)
    likely = expected > 1e-30
    assert likely.sum() > 500
    if abs(high) < 100:  # places of larger values have an error of their own
        np.testing.assert_allclose(target[likely], expected[likely], rtol=1e-3)


def test_the_mass_beyond_the_ends_is_counted() -> None:
    """Three atoms -1, 0, 1 with probabilities 0.2, 0.3, 0.5."""
    head = heads.Categorical(3, -1.0, 1.0)
    outputs = jnp.log(jnp.array([[0.2, 0.3, 0.5]] * 4))
    reward, discount = jnp.array([0.0, 0.5, -2.5, 1.5]), jnp.array([1.0, 1.0, 1.0, 0.0])
    mass = head.clipped_mass(outputs, reward, discount)["critic/clipped"]
    np.testing.assert_allclose(mass, [0.0, 0.5, 1.0, 1.0], atol=1e-6)
    target = head.target(outputs, reward, discount)
    np.testing.assert_allclose(target[2], [1.0, 0.0, 0.0], atol=1e-6)
    of_returns = heads.Categorical(51, 0.0, 100.0)  # rewards of 1 and a discount of 0.99
    highest = jnp.full((1, 51), -1e9).at[0, -1].set(0.0)
    share = of_returns.clipped_mass(highest, jnp.ones(1), jnp.full(1, 0.99))["critic/clipped"]
    assert share == 0.0, "100 = 1 + 0.99 x 100 is the end itself"
    for head in (heads.Scalar(), heads.Quantile(3)):
        assert head.clipped_mass(outputs, reward, discount) == {}


@pytest.mark.parametrize(
    ("metrics", "percent"),
    [
        ({}, None),
        ({"critic/clipped": np.array([0.2])}, None),
        ({"critic/clipped": np.array([np.nan, np.nan])}, None),
        ({"critic/clipped": np.array([0.9, np.nan, 0.3])}, "60%"),
    ],
)
def test_a_run_warns_where_many_targets_are_clipped(
    metrics: dict[str, Any], percent: str | None
) -> None:
    warning = heads.clipping(metrics)
    if percent is None:
        assert warning is None
    else:
        assert str(warning).startswith(f"{percent} of the targets lie beyond")
        assert "--config.v-min" in str(warning)


@pytest.mark.slow
@pytest.mark.parametrize("head", [heads.TwoHot(BINS, *ENDS), heads.HLGauss(BINS, *ENDS)])
def test_a_classified_value_is_the_mean_of_its_classes(head: heads.TwoHot) -> None:
    inner = heads.OUTER * head.width if isinstance(head, heads.HLGauss) else 0.0
    values = np.linspace(ENDS[0] + inner, ENDS[1] - inner, 201).astype(np.float32)
    target = head.encode(values)
    for mean in (head.target_mean(target), head.mean(jnp.log(jnp.maximum(target, 1e-30)))):
        np.testing.assert_allclose(mean, values, atol=3e-5 * head.width)
    outside = head.target_mean(head.encode(np.array([ENDS[0] - 5, ENDS[1] + 5], np.float32)))
    np.testing.assert_array_less(np.abs(outside - np.array(ENDS)), head.width)
    share = head.clipped(jnp.array([-3.1, 0.0, 1.0, 7.5]))["critic/clipped"]
    assert share == 0.5
    following, reward, discount = inputs(BINS)[1:]
    y = reward + discount * np.asarray(head.mean(following))
    np.testing.assert_allclose(head.target(following, reward, discount), head.encode(y), atol=1e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("head", [heads.TwoHot(BINS, *ENDS), heads.HLGauss(BINS, *ENDS)])
def test_classes_are_learnt_by_cross_entropy(head: heads.TwoHot) -> None:
    outputs, values = inputs(BINS)[0], np.linspace(*ENDS, 9).astype(np.float32)
    gradient = jax.grad(lambda x, y: head.loss(x, head.encode(y)).sum(), argnums=(0, 1))
    slope, of_target = gradient(jnp.asarray(outputs), jnp.asarray(values))
    expected = softmax(doubles(outputs)) - doubles(head.encode(values))
    np.testing.assert_allclose(slope, expected, atol=1e-6)
    np.testing.assert_array_equal(of_target, 0.0)


def recorded(rows: int = 60) -> Transition:
    generator = np.random.default_rng(0)
    reward = jnp.asarray(generator.normal(0.5, 1.0, rows), jnp.float32)
    terminated, truncated = (jnp.asarray(generator.uniform(size=rows) < 0.1) for _ in range(2))
    nothing = jnp.zeros((rows, 1))
    return Transition(nothing, nothing, reward, terminated, truncated & ~terminated, nothing)


def returns_of(data: Transition, discount: float, scale: float) -> np.ndarray:
    """[N], backwards; cut trajectories go on with their mean reward."""
    reward, result = scale * doubles(data.reward), np.zeros(len(data.reward))
    ends = np.flatnonzero(data.terminated | data.truncated)
    start = 0
    for end in [*ends, len(reward) - 1]:
        horizon = min(1.0 / (1.0 - discount), 1e4) if discount < 1 else 1e4
        rest = 0.0 if data.terminated[end] else reward[start : end + 1].mean() * horizon
        for row in range(end, start - 1, -1):
            result[row] = rest = reward[row] + discount * rest
        start = end + 1
    return result


@pytest.mark.parametrize(("discount", "scale"), [(0.9, 1.0), (0.99, -3.0), (0.0, 1.0), (1.0, 1.0)])
def test_the_range_of_returns_is_the_datas(discount: float, scale: float) -> None:
    data = recorded()
    assert 0 < data.terminated.sum() < 12 > data.truncated.sum() > 0
    expected = returns_of(data, discount, scale)
    bounds = jax.jit(heads.range_of_returns)(data, discount, scale)
    np.testing.assert_allclose(bounds, [expected.min(), expected.max()], rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("returns", [(-2.0, 5.0), (3.0, 3.0), (0.0, 0.0)])
def test_bins_have_room_around_the_returns(returns: tuple[float, float]) -> None:
    low, high = map(float, heads.bounds_of_bins(jnp.array(returns), BINS))
    room = heads.OUTER * (high - low) / BINS
    assert low + room < returns[0] <= returns[1] < high - room
    if returns[0] < returns[1]:
        span = (1 + 2 * heads.MARGIN) * (returns[1] - returns[0])
        assert high - low - 2 * room == pytest.approx(span, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bins": 5}, r"^--config\.bins is 5, it must be at least 11\.$"),
        (
            {"v_min": 1.0},
            r"^--config\.v-min and --config\.v-max go together: give both, or neither",
        ),
        (
            {"v_min": 1.0, "v_max": 1.0},
            r"^--config\.v-min is 1\.0, it must be below --config\.v-max 1\.0\.$",
        ),
        ({"v_min": 1.0, "v_max": float("inf")}, r"^--config\.v-max is inf, it must be finite"),
    ],
)
def test_refuses_bins_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    settings = heads.HeadSettings("hl_gauss", 101, None, None)
    heads.check_bins(settings)
    with pytest.raises(ValueError, match=message):
        heads.check_bins(settings._replace(**changes))


def test_values_are_rescaled_and_back() -> None:
    x = np.concatenate([[0.0], *(sign * np.logspace(-4, 5, 50) for sign in (-1.0, 1.0))])
    x = x.astype(np.float32)
    for slope in (1e-3, 0.1, 0.0):
        exact = np.sign(x) * (np.sqrt(np.abs(x, dtype=np.float64) + 1.0) - 1.0) + slope * x
        y = heads.rescaled(jnp.asarray(x), slope)
        np.testing.assert_allclose(y, exact, rtol=1e-3, atol=2e-7)
        np.testing.assert_allclose(heads.unscaled(y, slope), x, rtol=1e-3, atol=1e-6)
        if slope:  # the paper's equation
            root = np.sqrt(1.0 + 4.0 * slope * (np.abs(exact) + 1.0 + slope))
            inverse = np.sign(exact) * (np.square((root - 1.0) / (2.0 * slope)) - 1.0)
            np.testing.assert_allclose(inverse, x, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(heads.unscaled(heads.rescaled(jnp.asarray(x), None), None), x)
