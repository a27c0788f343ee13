"""Arguments of `rljax.train` and `rljax.resume`.

All raise `TypeError` for values of other types.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.envs import objects
from rljax.learning import configuration
from rljax.learning.settings import LARGEST, Settings, seeds_of
from rljax.runs import records
from rljax.runs.export import packs
from rljax.runs.interface.dataset_files import DatasetFile
from rljax.system import user_files
from rljax.trust import Folder, nearest, note

# Of `rljax.train` itself.
ARGUMENTS = ("agent", "env", "steps", "data", "seeds", "config", "out", "callbacks", "loggers")
ARGUMENTS += ("quiet", "command", "trust")
# Arguments of making an environment that its name does not keep.
_MAKING_ARGUMENTS = {"render_mode", "num_envs", "vectorization_mode", "max_episode_steps"}


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
            known = [*ARGUMENTS, *(x for x in hints if x not in ARGUMENTS)]
            raise TypeError(
                f"there is no argument '{name}'."
                f"{configuration.run_hint(name) or nearest(name, known)} The agent's own settings "
                f"go into config={{...}}. All arguments: {', '.join(known)}"
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


def data_name(data: Any) -> str | None:
    """The name of a data set, also of a `rljax.Dataset`.

    Raises `ValueError` for one that no file holds.
    """
    if data is None:
        return None
    return data.source if isinstance(data, DatasetFile) else configuration.text("data", data)


def base_name(base: Any) -> Any:
    """The name FILE:FUNCTION of a function that Python hands over as a base; others unchanged.

    Raises `TypeError` for one that cannot be imported from a file.
    """
    if isinstance(base, str) or not callable(base):
        return base
    file = None if isinstance(base, type) else user_files.importable_file(base)
    if file is None:
        raise TypeError(
            f"base is {base!r}, which a resumed run could not import again: write a function of "
            'observations into a file, and give its name: base="mine.py:policy".'
        )
    return f"{file}:{base.__qualname__}"


def environment_name(env: Any) -> str | None:
    """The name of an environment: its own, that of a registered one of Gymnasium, or one by which
    this process alone knows it.

    Raises `TypeError` for what is no environment.
    """
    if env is None or isinstance(env, str):
        return env
    import gymnasium

    is_vector = isinstance(env, gymnasium.vector.VectorEnv)
    return (None if is_vector else _registered(env)) or objects.register(env)


def evaluation_environment(name: str | None) -> str | None:
    """Where evaluations play, for a training in the vector environment `name`; else None.

    Raises `ValueError` where its single environments are out of reach.
    """
    if name is None or not objects.is_object(name) or objects.known(name).kind != "vector":
        return None
    one = _registered(objects.known(name).source) or objects.one_of(name)
    if one is None:
        raise ValueError(
            f"'{name}' is a vector environment, and evaluations need environments of their own: "
            "give eval_env."
        )
    return one


def environment_again(folder: Folder, env: Any) -> None:
    """Make the environment of a run known that began with one of Python.

    Raises `ValueError` where it is needed and not given, and where the run has another.
    """
    path = folder.path / "config.json"
    name = records.read_config(folder.path)["env"] if path.exists() else ""
    if objects.is_object(name) and not isinstance(env, str):
        if env is not None:
            objects.register(env, name)
        else:
            objects.known(name)
    elif env is not None and environment_name(env) != name:
        raise ValueError(f"the run in '{folder.path}' learns in '{name}', env is {env!r}.")


def with_class_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's settings with the names of the user's classes in place of the classes.

    A note says so where only this process knows a class.
    """
    named = {
        name: user_files.name_of(value) if isinstance(value, type) else value
        for name, value in config.items()
    }
    for name, value in named.items():
        if isinstance(config[name], type) and user_files.file_of(value) is None:
            note(
                f"the class of '{name}' cannot be imported from a file. To go on with this run, or "
                f"to load it, in another process: rljax.resume(folder, config={{'{name}': "
                f"{config[name].__name__}}}), and rljax.load likewise."
            )
    return named


def classes_again(folder: Folder, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Make the classes in `config` known under the names that the run has; returns the rest.

    Raises `ValueError` where the run has no such class.
    """
    rest, path = dict(config or {}), folder.path
    classes = {name: value for name, value in rest.items() if isinstance(value, type)}
    for name, value in classes.items():
        saved = packs.read_config(path) if path.is_file() else records.read_config(path)
        class_name = saved["config"].get(name)
        if not user_files.is_class_name(class_name):
            raise ValueError(f"the run in '{path}' has no class as its '{name}'.")
        user_files.register(value, class_name)
        del rest[name]
    return rest


def _registered(env: Any) -> str | None:
    """The name under which Gymnasium makes the same environment again, if there is one."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    made = env
    is_made = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv | EnvSpec)
    if not is_made and callable(env) and not isinstance(env, type):
        try:
            made = env()
        except Exception:
            return None
    spec = made if isinstance(made, EnvSpec) else getattr(made, "spec", None)
    if made is not env and isinstance(made, gymnasium.Env):
        made.close()
    if not isinstance(spec, EnvSpec):
        return None
    registered = gymnasium.registry.get(spec.id)
    same = ("entry_point", "max_episode_steps", "additional_wrappers")
    if registered is None or any(getattr(spec, name) != getattr(registered, name) for name in same):
        return None
    changed = {
        name: value
        for name, value in spec.kwargs.items()
        if name not in _MAKING_ARGUMENTS and registered.kwargs.get(name) != value
    }
    try:
        return f"{spec.id}?{json.dumps(changed)}" if changed else spec.id
    except TypeError:
        return None
