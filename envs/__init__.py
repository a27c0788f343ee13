"""Environments, made from their names.

`brax/...`, `gymnax/...`, `playground/...`, `craftax/...`, `rljax/...` and `path/to/file.py:Name`
run inside the compiled program. All others run on the host: `envpool/...`, `atari/...`, a
`path/to/file.py:Name` that derives from `gymnasium.Env`, and every other name, which is
Gymnasium's. `async/...` is Gymnasium's too, with one process per environment. docs/environments.md
explains the arguments that names of Gymnasium and gymnax may carry, and the prefixes `timed/`,
`goals/`, `signals-.../`, `with-last-step/` and `without-.../`, which come in this order.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljax.envs.autoreset import AutoReset
    from rljax.envs.host.hosted import Hosted

# prefix of names -> module of this package
_COMPILED = {
    "rljax": "tasks.catalogue",
    "brax": "simulators.brax",
    "gymnax": "simulators.gymnax",
    "playground": "simulators.playground",
    "craftax": "simulators.craftax",
}
_HOSTED = {
    "async": "host.gymnasium",
    "envpool": "host.envpool",
    "atari": "host.atari",
    "atari-games": "host.atari",
    "atari-sticky": "host.atari",
}
_GYMNASIUM = "host.gymnasium"  # every other name on the host
_STEPPING = ("async", "envpool")  # how a task is stepped, not which
_EVALUATED = {"async/": "", "atari/": "atari-games/"}  # prefix in training -> prefix in evaluation
# that register environments in Gymnasium
PACKAGES = ("ogbench", "gymnasium_robotics", "minigrid", "popgym", "ale_py")
_TIMED, _GOALS, _LAST_STEP = "timed/", "goals/", "with-last-step/"
_PART = re.compile(r"without-(velocities|\d+(-\d+)?(,\d+(-\d+)?)*)/")
_SIGNALS = re.compile(r"signals-([\w.]+(?:,[\w.]+)*)/")


def is_compiled(name: str) -> bool:
    """Whether the environment called `name` runs inside the compiled program.

    Imports a file of the user's.
    """
    name = _bare(without_arguments(name))
    if _is_file(name):
        return not _module("custom").is_gymnasium(name.removeprefix("async/"))
    return name.partition("/")[0] in _COMPILED and "/" in name


def make(name: str) -> AutoReset:
    """Make a compiled environment that resets itself, such as "brax/ant".

    Raises `ValueError` if there is no such environment, if its package is not installed, or if its
    spaces are not supported.
    """
    if name.startswith(_GOALS):
        raise ValueError(
            f"'{name.removeprefix(_GOALS)}' has no tasks with goals, as ogbench:cube-single-v0 has."
        )
    if not is_compiled(name):
        raise ValueError(
            f"'{name}' is not inside the program: such names begin with {_prefixes()}. "
            "Use make_hosted."
        )
    if name != without_arguments(name) and not _bare(name).startswith("gymnax/"):
        raise _without_arguments(name)
    return _made.__wrapped__(name) if _is_file(name) else _made(name)  # a file may change


@functools.lru_cache(maxsize=16)
def _made(name: str) -> AutoReset:
    """Cached, because compiled programs belong to the environment."""
    from rljax.envs.autoreset import AutoReset

    prefix, bare = _split(name)
    signals, bare = without_signals(bare)
    shown, bare = without_last_step(bare)
    hidden, bare = without_part(bare)
    adapter = _module("custom" if _is_file(bare) else _COMPILED[bare.partition("/")[0]])
    environment = adapter.make(bare)
    if hidden:
        from rljax.envs.partial import Partial

        environment = Partial(environment, hidden)
    if shown:
        from rljax.envs.last_step import WithLastStep

        environment = WithLastStep(environment)
    if signals:
        from rljax.envs.signals import Signalling

        environment = Signalling(environment, signals)
    if prefix == _TIMED:
        from rljax.envs.timed import Timed

        environment = Timed(environment)
    return AutoReset(environment)


def make_hosted(name: str, num_envs: int, **options: Any) -> Hosted:
    """Make `num_envs` environments on the host: "Hopper-v5", "module:Name-v0", "envpool/Hopper-v5".

    `options` go to the adapter's `make_hosted`, which says what it raises. Arguments in the name
    come before them.
    """
    if is_compiled(name):
        raise ValueError(
            f"'{name}' is inside the program: Gymnasium's names do not begin with "
            f"{_prefixes()}. Use make."
        )
    prefix, bare = _split(name)
    if prefix == _GOALS:
        return _module(_GYMNASIUM).make_hosted(bare, num_envs, goals=True, **options)
    signals, inside = without_signals(bare)
    shown, within = without_last_step(inside)
    bare, inside = bare.removesuffix(inside) + within, within
    adapter = _HOSTED.get(inside.partition("/")[0], _GYMNASIUM)
    if adapter != _GYMNASIUM and bare != without_arguments(bare):
        raise _without_arguments(name)
    if signals and adapter == _HOSTED["atari"]:
        raise ValueError(f"'{inside}' gives no signals. Remove: {bare.removesuffix(inside)}")
    if signals and inside.startswith("async/"):
        bare = "async/" + bare.removesuffix(inside) + inside.removeprefix("async/")  # in processes
    hosted = _module(adapter).make_hosted(bare, num_envs, **options)
    if shown:
        hosted.observe_last_step()
    if prefix == _TIMED:
        hosted.observe_time()
    return hosted


def with_time(name: str) -> str:
    """The name of the same environment with the time in the observation: `rljax.envs.timed`."""
    return name if name.startswith(_TIMED) else _TIMED + name


def with_goals(name: str) -> str:
    """The name of the same environment with the goal in the observation:
    `rljax.envs.goals.WithGoal`.
    """
    return name if name.startswith(_GOALS) else _GOALS + name


def observed(name: str, shown: Sequence[str]) -> str:
    """The name of the environment as an agent sees it that declares `Experience.observes`; "none"
    stays.
    """
    if name == "none":
        return name
    if "goals" in shown:
        return with_goals(name)
    return with_time(name) if "time" in shown else name


def task(name: str) -> str:
    """The name of the task alone, however it is stepped on the host: "Hopper-v5" for
    "async/Hopper-v5".
    """
    name = _bare(name)
    prefix, _, rest = name.partition("/")
    return rest if prefix in _STEPPING and rest else name


def without_arguments(name: str) -> str:
    """The name without the arguments after a question mark."""
    return name.partition("?")[0]


def without_part(name: str) -> tuple[str, str]:
    """The prefix `without-...`, or "", and the rest of the name."""
    match = _PART.match(name)
    return (match.group(), name[match.end() :]) if match else ("", name)


def without_last_step(name: str) -> tuple[bool, str]:
    """Whether a name has the prefix `with-last-step/`, and the rest of the name."""
    return name.startswith(_LAST_STEP), name.removeprefix(_LAST_STEP)


def without_signals(name: str) -> tuple[tuple[str, ...], str]:
    """The signals in the prefix `signals-...` of a name, or (), and the rest of the name."""
    match = _SIGNALS.match(name)
    return (tuple(match.group(1).split(",")), name[match.end() :]) if match else ((), name)


def evaluated(name: str) -> str:
    """The name of the environment for evaluations: without processes, and Atari games to their
    end.
    """
    bare = without_last_step(without_signals(_split(name)[1])[1])[1]
    prefix = name.removesuffix(bare)
    for trained, played in _EVALUATED.items():
        if bare.startswith(trained):
            return prefix + played + bare.removeprefix(trained)
    return name


def code_of(name: str) -> str | None:
    """The file or module whose foreign code making the environment runs; None if there is none.

    rljax and the packages that it knows do not count.
    """
    code = without_arguments(name).rpartition(":")[0]
    while code.startswith((_TIMED, _GOALS)):
        code = _split(code)[1]
    code = _bare(code)
    if code.endswith(".py"):
        return code
    code = code.removeprefix("async/")
    known = code in PACKAGES or code.startswith("rljax.envs.")
    return None if known else code or None


def short(name: str) -> str:
    """The environment's name as a part of a path, without arguments."""
    name = without_arguments(name)
    return (name.rpartition(":")[2] if _is_file(name) else name).replace("/", "-").replace(":", "-")


def names() -> dict[str, list[str]]:
    """The names of all environments, by family.

    A family that is not installed has an empty list, and its key names the command that installs
    it.
    """
    from rljax.envs.environment import MissingPackageError

    families: dict[str, list[str]] = {"Gymnasium": _module(_GYMNASIUM).hosted_names()}
    adapters = {**_COMPILED, "envpool": _HOSTED["envpool"], "atari": _HOSTED["atari"]}
    for prefix, adapter in adapters.items():
        try:
            families[prefix] = _module(adapter).names()
        except MissingPackageError as error:
            families[f"{prefix} (not installed: {error.command})"] = []
    return families


def _module(name: str) -> Any:
    return importlib.import_module(f"rljax.envs.{name}")


def _without_arguments(name: str) -> ValueError:
    return ValueError(
        f"'{name}' takes no arguments: only environments of Gymnasium and gymnax do: "
        "'Hopper-v5?{...}'."
    )


def _split(name: str) -> tuple[str, str]:
    """The prefix "timed/", "goals/" or "", and the rest of the name."""
    prefix = next((prefix for prefix in (_TIMED, _GOALS) if name.startswith(prefix)), "")
    return prefix, name.removeprefix(prefix)


def _bare(name: str) -> str:
    """The name without the prefixes that change observations or make signals."""
    return without_part(without_last_step(without_signals(_split(name)[1])[1])[1])[1]


def _is_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _prefixes() -> str:
    return ", ".join(f"'{prefix}/'" for prefix in _COMPILED)
