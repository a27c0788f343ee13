"""Experiments: built from a user's arguments or from a run's settings, ready for training."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import datasets, envs
from rljax.agent import Base
from rljax.buffers import Experience
from rljax.distributed import hardware
from rljax.runs import policy
from rljax.training import configuration, registry
from rljax.training import trust as trusting
from rljax.training.plan import Experiment
from rljax.training.settings import Settings, seeds_of


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
    seeds = seeds_of(seeds)
    module = registry.load_agent(agent)
    dataset = None if data is None else datasets.load(data)
    if settings.get("then_online") and settings.get("online") is None:
        settings["online"] = preset_online(agent, env, data)
    chosen = Settings(agent, _environment(agent, env, dataset), steps, seeds, data, **settings)
    if config is None or isinstance(config, Mapping):
        config = configuration.replace(preset(agent, module, env, data), config or {}, "config")
    experiment = Experiment(chosen, module, config, dataset, _base_of(chosen, trust))
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
    return Experiment(settings, module, own, dataset, _base_of(settings, trust))


def preset(agent: str, module: Any, env: str | None, data: str | None) -> Any:
    """The agent's Config by its presets for an environment, a data set or both. No rows of the data are read.

    The presets must not depend on how a run is evaluated. Without an environment, the presets of the data set's own
    environment are used. A published data set is also recognised by its file, and by its names in other collections.
    """
    return registry.preset(agent, module, *_task(env, data))


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


def described(experiment: Experiment) -> dict[str, Any]:
    """The experiment's entries in config.json, ready for JSON."""
    return {
        **dataclasses.asdict(experiment.settings),
        "environment": experiment.settings.env,
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
    return json.loads(json.dumps({"transitions": dataset.num, "mean_return": mean, **dataset.provenance}))


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


def _base_of(settings: Settings, trust: bool) -> Callable[[], Base] | None:
    """A function that reads the policy of the run named as base; it reads only once for all trainings of a grid."""
    if settings.base is None:
        return None
    return functools.cache(functools.partial(policy.base, settings.base, trust=trust))


def _require_mixing(settings: Settings, experience: Experience) -> None:
    """Raise `ValueError` where an offline share is given but batches are not mixed."""
    mixes = settings.then_online if experience.needs_data else settings.data is not None
    if not mixes and settings.offline_share != Settings.offline_share:
        remedy = "--then-online N" if experience.needs_data else "--data DATA"
        raise ValueError(
            f"--offline-share {settings.offline_share} is of batches from a data set and new experience, which are "
            f"mixed with {remedy}."
        )
