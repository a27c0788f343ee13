"""REPPO beside its authors' code: their names of parameters, the table of rows, random numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import reppo
from scripts.updates import compare_reppo
from scripts.updates.shared import ACTION, OBSERVATION

SPEC = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)


def their_part(params: Any) -> dict[str, Any]:
    """A network of ours by their names."""

    def layer(i: int) -> dict[str, Any]:
        parts = {0: params[f"hidden_{i}"], 1: params.get(f"norm_{i}")}
        return {"layers": {k: part for k, part in parts.items() if part is not None}}

    more = {i - 1: layer(i) for i in range(1, sum(x.startswith("hidden") for x in params))}
    tree = {"input_layer": layer(0), "output_layer": {"layers": {0: params["output"]}}}
    return tree | ({"main_layers": more} if more else {})


@pytest.mark.parametrize("norm", ["rms", False])
def test_their_parameters_come_under_our_names(norm: Any) -> None:
    config = compare_reppo.config_of({"layer_norm": norm})
    state = reppo.init(jax.random.key(0), SPEC, config)
    actor = state.policy.parameters.actor.params
    tree = SimpleNamespace(to_pure_dict=lambda: {"actor_module": their_part(actor)})
    jax.tree.map(np.testing.assert_array_equal, compare_reppo.ours(tree), actor)
    critic = state.critic.parameters.params
    names = {"features": "feature_module", "head": "critic_module", "prediction": "pred_module"}
    theirs = {module: their_part(critic[name]) for name, module in names.items()}
    last = theirs["pred_module"]["output_layer"]["layers"]
    last[0] = {name: np.roll(x, 1, axis=-1) for name, x in last[0].items()}  # the reward first
    tree = SimpleNamespace(to_pure_dict=lambda: {**theirs, "zero_dist": critic["start"]})
    jax.tree.map(np.testing.assert_array_equal, compare_reppo.ours(tree), critic)


def test_rows_of_the_table_follow_each_other_and_may_end_episodes() -> None:
    env = compare_reppo.table(ends=True)
    assert 0 < np.sum(env.ends) < env.ends.size
    assert not compare_reppo.table(ends=False).ends.any()
    observation, again, state, reward, done, _ = env.step(
        None, compare_reppo.Clock(2, np.zeros(compare_reppo.SMALL.envs)), None
    )
    np.testing.assert_array_equal(observation, env.observations[3])
    np.testing.assert_array_equal(again, observation)
    np.testing.assert_array_equal((reward, done), (env.rewards[2], env.ends[2]))
    assert state.time == 3


def test_numbers_are_the_same_in_each_step() -> None:
    shape = (3, compare_reppo.SMALL.envs, ACTION)
    with compare_reppo.same_numbers():
        one = jax.random.normal(jax.random.key(0), shape)
        other = jax.random.normal(jax.random.key(1), shape[1:])
        order = compare_reppo.rollouts.permutation(jax.random.key(0), 4)
    np.testing.assert_array_equal(one[2], other)
    assert order.tolist() == [0, 1, 2, 3]
    assert len(np.unique(other)) == other.size


def test_a_folder_without_their_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        compare_reppo.compared(tmp_path, 2, {})
