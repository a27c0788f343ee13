"""Gymnasium's environments by name: "Hopper-v5", "module:Name-v0", "async/Hopper-v5"."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rljax import envs
from rljax.envs import custom, objects, partial, signals
from rljax.envs.environment import EnvironmentFailed, parsed, silent_mujoco, unknown
from rljax.envs.goals import with_goals
from rljax.envs.host import ogbench, rendering
from rljax.envs.host.checks import Checked, failure
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.robots import varied, velocity
from rljax.envs.host.serial import Serial
from rljax.envs.host.spaces import Spaces
from rljax.envs.stacked import FrameStack, number_of
from rljax.system import user_files

_MUJOCO = "gymnasium.envs.mujoco."

varied.register()
velocity.register()


def make_hosted(name: str, num_envs: int, *, goals: bool = False, **make_kwargs: Any) -> Hosted:
    """Make `num_envs` environments called `name`, such as "Hopper-v5" or "module:Name-v0".

    They are stepped one after another; those of "async/Hopper-v5" each in its own process, which
    pays from about 0.1 ms a step. With `goals`, see `rljax.envs.goals.with_goals`. `make_kwargs` go
    to `gymnasium.make`; `Hosted.render` needs `render_mode="rgb_array"`.

    Raises `ValueError` if `num_envs` < 1, and if the environment does not exist, needs a missing
    package or refuses the arguments in its name. `Hosted` refuses spaces.
    """
    if num_envs < 1:
        raise ValueError(
            f"num_envs is {num_envs}, '{name}' needs at least 1 environment. Set "
            "--config.num-envs 1."
        )
    if make_kwargs.get("render_mode") == "rgb_array":
        rendering.choose_renderer()
    if name.startswith("async/") and not goals:
        bare = name.removeprefix("async/")
        return _with_stack(Hosted(_asynchronous(bare, num_envs, make_kwargs), name), bare)
    if objects.is_object(name) and objects.known(name).kind == "vector":
        return Hosted(objects.known(name).source, name, lent=True)
    if not goals and envs.split(name).rest == name and _is_vector_only(name):
        make_vec = functools.partial(gymnasium.make_vec, num_envs=num_envs)
        return Hosted(_registered(make_vec, name, make_kwargs), name)
    environments = _make_all(name, num_envs, make_kwargs)
    environments = with_goals(environments, name) if goals else environments
    return _with_stack(Hosted(Serial(environments, name), name), name)


def _with_stack(hosted: Hosted, name: str) -> Hosted:
    """The same, whose `spec` says how many frames are in a picture: replays store each once."""
    prefix, is_picture = envs.split(name).stacked, len(hosted.spec.observation_shape) == 3
    if prefix and is_picture:
        hosted.spec = dataclasses.replace(hosted.spec, stack=number_of(prefix))
    return hosted


def make_one(name: str, **make_kwargs: Any) -> gymnasium.Env:
    """One environment, with the errors of `make_hosted`; of a vector environment none."""
    return _make(name.removeprefix("async/"), make_kwargs)


def hosted_names() -> list[str]:
    """The names of Gymnasium's environments. Some need packages of their own."""
    return sorted(name for name, spec in gymnasium.registry.items() if not _was_removed(spec))


def _asynchronous(name: str, num_envs: int, make_kwargs: dict[str, Any]) -> AsyncVectorEnv:
    """Environments in processes. A fork would copy JAX's threads with their locks."""
    # A process imports the script again, and a script without a guard comes to here once more
    main = sys.modules.get("__mp_main__")
    if main is not None and main is not sys.modules["__main__"]:
        raise SystemExit(1)  # the first process says why
    first = _make(name, make_kwargs)  # so that errors are raised here, and not in a process
    Spaces(first.observation_space, first.action_space, name)
    spec = first.spec
    try:
        first.close()
    except Exception as error:
        raise failure(f"'async/{name}'", "in close", error) from error
    makers = [
        functools.partial(_make_in_process, name, index, make_kwargs, os.getpid())
        for index in range(num_envs)
    ]
    try:
        mode = AutoresetMode.DISABLED
        vector_env = AsyncVectorEnv(makers, context="forkserver", autoreset_mode=mode)
    except (ConnectionError, EOFError):
        raise EnvironmentFailed(
            f"the processes of 'async/{name}' ended while they began. Each of them imports the "
            'script: train below a line if __name__ == "__main__": in it.'
        ) from None
    vector_env.spec = spec
    return vector_env


def _make_in_process(
    name: str, index: int, make_kwargs: dict[str, Any], parent: int
) -> gymnasium.Env:
    # Ctrl-C reaches all processes: only the training answers it. Gymnasium makes one there too.
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Checked(_make(name, make_kwargs), name, index)


def _make_all(name: str, num_envs: int, make_kwargs: dict[str, Any]) -> list[Any]:
    first = _make(name, make_kwargs)
    is_arm = ogbench.is_arm(first)
    shares = is_arm and not ogbench.shows_pictures(first)
    made = [first, *(_make(name, make_kwargs) for _ in range(0 if shares else num_envs - 1))]
    for environment in made if is_arm else ():
        ogbench.declare_rendering(environment, make_kwargs.get("render_mode"))
        ogbench.seed_actions(environment)
    return [first, *ogbench.copies(first, num_envs - 1)] if shares else made


def _make(name: str, make_kwargs: dict[str, Any]) -> Any:
    parts = envs.split(name)
    if parts.signals:
        name = name.removeprefix(parts.signals)
        return WithSignals(_make(name, make_kwargs), parts.signal_names, name)
    if parts.stacked:
        made = _make(name.removeprefix(parts.stacked), make_kwargs)
        return FrameStack(made, number_of(parts.stacked))
    if parts.hidden:
        made = _make(name.removeprefix(parts.hidden), make_kwargs)
        return WithoutPart(made, parts.hidden, parts.rest)
    if parts.wrapped:
        made = _make(parts.rest, make_kwargs)
        for wrapper in reversed(parts.wrappers):
            made = _wrapped(made, wrapper)
        return made
    bare, arguments = parsed(name)
    if _is_vector_only(name):
        raise ValueError(
            f"'{name}' is a vector environment alone: remove 'async/', 'goals/', 'signals-.../', "
            "'stacked-N/' and 'without-.../' from its name."
        )
    if objects.is_object(bare) or bare.rpartition(":")[0].endswith(".py"):
        return _made_of_class(bare, make_kwargs | arguments)
    return _registered(gymnasium.make, name, make_kwargs)


def _wrapped(env: Any, wrapper: str) -> Any:
    """The environment in a wrapper's class, FILE:CLASS. Raises what its file and class raise."""
    made_by = custom.load(wrapper)
    if not isinstance(made_by, type) or not issubclass(made_by, gymnasium.Wrapper):
        raise ValueError(f"--wrap {wrapper} is no class that derives from gymnasium.Wrapper.")
    try:
        return made_by(env)
    except Exception as error:
        raise failure(f"--wrap {wrapper}", "when it was made", error) from error


def _is_vector_only(name: str) -> bool:
    bare = parsed(name)[0]
    if objects.is_object(bare):
        return objects.known(bare).kind == "vector"
    if bare.rpartition(":")[0].endswith(".py"):
        return False
    spec = gymnasium.registry.get(_imported(name))
    return spec is not None and spec.entry_point is None and spec.vector_entry_point is not None


def _imported(name: str) -> str:
    """The name in Gymnasium's registry, once the module in front of it is imported."""
    bare, _ = parsed(name)
    module, _, within = bare.rpartition(":")
    if name.startswith("ALE/"):
        try:
            importlib.import_module("ale_py")  # registers them
        except ImportError as error:
            raise _missing(name, "ale_py") from error
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if error.name == module and module in envs.PACKAGES:
                raise _missing(name, module) from error
            raise ValueError(
                f"'{name}': the module '{module}' cannot be imported ({error}). It must register "
                "the environment and be on Python's path. If it is in the current folder: "
                "PYTHONPATH=. rljax ..."
            ) from error
        except SyntaxError as error:
            message = (
                f"'{name}': the module '{module}' cannot be imported: {user_files.syntax(error)}"
            )
            raise ValueError(message) from error
        except (Exception, SystemExit) as error:
            who = f"the module '{module}' of '{name}'"
            raise failure(who, "when it was imported", error) from error
    return within


def _registered(make: Callable[..., Any], name: str, make_kwargs: dict[str, Any]) -> Any:
    bare, arguments = parsed(name)
    within, module = _imported(name), bare.rpartition(":")[0]
    try:
        if within not in gymnasium.registry:  # Gymnasium would take the latest version
            raise gymnasium.error.NameNotFound(within)
        with silent_mujoco() if _uses_mujoco(within) else contextlib.nullcontext():
            return make(within, **(make_kwargs | arguments))
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"'{name}' needs a package that is not installed. {error}") from error
    except ImportError as error:
        raise ValueError(f"'{name}' cannot be imported. {error}") from error
    except gymnasium.error.Error as error:
        if within in gymnasium.registry:
            raise ValueError(f"'{name}' cannot be made. {error}") from error
        family = f"Gymnasium with '{module}'" if module else "Gymnasium"
        error = unknown(within, family, hosted_names())
        if module:
            raise error from None
        raise ValueError(
            f"{error}. Where your own code registers it, name its module (my_module:{within}), or "
            "go on from Python: register it, and call rljax.resume, rljax.load or rljax.train."
        ) from None
    except Exception as error:
        if arguments:
            raise ValueError(
                f"'{bare}' cannot be made with the arguments "
                f"{json.dumps(arguments)}: {type(error).__name__}: {error}"
            ) from error
        raise _unmade(name, make_kwargs, error) from error


def _missing(name: str, module: str) -> ValueError:
    command = f"pip install {module.replace('_', '-')}"
    return ValueError(f"'{name}' needs a package that is not installed: {command}")


class WithSignals(gymnasium.Wrapper):
    """An environment whose signals are numbers in its `info`. One step shows their shapes."""

    def __init__(self, env: gymnasium.Env, signal_names: tuple[str, ...], name: str) -> None:
        """Raises `ValueError` for signals that `signals.from_info` refuses."""
        super().__init__(env)
        self._signal_names = signal_names
        env.reset(seed=0)
        space = env.action_space
        action = space.sample()
        if isinstance(space, gymnasium.spaces.Box):
            action = np.clip(np.zeros_like(action), space.low, space.high)
        info = env.step(action)[4]
        declared = signals.declared(env.metadata.get("signals", ()), name)
        parts = signals.from_info(signal_names, info, declared, name)
        self.metadata = {**env.metadata, "signals": {part.name: part.shape for part in parts}}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply one action."""
        *others, info = self.env.step(action)
        return (*others, signals.renamed(self._signal_names, info))  # type: ignore[return-value]


class WithoutPart(gymnasium.ObservationWrapper):
    """An environment whose observations lack some numbers; see `rljax.envs.partial`."""

    def __init__(self, env: gymnasium.Env, prefix: str, name: str) -> None:
        """Raises what `partial.visible` raises, and `ValueError` if observations are not
        vectors.
        """
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"'{name}' shows {space}: parts can be hidden in vectors only.")
        self._visible = partial.visible(prefix, name, space.shape[0])
        low, high = space.low[self._visible], space.high[self._visible]
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """The visible numbers."""
        return observation[self._visible]


def _made_of_class(name: str, make_kwargs: dict[str, Any]) -> Any:
    if objects.is_object(name):
        known = objects.known(name)
        label, made_by, limit = name.removeprefix(objects.PREFIX), known.make, known.limit
    else:
        made_by = custom.load(name)
        label, limit = made_by.__name__, getattr(made_by, "max_episode_steps", None)
    spec = EnvSpec(f"{label}-v0", made_by, max_episode_steps=limit)
    try:
        return gymnasium.make(spec, **make_kwargs)
    except Exception as error:
        raise _unmade(name, make_kwargs, error) from error


def _unmade(name: str, make_kwargs: dict[str, Any], error: Exception) -> EnvironmentFailed:
    mode = make_kwargs.get("render_mode")
    if mode is not None and isinstance(error, (AssertionError, TypeError)):
        return EnvironmentFailed(f"'{name}' cannot be rendered as {mode!r}: {error}")
    return failure(f"'{name}'", "when it was made", error)


def _uses_mujoco(name: str) -> bool:
    entry = str(getattr(gymnasium.registry.get(name), "entry_point", None))
    return entry.startswith(_MUJOCO) and importlib.util.find_spec("mujoco") is not None


def _was_removed(spec: Any) -> bool:
    """Whether it is a placeholder that raises, or a MuJoCo task before version 4."""
    entry = spec.entry_point
    if isinstance(entry, str):
        return entry.startswith(_MUJOCO) and re.search(r"_v([4-9]|\d\d):", entry) is None
    return entry is None or getattr(entry, "__module__", None) == "gymnasium.envs"
