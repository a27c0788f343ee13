"""What a training refuses and warns of, before anything compiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rljax import agent as contract
from rljax import datasets
from rljax.agent import Base, EnvSpec, difference, shown
from rljax.buffers import Experience, Supply
from rljax.distributed import processes
from rljax.envs import signals
from rljax.envs.host.hosted import Hosted
from rljax.learning.evaluation import LIMIT
from rljax.learning.plan.experiment import Experiment
from rljax.learning.population import digests_of_base
from rljax.learning.settings import Settings

HOSTED_SECONDS = 0.001  # to create one environment on the host
LONG_START = 60  # seconds of creating environments before a warning
MANY_STEPS = 1_000  # evaluation's steps per training step before a warning


def require_source(experiment: Experiment, experience: Experience) -> None:
    """Raise `ValueError` for what the agent cannot learn from or take as an input."""
    settings, dataset, agent = experiment.settings, experiment.dataset, experiment.settings.agent
    supply = Supply(
        agent=agent,
        env=settings.env,
        data=None if dataset is None else dataset.name,
        all_tasks=_all_tasks(dataset),
        then_online=settings.then_online,
        eval_env=settings.eval_env,
        weights=settings.weights,
        data_on_host=settings.data_on_host,
        offline_share=settings.offline_share,
    )
    experience.require_data(supply)
    if dataset is not None:
        signals.require(experience.signals, dataset.spec.signals, agent, dataset.name, True)
        datasets.require_labels(dataset, experience.labels, agent)
    experience.require_supply(supply)
    if settings.offline_share != Settings.offline_share:
        experience.require_mixing(supply)
    if experiment.load_base is not None and not hasattr(experiment.module, "use_base"):
        raise ValueError(f"agent '{agent}' takes no other run's policy: leave out --base.")


def require_base(experiment: Experiment, base: Base | None, spec: EnvSpec) -> None:
    """Raise `ValueError` for a base that the agent cannot use, or that it lacks."""
    module, settings = experiment.module, experiment.settings
    if base is not None:
        require_same_spaces(base.spec, f"--base {settings.base}", spec)
    is_copied = settings.schedule is not None
    if base is not None and is_copied and len(set(digests_of_base(base))) > 1:
        raise ValueError(
            f"--base {settings.base} has a policy for each learner, and the schedule copies "
            "learners: name a run of one learner."
        )
    if contract.base_acts(module, base, experiment.config) and experiment.dataset is not None:
        raise ValueError(
            f"the policy of --base remembers, and '{experiment.dataset.name}' does not have its "
            "actions: leave out --data, or name a base that acts on single observations."
        )
    if hasattr(module, "check_base"):
        module.check_base(base, experiment.config)
    elif base is not None:
        contract.require_acting(settings.agent, base)


def _all_tasks(dataset: datasets.OfflineDataset | None) -> str | None:
    """The whole data set where this one is cut for one task, as OGBench's are."""
    if dataset is None or dataset.provenance.get("task") is None:
        return None
    return f"ogbench/{dataset.provenance['id']}"


def require_shared(settings: Settings, name: str, stepped_on_host: bool) -> None:
    """Raise `ValueError` for environments and data that several processes cannot share."""
    if not processes.is_distributed():
        return
    if stepped_on_host:
        raise ValueError(
            f"'{name}' is stepped on the host, several processes share environments inside the "
            "program (brax/, gymnax/, playground/, rljax/) and data sets. Its learners do not need "
            f"each other: train some on each machine, rljax train {settings.agent} --env {name} "
            "--seed S, or a grid's launches with --ray."
        )
    if settings.data_on_host:
        raise ValueError(
            "--data-on-host keeps a data set in one machine's memory: several processes "
            "cannot share it."
        )


def require_fit(dataset: datasets.OfflineDataset, spec: EnvSpec, experience: Experience) -> None:
    """Raise `ValueError` where the shapes of a data set, as the agent observes it, and of an
    environment differ.

    A number of discrete actions that the data lack is the environment's.
    """
    of_data = experience.observed_spec(dataset.spec, dataset.name)
    shows_other = difference(of_data, spec) in ("observation_shape", "observation_dtype", "parts")
    if shows_other and not (spec.is_vector and of_data.is_vector):
        raise ValueError(
            f"data set '{dataset.name}' shows {shown(of_data)}, environment '{spec.name}' shows "
            f"{shown(spec)}. Name one that fits with --env, or none to train without evaluations."
        )
    if dataset.discrete and spec.discrete and len(of_data.choices) == len(spec.choices):
        known = dataset.provenance.get("choices" if of_data.choices else "num_actions")
        choices = tuple(max(pair) for pair in zip(of_data.choices, spec.choices, strict=True))
        number = sum(choices) or max(of_data.action_size, spec.action_size)
        if not known:
            of_data = dataclasses.replace(of_data, action_size=number, choices=choices)
    name = difference(of_data, spec)
    if name is None:
        return
    if name in ("action_size", "discrete") and spec.discrete != of_data.discrete:
        name = "discrete"
        if spec.discrete and not spec.choices:
            datasets.require_integers(dataset, spec.name, spec.action_size)
    raise ValueError(
        f"data set '{dataset.name}' has {name} = {getattr(of_data, name)}, environment "
        f"'{spec.name}' has {getattr(spec, name)}. Name one that fits with --env, or none to train "
        "without evaluations."
    )


def require_same_spaces(of_other: EnvSpec, flag: str, spec: EnvSpec) -> None:
    """Raise `ValueError` where the run of `flag` has other shapes than `spec`."""
    name = difference(of_other, spec)
    if name is not None:
        raise ValueError(
            f"the policy of {flag} was trained with {name} = {getattr(of_other, name)} on "
            f"'{of_other.name}', '{spec.name}' has {getattr(spec, name)}. Name a run in an "
            "environment of the same shapes."
        )


def other_bounds(dataset: datasets.OfflineDataset | None, hosted: Hosted | None) -> str | None:
    """A warning where action bounds of data set and environment differ."""
    bounds = None if hosted is None else hosted.action_bounds
    if dataset is None or dataset.action_bounds is None or bounds is None:
        return None
    if np.allclose(dataset.action_bounds, bounds):
        return None
    low, high = (f"[{x[0].min():g}, {x[1].max():g}]" for x in (dataset.action_bounds, bounds))
    return (
        f"actions of '{dataset.name}' were read as lying in {low}, those of the environment lie in "
        f"{high}. That is right if the file's are normalised; if not: rljax data convert FILE NEW "
        "--action-bounds LOW HIGH"
    )


def warnings(
    stages: Sequence[Any], settings: Settings, spec: EnvSpec, rows: int | None, on_host: bool
) -> Iterator[str]:
    """Warnings about unusual numbers.

    `rows` is the size of the data set, if any; `on_host` says that the environments are. Raises
    `ValueError` for a stage that ends before its first update, unless the settings allow it.
    """
    before = 0
    declared = [stage.driver.hyper.experience for stage in stages]
    for stage, experience in zip(stages, declared, strict=True):
        flag = "--then-online" if settings.then_online else "--steps"
        steps, before = stage.end - before, stage.end
        warning = experience.idle(steps, stage.iteration, on_host, flag)
        if warning is not None and not settings.without_updates:
            raise ValueError(f"{warning} `rljax train --without-updates` trains all the same.")
        yield from [] if warning is None else [warning]
    yield from oddities(settings, declared, spec, rows, on_host)


def oddities(
    settings: Settings,
    experiences: Sequence[Experience],
    spec: EnvSpec,
    rows: int | None,
    on_host: bool,
) -> Iterator[str]:
    """The warnings that need no drivers; see `warnings`."""
    for experience in experiences:
        yield from experience.oddities(rows, spec.max_episode_steps)
    if settings.env == "none":
        return
    number, episodes = len(settings.seeds), settings.eval_episodes
    longest = episodes * (spec.max_episode_steps or LIMIT)
    if longest > MANY_STEPS * settings.eval_every:
        yield (
            f"each evaluation plays {episodes:,} episodes with each learner, which are up to "
            f"{longest:,} steps, after {settings.eval_every:,} steps of training. Lower "
            "--eval-episodes or raise --eval-every."
        )
    environments = number * (episodes + max(experience.num_envs for experience in experiences))
    if on_host and environments * HOSTED_SECONDS > LONG_START:
        yield f"{environments:,} environments are created on the host, which takes minutes."
