"""Atari games, compared with a console that the test steps itself."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from rljax import envs
from rljax.envs.host import atari
from rljax.learning.loop import Training
from rljax.runs import experiments


def actions(number: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(size, size=(number, 1))


def console(seed: int) -> Any:
    """Breakout without preprocessing."""
    importlib.import_module("ale_py")
    made = gymnasium.make(
        "ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, obs_type="grayscale"
    )
    made.reset(seed=seed)
    return made


def averaged(frame: np.ndarray) -> np.ndarray:
    """A frame [210, 160] resized to 84 x 84 through a finer grid."""
    fine = np.repeat(np.repeat(frame.astype(np.float64), 2, axis=0), 21, axis=1)
    return fine.reshape(84, 5, 84, 40).mean(axis=(1, 3))


def test_pictures_shrink_to_the_mean_of_what_they_cover() -> None:
    frame = np.random.default_rng(0).integers(256, size=(210, 160)).astype(np.uint8)
    assert np.abs(atari.shrunk(frame) - averaged(frame)).max() <= 0.5 + 1e-3
    np.testing.assert_array_equal(atari.shrunk(np.full((250, 160), 77, np.uint8)), 77)


def test_observations_are_those_of_a_console_driven_by_hand() -> None:
    hosted = envs.make_hosted("atari/Breakout", 1)
    assert (hosted.spec.observation_shape, hosted.spec.stack) == ((84, 84, 4), 4)
    assert (hosted.spec.discrete, hosted.spec.action_size, hosted.spec.max_episode_steps) == (
        True,
        4,
        27_000,
    )
    ours = [hosted.reset([3])]
    played = actions(40, 4)
    ours += [hosted.step(action).next_observation for action in played]

    made = console(3)
    for _ in range(int(made.unwrapped.np_random.integers(1, 31))):
        made.step(0)
    pictures = []
    for action in (1, 2, *played[:, 0]):
        frames = [made.step(int(action))[0] for _ in range(4)]
        pictures.append(np.rint(averaged(np.maximum(frames[2], frames[3]))))
        if len(pictures) == 2:  # the first observation shows the present alone
            pictures = [pictures[1]] * 4
    assert {observation.dtype for observation in ours} == {np.dtype(np.uint8)}
    for time, observation in enumerate(ours):
        theirs = np.stack(pictures[time : time + 4], axis=-1)
        assert np.abs(observation[0] - theirs).max() <= 1, f"at {time}"  # a half rounds either way
    assert len({observation.tobytes() for observation in ours}) > 20


@pytest.mark.parametrize(("game", "stack"), [("atari/Breakout", 4), ("atari-sticky/Breakout", 4)])
def test_a_run_stores_each_picture_once(game: str, stack: int) -> None:
    """Evaluations play whole games, whose pictures are not forgotten with a life."""
    settings: Any = {"config": {"replay_size": 1_000, "warmup_steps": 100}}
    training = Training(experiments.prepare("dqn", game, 2_000, **settings))
    assert training.spec.stack == stack
    assert training.driver.hosted.spec.stack == stack
    training.close()


@pytest.mark.slow
def test_a_life_ends_an_episode_in_training_and_a_game_in_evaluation() -> None:
    lives, games = (
        envs.make_hosted("atari/Breakout", 1),
        envs.make_hosted("atari-games/Breakout", 1),
    )
    np.testing.assert_array_equal(lives.reset([1]), games.reset([1]))
    rewards, deaths, scores, lengths = 0.0, 0, [], []
    for action in actions(500, 4):
        life, game = lives.step(action), games.step(action)
        np.testing.assert_array_equal(life.observation, game.observation)
        np.testing.assert_array_equal(life.reward, game.reward)
        rewards += float(life.reward[0])
        deaths += int(life.terminated[0])
        if game.terminated[0]:
            assert life.terminated[0]
            scores.append((rewards, float(game.episode_return[0])))
            lengths.append((deaths, int(game.episode_length[0])))
            rewards, deaths = 0.0, 0
        assert not life.truncated[0]
    assert len(scores) >= 2
    assert [ours for ours, _ in scores] == [reported for _, reported in scores]
    assert sum(score for score, _ in scores) > 0
    assert all(number == 5 for number, _ in lengths), "Breakout has 5 lives"


@pytest.mark.slow
def test_sticky_games_are_a_console_driven_by_hand_from_its_first_frame() -> None:
    """4 frames are a step, and an episode is a game with all of its lives."""
    hosted = envs.make_hosted("atari-sticky/Breakout", 1)
    assert (hosted.spec.stack, hosted.spec.max_episode_steps) == (4, 27_000)
    assert envs.evaluated("atari-sticky/Breakout") == "atari-sticky/Breakout"
    made = gymnasium.make(
        "ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.25, obs_type="grayscale"
    )
    first, _ = made.reset(seed=3)
    np.testing.assert_array_equal(hosted.reset([3])[0, :, :, 3], atari.shrunk(first))
    plain = console(3)
    played, lives, different, score = actions(700, 4)[:, 0], 5, False, 0.0
    for action in played:
        frames, rewards = [], []
        for _ in range(4):
            frame, reward, over, _, _ = made.step(int(action))
            frames.append(frame)
            rewards.append(reward)
            different |= bool(np.any(frame != plain.step(int(action))[0]))
            if over:
                break
        step = hosted.step(np.array([action]))
        shown = np.maximum(*frames[-2:]) if len(frames) == 4 else frames[-1]
        if not over:
            np.testing.assert_array_equal(step.next_observation[0, :, :, 3], atari.shrunk(shown))
        score += sum(rewards)
        lives = min(lives, made.unwrapped.ale.lives())
        assert bool(step.terminated[0]) == over
        if over:
            break
    assert over
    assert lives == 0
    assert different, "a console without sticky actions would have gone another way"
    assert float(step.episode_return[0]) == score


@pytest.mark.slow
@pytest.mark.parametrize("family", ["atari", "atari-sticky"])
def test_games_continue_exactly(family: str) -> None:
    hosted = envs.make_hosted(f"{family}/Breakout", 2)
    hosted.reset([1, 2])
    played = np.repeat(actions(400, 4), 2, axis=1)
    for action in played[:150]:
        hosted.step(action)
    saved = hosted.save()
    assert saved is not None
    assert len(saved) < 100_000
    other = envs.make_hosted(f"{family}/Breakout", 2)
    other.restore(saved)
    ends = 0
    for action in played[150:]:
        ours, theirs = hosted.step(action), other.step(action)
        for name in ("observation", "reward", "terminated", "episode_return"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        ends += int(ours.terminated.sum())
    assert ends > (4 if family == "atari" else 0)


def test_names() -> None:
    assert {"atari/Pong", "atari/Breakout"} <= set(envs.names()["atari"])
    assert envs.evaluated("atari/Pong") == envs.evaluated("atari-games/Pong") == "atari-games/Pong"
    assert envs.task("atari/Pong") == "atari/Pong"
    with pytest.raises(
        ValueError, match=r"no environment 'atari/pong' in the Arcade.*Nearest: 'atari/Pong'"
    ):
        envs.make_hosted("atari/pong", 1)


def test_an_absent_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(
        ValueError, match=r"'atari/' environments need the package 'ale-py'.*'rljax-suite\[atari\]'"
    ):
        envs.make_hosted("atari/Pong", 1)


@pytest.mark.slow
def test_says_nothing_of_its_own() -> None:
    code = "from rljax import envs; envs.make_hosted('atari/Pong', 1).reset([0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
