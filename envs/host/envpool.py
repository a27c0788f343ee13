"""Adapter: EnvPool's environments, as `envpool/<name>`.

Atari games are preprocessed as those of `atari/<Game>`, and an episode is a whole game. With
`envpool-lives/<name>` it is a life; the first pictures of a life are the last ones of that before.

Reference: Weng et al., EnvPool, arXiv:2206.10558.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rljax import envs
from rljax.envs import signals
from rljax.envs.environment import import_package, unknown
from rljax.envs.host.hosted import Hosted
from rljax.system.packages import install_command

FAMILIES = (
    "envpool.mujoco.gym",
    "envpool.mujoco.dmc",
    "envpool.classic_control",
    "envpool.box2d",
    "envpool.atari",
)
LIVES = "envpool-lives/"


class EnvPool(VectorEnv):
    """EnvPool's environments as one of Gymnasium's vector environments, reset only by `reset`.

    EnvPool accepts seeds only when it makes environments: `reset(seed=...)` makes new ones.
    """

    def __init__(
        self, name: str, num_envs: int, signal_names: tuple[str, ...] = (), lives: bool = False
    ) -> None:
        """With `signal_names`, one step shows the shapes of these numbers in `info`. With `lives`,
        episodes of Atari games end with each life.
        """
        self.name, self.num_envs, self.lives = name, num_envs, lives
        with _quiet():
            self._pool = self._made(range(num_envs))
            self.single_observation_space = self._pool.observation_space
            self.single_action_space = self._pool.action_space
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.spec = EnvSpec(name, max_episode_steps=self._pool.spec.config.max_episode_steps)
        # Pictures of a stack that are those of the steps before.
        self.stack: int = 1 if lives else getattr(self._pool.spec.config, "stack_num", 1)
        self._observation: Any = None
        self._signal_names = signal_names
        if signal_names:
            self._pool.reset()
            info = self._pool.step(np.zeros_like(self.action_space.sample()))[4]
            arrays = {key: x for key, x in info.items() if isinstance(x, np.ndarray) and x.ndim}
            first = {key: array[0] for key, array in arrays.items()}
            parts = signals.from_info(signal_names, first, (), f"envpool/{name}")
            self.metadata["signals"] = {part.name: part.shape for part in parts}

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all environments, or in those of `options["reset_mask"]`."""
        which = (options or {}).get("reset_mask")
        if seed is not None:
            self._pool.close()
            with _quiet():
                self._pool = self._made(seed)
        if which is None:
            self._observation = self._pool.reset()[0]
        else:
            rows = np.flatnonzero(which).astype(np.int32)
            if self.lives:  # `reset` would begin a new game; a step begins the next life
                fresh, *_, info = self._pool.step(np.zeros(len(rows), np.int32), rows)
            else:
                fresh, info = self._pool.reset(rows)
            self._observation = _placed(self._observation, info["env_id"], fresh)
        return self._observation, {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action to each environment."""
        self._observation, reward, terminated, truncated, info = self._pool.step(actions)
        info, truncated = signals.renamed(self._signal_names, info), truncated & ~terminated
        return self._observation, reward, terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._pool.close()

    def _made(self, seeds: Any) -> Any:
        wrapped = [int(seed) % 2**31 for seed in seeds]
        settings: dict[str, Any] = {"episodic_life": True} if self.lives else {}
        settings |= {"env_type": "gymnasium", "num_envs": self.num_envs, "seed": wrapped}
        pool = _envpool().make(self.name, **settings)
        _ = pool.observation_space, pool.action_space  # EnvPool makes them at the first access
        return pool


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about bounds that lose precision, which each space of each pool gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def names() -> list[str]:
    """The names of EnvPool's environments in `FAMILIES`. Raises `MissingPackageError`."""
    return sorted(f"envpool/{name}" for name in _specs() if _family(name) in FAMILIES)


def make_hosted(name: str, num_envs: int, **options: Any) -> Hosted:
    """Make `num_envs` environments called `name`, such as "envpool/Hopper-v5".

    Raises `ValueError` where there is none or it has no lives, and for all `options`. `Hosted`
    refuses spaces.
    """
    if options:
        raise ValueError(
            f"'{name}' takes no options and renders no pictures. Remove: {', '.join(options)}."
        )
    parts = envs.split(name)
    lives, task = parts.rest.startswith(LIVES), parts.rest.partition("/")[2]
    if task not in _envpool().list_all_envs():
        raise unknown(name, "EnvPool", names())
    if lives and _family(task) != "envpool.atari":
        raise ValueError(f"'{name}' is no Atari game and has no lives. Use: envpool/{task}")
    pool = EnvPool(task, num_envs, parts.signal_names if parts.signals else (), lives)
    hosted = Hosted(pool, name)
    hosted.spec = dataclasses.replace(hosted.spec, stack=pool.stack)
    return hosted


def _placed(observation: Any, rows: np.ndarray, fresh: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _placed(observation[key], rows, fresh[key]) for key in observation}
    result = np.array(observation)
    result[rows] = fresh
    return result


def _specs() -> Any:
    _envpool()
    return importlib.import_module("envpool.registration").registry.specs


def _family(task: str) -> str:
    """The module of EnvPool that has a task."""
    return _specs()[task][0]


def _envpool() -> Any:
    return import_package("envpool", "envpool", install_command("envpool"))
