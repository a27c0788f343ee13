"""SafetyHalfCheetah equals NeoRL-2's."""

from __future__ import annotations

import numpy as np

from rljax import datasets, envs
from rljax.envs.host.robots import neorl2
from tests.datasets.files import shared

NAME = "rljax.envs.host.robots.neorl2:SafetyHalfCheetah-v0"


def stepped(state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float]:
    """The observation and reward after positions and velocities [18]."""
    hosted = envs.make_hosted(NAME, 1)
    hosted.reset([0])
    simulator = hosted.vector_env
    simulator = simulator.envs[0].unwrapped
    simulator.set_state(state[:9], state[9:])
    step = hosted.step(action[None].astype(np.float32))
    return step.next_observation[0], float(step.reward[0])


def test_published_transitions_replay() -> None:
    path = shared("offline", "neorl2_SafetyHalfCheetah-high-20000-val.npz")
    with np.load(path) as file:
        for row in range(0, 2000, 40):
            state = file["obs"][row].astype(float)
            observation, reward = stepped(state, file["action"][row])
            np.testing.assert_allclose(observation, file["next_obs"][row], atol=1e-3)
            np.testing.assert_allclose(reward, file["reward"][row], atol=1e-5)


def test_too_fast_is_penalised() -> None:
    state = np.zeros(18)
    for velocity, fast in ((3.0, False), (4.0, True)):
        state[9] = velocity
        observation, reward = stepped(state, np.zeros(6))
        measured = observation[0] / 0.05
        assert bool(measured > 3.2096) is fast
        assert reward == (neorl2.PENALTY if fast else np.float32(measured))


def test_is_the_environment_of_its_data_set() -> None:
    assert datasets.environment("neorl2/SafetyHalfCheetah-v0-val") == NAME
    assert datasets.environment("neorl2/Fusion-v0") is None
