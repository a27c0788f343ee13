"""Trainings that compute the same share compiled programs."""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np
import pytest

from rljax import envs
from rljax.learning import registry
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.embedded import EmbeddedDriver
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from rljax.learning.plan import OnlineExperience
from rljax.learning.programs import Contents
from tests.helpers import counting


def driver(kind: Any, module: Any, declare: Any = None, **changes: Any) -> Any:
    source = {
        CompiledDriver: envs.make("rljax/Pendulum"),
        EmbeddedDriver: counting.HostedCounter(5),
    }.get(kind)
    learner = Learner(
        module, counting.HostedCounter(5).spec if source is None else source.spec, 2, declare
    )
    return kind(
        learner, counting.dataset() if source is None else source, counting.settings(2, **changes)
    )


@pytest.mark.parametrize("kind", [CompiledDriver, EmbeddedDriver, OfflineDriver])
def test_drivers_that_compute_the_same_share_their_programs(kind: Any) -> None:
    module = counting.Fake()
    first, second = driver(kind, module), driver(kind, module, learning_rate=0.2)
    assert first.loop is second.loop
    assert driver(kind, module, batch_size=8).loop is not first.loop
    assert driver(kind, counting.Fake()).loop is not first.loop
    online = OnlineExperience(module, None, "rljax/Pendulum", None)
    assert (
        driver(kind, module, online).loop
        is driver(kind, module, OnlineExperience(*vars(online).values())).loop
    )


def test_a_changed_or_reloaded_module_is_another() -> None:
    module = types.ModuleType("mine")
    exec("def update(): return 1", vars(module))
    before = Contents(module)
    assert before == Contents(module)
    exec("def update(): return 2", vars(module))
    assert before != Contents(module)


@pytest.mark.slow
def test_a_shared_program_steps_the_simulators_of_the_driver_that_calls_it() -> None:
    module, drivers = counting.Fake(), []
    for _ in range(2):
        drivers.append(driver(EmbeddedDriver, module))
        drivers[-1].start([1, 2])
    for iterations, one in ((3, drivers[0]), (5, drivers[1]), (2, drivers[0])):
        one.advance(iterations)
    assert [int(one.learners.steps) for one in drivers] == [5, 5]
    counting.assert_equal(*((one.learners.agent, one.learners.storage) for one in drivers))
    assert drivers[0].loop.advance._cache_size() == 1


@pytest.mark.slow
def test_two_runs_of_an_agent_compile_once() -> None:
    module = registry.load_agent("sac")
    small = {"hidden": (4,), "batch_size": 4, "replay_size": 16, "warmup_steps": 2}
    environment = envs.make("rljax/Pendulum")
    assert environment is envs.make("rljax/Pendulum")
    config = jax.tree.map(lambda x: np.full(1, x, np.float32), module.Config(**small))
    loops = []
    for seed in (0, 1):
        made = CompiledDriver(Learner(module, environment.spec, 1), environment, config)
        made.start([seed])
        made.advance(3)
        loops.append(made.loop)
    assert loops[0] is loops[1]
    assert (loops[0].init._cache_size(), loops[0].advance._cache_size()) == (1, 1)
