"""Losses of a run's first learner on held-out data."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax import datasets
from rljax.buffers import RewardTransform
from rljax.buffers.rows import AS_STORED, RewardMap, rows_of, spread_rows
from rljax.learning import agent_state
from rljax.learning.plan import require_same_spaces
from rljax.learning.terminal_values import has_values
from rljax.runs import arguments
from rljax.runs.policies import loading
from rljax.trust import Folder

ACTION, ERROR = "validation/action", "validation/error"  # the names of the losses
MOST_ROWS = 10_000


def losses(
    out: Path | Folder, dataset: datasets.OfflineDataset, discount: float
) -> dict[str, float]:
    """The losses of the last policy and critics of the run in `out` on evenly spread rows of
    `dataset`.

    docs/model_selection.md defines them. Agents without the optional part `value` have only
    `validation/action`; those that remember, or observe goals or the time, have none.

    Raises `ValueError` for data with other spaces, and the errors of `loading.load_all`.
    """
    folder = arguments.run_folder(out)
    policies = loading.load_all(folder)
    if policies.remembers or policies.observes_time or policies.experience.observes:
        return {}
    module, spec, data_spec = policies.module, policies.spec, dataset.spec
    # The data may lack the last actions.
    if spec.discrete and data_spec.discrete and not spec.choices:
        data_spec = dataclasses.replace(
            data_spec, action_size=max(data_spec.action_size, spec.action_size)
        )
    require_same_spaces(spec, f"'{folder.path}'", data_spec)
    state, config = jax.tree.map(lambda x: x[0], (policies.state, policies.config))
    data = rows_of(dataset.transitions, spread_rows(dataset.num, MOST_ROWS))
    key = jax.random.key(0)

    @jax.jit
    def differences(state: Any, observation: Any, action: Any) -> Any:
        policy_action, *_ = agent_state.act(module, state, observation, key, config, explore=False)
        if spec.discrete:
            return (policy_action != action).astype(jnp.float32).mean()
        return jnp.square(policy_action - action).astype(jnp.float32).mean()

    values = {ACTION: float(differences(state, data.observation, data.action))}
    if has_values(module):
        reward_map = _reward_map(policies.experience.reward_transform, policies.settings.data)

        @jax.jit
        def errors(state: Any, data: Any) -> Any:
            policy_action, *_ = agent_state.act(
                module, state, data.next_observation, key, config, explore=False
            )
            next_value = agent_state.value(
                module, state, data.next_observation, policy_action, config
            )
            bootstrap = discount * (1.0 - data.terminated)
            target = reward_map(data.reward) + bootstrap * next_value
            return jnp.square(
                agent_state.value(module, state, data.observation, data.action, config) - target
            ).mean()

        values[ERROR] = float(errors(state, data))
    return values


@functools.cache
def _reward_map(transform: RewardTransform, name: str | None) -> RewardMap:
    if transform == "none" or name is None:
        return AS_STORED
    return datasets.reward_transform(transform, datasets.load(name))
