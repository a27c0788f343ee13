"""Every agent takes each kind of observation and action, or refuses it with one message."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from rljax import agent as contract
from rljax import buffers, datasets
from rljax.learning import configuration, registry
from rljax.learning.learner import Learner
from rljax.learning.plan import prepared
from scripts.results import spaces as table
from tests.agents.contract.representatives import REPRESENTATIVES

EVERY = [(observation, action) for observation in table.OBSERVATIONS for action in table.ACTIONS]
TAKEN = [
    (name, observation, action)
    for name in registry.names()
    for observation, action in EVERY
    if (observation, action) not in {("vectors", "continuous"), ("vectors", "one discrete")}
    and table.refusal(name, observation, action) is None
]


def marked(case: tuple[str, str, str], is_first: bool) -> Any:
    """Quick if it is the first of its kind and of a representative."""
    first = () if case[0] in REPRESENTATIVES else pytest.mark.slow
    return pytest.param(*case, marks=first if is_first else pytest.mark.learn)


def first_kinds(cases: list[tuple[str, str, str]]) -> list[Any]:
    """The first of an agent with a kind of observation or of action stands for others.

    Vectors, which are quick, come first. Dictionaries, which hold a picture, stand for pictures.
    """
    tried = {(name, "pictures") for name, shows, _ in cases if shows == "dictionaries"}
    order, parameters = ("vectors", "dictionaries", "pictures"), []
    for case in sorted(cases, key=lambda case: order.index(case[1])):
        new = {(case[0], kind) for kind in case[1:]} - tried
        parameters.append(marked(case, is_first=bool(new)))
        tried |= new
    return parameters


def with_cost(spec: contract.EnvSpec) -> contract.EnvSpec:
    """With the signal that some agents ask for."""
    return dataclasses.replace(spec, signals=(contract.Part("cost", ()),))


def test_the_table_is_up_to_date() -> None:
    assert table.BEGIN + table.table() + table.END in table.PAGE.read_text(), (
        "run scripts/results/spaces.py"
    )


def test_refusals_say_what_to_do() -> None:
    starts = ("agent '{}'", "observations have shape", "'Example-v0' shows a dictionary")
    for name, pair in itertools.product(registry.names(), EVERY):
        error = table.refusal(name, *pair)
        if error is not None:
            assert error.startswith(tuple(start.format(name) for start in starts))
            assert any(word in error for word in ("Choose", "choose", "Use:", "give "))


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    first_kinds([x for x in TAKEN if table.source(x[0]) != "alone"]),
)
def test_what_is_taken_can_be_learnt_from(name: str, observation: str, action: str) -> None:
    """Traced, and not compiled."""
    module: Any = registry.load_agent(name)
    spec = with_cost(table.spec(observation, action))
    data = recorded(spec).transitions if table.source(name) else None
    learner, hyper, state = begun(module, Learner(module, spec, 1), data)
    seen = spec.shaped(1, hyper.experience.num_envs)
    actions, _ = jax.eval_shape(lambda state, seen: learner.act(state, seen, hyper), state, seen)
    assert (actions.shape[2:], actions.dtype) == (spec.action_shape, spec.action_dtype)


def begun(module: Any, learner: Learner, data: Any) -> tuple[Learner, Any, Any]:
    """A learner with its hyperparameters and the shapes of its State."""
    hyper = learner.hyperparameters(configuration.stack(module.Config(), 1))
    keys = jax.eval_shape(jax.vmap(jax.random.key), np.zeros(1, np.uint32))
    state = jax.eval_shape(lambda keys, data: learner.init(keys, hyper, data), keys, data)
    return learner, hyper, state


def recorded(spec: contract.EnvSpec, rows: int = 8) -> datasets.OfflineDataset:
    """Data of an environment's spaces."""
    seen = jax.tree.map(lambda x: np.zeros((rows, *x.shape), x.dtype), spec.observation)
    action = np.zeros((rows, *spec.action_shape), np.int32 if spec.discrete else np.float32)
    nothing, ends = np.zeros(rows, bool), np.arange(rows) % 5 == 4
    known = {"choices": list(spec.choices)} if spec.choices else {"num_actions": spec.action_size}
    costs = {"cost": np.zeros(rows, np.float32)}
    rewards = np.arange(rows, dtype=np.float32)
    transitions: Any = contract.Transition(seen, action, rewards, nothing, ends, seen, costs)
    bounds = None if spec.discrete else (-np.ones(spec.action_size), np.ones(spec.action_size))
    made = datasets.OfflineDataset(
        "made", transitions, None, None, bounds, known if spec.discrete else {}
    )
    assert contract.difference(made.spec, spec) is None
    labelled = transitions.replace(extras=costs | {buffers.PART: np.zeros(rows, np.float32)})
    return dataclasses.replace(made, transitions=labelled)


FROM_DATA = [x for x in TAKEN if table.source(x[0]) and x[1] == "dictionaries"]


def first_from_data() -> list[Any]:
    """An agent's first kind of actions and masked ones stand for others: see test_choices.py."""
    first = {name: action for name, _, action in reversed(FROM_DATA)}
    return [marked(case, is_first=case[2] in ("masked", first[case[0]])) for case in FROM_DATA]


@pytest.mark.parametrize(("name", "observation", "action"), first_from_data())
def test_what_is_taken_can_be_learnt_from_data(name: str, observation: str, action: str) -> None:
    """Traced; agents that need new experience see it beside the data."""
    module: Any = registry.load_agent(name)
    spec, config = with_cost(table.spec(observation, action)), module.Config()
    dataset = recorded(spec)
    data, _ = prepared(dataset, module.experience(config))

    def declared(config: Any) -> Any:
        return module.experience(config).mixed(lambda replay: buffers.Mixed.of(replay, 0.5))

    learner, hyper, state = begun(module, Learner(module, spec, 1, declared), data)
    state = jax.eval_shape(lambda state, data: learner.prepare(state, data, hyper), state, data)
    after = jax.eval_shape(lambda state, data: learner.update(state, hyper, data), state, data)
    assert jax.tree.structure(after.agent) == jax.tree.structure(state.agent)


def test_masks_are_found_in_dictionaries_alone() -> None:
    mask = np.ones(3, bool)
    assert contract.mask_of({contract.MASK: mask, "vector": np.zeros(2)}) is mask
    assert contract.mask_of({"vector": np.zeros(2)}) is None
    assert contract.mask_of(np.zeros(3)) is None
