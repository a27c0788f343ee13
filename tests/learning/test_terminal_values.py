"""Values of terminal rows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.distributed.devices import Spread
from rljax.learning.agent_state import AgentState
from rljax.learning.loop import Training
from rljax.learning.plan import Experiment
from rljax.learning.settings import Settings
from rljax.learning.terminal_values import MOST_ROWS, terminal_values
from rljax.networks.inputs import Raw
from tests.helpers.counting import ROWS, Config, Fake, dataset, recorded

PLAIN = buffers.Dataset(batch_size=4)
GOALS = buffers.Dataset(batch_size=4, draw=buffers.Goals.of(buffers.WithGoals(discount=0.9)))


def ended(*rows: int) -> Any:
    return dataset().replace(terminated=np.isin(np.arange(ROWS), rows))


def value(state: Any, observation: Any, action: Any, config: Any) -> Any:
    """Ten times the row's number, plus the state and the setting."""
    return 10.0 * observation[..., 0] + 0.0 * action[..., 0] + state + config


def test_terminal_rows_are_those_of_the_data() -> None:
    rows = PLAIN.terminal_rows(ended(3, 7), MOST_ROWS)
    assert rows is not None
    np.testing.assert_array_equal(rows.observation, [[4, -4], [8, -8]])
    np.testing.assert_array_equal(rows.action, [[4], [8]])
    np.testing.assert_array_equal(rows.reward, [4, 8])
    assert PLAIN.terminal_rows(dataset(), MOST_ROWS) is None


def test_many_terminal_rows_are_sampled_evenly() -> None:
    many = dataset(3 * MOST_ROWS)
    rows = PLAIN.terminal_rows(many.replace(terminated=np.ones(3 * MOST_ROWS, np.bool_)), MOST_ROWS)
    assert rows is not None
    assert (len(rows.reward), rows.reward[0], rows.reward[-1]) == (MOST_ROWS, 1, 3 * MOST_ROWS)
    assert set(np.diff(rows.reward)) <= {2, 3, 4}


def test_a_row_whose_goal_is_its_own_state_is_terminal() -> None:
    rows = GOALS.terminal_rows(dataset(), MOST_ROWS)
    assert rows is not None
    np.testing.assert_array_equal(rows.observation[4], [5, -5, 5, -5])
    np.testing.assert_array_equal(rows.reward, np.zeros(ROWS))


def test_values_and_rewards_are_means_for_each_learner() -> None:
    agent: Any = SimpleNamespace(value=value)
    metrics_of = terminal_values(agent, ended(3, 7), PLAIN)
    assert metrics_of is not None
    state = AgentState(jnp.asarray([0.0, 100.0]), None, Raw())
    metrics = metrics_of(state, jnp.asarray([1.0, 2.0]), Spread(2))
    np.testing.assert_allclose(metrics["terminal/value"], [61, 162])
    np.testing.assert_allclose(metrics["terminal/reward"], [6, 6])


@pytest.mark.parametrize(
    ("part", "data"),
    [
        (value, None),
        (value, dataset()),
        (None, ended(3)),
        (lambda parameters, observation: observation, ended(3)),
        (3.0, ended(3)),
    ],
    ids=["no data", "no terminal row", "no critics", "a function of the author's own", "a number"],
)
def test_there_is_no_metric_without_rows_or_critics(part: Any, data: Any) -> None:
    agent: Any = SimpleNamespace() if part is None else SimpleNamespace(value=part)
    assert terminal_values(agent, data, PLAIN) is None


class Valued(Fake):
    def experience(self, config: Any) -> Any:
        return buffers.Dataset(batch_size=config.batch_size, reward_transform="minus_one")

    def value(self, state: Any, observation: Any, action: Any, config: Any) -> Any:
        return observation @ state.weight


@pytest.mark.slow
def test_a_line_holds_the_values_in_the_unit_of_learning() -> None:
    """Rewards are transformed as for learning, which is the same to the bit."""
    terminated = np.arange(ROWS) % 10 == 9
    rows = recorded().transitions.replace(terminated=terminated, truncated=np.zeros(ROWS, np.bool_))
    config: Any = Config(learning_rate=(0.1, 0.2))  # pyright: ignore[reportArgumentType]
    asked = Settings("valued", "none", 4, seeds=(0, 1), data="recorded.npz", log_every=2)
    lines, states = [], []
    for watched in (True, False):
        made = Training(
            Experiment(asked, Valued(), config, dataclasses.replace(recorded(), transitions=rows))
        )
        made.terminal = made.terminal if watched else None
        made.start()
        lines.append(made.chunk())
        states.append(jax.tree.map(np.asarray, made.driver.agent_state.state))
        made.close()
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert lines[0].keys() - lines[1].keys() == {"terminal/value", "terminal/reward"}
    assert lines[0]["loss"] == lines[1]["loss"]
    values = rows.observation[terminated] @ states[0].weight.T
    np.testing.assert_allclose(lines[0]["terminal/value"], values.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        lines[0]["terminal/reward"], rows.reward[terminated].mean() - 1.0, rtol=1e-5
    )
