"""A batch of environments on the host that reset themselves, and whose exact state can be saved.

Reference: Towers et al., Gymnasium, arXiv:2407.17032.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rljax.agent import MASK, EnvSpec, Step, mask_of
from rljax.envs import last_step, signals
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.goals import WithGoal
from rljax.envs.host import saved_simulators
from rljax.envs.host.actions import Actions
from rljax.envs.host.checks import SUCCESS
from rljax.envs.host.serial import Serial
from rljax.envs.host.spaces import Spaces
from rljax.envs.host.vector_calls import FINAL, VectorCalls
from rljax.envs.timed import share_of_time, spec_with_time
from rljax.trust import note


class Hosted:
    """N environments on the host that reset themselves and return the true final observation.

    The trajectory of an environment depends only on its own seed and actions. Returned arrays are
    new.

    Attributes:
        spaces: the environment's own spaces, and their translation.
        action_bounds: see `Actions.bounds`.
        success: [N] float64, of each environment's last whole episode: 1 or 0 by "success" or
            "is_success" in its last `info`, NaN without these.
        save_failure: why the last `save` returned None; None if it did not.
        num_tasks: how many tasks the environments play in turn.
        at_end: called before environments whose episodes have ended are reset.
        tolerant: whether numbers that are not finite are accepted, where others share the batch.
        seconds: how long all steps took so far.
    """

    def __init__(self, vector_env: VectorEnv, name: str, lent: bool = False) -> None:
        """Wrap `vector_env`, which error messages and `spec` call `name`. One that is `lent` is its
        owner's to close.

        Notes where agents see changed observations. If actions are discrete, resets the first
        environment to see whether its `info` has a mask. Raises what `Spaces` and
        `signals.declared` raise.
        """
        self.vector_env, self.name, self._lent = vector_env, name, lent
        self.num_envs: int = vector_env.num_envs
        self._calls = VectorCalls(vector_env, name)
        self._environments = self._calls.environments
        both = (vector_env.single_observation_space, vector_env.single_action_space)
        self.spaces = Spaces(*both, name)
        has_choices = self.spaces.discrete or bool(self.spaces.choices)
        if has_choices and not self.spaces.spec().masked and self._calls.has_masks():
            self.spaces = Spaces(*both, name, masked=True)
        if self.spaces.note is not None:
            note(self.spaces.note)
        self.action_bounds = self.spaces.bounds
        first = self._environments[0] if self._environments else None
        made = vector_env.spec or (None if first is None else first.spec)
        limit, metadata = made.max_episode_steps if made else None, vector_env.metadata or {}
        declared = signals.declared(metadata.get("signals", ()), name)
        self.spec = dataclasses.replace(self.spaces.spec(limit), signals=declared)
        self.frames_per_second = float(metadata.get("render_fps", 30))
        self.num_tasks = first.num_tasks if isinstance(first, WithGoal) else 1
        self.save_failure: str | None = None
        self.tolerant = False
        self.seconds = 0.0
        self.at_end: Callable[[], None] = lambda: None
        self._observes_time = False
        self._bare_spec: EnvSpec | None = None  # without the last step, where agents observe that
        self._observation: Any = None
        self._masks: Any = None  # [N, A], of the latest observations
        self._forget()

    def observe_time(self) -> None:
        """Add the time to the observations, from the next reset on. Raises what `spec_with_time`
        raises.
        """
        self.spec = spec_with_time(self.spec)
        self._observes_time = True

    def observe_last_step(self) -> None:
        """Add the last action and reward to the observations, from the next reset on.

        Comes before `observe_time`.
        """
        self._bare_spec, self.spec = self.spec, last_step.spec_with_last_step(self.spec)

    def reset(self, seeds: Sequence[int] | None = None) -> Any:
        """Begin an episode in each environment. Returns the first observations, [N, O...].

        Without `seeds`, N integers, episodes continue with the environments' own random numbers. A
        vector environment that accepts one seed gets the first. Raises `ValueError` for other
        seeds, and `EnvironmentFailed`.
        """
        numbers = None if seeds is None else [int(seed) for seed in seeds]
        if numbers is not None and (len(numbers) != self.num_envs or min(numbers) < 0):
            raise ValueError(
                f"seeds are {numbers}, '{self.name}' needs {self.num_envs}, each at least 0."
            )
        observation, info = self._calls.reset(numbers)
        self._forget()
        self._observation = self._with_time(self._first(self._seen(observation, info)))
        self._require_finite(self._observation, "observation")
        return self._observation

    def step(self, action: np.ndarray) -> Step:
        """Apply one action to each environment. Where an episode ends, the next one begins.

        `action` is [N, A] float, clipped to [-1, 1] and rescaled to the environment's bounds, or
        [N] int. The fields of `Step` are NumPy arrays, with observations as in `AutoReset.step`.

        Raises `FloatingPointError` for numbers that are not finite; if `tolerant`, replaces them in
        actions by 0 and returns others. Raises `ValueError` for a wrong shape, and
        `EnvironmentFailed`.
        """
        environment_action = self._denormalised(np.asarray(action))
        began = time.perf_counter()
        raw, reward, terminated, truncated, info = self._calls.step(environment_action)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        ended = terminated | truncated
        next_observation = observation = self._seen(raw, info, ended)
        with np.errstate(over="ignore"):
            single = np.array(reward, np.float32)
        self._require_finite(single, "reward")
        self._return += reward
        self._length += 1
        episode_return, episode_length = self._return.astype(np.float32), self._length.copy()
        step_signals, sums = self._count_signals(info, ended)
        if ended.any():
            self._return[ended] = 0
            self._length[ended] = 0
            mode, final = self._calls.autoreset_mode, next((x for x in FINAL if x in info), None)
            if mode == AutoresetMode.SAME_STEP or (mode is None and final is not None):
                last = None if final is None else info[final]
                next_observation = self._final_observation(observation, ended, last)
                self._note_success(info.get("final_info", {}), ended)
            else:
                self._note_success(info, ended)
                self.at_end()
                observation = self._begin_again(next_observation, ended)
            self._require_finite(observation, "observation")
        self.seconds += time.perf_counter() - began
        self._require_finite(next_observation, "observation")
        after, bare = next_observation, self._bare_spec
        if bare is not None:
            after = last_step.with_last_step(after, action, single, bare, np)
        next_observation = self._observation = self._with_time(after, episode_length)
        if ended.any():
            self._observation = self._with_time(self._begun(observation, after, ended))
        fields: dict[str, Any] = dict(
            observation=self._observation,
            next_observation=next_observation,
            reward=single,
            terminated=terminated,
            truncated=truncated,
            episode_return=episode_return,
            episode_length=episode_length,
            signals=step_signals,
            episode_signals=sums,
        )
        return Step(**fields)

    def save(self, which: Sequence[int] | None = None) -> bytes | None:
        """The exact state of the environments in the rows `which`, in that order; by default of
        all.

        It holds all attributes of environments and wrappers but functions, specifications and
        renderers; it lacks global variables and closures. None if it cannot be saved:
        `save_failure` says why. Raises `ValueError` before the first reset.
        """
        if self._observation is None:
            raise ValueError(
                f"'{self.name}' has no state before its first reset. Call reset, then save."
            )
        self.save_failure = self._why_unsaveable()
        if self.save_failure is not None:
            return None
        rows = range(self.num_envs) if which is None else which
        assert self._environments is not None
        signalled = (self._signals,) if self.spec.signals else ()
        batch = (self._observation, self._return, self._length, self.success, *signalled)
        batch = jax.tree.map(lambda x: x[rows], batch)
        try:
            return saved_simulators.save([self._environments[row] for row in rows], batch)
        except saved_simulators.CannotSaveError as error:
            self.save_failure = str(error)
            return None

    def restore(self, blob: bytes) -> Any:
        """Continue bit for bit from a state that `save` returned, in environments made alike.
        Returns the observations to act on, [N, O...].

        Raises `ValueError` for other environments, another version of the simulator, anything but a
        saved state, and a pickle, which can run any code, that is no `rljax.trust.TrustedState`.
        """
        failure = self._why_unsaveable()
        if failure is not None:
            raise ValueError(f"'{self.name}' cannot be restored: {failure}.")
        assert self._environments is not None
        batch = saved_simulators.restore(blob, self._environments, self.name)
        self._observation, self._return, self._length, self.success, *signalled = batch
        self._signals = signalled[0] if signalled else {}
        self._masks = mask_of(self._observation)
        if isinstance(self.vector_env, Serial):
            self.vector_env.continue_episodes(self._length.tolist())
        return self._observation

    def change(self, values: Mapping[str, Any]) -> None:
        """Set attributes of all environments. Raises what `VectorCalls.change` raises."""
        self._calls.change(values)

    def render(self) -> np.ndarray:
        """A picture of environment 0, uint8 [H, W, 3]. Raises what `VectorCalls.render` raises."""
        return self._calls.render()

    def close(self, at_once: bool = False) -> None:
        """Close the environments; a second call does nothing. Raises `EnvironmentFailed`.

        With `at_once`, for environments that do not return from a step: end only their processes.
        """
        if not self._lent:
            self._calls.close(at_once)

    def _forget(self) -> None:
        self._return = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int32)
        self.success = np.full(self.num_envs, np.nan)
        self._signals = signals.zeros(self.spec.signals, self.num_envs, np)  # sums, float64

    def _denormalised(self, action: np.ndarray) -> np.ndarray:
        expected = (self.num_envs, *self.spec.action_shape)
        if action.shape != expected:
            raise ValueError(
                f"actions have shape {action.shape}, {self.num_envs} of '{self.name}' "
                f"need {expected}."
            )
        if not self.spec.discrete:
            self._require_finite(action, "action")
            if self.tolerant:
                action = np.nan_to_num(action, nan=0.0, posinf=0.0, neginf=0.0)
        return self.spaces.act(action)

    def _seen(self, observation: Any, info: dict[str, Any], last: Any = False) -> Any:
        """The batch as agents see it, in new arrays; `last` is that of `Actions.mask`."""
        try:
            if MASK in info and self.spaces.discrete and not self.spec.masked:
                raise ValueError(f"an {MASK} in info that the first reset lacked.")
            if self.spaces.masked and MASK in info:
                self._masks = _rows_of_masks(info, self._masks, self.spaces.actions)
            return self.spaces.observe(observation, (self.num_envs,), self._masks, last)
        except ValueError as error:
            raise EnvironmentFailed(f"'{self.name}' returned {error}") from None

    def _with_time(self, observation: Any, length: np.ndarray | None = None) -> Any:
        """Observations [N, O] with the time after `length` [N] steps, if agents observe it."""
        if not self._observes_time:
            return observation
        time = share_of_time(self._length if length is None else length, self.spec)
        return np.concatenate([observation, time[:, None].astype(np.float32)], axis=1)

    def _first(self, observation: Any) -> Any:
        if self._bare_spec is None:
            return observation
        return last_step.first(observation, self._bare_spec, (self.num_envs,), np)

    def _begun(self, observation: Any, after: Any, ended: np.ndarray) -> Any:
        """Observations to act on: first ones where an episode `ended` [N], `after` elsewhere."""
        if self._bare_spec is None:
            return observation

        def row(new: np.ndarray, old: np.ndarray) -> np.ndarray:
            return np.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return jax.tree.map(row, self._first(observation), after)

    def _final_observation(self, observation: Any, ended: np.ndarray, last: Any) -> Any:
        if last is None:
            raise ValueError(
                f"'{self.name}' resets itself in the same step without info['final_obs'], so the "
                "last observation of its episodes is lost. Use autoreset_mode=DISABLED "
                "or NEXT_STEP."
            )
        final = jax.tree.map(np.copy, observation)
        everything = np.ones(self.spec.action_size, np.bool_) if self.spaces.masked else None
        for index in np.flatnonzero(ended):
            row = self.spaces.observe(last[index], (), everything)
            jax.tree.map(lambda rows, new, index=index: rows.__setitem__(index, new), final, row)
        return final

    def _begin_again(self, last: Any, ended: np.ndarray) -> Any:
        fresh, info = self._calls.reset_ended(ended)
        observation = self._seen(fresh, info)
        pairs = zip(jax.tree.leaves(observation), jax.tree.leaves(last), strict=True)
        if not all(np.array_equal(new[~ended], old[~ended]) for new, old in pairs):
            raise ValueError(
                f"'{self.name}' ignores reset(options={{'reset_mask': ...}}): it changed "
                "environments whose episode had not ended. Use SyncVectorEnv, AsyncVectorEnv, or "
                "autoreset_mode=SAME_STEP."
            )
        return observation

    def _count_signals(
        self, info: dict[str, Any], ended: np.ndarray
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The signals of a step and their sums over episodes, [N, K...] float32."""
        if not self.spec.signals:
            return {}, {}
        raw: Any = info
        if not isinstance(self.vector_env, Serial):
            raw = signals.of_batch(info, self.spec.signals, ended, self.name)
        values, sums = {}, {}
        for part in self.spec.signals:
            values[part.name] = raw[part.name].astype(np.float32)
            self._require_finite(values[part.name], f"signal '{part.name}'")
            self._signals[part.name] += raw[part.name]
            sums[part.name] = self._signals[part.name].astype(np.float32)
            self._signals[part.name][ended] = 0
        return values, sums

    def _note_success(self, info: Any, ended: np.ndarray) -> None:
        self.success[ended] = np.nan
        for key in SUCCESS:
            if key in info:
                known = ended & np.asarray(info.get(f"_{key}", True))
                try:
                    self.success[known] = np.ravel(info[key])[known].astype(np.float64)
                except (IndexError, TypeError, ValueError):
                    raise EnvironmentFailed(
                        f"'{self.name}' returned info[{key!r}] = {info[key]!r}, it must be one "
                        "number for each environment."
                    ) from None

    def _require_finite(self, values: Any, kind: str) -> None:
        if self.tolerant:
            return
        for part in values.values() if isinstance(values, dict) else (values,):
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                self._refuse(part, kind)

    def _refuse(self, values: np.ndarray, kind: str) -> None:
        row, *place = np.argwhere(~np.isfinite(values))[0]
        value = np.asarray(values)[(row, *place)]
        where = f" at index {place[0]}" if place else ""
        if kind == "action":
            raise FloatingPointError(
                f"the action for environment {row} of '{self.name}' is {value}{where}, it must be "
                "finite. The policy has diverged: go back to a checkpoint, and use a "
                "lower learning rate."
            )
        raise FloatingPointError(
            f"environment {row} of '{self.name}' returned the {kind} {value}{where}, it must be "
            "finite. Its simulation has diverged: end the episode where the state leaves its "
            "range, or shorten its time step."
        )

    def _why_unsaveable(self) -> str | None:
        if type(self.vector_env) in (Serial, SyncVectorEnv):
            return None
        return f"{type(self.vector_env).__name__} keeps the state of its environments out of reach"


def _rows_of_masks(info: dict[str, Any], before: np.ndarray | None, actions: Actions) -> np.ndarray:
    """The masks [N, A]: those in `info`, and those `before` for environments without one."""
    new, known = info[MASK], info.get(f"_{MASK}")
    if getattr(new, "dtype", np.dtype(bool)).kind == "O":
        rows = [actions.joined(row) for row in new]
    else:
        rows = actions.joined(new, (len(new),))
    if known is None or before is None or np.all(known):
        return np.array(rows)
    masks = before.copy()
    for index in np.flatnonzero(known):
        masks[index] = rows[index]
    return masks
