"""Losses of a run's first learner on data that it has not learnt from, such as the validation sets of NeoRL-2."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax import datasets
from rljax.agent import RewardTransform, act
from rljax.buffers.rows import rows_of, spread_rows
from rljax.runs import policy
from rljax.training.plan import require_same_spaces
from rljax.training.terminal_values import has_values

ACTION, ERROR = "validation/action", "validation/error"  # the names of the losses
MOST_ROWS = 10_000  # a larger sample would cost more and tell no more


def losses(folder: Path, dataset: datasets.Dataset, discount: float, *, trust: bool = False) -> dict[str, float]:
    """The losses of the last policy and critics of the run in `folder` on evenly spread rows of `dataset`.

    `validation/action` is the mean squared difference, per number in [-1, 1], between the data's actions and the
    policy's without exploration; with discrete actions, the share of choices that differ. `validation/error` is the
    mean squared error of the critics' value Q(s, a) to r + `discount` (1 - terminated) Q(s', a'), where the policy
    chooses a'; rewards are in the unit in which the run learns. Agents without the optional part `value` have only the
    first, and agents that remember, or observe goals or the time, have none: rows do not hold what these need.

    Raises `ValueError` where the data have other spaces, and all errors of `policy.load_all`.
    """
    policies = policy.load_all(folder, trust=trust, parts=("agent",))
    if policies.remembers or policies.observes_time or policies.experience.observes:
        return {}
    module, spec, given = policies.module, policies.spec, dataset.spec
    if spec.discrete and given.discrete and not spec.choices:  # the data may lack the last actions
        given = dataclasses.replace(given, action_size=max(given.action_size, spec.action_size))
    require_same_spaces(spec, f"'{folder}'", given)
    state, config = jax.tree.map(lambda x: x[0], (policies.state, policies.config))
    data = rows_of(dataset.transitions, spread_rows(dataset.num, MOST_ROWS))
    key = jax.random.key(0)

    @jax.jit
    def differences(state: Any, observation: Any, action: Any) -> Any:
        chosen, *_ = act(module, state, observation, key, config, explore=False)
        different = (chosen != action) if spec.discrete else jnp.square(chosen - action)
        return different.astype(jnp.float32).mean()

    found = {ACTION: float(differences(state, data.observation, data.action))}
    if has_values(module):
        scale, shift = _reward_affine(policies.experience.reward_transform, policies.settings.data)

        @jax.jit
        def errors(state: Any, data: Any) -> Any:
            chosen, *_ = act(module, state, data.next_observation, key, config, explore=False)
            following = module.value(state, data.next_observation, chosen, config)
            target = scale * data.reward + shift + discount * (1.0 - data.terminated) * following
            return jnp.square(module.value(state, data.observation, data.action, config) - target).mean()

        found[ERROR] = float(errors(state, data))
    return found


@functools.cache  # runs that are compared have learnt from the same data
def _reward_affine(transform: RewardTransform, name: str | None) -> tuple[float, float]:
    """The scale and shift of rewards that a run learns from; some are those of its own data set, which is read."""
    if transform == "none" or name is None:
        return 1.0, 0.0
    return datasets.reward_transform(transform, datasets.load(name))
