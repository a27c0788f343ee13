"""Experiments, built from a user's arguments or from a run's settings."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import datasets
from rljax.learning import configuration, registry
from rljax.learning.named_code import digests, environment_code, named_code
from rljax.learning.plan import Experiment
from rljax.learning.settings import LARGEST, Settings, settings_of
from rljax.runs import arguments, json_files
from rljax.runs.policies import loading
from rljax.system import hardware
from rljax.trust import Folder, note, require_no_code


def prepare(
    agent: str,
    env: Any = None,
    steps: int = 1_000_000,
    *,
    data: str | None = None,
    seeds: int | Sequence[int] = 1,
    config: Any = None,
    trust: bool = False,
    **settings: Any,
) -> Experiment:
    """The experiment of `rljax.train`, with its errors."""
    agent = configuration.text("agent", agent)
    data = arguments.data_name(data)
    env = arguments.environment_name(env)
    steps = configuration.integer(steps, "steps", LARGEST)
    seeds = arguments.seeds_from(seeds)
    eval_env = arguments.environment_name(settings.get("eval_env"))
    eval_env = eval_env or arguments.evaluation_environment(env)
    base = arguments.base_name(settings.get("base"))
    settings = arguments.checked(settings | {"eval_env": eval_env, "base": base})
    module = registry.load_agent(agent)
    dataset = None if data is None else datasets.load(data)
    if dataset is not None and dataset.provenance.get("unread"):
        names = ", ".join(dataset.provenance["unread"][:5])
        note(f"arrays of '{data}' are not read: {names}. All of them: rljax data check")
    if settings.get("then_online") and settings.get("online") is None:
        settings["online"] = preset_online(agent, env, data)
    run_settings = Settings(
        agent, _environment(agent, env, dataset), steps, seeds, data, **settings
    )
    if config is None or isinstance(config, Mapping):
        defaults = preset(agent, module, env, data, run_settings.preset)
        named = {configuration.setting(defaults, x): value for x, value in (config or {}).items()}
        named = arguments.with_class_names(named)
        config = configuration.replace(defaults, configuration.native(named), "config")
    elif type(config).__qualname__ == module.Config.__qualname__:
        # The file of an agent may have been loaded twice.
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        values = configuration.native(arguments.with_class_names(values))
        config = configuration.replace(config, values, "config")
    else:
        raise TypeError(
            f"config is {config!r}, it must be a mapping of changes, or a Config of "
            f"agent '{agent}'."
        )
    # The command itself names the other runs.
    other_runs = _other_runs(run_settings, Folder(Path(), trust))
    return Experiment(run_settings, module, config, dataset, *other_runs)


def restored(
    settings: Settings,
    config: Mapping[str, Any],
    folder: Folder,
    file: str,
    seals: Any,
    of_base: Sequence[str] | None = None,
) -> Experiment:
    """The experiment with these settings of a folder's file, with the digests `of_base` of its
    base's policies.

    Raises `ValueError` for code that this folder may not run.
    """
    folder.require_code(file, named_code(settings, config), seals)
    module = registry.load_agent(settings.agent)
    restored_config = configuration.replace(module.Config(), config, f"'{folder.path / file}'")
    configuration.require_lengths(restored_config, len(settings.seeds), f"'{folder.path / file}': ")
    dataset = None if settings.data is None else datasets.load(settings.data)
    other_runs = _other_runs(settings, folder, of_base)
    return Experiment(settings, module, restored_config, dataset, *other_runs)


def reopened(
    folder: Folder, described: Mapping[str, Any], online: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment of the run in `folder`, with a stage for `online` added.

    Raises `ValueError` where the run has such a stage, or its data or base has changed.
    """
    settings = settings_of(described)
    if online and described["then_online"]:
        raise ValueError(
            f"'{folder.path}' goes on online already. For another number of steps in all: --steps N"
        )
    if online:
        changes = preset_online(settings.agent, settings.env, settings.data)
        settings = dataclasses.replace(settings, **{**online, "online": changes})
    experiment = restored(
        settings,
        described["config"],
        folder,
        "config.json",
        described.get("seals"),
        described.get("base_digests"),
    )
    then, now = described["dataset"] or {}, described_data(experiment.dataset) or {}
    changes = [
        f"{name}: {then.get(name)} then, {now.get(name)} now"
        for name in sorted({**then, **now})
        # A run may go on with other versions, which is noted, and reads the same arrays.
        if name not in ("versions", "unread") and now.get(name) != then.get(name)
    ]
    if changes:
        raise ValueError(
            f"data set '{settings.data}' is not what the run in '{folder.path}' began with: its "
            f"files have changed. {'; '.join(changes)}."
        )
    return experiment


def preset(
    agent: str, module: Any, env: str | None, data: str | None, variant: str | None = None
) -> Any:
    """The agent's Config by its presets for an environment, a data set or both.

    Without an environment they are those of the data set's own.
    """
    return registry.preset(agent, module, *_task(env, data), variant=variant)


def preset_online(agent: str, env: str | None, data: str | None) -> dict[str, Any] | None:
    """The presets' changes when a run goes on online."""
    return registry.preset_online(agent, *_task(env, data)) or None


def _task(env: str | None, data: str | None) -> tuple[str | None, ...]:
    if data is None:
        return (env,)
    name = datasets.environment(data) if env in (None, "none") else env
    return (name, data, *datasets.aliases(data))


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
    """What the processes of a run share."""
    entries = described(experiment)
    config = {f"config.{name}": value for name, value in entries.pop("config").items()}
    file = zlib.crc32(Path(str(experiment.module.__file__)).read_bytes())
    files = digests(experiment.settings, configuration.as_json(experiment.config))
    return {**entries, **config, "agent's file": file, **files, **hardware.versions()}


def described_data(dataset: datasets.OfflineDataset | None) -> dict[str, Any] | None:
    """The values that identify a data set, ready for JSON."""
    if dataset is None:
        return None
    returns = dataset.returns()
    mean = float(returns.mean()) if len(returns) else None
    return json_files.plain({"transitions": dataset.num, "mean_return": mean, **dataset.provenance})


def _environment(agent: str, env: str | None, dataset: datasets.OfflineDataset | None) -> str:
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
    require_no_code(dataset.env, environment_code(dataset.env), dataset.name)
    return dataset.env


def _other_runs(
    settings: Settings, folder: Folder, of_base: Sequence[str] | None = None
) -> tuple[Callable[..., Any] | None, Callable[[], Any] | None]:
    """What reads the policies of --base and --from, which files in `folder` name.

    `of_base` are digests of the policies of --base with which a run began.
    """
    base = start = None
    if settings.base is not None:
        named = (folder.other(settings.base), len(settings.seeds), of_base)
        base = functools.partial(loading.base, *named)
    if settings.from_run is not None:
        start = functools.cache(
            functools.partial(loading.load_named, folder.other(settings.from_run))
        )
    return base, start
