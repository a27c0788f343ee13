"""The state of a training in a checkpoint of `rljax.runs.checkpoints`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rljax.agent import float_fields
from rljax.learning import configuration, population
from rljax.learning.loop.training import Seconds, Training

# Settings of a run that stay as they are; `rljax resume` can change others.
LASTING = ("log_every", "eval_every", "eval_episodes", "eval_env")
LASTING += ("weights", "weights_alpha", "weights_share")


def structure(training: Training) -> dict[str, Any]:
    """The settings that determine the arrays' structure, ready for JSON."""
    static: dict[str, Any] = {}
    for prefix, stage in zip(("config", "online"), training.stages, strict=False):
        traced, settings = float_fields(type(stage.config)), configuration.as_json(stage.config)
        values = {name: value for name, value in settings.items() if name not in traced}
        static |= {
            f"{prefix}.{name}": x for name, x in values.items() if static.get(f"config.{name}") != x
        }
    return static | {
        "seeds": list(training.settings.seeds),
        "observation_shape": list(training.spec.observation_shape),
        "action_size": training.spec.action_size,
    }


def protocol(training: Training) -> dict[str, Any]:
    """The other settings that decide a run's numbers, ready for JSON."""
    numbers: dict[str, Any] = {}
    for prefix, config in zip(("config", "online"), training.first_configs, strict=False):
        settings = configuration.as_json(config)
        numbers |= {f"{prefix}.{name}": settings[name] for name in float_fields(type(config))}
    return numbers | {name: getattr(training.settings, name) for name in LASTING}


def arrays(training: Training) -> dict[str, Any]:
    """The driver's arrays, and "best", the agents of the best evaluations."""
    best = training.best
    if best is None:
        best = population.choose(training.best_return < 0, training.driver.agent_state, None)
    return training.driver.arrays() | {"best": best}


def notes(training: Training, environments: bytes | None) -> dict[str, Any]:
    """The rest of the state, ready for JSON, with the driver's `environments`."""
    return {
        "step": training.step,
        "updates": training.updates,
        "compile_seconds": training.clock.seconds,
        "loop_seconds": training.loop_seconds,
        "loop_steps": training.loop_steps,
        "seconds": dataclasses.asdict(training.seconds),
        "random_return": training.random_return,
        "stage": training.stages.index(training.stage),
        "best_return": [None if np.isinf(x) else x for x in training.best_return.tolist()],
        "diverged": list(training.frozen.records.values()),
        "values": values(training),
        "environment": training.environment,
        "structure": structure(training),
        "protocol": protocol(training),
        "environments": "saved"
        if environments is not None
        else training.driver.without_environments,
        "reason": training.driver.save_failure,
    }


def values(training: Training) -> dict[str, Any] | None:
    """The settings that a schedule or a callback changes, one value per learner; None without."""
    varied = {} if training.schedule is None else configuration.varied(training.config)
    return {**training.changed, **varied} or None


def enter_stage(training: Training, notes: Mapping[str, Any]) -> None:
    """Enter the stage in which a checkpoint with these notes was saved."""
    training.stage = training.stages[notes["stage"]]


def restore(
    training: Training,
    arrays: dict[str, Any],
    best: Any,
    notes: Mapping[str, Any],
    environments: bytes | None,
) -> None:
    """Continue exactly from `arrays`, `notes` and the driver's `environments`."""
    if notes.get("environment"):
        training.change_environment(notes["environment"])
    with training.clock.counting():
        training.best = training.driver.spread.learners(best)
        training.driver.restore(arrays, environments)
    training.step = training.resumed_at = notes["step"]
    training.updates = notes["updates"]
    training.loop_seconds, training.loop_steps = notes["loop_seconds"], notes["loop_steps"]
    training.seconds = Seconds(**notes.get("seconds", {}))
    training.random_return = notes.get("random_return")
    training.clock.seconds += notes["compile_seconds"]
    training.best_return = np.array([-np.inf if x is None else x for x in notes["best_return"]])
    training.frozen.records = {entry["learner"]: entry for entry in notes["diverged"]}
    if notes["values"]:
        training.set(notes["values"])
