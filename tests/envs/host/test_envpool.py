"""EnvPool's Atari games."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rljax import envs
from rljax.learning.loop import Training
from rljax.runs import experiments

pytest.importorskip("envpool", reason="envpool is not installed: make test-extras")
pytestmark = pytest.mark.filterwarnings("ignore:.* channels first:UserWarning")


def test_games_show_stacks_of_pictures() -> None:
    games = envs.make_hosted("envpool/Breakout-v5", 3)
    assert games.spec.observation_shape == (84, 84, 4)
    assert games.spec.observation_dtype == "uint8"
    assert (games.spec.discrete, games.spec.action_size, games.spec.stack) == (True, 4, 4)
    observation = games.reset([0, 1, 2])
    np.testing.assert_array_equal(observation, np.repeat(observation[..., :1], 4, axis=-1))
    generator, ends = np.random.default_rng(0), 0
    for _ in range(600):
        step = games.step(generator.integers(4, size=3, dtype=np.int32))
        np.testing.assert_array_equal(step.next_observation[..., :3], observation[..., 1:])
        ended = step.terminated | step.truncated
        np.testing.assert_array_equal(step.observation[~ended], step.next_observation[~ended])
        first = step.observation[ended]
        np.testing.assert_array_equal(first, np.repeat(first[..., :1], 4, axis=-1))
        observation, ends = step.observation, ends + ended.sum()
    games.close()
    assert ends > 3, "the test has seen games begin anew"


def test_lives_are_episodes_of_one_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode begins with the lives that the last one left."""
    games = envs.make_hosted("envpool-lives/Breakout-v5", 2)
    step, counts = games.vector_env.step, np.zeros(2)

    def recorded(actions: Any) -> Any:
        result = step(actions)
        counts[:] = result[4]["lives"]
        return result

    monkeypatch.setattr(games.vector_env, "step", recorded)
    assert games.spec.stack == 1, "the first pictures of a life are the last of another"
    games.reset([3, 4])
    generator, lives, begun = np.random.default_rng(0), [5, 5], []
    for _ in range(400):
        ended = games.step(generator.integers(4, size=2, dtype=np.int32)).terminated
        for i in np.flatnonzero(ended):
            assert counts[i] == lives[i] - 1
            lives[i] = int(counts[i]) or 5
            begun.append(lives[i])
    games.close()
    assert {1, 2, 3, 4, 5} <= set(begun)


@pytest.mark.parametrize(("game", "stack"), [("envpool/Pong-v5", 4), ("envpool-lives/Pong-v5", 1)])
def test_a_run_stores_the_pictures_that_its_games_show(game: str, stack: int) -> None:
    settings: Any = {"config": {"replay_size": 1_000, "warmup_steps": 100}}
    training = Training(experiments.prepare("dqn", game, 2_000, **settings))
    assert training.spec.stack == training.driver.hosted.spec.stack == stack
    training.close()


def test_lives_are_of_atari_games_and_evaluations_play_whole_games() -> None:
    assert envs.evaluated("envpool-lives/Pong-v5") == "envpool/Pong-v5"
    assert envs.evaluated("with-last-step/envpool-lives/Pong-v5") == (
        "with-last-step/envpool/Pong-v5"
    )
    with pytest.raises(ValueError, match=r"no Atari game .*Use: envpool/Hopper-v4"):
        envs.make_hosted("envpool-lives/Hopper-v4", 1)


def test_numbers_in_info_become_signals() -> None:
    """As a pool of EnvPool's own with the same seeds gives them; episodes sum them."""
    import envpool

    hosted = envs.make_hosted("signals-x_velocity,reward_ctrl/envpool/HalfCheetah-v4", 2)
    assert [(part.name, part.shape) for part in hosted.spec.signals] == [
        ("reward_ctrl", ()),
        ("x_velocity", ()),
    ]
    hosted.reset([3, 4])
    plain = envpool.make("HalfCheetah-v4", env_type="gymnasium", num_envs=2, seed=[3, 4])
    plain.reset()
    generator, sums = np.random.default_rng(0), {"x_velocity": 0.0, "reward_ctrl": 0.0}
    for _ in range(1_000):  # a whole episode
        action = generator.uniform(-1, 1, (2, 6)).astype(np.float32)
        step, info = hosted.step(action), plain.step(action)[4]
        sums = {name: total + info[name] for name, total in sums.items()}
        for name, total in sums.items():
            np.testing.assert_allclose(step.signals[name], info[name], rtol=1e-5)
            np.testing.assert_allclose(step.episode_signals[name], total, rtol=1e-3, atol=1e-3)
    hosted.close()
    plain.close()
    assert step.truncated.all()


def test_numbers_that_a_pool_does_not_give_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^'envpool/HalfCheetah-v4' is to give the signal 'speed', .* x_velocity"
    ):
        envs.make_hosted("signals-speed/envpool/HalfCheetah-v4", 1)
