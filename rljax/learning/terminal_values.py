"""Whether critics see the end of an episode: the values of terminal rows of a data set.

The true value of a terminal action is its reward.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.experience import Experience
from rljax.buffers.rows import TerminalRows
from rljax.distributed.devices import Spread, local
from rljax.learning import agent_state
from rljax.learning.programs import Contents, compiled, shared

MOST_ROWS = 1_024
PARAMETERS = ["state", "observation", "action", "config"]  # of the optional part `value`


@dataclasses.dataclass(frozen=True)
class Means:
    """The compiled mean value of rows, shared by an agent's trainings."""

    agent: Contents

    @compiled()
    def of(self, state: Any, rows: TerminalRows, config: Any) -> Array:
        """The mean value [P] of rows [N], for States and Configs stacked over P."""

        def mean(state: Any, config: Any) -> Array:
            return agent_state.value(
                self.agent.module, state, rows.observation, rows.action, config
            ).mean()

        return jax.vmap(mean)(state, config)


class TerminalValues:
    """Metrics `terminal/value` and `terminal/reward` of P learners: means over terminal rows."""

    def __init__(self, agent: Any, rows: TerminalRows) -> None:
        """`agent` has the optional part `value`."""
        self.means, self.rows, self.reward = Means(Contents(agent)), rows, float(rows.reward.mean())

    def __call__(self, state: Any, config: Any, spread: Spread) -> dict[str, np.ndarray]:
        """The metrics [P] for States and Configs stacked over P, on `spread`."""
        means = shared(self.means, (state, config)).of(
            state, spread.everywhere(self.rows), spread.learners(config)
        )
        return {
            "terminal/value": np.asarray(jax.device_get(local(means))),
            "terminal/reward": np.full(len(means), self.reward),
        }


def terminal_values(
    agent: Any, data: Transition | None, experience: Experience
) -> TerminalValues | None:
    """The metrics for a data set [N, ...]; None without terminal rows or critics."""
    if data is None or not has_values(agent):
        return None
    rows = experience.terminal_rows(data, MOST_ROWS)
    return None if rows is None else TerminalValues(agent, rows)


def has_values(agent: Any) -> bool:
    """Whether the agent has the part `value`; with other parameters it is the author's own."""
    value = getattr(agent, "value", None)
    return callable(value) and list(inspect.signature(value).parameters) == PARAMETERS
