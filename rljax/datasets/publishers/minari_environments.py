"""The environments of Minari's datasets; docs/datasets.md has the rules.

Of the modules that metadata name, only those in `PACKAGES` are imported, and only arguments that
cannot be paths are used (`rljax.trust.unsafe_argument`).
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from rljax.datasets.formats.schema import is_count
from rljax.datasets.publishers import d4rl
from rljax.trust import unsafe_argument

# Packages that may be imported because metadata name them.
PACKAGES = ("ale_py", "gymnasium_robotics", "minigrid")
# Wrappers that do not change the task, or that rljax replaces by its own.
HARMLESS = {
    "DataCollector",
    "FlattenObservation",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "RecordEpisodeStatistics",
    "RecordVideo",
    "TimeLimit",
}
HANDS = ("door", "hammer", "pen", "relocate")
RENAMED = {"pointmaze": "maze2d"}  # Minari's name of a task -> D4RL's


def named(spec: dict[str, Any]) -> str | None:
    """The environment with this specification; None without an id.

    Raises `ValueError` if rljax cannot make this very environment.
    """
    identity, arguments = spec.get("id"), spec.get("kwargs") or {}
    if not identity:
        return None
    if not isinstance(identity, str) or not isinstance(arguments, dict):
        raise ValueError(
            "its environment's 'id' must be a text, and its 'kwargs' must be a JSON object."
        )
    known, entry = _registration(identity), str(spec.get("entry_point") or "")
    package = (identity if ":" in identity else entry).partition(":")[0].partition(".")[0]
    if known is None and package not in (*PACKAGES, "gymnasium"):
        raise ValueError(
            f"its environment '{identity}' ({entry or package or 'without an entry point'}) is not "
            "registered with Gymnasium, and rljax imports no module because a file names it. Name "
            "it yourself: --env MODULE:NAME."
        )
    _require_no_wrappers(spec, known)
    name = f"{package}:{identity}" if package in PACKAGES and ":" not in identity else identity
    # A package may not be imported yet.
    defaults = {} if known is None or package in PACKAGES else known.kwargs
    arguments = {
        key: value
        for key, value in arguments.items()
        if key != "render_mode" and (key not in defaults or defaults[key] != value)
    }
    unsafe = unsafe_argument(arguments)
    if unsafe is not None:
        raise ValueError(
            f"its environment '{identity}' has {unsafe}, and a file may set only numbers, truth "
            "values and plain words that are no paths. Look at it first; if you trust it, name the "
            "environment yourself: --env 'NAME?{...}'."
        )
    return f"{name}?{json.dumps(arguments)}" if arguments else name


def limit(
    recording: dict[str, Any], evaluation: dict[str, Any], hand: d4rl.Entry | None
) -> int | None:
    """The time limit of evaluation, in environment steps, from two specifications.

    Without one in `evaluation`, it is D4RL's for data of a hand, or else the registered one; None
    for environments that are not registered yet.
    """
    time_limit = steps(evaluation)
    if time_limit is not None:
        return time_limit
    known = hand or _registration((evaluation or recording).get("id"))
    return None if known is None else known.max_episode_steps


def steps(spec: dict[str, Any]) -> int | None:
    """The time limit in a specification; None if it has none. Some are floats, such as 1e6."""
    number = spec.get("max_episode_steps")
    if number is None:
        return None
    whole: Any = int(number) if isinstance(number, float) and number.is_integer() else number
    if not is_count(whole):
        raise ValueError(
            f"'max_episode_steps' of an environment is {number!r:.80}, it must be a whole "
            "number from 1 on."
        )
    return whole


def original(name: str) -> str | None:
    """D4RL's newest id of a dataset, if any: "d4rl/pen-human-v1" for "minari/D4RL/pen/human-v2"."""
    match = re.fullmatch(r"(?:minari/)?D4RL/([^/]+)/(.+)-v\d+", name)
    if match is None:
        return None
    task, kind = match.groups()
    beginning = re.escape(f"{RENAMED.get(task, task)}-{kind}")
    ids = [entry for entry in d4rl.entries() if re.fullmatch(rf"{beginning}-v\d", entry)]
    return f"d4rl/{max(ids)}" if ids else None


def hand(identity: str) -> d4rl.Entry | None:
    """D4RL's entry of the dataset `identity`, if it is of an Adroit hand."""
    name = original(identity)
    entry = None if name is None else d4rl.entries()[name.removeprefix("d4rl/")]
    return entry if entry is not None and entry.id.partition("-")[0] in HANDS else None


def registered(env: str | None) -> Any:
    """Gymnasium's specification of the environment called `env`, with its arguments, or None."""
    import gymnasium

    name, _, arguments = (env or "").partition("?")
    try:
        spec = copy.deepcopy(gymnasium.spec(name))
    except (gymnasium.error.Error, ImportError):
        return None
    spec.kwargs |= json.loads(arguments or "{}")
    return spec


def _registration(identity: Any) -> Any:
    import gymnasium

    return gymnasium.registry.get(str(identity))


def _require_no_wrappers(spec: dict[str, Any], known: Any) -> None:
    recorded = spec.get("additional_wrappers") or []
    if not isinstance(recorded, list) or not all(isinstance(wrapper, dict) for wrapper in recorded):
        raise ValueError("its environment's 'additional_wrappers' must be a JSON array of objects.")
    registered = {wrapper.name for wrapper in getattr(known, "additional_wrappers", ())}
    wrappers = {str(wrapper.get("name")) for wrapper in recorded} - HARMLESS - registered
    if wrappers:
        raise ValueError(
            f"its environment '{spec['id']}' has the wrappers {', '.join(sorted(wrappers))}, and "
            "rljax runs no code because a file names it. Register the environment with them, and "
            "name it: --env MODULE:NAME."
        )
