"""Critics for the attacks of `rljax.datasets.tools.corruption`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from rljax.agent import Array
from rljax.datasets.tools.corruption import Attacker
from rljax.learning import agent_state
from rljax.learning.agent_state import AgentState
from rljax.runs import arguments
from rljax.runs.policies import loading, policy
from rljax.trust import Folder


@dataclasses.dataclass(frozen=True)
class AttackedAgent:
    """An agent's `value` and `act` for observations as the data have them."""

    module: Any  # the agent

    @property
    def has_value(self) -> bool:
        """Whether there are values of actions."""
        return hasattr(self.module, "value")

    def value(self, state: AgentState, observation: Any, action: Array, config: Any) -> Array:
        """The critics' values [...] of actions [..., A]."""
        return agent_state.value(self.module, state, observation, action, config)

    def act(
        self, state: AgentState, observation: Any, key: Array, config: Any, explore: bool
    ) -> tuple[Array, dict]:
        """Actions [..., A] and extras for observations [..., O...]."""
        action, extras, _ = agent_state.act(self.module, state, observation, key, config, explore)
        return action, extras


def load_attacker(folder: str | Path | Folder, learner: int = 0) -> Attacker:
    """One learner of the run in `folder`. Raises the errors of `rljax.load`."""
    run_folder = arguments.run_folder(folder)
    policies = loading.load_all(run_folder)
    settings = policies.settings
    policy.require_learner(settings, learner)
    if policies.remembers:
        raise ValueError(
            f"the policy in '{run_folder.path}' remembers, and an attack on observations needs one "
            "that acts on single observations: name another run."
        )
    state, config = jax.tree.map(lambda x: x[learner], (policies.state, policies.config))
    note = {
        "run": run_folder.path.resolve().name,
        "agent": settings.agent,
        "data": settings.data,
        "training_step": policies.step,
        "training_seed": settings.seeds[learner],
    }
    module = AttackedAgent(policies.module)
    return Attacker(module, state, config, policies.spec, str(run_folder.path), note)
