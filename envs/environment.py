"""The protocol of compiled environments, and functions of adapters."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from rljax.agent import Array, EnvSpec
from rljax.trust import nearest

# observation, state, reward, terminated, truncated, info: see `Environment.step`
StepResult = tuple[Any, Any, Array, Array, Array, dict[str, Any]]


class Environment(Protocol):
    """One environment as pure functions, with the signature of gymnax >= 1.0.

    It never resets itself. A state is a pytree of arrays whose shapes and dtypes `step` keeps.
    """

    spec: EnvSpec
    params: Any  # a pytree or None; passed to `reset` and `step`

    def reset(self, key: Array, params: Any) -> tuple[Any, Any]:
        """Begin an episode. Returns the first observation and the state.

        An observation is one array [O...], or a dictionary of the arrays in `spec.parts`, whose
        part `rljax.agent.MASK`, bool [A], is True for allowed actions.
        """
        ...

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action. Returns `observation, state, reward, terminated, truncated, info`.

        `action` is float32 [A] in [-1, 1], int32 [] in [0, action_size), or int32 [K] for the K
        choices of `spec.choices`. `observation` is the true successor, also at the end of an
        episode. `terminated` [] says that the task itself has ended, `truncated` [] that the
        episode ends for another reason. `info` holds the signals in `spec.signals`, and perhaps
        "success" [] bool.
        """
        ...


class Drawable(Environment, Protocol):
    """An environment that `rljax play` can film or print, on the host."""

    frames_per_second: float

    def render(self, state: Any, params: Any) -> np.ndarray:
        """A picture of one state, [H, W, 3] uint8, of the same size for all."""
        ...

    def text(self, state: Any, params: Any, colours: bool) -> str:
        """One state as lines of text; `colours` adds a terminal's escape codes."""
        ...


class MissingPackageError(ValueError):
    """A family of environments whose package is not installed."""

    def __init__(self, family: str, command: str, package: str | None = None) -> None:
        self.command = command  # installs the package
        super().__init__(
            f"'{family}/' environments need the package '{package or family}', which is not "
            f"installed: {command}"
        )


class EnvironmentFailed(ValueError):
    """An environment on the host raised an error, or broke Gymnasium's interface."""

    def __init__(self, message: Any, trace: str = "") -> None:
        if isinstance(message, EnvironmentFailed):
            message, trace = message.args
        super().__init__(message, trace)

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def trace(self) -> str:
        """The traceback of the environment's own code, or ""."""
        return self.args[1]

    def with_advice(self, advice: str) -> EnvironmentFailed:
        """The same error, whose message ends with `advice`."""
        return EnvironmentFailed(f"{self} {advice}", self.trace)


@contextlib.contextmanager
def foreign(name: str) -> Iterator[None]:
    """A context for the code of another package, behind the environment or family `name`, that
    hides warnings and prints.

    Raises `ValueError` where the package fails.
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


def import_package(family: str, module: str, command: str, package: str | None = None) -> Any:
    """Import the `module` behind a `family` of environments.

    Raises `MissingPackageError`, with the `command` that installs the package.
    """
    try:
        with foreign(f"{family}/"):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingPackageError(family, command, package) from error


@contextlib.contextmanager
def silent_mujoco() -> Iterator[None]:
    """A context without MuJoCo's warnings about outdated model files."""
    mujoco: Any = importlib.import_module("mujoco")
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(warn)


def rescale(action: Any, low: Any, high: Any) -> Any:
    """Rescale `action` from [-1, 1] to [low, high], elementwise."""
    return low + (action + 1) * 0.5 * (high - low)


def unknown(name: str, family: str, names: Sequence[str]) -> ValueError:
    """The error for an environment that `family` does not have, with the nearest of `names`."""
    return ValueError(
        f"no environment '{name}' in {family}.{nearest(name, names)} All of them: rljax list"
    )


def parsed(name: str) -> tuple[str, dict[str, Any]]:
    """A name without its arguments, and the arguments. Raises `ValueError` for those that are no
    JSON object.
    """
    bare, mark, text = name.partition("?")
    try:
        arguments = json.loads(text) if mark else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or "render_mode" in arguments:
        raise ValueError(
            f"'{bare}': the arguments after the question mark must be one JSON object without "
            "'render_mode', for example 'Hopper-v5?{\"reset_noise_scale\": 0.1}'."
        )
    return bare, arguments
