"""Evaluation: episodes that do not end are cut and marked."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax.envs.autoreset import AutoReset
from rljax.training import evaluation
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
    state = jax.vmap(lambda key: agent.init(key, spec, Fake.Config()))(jax.random.split(jax.random.key(0), 2))
    played = evaluator(state, list(range(6)), config)
    np.testing.assert_array_equal(played.cut, np.full((2, 3), cut))
    np.testing.assert_array_equal(played.lengths, np.full((2, 3), 12 if cut else 5))
