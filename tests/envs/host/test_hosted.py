"""The same steps whatever the autoreset mode."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rljax.envs.host.gymnasium import make_hosted
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.serial import Serial
from tests.envs.host import buttons
from tests.envs.host.walk import (
    FIELDS,
    Batch,
    actions_for,
    assert_same,
    hosted_walk,
    inner,
    limited,
    roll,
)

pytestmark = [
    pytest.mark.usefixtures("walk_is_registered"),
    pytest.mark.filterwarnings("ignore:.*does not say how it resets itself"),
]


def test_steps_by_hand():
    """Gymnasium's own loop: one environment, seeded once."""
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
        vector = Batch(mode if kind == "own" else None, mode)
    else:
        vector = SyncVectorEnv([limited] * 3, copy=kind != "sync-in-place", autoreset_mode=mode)
        if kind == "wrapped":
            vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector)
    hosted = Hosted(vector, "Walk-v0")
    first, record = reference()
    np.testing.assert_array_equal(hosted.reset([5, 6, 7]), first)
    assert_same(record, roll(hosted, actions_for(hosted, 80)))


@pytest.mark.slow_after(1)
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
    hosted = make_hosted(
        "Walk-v0", 3, observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float32)
    )
    hosted.reset([0, 1, 2])
    steps, copies = [], []
    for action in actions_for(hosted, 40):
        steps.append(hosted.step(action))
        copies.append({name: getattr(steps[-1], name).copy() for name in FIELDS})
    for step, copy in zip(steps, copies, strict=True):
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(step, name), copy[name])


def test_seeds():
    hosted = make_hosted("Walk-v0", 2)
    same = hosted.reset([1, 1])
    np.testing.assert_array_equal(same[0], same[1])
    assert (hosted.reset([1, 2]) != same[1]).any()
    first, second = hosted.reset([1, 1]), hosted.reset(None)
    assert (second != first).any()
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


@pytest.mark.parametrize("made", ["by-name", "vector"])
def test_dictionaries_are_flattened_with_one_warning(made):
    space = spaces.Dict(position=spaces.Box(-9, 9, (2,), np.float64), sign=spaces.Discrete(2))
    make = hosted_walk if made == "vector" else functools.partial(make_hosted, "Walk-v0")
    with pytest.warns(UserWarning, match="observes a Dict: it is flattened to 4 numbers") as caught:
        hosted = make(3, observation_space=space)
    assert len([one for one in caught if issubclass(one.category, UserWarning)]) == 1
    assert hosted.spec.observation_shape == (4,)
    observation, (first, _) = hosted.reset([5, 6, 7]), reference()
    np.testing.assert_array_equal(observation[:, :2], first)
    np.testing.assert_array_equal(observation[:, 3], first[:, 0] > 0)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            (0, np.array([0.0, np.nan])),
            FloatingPointError,
            (
                "environment 1 of 'Walk-v0' returned the observation nan at index 1, it must be "
                "finite. Its simulation"
            ),
        ),
        (
            (0, np.array([1e300, 0.0])),
            FloatingPointError,
            "environment 1 of 'Walk-v0' returned the observation inf",
        ),
        ((1, 1e300), FloatingPointError, "environment 1 of 'Walk-v0' returned the reward inf"),
        (
            (1, -np.inf),
            FloatingPointError,
            "environment 1 of 'Walk-v0' returned the reward -inf, it must be finite",
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
    with pytest.raises(
        FloatingPointError, match="action for environment 1 of 'Walk-v0' is nan at index 0"
    ):
        hosted.step(np.array([[0, 0], [np.nan, 0]], np.float32))
    with pytest.raises(
        ValueError, match=r"actions have shape \(2, 1\), 2 of 'Walk-v0' need \(2, 2\)"
    ):
        hosted.step(np.zeros((2, 1), np.float32))


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3], [1, -1]])
def test_bad_seeds(seeds):
    with pytest.raises(ValueError, match=r"seeds are \[.*\], 'Walk-v0' needs 2, each at least 0"):
        make_hosted("Walk-v0", 2).reset(seeds)


def test_wrong_shape_from_a_vector_environment():
    vector = Batch(None, AutoresetMode.DISABLED)
    vector.single_observation_space = spaces.Box(-9, 9, (3,))
    with pytest.raises(
        ValueError, match=r"'Walk' returned observations of shape \(3, 2\), .* promises \(3, 3\)"
    ):
        Hosted(vector, "Walk").reset([0, 1, 2])


def test_vector_environments_that_ignore_the_mask():
    hosted = Hosted(Batch(None, AutoresetMode.DISABLED, honours_mask=False), "Walk")
    hosted.reset([0, 1, 2])
    with pytest.raises(ValueError, match=r"'Walk' ignores reset.*changed environments whose"):
        roll(hosted, actions_for(hosted, 40))


def test_vector_environments_that_lose_the_last_observation():
    hosted = Hosted(Batch(AutoresetMode.SAME_STEP, AutoresetMode.DISABLED), "Walk")
    hosted.reset([0, 1, 2])
    with pytest.raises(
        ValueError, match=r"without info\['final_obs'\], so the last observation of its episodes is"
    ):
        roll(hosted, actions_for(hosted, 40))


def test_processes_that_would_reset_twice():
    class Unstarted(AsyncVectorEnv):
        def __init__(self):
            self.metadata, self.shared_memory, self.num_envs = (
                {"autoreset_mode": "NextStep"},
                False,
                1,
            )

        def __del__(self):
            pass

    with pytest.raises(
        ValueError, match=r"shared_memory=False and autoreset_mode=NEXT_STEP, which resets an"
    ):
        Hosted(Unstarted(), "Walk")


def test_closing_twice_does_no_harm():
    for hosted in (make_hosted("Pendulum-v1", 2), hosted_walk(2)):
        hosted.reset([0, 1])
        hosted.close()
        hosted.close()


MODES = (AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_masks_come_with_observations(mode):
    made = SyncVectorEnv(
        [lambda: gymnasium.wrappers.TimeLimit(buttons.Masked(), 3)] * 2, autoreset_mode=mode
    )
    hosted = Hosted(made, "Masked")
    assert hosted.spec.masked
    seen = hosted.reset([0, 1])
    for _ in range(8):
        shown = seen["observation"][..., 0, 0].argmax(axis=1)
        expected = np.arange(3) != (shown[:, None] + 1) % 3
        np.testing.assert_array_equal(seen["action_mask"], expected)
        step = hosted.step(shown.astype(np.int32))
        np.testing.assert_array_equal(step.reward, 1.0)
        picture = step.next_observation["observation"]
        assert (picture.shape, picture.dtype) == ((2, 8, 8, 3), np.uint8)
        seen = step.observation


def test_dictionaries_and_masks_are_saved_exactly():
    def one():
        return Hosted(
            Serial([gymnasium.wrappers.TimeLimit(buttons.Masked(), 3) for _ in range(2)], "Masked"),
            "Masked",
        )

    hosted, other = one(), one()
    hosted.reset([0, 1])
    hosted.step(
        np.array([0, 0], np.int32)
        + hosted._observation["action_mask"].argmax(axis=1).astype(np.int32)
    )
    before = other.restore(hosted.save())
    assert_same(before, hosted._observation)
    for _ in range(5):
        action = hosted._observation["action_mask"].argmax(axis=1).astype(np.int32)
        ours, theirs = hosted.step(action), other.step(action)
        assert_same(ours.observation, theirs.observation)
        np.testing.assert_array_equal(ours.reward, theirs.reward)


def test_several_actions_reach_their_environments():
    with pytest.warns(
        UserWarning, match=r"image \[8, 8, 3\], vector \[4\]\. They do not see the text under"
    ):
        hosted = Hosted(Serial([buttons.Several() for _ in range(3)], "Several"), "Several")
    seen = hosted.reset([0, 1, 2])
    shown = seen["vector"].argmax(axis=1).astype(np.int32)
    action = np.stack([shown, np.array([1, 0, 1], np.int32), np.zeros(3, np.int32)], axis=1)
    np.testing.assert_array_equal(hosted.step(action).reward, [2, 1, 2])


def test_the_last_observation_has_an_older_name_too():
    class Older(Batch):
        def step(self, actions):
            *others, info = super().step(actions)
            if "final_obs" in info:
                info["final_observation"] = info.pop("final_obs")
            return *others, info

    with pytest.warns(UserWarning, match="'Walk' does not say how it resets itself"):
        older = Hosted(Older(None, AutoresetMode.SAME_STEP), "Walk")
    ours = Hosted(Batch(AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP), "Walk")
    actions = actions_for(ours, 30)
    older.reset([0, 1, 2]), ours.reset([0, 1, 2])
    assert_same(roll(older, actions), roll(ours, actions))
