"""The scripts behind results/: what they share, and the figures that they hold from papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.analysis.comparison import mean_interval
from scripts.studies import combination_lock, corruptions, shared, weights

ROOT = Path(__file__).parents[2]


def write(folder: Path, *, complete: bool) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({"complete": complete, "steps": 10}))


def test_runs_are_made_once(tmp_path):
    out, begun = tmp_path / "run", []

    def begin() -> None:
        begun.append(1)
        write(out, complete=True)

    for _ in range(2):
        assert shared.trained(out, 10, begin) == out
    assert begun == [1]


def test_interrupted_runs_end_a_study_and_go_on(tmp_path, monkeypatch):
    out, resumed = tmp_path / "run", []
    with pytest.raises(SystemExit, match="the same command goes on"):
        shared.trained(out, 10, lambda: write(out, complete=False))
    (out / "checkpoints").mkdir()

    def resume(folder: Path, steps: int, quiet: bool) -> None:
        resumed.append(steps)
        write(folder, complete=True)

    monkeypatch.setattr(shared.run, "resume", resume)
    assert shared.trained(out, 10, lambda: pytest.fail("begun anew")) == out
    assert resumed == [10]
    with pytest.raises(SystemExit):
        shared.trained(out, 20, lambda: pytest.fail("begun anew"))
    assert resumed == [10, 20], "a longer one is gone on with"


def test_a_run_of_something_else_is_not_taken(tmp_path):
    write(tmp_path, complete=True)
    described = {"data": "a.hdf5", "config": {"quantile": 0.1, "hidden": [256, 256], "seed": 3}}
    (tmp_path / "config.json").write_text(json.dumps(described))

    def trained(data: str, **config: Any) -> Path:
        return shared.trained(tmp_path, 10, lambda: pytest.fail("begun anew"), data, config)

    assert trained("a.hdf5", quantile=0.1, hidden=(256, 256)) == tmp_path
    with pytest.raises(SystemExit, match=r"has \{'quantile': 0.1\}, and not .*'quantile': 0.25"):
        trained("a.hdf5", quantile=0.25)
    with pytest.raises(SystemExit, match=r"has \{'data': 'a.hdf5'\}.* name another folder for these runs, --runs"):
        trained("b.hdf5")


def test_scores_are_means_of_the_last_evaluations(tmp_path):
    lines = [
        {"step": step, "learner": i, "seed": i, "returns": [step + i, step + i + 2], "scores": [step / 10 + i]}
        for step in (10, 20, 30, 40)
        for i in range(2)
    ]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.testing.assert_allclose(shared.last(tmp_path, 40, "returns", 3), [31, 32])
    np.testing.assert_allclose(shared.last(tmp_path, 39, "scores", 2), [2.5, 3.5])


def test_riqls_settings_and_scores_are_those_of_its_page():
    page = (ROOT / "docs" / "agents" / "riql.md").read_text()

    def rows(head: str) -> dict[str, list[str]]:
        lines = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
        return {name.strip(): [cell.strip() for cell in cells] for _, name, *cells, _ in (x.split("|") for x in lines)}

    settings, scores = rows("| sigma, alpha, C |"), rows("| corrupted | halfcheetah |")
    protocol = corruptions.PROTOCOL
    for i, task in enumerate(("halfcheetah", "walker2d", "hopper")):
        assert len(protocol[task]) == len(settings) == len(scores) == 8
        for (how, what), (sigma, alpha, critics, iql, riql) in protocol[task].items():
            name = f"{how}, {what if what == 'dynamics' else what + 's'}"
            assert settings[name][i] == f"{sigma:g}, {alpha:g}, {critics}"
            assert scores[name][i] == f"{iql} -> {riql}"


def test_corruptions_are_compared_within_each_kind():
    found = {
        "none": {"iql": np.array([90.0, 91.0]), "riql": np.array([1.0, 2.0])},
        "random reward": {"iql": np.array([10.0, 12.0]), "riql": np.array([20.0, 22.0])},
        "adversarial reward": {"iql": np.array([30.0, 31.0]), "riql": np.array([5.0, 40.0])},
    }
    compared = corruptions.compared(found)
    above = {group: of["riql above iql"][0] for group, of in compared.items()}
    assert above == {"random": 1.0, "adversarial": 0.5, "all": 0.75}
    assert compared["random"]["iql"][0] == 11
    scores = {name: {agent: x.tolist() for agent, x in of.items()} for name, of in found.items()}
    text = corruptions.table({"task": "halfcheetah", "scores": scores, "compared": compared})
    assert "| random reward | 11.0 +- 1.4 | 21.0 +- 1.4 | 42.3 | 43.6 |" in text
    assert "| none | 90.5 +- 0.7 | 1.5 +- 0.7 | - | - |" in text
    assert "P(RIQL > IQL) = 0.75" in text


def test_weights_are_tabled_beside_published_scores():
    interval = mean_interval([20.0, 22.0, 24.0])
    assert interval[0] == 22.0
    assert 20.0 <= interval[1] < 22.0 < interval[2] <= 24.0
    found = {agent: dict.fromkeys(weights.WEIGHTS, interval) for agent in weights.AGENTS}
    effective = {"uniform": 200, "advantage": 9.3, "top": 20.0}
    text = weights.table({"effective": effective, "episodes": 200, "intervals": found})
    assert "| advantage, alpha 0.1 | 9 of 200 | 22.0 [" in text
    assert "| 50.2 |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"


def test_locks_are_tabled_by_when_they_open():
    curve = {"steps": [10, 20, 30], "returns": [[0.6, 0.4, 0.9], [0.1, 0.6, 0.7], [0.9, 0.9, 0.5], [0.9, 0.8, 0.7]]}
    assert combination_lock.opened(curve, 1.0) == [30, 20, None, 10], "it has to stay open"
    of = dict.fromkeys(combination_lock.AGENTS, mean_interval([0.5, 1.0]))
    opened = {name: [30, 20, None, 10] for name in combination_lock.AGENTS}
    cell = {"steps": 2_048, "intervals": of, "opened": opened | {"ppo": [None]}, "bc": 1.0, "data": 0.4}
    text = combination_lock.table({"locks": {"10": cell}})
    assert "| 10 | 2,048 | HNPG with data | 0.75 [0.50, 1.00] | 3 of 4 | 20 |" in text
    assert "| 10 | 2,048 | PPO | 0.75 [0.50, 1.00] | 0 of 1 |  |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"
