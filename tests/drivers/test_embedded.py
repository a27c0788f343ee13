"""Simulators on the host inside the compiled loop: the same training as beside it, and what they raise comes out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax.drivers.embedded import EmbeddedDriver
from rljax.learner import Learner
from tests.test_learner import Counter, Fake, HostedCounter, OnPolicy, assert_equal, driven, settings


def embedded(iterations: int, hosted: Any, module: Any = None, **changes: Any) -> EmbeddedDriver:
    learner = Learner(module or Fake(), hosted.spec, 2, changes.get("num_envs", 1))
    driver = EmbeddedDriver(learner, hosted, settings(2, **changes))
    driver.start([1, 2])
    driver.advance(iterations)
    return driver


@pytest.mark.parametrize("module", [Fake, OnPolicy])
def test_teaches_what_the_same_environment_inside_the_program_does(module: Any) -> None:
    changes: Any = {"num_envs": 3, "num_steps": 4, "batch_size": 12, "warmup_steps": 30, "counts": True}
    inside = driven([1, 2], 11, module(), Counter(5), **changes)
    outside = embedded(11, HostedCounter(5), module(), **changes)
    for part in ("agent", "storage", "steps", "updates"):
        assert_equal(getattr(inside.learners, part), getattr(outside.learners, part), rtol=1e-5, atol=1e-6)
    assert_equal(inside.carry.action, outside.carry.action, rtol=1e-5, atol=1e-6)
    first, second = inside.report(), outside.report()
    assert first.updates == second.updates > 0
    assert_equal(first.metrics, second.metrics, rtol=1e-5, atol=1e-6)


class Failing(HostedCounter):
    """A HostedCounter that fails in its 4th step."""

    steps = 0

    def step(self, action: np.ndarray) -> Any:
        """Count."""
        self.steps += 1
        if self.steps == 4:
            raise RuntimeError("the simulator broke.")
        return super().step(action)


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


def test_callbacks_of_arrays_do_the_same(monkeypatch: Any) -> None:
    """Where memory is not the host's, a slower way leads to the same place."""
    expected = embedded(9, HostedCounter(5)).agent_state
    monkeypatch.setattr("rljax.drivers.embedded.jax.default_backend", lambda: "gpu")
    assert_equal(embedded(9, HostedCounter(5)).agent_state, expected)
    assert jax.default_backend() == "gpu", "the test tells them apart"
