"""Whether critics see the end of an episode: the values of terminal rows of a data set.

Nothing follows a terminal row, so the true value of its action is its reward. Critics that give much more have not
learnt where episodes end, and their policy has no reason to avoid it.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.experience import rows_of, spread_rows
from rljax.distributed.devices import Spread, local
from rljax.training import agent_state
from rljax.training.programs import Contents, compiled, shared

MOST_ROWS = 1_024  # a larger sample would cost more and tell no more
PARAMETERS = ["state", "observation", "action", "config"]  # of the optional part `value`


class TerminalRows(NamedTuple):
    """The terminal rows [N] of a data set, as an agent sees them."""

    observation: Any  # [N, O...]
    action: Any  # [N, A], or [N] where actions are discrete
    reward: Any  # [N] their true values, in the unit from which the agent learns


def terminal_rows(data: Transition, goals: bool) -> TerminalRows | None:
    """At most `MOST_ROWS` terminal rows of a data set [N, ...], evenly spread over it; None where there are none.

    With `goals`, observations are [state; goal], and a row is terminal where its goal is its own state: every row can
    be, with a reward of 0.
    """
    terminated = np.ones(len(data.reward), np.bool_) if goals else np.asarray(data.terminated)
    (rows,) = np.nonzero(terminated)
    if not len(rows):
        return None
    rows = rows[spread_rows(len(rows), MOST_ROWS)]
    observation = jax.tree.map(np.asarray, rows_of(data.observation, rows))
    reward = np.asarray(data.reward, np.float32)[rows]
    if goals:
        observation, reward = np.concatenate([observation, observation], axis=-1), np.zeros_like(reward)
    return TerminalRows(observation, np.asarray(data.action)[rows], reward)


@dataclasses.dataclass(frozen=True)
class Means:
    """The compiled mean value of rows. Trainings of the same agent share its programs."""

    agent: Contents

    @compiled()
    def of(self, state: Any, rows: TerminalRows, config: Any) -> Array:
        """The mean value [P] of rows [N], for States and Configs stacked over P."""

        def mean(state: Any, config: Any) -> Array:
            return agent_state.value(self.agent.module, state, rows.observation, rows.action, config).mean()

        return jax.vmap(mean)(state, config)


class TerminalValues:
    """The metrics `terminal/value` and `terminal/reward` of P learners: the means over the terminal rows.

    They take no random numbers and change nothing, so that learning is the same with them and without them.
    """

    def __init__(self, agent: Any, rows: TerminalRows) -> None:
        """`agent` has the optional part `value`."""
        self.means, self.rows, self.reward = Means(Contents(agent)), rows, float(rows.reward.mean())

    def __call__(self, state: Any, config: Any, spread: Spread) -> dict[str, np.ndarray]:
        """The metrics [P] for agents' States and Configs, stacked over P and spread over devices by `spread`."""
        means = shared(self.means, (state, config)).of(state, spread.everywhere(self.rows), spread.learners(config))
        return {
            "terminal/value": np.asarray(jax.device_get(local(means))),
            "terminal/reward": np.full(len(means), self.reward),
        }


def terminal_values(agent: Any, data: Transition | None, goals: bool) -> TerminalValues | None:
    """The metrics for an agent and a data set [N, ...]; None without terminal rows, or without critics."""
    rows = terminal_rows(data, goals) if data is not None and has_values(agent) else None
    return None if rows is None else TerminalValues(agent, rows)


def has_values(agent: Any) -> bool:
    """Whether the agent has the optional part `value`; one with other parameters is a function of its author's own."""
    value = getattr(agent, "value", None)
    return callable(value) and list(inspect.signature(value).parameters) == PARAMETERS
