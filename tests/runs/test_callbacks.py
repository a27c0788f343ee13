"""Runs as loops of events: what callbacks may do, and that a resumed run is the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax import cli
from rljax.agent import EnvSpec
from rljax.runs import checkpoints, events, records, run
from rljax.runs.events import callbacks, loggers
from tests.cli import commands
from tests.helpers import small_runs


class Rewarding(gymnasium.Env):
    """Each step earns `level`; random numbers are its own."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    max_episode_steps = 10

    def __init__(self) -> None:
        self.level = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(), self.level, False, False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


@struct.dataclass
class Level:
    level: float = 1.0


class RewardingInside:
    """The same inside the program."""

    spec = EnvSpec("Rewarding", (2,), 1, max_episode_steps=10)
    params = Level()

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        return jax.random.uniform(key, (2,)), jnp.zeros(())

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        seen = jax.random.uniform(key, (2,))
        return seen, state, jnp.float32(params.level), jnp.array(False), jnp.array(False), {}


class PowerCut(Exception):
    pass


class Curriculum:
    """The level rises after evaluations, and with it the learning rate falls."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.rises, self.fails_at = 0, fails_at

    def __call__(self, event: events.Event) -> None:
        if event.step == self.fails_at and isinstance(event, events.MetricsEvent):
            raise PowerCut
        if isinstance(event, events.EvaluationEvent):
            self.rises += 1
            event.run.change_environment(level=1.0 + self.rises)
            event.run.change(learning_rate=1e-3 / self.rises)
            event.run.add_metrics({"curriculum/level": 1.0 + self.rises})

    def state(self) -> Any:
        return self.rises

    def restore(self, state: Any) -> None:
        self.rises = state


def loop(env: Any, out: Path, *given: Any, steps: int = 400, **settings: Any) -> run.TrainingLoop:
    settings = small_runs.EVERY | {"config": small_runs.ON_POLICY} | settings
    return run.training("ppo", env, steps, out=out, callbacks=given, **settings)


def kinds(told: Iterator[events.Event] | run.TrainingLoop) -> list[tuple[int, str]]:
    return [(event.step, type(event).__name__.removesuffix("Event")) for event in told]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("env", [Rewarding, RewardingInside])
def test_a_curriculum_that_is_killed_and_resumed_is_the_same(env: Any, tmp_path: Path) -> None:
    whole = loop(env, tmp_path / "whole", Curriculum()).execute()
    with pytest.raises(PowerCut):
        loop(env, tmp_path / "half", Curriculum(fails_at=250)).execute()
    with pytest.raises(ValueError, match=r"this run has callbacks of Python \(.*Curriculum\)"):
        run.resume(tmp_path / "half")
    half = run.resume(tmp_path / "half", callbacks=[Curriculum()])
    small_runs.assert_same(whole, half)
    changes = records.read(whole, "changes")
    assert changes == records.read(half, "changes")
    assert [x["environment"]["level"] for x in changes if "environment" in x] == [2, 3, 4, 5]
    lines = records.read(whole, "metrics")
    assert [line.get("curriculum/level") for line in lines[:4]] == [None, [2.0], None, [3.0]]
    assert lines[-1]["episode/return"] == [pytest.approx(4 * 10)]


def test_events_come_in_order_and_a_break_saves(tmp_path: Path) -> None:
    told = loop(Rewarding, tmp_path / "run")
    seen = []
    for event in told:
        seen.append((event.step, type(event).__name__.removesuffix("Event")))
        if event.step == 150:
            break
    first = [(100, "Metrics"), (100, "Evaluation"), (100, "Best"), (100, "Checkpoint")]
    assert seen == [(0, "Begin"), (50, "Metrics"), *first, (150, "Metrics")]
    assert checkpoints.steps(tmp_path / "run/checkpoints") == [100, 150]
    assert records.read_summary(tmp_path / "run")["steps"] == 150
    with pytest.raises(ValueError, match=r"has ended\. To go on: rljax\.resuming"):
        iter(told)
    rest = kinds(run.resuming(tmp_path / "run"))
    assert rest[:2] == [(150, "Begin"), (200, "Metrics")]
    assert rest[-2:] == [(400, "Checkpoint"), (400, "End")]
    small_runs.assert_same(loop(Rewarding, tmp_path / "whole").execute(), tmp_path / "run")


def test_a_break_at_the_end_tells_it_once(tmp_path: Path, capsys: Any) -> None:
    ends: list[events.Event] = []

    def count(event: events.Event) -> None:
        ends.extend([event] if isinstance(event, events.EndEvent) else [])

    for event in loop(Rewarding, tmp_path / "run", count, steps=100):
        if isinstance(event, events.EndEvent):
            break
    assert [end.step for end in ends] == [100]
    assert "To go on" not in capsys.readouterr().err


def test_what_callbacks_ask_for(tmp_path: Path) -> None:
    class Numbers(loggers.Logger):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def metrics(self, record: Any) -> None:
            self.steps.append(record["step"])

    def ask(event: events.Event) -> None:
        if isinstance(event, events.MetricsEvent) and event.step == 50:
            event.run.checkpoint()
            assert event.run.policy()(np.zeros(2)).shape == (1,)
            assert event.metrics["episode/length"] == [10.0]
        if isinstance(event, events.EvaluationEvent):
            assert event.returns.shape == event.lengths.shape == (1, 2)
            event.run.stop("enough")

    numbers = Numbers()
    (*_, end) = loop(Rewarding, tmp_path / "run", ask, loggers=[numbers])
    assert (end.complete, end.reason, end.summary["steps"]) == (False, "enough", 100)
    assert checkpoints.steps(tmp_path / "run/checkpoints") == [50, 100]
    assert numbers.steps == [50, 100]


REFUSED: list[tuple[Any, str]] = [
    (lambda x: x.change(num_envs=3), "the setting 'num_envs' cannot change in a run"),
    (lambda x: x.change(learning_rate=[1.0, 2.0]), "has 2 values for 1 learners"),
    (lambda x: x.change(discount=2.0), "discount is 2"),
    (lambda x: x.change_environment(height=1), "has no attribute 'height' to change"),
    (lambda x: x.add_metrics({"a": [1.0, 2.0]}), "must be a number, or 1 numbers"),
]


def test_what_cannot_change_is_refused(tmp_path: Path) -> None:
    late = "change after metrics or an evaluation"
    for event in loop(Rewarding, tmp_path / "run", steps=100):
        for change, message in REFUSED if isinstance(event, events.MetricsEvent) else ():
            with pytest.raises(ValueError, match=message):
                change(event.run)
        if isinstance(event, events.CheckpointEvent | events.EndEvent):
            with pytest.raises(ValueError, match=late):
                event.run.change(learning_rate=1e-3)
    assert not records.read(tmp_path / "run", "changes")


# Ready ones


def test_a_run_stops_where_it_no_longer_improves_also_after_a_stop(tmp_path: Path) -> None:
    patient = partial(callbacks.StopWithoutImprovement, 2)
    whole = loop(Rewarding, tmp_path / "whole", patient(), steps=1_000).execute()
    assert records.read_summary(whole)["steps"] == 300
    for event in loop(Rewarding, tmp_path / "half", patient(), steps=1_000):
        if event.step == 200:
            break
    small_runs.assert_same(whole, run.resume(tmp_path / "half"))
    assert records.read_summary(tmp_path / "half")["steps"] == 300


def test_an_evaluation_in_a_second_environment(tmp_path: Path) -> None:
    elsewhere = callbacks.EvaluateIn("Pendulum-v1", 1)
    out = loop("Pendulum-v1", tmp_path / "run", elsewhere, steps=100).execute()
    line = records.read(out, "metrics")[-1]
    assert line["evaluation/Pendulum-v1/length"] == [200]
    assert line["evaluation/Pendulum-v1/return"][0] < 0


def test_a_second_environment_of_other_spaces_is_refused_at_once(tmp_path: Path) -> None:
    elsewhere = callbacks.EvaluateIn("Pendulum-v1", 1)
    with pytest.raises(ValueError, match=r"observation_shape = \(2,\) on .*'Pendulum-v1' has"):
        loop(Rewarding, tmp_path / "run", elsewhere, steps=100).execute()
    assert not records.read(tmp_path / "run", "metrics")


def test_the_command_line_stops_at_a_return(tmp_path: Path) -> None:
    words = commands.train("ppo", "rljax/Pendulum", "--steps", 1_000, "--out", tmp_path / "run")
    cli.main([*words, "--stop-at-return", "-10000"])
    summary = records.read_summary(tmp_path / "run")
    assert (summary["steps"], summary["complete"]) == (100, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (callbacks.StopAtReturn, "it must be a function of an event"),
        (callbacks.FilmEvery(0), "FilmEvery: steps is 0, it must be above 0"),
        (3, "a callback is 3"),
    ],
)
def test_wrong_callbacks_are_refused(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        loop(Rewarding, tmp_path / "run", given)
    assert not list(tmp_path.iterdir())
