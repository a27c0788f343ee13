"""The contract's own parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent
from rljax.agent import EnvSpec, Transition, Weighted
from rljax.networks.inputs import Raw
from tests.helpers.example_config import Config


def test_spec_describes_actions() -> None:
    continuous, discrete = EnvSpec("Some-v0", (3,), 2), EnvSpec("Other-v0", (3,), 5, discrete=True)
    assert (continuous.action_shape, continuous.action_dtype) == ((2,), jnp.float32)
    assert (discrete.action_shape, discrete.action_dtype) == ((), jnp.int32)
    assert hash(continuous) == hash(EnvSpec("Some-v0", (3,), 2)), (
        "static: it must be a key of compiled programs"
    )


def test_floats_are_leaves_and_the_rest_is_static() -> None:
    assert agent.float_fields(Config) == ("learning_rate", "entropy")
    assert jax.tree.leaves(Config()) == [1e-3]
    assert jax.tree.leaves(Config(entropy=-2.0)) == [1e-3, -2.0]
    doubled = jax.tree.map(lambda x: 2 * x, Config(entropy=1.0))
    assert doubled == Config(learning_rate=2e-3, entropy=2.0)


def test_config_is_frozen() -> None:
    config: Any = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 8


def test_other_floats_do_not_recompile_and_other_sizes_do() -> None:
    @jax.jit
    @chex.assert_max_traces(n=1)
    def program(config: Config) -> Any:
        return config.learning_rate * config.batch_size

    assert program(Config(entropy=0.0)) == pytest.approx(4e-3)
    assert program(Config(learning_rate=1.0, entropy=0.5)) == 4.0
    with pytest.raises(AssertionError, match="traced > 1 times"):
        program(Config(entropy=0.0, batch_size=5))


def test_configs_are_stacked_and_mapped_over() -> None:
    stacked = Config(learning_rate=jnp.arange(3.0), entropy=jnp.ones(3))  # type: ignore[arg-type]
    result = jax.vmap(lambda config: config.learning_rate + config.batch_size)(stacked)
    np.testing.assert_array_equal(result, [4.0, 5.0, 6.0])


def test_transitions_do_not_share_their_extras() -> None:
    parts: list[Any] = [jnp.zeros(2)] * 6
    one, other = (Transition(*parts) for _ in range(2))
    assert one.extras == {}
    assert one.extras is not other.extras
    assert len(jax.tree.leaves(one)) == 6


class Scaling:
    """An agent whose actions are observations times its State; those that explore are 1 more."""

    @staticmethod
    def act(
        state: Any, observation: Any, key: Any, config: Any, explore: bool
    ) -> tuple[Any, dict[str, Any]]:
        del key
        return state * observation * config.learning_rate + explore, {"unused": observation}


def test_base_acts_as_its_agent_and_is_a_pytree() -> None:
    config, spec = Config(learning_rate=0.5, entropy=1.0), agent.EnvSpec("x", (3,), 3)
    base = agent.Base(jnp.asarray(2.0), config, Scaling, spec, Raw(), None)
    assert jax.tree.leaves(base) == [2.0, 0.5, 1.0], "its agent is static"
    key, observation = jax.random.key(0), jnp.arange(3.0)
    np.testing.assert_array_equal(base.act(observation, key), [0.0, 1.0, 2.0])
    explored = jax.jit(lambda base: base.act(observation, key, explore=True))(base)
    np.testing.assert_array_equal(explored, [1.0, 2.0, 3.0])


def change(state: Any) -> tuple[Any, dict[str, Any]]:
    return state + 1, {"loss": state * 1.0}


@pytest.mark.parametrize("period", [2, 3])
def test_every_changes_on_each_period_only(period: int) -> None:
    state, counted = jnp.zeros((), jnp.int32), []
    for step in range(7):
        before = int(state)
        state, metrics = agent.every(period, jnp.asarray(step), change, state)
        due = (step + 1) % period == 0
        assert int(state) == before + due
        assert isinstance(metrics["loss"], Weighted)
        assert float(metrics["loss"].weight) == due
        assert float(metrics["loss"].value) == (before if due else 0.0)
        counted.append(due)
    assert sum(counted) == 7 // period


def test_every_time_is_no_branch() -> None:
    program = jax.make_jaxpr(lambda step, state: agent.every(1, step, change, state))(0, 1)
    assert "cond[" not in str(program)
    assert agent.every(1, jnp.asarray(0), change, jnp.asarray(5))[1]["loss"] == 5.0


def test_branch_on_the_step_stays_a_branch_under_vmap() -> None:
    def update(step: Any, state: Any) -> Any:
        return agent.every(2, step, change, state)

    unbatched = str(jax.make_jaxpr(jax.vmap(update, in_axes=(None, 0)))(0, jnp.zeros(3)))
    assert "cond[" in unbatched
    batched = str(jax.make_jaxpr(jax.vmap(update))(jnp.zeros(3, int), jnp.zeros(3)))
    assert "cond[" not in batched, "what a counter per learner would cost: both sides"


def test_discrete_actions_are_refused_where_continuous_ones_are_needed() -> None:
    agent.require_continuous("sac", EnvSpec("Pendulum-v1", (3,), 1))
    message = (
        r"agent 'sac' acts in a continuous space, 'CartPole-v1' has 2 discrete actions\. "
        r"Choose another agent.*Pendulum-v1"
    )
    with pytest.raises(ValueError, match=message):
        agent.require_continuous("sac", EnvSpec("CartPole-v1", (4,), 2, discrete=True))


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (1.5, (0, 1), r"^--config\.learning-rate is 1\.5, it must be finite and in \[0, 1\]\.$"),
        (-1.0, (0, None), r"is -1, it must be finite and at least 0\.$"),
        (float("inf"), (0, None), r"is inf, it must be finite and at least 0"),
        (np.array([0.5, 2.0]), (0, 1), r"is 2, it must be finite and in \[0, 1\]"),
    ],
)
def test_floats_out_of_range(value: Any, limits: tuple[float, float | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agent.require_range(Config(learning_rate=value), learning_rate=limits)


def test_ranges_are_closed() -> None:
    agent.require_range(
        Config(learning_rate=0.0, entropy=1.0), learning_rate=(0, 1), entropy=(0, 1)
    )
    agent.require_range(Config(learning_rate=1e9), learning_rate=(0, None))


def test_sizes_out_of_range() -> None:
    agent.require_at_least(Config(batch_size=1), batch_size=1)
    with pytest.raises(ValueError, match=r"^--config\.batch-size is 0, it must be at least 1\.$"):
        agent.require_at_least(Config(batch_size=0), batch_size=1)
