"""What agents do with an ensemble of critics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec
from rljax.agents import sac, td3, td3_bc
from rljax.networks import encoders, smallest_of_subset
from tests.agents.reference import transitions
from tests.agents.test_sac import SPEC
from tests.networks.reference import assert_close, normal

VALUES = jnp.asarray(np.random.default_rng(0).normal(size=(5, 7)), jnp.float32)


def test_the_smallest_of_all_needs_no_draw() -> None:
    for key in jax.random.split(jax.random.key(0), 3):
        np.testing.assert_array_equal(smallest_of_subset(VALUES, None, key), VALUES.min(axis=0))
        np.testing.assert_array_equal(smallest_of_subset(VALUES, 5, key), VALUES.min(axis=0))


def test_a_subset_is_drawn_anew_for_each_key_and_serves_the_batch() -> None:
    keys = jax.random.split(jax.random.key(0), 400)
    found = np.asarray(jax.vmap(lambda key: smallest_of_subset(VALUES, 2, key))(keys))  # [400, 7]
    pairs = {(i, j): VALUES[np.array([i, j])].min(axis=0) for i in range(5) for j in range(i)}
    counts = [sum(np.array_equal(row, own) for row in found) for own in pairs.values()]
    assert sum(counts) == 400, "each row is the minimum of one pair, the same for the whole batch"
    assert min(counts) > 20, "all ten pairs are drawn"


def test_a_subset_drawn_with_replacement_holds_a_critic_twice_at_times() -> None:
    """WSRL's `jax.random.randint(key, (2,), 0, C)`: one time in C."""
    keys = jax.random.split(jax.random.key(1), 1_000)
    rows = jax.vmap(lambda key: smallest_of_subset(VALUES, 2, key, with_replacement=True))(keys)
    alone = (np.asarray(rows)[:, None] == np.asarray(VALUES)).all(axis=-1).any(axis=-1)
    assert abs(alone.mean() - 1 / 5) < 4 * np.sqrt(0.2 * 0.8 / 1_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [sac, td3, td3_bc], ids=lambda module: module.__name__.rpartition(".")[2]
)
def test_targets_use_a_subset(module: object) -> None:
    agent = module
    batch, config = transitions(), agent.Config(hidden=(4,), num_critics=5)
    state = jax.jit(lambda key: agent.init(key, SPEC, config))(jax.random.key(0))

    def target(number: int | None, seed: int) -> float:
        config = agent.Config(hidden=(4,), num_critics=5, min_critics=number)
        loss = jax.jit(agent.critic_loss)(state.critic, state, batch, jax.random.key(seed), config)
        return float(loss[1]["critic/target"])

    assert target(5, 0) == target(None, 0) < target(1, 0)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_subset_of_other_sizes_is_refused(number: int) -> None:
    message = rf"^--config\.min-critics is {number}, it must lie between 1 and --config"
    with pytest.raises(ValueError, match=message):
        sac.check(SPEC, sac.Config(min_critics=number))


def critics(shape: tuple[int, ...], number: int) -> tuple[networks.Network, Any, Any]:
    """So many critics, pictures' with a shared encoder, and a batch."""
    dtype = "float32" if len(shape) == 1 else "uint8"
    spec = EnvSpec("test/Example-v0", shape, 2, observation_dtype=dtype)
    ensemble = networks.Ensemble(number, (4,))
    module = encoders.encoded(spec, encoders.EncoderSettings("small"), ensemble)
    critic = networks.create(module, jax.random.key(0), spec.example(), jnp.zeros(2))
    integers = np.random.default_rng(0).integers(0, 3, (5, *shape))
    return critic, jnp.asarray(integers, dtype), jnp.asarray(normal(5, 2))


shapes = pytest.mark.parametrize("shape", [(3,), (6, 7, 2)], ids=["vectors", "pictures"])


@shapes
def test_random_members_have_the_values_of_a_subset(shape: tuple[int, ...]) -> None:
    critic, observation, action = critics(shape, 4)
    assert ("encoder" in critic.params) == (len(shape) > 1)
    for seed in range(3):
        key = jax.random.key(seed)
        values = networks.random_members(critic, 2, key)(observation, action)
        assert_close(values, networks.subset(critic(observation, action), 2, key))


@shapes
def test_slopes_are_each_members_alone(shape: tuple[int, ...]) -> None:
    """Of vectors, and of pictures with a shared encoder."""
    critic, observation, action = critics(shape, 3)
    q, slope = jax.jit(networks.values_and_slopes)(critic, observation, action)
    assert_close(q, critic(observation, action))
    for i in range(3):
        assert_close(networks.member(critic, i)(observation, action), q[i : i + 1])
        total = jax.grad(lambda action, i=i: critic(observation, action)[i].sum())
        assert_close(slope[i], total(action), rtol=1e-4)


def test_a_lower_bound_is_the_mean_minus_deviations() -> None:
    """As numpy.std, which divides by the number of critics; and finite slopes where all agree."""
    values = np.random.default_rng(0).normal(size=(10, 7))
    bound = networks.lower_bound(jnp.asarray(values, jnp.float32), 0.5)
    expected = values.mean(axis=0) - 0.5 * values.std(axis=0)
    np.testing.assert_allclose(bound, expected, rtol=1e-5)
    smallest = networks.lower_bound(jnp.asarray(values), None)
    np.testing.assert_array_equal(smallest, jnp.asarray(values).min(axis=0))
    slope = jax.grad(lambda x: networks.lower_bound(x, 0.5).sum())
    h = 1e-3
    one = np.zeros_like(values)
    one[3, 2] = h
    difference = [(x.mean(0) - 0.5 * x.std(0)).sum() for x in (values + one, values - one)]
    actual = slope(jnp.asarray(values, jnp.float32))[3, 2]
    np.testing.assert_allclose(actual, (difference[0] - difference[1]) / (2 * h), rtol=1e-4)
    np.testing.assert_allclose(slope(jnp.ones((4, 2))), 0.25)
