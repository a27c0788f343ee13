"""Partially observed environments: vectors of observations without some of their numbers, by the
prefix `without-.../` of docs/memory.md. On the host: `WithoutPart` in rljax/envs/host/gymnasium.py.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, shown
from rljax.envs.environment import Environment, StepResult

# Velocities, by the task's name in small letters without version and by the observation's size,
# which differs between Gymnasium's versions and Brax. A humanoid has two parts: the
# velocities of joints and those of bodies.
VELOCITIES: dict[str, dict[int, str]] = {
    "cartpole": {4: "1,3"},
    "acrobot": {6: "4-5"},
    "pendulum": {3: "2"},
    "mountaincar": {2: "1"},
    "mountaincarcontinuous": {2: "1"},
    "invertedpendulum": {4: "2-3"},
    "inverteddoublependulum": dict.fromkeys((8, 9, 11), "5-7"),
    "hopper": {11: "5-10"},
    "walker2d": {17: "8-16"},
    "halfcheetah": {17: "8-16"},
    "swimmer": {8: "3-7"},
    "ant": dict.fromkeys((27, 105, 111), "13-26"),
    "humanoid": {244: "22-44,155-220", 348: "22-44,175-252", 376: "22-44,185-268"},
}


def visible(prefix: str, name: str, size: int) -> np.ndarray:
    """The indices of the numbers of observations [size] that `prefix` leaves visible.

    Raises `ValueError` for unknown velocities, and if none or all would be visible.
    """
    what = prefix.removeprefix("without-").removesuffix("/")
    if what == "velocities":
        task = re.sub(r"-v\d+$|_", "", name.rpartition("/")[2].partition("?")[0]).lower()
        if size not in VELOCITIES.get(task, {}):
            raise ValueError(
                f"it is not known which numbers of '{name}' are velocities. Name them: "
                f"without-5-10/{name} hides the numbers 5 to 10 of {size}, counted from 0."
            )
        what = VELOCITIES[task][size]
    hidden: set[int] = set()
    for part in what.split(","):
        first, _, last = part.partition("-")
        hidden |= set(range(int(first), int(last or first) + 1))
    remaining = [i for i in range(size) if i not in hidden]
    if not remaining or max(hidden, default=size) >= size:
        raise ValueError(
            f"'{prefix}{name}' hides the numbers {what}: an observation has the numbers 0 to "
            f"{size - 1}, and one of them must remain."
        )
    return np.array(remaining)


class Partial:
    """A compiled environment whose observations lack some numbers."""

    def __init__(self, environment: Environment, prefix: str) -> None:
        """Raises `ValueError`, also if observations are not vectors."""
        self.environment, self.params = environment, environment.params
        spec = environment.spec
        if not spec.is_vector:
            raise ValueError(
                f"'{spec.name}' shows {shown(spec)}: parts can be hidden in vectors only."
            )
        self._visible = visible(prefix, spec.name, spec.observation_shape[0])
        self.spec = dataclasses.replace(
            spec, name=prefix + spec.name, observation_shape=self._visible.shape
        )

    def reset(self, key: Array, params: Any) -> tuple[Array, Any]:
        """Begin an episode."""
        observation, state = self.environment.reset(key, params)
        return observation[jnp.asarray(self._visible)], state

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        after = self.environment.step(key, state, action, params)
        return (after[0][jnp.asarray(self._visible)], *after[1:])
