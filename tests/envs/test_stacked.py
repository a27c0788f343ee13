"""Newest observations at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from rljax import envs
from rljax.agent import MASK
from rljax.envs import objects, stacked

NUMBERS = spaces.Box(-1.0, 100.0, (2,), np.float32)
FIRST = spaces.Box(0, 255, (1, 20, 24), np.uint8)
MASKS = spaces.MultiBinary(3)


class Counter(gymnasium.Env):
    """Shows how many steps it has made, in one buffer."""

    action_space = spaces.Discrete(3)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(self.observation_space), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.shown(self.observation_space), 1.0, self.steps == 4, False, {}

    def shown(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: self.shown(part) for name, part in space.items()}
        if space == MASKS:
            return np.arange(3) != self.steps % 3
        return np.full(space.shape, self.steps, space.dtype)


def steps_seen(hosted: Any, part: Any) -> list[list[int]]:
    """The steps in each observation of an episode and of the first steps of the next one."""
    observations = [hosted.reset([0])]
    for _ in range(5):
        step = hosted.step(np.zeros(1, np.int64))
        observations += [step.next_observation, step.observation][: 1 + bool(step.terminated)]
    return [part(x).tolist() for x in observations]


@pytest.mark.filterwarnings("ignore:.*agents see")
@pytest.mark.parametrize("space", [NUMBERS, FIRST, "dictionary"], ids=["vector", "first", "dict"])
def test_an_episode_begins_with_copies_and_shows_the_newest_last(space: Any) -> None:
    is_dict = space == "dictionary"
    both = spaces.Dict({"camera": FIRST, "numbers": NUMBERS, MASK: MASKS})
    name = objects.register(lambda: Counter(both if is_dict else space))
    hosted = envs.make_hosted(f"stacked-3/{name}", 1)
    shown = hosted.spec.observation
    if is_dict:
        assert {key: x.shape for key, x in shown.items()} == {
            "camera": (20, 24, 3),
            "vector": (6,),
            MASK: (3,),
        }
        numbers = lambda x: x["vector"][0, ::2]  # noqa: E731
        first = hosted.reset([0])
        np.testing.assert_array_equal(first[MASK], [[False, True, True]])
    elif space is FIRST:
        assert (shown.shape, hosted.spec.stack) == ((20, 24, 3), 3)
        numbers = lambda x: x[0, 5, 7]  # noqa: E731
    else:
        assert (shown.shape, hosted.spec.stack) == ((6,), 1)
        numbers = lambda x: x[0, ::2]  # noqa: E731
    episode = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert steps_seen(hosted, numbers) == [*episode, *episode[:2]]


def test_inside_the_program_it_is_the_same() -> None:
    plain, several = envs.make("rljax/Pendulum"), envs.make("stacked-2/rljax/Pendulum")
    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    def observations(environment_steps: Any) -> Any:
        one, state = plain.reset(keys)
        both, states = several.reset(keys)
        steps = []
        for action in environment_steps:
            next_one, state = plain.step(keys, state, action)
            next_both, states = several.step(keys, states, action)
            steps.append((next_one.next_observation, next_both.next_observation))
        return (one, both), steps

    first, steps = observations(np.ones((2, 2, 1), np.float32) * 0.5)
    expected = np.concatenate([first[0], first[0]], axis=-1)
    np.testing.assert_array_equal(first[1], expected)
    before = first[0]
    for one, both in steps:
        np.testing.assert_array_equal(both, np.concatenate([before, one], axis=-1))
        before = one


def test_what_cannot_be_stacked_is_refused() -> None:
    name = objects.register(lambda: Counter(spaces.Discrete(4)))
    with pytest.raises(ValueError, match="only vectors and pictures can be stacked"):
        envs.make_hosted(f"stacked-3/{name}", 1)
    vector = objects.register(gymnasium.make_vec("CartPole-v1", 1))
    with pytest.raises(ValueError, match=r"is a vector environment alone: remove .*'stacked-N/'"):
        envs.make_hosted(f"stacked-3/{vector}", 1)
    with pytest.raises(ValueError, match="shows 1 frames at once, it must be at least 2"):
        envs.make_hosted("stacked-1/CartPole-v1", 1)
    with pytest.raises(ValueError, match="stacked pictures: only vectors and pictures"):
        envs.make("stacked-2/rljax/PendulumPictures")
    with pytest.raises(ValueError, match="shows no more frames: only environments of Gymnasium"):
        envs.make_hosted("stacked-2/atari/Pong", 1)


@pytest.mark.parametrize(
    ("name", "stacked_name"),
    [
        ("Hopper-v5", "stacked-4/wrap(a.py:A)/Hopper-v5"),
        ("async/Hopper-v5", "async/stacked-4/wrap(a.py:A)/Hopper-v5"),
        ("with-last-step/Hopper-v5", "with-last-step/stacked-4/wrap(a.py:A)/Hopper-v5"),
        ("without-1/Hopper-v5", "stacked-4/wrap(a.py:A)/without-1/Hopper-v5"),
    ],
)
def test_flags_become_a_name(name: str, stacked_name: str) -> None:
    assert envs.with_wrappers(name, ["a.py:A"], 4) == stacked_name
    assert envs.task(stacked_name) == envs.task(name) == "Hopper-v5"
    assert envs.codes_of(stacked_name) == ["a.py"]


def test_frames_are_the_environments_own_at_the_time() -> None:
    """Also where it writes each observation into the same array."""

    class Reuser(Counter):
        def shown(self, space: Any) -> Any:
            self.buffer = getattr(self, "buffer", np.zeros(space.shape, space.dtype))
            self.buffer[:] = self.steps
            return self.buffer

    env = stacked.FrameStack(Reuser(NUMBERS), 2)
    env.reset()
    np.testing.assert_array_equal(env.step(0)[0], [0, 0, 1, 1])
    np.testing.assert_array_equal(env.step(0)[0], [1, 1, 2, 2])


def test_a_saved_environment_goes_on_with_its_frames() -> None:
    name = f"stacked-3/{objects.register(lambda: Counter(FIRST))}"
    one, other = envs.make_hosted(name, 1), envs.make_hosted(name, 1)
    one.reset([0])
    one.step(np.zeros(1, np.int64))
    blob = one.save()
    assert blob is not None
    other.restore(blob)
    steps = [hosted.step(np.zeros(1, np.int64)).observation for hosted in (one, other)]
    np.testing.assert_array_equal(*steps)
    assert steps[0][0, 0, 0].tolist() == [0, 1, 2]
