"""What looks wrong in a run, by records that are written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import cli
from rljax.analysis import diagnosis
from rljax.analysis.diagnosis import policies
from rljax.runs.records import Recorder, write_json
from tests.helpers import run_folders

LINES, EVALUATIONS, STEPS = 20, 10, 20_000
RISING = np.linspace(-1000.0, -150.0, EVALUATIONS)
FLAT = np.full(EVALUATIONS, -1000.0)
DISCRETE = run_folders.SPEC | {"discrete": True, "action_size": 4}
ENDED = {"episode/return": [10.0] * LINES, "episode/length": [100.0] * LINES}


def write(
    folder: Path,
    metrics: Mapping[str, Any] | None = None,
    returns: Any = RISING,
    evaluation: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    updates: Sequence[int] = range(1, LINES + 1),
    environment: str = "Hopper-v5",
    **changes: Any,
) -> Path:
    """A run whose `metrics` have a list [LINES] or [LINES, P] by name, and `returns` [E] or
    [E, P]. A random policy returns -1000.
    """
    returns = np.asarray(returns, np.float64)
    returns = returns[:, None] if returns.ndim == 1 else returns
    number = returns.shape[1]
    folder.mkdir()
    described = run_folders.described("sac", environment, range(number), STEPS, **changes)
    write_json(folder / "config.json", described)
    columns = {
        name: np.broadcast_to(np.reshape(x, (LINES, -1)), (LINES, number))
        for name, x in (ENDED | dict(metrics or {})).items()
    }
    noise = np.linspace(-10.0, 10.0, 5)
    with Recorder(folder) as recorder:
        for row in range(LINES):
            line = {"step": (row + 1) * STEPS // LINES, "update": updates[row]}
            recorder.metrics(line | {name: x[row] for name, x in columns.items()})
        for row, means in enumerate(returns):
            for learner, mean in enumerate(means):
                record = {"step": (row + 1) * STEPS // EVALUATIONS, "learner": learner}
                record |= {"seed": learner, "returns": mean + noise, "lengths": [100] * 5}
                record |= {"largest_reward": 10.0, "at_bounds": 0.1}
                record |= {} if row else {"random": -1000.0 + noise}
                recorder.evaluation(record | dict(evaluation or {}))
        if summary is not None:
            recorder.summary({"complete": True, **summary})
    return folder


def line(start: float, end: float) -> np.ndarray:
    return np.linspace(start, end, LINES)


def names(folder: Path) -> list[str]:
    return [finding.name for finding in diagnosis.findings(folder)]


SECONDS = {"training": 100.0, "stepping": 10.0, "evaluating": 5.0}
# A name, what the records hold, and what the evidence says.
SICK: dict[str, tuple[dict[str, Any], str]] = {
    "warm-up": (
        {"updates": [0] * 15 + [1] * 5, "first_update": 15_500},
        "15,500 of 20,000 steps came before the first update",
    ),
    "diverged": (
        {"summary": {"diverged": [{"learner": 0, "cause": "metric 'critic/loss' is not finite"}]}},
        "metric 'critic/loss' is not finite",
    ),
    "endless-episodes": (
        {
            "metrics": dict.fromkeys(ENDED, line(np.nan, np.nan)),
            "num_envs": 10,
            "spec": run_folders.SPEC | {"max_episode_steps": None},
        },
        "each environment took 2,000 steps, and has no time limit",
    ),
    "no-reward": (
        {"evaluation": {"largest_reward": 0.0, "random": [0.0, 0.0]}, "returns": FLAT},
        "the largest reward of 10 evaluations is 0",
    ),
    "values-beyond-rewards": (
        {"metrics": {"critic/q": line(-9000, -8000)}, "config": {"discount": 0.99}},
        "|critic/q| reached 9,000 at step 1,000; rewards of at most 10 with a discount of 0.99 "
        "allow 1,000",
    ),
    "values-growing": (
        {"metrics": {"critic/value": np.logspace(0, 5, LINES)}, "config": {"discount": 0.9999}},
        "in the last three quarters of the run",
    ),
    "values-behind-targets": (
        {
            "metrics": {
                "critic/q": line(20, 20),
                "critic/target": line(500, 500),
                "critic/loss": line(3e5, 3e5),
            }
        },
        "'critic/q' is 20 and 'critic/target' 500",
    ),
    "actor-kl": ({"metrics": {"actor/kl": line(0.3, 0.3)}}, "'actor/kl' is 0.3"),
    "policy-still": (
        {"metrics": {"actor/kl": line(1e-12, 3e-12)}},
        "the largest 'actor/kl' of 20 lines of metrics is 3e-12",
    ),
    "saturated-actions": (
        {"evaluation": {"at_bounds": 0.97}, "returns": FLAT},
        "97% of the actions of the last evaluation lie at a bound (step 20,000)",
    ),
    "entropy-collapse": (
        {"metrics": {"actor/entropy": line(1.38, 0) ** 8}, "returns": FLAT, "spec": DISCRETE},
        "since step",
    ),
    "unsteady-normaliser": (
        {"metrics": {"observations/drift": line(1, 0.3)}},
        "after step 10,000, mean and std of an observation moved by",
    ),
    "no-better-than-random": ({"returns": FLAT}, "uniform actions -1,000 +- 3.536"),
    "falling-return": (
        {"returns": [-1000, -500, -100, -90, -200, -500, -700, -700, -750, -700]},
        "-90 at step 8,000, -716.7 on average over the last 3 evaluations",
    ),
    "cost-above-limit": (
        {
            "evaluation": {"signals": {"cost": [30, 32, 31, 29, 30]}},
            "config": {"cost_limit": 25.0},
            "metrics": {"cost/multiplier": line(0, 4)},
        },
        "30.4 +- 0.5099 per episode in the last evaluation, the limit is 25; 'cost/multiplier' is",
    ),
    "slow-environment": (
        {"summary": {"seconds": SECONDS | {"stepping": 90.0}, "steps_per_second": 100.0}},
        "90 s of 100 s in the training loop (90%), 9 ms for each step",
    ),
    "slow-evaluating": (
        {"summary": {"seconds": SECONDS | {"evaluating": 300.0}, "wall_seconds": 500.0}},
        "300 s of 500 s (60%)",
    ),
    "slow-compiling": (
        {"summary": {"compile_seconds": 400.0, "wall_seconds": 500.0}},
        "400 s of 500 s (80%)",
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_each_sickness_is_named_with_its_evidence(name: str, tmp_path: Path) -> None:
    records, evidence = SICK[name]
    findings = {x.name: x for x in diagnosis.findings(write(tmp_path / "run", **records))}
    assert name in findings
    assert evidence in findings[name].evidence
    others = findings.keys() - {name, "no-better-than-random"}
    assert others == set(), "nothing else looks wrong, but returns"


HEALTHY: dict[str, dict[str, Any]] = {
    "sac": {
        "metrics": {
            "critic/q": line(0, 120),
            "critic/target": line(0, 121),
            "critic/loss": line(3, 8),
            "actor/entropy": line(1, -3),
            "temperature/value": line(1, 0.1),
        },
        "config": {"discount": 0.99},
        "first_update": 1_000,
        "summary": {"seconds": SECONDS, "wall_seconds": 120.0, "steps_per_second": 300.0},
    },
    "an optimal policy at its bounds": {"evaluation": {"at_bounds": 1.0}},
    "a deterministic optimum": {"metrics": {"actor/entropy": line(0, 0)}, "spec": DISCRETE},
    "scaled rewards": {
        "metrics": {"critic/q": line(0, 9_000)},
        "config": {"discount": 0.99, "reward_scale": 10.0},
    },
    "an undiscounted return": {
        "metrics": {"critic/q": line(0, 900)},
        "config": {"discount": 1.0},
    },
    "a noisy end": {"returns": [*RISING[:-1], RISING[-1] - 300.0]},
    "a cost below its limit": {
        "evaluation": {"signals": {"cost": [10.0, 20.0]}},
        "config": {"cost_limit": 25.0},
    },
    "statistics that settle": {"metrics": {"observations/drift": 1 / np.arange(1, LINES + 1)}},
    "statistics that jump once": {"metrics": {"observations/drift": np.eye(LINES)[15] * 3}},
    "a data set": {"data": "d4rl/hopper-medium-v2", "metrics": {"critic/q": line(0, 5_000)}},
    "no evaluations": {"returns": np.zeros((0, 1)), "environment": "none"},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_looks_wrong_in_a_healthy_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run", **HEALTHY[name])
    cli.main(["diagnose", str(folder)])
    (said,) = capsys.readouterr().out.splitlines()
    assert said.endswith(": nothing looks wrong.")


def test_the_learner_with_the_evidence_is_named(tmp_path: Path) -> None:
    returns = np.stack([RISING, RISING + 10, FLAT, RISING - 10], axis=1)
    kl = np.stack([line(0.01, 0.01), line(0.01, 0.01), line(0.5, 0.5), line(0.01, 0.01)], axis=1)
    findings = diagnosis.findings(write(tmp_path / "run", {"actor/kl": kl}, returns))
    assert [finding.name for finding in findings] == ["actor-kl", "learner-behind"]
    assert all(finding.evidence.startswith("learner 2 (seed 2): ") for finding in findings)
    assert "return -1,000 at step 20,000, the median of the others is -150" in findings[1].evidence


def test_only_learners_with_a_finding_give_evidence(tmp_path: Path) -> None:
    """The other one's entropy was never low."""
    entropy = np.stack([line(1.0, 1.0), line(1.0, -50.0)], axis=1)
    returns = np.stack([FLAT, FLAT], axis=1)
    findings = diagnosis.findings(write(tmp_path / "run", {"actor/entropy": entropy}, returns))
    (collapse,) = [finding for finding in findings if finding.name == "entropy-collapse"]
    assert collapse.evidence.startswith("learner 1 (seed 1): ")


def test_many_learners_are_counted(tmp_path: Path) -> None:
    returns = np.repeat(RISING[:, None], 6, axis=1)
    (finding,) = diagnosis.findings(write(tmp_path / "run", {"actor/kl": line(1, 1)}, returns))
    assert finding.evidence.endswith("; and 3 more learners")


def test_settings_of_single_learners_count(tmp_path: Path) -> None:
    learners = [{"seed": k, "settings": {"discount": x}} for k, x in enumerate((0.5, 0.99))]
    folder = write(
        tmp_path / "run",
        {"critic/q": line(0, 100)},
        np.repeat(RISING[:, None], 2, axis=1),
        learners=learners,
        config={"discount": [0.5, 0.99]},
    )
    (finding,) = diagnosis.findings(folder)
    assert finding.name == "values-beyond-rewards"
    assert "discount of 0.5 allow 20" in finding.evidence
    assert "learner 1" not in finding.evidence


def test_findings_are_printed_with_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run", {"actor/kl": line(1, 1)}, FLAT)
    cli.main(["diagnose", str(folder)])
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(
        "(step 20,000 of 20,000, 1 learner, 10 evaluations): 2 things look wrong"
    )
    assert said[2] == "1. The policy moves too far in each update. [actor-kl]"
    assert said[4].startswith("   try: Lower the learning rate")


def test_a_run_without_records_and_a_folder_that_is_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folders.write(tmp_path / "new", steps=())
    for path, words in ((folder, "has no line of metrics yet"), (tmp_path, "is not a run")):
        with pytest.raises(SystemExit) as end:
            cli.main(["diagnose", str(path)])
        assert end.value.code == 2
        assert words in capsys.readouterr().err


def test_odd_numbers_are_no_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", returns=FLAT, evaluation={"lengths": [None] * 5})
    odd = {"critic/q": [10**400], "actor/kl": ["much"], "actor/entropy": 3, "cost/a": [1, 2]}
    with Recorder(folder) as recorder:
        recorder.metrics({"step": STEPS, "update": None} | odd)
    assert names(folder) == ["no-better-than-random"]


def test_runs_of_earlier_versions_are_read(tmp_path: Path) -> None:
    assert names(run_folders.write(tmp_path / "run")) == []


def test_every_finding_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()
    table = page.partition("## Findings")[2]
    rules = [rule.metric.replace("/", "-").replace("_", "-") for rule in policies.RULES]
    for name in (*SICK, *rules, "learner-behind"):
        assert f"`{name}`" in table
