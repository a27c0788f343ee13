"""Exported policies act as the loaded ones, whatever the agent and the spaces."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rljax.agent import Part
from rljax.learning import registry
from rljax.runs.export import checks, exporting
from rljax.runs.export.lowering import equations
from rljax.runs.export.program import Program
from rljax.runs.policies.policy import Policies
from scripts.results import spaces as table
from tests.runs.export import untrained
from tests.runs.policies import test_policy

PICTURE = spaces.Box(0, 255, (3, 20, 24), np.uint8)
BOX = spaces.Box(np.array([-3, 0.5]), np.array([1, 200]), dtype=np.float64)
MIXED = spaces.Dict(
    move=spaces.Box(-2, 1, (2,), np.float32), tool=spaces.MultiDiscrete([3, 2], start=[1, 0])
)
SEEN = spaces.Dict(
    camera=spaces.Dict(left=PICTURE), vector=spaces.Box(-np.inf, np.inf, (3,), np.float64)
)
# An agent, its environment's spaces, whether masks are in `info`, and settings.
KINDS: dict[str, tuple[Any, ...]] = {
    "vectors": ("sac", test_policy.VECTOR, BOX, False, {}),
    "masks": ("ppo", test_policy.VECTOR, spaces.Discrete(3, start=1), True, {}),
    "pictures": ("dqn", SEEN, spaces.Discrete(3), False, {}),
    "memory": ("ppo", test_policy.VECTOR, MIXED, False, {"memory": "gru"}),
    "noise": ("ifql", test_policy.VECTOR, BOX, False, {"num_candidates": 4, "flow_steps": 2}),
    "chunks": ("qc", test_policy.VECTOR, BOX, False, {"chunk_length": 2, "flow_steps": 2}),
}
NETWORKS: dict[str, tuple[Any, ...]] = {
    **{
        f"{memory} of {agent}": (agent, "vectors", action, {"memory": memory})
        for memory in ("lstm", "lru", "gtrxl", "iru")
        for agent, action in (("ppo", "continuous"), ("r2d2", "one discrete"))
    },
    **{
        f"torso {torso}": ("ppo", "vectors", "continuous", {"torso": torso, "compute": 2})
        for torso in ("resnet", "iru", "recall")
    },
    **{
        f"encoder {kind}": ("ppo", "pictures", "one discrete", {"encoder": kind})
        for kind in ("impala", "nature", "small", "efficient")
    },
    "layer norm": ("ppo", "vectors", "continuous", {"activation": "gelu"}),
    "bfloat16": ("dql", "vectors", "continuous", {"precision": "bfloat16"}),
}
EACH = [
    (agent, observation, action)
    for agent in registry.names()
    for observation in ("vectors", "dictionaries")
    for action in table.ACTIONS
    if table.refusal(agent, observation, action) is None
]


def try_formats(policies: Policies, *formats: exporting.Format) -> None:
    """Raises where an action differs."""
    program = Program(policies, 0)
    trial = checks.SampledCheck(policies, program)
    for to in formats or exporting.FORMATS:
        _, run = exporting.made(program, to)
        assert trial.largest_difference(run) <= checks.TOLERANCE


@functools.cache
def policies_of(kind: str) -> Policies:
    agent, observation, action, masked, changes = KINDS[kind]
    return untrained.hosted(agent, observation, action, masked, **changes)


@functools.cache
def python_file(kind: str) -> dict[str, Any]:
    """The names in the file."""
    content, _ = exporting.made(Program(policies_of(kind), 0), "numpy")
    file: dict[str, Any] = {}
    exec(content, file)
    return file


def learnt(agent: str, observation: str, action: str, changes: Any) -> Policies:
    spec = dataclasses.replace(table.spec(observation, action), signals=(Part("cost", ()),))
    return untrained.policies(agent, spec, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_representatives(kind: str) -> None:
    try_formats(policies_of(kind))


# By default EXPO's policy asks random critics, for which numbers must be sorted.
CHANGES: dict[str, dict[str, Any]] = {"expo": {"min_critics": None}}


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "observation", "action"), EACH)
def test_every_agent(agent: str, observation: str, action: str) -> None:
    try_formats(learnt(agent, observation, action, CHANGES.get(agent, {})))


@pytest.mark.slow
def test_numbers_are_sorted_in_stablehlo_alone() -> None:
    policies = learnt("expo", "vectors", "continuous", {})
    try_formats(policies, "stablehlo")
    with pytest.raises(ValueError, match=r"JAX's operation 'sort', .*: --to stablehlo"):
        try_formats(policies, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_network(kind: str) -> None:
    try_formats(learnt(*NETWORKS[kind]))


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        *((observation, BOX) for observation in test_policy.OBSERVATIONS),
        *((test_policy.VECTOR, action) for action in (*test_policy.ACTIONS, MIXED)),
        (spaces.MultiDiscrete([3, 2], start=[1, -1]), spaces.MultiBinary((2, 2))),
        (spaces.Dict(text=spaces.Text(3), x=test_policy.VECTOR), spaces.MultiDiscrete([2, 4])),
        (spaces.Dict({"a b": PICTURE, "a_b": PICTURE, "²": PICTURE}), spaces.Discrete(2)),
        (SEEN, spaces.Tuple([spaces.Discrete(2), test_policy.ACTION])),
    ],
    ids=str,
)
def test_every_space(observation: Any, action: Any) -> None:
    try_formats(untrained.of_means(observation, action), "numpy", "onnx")


def test_time_is_an_input() -> None:
    policies = untrained.hosted("stream_ac", test_policy.VECTOR, BOX)
    assert [value.name for value in Program(policies, 0).inputs] == ["observation", "step"]
    try_formats(policies, "numpy")


def test_one_observation_needs_no_leading_axis() -> None:
    act, seen = python_file("memory")["act"], np.array([0.5, -0.5, 0.1], np.float32)
    one, memory = act(seen)
    several, memories = act(np.stack([seen] * 3), memory=None)
    assert MIXED.contains(one)
    eps = np.finfo(np.float32).eps  # a product of one row may sum in another order
    np.testing.assert_allclose(several["move"][2], one["move"], rtol=1e-6, atol=eps)
    again, _ = act(seen, memory)
    fresh, _ = act(seen, memory, first=True)
    assert np.abs(again["move"] - one["move"]).max() > 1e-4, "it remembers"
    np.testing.assert_array_equal(fresh["move"], one["move"])
    assert [x.shape for x in memories] == [(3, 6)]
    with pytest.raises(ValueError, match=r"observation has shape \(4,\), it must be \(3,\) or"):
        act(np.zeros(4))


def test_noise_is_drawn_where_it_is_not_given() -> None:
    file, seen = python_file("noise"), np.zeros(3, np.float32)
    act, noise = file["act"], file["draw"](1)
    assert [x.shape for x in noise] == [(1, 4, 2)]
    assert not np.array_equal(act(seen), act(seen))
    np.testing.assert_array_equal(act(seen, noise), act(seen, noise))


def test_names_from_a_file_are_no_code() -> None:
    """Whoever writes a run's config.json chooses the names of parts."""
    name = "\"]; raise SystemExit('code ran'); \\x = ['"
    policies = untrained.of_means(spaces.Dict({name: PICTURE, "a": PICTURE}), spaces.Discrete(2))
    settings = dataclasses.replace(policies.settings, env='x"""\nraise SystemExit\n"""\\')
    try_formats(dataclasses.replace(policies, settings=settings), "numpy")


def test_a_wrong_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(equations.RULES, "argmax", equations.RULES["argmin"])
    with pytest.raises(ValueError, match=r"actions differ from the run's by .*No file"):
        try_formats(policies_of("masks"), "numpy")


class Sorting(untrained.MeanFollower):
    def act(self, state: Any, observation: Any, key: Any, config: Any, explore: bool) -> Any:
        return jnp.sort(observation, axis=-1)[..., :2], {}


def test_what_a_format_lacks_is_refused() -> None:
    policies = untrained.of_means(test_policy.VECTOR, test_policy.ACTION, Sorting)
    with pytest.raises(ValueError, match=r"JAX's operation 'sort', .*: --to stablehlo"):
        try_formats(policies, "numpy")
    try_formats(policies, "stablehlo")


class Counting(untrained.MeanFollower):
    def act(self, state: Any, observation: Any, key: Any, config: Any, explore: bool) -> Any:
        return jnp.zeros((len(observation), 2)), {}


def test_agents_that_count_observations_are_refused() -> None:
    policies = untrained.of_means(test_policy.VECTOR, test_policy.ACTION, Counting)
    with pytest.raises(ValueError, match=r"'means' does not act for any number of observations"):
        Program(policies, 0)
