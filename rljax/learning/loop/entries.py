"""A training's entries in its run's config.json and summary.json."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rljax.agent import COMMON, same_fields
from rljax.learning import action_cost, population
from rljax.learning.loop.training import Training


def config(training: Training) -> dict[str, Any]:
    """The training's entries in config.json, ready for JSON."""
    experience = training.driver.hyper.experience  # of the first stage
    base = training.base
    acting = training.templates[0]["agent"].replace(base=base)
    return {
        "learners": [dataclasses.asdict(member) for member in training.members],
        "spec": dataclasses.asdict(training.spec),
        "spaces": training.spaces,
        "state_bytes": training.needed_bytes,
        "base_digests": None if base is None else population.digests_of_base(base),
        "inherited": training.inherited,
        "first_update": experience.steps_before_updates,
        "num_envs": experience.num_envs,
        **action_cost.of_action(training.module, acting, training.spec, training.stacked),
    }


def summary(training: Training) -> dict[str, Any]:
    """The training's entries in summary.json."""
    return {
        "agent": training.settings.agent,
        "environment": training.settings.evaluated_in,
        "data": training.settings.data,
        "weights": training.weights,
        "seeds": list(training.settings.seeds),
        "diverged": list(training.frozen.records.values()),
        "steps": training.step,
        "complete": training.complete,
        "compile_seconds": training.clock.seconds,
        "steps_per_second": training.steps_per_second,
        "seconds": {"training": training.loop_seconds, **dataclasses.asdict(training.seconds)},
        "random_return": training.random_return,
        **_cost_limit(training.config),
        "devices_used": training.driver.spread.num_devices,
    }


def _cost_limit(config: Any) -> dict[str, float]:
    """The limit on an episode's cost, where there is one for all learners."""
    limits = set(np.ravel(same_fields(config, COMMON).get("cost_limit", ())).tolist())
    return {"cost_limit": limits.pop()} if len(limits) == 1 else {}
