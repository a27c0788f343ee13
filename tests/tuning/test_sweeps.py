"""Sweeps: what is trained, told and tested is what the protocol says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import cli
from rljax.learning.plan import Experiment
from rljax.runs import experiments, records
from rljax.runs.policies import evaluate
from rljax.tuning import grids, search_spaces, sweeps
from rljax.tuning import trials as trials_of_search
from tests.cli import commands
from tests.helpers import small_runs
from tests.runs import parts

optuna = pytest.importorskip("optuna")

SPACE = {"actor_lr": {"low": 1e-5, "high": 1e-2, "log": True}, "batch_size": {"choices": [16, 32]}}
FLOATS = {"actor_lr": SPACE["actor_lr"], "critic_lr": SPACE["actor_lr"]}
SHORT = search_spaces.Protocol(
    method="random", trials=3, population=2, tuning_seeds=(0, 1), test_seeds=(5, 6)
)


def experiment(steps: int = 200) -> Experiment:
    return experiments.prepare(
        "td3", "rljax/Pendulum", steps, config=small_runs.SMALL, **small_runs.EVERY
    )


def begun(
    out: Path, protocol: search_spaces.Protocol, entries: dict[str, Any], steps: int = 200
) -> Path:
    made = experiment(steps)
    return sweeps.begin(made, protocol, search_spaces.Space(entries, made.config), out=out)


def trials(folder: Path) -> list[Any]:
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / 'study.db'}").trials


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.mark.learn
def test_a_sweep_trains_tells_and_tests(tmp_path: Path) -> None:
    out = begun(tmp_path / "sweep", SHORT, SPACE)
    told = trials(out)
    assert [trial.state.name for trial in told] == ["COMPLETE"] * 3
    finals: dict[Any, list[float]] = {}
    for inside in (x for rung in out.glob("generation-*/rung-0") for x in grids.runs(rung)):
        config = records.read_config(inside)["config"]
        for line in records.read(inside, "evaluations"):
            rate = config["actor_lr"]
            rate = rate[line["learner"]] if isinstance(rate, list) else rate
            if line["step"] == 200:
                assert line["seed"] in (0, 1)
                params = rate, str(config["batch_size"])
                finals.setdefault(params, []).append(np.mean(line["returns"]))
    for trial in told:
        final = finals[tuple(trial.params[name] for name in SPACE)]
        assert len(final) == 2
        # Of two values the interquartile mean is the mean.
        assert trial.value == pytest.approx(np.mean(final))
    found = result(out)
    best = max(told, key=lambda trial: trial.value)
    assert (found["incumbent"]["of"], found["incumbent"]["value"]) == (
        f"trial {best.number}",
        best.value,
    )
    for entry in found["test"].values():
        assert [learner["seed"] for learner in entry["final"]["learners"]] == [5, 6]
        assert entry["final"]["interval"] is None
    assert found["trials"] == {"complete": 3}
    assert found["steps"] == 3 * 2 * 200
    with pytest.raises(
        ValueError, match=r"the sweep in '.*' is complete: its result is .*result\.json"
    ):
        sweeps.resume(out)


@pytest.mark.learn
@pytest.mark.parametrize("method", ["tpe", "hyperband"])
def test_a_sweep_that_was_stopped_finds_the_same(method: str, tmp_path: Path) -> None:
    sizes = {"trials": 6, "population": 3, "eta": 2, "min_steps": 100, "test_seeds": (5,)}
    protocol = dataclasses.replace(SHORT, method=method, tuning_seeds=(0,), **sizes)
    whole = begun(tmp_path / "whole", protocol, FLOATS, 400)
    with parts.stopped(lambda run: run.training.step >= 200, 3) as stopped:
        begun(tmp_path / "broken", protocol, FLOATS, 400)
        for _ in range(5):
            if not (tmp_path / "broken/result.json").exists():
                sweeps.resume(tmp_path / "broken")
    assert len(stopped) == 3
    first, second = result(whole), result(tmp_path / "broken")
    assert first == second
    keys = ("params", "value", "state", "intermediate_values")
    listed = [
        [{key: getattr(trial, key) for key in keys} for trial in trials(out)]
        for out in (whole, tmp_path / "broken")
    ]
    assert listed[0] == listed[1]


@pytest.mark.learn
def test_hyperband_goes_on_with_the_better_ones_where_they_stood(tmp_path: Path) -> None:
    protocol = search_spaces.Protocol(
        method="hyperband", trials=4, tuning_seeds=(0, 1), test_seeds=(5,), eta=2, min_steps=100
    )
    out = begun(tmp_path / "sweep", protocol, FLOATS, 400)
    told = trials(out)
    first = {trial.number: trial.intermediate_values[100] for trial in told}
    assert [
        len(trial.intermediate_values) for trial in sorted(told, key=lambda t: -first[t.number])
    ][2:] == [1, 1]
    (best,) = [trial for trial in told if trial.state.name == "COMPLETE"]
    assert sorted(best.intermediate_values) == [100, 200, 400]
    assert {trial.state.name for trial in told} == {"COMPLETE", "PRUNED"}
    out = tmp_path / "alone"
    whole = small_runs.train("td3", "rljax/Pendulum", 400, out, best.params, seeds=2)
    last = [line for line in records.read(whole, "evaluations") if line["step"] == 400]
    expected = np.mean([line["returns"] for line in last])
    assert best.value == pytest.approx(expected, rel=5e-3)


FOUR: Any = {"trials": 4, "population": 4, "test_seeds": (5,)}


def costly() -> Experiment:
    """A training of PPO with costs."""
    settings = small_runs.ON_POLICY | {"num_steps": 50, "batch_size": 100}
    return experiments.prepare(
        "ppo", "rljax/PointHazards", 2000, config=settings, **small_runs.EVERY
    )


@pytest.mark.learn
def test_trials_beyond_a_limit_are_the_worst(tmp_path: Path) -> None:
    entries = {"init_log_std": {"choices": [-1.0, 0.0]}, "discount": {"choices": [0.9, 0.95, 0.99]}}
    made, sums = costly(), {}
    for limit in (1e3, -1.0):
        limits = (f"cost={limit}",)
        protocol = dataclasses.replace(SHORT, **FOUR, limits=limits)
        out = tmp_path / f"{limit:.0f}"
        sweeps.begin(made, protocol, search_spaces.Space(entries, made.config), out=out)
        sums[limit] = [trial.value for trial in trials(out)]
        assert "cost" in result(out)["test"]["tuned"]["final"]["signals"]
    assert min(sums[1e3]) > -1e6
    assert max(sums[-1.0]) < -1e9, "no cost is below 0"


@pytest.mark.learn
def test_population_based_training_ranks_learners_beyond_a_limit_last(tmp_path: Path) -> None:
    """The limit lies between the costs of the first evaluations."""
    entries: Any = {"learning_rate": {"low": 1e-4, "high": 1e-2}}
    made = costly()

    def population(limits: tuple[str, ...], out: Path) -> Path:
        fields: Any = {"tuning_seeds": (0, 1, 2, 3), "test_seeds": (5,), "every": 1000}
        protocol = search_spaces.Protocol(method="pbt", population=4, limits=limits, **fields)
        sweeps.begin(made, protocol, search_spaces.Space(entries, made.config), out=out)
        (inside,) = grids.runs(out / "population")
        return inside

    free = population((), tmp_path / "free")
    first = [line for line in records.read(free, "evaluations") if line["step"] == 1000]
    cost = {line["learner"]: np.mean(line["signals"]["cost"]) for line in first}
    limit = float(np.mean(sorted(cost.values())[1:3]))
    change = records.read(population((f"cost={limit}",), tmp_path / "limited"), "changes")[0]
    beyond = [p for p in range(4) if cost[p] > limit]
    assert 0 < len(beyond) < 4
    for p in range(4):
        assert (change["scores"][p] < -1e9) == (p in beyond)
    moved = {p: parent for p, parent in enumerate(change["parents"]) if p != parent}
    assert len(moved) == 1
    assert set(moved) <= set(beyond)
    assert not set(moved.values()) & set(beyond)


@pytest.mark.learn
def test_a_trial_that_diverges_is_the_worst(tmp_path: Path) -> None:
    entries = {"critic_lr": {"choices": [1e18, 1e-3]}}
    protocol = dataclasses.replace(SHORT, **FOUR, tuning_seeds=(0,))
    out = begun(tmp_path / "sweep", protocol, entries)
    states = {trial.params["critic_lr"]: trial.state.name for trial in trials(out)}
    assert states == {"1e+18": "PRUNED", "0.001": "COMPLETE"}
    assert result(out)["test"]["tuned"]["settings"] == "critic-lr=0.001"


@pytest.mark.learn
def test_population_based_training_tests_the_schedule_that_it_found(
    tmp_path: Path,
) -> None:
    protocol = search_spaces.Protocol(
        method="pbt", population=4, tuning_seeds=(0, 1), test_seeds=(5, 6), every=100
    )
    whole = begun(tmp_path / "whole", protocol, FLOATS, 400)
    with parts.stopped(lambda run: run.training.step == 200, 3) as stopped:
        broken = begun(tmp_path / "broken", protocol, FLOATS, 400)
        for _ in range(3):
            sweeps.resume(broken)
    assert len(stopped) == 3, "the population and both tests"
    assert result(whole) == result(broken)
    for inside in ("population/launch-000", "test/tuned/launch-000"):
        small_runs.assert_same(whole / inside, broken / inside)
        assert records.read(whole / inside, "changes") == records.read(broken / inside, "changes")

    found = result(whole)
    best = int(found["incumbent"]["of"].removeprefix("learner "))
    last = {
        line["learner"]: np.mean(line["returns"])
        for line in records.read(whole / "population/launch-000", "evaluations")
    }
    assert max(last.values()) == last[best] == found["incumbent"]["value"]
    changes = records.read(whole / "test/tuned/launch-000", "changes")
    values = {change["step"]: change["values"] for change in changes}
    for step, settings in found["incumbent"]["schedule"]:
        assert values[step] == {name: [value] * 2 for name, value in settings.items()}
    assert [learner["seed"] for learner in found["test"]["tuned"]["final"]["learners"]] == [5, 6]
    assert evaluate.evaluate_run(whole / "population/launch-000", episodes=1)["summary"]["mean"] < 0


def test_population_based_training_needs_settings_of_the_program(tmp_path: Path) -> None:
    protocol = search_spaces.Protocol(method="pbt", population=4, test_seeds=(5,))
    with pytest.raises(
        ValueError,
        match=r"'batch_size' shapes it or has choices: leave it out of the space, or use",
    ):
        begun(tmp_path / "sweep", protocol, SPACE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"test_seeds": (1, 2)},
            r"^seeds 1 are both for tuning and for testing: .* --test-seeds 100 101 102$",
        ),
        ({"tuning_seeds": ()}, r"needs seeds to tune with and others to test with"),
        ({"method": "grid"}, r"--method is 'grid', it must be one of random, tpe, hyperband, pbt"),
        ({"trials": 0}, r"--trials is 0, it must be at least 1"),
        ({"eta": 1}, r"--eta is 1, it must be at least 2"),
        (
            {"limits": ("cost=25",)},
            r"--limits has 'cost', and 'rljax/Pendulum' gives none: name a signal",
        ),
        (
            {"limits": ("cost",)},
            r"--limits is 'cost', it must be a signal and its largest value: --limits cost=25",
        ),
        (
            {"limits": ("cost=25",), "method": "pbt"},
            r"--limits has 'cost', and 'rljax/Pendulum' gives none",
        ),
        (
            {"method": "hyperband", "min_steps": 300},
            r"--min-steps is 300, it must lie in \[1, 200\]",
        ),
        (
            {"storage": "sqlite:////no/such/place/study.db"},
            r"the study's storage 'sqlite:.*' cannot be used",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        begun(tmp_path / "sweep", dataclasses.replace(SHORT, **changes), FLOATS)
    assert not list(tmp_path.iterdir())


def test_a_corner_that_the_agent_refuses_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"discount is 1\.5, it must be finite and in \[0"):
        begun(tmp_path / "sweep", SHORT, {"discount": {"low": 0.9, "high": 1.5}})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    study = optuna.create_study(storage=storage, study_name="sweep")
    study.set_user_attr("agent", "sac")
    with pytest.raises(
        ValueError,
        match=r"study 'sweep' in '.*' has agent 'sac', this sweep has 'td3'\. Name another",
    ):
        begun(tmp_path / "sweep", dataclasses.replace(SHORT, storage=storage), FLOATS)


@pytest.mark.learn
def test_the_command_line_sweeps(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "space.toml"
    file.write_text("actor_lr = { low = 1e-5, high = 1e-2, log = true }\n")
    words = commands.train("td3", "rljax/Pendulum", "--steps", 100, "--out", tmp_path / "sweep")
    search = "--trials 2 --method random --tuning-seeds 0 --test-seeds 1 --space"
    words = ["sweep", *words[1:], *search.split(), str(file)]
    cli.main(words)
    assert capsys.readouterr().out.strip() == str(tmp_path / "sweep")
    assert result(tmp_path / "sweep")["incumbent"]["flags"].startswith("--config.actor-lr ")
    for again, message in (
        (words, "exists. Choose another --out, or continue that sweep: rljax resume"),
        (["resume", tmp_path / "sweep"], "is complete"),
        (["resume", tmp_path / "sweep", "--steps", 9], "a sweep cannot have more steps"),
    ):
        assert message in commands.refused(again, capsys)


def test_a_folder_may_have_braces(tmp_path: Path) -> None:
    """Optuna fills in what stands in the braces of a storage's URL."""
    made, folder = experiment(), tmp_path / "{lr}"
    folder.mkdir()
    task = trials_of_search.SearchTask(
        folder, made, SHORT, search_spaces.Space(FLOATS, made.config), "", True
    )
    trials_of_search.Trials(task)._study()
    assert (folder / "study.db").exists()


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"trial": 0}', '[{"trial": 0}]', "[3]"])
def test_trials_that_were_damaged_are_refused(text: str, tmp_path: Path) -> None:
    made = experiment()
    task = trials_of_search.SearchTask(
        tmp_path, made, SHORT, search_spaces.Space(FLOATS, made.config), "", True
    )
    (tmp_path / "trials.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"trials.json' does not hold the trials of its generation .* from a copy"
    ):
        trials_of_search.Trials(task)._ask(None, tmp_path, 0, 1)  # pyright: ignore[reportArgumentType]


def test_a_sweep_whose_shortest_trials_learn_nothing_is_refused(tmp_path: Path) -> None:
    often = small_runs.EVERY | {"eval_every": 10}
    task = experiments.prepare("td3", "rljax/Pendulum", 200, config=small_runs.SMALL, **often)
    protocol = search_spaces.Protocol(
        method="hyperband", min_steps=10, tuning_seeds=(0, 1), test_seeds=(5,)
    )
    space = search_spaces.Space(FLOATS, task.config)
    with pytest.raises(ValueError, match=r"after 64 environment steps .* there are 30\."):
        sweeps.begin(task, protocol, space, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
