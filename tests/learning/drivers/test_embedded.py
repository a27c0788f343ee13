"""Simulators on the host inside the compiled loop."""

from __future__ import annotations

import re
import threading
from typing import Any

import jax
import numpy as np
import pytest

from tests.helpers.counting import Fake, HostedCounter, assert_equal
from tests.learning.drivers import kinds


def embedded(iterations: int, hosted: Any, module: Any = None, **changes: Any) -> Any:
    return kinds.driven("embedded", [1, 2], iterations, module, hosted, **changes)


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


@pytest.mark.parametrize(
    ("error", "last"),
    [
        pytest.param(RuntimeError("the simulator broke."), 4, marks=pytest.mark.slow),
        (KeyboardInterrupt(), 20),
    ],
    ids=["fault", "interrupt"],
)
def test_what_a_simulator_raises_ends_the_program_at_once(error: BaseException, last: int) -> None:
    class Failing(HostedCounter):
        steps = 0

        def step(self, action: np.ndarray) -> Any:
            self.steps += 1
            if self.steps == last:
                raise error
            return super().step(action)

    hosted = Failing(100)
    with pytest.raises(type(error), match=f"^{error}$"):
        embedded(1_000_000, hosted)
    assert hosted.steps == last


@pytest.mark.slow
def test_callbacks_of_arrays_do_the_same(monkeypatch: Any) -> None:
    """A slower way, where memory is not the host's."""
    expected = embedded(9, HostedCounter(5)).agent_state
    monkeypatch.setattr("rljax.learning.drivers.embedded.jax.default_backend", lambda: "gpu")
    assert_equal(embedded(9, HostedCounter(5)).agent_state, expected)
    assert jax.default_backend() == "gpu", "the test tells them apart"
