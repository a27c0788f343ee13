"""Simulators on the host inside the compiled loop: the same training as beside it,
and what they raise comes out.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import jax
import numpy as np
import pytest

from rljax.training.drivers.embedded import EmbeddedDriver
from rljax.training.drivers.hosted import HostedDriver
from rljax.training.learner import Learner
from tests.helpers.counting import Fake, HostedCounter, OnPolicy, assert_equal, settings


def embedded(iterations: int, hosted: Any, module: Any = None, **changes: Any) -> EmbeddedDriver:
    learner = Learner(module or Fake(), hosted.spec, 2)
    driver = EmbeddedDriver(learner, hosted, settings(2, **changes))
    driver.start([1, 2])
    driver.advance(iterations)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize("module", [Fake, OnPolicy])
def test_teaches_what_many_calls_do(module: Any) -> None:
    changes: Any = {
        "num_envs": 3,
        "num_steps": 4,
        "batch_size": 12,
        "warmup_steps": 30,
        "counts": True,
    }
    called = HostedDriver(
        Learner(module(), HostedCounter(5).spec, 2), HostedCounter(5), settings(2, **changes)
    )
    called.start([1, 2])
    called.advance(11)
    inside = embedded(11, HostedCounter(5), module(), **changes)
    for part in ("agent", "storage", "steps", "updates"):
        assert_equal(
            getattr(called.learners, part), getattr(inside.learners, part), rtol=1e-5, atol=1e-6
        )
    assert_equal(called.action, inside.carry.action, rtol=1e-5, atol=1e-6)
    first, second = called.report(), inside.report()
    assert first.updates == second.updates > 0
    assert_equal(first.metrics, second.metrics, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_simulators_step_while_the_loop_learns() -> None:
    learning = threading.Event()

    class Telling(Fake):
        def update(self, *arguments: Any) -> Any:
            jax.debug.callback(lambda _: learning.set(), arguments[3])
            return super().update(*arguments)

    class Waiting(HostedCounter):
        steps = 0

        def step(self, action: np.ndarray) -> Any:
            self.steps += 1
            if self.steps > 8:  # the warm-up
                assert learning.wait(30), "it learns when the step is over"
                learning.clear()
            return super().step(action)

    assert int(embedded(20, Waiting(100), Telling()).learners.updates) == 12


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"num_envs": 3, "num_steps": 4, "num_updates": 2}])
def test_a_storage_is_never_copied(changes: Any) -> None:
    class Reading(Fake):
        def update(self, state: Any, batch: Any, *others: Any) -> Any:
            read = sum(x.sum() for x in jax.tree.leaves(batch))
            return super().update(state, batch.replace(reward=batch.reward + read), *others)

    driver = embedded(1, HostedCounter(5), Reading(), replay_size=7_776, **changes)
    program = (
        driver.loop.advance.lower(driver.carry, np.int32(1), driver.hyper, driver.data)
        .compile()
        .as_text()
    )
    assert "[2,7776,2]" in program
    assert not re.findall(r"= \w+\[2,7776\S* copy\(", program)


class Failing(HostedCounter):
    """A HostedCounter that fails in its 4th step."""

    steps = 0

    def step(self, action: np.ndarray) -> Any:
        """Count."""
        self.steps += 1
        if self.steps == 4:
            raise RuntimeError("the simulator broke.")
        return super().step(action)


@pytest.mark.slow
def test_what_a_simulator_raises_comes_out_at_once() -> None:
    hosted = Failing(100)
    with pytest.raises(RuntimeError, match=r"^the simulator broke\.$"):
        embedded(1_000_000, hosted)  # the program ends with the step
    assert hosted.steps == 4


def test_an_interrupt_ends_the_program() -> None:
    class Interrupting(HostedCounter):
        steps = 0

        def step(self, action: np.ndarray) -> Any:
            self.steps += 1
            if self.steps == 20:
                raise KeyboardInterrupt
            return super().step(action)

    hosted = Interrupting(100)
    with pytest.raises(KeyboardInterrupt):
        embedded(1_000_000, hosted)
    assert hosted.steps == 20


@pytest.mark.slow
def test_callbacks_of_arrays_do_the_same(monkeypatch: Any) -> None:
    """Where memory is not the host's, a slower way leads to the same place."""
    expected = embedded(9, HostedCounter(5)).agent_state
    monkeypatch.setattr("rljax.training.drivers.embedded.jax.default_backend", lambda: "gpu")
    assert_equal(embedded(9, HostedCounter(5)).agent_state, expected)
    assert jax.default_backend() == "gpu", "the test tells them apart"
