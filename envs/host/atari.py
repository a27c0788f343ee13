"""Adapter: Atari games of the Arcade Learning Environment; docs/environments.md has their
preprocessing.

References: Mnih et al., Nature 518 (2015); Machado et al., arXiv:1709.06009.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rljax.envs.environment import import_package, unknown
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.serial import Serial
from rljax.system.packages import install_command

REPEATS = 4  # frames per action
SIZE = 84  # pixels, height and width
PICTURES = 4  # pictures in an observation
MOST_IDLE = 30  # most frames without an action at the beginning of a game
LIMIT = 27_000  # steps of a game
STICKY = 0.25  # probability that the console repeats its last action; Machado et al.


class Preprocessed(gymnasium.Wrapper):
    """A game as agents see it: observations uint8 [84, 84, 4], the newest picture last.

    With `whole_games` or `untouched`, an episode is a game. After a lost life, `whole_games` begins
    the next within the same step; if `untouched`, only the agent presses buttons.
    """

    def __init__(self, env: gymnasium.Env, whole_games: bool, untouched: bool = False) -> None:
        super().__init__(env)
        self.whole_games, self.untouched = whole_games, untouched
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE, PICTURES), np.uint8)
        meanings: Any = env.unwrapped.get_action_meanings()  # pyright: ignore[reportAttributeAccessIssue]
        self._begins_with_fire = len(meanings) >= 3 and meanings[1] == "FIRE"
        self._pictures = np.zeros((SIZE, SIZE, PICTURES), np.uint8)
        self._lives, self._over = 0, True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Begin a game, or the next life of the running game."""
        if self._over or seed is not None:
            self._begin_game(seed)
            self._begin_life()
        else:
            self._leave_life()
        if self._over:
            self._begin_game()
        return self._pictures.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat one action for `REPEATS` frames."""
        lives = self._lives
        reward = self._press(int(action))
        lost = not self._over and 0 < self._lives < lives and not self.untouched
        if lost and self.whole_games:
            reward += self._leave_life()
        ended = self._ale.game_over(with_truncation=False) or (lost and not self.whole_games)
        return self._pictures.copy(), reward, ended, self._ale.game_truncated(), {}

    @property
    def _ale(self) -> Any:
        return self.env.unwrapped.ale  # pyright: ignore[reportAttributeAccessIssue]

    def _begin_game(self, seed: int | None = None) -> None:
        self.env.reset(seed=seed)
        nothing = self._ale.getMinimalActionSet()[0]
        for _ in range(0 if self.untouched else int(self.np_random.integers(1, MOST_IDLE + 1))):
            self._ale.act(nothing)
            if self._ale.game_over():
                self._ale.reset_game()
        self._lives, self._over = self._ale.lives(), False
        self._see(self._ale.getScreenGrayscale())
        self._forget()

    def _leave_life(self) -> float:
        """Pass the frames in which a life was lost, and begin the next."""
        return self._press(0) + self._begin_life()

    def _begin_life(self) -> float:
        reward = 0.0
        for action in (1, 2) if self._begins_with_fire and not self.untouched else ():
            if not self._over:
                reward += self._press(action)
        self._forget()
        return reward

    def _forget(self) -> None:
        self._pictures[...] = self._pictures[:, :, -1:]

    def _press(self, action: int) -> float:
        pressed = self._ale.getMinimalActionSet()[action]
        reward, frames = 0.0, []
        for frame in range(REPEATS):
            reward += self._ale.act(pressed)
            self._over = bool(self._ale.game_over())
            if self._over or frame >= REPEATS - 2:
                frames.append(self._ale.getScreenGrayscale())
            if self._over:
                break
        self._lives = self._ale.lives()
        self._see(functools.reduce(np.maximum, frames))
        return reward

    def _see(self, frame: np.ndarray) -> None:
        self._pictures[:, :, :-1] = self._pictures[:, :, 1:]
        self._pictures[:, :, -1] = shrunk(frame)


def shrunk(frame: np.ndarray) -> np.ndarray:
    """A frame [H, W] uint8 as 84 x 84: each pixel is the mean of the area that it covers."""
    lower = _averaged(frame.astype(np.float32))
    return np.rint(_averaged(lower.T).T).astype(np.uint8)


def _averaged(picture: np.ndarray) -> np.ndarray:
    """A picture [N, M] resized to [84, M]."""
    rows, shares = _covered(len(picture))
    return (picture[rows] * shares[:, :, None]).sum(axis=0)


@functools.cache
def _covered(length: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices [K, 84] of the old pixels that each of 84 new ones covers, and weights."""
    ends = np.arange(SIZE + 1) * length / SIZE
    most = int(np.ceil(length / SIZE)) + 1
    rows = np.floor(ends[:-1]).astype(int) + np.arange(most)[:, None]
    covered = np.minimum(ends[1:], rows + 1) - np.maximum(ends[:-1], rows)
    weights = np.maximum(covered, 0.0) * SIZE / length
    return np.minimum(rows, length - 1), weights.astype(np.float32)


def names() -> list[str]:
    """The names of all games. Raises `MissingPackageError`."""
    ale = import_package("atari", "ale_py", install_command("atari"), package="ale-py")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # no banner
    games = (name.removeprefix("ALE/") for name in gymnasium.registry if name.startswith("ALE/"))
    return sorted(f"atari/{game.removesuffix('-v5')}" for game in games if game.endswith("-v5"))


def make_hosted(name: str, num_envs: int, **options: Any) -> Hosted:
    """Make `num_envs` games called `name`, such as "atari/Pong".

    `options` go to `gymnasium.make`. Raises `ValueError` where there is no such game.
    """
    family, _, game = name.partition("/")
    known = names()
    if f"atari/{game}" not in known:
        raise unknown(name, "the Arcade Learning Environment", known)

    sticky, whole_games = family == "atari-sticky", family == "atari-games"

    def one() -> gymnasium.Env:
        made = gymnasium.make(
            f"ALE/{game}-v5",
            frameskip=1,
            repeat_action_probability=STICKY if sticky else 0.0,
            disable_env_checker=True,
            max_num_frames_per_episode=REPEATS * LIMIT,
            **options,
        )
        return TimeLimit(Preprocessed(made, whole_games, sticky), LIMIT)

    hosted = Hosted(Serial([one() for _ in range(num_envs)], name), name)
    if not whole_games:  # there the pictures are also forgotten where a life ends
        hosted.spec = dataclasses.replace(hosted.spec, stack=PICTURES)
    return hosted
