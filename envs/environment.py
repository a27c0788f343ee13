"""The protocol of environments inside the program, and what their adapters share."""

from __future__ import annotations

import contextlib
import difflib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from rljax.agent import Array, EnvSpec


class Environment(Protocol):
    """One environment as pure functions, with the signature of gymnax >= 1.0.

    It never resets itself: `rljax.envs.autoreset` does that, and enforces `spec.max_episode_steps`. States are
    pytrees of arrays whose shapes and dtypes `step` does not change. Both functions are traced under `vmap`.
    """

    spec: EnvSpec
    params: Any  # the default parameters, a pytree or None; passed to `reset` and `step`

    def reset(self, key: Array, params: Any) -> tuple[Array, Any]:
        """Begin an episode: the first observation [O...] and the state."""
        ...

    def step(
        self, key: Array, state: Any, action: Array, params: Any
    ) -> tuple[Array, Any, Array, Array, Array, dict[str, Any]]:
        """Apply one action: `observation, state, reward, terminated, truncated, info`.

        `action` is float32 [A] in [-1, 1], or int32 [] in [0, action_size). `observation` [O...] is the true
        successor, also where the episode ends. `terminated` [] is the environment's own end; `truncated` [] an end
        from outside that the environment knows of itself, always False where it knows of none. An `info` with a
        "success" [] bool says whether the task is done; evaluations report that of an episode's last step.
        """
        ...


class Drawable(Environment, Protocol):
    """An environment that can be looked at, on the host: what `rljax play` films and prints."""

    frames_per_second: float

    def render(self, state: Any, params: Any) -> np.ndarray:
        """A picture of one state, [H, W, 3] uint8 of the same size for all states."""
        ...

    def text(self, state: Any, params: Any, colours: bool) -> str:
        """One state as lines of text, with `colours` by the escape codes of terminals."""
        ...


class GoalConditioned(Environment, Protocol):
    """An environment whose observations [..., O] hold a goal [..., G] that can be replaced in hindsight.

    Pure functions on any leading axes. A transition [..., O] is relabelled with a goal by `relabelled` on both of its
    observations, and `goal_reward` of what its next observation achieves; a goal that was reached is `achieved` of a
    later observation of the same episode.
    """

    def achieved(self, observation: Array) -> Array:
        """The goal [..., G] that observations [..., O] have reached."""
        ...

    def desired(self, observation: Array) -> Array:
        """The goal [..., G] that observations [..., O] ask for."""
        ...

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations [..., O] that ask for `goal` [..., G] instead."""
        ...

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """The reward [...] float32 of a step that reaches `achieved` [..., G], for `goal` [..., G]."""
        ...


class MissingPackageError(ValueError):
    """A family of environments whose package is not installed."""

    def __init__(self, family: str, command: str, package: str | None = None) -> None:
        self.command = command  # what installs it
        package = package or family
        super().__init__(f"'{family}/' environments need the package '{package}', which is not installed: {command}")


@contextlib.contextmanager
def foreign(name: str) -> Iterator[None]:
    """Around the code of the simulator behind the environment or family `name`, when imported, made and traced.

    Its warnings and what it prints are kept back: a user can do nothing about them, and they would come again with
    every compilation. Raises `ValueError` where it fails, such as for want of its data or with a newer JAX.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        except ImportError:
            raise
        except Exception as error:
            raise ValueError(
                f"'{name}' failed inside its own package, with {type(error).__name__}: {error}. "
                "Choose another environment, or another version of the package."
            ) from error


def rescale(action: Any, low: Any, high: Any) -> Any:
    """From [-1, 1] to [low, high], elementwise."""
    return low + (action + 1) * 0.5 * (high - low)


def unknown(name: str, family: str, names: Sequence[str]) -> ValueError:
    """The error for an environment that `family` does not have; suggests the nearest of `names`."""
    spellings = {known.lower(): known for known in names}
    nearest = [spellings[match] for match in difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.5)]
    suggestion = f" Nearest: {', '.join(repr(known) for known in nearest)}." if nearest else ""
    return ValueError(f"no environment '{name}' in {family}.{suggestion} All of them: rljax list")
