"""Evaluation."""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import Acting, config
from rljax.envs.autoreset import AutoReset
from rljax.learning import agent_state, evaluation
from rljax.learning.agent_state import AgentState
from rljax.networks.inputs import Raw
from rljax.runs.policies import loading
from tests.helpers.counting import Counter, Fake, HostedCounter, settings


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("limit", "cut"), [(None, True), (5, False)])
@pytest.mark.parametrize("inside", [True, False])
def test_episodes_that_do_not_end_are_marked(
    inside: bool, limit: int | None, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "LIMIT", 12)
    agent: Any = Fake()
    config = settings(2)
    if inside:
        evaluator: Any = evaluation.CompiledEvaluator(agent, AutoReset(Counter(limit)), 2)
        spec = Counter(limit).spec
    else:
        hosted: Any = HostedCounter(limit or 10**6)
        hosted.num_envs, hosted.success = 6, np.full(6, np.nan)
        hosted.spec = Counter(limit).spec
        evaluator, spec = evaluation.HostedEvaluator(agent, hosted, 2), hosted.spec

    def create(key: Any) -> AgentState:
        return agent_state.create(agent, key, spec, Fake.Config(), Raw())

    state = jax.vmap(create)(jax.random.split(jax.random.key(0), 2))
    played = evaluator(state, list(range(6)), config)
    np.testing.assert_array_equal(played.cut, np.full((2, 3), cut))
    np.testing.assert_array_equal(played.lengths, np.full((2, 3), 12 if cut else 5))


@config
class Config:
    """Fields with the names of other agents' settings for acting, and other meanings."""

    compute: int = 2  # width of a layer
    sequence_length: int = 4  # rows of a window
    target_return: float = 100.0


def test_fields_of_other_meanings_do_not_change() -> None:
    agent: Any = types.SimpleNamespace()
    held, same = evaluation.deciding(agent, Config(), 7)
    assert isinstance(held, evaluation.HeldActions)
    assert same == Config()
    assert evaluation.sequence_length(agent, Config()) is None
    for name in ("compute", "sequence_length"):
        with pytest.raises(
            ValueError, match=r"cannot change once agent 'mine' is trained\. .* can change: none\.$"
        ):
            loading.changed_for_acting(agent, Config(), {name: 3}, "mine")


def test_declared_settings_change_and_no_others() -> None:
    acting = Acting(settings=("target_return",), sequence="compute")
    agent: Any = types.SimpleNamespace(acting=lambda config: acting)
    assert evaluation.deciding(agent, Config(), 7) == (agent, Config(compute=7))
    assert evaluation.sequence_length(agent, Config(compute=7)) == 7
    changed = loading.changed_for_acting(
        agent, Config(), {"target_return": 5, "compute": 1}, "mine"
    )
    assert changed == Config(target_return=5.0, compute=1)
    with pytest.raises(
        ValueError, match=r"can change: --config\.target-return, --config\.compute\.$"
    ):
        loading.changed_for_acting(agent, Config(), {"sequence_length": 3}, "mine")
