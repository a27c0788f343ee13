"""Experiments: built from a user's arguments or from a run's settings, ready for training."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import time
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import datasets, envs
from rljax.buffers import Experience, Supply
from rljax.distributed import hardware, processes
from rljax.distributed.lock import FILE as LOCK_FILE
from rljax.distributed.lock import Lock
from rljax.runs import checkpoints, json_files, policy, records
from rljax.training import configuration, registry
from rljax.training import trust as trusting
from rljax.training.loop import prefer_devices
from rljax.training.plan import Experiment
from rljax.training.settings import LARGEST, Settings, seeds_of, settings_of

_HALF_WRITTEN = ".config.json.*.tmp"


def prepare(
    agent: str,
    env: str | None = None,
    steps: int = 1_000_000,
    *,
    data: str | None = None,
    seeds: int | Sequence[int] = 1,
    config: Any = None,
    trust: bool = False,
    **settings: Any,
) -> Experiment:
    """Find the agent, its settings and its data; see `rljax.train` for the arguments and the errors."""
    agent, data = configuration.text("agent", agent), None if data is None else configuration.text("data", data)
    env, steps, seeds = _environment_name(env), configuration.integer(steps, "steps", LARGEST), _seeds(seeds)
    settings = checked(settings | {"eval_env": _environment_name(settings.get("eval_env"))})
    module = registry.load_agent(agent)
    dataset = None if data is None else datasets.load(data)
    if settings.get("then_online") and settings.get("online") is None:
        settings["online"] = preset_online(agent, env, data)
    chosen = Settings(agent, _environment(agent, env, dataset), steps, seeds, data, **settings)
    if config is None or isinstance(config, Mapping):
        own = preset(agent, module, env, data, chosen.preset)
        config = configuration.replace(own, configuration.native(config or {}), "config")
    elif type(config).__qualname__ == module.Config.__qualname__:  # the file of an agent may have been loaded twice
        values = {field.name: configuration.native(getattr(config, field.name)) for field in dataclasses.fields(config)}
        config = configuration.replace(config, values, "config")
    else:
        raise TypeError(f"config is {config!r}, it must be a mapping of changes, or a Config of agent '{agent}'.")
    experiment = Experiment(chosen, module, config, dataset, *_other_runs(chosen, trust))
    _require_mixing(chosen, experiment.experience)
    return experiment


def restored(
    settings: Settings, config: Mapping[str, Any], file: Path, *, seals: Any = None, trust: bool = False
) -> Experiment:
    """The experiment with these settings and `config`, which were read as JSON from `file`.

    Raises `ValueError` if the settings name code, neither the file's `seals` nor `trust` vouch for it; see
    `rljax.training.trust`.
    """
    trusting.require(dataclasses.asdict(settings), seals, file, trust)
    module = registry.load_agent(settings.agent)
    own = configuration.replace(module.Config(), config, f"'{file}'")
    dataset = None if settings.data is None else datasets.load(settings.data)
    return Experiment(settings, module, own, dataset, *_other_runs(settings, trust))


def reopened(
    folder: Path, described: Mapping[str, Any], online: Mapping[str, Any] | None = None, *, trust: bool = False
) -> Experiment:
    """The experiment of the run in `folder`, whose config.json is `described`, with an added stage for `online`.

    Raises `ValueError` where the run has such a stage, where its data set or its base has changed, and where it names
    code that nobody vouches for; see `rljax.training.trust`.
    """
    settings = dataclasses.replace(settings_of(described), **(online or {}))
    if online and described.get("then_online"):
        raise ValueError(f"'{folder}' goes on online already. For another number of steps in all: --steps N")
    if online:
        changes = preset_online(settings.agent, settings.env, settings.data)
        settings = dataclasses.replace(settings, online=changes)
    file, seals = folder / "config.json", described.get("seals")
    experiment = restored(settings, described["config"], file, seals=seals, trust=trust)
    then, now = described.get("dataset") or {}, described_data(experiment.dataset) or {}
    # The versions are those of the packages that read it: a run may go on with others, which is noted.
    changed = sorted(name for name in {**then, **now} if name != "versions" and now.get(name) != then.get(name))
    if changed:
        differences = "; ".join(f"{name}: {then.get(name)} then, {now.get(name)} now" for name in changed)
        raise ValueError(
            f"data set '{settings.data}' is not what the run in '{folder}' began with: its files have changed. "
            f"{differences}."
        )
    prefer_devices(experiment, len(settings.seeds))
    if experiment.base is not None and experiment.base.digest() != described.get("base_digest"):
        raise ValueError(
            f"the policy in '{settings.base}' is not the one that the run in '{folder}' began with: it has changed "
            "since, as when it is trained on. Restore that folder, or start a new run."
        )
    return experiment


def require_same_beginning(folder: Path, inherited: Any) -> None:
    """Raise `ValueError` where what learners inherit has changed since the run in `folder`, which begins anew."""
    if records.read_config(folder).get("inherited") != inherited:
        raise ValueError(
            f"the run in '{folder}' begins anew, and the run of its --from has changed since. Restore that folder, or "
            "start a new run."
        )


def note_resumption(
    folder: Path, settings: Settings, entry: dict[str, Any], conditions: Mapping[str, Any], state_bytes: int | None
) -> list[str]:
    """Record in config.json that the run goes on: the new plan, and the `entry` with the step and the command.

    Returns a warning where the conditions differ from those in which the run began. That is recorded, too.
    """
    described = records.read_config(folder)
    if state_bytes is not None and not described.get("then_online"):
        described["state_bytes"] = state_bytes
    described |= {name: getattr(settings, name) for name in ("steps", "then_online", "offline_share", "online")}
    described["seals"] = trusting.seals(dataclasses.asdict(settings))
    different = hardware.differences(described, conditions)
    if different:
        entry = entry | {"different": different}
    described["resumed"] = [*(described.get("resumed") or []), entry]
    records.write_json(folder / "config.json", described)
    if not different:
        return []
    return [
        f"the run began under other conditions ({'; '.join(different)}). Its numbers will differ from those of a run "
        "that stayed as it was; config.json says so."
    ]


def require_structure(folder: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise `ValueError` where the `saved` settings of a checkpoint, which shape its arrays, are not those `wanted`.

    A setting that neither the checkpoint nor the run's config.json has is newer than the run, and has its default.
    """
    written = records.read_config(folder)["config"]
    for name, value in wanted.items():
        is_new = name.startswith("online.") or name.removeprefix("config.") not in written
        if saved.get(name, value if is_new else None) != value:
            raise ValueError(
                f"'{folder / 'config.json'}' says {name} = {value}, the checkpoint was made with {saved.get(name)}. "
                "Structural settings cannot change in a resumed run: restore the value, or start a new run."
            )


def preset(agent: str, module: Any, env: str | None, data: str | None, variant: str | None = None) -> Any:
    """The agent's Config by its presets for an environment, a data set or both. No rows of the data are read.

    The presets must not depend on how a run is evaluated. Without an environment, the presets of the data set's own
    environment are used. A published data set is also recognised by its file, and by its names in other collections.
    """
    return registry.preset(agent, module, *_task(env, data), variant=variant)


def preset_online(agent: str, env: str | None, data: str | None) -> dict[str, Any] | None:
    """The settings that the agent's presets change when a run goes on online; None where they change nothing."""
    return registry.preset_online(agent, *_task(env, data)) or None


def _task(env: str | None, data: str | None) -> tuple[str | None, ...]:
    """The names of a task that presets may match: those of its environment and of its data set."""
    if data is None:
        return (env,)
    return (datasets.environment(data) if env in (None, "none") else env, data, *datasets.aliases(data))


def default_folder(settings: Settings) -> Path:
    """A new folder runs/<agent>/<environment or data set>/<time>."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    task = envs.short(settings.env) if settings.data is None else datasets.short(settings.data)
    parent = Path("runs", registry.agent_name(settings.agent), task)
    folder, number = parent / stamp, 1
    while folder.exists():
        folder, number = parent / f"{stamp}-{number}", number + 1
    return folder


def make_folder(folder: Path) -> Lock:
    """Make the folder of a run, and lock it.

    A folder that holds nothing is also fine: whoever made it was killed before it had written config.json. Raises
    `FileExistsError` for any other folder or file.
    """
    with contextlib.suppress(FileExistsError):  # the next line says more
        folder.mkdir(parents=True)
    _require_unused(folder)
    lock = Lock(folder)
    try:
        _require_unused(folder)
        for left_over in folder.glob(_HALF_WRITTEN):
            left_over.unlink()
    except BaseException:
        lock.release()
        raise
    return lock


def lock_run(folder: Path, wait: float) -> Lock | None:
    """Lock the run in `folder` for the first process of this run, which alone gets the lock. All raise its errors."""
    taken: list[Lock] = []

    def take() -> None:
        records.read_config(folder)  # only the folders of runs are locked
        taken.append(Lock(folder, wait))

    processes.on_first(take)
    return taken[0] if taken else None


def _require_unused(folder: Path) -> None:
    if not folder.is_dir() or any(
        path.name != LOCK_FILE and not path.match(_HALF_WRITTEN) for path in folder.iterdir()
    ):
        raise FileExistsError(f"'{folder}' exists. Choose another --out, or continue that run: rljax resume {folder}")


def require_visible(folder: Path) -> None:
    """Raise `ValueError` where this process does not see the folder that the first process of the run has made."""
    for _ in range(10):  # on network disks a new folder appears with a delay
        if (folder / "config.json").exists():
            return
        time.sleep(0.5)
    raise ValueError(
        f"process 0 has made '{folder}', and this process does not see it. The processes of a run write its "
        "checkpoints together: give --out a folder on a disk that all hosts share."
    )


def described(experiment: Experiment) -> dict[str, Any]:
    """The experiment's entries in config.json, ready for JSON."""
    return {
        **dataclasses.asdict(experiment.settings),
        "environment": experiment.settings.evaluated_in,
        "storage": experiment.experience.kind,
        "config": configuration.as_json(experiment.config),
        "dataset": described_data(experiment.dataset),
        "reference": None if experiment.dataset is None else experiment.dataset.reference,
    }


def shared(experiment: Experiment) -> dict[str, Any]:
    """The settings and versions that all processes of a run must have in common."""
    own = described(experiment)
    config = {f"config.{name}": value for name, value in own.pop("config").items()}
    file = zlib.crc32(Path(str(experiment.module.__file__)).read_bytes())
    return {**own, **config, "agent's file": file, **hardware.versions()}


def described_data(dataset: datasets.Dataset | None) -> dict[str, Any] | None:
    """The values that identify a data set, ready for JSON."""
    if dataset is None:
        return None
    returns = dataset.returns()
    mean = float(returns.mean()) if len(returns) else None
    return json.loads(json_files.dumps({"transitions": dataset.num, "mean_return": mean, **dataset.provenance}))


def _environment(agent: str, env: str | None, dataset: datasets.Dataset | None) -> str:
    """The environment of a run: `env`, or the one that matches the data set.

    Raises `ValueError` where neither names one.
    """
    if env is not None:
        return env
    if dataset is None:
        raise ValueError(f"no environment: rljax train {agent} --env Hopper-v5")
    if dataset.env is None:
        reason = dataset.provenance.get("no_environment") or "Give --env NAME."
        raise ValueError(
            f"data set '{dataset.name}' names no environment to evaluate in: {reason} "
            "To train without evaluations: --env none."
        )
    trusting.require_named(dataset.env, dataset.name)
    return dataset.env


def _other_runs(settings: Settings, trust: bool) -> tuple[Callable[[], Any] | None, ...]:
    """Functions that read the base, and the run with whose parameters learners begin; None where none is named.

    Each reads only once for all trainings of a grid.
    """

    def reader(read: Callable[..., Any], folder: str | None) -> Callable[[], Any] | None:
        return None if folder is None else functools.cache(functools.partial(read, folder, trust=trust))

    return reader(policy.base, settings.base), reader(_beginning, settings.from_run)


def _beginning(out: str, *, trust: bool) -> policy.Policies:
    """The last policies of the run in `out`, with which learners begin. Raises `ValueError` where there are none."""
    try:
        return policy.load_all(out, trust=trust)
    except (ValueError, checkpoints.CheckpointError) as error:
        raise ValueError(
            f"--from {out} cannot be read: {error} Name the folder of a run that has a checkpoint."
        ) from error


def _require_mixing(settings: Settings, experience: Experience) -> None:
    """Raise `ValueError` where an offline share is given but batches are not mixed."""
    if settings.offline_share != Settings.offline_share:
        supply = Supply(
            agent=settings.agent,
            data=settings.data,
            then_online=settings.then_online,
            offline_share=settings.offline_share,
        )
        experience.require_mixing(supply)


# Arguments of Python's callers


def folder(out: Any) -> Path:
    """The folder of a run as a path. Raises `TypeError` for what names no folder."""
    return Path(configuration.text("the folder of a run", out))


def checked(values: Mapping[str, Any], optional: bool = False) -> dict[str, Any]:
    """Fields of `Settings` as Python's types. With `optional`, each may also be None.

    Raises `TypeError` for a name that is no field, and for a value of another type than the field's.
    """
    hints = typing.get_type_hints(Settings)
    found = {}
    for name, value in values.items():
        if name not in hints:
            known = [known for known in hints if known not in ("agent", "env", "steps", "seeds", "data")]
            raise TypeError(
                f"there is no argument '{name}'. {configuration.nearest(name, known)}All settings: {', '.join(known)}"
            )
        kinds = typing.get_args(hints[name]) or (hints[name],)
        found[name] = value if value is None and optional else _of_kind(name, value, kinds)
    return found


def _of_kind(name: str, value: Any, kinds: Sequence[Any]) -> Any:
    number = configuration.native(value)
    if value is None and type(None) in kinds:
        return None
    if int in kinds:
        return configuration.integer(value, name, LARGEST)
    if float in kinds and isinstance(number, int | float) and not isinstance(number, bool):
        return number
    if bool in kinds and isinstance(number, bool):
        return number
    if ... in kinds and isinstance(value, list | tuple):  # of names
        return tuple(configuration.text(name, each) for each in value)
    if str in kinds and ... not in kinds and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping) and any(typing.get_origin(kind) is not None for kind in kinds):
        return number
    if ... in kinds:
        raise TypeError(f"{name} is {value!r}, it must be a sequence of names.")
    names = " or ".join("None" if kind is type(None) else _NAMES.get(kind, "a mapping") for kind in kinds)
    raise TypeError(f"{name} is {value!r}, it must be {names}.")


_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


def _seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds of the learners, from their number or a collection of them."""
    given = seeds if isinstance(seeds, range) else configuration.native(seeds)
    if isinstance(given, list | tuple | set | frozenset):
        return seeds_of([configuration.integer(seed, "a seed", LARGEST) for seed in given])
    return seeds_of(given if isinstance(given, range) else configuration.integer(given, "seeds", LARGEST))


def _environment_name(env: Any) -> str | None:
    """The name of an environment. A registered environment of Gymnasium, or a function that makes one, has a name too.

    Raises `TypeError` for an environment that its name does not make again: a run must be able to.
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
            raise TypeError(f"env is {env!r}, which does not make an environment: {error}. {_REGISTER}") from error
    spec = made if isinstance(made, EnvSpec) else getattr(made, "spec", None)
    if made is not env and isinstance(made, gymnasium.Env):
        made.close()
    if not isinstance(spec, EnvSpec):
        raise TypeError(f"env is {env!r}, it must be the name of an environment. {_REGISTER}")
    registered = gymnasium.registry.get(spec.id)
    same = ("entry_point", "max_episode_steps", "additional_wrappers")
    if registered is None or any(getattr(spec, name) != getattr(registered, name) for name in same):
        raise TypeError(f"env is {env!r}, and its name '{spec.id}' makes another environment. {_REGISTER}")
    kwargs, usual = ({**x.kwargs, "render_mode": None} for x in (spec, registered))
    if kwargs != usual:
        raise TypeError(f"env is {env!r} with other arguments than its name '{spec.id}' has. {_REGISTER}")
    return spec.id


_REGISTER = (
    "A run makes its environment again, when it copies it, evaluates and resumes. So register it under a name: "
    "gymnasium.register('Mine-v0', entry_point=MyEnv, kwargs={...}), and train in 'Mine-v0'. Where this is done in a "
    "file mine.py, 'mine:Mine-v0' works everywhere, also on the command line."
)
