"""Environments, made from their names.

The names in `_COMPILED` and `path/to/file.py:Name` run inside the compiled program. All others run
on the host: those in `_HOSTED`, a `path/to/file.py:Name` that derives from `gymnasium.Env`, and
every other name, which is Gymnasium's. Names in `objects` are either. See docs/environments.md.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rljax.envs import objects

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
    "envpool-lives": "host.envpool",
    "atari": "host.atari",
    "atari-games": "host.atari",
    "atari-sticky": "host.atari",
}
_GYMNASIUM = "host.gymnasium"  # every other name on the host
_STEPPING = ("async", "envpool")  # how a task is stepped, not which
# prefix in training -> prefix in evaluation
_LIVES = {"atari/": "atari-games/", "envpool-lives/": "envpool/"}  # and their whole games
_EVALUATED = {"async/": "", **_LIVES}
# that register environments in Gymnasium
PACKAGES = ("ogbench", "gymnasium_robotics", "minigrid", "popgym", "ale_py")
_TIMED, _GOALS, _PRIVILEGED = "timed/", "goals/", "privileged/"
_LAST_STEP = "with-last-step/"
_PARTS = re.compile(
    rf"({_TIMED}|{_GOALS}|{_PRIVILEGED})?(signals-[\w.]+(?:,[\w.]+)*/)?(with-last-step/)?(stacked-\d+/)?"
    r"(without-(?:velocities|\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)/)?(lifetime-\d{1,9}/)?"
    r"((?:wrap\([^()]*\)/)*)(.*)",
    re.DOTALL,
)


class NameParts(NamedTuple):
    """The prefixes of a name, each "" where it is missing, and the rest."""

    shown: str  # "timed/", "goals/" or "privileged/"
    signals: str  # such as "signals-x_velocity,reward_ctrl/"
    last_step: str  # "with-last-step/"
    stacked: str  # such as "stacked-4/"
    hidden: str  # such as "without-velocities/"
    lifetime: str  # such as "lifetime-40/"
    wrapped: str  # such as "wrap(mine.py:Scale)/", the outermost first
    rest: str

    @property
    def wrappers(self) -> list[str]:
        """The classes in the prefix for wrappers, the outermost first."""
        return re.findall(r"wrap\(([^()]*)\)/", self.wrapped)

    @property
    def signal_names(self) -> tuple[str, ...]:
        """The names in the prefix for signals."""
        return tuple(self.signals.removeprefix("signals-").removesuffix("/").split(","))


def split(name: str) -> NameParts:
    """The parts of an environment's name."""
    match = _PARTS.fullmatch(name)
    assert match is not None
    return NameParts(*match.groups(default=""))


def is_compiled(name: str) -> bool:
    """Whether the environment called `name` runs inside the compiled program.

    Imports a file of the user's.
    """
    parts = split(without_arguments(name))
    name = parts.rest
    if objects.is_object(name):
        return objects.known(name).kind == "compiled"
    if _is_file(name):
        return not _module("custom").is_gymnasium(split(name.removeprefix("async/")).rest)
    return name.partition("/")[0] in _COMPILED and "/" in name


def make(name: str) -> AutoReset:
    """Make a compiled environment that resets itself.

    Raises `ValueError` if there is none, or its spaces are not supported.
    """
    if not is_compiled(name):
        raise ValueError(
            f"'{name}' is not inside the program: such names begin with {_prefixes()}. "
            "Use make_hosted."
        )
    if split(name).wrapped:
        raise ValueError(f"'{split(name).rest}' takes no wrappers: only those of Gymnasium do.")
    if name != without_arguments(name) and not split(name).rest.startswith("gymnax/"):
        raise _without_arguments(name)
    changes = _is_file(name) or objects.is_object(split(name).rest)
    return _made.__wrapped__(name) if changes else _made(name)


@functools.lru_cache(maxsize=16)
def _made(name: str) -> AutoReset:
    """Cached, because compiled programs belong to the environment."""
    from rljax.envs.autoreset import AutoReset

    parts = split(name)
    family = parts.rest.partition("/")[0]
    is_custom = _is_file(name) or objects.is_object(parts.rest)
    adapter = _module("custom" if is_custom else _COMPILED[family])
    environment = adapter.make(parts.rest)
    if parts.shown == _PRIVILEGED:
        environment = _privileged(environment)
    if parts.shown == _GOALS:
        environment = _goal_conditioned(environment)
    if parts.lifetime:
        from rljax.envs.lifetimes import Lifetime

        environment = Lifetime(environment, parts.lifetime)
    if parts.hidden:
        from rljax.envs.partial import Partial

        environment = Partial(environment, parts.hidden)
    if parts.stacked:
        from rljax.envs.stacked import Stacked

        environment = Stacked(environment, parts.stacked)
    if parts.last_step:
        from rljax.envs.last_step import WithLastStep

        environment = WithLastStep(environment)
    if parts.signals:
        from rljax.envs.signals import Signalling

        environment = Signalling(environment, parts.signal_names)
    if parts.shown == _TIMED:
        from rljax.envs.timed import Timed

        environment = Timed(environment)
    return AutoReset(environment)


def _privileged(environment: Any) -> Any:
    """The environment with all parts of its observations. Raises `ValueError` where it has one."""
    whole = getattr(environment, "whole", lambda: None)()
    if whole is None:
        raise ValueError(
            f"'{environment.spec.name}' shows nothing that is for critics alone. Remove: "
            f"{_PRIVILEGED}"
        )
    return whole


def _goal_conditioned(environment: Any) -> Any:
    """The environment with goals. Raises `ValueError` where it has none."""
    made = getattr(environment, "with_goals", lambda: None)()
    if made is None:
        raise ValueError(
            f"'{environment.spec.name}' has no tasks with goals, as ogbench:cube-single-v0 and "
            "brax/ant have."
        )
    return made


def make_hosted(name: str, num_envs: int, **options: Any) -> Hosted:
    """Make `num_envs` environments on the host: "Hopper-v5", "module:Name-v0", "envpool/Hopper-v5".

    `options` go to the adapter's `make_hosted`; arguments in the name come first.
    """
    if is_compiled(name):
        raise ValueError(
            f"'{name}' is inside the program: Gymnasium's names do not begin with "
            f"{_prefixes()}. Use make."
        )
    parts = split(name)
    if parts.shown == _PRIVILEGED:
        raise ValueError(
            f"'{parts.rest}' is on the host, and shows all that it has. Remove: {_PRIVILEGED}"
        )
    if parts.shown == _GOALS:
        bare = name.removeprefix(_GOALS)
        return _module(_GYMNASIUM).make_hosted(bare, num_envs, goals=True, **options)
    if parts.lifetime:
        raise ValueError(
            f"'{parts.rest}' is on the host, where no lifetimes of several episodes are made. "
            f"Remove: {parts.lifetime}"
        )
    inside = parts.stacked + parts.hidden + parts.wrapped + parts.rest
    adapter = _HOSTED.get(parts.rest.partition("/")[0], _GYMNASIUM)
    if (parts.wrapped or parts.stacked) and adapter != _GYMNASIUM:
        raise ValueError(
            f"'{parts.rest}' takes no wrappers and shows no more frames: only environments of "
            "Gymnasium do."
        )
    if adapter != _GYMNASIUM and name != without_arguments(name):
        raise _without_arguments(name)
    if parts.signals and adapter == _HOSTED["atari"]:
        raise ValueError(f"'{inside}' gives no signals. Remove: {parts.signals}")
    bare = parts.signals + inside
    if inside.startswith("async/"):
        bare = "async/" + parts.signals + inside.removeprefix("async/")
    hosted = _module(adapter).make_hosted(bare, num_envs, **options)
    if parts.last_step:
        hosted.observe_last_step()
    if parts.shown == _TIMED:
        hosted.observe_time()
    return hosted


def with_time(name: str) -> str:
    """The name of the same environment with the time in the observation: `rljax.envs.timed`."""
    return name if name.startswith(_TIMED) else _TIMED + name


def with_wrappers(name: str, wrappers: Sequence[str], frames: int = 1) -> str:
    """The name of the same environment in wrappers of Gymnasium, each FILE:CLASS, the first
    innermost, with `frames` observations at once.
    """
    parts = split(name)
    outside = parts.shown + parts.signals + parts.last_step
    outside += "async/" * name.removeprefix(outside).startswith("async/")
    stacked = "" if frames == 1 else f"stacked-{frames}/"
    wrapped = "".join(f"wrap({wrapper})/" for wrapper in reversed(wrappers))
    return outside + stacked + wrapped + name.removeprefix(outside)


def with_goals(name: str) -> str:
    """The name of the same environment with the goal in the observation:
    `rljax.envs.goals.WithGoal`.
    """
    return name if name.startswith(_GOALS) else _GOALS + name


def with_last_step(name: str) -> str:
    """The name of the same environment with its last action and reward in the observation:
    `rljax.envs.last_step`.
    """
    parts = split(name)
    if parts.last_step:
        return name
    outside = parts.shown + parts.signals
    return outside + _LAST_STEP + name.removeprefix(outside)


def observed(name: str, shown: Sequence[str]) -> str:
    """The name of the environment as an agent with this `Experience.observes` sees it; "none"
    stays.
    """
    if name == "none":
        return name
    if "goals" in shown:
        return with_goals(name)
    if "last_step" in shown:
        return with_last_step(name)
    return with_time(name) if "time" in shown else name


def task(name: str) -> str:
    """The name of the task alone: "Hopper-v5" for "async/Hopper-v5"."""
    name = _without_prefixes(name)
    prefix, _, rest = name.partition("/")
    return _without_prefixes(rest) if prefix in _STEPPING and rest else name


def without_arguments(name: str) -> str:
    """The name without the arguments after a question mark."""
    return name.partition("?")[0]


def evaluated(name: str) -> str:
    """The name of the environment for evaluations: without processes, and Atari games to their
    end.
    """
    *prefixes, bare = split(name)
    for trained, played in _EVALUATED.items():
        if bare.startswith(trained):
            return "".join(prefixes) + played + bare.removeprefix(trained)
    return name


def ends_with_lives(name: str) -> bool:
    """Whether an episode ends with each life of a game. Evaluations play whole games, which may
    show other stacks of pictures.
    """
    return split(name)[-1].startswith(tuple(_LIVES))


def codes_of(name: str) -> list[str]:
    """The files and modules whose foreign code making the environment and its wrappers runs."""
    parts = split(without_arguments(name))
    parts = split(parts.rest.removeprefix("async/")) if not parts.wrapped else parts
    if parts.wrapped:
        return [*(x.rpartition(":")[0] for x in parts.wrappers), *codes_of(parts.rest)]
    code = code_of(name)
    return [] if code is None else [code]


def code_of(name: str) -> str | None:
    """The file or module whose foreign code making the environment runs; None if there is none."""
    code = _without_prefixes(without_arguments(name).rpartition(":")[0])
    if code.endswith(".py"):
        return code
    code = code.removeprefix("async/")
    known = code in PACKAGES or code.startswith("rljax.envs.")
    return None if known else code or None


def short(name: str) -> str:
    """The environment's name as a part of a path, without arguments."""
    name = re.sub(r"wrap\([^()]*\)/", "wrapped/", without_arguments(name))
    return (name.rpartition(":")[2] if _is_file(name) else name).replace("/", "-").replace(":", "-")


def names() -> dict[str, list[str]]:
    """The names of all environments, by family, without those that are there for tests.

    A family that is not installed is empty, and its key has the command that installs it.
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


def _without_prefixes(name: str) -> str:
    while split(name).rest != name:
        name = split(name).rest
    return name


def _is_file(name: str) -> bool:
    name = name.rpartition(")/")[2]  # without wrappers
    return name.rpartition(":")[0].endswith(".py")


def _prefixes() -> str:
    return ", ".join(f"'{prefix}/'" for prefix in _COMPILED)
