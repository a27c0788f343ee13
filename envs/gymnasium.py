"""Gymnasium's environments, which run on the host: batches that reset themselves and that can be saved exactly.

`Hosted` gives any `gymnasium.vector.VectorEnv`, whatever its autoreset mode, the interface that drivers rely on:
normalised actions, true final observations, totals of episodes, simulators that continue bit for bit.

Reference: Towers et al., Gymnasium: A Standard Interface for Reinforcement Learning Environments, arXiv:2407.17032.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import pickle
import re
import sys
import types
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rljax.agent import EnvSpec, Step
from rljax.envs import drawing, ogbench
from rljax.envs.environment import unknown
from rljax.envs.timed import share_of_time, spec_with_time

SUCCESS = ("success", "is_success")  # keys of `info` by which environments report it


def make_hosted(name: str, num_envs: int, *, goals: bool = False, **make_kwargs: Any) -> Hosted:
    """`num_envs` environments called `name`, such as "Hopper-v5" or "module:Name-v0", stepped one after another.

    Of a name such as "async/Hopper-v5", each runs in a process of its own: worth it where a step takes longer than
    passing it on, some 0.1 ms. With `goals`, for environments that have some, observations hold the goal behind the
    state, and the environments begin with the first task, the second, and so on, round and round.

    `make_kwargs` go to `gymnasium.make`; `render_mode="rgb_array"` makes `Hosted.render` work, also without a
    display. Raises `ValueError` where `num_envs` < 1, where there is no such environment and where it needs a package
    that is not installed; for spaces that are not supported see `Hosted`.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}, '{name}' needs at least 1 environment. Set --config.num-envs 1.")
    if make_kwargs.get("render_mode") == "rgb_array":
        drawing.choose_renderer()
    if goals:
        return Hosted(Serial(ogbench.with_goals(_make_all(name, num_envs, make_kwargs), name), name), name)
    if name.startswith("async/"):
        return Hosted(_asynchronous(name.removeprefix("async/"), num_envs, make_kwargs), name)
    environments = _make_all(name, num_envs, make_kwargs)
    if isinstance(environments[0].observation_space, spaces.Box):
        return Hosted(Serial(environments, name), name)
    made = iter(environments)
    mode = AutoresetMode.DISABLED
    return Hosted(SyncVectorEnv([lambda: next(made)] * num_envs, copy=False, autoreset_mode=mode), name)


def hosted_names() -> list[str]:
    """Names of Gymnasium's environments; some need packages of their own."""
    return sorted(name for name, spec in gymnasium.registry.items() if not _has_left(spec))


class Hosted:
    """N environments on the host that reset themselves, with the true final observation.

    An environment's trajectory depends on its own seed and actions only, never on N or on its neighbours. Every array
    that is returned is a new one.

    Attributes:
        spec: of one environment.
        num_envs: N.
        action_bounds: low [A] and high [A] of the environment's own actions; None where they are discrete.
        success: [N] float64, 1 or 0 where the episode that ended last in an environment reported success (by
            "success" or "is_success" in the `info` of its last step), NaN where none did.
        save_failure: why the last `save` returned None, None where it did not.
        frames_per_second: of what `render` shows.
        num_tasks: among which the environments are dealt; 1 where there is nothing to choose from.
    """

    def __init__(self, vector_env: VectorEnv, name: str) -> None:
        """Wrap `vector_env`; `name` is what error messages and `spec` call it.

        Observations are float32: vectors, or pictures [H, W, K] where the environment's are of uint8. Those of a
        dictionary, a tuple or another shape are flattened to vectors, with a warning.
        Raises `ValueError` for actions without bounds, `TypeError` for spaces of other kinds.
        """
        self.vector_env, self.name = vector_env, name
        self.num_envs: int = vector_env.num_envs
        self._environments: Sequence[Any] | None = getattr(vector_env.unwrapped, "envs", None)
        self._mode = _autoreset_mode(vector_env, name)
        self._flatten, self._shape = _observations(vector_env.single_observation_space, name)
        actions = vector_env.single_action_space
        self._discrete = isinstance(actions, spaces.Discrete)
        self.action_bounds: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(actions, spaces.Discrete):
            self._start, action_size = int(actions.start), int(actions.n)
        else:
            self._low, self._high = _bounds(actions, name)
            self._center, self._half = (self._low + self._high) / 2, (self._high - self._low) / 2
            action_size = self._low.size
            self.action_bounds = (self._low, self._high)
        self._action_space = actions
        made = vector_env.spec or (self._environments[0].spec if self._environments else None)
        self.spec = EnvSpec(name, self._shape, action_size, self._discrete, made.max_episode_steps if made else None)
        self.frames_per_second = float((vector_env.metadata or {}).get("render_fps", 30))
        self.num_tasks: int = next(
            (first.num_tasks for first in self._environments or () if isinstance(first, ogbench.WithGoal)), 1
        )
        self.save_failure: str | None = None
        self.tolerant = False  # of numbers that are not finite, for the sake of other learners' environments
        self._tells_time = False
        self._closed = False
        self._observation: np.ndarray | None = None
        self._forget()

    def tell_time(self) -> None:
        """From the next reset on, observe the time as well; see `rljax.envs.timed`, and for what it raises."""
        self.spec = spec_with_time(self.spec)
        self._tells_time = True

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Begin an episode in each environment: the first observations [N, O...] float32.

        `seeds` are N integers, one per environment; later episodes go on with the environment's own random numbers, as
        they all do without `seeds`. A vector environment that accepts a single seed is given the first.
        Raises `ValueError` for another number of seeds and for negative ones.
        """
        given = None if seeds is None else [int(seed) for seed in seeds]
        if given is not None and (len(given) != self.num_envs or min(given) < 0):
            raise ValueError(f"seeds are {given}, '{self.name}' needs {self.num_envs}, each at least 0.")
        try:
            observation, _ = self.vector_env.reset(seed=given)  # pyright: ignore[reportArgumentType]
        except (TypeError, gymnasium.error.Error):
            if given is None or isinstance(self.vector_env.unwrapped, (Serial, SyncVectorEnv, AsyncVectorEnv)):
                raise
            observation, _ = self.vector_env.reset(seed=given[0])
        self._forget()
        self._observation = self._with_time(self._vectors(observation))
        self._require_finite(self._observation, "observation")
        return self._observation

    def step(self, action: np.ndarray) -> Step:
        """Apply one action to each environment; where that ends an episode, begin the next.

        `action` is [N, A] float in [-1, 1], clipped to it and then rescaled to the environment's bounds, or [N] int.
        All fields of the `Step` are NumPy arrays; where an episode ends, `observation` is the new one's first and
        `next_observation` the old one's last.

        Raises `FloatingPointError` for an action, observation or reward that is not finite, unless it is `tolerant`:
        then such an action is taken for 0, and the rest handed on. `ValueError` for a wrong shape.
        """
        raw, reward, terminated, truncated, info = self.vector_env.step(self._denormalised(np.asarray(action)))
        next_observation = observation = self._vectors(raw)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        with np.errstate(over="ignore"):
            single = np.array(reward, np.float32)
        self._require_finite(single, "reward")
        self._return += reward
        self._length += 1
        episode_return, episode_length = self._return.astype(np.float32), self._length.copy()
        ended = terminated | truncated
        if ended.any():
            self._return[ended] = 0
            self._length[ended] = 0
            if self._mode == AutoresetMode.SAME_STEP or (self._mode is None and "final_obs" in info):
                next_observation = self._final_observation(observation, ended, info)
                self._note_success(info.get("final_info", {}), ended)
            else:
                self._note_success(info, ended)
                observation = self._begin_again(next_observation, ended)
            self._require_finite(observation, "observation")
        self._require_finite(next_observation, "observation")
        last = self._with_time(next_observation, episode_length)
        next_observation, observation = last, self._with_time(observation) if ended.any() else last
        self._observation = observation
        fields: dict[str, Any] = dict(
            observation=observation,
            next_observation=next_observation,
            reward=single,
            terminated=terminated,
            truncated=truncated,
            episode_return=episode_return,
            episode_length=episode_length,
        )
        return Step(**fields)

    def save(self, which: Sequence[int] | None = None) -> bytes | None:
        """The exact state of all environments, or None where it cannot be had; `save_failure` then says why.

        With `which`, of those environments alone, in that order.

        It holds simulators, time limits, random generators and all other attributes of the environments and their
        wrappers, except functions, specifications and renderers, which are those of the environments it is restored to.
        State outside of them (global variables, closures) is not seen. Raises `ValueError` before the first reset.
        """
        if self._observation is None:
            raise ValueError(f"'{self.name}' has no state before its first reset. Call reset, then save.")
        self.save_failure = self._why_unsaveable()
        if self.save_failure is not None:
            return None
        rows = range(self.num_envs) if which is None else which
        assert self._environments is not None
        environments = [self._environments[row] for row in rows]
        parts = _parts(environments)
        simulators = {place: part for place, part in parts.items() if _is_native(part, "MjData", "ALEInterface")}
        state = {
            "layers": _layer_names(environments),
            "versions": {package: _version(package) for package in map(_package, simulators.values())},
            "simulators": {place: _save_simulator(part) for place, part in simulators.items()},
            "hosted": tuple(x[rows] for x in (self._observation, self._return, self._length, self.success)),
        }
        try:
            state["attributes"] = _dump(_attributes(environments), parts)
        except Exception as error:
            self.save_failure = _culprit(environments, parts) or f"{type(error).__name__}: {error}"
            return None
        return zlib.compress(pickle.dumps(state), level=1)

    def restore(self, blob: bytes) -> np.ndarray:
        """Continue from what `save` returned, bit for bit; the observations [N, O...] to act on next.

        The environments must have been made as those that were saved. Restoring can run any code: restore only what you
        trust. Raises `ValueError` for other environments, another simulator's version, and what is not a saved state.
        """
        failure = self._why_unsaveable()
        if failure is not None:
            raise ValueError(f"'{self.name}' cannot be restored: {failure}.")
        try:
            state = pickle.loads(zlib.decompress(blob))
            layers, simulators, versions = state["layers"], state["simulators"], state["versions"]
        except Exception as error:
            raise ValueError(f"this is not a state of '{self.name}' saved by Hosted.save: {error}.") from error
        present = _layer_names(self._environments)
        if layers != present:
            raise ValueError(
                f"the saved state is of {len(layers)} x {layers[0]}, '{self.name}' is {len(present)} x {present[0]}. "
                "Make the same number of the same environments."
            )
        for package, version in versions.items():
            if version != _version(package):
                raise ValueError(
                    f"the state of '{self.name}' was saved with {package} {version}, this is {_version(package)}. "
                    f"To continue it: pip install {package.replace('_', '-')}=={version}"
                )
        parts = _parts(self._environments)
        try:
            for place, simulator in simulators.items():
                _restore_simulator(simulator, parts[place])
            attributes = _Unpickler(io.BytesIO(state["attributes"]), parts).load()
        except Exception as error:
            raise ValueError(
                f"the saved state does not fit '{self.name}': {type(error).__name__}: {error}. "
                "Make the environments with the same settings, from the same code."
            ) from error
        for layer, values in zip(_layers(self._environments), attributes, strict=True):
            for name in [name for name, value in vars(layer).items() if not _is_kept(name, value)]:
                if name not in values:
                    delattr(layer, name)
            vars(layer).update(values)
        self._observation, self._return, self._length, self.success = state["hosted"]
        return self._observation  # pyright: ignore[reportReturnType]

    def render(self) -> np.ndarray:
        """A picture of environment 0, uint8 [H, W, 3].

        Raises `ValueError` where it was made without `render_mode="rgb_array"` and where drawing fails.
        """
        if self.vector_env.render_mode != "rgb_array":
            raise ValueError(
                f"'{self.name}' was made with render_mode={self.vector_env.render_mode!r}, pictures need 'rgb_array': "
                f"make_hosted('{self.name}', 1, render_mode='rgb_array')"
            )
        try:
            if self._environments is not None:
                frame: Any = self._environments[0].render()
            else:
                frame = (self.vector_env.render() or (None,))[0]
        except Exception as error:
            raise ValueError(
                f"'{self.name}' could not be rendered, with {type(error).__name__}: {error}."
                + (drawing.HINT if self._has_mujoco() else "")
            ) from error
        if frame is None:
            raise ValueError(f"'{self.name}' returned no picture for render_mode='rgb_array': it cannot be rendered.")
        return np.asarray(frame)

    def close(self) -> None:
        """Close the environments; more than once does no harm."""
        if not self._closed:
            self._closed = True
            self.vector_env.close()

    def _forget(self) -> None:
        self._return = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int32)
        self.success = np.full(self.num_envs, np.nan)

    def _denormalised(self, action: np.ndarray) -> np.ndarray:
        expected = (self.num_envs, *self.spec.action_shape)
        if action.shape != expected:
            raise ValueError(f"actions have shape {action.shape}, {self.num_envs} of '{self.name}' need {expected}.")
        if self._discrete:
            return action + self._start
        self._require_finite(action, "action")
        if self.tolerant:
            action = np.nan_to_num(action, nan=0.0, posinf=0.0, neginf=0.0)
        # One clip does for both ends: of [-1, 1], and of the bounds, which rounding could overstep.
        action = np.minimum(np.maximum(self._center + self._half * action, self._low), self._high)
        return action.astype(self._action_space.dtype).reshape(self.num_envs, *self._action_space.shape)  # pyright: ignore

    def _vectors(self, observation: Any) -> np.ndarray:
        """The batch as a new float32 array [N, O...]."""
        if self._flatten:
            rows = gymnasium.vector.utils.iterate(self.vector_env.observation_space, observation)
            return np.stack([self._vector(row) for row in rows])
        observation = np.asarray(observation)
        expected = (self.num_envs, *self._shape)
        if observation.shape != expected:
            raise ValueError(
                f"'{self.name}' returned observations of shape {observation.shape}, its observation_space promises "
                f"{expected}. Mend the environment's space, or what its step and reset return."
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold is reported as not finite
            return observation.astype(np.float32)

    def _with_time(self, observation: np.ndarray, length: np.ndarray | None = None) -> np.ndarray:
        """Observations [N, O] after `length` [N] steps (default: of the running episodes) as agents see them."""
        if not self._tells_time:
            return observation
        time = share_of_time(self._length if length is None else length, self.spec)
        return np.concatenate([observation, time[:, None].astype(np.float32)], axis=1)

    def _vector(self, observation: Any) -> np.ndarray:
        """One observation as a float32 array [O...]."""
        if self._flatten:
            observation = spaces.flatten(self.vector_env.single_observation_space, observation)
        with np.errstate(over="ignore"):
            return np.asarray(observation, np.float32)

    def _final_observation(self, observation: np.ndarray, ended: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        if "final_obs" not in info:
            raise ValueError(
                f"'{self.name}' resets itself in the same step without info['final_obs'], so the last observation of "
                "its episodes is lost. Use autoreset_mode=DISABLED or NEXT_STEP."
            )
        final = observation.copy()
        for index in np.flatnonzero(ended):
            final[index] = self._vector(info["final_obs"][index])
        return final

    def _begin_again(self, last: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Reset the environments whose episode has `ended`, whatever would reset them later."""
        fresh, _ = self.vector_env.reset(options={"reset_mask": ended.copy()})
        observation = self._vectors(fresh)
        if not np.array_equal(observation[~ended], last[~ended]):
            raise ValueError(
                f"'{self.name}' does not honour reset(options={{'reset_mask': ...}}): it changed environments whose "
                "episode had not ended. Use SyncVectorEnv, AsyncVectorEnv, or autoreset_mode=SAME_STEP."
            )
        return observation

    def _note_success(self, info: Any, ended: np.ndarray) -> None:
        self.success[ended] = np.nan
        for key in SUCCESS:
            if key in info:
                known = ended & np.asarray(info.get(f"_{key}", True))
                self.success[known] = np.asarray(info[key])[known].astype(np.float64)

    def _require_finite(self, values: np.ndarray, kind: str) -> None:
        if self.tolerant or np.isfinite(values).all():
            return
        row, *place = np.argwhere(~np.isfinite(values))[0]
        value = np.asarray(values)[(row, *place)]
        where = f" at index {place[0]}" if place else ""
        if kind == "action":
            raise FloatingPointError(
                f"the action for environment {row} of '{self.name}' is {value}{where}, it must be finite. "
                "The policy has diverged: go back to a checkpoint, with a lower learning rate."
            )
        raise FloatingPointError(
            f"environment {row} of '{self.name}' returned the {kind} {value}{where}, it must be finite. "
            "Its simulation has diverged: end the episode where the state leaves its range, or shorten its time step."
        )

    def _why_unsaveable(self) -> str | None:
        if type(self.vector_env) in (Serial, SyncVectorEnv):
            return None
        return f"{type(self.vector_env).__name__} keeps the state of its environments out of reach"

    def _has_mujoco(self) -> bool:
        return self._environments is not None and any(
            _is_native(value, "MjData") for value in vars(self._environments[0].unwrapped).values()
        )


class Serial(VectorEnv):
    """Environments stepped one after another: `SyncVectorEnv` without autoreset, for the observations of a Box.

    `SyncVectorEnv` gathers the whole `info` of every step, which can take as long as the simulation. This one keeps
    of `info` only what `Hosted` reads, and only where an episode ends.
    """

    def __init__(self, environments: Sequence[gymnasium.Env], name: str) -> None:
        self.envs, self.name = list(environments), name
        first = self.envs[0]
        self.num_envs = len(self.envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode, self.spec = first.render_mode, first.spec
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(first.observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(first.action_space, self.num_envs)
        self._observations = np.zeros(self.observation_space.shape, first.observation_space.dtype)  # pyright: ignore

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode in all environments, or in those of `options["reset_mask"]`."""
        which = (options or {}).get("reset_mask")
        for index, environment in enumerate(self.envs):
            if which is None or which[index]:
                self._require_spaces(index, environment)
                observation, _ = environment.reset(seed=None if seed is None else seed[index])
                self._put(index, observation)
        return self._observations, {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action to each environment; the observations are overwritten by the next call."""
        reward = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, np.bool_)
        truncated = np.empty(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for index, environment in enumerate(self.envs):
            observation, reward[index], terminated[index], truncated[index], info = environment.step(actions[index])
            self._put(index, observation)
            if terminated[index] or truncated[index]:
                infos = self._add_info(infos, {key: info[key] for key in SUCCESS if key in info}, index)
        return self._observations, reward, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """A picture of each environment."""
        return tuple(environment.render() for environment in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for environment in self.envs:
            environment.close()

    def _require_spaces(self, index: int, environment: gymnasium.Env) -> None:
        for space in ("observation_space", "action_space"):
            found, expected = getattr(environment, space), getattr(self, f"single_{space}")
            if found != expected:
                raise ValueError(
                    f"the {space} of environment {index} of '{self.name}' is {found}, it was {expected} when the first "
                    "was made. Agents need spaces that stay: fix them in the environment's __init__."
                )

    def _put(self, index: int, observation: Any) -> None:
        row = self._observations[index]
        if np.shape(observation) != row.shape:  # NumPy would broadcast some
            raise ValueError(
                f"environment {index} of '{self.name}' returned an observation of shape {np.shape(observation)}, its "
                f"observation_space promises {row.shape}. Mend the space, or what step and reset return."
            )
        row[...] = observation


def _asynchronous(name: str, num_envs: int, make_kwargs: dict[str, Any]) -> AsyncVectorEnv:
    """Environments in processes; these are not forked, which would copy JAX's threads with their locks."""
    _make(name, make_kwargs).close()  # what is wrong is said here, and not by a process
    makers = [functools.partial(_make, name, make_kwargs)] * num_envs
    vector_env = AsyncVectorEnv(makers, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)
    vector_env.spec = gymnasium.spec(name.rpartition(":")[2])
    return vector_env


def _make_all(name: str, num_envs: int, make_kwargs: dict[str, Any]) -> list[Any]:
    first = _make(name, make_kwargs)
    if ogbench.is_arm(first):
        ogbench.let_draw(first, make_kwargs.get("render_mode"))
        ogbench.seed_actions(first)
        return [first, *ogbench.copies(first, num_envs - 1)]
    return [first, *(_make(name, make_kwargs) for _ in range(num_envs - 1))]


def _make(name: str, make_kwargs: dict[str, Any]) -> Any:
    module, _, within = name.rpartition(":")
    if name.startswith("ALE/"):
        try:
            importlib.import_module("ale_py")  # registers them
        except ImportError as error:
            raise ValueError(f"'{name}' needs a package that is not installed: pip install ale-py") from error
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if error.name == module == "ogbench":
                raise ValueError(f"'{name}' needs a package that is not installed: pip install ogbench") from error
            raise ValueError(
                f"'{name}': the module '{module}' cannot be imported ({error}). It must register the environment and "
                "lie on Python's path. Where it lies in the current folder: PYTHONPATH=. rljax ..."
            ) from error
    try:
        with _silent_models(within):
            return gymnasium.make(within, **make_kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"'{name}' needs a package that is not installed. {error}") from error
    except ImportError as error:
        raise ValueError(f"'{name}' cannot be imported. {error}") from error
    except gymnasium.error.Error as error:
        if within in gymnasium.registry:
            raise ValueError(f"'{name}' cannot be made. {error}") from error
        raise unknown(within, f"Gymnasium with '{module}'" if module else "Gymnasium", hosted_names()) from error
    except (AssertionError, TypeError) as error:
        if make_kwargs.get("render_mode") is None:
            raise
        raise ValueError(f"'{name}' cannot be rendered as {make_kwargs['render_mode']!r}: {error}") from error


@contextlib.contextmanager
def _silent_models(name: str) -> Iterator[None]:
    """Without MuJoCo's warnings of outdated settings in Gymnasium's model files.

    A user can do nothing about them; MuJoCo prints them and writes them to a file in the current folder.
    """
    entry = getattr(gymnasium.registry.get(name), "entry_point", None)
    if not str(entry).startswith("gymnasium.envs.mujoco.") or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco: Any = importlib.import_module("mujoco")
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(warn)


def _has_left(spec: Any) -> bool:
    """Whether the environment has left Gymnasium: a placeholder that raises, or MuJoCo's of before version 4."""
    entry = spec.entry_point
    if isinstance(entry, str):
        return entry.startswith("gymnasium.envs.mujoco.") and re.search(r"_v([4-9]|\d\d):", entry) is None
    return entry is None or getattr(entry, "__module__", None) == "gymnasium.envs"


def _autoreset_mode(vector_env: VectorEnv, name: str) -> AutoresetMode | None:
    mode = (vector_env.metadata or {}).get("autoreset_mode")
    mode = None if mode is None else AutoresetMode(mode)
    base = vector_env.unwrapped
    if isinstance(base, AsyncVectorEnv) and mode == AutoresetMode.NEXT_STEP and not base.shared_memory:
        raise ValueError(
            f"'{name}' is an AsyncVectorEnv with shared_memory=False and autoreset_mode=NEXT_STEP, which resets an "
            "environment twice when asked to reset it. Use shared_memory=True or autoreset_mode=DISABLED."
        )
    return mode


def _observations(space: spaces.Space, name: str) -> tuple[bool, tuple[int, ...]]:
    """Whether observations must be flattened, and their shape then."""
    wrap = "Wrap the environment in gymnasium.wrappers.FlattenObservation, register that, and name it 'module:Name-v0'."
    if isinstance(space, spaces.Box):
        if len(space.shape) == 1 or (len(space.shape) == 3 and space.dtype == np.uint8):
            return False, space.shape
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"'{name}' observes {space}, agents need a vector of numbers (one-hot, for example). {wrap}")
    flat = spaces.flatten_space(space) if space.is_np_flattenable else None
    if not isinstance(flat, spaces.Box):
        raise TypeError(f"'{name}' observes {space}, agents need a vector of fixed size. Wrap the environment in one.")
    shape = f"a Box of shape {space.shape}" if isinstance(space, spaces.Box) else f"a {type(space).__name__}"
    warnings.warn(f"'{name}' observes {shape}: it is flattened to {flat.shape[0]} numbers.", stacklevel=4)
    return True, flat.shape


def _bounds(space: spaces.Space, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the actions, [A] each."""
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise TypeError(
            f"'{name}' acts in {space}, agents act in a Box of floats or in a Discrete space. "
            "Wrap the environment in a gymnasium.ActionWrapper that offers one of them."
        )
    low, high = space.low.ravel(), space.high.ravel()
    unbounded = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if unbounded.size:
        dim = unbounded[0]
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}, agents need finite bounds, to which "
            "[-1, 1] is rescaled. Give its action_space bounds, and wrap what needs it in "
            "gymnasium.wrappers.RescaleAction or ClipAction."
        )
    return low, high


# What follows takes environments apart. A part is a wrapper or environment (a layer), or an attribute that is kept: one
# that a fresh environment has of its own. Everything else is pickled at once, so that what was shared stays shared, and
# refers to parts by their place: (index of the layer, name of the attribute or None).

_KEPT = {"env", "spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"}
_SIMPLE = (types.NoneType, bool, int, float, str, bytes, tuple)

Place = tuple[int, str | None]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: dict[Place, Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.places = {id(part): place for place, part in reversed(parts.items())}

    def persistent_id(self, obj: Any) -> Place | None:
        place = self.places.get(id(obj))
        if place is None and _loses_state(obj):
            raise pickle.PicklingError(f"it holds a {type(obj).__name__} that a copy would not be equal to")
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: dict[Place, Any]) -> None:
        super().__init__(file)
        self.parts = parts

    def persistent_load(self, pid: Place) -> Any:
        return self.parts[pid]


def _dump(value: Any, parts: dict[Place, Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, parts).dump(value)
    return file.getvalue()


def _layers(environments: Any) -> Iterator[Any]:
    """Every wrapper and environment, outermost first."""
    for environment in environments:
        while isinstance(environment, gymnasium.Wrapper):
            yield environment
            environment = environment.env
        yield environment


def _layer_names(environments: Any) -> list[str]:
    """One line per environment."""
    return ["<".join(type(layer).__name__ for layer in _layers([environment])) for environment in environments]


def _parts(environments: Any) -> dict[Place, Any]:
    parts: dict[Place, Any] = {}
    for index, layer in enumerate(_layers(environments)):
        parts[index, None] = layer
        for name, value in vars(layer).items():
            if _is_kept(name, value) and not isinstance(value, _SIMPLE):
                parts[index, name] = value
    return parts


def _attributes(environments: Any) -> list[dict[str, Any]]:
    """What is not kept, by layer."""
    return [
        {name: value for name, value in vars(layer).items() if not _is_kept(name, value)}
        for layer in _layers(environments)
    ]


def _is_kept(name: str, value: Any) -> bool:
    if name in _KEPT or _is_native(value):
        return True
    if isinstance(value, types.FunctionType):
        return "<" in value.__qualname__  # pickle finds all others by their name
    module = type(value).__module__
    return module == "gymnasium.envs.mujoco.mujoco_rendering" or module.partition(".")[0] == "pygame"


def _is_native(value: Any, *kinds: str) -> bool:
    """Whether it is a simulator's own memory, of one of `kinds`; pickle knows nothing of it, or not enough."""
    kinds = kinds or ("MjData", "MjModel", "ALEInterface")
    return type(value).__name__ in kinds and _package(value) in ("mujoco", "ale_py")


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _version(package: str) -> str | None:
    return getattr(sys.modules.get(package), "__version__", None)


def _loses_state(value: Any) -> bool:
    """Whether pickle would copy `value` without complaint, and the copy would behave differently."""
    if isinstance(value, np.ndarray):  # a writeable view of a simulator's memory would no longer be one
        base: Any = value
        while isinstance(base, np.ndarray):
            base = base.base
        return type(base).__name__ == "PyCapsule" and value.flags.writeable
    return isinstance(value, (gymnasium.Env, EzPickle)) or _is_native(value)


def _culprit(environments: Any, parts: dict[Place, Any]) -> str | None:
    """Which attribute cannot be saved."""
    for layer, attributes in zip(_layers(environments), _attributes(environments), strict=True):
        for name, value in attributes.items():
            try:
                _dump(value, parts)
            except Exception as error:
                return f"the attribute '{name}' of {type(layer).__name__} cannot be saved: {error}"
    return None


def _save_simulator(data: Any) -> tuple[bytes, dict[str, Any]]:
    """An MjData with its model, and the fields that MuJoCo forgets to pickle; or the whole of an Atari console."""
    if _is_native(data, "ALEInterface"):
        return pickle.dumps(data.cloneState(include_rng=True)), {}
    forgotten = [name for name in dir(data) if name.startswith(("flg_", "solver_")) or name in ("ne", "nf", "nl")]
    return pickle.dumps(data), {name: getattr(data, name) for name in forgotten}


def _restore_simulator(saved: tuple[bytes, dict[str, Any]], present: Any) -> None:
    """Make `present`, an MjData, and its model equal to the saved ones, in place; or an Atari console."""
    if _is_native(present, "ALEInterface"):
        present.restoreState(pickle.loads(saved[0]))
        return
    data = pickle.loads(saved[0])
    _copy_fields(data.model, present.model)
    importlib.import_module("mujoco").mj_copyData(present, present.model, data)
    for name, value in saved[1].items():  # arrays too: the setter copies
        setattr(present, name, value)


def _copy_fields(saved: Any, present: Any) -> None:
    """Copy a structure of MuJoCo's, which environments may change, as some do at every reset."""
    for name in dir(present):
        if name.startswith("_"):
            continue
        value = getattr(present, name)
        if isinstance(value, np.ndarray):
            value[...] = getattr(saved, name)
        elif _package(value) == "mujoco":
            _copy_fields(getattr(saved, name), value)
        elif isinstance(value, (int, float)) and not _is_native(present, "MjModel"):  # of a model, they are its sizes
            setattr(present, name, getattr(saved, name))
