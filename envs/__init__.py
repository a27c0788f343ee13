"""Where experience comes from: environments inside the program, and environments on the host.

A name says which: `brax/...`, `gymnax/...`, `playground/...`, `rljax/...` and `path/to/file.py:Name` are inside the
program, `envpool/...` is EnvPool's, `atari/...` the Arcade Learning Environment's, everything else Gymnasium's:
`async/...` in processes of their own. Before any of them, `timed/` adds the time in the episode to what is observed;
before those with tasks and goals, which are OGBench's, `goals/` adds the goal.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljax.envs.autoreset import AutoReset
    from rljax.envs.gymnasium import Hosted

_ADAPTERS = {"rljax": "own", "brax": "brax", "gymnax": "gymnax", "playground": "playground"}  # prefix -> module
_HOSTED = {"async": "gymnasium", "envpool": "envpool", "atari": "atari", "atari-games": "atari"}
_WAYS = ("async", "envpool")  # of stepping the same task
_EVALUATED = {"async/": "", "atari/": "atari-games/"}  # beginnings of names, and what evaluation has in their place
_TIMED, _GOALS = "timed/", "goals/"


def is_compiled(name: str) -> bool:
    """Whether the environment called `name` runs inside the program."""
    name = _split(name)[1]
    return (name.partition("/")[0] in _ADAPTERS and "/" in name) or _is_file(name)


def make(name: str) -> AutoReset:
    """The environment inside the program called `name`, such as "brax/ant", resetting itself.

    Raises `ValueError` where there is none, where its package is absent and where its spaces are not supported.
    """
    from rljax.envs.autoreset import AutoReset

    if name.startswith(_GOALS):
        raise ValueError(f"'{name.removeprefix(_GOALS)}' has no tasks with goals, as ogbench:cube-single-v0 has.")
    if name.startswith(_TIMED):
        from rljax.envs.timed import Timed

        return AutoReset(Timed(make(name.removeprefix(_TIMED)).environment))
    if not is_compiled(name):
        raise ValueError(f"'{name}' is not inside the program: such names begin with {_prefixes()}. Use make_hosted.")
    return AutoReset(_adapter("custom" if _is_file(name) else name.partition("/")[0]).make(name))


def make_hosted(name: str, num_envs: int, **options: Any) -> Hosted:
    """`num_envs` environments on the host called `name`, such as "Hopper-v5", "module:Name-v0" or "envpool/Hopper-v5".

    `options` go to the adapter's `make_hosted`, which says what it raises.
    """
    if is_compiled(name):
        raise ValueError(
            f"'{name}' is inside the program: Gymnasium's names do not begin with {_prefixes()}. Use make."
        )
    seen, bare = _split(name)
    if seen == _GOALS:
        return _adapter("gymnasium").make_hosted(bare, num_envs, goals=True, **options)
    hosted = _adapter(_HOSTED.get(bare.partition("/")[0], "gymnasium")).make_hosted(bare, num_envs, **options)
    if seen == _TIMED:
        hosted.tell_time()
    return hosted


def with_time(name: str) -> str:
    """The same environment with the time as a last observation; see `rljax.envs.timed`."""
    return name if name.startswith(_TIMED) else _TIMED + name


def with_goals(name: str) -> str:
    """The same environment with the goal of the episode behind what is observed; see `rljax.envs.ogbench.WithGoal`."""
    return name if name.startswith(_GOALS) else _GOALS + name


def task(name: str) -> str:
    """The environment's name without the way in which it is stepped on the host: "Hopper-v5" for "async/Hopper-v5"."""
    name = _split(name)[1]
    prefix, _, rest = name.partition("/")
    return rest if prefix in _WAYS and rest else name


def evaluated(name: str) -> str:
    """The same environment as evaluation plays it: without processes of its own, and games to their end."""
    seen, bare = _split(name)
    for trained, played in _EVALUATED.items():
        if bare.startswith(trained):
            return seen + played + bare.removeprefix(trained)
    return name


def short(name: str) -> str:
    """What to call the environment in a path."""
    return (name.rpartition(":")[2] if _is_file(name) else name).replace("/", "-").replace(":", "-")


def names() -> dict[str, list[str]]:
    """All environments by family; a family whose package is absent is empty, and its title says what to install."""
    from rljax.envs.environment import MissingPackageError

    families: dict[str, list[str]] = {"Gymnasium": _adapter("gymnasium").hosted_names()}
    for prefix in (*_ADAPTERS, "envpool", "atari"):
        try:
            families[prefix] = _adapter(prefix).names()
        except MissingPackageError as error:
            families[f"{prefix} (not installed: {error.command})"] = []
    return families


def _adapter(family: str) -> Any:
    return importlib.import_module(f"rljax.envs.{_ADAPTERS.get(family, family)}")


def _split(name: str) -> tuple[str, str]:
    """What a name begins with that says what is observed beside the environment's own, and the rest."""
    seen = next((prefix for prefix in (_TIMED, _GOALS) if name.startswith(prefix)), "")
    return seen, name.removeprefix(seen)


def _is_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _prefixes() -> str:
    return ", ".join(f"'{prefix}/'" for prefix in _ADAPTERS)
