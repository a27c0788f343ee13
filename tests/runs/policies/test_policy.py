"""Policies take what environments return, and return what environments take."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rljax import buffers
from rljax.agent import EnvSpec
from rljax.envs.host.spaces import Spaces
from rljax.learning.agent_state import AgentState
from rljax.learning.settings import Settings
from rljax.networks.inputs import Raw
from rljax.runs.policies.policy import Policies, Policy, whole_parts
from rljax.spec import Part

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
ACTION = spaces.Box(np.array([-3, 0.5], np.float32), np.array([1, 2], np.float32))


class Mean:
    def __init__(self, spec: EnvSpec, timed: bool) -> None:
        self.spec, self.timed = spec, timed

    def experience(self, config: Any) -> buffers.Stream:
        return buffers.Stream(time_feature=self.timed)

    def act(self, state: Any, observation: Any, key: Any, config: Any, explore: bool) -> Any:
        """In every dimension, or as a choice; the last element where it observes the time."""
        axes = tuple(range(observation.ndim - len(self.spec.observation_shape), observation.ndim))
        mean = observation[..., -1] if self.timed else observation.mean(axis=axes)
        if self.spec.discrete:
            return (mean > 0).astype(jnp.int32), {}
        return jnp.stack([mean] * self.spec.action_size, axis=-1), {}


def made(
    observation: Any, action: Any, env: str = "Odd-v0", described: bool = True, timed: bool = False
) -> Policy:
    native = Spaces(observation, action, env)
    shape = (native.observation_shape[0] + 1,) if timed else native.observation_shape
    spec = EnvSpec(env, shape, native.action_size, native.discrete, 10)
    description = json.loads(json.dumps(native.described())) if described else None
    settings, state = Settings("mean", env), AgentState({}, None, Raw())
    return Policy(Policies(settings, spec, Mean(spec, timed), {}, state, 0, None, description), 0)


OBSERVATIONS = [
    VECTOR,
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(0, 255, (3, 20, 24), np.uint8),
    spaces.Box(0, 255, (20, 24, 3), np.uint8),
    spaces.Box(0, 1, (3, 20, 24), np.float32),
    spaces.Discrete(4, start=1),
    spaces.MultiBinary(3),
    spaces.Tuple([spaces.Discrete(2), VECTOR]),
    spaces.Dict({"z": VECTOR, "a": spaces.Dict(d=spaces.Discrete(3, start=-1))}),
]
ACTIONS = [
    ACTION,
    spaces.Box(-2, 2, (2, 1), np.float64),
    spaces.Box(-2, 1, (), np.float32),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(2, start=10),
]


class Odd(gymnasium.Env):
    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize("observation", OBSERVATIONS, ids=str)
@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_every_space_that_can_be_trained_on(observation: Any, action: Any) -> None:
    policy, environment = made(observation, action), Odd(observation, action)
    first, _ = environment.reset()
    environment.step(policy(first))
    several: Any = gymnasium.vector.SyncVectorEnv([lambda: Odd(observation, action)] * 2)
    batch, _ = several.reset()
    chosen = policy(batch)
    assert chosen.dtype == (np.int32 if isinstance(action, spaces.Discrete) else action.dtype)
    several.step(chosen)
    assert np.asarray(policy(first)).shape == action.shape
    assert chosen.shape == (2, *action.shape)


def test_bounds_and_start() -> None:
    np.testing.assert_allclose(made(VECTOR, ACTION)(np.full(3, 0.5, np.float32)), [0.0, 1.625])
    np.testing.assert_allclose(
        made(VECTOR, ACTION)(np.full(3, 0.5, np.float32), normalised=True), [0.5, 0.5]
    )
    choice = made(VECTOR, spaces.Discrete(2, start=10))
    assert {choice(np.ones(3)): "a key", choice(-np.ones(3)): "another"} == {
        11: "a key",
        10: "another",
    }
    assert choice(np.ones(3), normalised=True) == 1


def test_observations_as_agents_see_them() -> None:
    policy = made(spaces.Dict(a=VECTOR, d=spaces.Discrete(2)), ACTION)
    own = policy({"a": np.zeros(3), "d": 1})
    np.testing.assert_array_equal(policy(np.array([0, 0, 0, 0, 1.0])), own)
    assert policy(np.zeros((6, 5)), normalised=True).shape == (6, 2)
    pictures = made(OBSERVATIONS[2], ACTION)
    assert pictures(np.zeros((6, 20, 24, 3)), normalised=True).shape == (6, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            np.zeros(4),
            (
                r"given an observation of shape \(4,\), its observation_space promises \(3,\)\. It "
                r"needs what 'Odd-v0'"
            ),
        ),
        ({"a": 1}, "that holds no real numbers .* It needs what 'Odd-v0' returns: Box"),
        (None, "no real numbers .None."),
        ("text", "no real numbers"),
        (np.zeros((2, 2, 3)), r"shape \(2, 2, 3\)"),
    ],
)
def test_other_observations_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(VECTOR, ACTION)(given)


@pytest.mark.parametrize("leading", [(), (4,)])
def test_parts_of_any_size_are_one_observation_or_a_batch(leading: tuple[int, ...]) -> None:
    spec = EnvSpec("mine", (), 2, parts=(Part("clock", ()), Part("near", (2,)), Part("far", (3,))))
    given = {"clock": np.full(leading, 5), "near": np.ones((*leading, 2))}
    whole = whole_parts(spec, ("far",), given)
    assert whole is not None
    assert {name: x.shape for name, x in whole.items()} == {
        "clock": leading,
        "near": (*leading, 2),
        "far": (*leading, 3),
    }
    assert {str(x.dtype) for x in whole.values()} == {"float32"}
    assert (whole["clock"] == 5).all()
    assert not whole["far"].any()
    assert whole_parts(spec, (), given) is None, "a part that the policy looks at is missing"
    several = {**given, "near": np.ones((3, *leading, 2))}
    assert whole_parts(spec, ("far",), several) is None, "as many of each part"


def test_the_time_is_asked_for() -> None:
    policy = made(VECTOR, spaces.Box(-1, 1, (1,)), timed=True)
    with pytest.raises(
        ValueError, match=r"observes the time of the episode.* policy\(observation, step=0\)"
    ):
        policy(np.zeros(3))
    np.testing.assert_allclose(policy(np.zeros(3), step=5), [0.0])
    np.testing.assert_allclose(policy(np.zeros((2, 3)), step=10), [[0.5], [0.5]])
    np.testing.assert_allclose(policy(np.zeros((2, 3)), step=[0, 10]), [[-0.5], [0.5]])
    np.testing.assert_allclose(policy(np.zeros(4)), [0.0])  # the time is in the observation already


def test_inside_the_program_actions_are_the_agents() -> None:
    policy = made(VECTOR, ACTION, "rljax/Pendulum", described=False)
    np.testing.assert_array_equal(policy(np.ones(3)), [1, 1])
