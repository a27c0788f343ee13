"""Arguments of `rljax.train` and `rljax.resume`.

All raise `TypeError` for values of other types.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.training import configuration
from rljax.training.settings import LARGEST, Settings, seeds_of
from rljax.trust import Folder, nearest


def folder(out: Any) -> Path:
    """The folder of a run as a path."""
    return Path(configuration.text("the folder of a run", out))


def run_folder(out: Any, trusted: bool = False) -> Folder:
    """The folder of a run by its name, or `out` itself. With `trusted`, the user vouches for it."""
    if isinstance(out, Folder):
        return Folder(out.path, out.trusted or trusted)
    return Folder(folder(out), trusted)


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Settings` as Python's types, with the errors of `configuration.coerce`."""
    hints = typing.get_type_hints(Settings)
    settings = {}
    for name, value in values.items():
        if name not in hints:
            known = [x for x in hints if x not in ("agent", "env", "steps", "seeds", "data")]
            raise TypeError(
                f"there is no argument '{name}'."
                f"{configuration.run_hint(name) or nearest(name, known)} The agent's own settings "
                f"go into config={{...}}. All settings of a run: {', '.join(known)}"
            )
        settings[name] = configuration.coerce(name, value, hints[name], LARGEST)
    return settings


def online_stage(then_online: Any, offline_share: Any, steps: int | None) -> dict[str, Any]:
    """The settings of an added online stage, if any.

    Raises `ValueError` for a stage without a length, or together with `steps`.
    """
    values = {"then_online": then_online, "offline_share": offline_share}
    stage = checked({name: value for name, value in values.items() if value is not None})
    if stage and (stage.get("then_online", 0) < 1 or steps is not None):
        raise ValueError(
            "to go on in an environment, give --then-online N of at least 1, perhaps with "
            "--offline-share, and without --steps: the updates before it stay as planned."
        )
    return stage


def seeds_from(argument: Any) -> tuple[int, ...]:
    """The learners' seeds, from their number or a collection."""
    if isinstance(argument, range):
        return seeds_of(argument)
    seeds = configuration.native(argument)
    if isinstance(seeds, list | tuple | set | frozenset):
        return seeds_of([configuration.integer(seed, "a seed", LARGEST) for seed in seeds])
    return seeds_of(configuration.integer(seeds, "seeds", LARGEST))


def environment_name(env: Any) -> str | None:
    """The name of an environment, of a registered one of Gymnasium, or of a function.

    Raises `TypeError` where its name does not make it again.
    """
    if env is None or isinstance(env, str):
        return env
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    made = env
    if not isinstance(env, gymnasium.Env | EnvSpec) and callable(env):
        try:
            made = env()
        except Exception as error:
            raise TypeError(
                f"env is {env!r}, which does not make an environment: {error}. {_REGISTER}"
            ) from error
    spec = made if isinstance(made, EnvSpec) else getattr(made, "spec", None)
    if made is not env and isinstance(made, gymnasium.Env):
        made.close()
    if not isinstance(spec, EnvSpec):
        raise TypeError(f"env is {env!r}, it must be the name of an environment. {_REGISTER}")
    registered = gymnasium.registry.get(spec.id)
    same = ("entry_point", "max_episode_steps", "additional_wrappers")
    if registered is None or any(getattr(spec, name) != getattr(registered, name) for name in same):
        raise TypeError(
            f"env is {env!r}, and its name '{spec.id}' makes another environment. {_REGISTER}"
        )
    kwargs, usual = ({**x.kwargs, "render_mode": None} for x in (spec, registered))
    if kwargs != usual:
        raise TypeError(
            f"env is {env!r} with other arguments than its name '{spec.id}' has. {_REGISTER}"
        )
    return spec.id


_REGISTER = (
    "A run makes its environment again, so register it under a name: "
    "gymnasium.register('Mine-v0', entry_point=MyEnv, kwargs={...}), and train in 'Mine-v0'. Where "
    "a file mine.py does this, 'mine:Mine-v0' works everywhere, also on the command line."
)
