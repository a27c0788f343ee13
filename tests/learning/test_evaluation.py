"""Evaluation."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import Acting, EnvSpec, config
from rljax.envs.autoreset import AutoReset
from rljax.learning import agent_state, evaluation
from rljax.learning.agent_state import AgentState
from rljax.networks.inputs import Raw
from rljax.runs.policies import loading
from tests.helpers import run_folders
from tests.helpers.counting import Counter, Fake, HostedCounter, settings


def evaluator_of(inside: bool, limit: int | None) -> tuple[Any, AgentState]:
    """An evaluator of two learners, and their states."""
    agent: Any = Fake()
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

    return evaluator, jax.vmap(create)(jax.random.split(jax.random.key(0), 2))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("limit", "cut"), [(None, True), (5, False)])
@pytest.mark.parametrize("inside", [True, False])
def test_episodes_that_do_not_end_are_marked(
    inside: bool, limit: int | None, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "LIMIT", 12)
    evaluator, state = evaluator_of(inside, limit)
    played = evaluator(state, evaluator.starts(range(2), 3), settings(2))
    np.testing.assert_array_equal(played.cut, np.full((2, 3), cut))
    np.testing.assert_array_equal(played.lengths, np.full((2, 3), 12 if cut else 5))


@pytest.mark.parametrize("inside", [True, False])
def test_uniform_actions_change_no_evaluation_of_the_policy(inside: bool) -> None:
    """The policy's actions lie in [0.25, 0.75]; a reward is the action and the time."""
    evaluator, state = evaluator_of(inside, 5)
    starts, config = evaluator.starts(range(2), 3), settings(2)
    policy, chance, again = (
        evaluator(state, starts, config, random) for random in (False, True, False)
    )
    np.testing.assert_array_equal(policy.returns, again.returns)
    times = sum(range(1, 6))
    assert ((policy.returns - times) / 5 > 0.25 - 1e-6).all()
    assert (np.abs((chance.returns - times) / 5) < 1).all()
    assert ((chance.returns - times) / 5 < 0.25).any()
    assert len(np.unique(chance.returns)) == 6
    assert (np.abs(policy.largest_reward - 5.5) <= 0.25).all()
    extremes = policy.extremes(1)
    assert extremes == {"largest_reward": policy.largest_reward[1].max(), "at_bounds": 0.0}


@pytest.mark.parametrize(
    ("spec", "mask", "shape", "probabilities"),
    [
        (EnvSpec("", (1,), 3, True), None, (), [1 / 3, 1 / 3, 1 / 3]),
        (EnvSpec("", (1,), 3, True), [True, False, True], (), [0.5, 0.0, 0.5]),
        (EnvSpec("", (1,), 5, True, choices=(2, 3)), None, (2,), [1 / 3, 1 / 3, 1 / 3]),
        (EnvSpec("", (1,), 4, choices=(3,)), None, (2,), [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_uniform_actions_on_the_host(
    spec: EnvSpec, mask: list[bool] | None, shape: tuple[int, ...], probabilities: list[float]
) -> None:
    number = 20_000
    masks = None if mask is None else np.tile(mask, (number, 1))
    actions = evaluation.uniform_on_host(np.random.default_rng(0), spec, number, masks)
    assert (actions.shape, actions.dtype) == ((number, *shape), spec.action_dtype)
    last = actions.reshape(number, -1)[:, -1]
    shares = [(last == choice).mean() for choice in range(3)]
    np.testing.assert_allclose(shares, probabilities, atol=0.02)
    numbers = actions.reshape(number, -1)[:, : spec.numbers]
    if spec.numbers:
        assert abs(numbers.mean()) < 0.03
        np.testing.assert_allclose([numbers.min(), numbers.max()], [-1, 1], atol=1e-3)


def test_the_share_of_numbers_at_their_bounds_leaves_choices_out() -> None:
    spec = EnvSpec("mixed", (1,), 5, choices=(3,))
    actions = np.array([[-1.0, 0.995, 2.0], [0.5, -0.98, 1.0]], np.float32)
    np.testing.assert_array_equal(evaluation.share_at_bounds(actions, spec), [1.0, 0.0])


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


def test_scores_stand_for_the_returns_of_published_scores(tmp_path: Path) -> None:
    """Scores 0 and 100 are returns of -20 and 180."""
    folder = run_folders.write(tmp_path / "a", "rvs", reference=[-20.0, 180.0])
    read = loading.read_changes(folder, {"target_return": ["90%", "-10%", "12.5", "none"]})
    assert read == {"target_return": [160.0, -40.0, 12.5, None]}
    with pytest.raises(ValueError, match=r"return is 'much%': a score is a number, such as 90%"):
        loading.read_changes(folder, {"target_return": ["much%"]})
    folder = run_folders.write(tmp_path / "b", "rvs", reference=None)
    message = r"target-return is '90%', and the run's data have no published returns .* without %"
    with pytest.raises(ValueError, match=message):
        loading.read_changes(folder, {"target_return": ["90%"]})
    with pytest.raises(ValueError, match=message):
        loading.load_all(folder, config={"target_return": "90%"})
