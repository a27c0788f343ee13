"""Gymnasium's environments: the same steps whatever their autoreset, and exact continuation from a saved state."""

import ctypes.util
import functools
import importlib
import os
import subprocess
import sys
import types
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rljax import envs
from rljax.envs import gymnasium as adapter
from rljax.envs.gymnasium import Hosted, make_hosted

mujoco: Any = importlib.import_module("mujoco")
register: Any = gymnasium.register

FIELDS = (
    "observation",
    "next_observation",
    "reward",
    "terminated",
    "truncated",
    "episode_return",
    "episode_length",
)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Walk(gymnasium.Env):
    """A random walk of two numbers, whose episodes end at random and report success then."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, observation_space: Any = None, action_space: Any = BOX, render_mode: str | None = None) -> None:
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space, self.render_mode = action_space, render_mode
        self.actions: list[Any] = []
        self.spoil: Any = None  # (which of what step returns, what it is replaced by)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2)
        return self._observe(), {}

    def step(self, action):
        self.actions.append(action)
        self.state = self.state + np.sum(action) + 0.1 * self.np_random.normal(size=2)
        terminated = bool(self.np_random.random() < 0.1)
        info = {"success": self.state[0] > 0} if terminated else {"distance": self.state[0]}
        result = [self._observe(), float(self.state.sum()), terminated, False, info]
        if self.spoil:
            result[self.spoil[0]] = self.spoil[1]
        return tuple(result)

    def render(self):
        return np.full((4, 6, 3), 9, np.uint8)

    def _observe(self):
        if isinstance(self.observation_space, spaces.Dict):
            return {"position": self.state.copy(), "sign": int(self.state[0] > 0)}
        if isinstance(self.observation_space, spaces.Box):
            return self.state.astype(self.observation_space.dtype).reshape(self.observation_space.shape)
        return self.observation_space.sample()


class Batch(gymnasium.vector.VectorEnv):
    """Walks as a vector environment of one's own, with as little as the interface allows."""

    def __init__(self, mode: AutoresetMode | None, behaviour: AutoresetMode, honours_mask: bool = True) -> None:
        self.inner = SyncVectorEnv([limited] * 3, autoreset_mode=behaviour)
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.num_envs, self.honours_mask = 3, honours_mask
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed, options=options if self.honours_mask else None)

    def step(self, actions):
        return self.inner.step(actions)


def limited(**kwargs: Any) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Walk(**kwargs), 12)


def hosted_walk(number: int = 1, **kwargs: Any) -> Hosted:
    return Hosted(SyncVectorEnv([functools.partial(limited, **kwargs)] * number), "Walk")


def inner(hosted: Hosted) -> list[Any]:
    """The environments themselves."""
    vector: Any = hosted.vector_env
    return [env.unwrapped for env in vector.envs]


def actions_for(hosted: Hosted, steps: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = (steps, hosted.num_envs, *hosted.spec.action_shape)
    if hosted.spec.discrete:
        return rng.integers(hosted.spec.action_size, size=shape, dtype=np.int32)
    return rng.uniform(-1, 1, shape).astype(np.float32)


def roll(hosted: Hosted, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Steps stacked over time [T, N, ...], and the success noted after each."""
    steps = [(hosted.step(action), hosted.success.copy()) for action in actions]
    record = {name: np.stack([getattr(step, name) for step, _ in steps]) for name in FIELDS}
    return record | {"success": np.stack([success for _, success in steps])}


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    for name in one:
        assert one[name].dtype == two[name].dtype
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.fixture(autouse=True)
def _registered():
    before = dict(gymnasium.registry)
    register("Walk-v0", Walk, max_episode_steps=12)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


# Steps.


def test_steps_by_hand():
    """Against Gymnasium's own loop: one environment, seeded once, reset where an episode ends."""
    theirs = gymnasium.make("Walk-v0")
    ours = make_hosted("Walk-v0", 1)
    observation, _ = theirs.reset(seed=3)
    np.testing.assert_array_equal(ours.reset([3])[0], observation.astype(np.float32))
    total, length, ends = 0.0, 0, []
    for action in actions_for(ours, 60):
        observation, reward, terminated, truncated, info = theirs.step(action[0])
        total, length = total + float(reward), length + 1
        step = ours.step(action)
        np.testing.assert_array_equal(step.next_observation[0], observation.astype(np.float32))
        assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
        assert step.reward[0] == np.float32(reward)
        assert step.episode_return[0] == np.float32(total)
        assert step.episode_length[0] == length
        if terminated or truncated:
            np.testing.assert_equal(ours.success[0], info.get("success", np.nan))
            observation, _ = theirs.reset()
            total, length = 0.0, 0
            ends.append(terminated)
        np.testing.assert_array_equal(step.observation[0], observation.astype(np.float32))
    assert set(ends) == {True, False}


def test_shapes_and_dtypes():
    hosted = make_hosted("Walk-v0", 3)
    assert hosted.spec == envs.make_hosted("Walk-v0", 1).spec
    assert (hosted.spec.name, hosted.spec.observation_shape, hosted.spec.action_size) == ("Walk-v0", (2,), 2)
    assert (hosted.spec.discrete, hosted.spec.max_episode_steps, hosted.frames_per_second) == (False, 12, 7)
    assert hosted.reset([0, 1, 2]).dtype == np.float32
    step = hosted.step(np.zeros((3, 2), np.float32))
    assert step.observation.shape == step.next_observation.shape == (3, 2)
    assert step.observation.dtype == step.next_observation.dtype == step.reward.dtype == np.float32
    assert step.terminated.dtype == step.truncated.dtype == np.bool_
    assert (step.episode_return.dtype, step.episode_length.dtype) == (np.float32, np.int32)
    assert hosted.success.shape == (3,)


def reference(steps: int = 80) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    hosted = make_hosted("Walk-v0", 3)
    first = hosted.reset([5, 6, 7])
    record = roll(hosted, actions_for(hosted, steps))
    assert record["terminated"].any()
    assert record["truncated"].any()
    assert {0.0, 1.0} <= set(record["success"][~np.isnan(record["success"])])
    return first, record


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", ["sync", "sync-in-place", "wrapped", "own", "own-silent"])
def test_same_steps_whatever_the_autoreset(kind, mode):
    if kind.startswith("own"):
        vector: Any = Batch(mode if kind == "own" else None, mode)
    else:
        vector = SyncVectorEnv([limited] * 3, copy=kind != "sync-in-place", autoreset_mode=mode)
        if kind == "wrapped":
            vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector)
    hosted = Hosted(vector, "Walk-v0")
    first, record = reference()
    np.testing.assert_array_equal(hosted.reset([5, 6, 7]), first)
    assert_same(record, roll(hosted, actions_for(hosted, 80)))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_same_steps_in_processes(mode):
    functions = [functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=7)] * 2
    hosted = Hosted(AsyncVectorEnv(functions, context="spawn", autoreset_mode=mode), "Pendulum-v1")
    ours = make_hosted("Pendulum-v1", 2, max_episode_steps=7)
    np.testing.assert_array_equal(hosted.reset([1, 2]), ours.reset([1, 2]))
    actions = actions_for(ours, 16)
    assert_same(roll(ours, actions), roll(hosted, actions))
    assert hosted.save() is None
    assert hosted.save_failure == "AsyncVectorEnv keeps the state of its environments out of reach"
    hosted.close()


def test_returned_arrays_are_never_written_again():
    hosted = make_hosted("Walk-v0", 3, observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float32))  # as returned
    hosted.reset([0, 1, 2])
    steps, copies = [], []
    for action in actions_for(hosted, 40):
        steps.append(hosted.step(action))
        copies.append({name: getattr(steps[-1], name).copy() for name in FIELDS})
    for step, copy in zip(steps, copies, strict=True):
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(step, name), copy[name])


def test_an_environment_does_not_depend_on_its_neighbours():
    together, alone = make_hosted("Walk-v0", 3), make_hosted("Walk-v0", 1)
    actions = actions_for(together, 60)
    together.reset([4, 5, 6])
    alone.reset([5])
    both = roll(together, actions)
    assert_same({name: value[:, 1:2] for name, value in both.items()}, roll(alone, actions[:, 1:2]))


def test_seeds():
    hosted = make_hosted("Walk-v0", 2)
    same = hosted.reset([1, 1])
    np.testing.assert_array_equal(same[0], same[1])
    assert (hosted.reset([1, 2]) != same[1]).any()
    first, second = hosted.reset([1, 1]), hosted.reset(None)
    assert (second != first).any()  # goes on with the environments' own random numbers
    np.testing.assert_array_equal(hosted.reset([1, 1]), first)
    np.testing.assert_array_equal(hosted.reset(None), second)


def test_a_vector_environment_that_accepts_one_seed():
    class OneSeed(Batch):
        def reset(self, *, seed=None, options=None):
            if isinstance(seed, list):
                raise TypeError("one seed")
            return super().reset(seed=seed, options=options)

    hosted = Hosted(OneSeed(None, AutoresetMode.DISABLED), "Walk")
    np.testing.assert_array_equal(hosted.reset([4, 9, 9]), hosted.reset([4, 1, 1]))


# Spaces.


@pytest.mark.parametrize(
    ("space", "given", "received"),
    [
        (spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)), [0.5, -0.5], [1.0, 2.5]),
        (spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)), [7.0, -7.0], [2.0, 0.0]),
        (spaces.Box(-1, 1, (2,), np.float64), [0.1, -0.3], [np.float32(0.1), np.float32(-0.3)]),
        (spaces.Box(-0.4, 0.4, (2,), np.float32), [1.0, -1.0], [np.float32(0.4), np.float32(-0.4)]),
        (spaces.Box(-1, 1, (1, 2), np.float32), [0.1, -0.3], [[np.float32(0.1), np.float32(-0.3)]]),
    ],
)
def test_continuous_actions_are_rescaled_and_clipped(space, given, received):
    hosted = hosted_walk(action_space=space)
    hosted.reset([0])
    hosted.step(np.array([given], np.float32))
    (action,) = inner(hosted)[0].actions
    assert action.dtype == space.dtype
    assert action in space
    np.testing.assert_array_equal(action, received)


def test_discrete_actions_begin_at_start():
    hosted = hosted_walk(2, action_space=spaces.Discrete(3, start=-1))
    assert (hosted.spec.discrete, hosted.spec.action_size, hosted.spec.action_shape) == (True, 3, ())
    hosted.reset([0, 1])
    hosted.step(np.array([0, 2], np.int32))
    assert [env.actions for env in inner(hosted)] == [[-1], [1]]


@pytest.mark.parametrize("made", ["by-name", "vector"])
def test_dictionaries_are_flattened_with_one_warning(made):
    space = spaces.Dict(position=spaces.Box(-9, 9, (2,), np.float64), sign=spaces.Discrete(2))
    make = functools.partial(make_hosted, observation_space=space)
    if made == "vector":
        vector = SyncVectorEnv(
            [functools.partial(limited, observation_space=space)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
        )
        make = lambda name, number: Hosted(vector, name)  # noqa: E731
    with pytest.warns(UserWarning, match="observes a Dict: it is flattened to 4 numbers") as caught:
        hosted = make("Walk-v0", 3)
    assert len([one for one in caught if one.category is UserWarning]) == 1
    assert hosted.spec.observation_shape == (4,)
    first, record = reference()
    observation = hosted.reset([5, 6, 7])
    np.testing.assert_array_equal(observation[:, :2], first)
    np.testing.assert_array_equal(observation[:, 2:], np.stack([first[:, 0] <= 0, first[:, 0] > 0], axis=1))
    ours = roll(hosted, actions_for(hosted, 80))
    for name in ("observation", "next_observation"):
        np.testing.assert_array_equal(ours[name][..., :2], record[name])


def test_other_shapes_are_flattened():
    with pytest.warns(UserWarning, match=r"'Walk' observes a Box of shape \(2, 1\): it is flattened to 2 numbers"):
        hosted = hosted_walk(2, observation_space=spaces.Box(-9, 9, (2, 1), np.float32))
    assert hosted.reset([0, 1]).shape == (2, 2)


def test_pictures_stay_pictures():
    class Painted(Walk):
        def _observe(self):
            return np.full((8, 6, 3), 7 + len(self.actions), np.uint8)

    environment = functools.partial(Painted, observation_space=spaces.Box(0, 255, (8, 6, 3), np.uint8))
    hosted = Hosted(SyncVectorEnv([environment] * 2), "Painted")
    assert hosted.spec.observation_shape == (8, 6, 3)
    first = hosted.reset([0, 1])
    assert (first.shape, first.dtype) == ((2, 8, 6, 3), np.float32)
    np.testing.assert_array_equal(first, 7)
    np.testing.assert_array_equal(hosted.step(np.zeros((2, 2), np.float32)).next_observation, 8)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {"observation_space": spaces.Discrete(4)},
            TypeError,
            r"'Walk' observes Discrete\(4\), agents need a vector .*gymnasium.wrappers.FlattenObservation",
        ),
        (
            {"observation_space": spaces.Sequence(spaces.Discrete(4))},
            TypeError,
            "'Walk' observes Sequence.* agents need a vector of fixed size",
        ),
        (
            {"action_space": spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))},
            ValueError,
            r"'Walk' acts within \[0.0, inf\] in dimension 1, agents need finite bounds.*RescaleAction or ClipAction",
        ),
        (
            {"action_space": spaces.MultiDiscrete([2, 3])},
            TypeError,
            r"'Walk' acts in MultiDiscrete\(\[2 3\]\), agents act in a Box of floats or in a Discrete space",
        ),
        ({"action_space": spaces.Box(0, 3, (2,), np.int32)}, TypeError, r"'Walk' acts in Box.*int32"),
    ],
)
def test_spaces_that_are_not_supported(kwargs, error, message):
    with pytest.raises(error, match=message):
        hosted_walk(**kwargs)


# What goes wrong in a step.


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            (0, np.array([0.0, np.nan])),
            FloatingPointError,
            "environment 1 of 'Walk-v0' returned the observation nan at index 1, it must be finite. Its simulation",
        ),
        ((0, np.array([1e300, 0.0])), FloatingPointError, "environment 1 of 'Walk-v0' returned the observation inf"),
        ((1, 1e300), FloatingPointError, "environment 1 of 'Walk-v0' returned the reward inf"),
        ((1, -np.inf), FloatingPointError, "environment 1 of 'Walk-v0' returned the reward -inf, it must be finite"),
        (
            (0, np.zeros(1)),
            ValueError,
            r"environment 1 of 'Walk-v0' returned an observation of shape \(1,\), .* promises \(2,\)",
        ),
    ],
)
def test_bad_steps(spoil, error, message):
    hosted = make_hosted("Walk-v0", 2, disable_env_checker=True)
    hosted.reset([0, 1])
    inner(hosted)[1].spoil = spoil
    with pytest.raises(error, match=message):
        hosted.step(np.zeros((2, 2), np.float32))


def test_bad_actions():
    hosted = make_hosted("Walk-v0", 2)
    hosted.reset([0, 1])
    with pytest.raises(FloatingPointError, match="action for environment 1 of 'Walk-v0' is nan at index 0"):
        hosted.step(np.array([[0, 0], [np.nan, 0]], np.float32))
    with pytest.raises(ValueError, match=r"actions have shape \(2, 1\), 2 of 'Walk-v0' need \(2, 2\)"):
        hosted.step(np.zeros((2, 1), np.float32))


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3], [1, -1]])
def test_bad_seeds(seeds):
    with pytest.raises(ValueError, match=r"seeds are \[.*\], 'Walk-v0' needs 2, each at least 0"):
        make_hosted("Walk-v0", 2).reset(seeds)


def test_wrong_shape_from_a_vector_environment():
    vector = Batch(None, AutoresetMode.DISABLED)
    vector.single_observation_space = spaces.Box(-9, 9, (3,))
    with pytest.raises(ValueError, match=r"'Walk' returned observations of shape \(3, 2\), .* promises \(3, 3\)"):
        Hosted(vector, "Walk").reset([0, 1, 2])


def test_vector_environments_that_ignore_the_mask():
    hosted = Hosted(Batch(None, AutoresetMode.DISABLED, honours_mask=False), "Walk")
    hosted.reset([0, 1, 2])
    with pytest.raises(ValueError, match=r"'Walk' does not honour reset.*changed environments whose"):
        roll(hosted, actions_for(hosted, 40))


def test_vector_environments_that_lose_the_last_observation():
    hosted = Hosted(Batch(AutoresetMode.SAME_STEP, AutoresetMode.DISABLED), "Walk")
    hosted.reset([0, 1, 2])
    with pytest.raises(ValueError, match=r"without info\['final_obs'\], so the last observation of its episodes is"):
        roll(hosted, actions_for(hosted, 40))


def test_processes_that_would_reset_twice():
    class Unstarted(AsyncVectorEnv):
        def __init__(self):
            self.metadata, self.shared_memory, self.num_envs = {"autoreset_mode": "NextStep"}, False, 1

        def __del__(self):
            pass

    with pytest.raises(ValueError, match=r"shared_memory=False and autoreset_mode=NEXT_STEP, which resets an"):
        Hosted(Unstarted(), "Walk")


# Names.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Hoper-v5", r"no environment 'Hoper-v5' in Gymnasium. Nearest: 'Hopper-v5', 'Hopper-v4'.* rljax list"),
        ("hopper-v5", "no environment 'hopper-v5' in Gymnasium. Nearest: 'Hopper-v5'"),
        ("Hopper-v77", "no environment 'Hopper-v77' in Gymnasium. Nearest: 'Hopper-v"),
        ("", "no environment '' in Gymnasium. All of them"),
        ("not a name", "no environment 'not a name' in Gymnasium"),
        ("none/Such-v0", "no environment 'none/Such-v0' in Gymnasium"),
        ("math:Wlk-v0", "no environment 'Wlk-v0' in Gymnasium with 'math'. Nearest: 'Walk-v0'"),
        ("no_such_module:Walk-v0", r"'no_such_module:Walk-v0': the module .* cannot be imported.*PYTHONPATH="),
        ("Hopper-v3", "'Hopper-v3' (cannot be imported. The|needs a package that is not installed.) "),
    ],
)
def test_unknown_names(name, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Gymnasium, that v3 is old
        with pytest.raises(ValueError, match=message):
            make_hosted(name, 1)


def test_names_of_modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_walks", types.ModuleType("my_walks"))
    hosted = make_hosted("my_walks:Walk-v0", 2)
    assert hosted.spec.name == "my_walks:Walk-v0"
    assert hosted.reset([0, 1]).shape == (2, 2)


def test_hosted_names():
    names = adapter.hosted_names()
    assert {"Hopper-v5", "Pendulum-v1", "Walk-v0"} <= set(names)
    assert not {"Hopper-v3", "GymV21Environment-v0"} & set(names)  # they only raise
    assert names == sorted(names)
    register("MyHopper", "gymnasium.envs.mujoco.hopper_v5:HopperEnv")
    assert "MyHopper" in adapter.hosted_names()


def test_models_are_made_in_silence(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_hosted("HalfCheetah-v5", 2)  # its model file has a setting that MuJoCo 4 warns of
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert mujoco.get_mju_user_warning() is None


@pytest.mark.parametrize("number", [0, -2])
def test_too_few(number):
    with pytest.raises(ValueError, match=f"num_envs is {number}, 'Walk-v0' needs at least 1 environment"):
        make_hosted("Walk-v0", number)


def test_missing_packages(monkeypatch):
    def needy(**kwargs):
        raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')

    def broken(**kwargs):
        raise gymnasium.error.Error("out of order")

    register("Needy-v0", needy)
    register("Broken-v0", broken)
    with pytest.raises(ValueError, match=r"'Needy-v0' needs a package that is not installed. Box2D .*\[box2d\]"):
        make_hosted("Needy-v0", 1)
    with pytest.raises(ValueError, match=r"'Broken-v0' cannot be made. out of order"):
        make_hosted("Broken-v0", 1)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ValueError, match="'ALE/Pong-v5' needs a package that is not installed: pip install ale-py"):
        make_hosted("ALE/Pong-v5", 1)


# Saving.

SAVED = [
    "Hopper-v5",
    "HalfCheetah-v5",
    "Ant-v5",
    "Humanoid-v5",
    "Pendulum-v1",
    "CartPole-v1",
    "MountainCarContinuous-v0",
]


def check_continuation(make: Any, before: int, after: int) -> bytes:
    """What a saved state continues equals what went on, across ends of episodes; returns the state."""
    hosted = make()
    hosted.reset(range(hosted.num_envs))
    actions = actions_for(hosted, before + after)
    roll(hosted, actions[:before])
    blob = hosted.save()
    assert blob is not None, hosted.save_failure
    assert hosted.save_failure is None
    expected = roll(hosted, actions[before:])
    assert (expected["terminated"] | expected["truncated"]).any()
    other = make()
    other.reset([77] * other.num_envs)  # has been used for something else
    roll(other, actions[:3])
    for restored in (make(), other):
        observation = restored.restore(blob)
        np.testing.assert_array_equal(observation, hosted_observation(make, actions[:before]))
        assert_same(expected, roll(restored, actions[before:]))
        assert restored.save() is not None
    return blob


def hosted_observation(make: Any, actions: np.ndarray) -> np.ndarray:
    hosted = make()
    hosted.reset(range(hosted.num_envs))
    return roll(hosted, actions)["observation"][-1]


@pytest.mark.parametrize("name", SAVED)
def test_restored_continues_bit_for_bit(name):
    blob = check_continuation(functools.partial(make_hosted, name, 2, max_episode_steps=35), before=23, after=40)
    assert len(blob) < 2 * 150_000


@pytest.mark.parametrize("mode", AutoresetMode)
def test_restored_continues_in_gymnasiums_own_vector_environment(mode):
    check_continuation(
        lambda: Hosted(SyncVectorEnv([limited] * 2, copy=False, autoreset_mode=mode), "Walk"), before=20, after=40
    )


def test_restored_continues_where_an_episode_has_just_ended():
    make = functools.partial(make_hosted, "Hopper-v5", 1, max_episode_steps=10)
    for before in (1, 10):
        check_continuation(make, before=before, after=25)


def test_restored_continues_with_wrappers():
    def wrapped():
        env = gymnasium.wrappers.TransformObservation(Walk(), lambda observation: 2 * observation, None)
        env = gymnasium.wrappers.NormalizeObservation(gymnasium.wrappers.TimeLimit(env, 9))
        return gymnasium.wrappers.StickyAction(env, 0.3)

    check_continuation(lambda: Hosted(SyncVectorEnv([wrapped] * 2), "Walk"), before=20, after=40)


class Heavier(gymnasium.Wrapper):
    """Changes its model at every reset, and keeps a name for the simulator and a sampled goal."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.simulator = self.unwrapped.data  # pyright: ignore[reportAttributeAccessIssue]
        self.goal = 0.0

    def reset(self, *, seed=None, options=None):
        result = self.env.reset(seed=seed, options=options)
        model: Any = self.simulator.model
        model.body_mass[1] = self.np_random.uniform(1, 2)
        model.opt.gravity[2] = self.np_random.uniform(-12, -8)
        model.opt.timestep = self.np_random.uniform(0.001, 0.002)
        self.goal = self.np_random.uniform(-1, 1)
        return result

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) + self.goal * self.simulator.qpos[0], terminated, truncated, info


def test_restored_continues_with_a_changed_model():
    def make():
        return Hosted(SyncVectorEnv([lambda: Heavier(gymnasium.make("Hopper-v5", max_episode_steps=9))] * 2), "Heavy")

    check_continuation(make, before=20, after=30)


def test_all_of_a_simulator_is_restored():
    one, two = (make_hosted("Humanoid-v5", 1) for _ in range(2))
    one.reset([0])
    contacts, limits = 0, 0
    for action in actions_for(one, 40):
        one.step(action)
        two.restore(one.save() or b"")
        ours, theirs = inner(two)[0].data, inner(one)[0].data
        # Without what every step computes anew for its constraints: some versions leave part of it unset.
        anew = ("_", "efc_", "i", "map_", "dof_island", "tree_island")
        for name in [name for name in dir(theirs) if not name.startswith(anew)]:
            value = getattr(theirs, name)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, getattr(ours, name), err_msg=name)
            elif isinstance(value, (int, float)) and name not in ("signature", "pbase", "threadpool"):  # addresses
                assert value == getattr(ours, name), name
        np.testing.assert_array_equal(ours.contact.dist, theirs.contact.dist)
        contacts, limits = contacts + ours.ncon, limits + ours.nl
    assert contacts > 0
    assert limits > 0


def test_restored_continues_in_another_process(tmp_path):
    program = """
import sys, numpy as np
from rljax.envs.gymnasium import make_hosted
hosted = make_hosted("Humanoid-v5", 2, max_episode_steps=30)
hosted.restore(open(sys.argv[1], "rb").read())
steps = [hosted.step(action) for action in np.load(sys.argv[2])]
np.savez(sys.argv[3], **{name: np.stack([getattr(step, name) for step in steps]) for name in sys.argv[4:]})
"""
    hosted = make_hosted("Humanoid-v5", 2, max_episode_steps=30)
    hosted.reset([1, 2])
    actions = actions_for(hosted, 50)
    roll(hosted, actions[:20])
    (tmp_path / "state").write_bytes(hosted.save() or b"")
    np.save(tmp_path / "actions.npy", actions[20:])
    expected = roll(hosted, actions[20:])
    files = [str(tmp_path / name) for name in ("state", "actions.npy", "steps.npz")]
    subprocess.run([sys.executable, "-c", program, *files, *FIELDS], check=True)
    with np.load(files[2]) as steps:
        for name in FIELDS:
            np.testing.assert_array_equal(steps[name], expected[name], err_msg=name)


def spoilt(attribute: Any) -> Hosted:
    hosted = make_hosted("Hopper-v5", 1)
    hosted.reset([0])
    (env,) = inner(hosted)
    env.extra = attribute(env)
    return hosted


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (lambda env: [lambda: 0], "attribute 'extra' of HopperEnv cannot be saved: Can't (pickle|get local object)"),
        (lambda env: sys.stdout, "the attribute 'extra' of HopperEnv cannot be saved: cannot pickle"),
        (lambda env: env.data.qpos, "'extra' of HopperEnv cannot be saved: it holds a ndarray that a"),
        (lambda env: env.data.qpos[1:], "'extra' of HopperEnv cannot be saved: it holds a ndarray that a"),
        (lambda env: [mujoco.MjData(env.model)], "'extra' of HopperEnv cannot be saved: it holds a MjData that a copy"),
        (lambda env: gymnasium.make("CartPole-v1"), "'extra' of HopperEnv cannot be saved: it holds a TimeLimit that"),
    ],
)
def test_states_that_cannot_be_saved(attribute, reason):
    hosted = spoilt(attribute)
    assert hosted.save() is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(hosted.save_failure)
    del inner(hosted)[0].extra
    assert hosted.save() is not None
    assert hosted.save_failure is None


def test_references_stay_references():
    one, two = spoilt(lambda env: [env, env.data, env.np_random]), make_hosted("Hopper-v5", 1)
    two.restore(one.save() or b"")
    (env,) = inner(two)
    assert env.extra[0] is env
    assert env.extra[1] is env.data
    assert env.extra[2] is env.np_random


def test_what_the_saved_state_lacks_is_removed():
    one, two = make_hosted("Hopper-v5", 1), spoilt(lambda env: 3)
    one.reset([0])
    two.restore(one.save() or b"")
    assert not hasattr(inner(two)[0], "extra")


def test_nothing_to_save_before_the_first_reset():
    with pytest.raises(ValueError, match=r"'Walk-v0' has no state before its first reset. Call reset"):
        make_hosted("Walk-v0", 1).save()


class Extra:
    """What code that has changed no longer holds."""


def test_states_that_do_not_fit(monkeypatch):
    hosted = make_hosted("Hopper-v5", 2)
    hosted.reset([0, 1])
    blob = hosted.save() or b""
    with pytest.raises(ValueError, match=r"saved state is of 2 x TimeLimit.*HopperEnv, 'Hopper-v5' is 1 x"):
        make_hosted("Hopper-v5", 1).restore(blob)
    with pytest.raises(ValueError, match=r"saved state is of 2 x .*HopperEnv, 'Ant-v5' is 2 x .*AntEnv. Make"):
        make_hosted("Ant-v5", 2).restore(blob)
    inner(hosted)[0].extra = Extra()
    with_extra = hosted.save() or b""
    monkeypatch.delattr(sys.modules[__name__], "Extra")
    with pytest.raises(ValueError, match=r"the saved state does not fit 'Hopper-v5': AttributeError.* the same code"):
        make_hosted("Hopper-v5", 2).restore(with_extra)
    with pytest.raises(ValueError, match=r"this is not a state of 'Hopper-v5' saved by Hosted.save"):
        hosted.restore(blob[:-20])
    with pytest.raises(ValueError, match="'Walk' cannot be restored: Batch keeps the state of its environments out"):
        Hosted(Batch(None, AutoresetMode.DISABLED), "Walk").restore(blob)
    monkeypatch.setattr(mujoco, "__version__", "1.2.3")
    with pytest.raises(ValueError, match=r"was saved with mujoco .*, this is 1.2.3.*pip install mujoco=="):
        hosted.restore(blob)


# Pictures, and the end.


def test_pictures():
    hosted = make_hosted("Walk-v0", 2, render_mode="rgb_array")
    hosted.reset([0, 1])
    picture = hosted.render()
    assert (picture.shape, picture.dtype) == ((4, 6, 3), np.uint8)
    with pytest.raises(ValueError, match="'Walk-v0' was made with render_mode=None, pictures need 'rgb_array'"):
        make_hosted("Walk-v0", 1).render()


def test_pictures_that_fail(monkeypatch):
    hosted = make_hosted("Walk-v0", 1, render_mode="rgb_array", disable_env_checker=True)
    hosted.reset([0])
    monkeypatch.setattr(Walk, "render", lambda self: None)
    with pytest.raises(ValueError, match="'Walk-v0' returned no picture for render_mode='rgb_array'"):
        hosted.render()
    monkeypatch.setattr(Walk, "render", lambda self: 1 / 0)
    with pytest.raises(ValueError, match="'Walk-v0' could not be rendered, with ZeroDivisionError: division by zero"):
        hosted.render()

    register("Blind-v0", lambda: Walk())
    with pytest.raises(ValueError, match=r"'Blind-v0' cannot be rendered as 'rgb_array': .*unexpected keyword"):
        make_hosted("Blind-v0", 1, render_mode="rgb_array")


@pytest.mark.parametrize(
    ("libraries", "given", "chosen"),
    [
        ({"EGL", "OSMesa"}, {}, "egl"),
        ({"OSMesa"}, {}, "osmesa"),
        (set(), {}, None),
        ({"EGL"}, {"DISPLAY": ":0"}, None),
        ({"EGL"}, {"MUJOCO_GL": "osmesa"}, "osmesa"),
    ],
)
def test_how_mujoco_draws_without_a_display(monkeypatch, libraries, given, chosen):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: name if name in libraries else None)
    monkeypatch.setattr(os, "environ", dict(given))
    make_hosted("Walk-v0", 1, render_mode="rgb_array")
    assert os.environ.get("MUJOCO_GL") == chosen


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="needs EGL")
def test_pictures_of_mujoco_without_a_display():
    program = "from rljax.envs.gymnasium import make_hosted; h = make_hosted('Hopper-v5', 1, render_mode='rgb_array');"
    program += "h.reset([0]); picture = h.render(); h.close(); print(picture.shape, picture.dtype, picture.std() > 1)"
    hidden = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=hidden)
    assert done.stdout.strip() == "(480, 480, 3) uint8 True", done.stderr


def test_closing_twice_does_no_harm():
    for hosted in (make_hosted("Pendulum-v1", 2), hosted_walk(2)):
        hosted.reset([0, 1])
        hosted.close()
        hosted.close()
