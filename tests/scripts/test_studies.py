"""The scripts behind results/: what they share, and the figures that they hold from papers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from rljax import datasets
from rljax.agent import EnvSpec, check
from rljax.analysis.comparison import mean_interval
from rljax.learning import configuration, registry
from rljax.runs import run
from rljax.runs.policies import collect
from scripts.studies import (
    combination_lock,
    compute,
    constraints,
    decision_frequencies,
    defaults,
    goal_depth,
    hidden_velocities,
    memory,
    off_policy,
    reward_scales,
    shared,
    simulators,
    surrogates,
    toy_policies,
)
from scripts.studies.offline import (
    chunks,
    cloned_flow,
    corruptions,
    goals,
    in_context,
    offline_to_online,
    stitching,
    weights,
)
from tests.helpers import small_runs

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
    described = {"data": None, "config": {}}  # without a checkpoint: `run.resume` begins it anew
    (out / "config.json").write_text(json.dumps(described))

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
    with pytest.raises(
        SystemExit, match=r"has \{'data': 'a.hdf5'\}.* name another folder for these runs, --runs"
    ):
        trained("b.hdf5")


def test_scores_are_means_of_the_last_evaluations(tmp_path):
    lines = [
        {
            "step": step,
            "learner": i,
            "seed": i,
            "returns": [step + i, step + i + 2],
            "scores": [step / 10 + i],
        }
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
        return {
            name.strip(): [cell.strip() for cell in cells]
            for _, name, *cells, _ in (x.split("|") for x in lines)
        }

    settings, scores = rows("| sigma, alpha, C |"), rows("| corrupted | halfcheetah |")
    protocol = corruptions.PROTOCOL
    for i, task in enumerate(("halfcheetah", "walker2d", "hopper")):
        assert len(protocol[task]) == len(settings) == len(scores) == 8
        for (how, what), (sigma, alpha, critics, iql, riql) in protocol[task].items():
            name = f"{how}, {what if what == 'dynamics' else what + 's'}"
            assert settings[name][i] == f"{sigma:g}, {alpha:g}, {critics}"
            assert scores[name][i] == f"{iql} -> {riql}"


def test_corruptions_are_compared_within_each_kind():
    scores_by_case = {
        "none": {"iql": np.array([90.0, 91.0]), "riql": np.array([1.0, 2.0])},
        "random reward": {"iql": np.array([10.0, 12.0]), "riql": np.array([20.0, 22.0])},
        "adversarial reward": {"iql": np.array([30.0, 31.0]), "riql": np.array([5.0, 40.0])},
    }
    compared = corruptions.compared(scores_by_case)
    above = {group: of["riql above iql"][0] for group, of in compared.items()}
    assert above == {"random": 1.0, "adversarial": 0.5, "all": 0.75}
    assert compared["random"]["iql"][0] == 11
    scores = {
        name: {agent: x.tolist() for agent, x in of.items()} for name, of in scores_by_case.items()
    }
    text = corruptions.table({"task": "halfcheetah", "scores": scores, "compared": compared})
    assert "| random reward | 11.0 (10.0, 12.0) | 21.0 (20.0, 22.0) | 42.3 | 43.6 |" in text
    assert "| none | 90.5 (90.0, 91.0) | 1.5 (1.0, 2.0) | - | - |" in text
    assert "P(RIQL > IQL) = 0.75\n" in text, "two learners have no interval"


def test_weights_are_tabled_beside_published_scores():
    interval = mean_interval([20.0, 21.0, 22.0, 23.0, 24.0])
    assert interval[0] == 22.0
    assert 20.0 <= interval[1] < 22.0 < interval[2] <= 24.0
    intervals = {agent: dict.fromkeys(weights.WEIGHTS, interval) for agent in weights.AGENTS}
    effective = {"uniform": 200, "advantage": 9.3, "top": 20.0}
    text = weights.table({"effective": effective, "episodes": 200, "intervals": intervals})
    assert "| advantage, alpha 0.1 | 9 of 200 | 22.0 [" in text
    assert "| 50.2 |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"


def test_locks_are_tabled_by_when_they_open():
    curve = {
        "steps": [10, 20, 30],
        "returns": [[0.6, 0.4, 0.9], [0.1, 0.6, 0.7], [0.9, 0.9, 0.5], [0.9, 0.8, 0.7]],
    }
    assert combination_lock.opened(curve, 1.0) == [30, 20, None, 10], "it has to stay open"
    of = {name: [0.75, 0.5, 1.0] for name in combination_lock.AGENTS}
    opened = {name: [30, 20, None, 10] for name in combination_lock.AGENTS}
    cell = {
        "steps": dict.fromkeys(combination_lock.AGENTS, 2_048),
        "intervals": of,
        "opened": opened | {"ppo": [None]},
        "bc": 1.0,
        "data": 0.4,
    }
    text = combination_lock.table({"locks": {"10": cell}})
    assert "| 10 | 2,048 | HNPG with data | 0.75 [0.50, 1.00] | 3 of 4 | 20 |" in text
    assert "| 10 | 2,048 | PPO | 0.75 [0.50, 1.00] | 0 of 1 |  |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"


# The scripts themselves. Their trainings are checked and described by rljax, and learn nothing.


@pytest.fixture
def study(untrained, command, tmp_path):
    """Runs a study, and returns the JSON that it wrote."""

    def made(script: Any, name: str, *arguments: object) -> dict[str, Any]:
        output = tmp_path / "results"
        command(script, *arguments, "--runs", tmp_path / "runs", "--output", output)
        assert (output / f"{name}.png").exists()
        return json.loads((output / f"{name}.json").read_text())

    return made


CHUNKS = ("--env", "Pendulum-v1", "--updates", 20, "--online", 10, "--eval-every", 10)


def test_chunks(study, data):
    words = ("--data", data, *CHUNKS, "--hidden", 8, "--candidates", 2, "--seeds", 2)
    written = study(chunks, "chunks", *words)
    assert list(written["cells"]) == list(chunks.CELLS)
    for cell in written["cells"].values():
        assert [each["seed"] for each in cell] == [0, 1]
        assert [each["steps"] for each in cell] == [[10, 20, 30]] * 2
        assert [(each["from_data"], each["after"]) for each in cell] == [(100.0, 100.0)] * 2
    assert written["settings"]["qc"]["num_candidates"] == 2
    assert "num_candidates" not in written["settings"]["qam"]
    row = "| QAM | 100 (100, 100) | 100 (100, 100) | 0, 0 | 64; 100 |"
    assert row in chunks.table(written).splitlines()


def test_ways_from_a_cloned_flow(study, data, tmp_path, monkeypatch):
    flow = cloned_flow.FLOW | {"chunk_length": 1, "num_candidates": 1, "hidden": (8,)}
    every = {"eval_every": 20, "eval_episodes": 1, "quiet": True}
    out = tmp_path / "runs" / "clone"
    run.training("qc", "Pendulum-v1", 20, data=str(data), config=flow, out=out, **every).execute()
    measured = cloned_flow.milliseconds
    assert measured(out, calls=1) > 0
    monkeypatch.setattr(cloned_flow, "milliseconds", lambda out: 0.5)
    words = ("--data", data, "--env", "Pendulum-v1", "--clone-updates", 20, "--updates", 10)
    words = (*words, "--steps", 300, "--warmup", 10, "--eval-every", 10, "--hidden", 8)
    words = (*words, "--longer", 2)
    written = study(cloned_flow, "pendulum", *words, "--seeds", 2)
    assert list(written["ways"]) == list(cloned_flow.WAYS)
    for key, way in written["ways"].items():
        first = 0 if cloned_flow.WAYS[key].data else 10
        times = 2 if key == "reinflow" else 1
        last = 300 + (0 if cloned_flow.WAYS[key].data else cloned_flow.WAYS[key].head_start)
        expected = [times * step for step in range(first, last + 1, 10)]
        assert way["steps"] == expected, "of the environment"
        assert way["final"] == [np.mean(returns[-3:]).round(1) for returns in way["returns"]]
    written["clone"]["return"] = 900.0
    written["ways"] = {"dsrl": written["ways"]["dsrl"] | {"final": [1000.0, 850.0]}}
    (row,) = [x for x in cloned_flow.table(written).splitlines() if x.startswith("| DSRL")]
    assert row.startswith("| DSRL | 300 | 925 | +25 | "), "too few seeds for an interval"


def test_agents_of_goals_in_mazes(study, data, monkeypatch, tmp_path):
    words = ("--data", data, "--env", "Pendulum-v1", "--updates", 20, "--hidden", 8)
    written = study(goals, "mazes", *words, "--mazes", "large-stitch", "--seeds", 2)
    assert list(written["scores"]["large-stitch"]) == list(goals.CELLS)
    for scores in written["scores"]["large-stitch"].values():
        assert scores["success"] == [[100.0] * 10] * 2
        assert scores["score"] == [100.0, 100.0]
    assert "| GCIQL | 100 (100, 100) | 31 |" in goals.table(written).splitlines()
    more = ("--mazes", "medium-stitch", "--seeds", 2, "--agents", "gcbc")
    both = study(goals, "mazes", *words, *more)["scores"]
    assert both["large-stitch"] == written["scores"]["large-stitch"], "complete runs stay"
    assert list(both) == ["medium-stitch", "large-stitch"]
    assert list(both["medium-stitch"]) == ["gcbc"]
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    both["large-stitch"].pop("gcbc")
    goals.draw({"scores": both}, tmp_path / "figure.png")
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names == [cell.name for cell in goals.CELLS.values()], "those of all panels"


def test_tasks_that_are_learnt_in_context(study, monkeypatch):
    """A policy that pulls the first arm, and in a room goes down three times, then to the right."""

    def loaded(out: Path, learner: int) -> Any:
        def policy(observation: np.ndarray, step: np.ndarray) -> np.ndarray:
            assert observation.shape == (20, 1 + 5 + 1 if "Bandit" in out.name else 2 + 5 + 1)
            down = (step % 4 < 3) | ("Bandit" in out.name)
            return np.where(down, 0, 2).astype(np.int32)

        return policy

    monkeypatch.setattr(in_context.rljax, "load", loaded)
    words = ("--lifetimes", 30, "--context", 3, "--updates", 4, "--tasks", 20, "--seeds", 2)
    written = study(in_context, "bandits", "--parts", "bandits", *words, "--pulls", 40)
    regret = [x["mean"][-1] for x in written["dpt"]]
    chance = written["others"]["uniform pulls"]
    assert (
        regret[0] == regret[1] == pytest.approx(chance["mean"][-1], abs=3 * chance["interval"][-1])
    )
    for name in in_context.ALGORITHMS:
        assert written["others"][name]["mean"][-1] < 0.6 * chance["mean"][-1]
    room = ("--room", "rljax/DarkRoom-4x4-4", "--episodes", 2)
    written = study(in_context, "dark_room", "--parts", "dark_room", *words, *room)
    (largest,) = written["others"].values()
    for seed in written["dpt"]:
        assert len(seed["mean"]) == len(seed["share"]) == len(largest["mean"]) == 2
        assert seed["mean"][0] == seed["mean"][1] < largest["mean"][0]
    assert "| shortest ways | " in in_context.table(written)
    words = (*words, "--learners", 5, "--history", 4, *room)
    written = study(in_context, "forms", "--parts", "forms", *words)
    assert list(written["forms"]) == list(in_context.FORMS)
    assert (written["learners"], written["history"]) == (5, 4)
    assert written["others"] == {"shortest ways": largest}
    for seeds in written["forms"].values():
        assert [len(seed["mean"]) for seed in seeds] == [2, 2]
    assert "| AD, LHF's weights | " in in_context.table(written)


def test_pieces_of_trajectories_are_joined(study, tmp_path, monkeypatch):
    def evaluated(out: Path, **settings: Any) -> dict[str, Any]:
        target = settings["config"].get("target_return", 0.0)
        lines = [{"returns": [10.0, 100.0 + target], "success": [0.0, 1.0]}] * 2
        assert (settings["episodes"], settings["seed"]) == (50, 1)
        return {"episodes": lines}

    def paths(out: Path, target: float | None, episodes: int) -> np.ndarray:
        """Down and to the right, round by the left, and nowhere."""
        places = np.zeros((200, episodes, 2))
        places[50, :20, 0] = -1.5
        places[100, :30, 0] = 1.5
        return places

    monkeypatch.setattr(stitching.evaluate, "evaluate_run", evaluated)
    monkeypatch.setattr(stitching, "paths", paths)
    data = datasets.write(collect.demonstrated(stitching.NAME, steps=1600), tmp_path / "maze.npz")
    words = ("--data", data, "--updates", 10, "--dt-updates", 5, "--hidden", 8)
    written = study(stitching, "maze", *words, "--seeds", 2)
    assert list(written["cells"]) == list(stitching.CELLS)
    largest, short_way = written["data_largest"], written["short_way"]
    assert largest < 75 < 110 < short_way
    for key, cell in written["cells"].items():
        targets = [largest, short_way] if stitching.CELLS[key].aims else [None]
        assert [each["target"] for each in cell["played"]] == targets
        for each in cell["played"]:
            assert each["return"] == pytest.approx([55 + (each["target"] or 0) / 2] * 2, abs=0.1)
            assert each["joined"] == each["success"] == [50.0, 50.0]
            assert each["ways"] == {"short": 20.0, "long": 40.0, "neither": 40.0}
            assert np.shape(each["paths"]) == (8, 40, 2)
    assert written["cells"]["dt"]["updates"] == 5
    assert written["cells"]["iql"]["settings"]["hidden"] == [8]
    row = f"| DT | {short_way:.1f} | "
    assert [x for x in stitching.table(written).splitlines() if x.startswith(row)]


def test_chunks_of_another_length_are_not_taken(study, data, tmp_path):
    out = tmp_path / "runs" / "fql-seed-0"
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps({"steps": 40, "then_online": 10}))
    with pytest.raises(SystemExit, match=r"'steps': 40, .* and not .*'steps': 20, .*--runs"):
        study(chunks, "chunks", "--data", data, *CHUNKS, "--cells", "fql")
    described = {"steps": 20, "then_online": 10, "data": str(data), "config": {"hidden": [8]}}
    (out / "config.json").write_text(json.dumps(described))
    with pytest.raises(SystemExit, match=r"has \{.*'hidden': \[8\]\}, and not .*256.*--runs"):
        study(chunks, "chunks", "--data", data, *CHUNKS, "--cells", "fql")


def test_chunks_need_a_task_that_tells_success(study, untrained, data, monkeypatch):
    words = ("--data", data, *CHUNKS, "--cells", "fql", "--seeds", 1)
    read = chunks.folders.read

    def without(out: Path) -> Any:
        record = read(out)
        for line in record.learners[0].evaluations:
            del line["success"]
        return record

    monkeypatch.setattr(chunks.folders, "read", without)
    with pytest.raises(SystemExit, match="tells no success: name a task that does"):
        study(chunks, "chunks", *words)


@pytest.mark.parametrize("key", chunks.CELLS)
def test_settings_of_chunks_are_the_authors(key):
    """Those of cube-double in the comparison of QAM's authors, but for the number of critics."""
    cell = chunks.CELLS[key]
    module = registry.load_agent(cell.agent)
    given = configuration.replace(module.Config(), cell.config, key)
    task, variant = "ogbench/cube-double-play-singletask-task2-v0", None
    if key in ("fql-critics", "fql-chunks"):
        variant = "qam"
    expected = registry.preset(cell.agent, module, task, variant=variant)
    if key == "fql":
        task = "ogbench/cube-single-play-singletask-task2-v0"
        assert registry.preset(cell.agent, module, task) == given
    changes = {
        "fql-critics": {"num_critics": 5, "chunk_length": 1},
        "qam-fql": {"num_critics": 5, "form": "fql", "distillation_weight": 300.0},
    }
    change = changes.get(key, {} if key == "fql" else {"num_critics": 5})
    assert configuration.replace(expected, change, key) == given
    if key == "qam-fql":
        scene = registry.preset("qam", module, task.replace("cube-double", "scene"), variant="fql")
        change = {"num_critics": 5, "reward_transform": "none"}  # scene's rewards are sparse
        assert configuration.replace(scene, change, key) == given


def test_combination_locks(study):
    (cell,) = study(combination_lock, "locks", "--horizons", 10, "--episodes", 4, "--seeds", 2)[
        "locks"
    ].values()
    assert cell["optimum"] == 1.0
    assert {len(returns) for returns in cell["finals"].values()} == {2}


def test_corruptions(study, data):
    words = (
        "--data",
        data,
        "--task",
        "hopper",
        "--how",
        "random",
        "--steps",
        20,
        "--eval-every",
        10,
        "--seeds",
        2,
    )
    scores = study(corruptions, "hopper", *words)["scores"]
    assert len(scores) == 5
    assert scores["none"] == {"iql": [1.0, 1.0], "riql": [1.0, 1.0]}


def test_constraints(study):
    cells = ("Hopper-ppo_lagrangian", "PointHazards-cpo", "PointHazards-ppo")
    tasks = study(constraints, "limits", "--steps", 6_400, "--seeds", 2, "--cells", *cells)["tasks"]
    assert {name: list(rows) for name, rows in tasks.items()} == {
        "Hopper": ["ppo_lagrangian"],
        "PointHazards": ["cpo", "ppo"],
    }
    for name, limit in (("Hopper", 25.0), ("PointHazards", 10.0)):
        for cell in tasks[name].values():
            assert cell["seeds"] == [2_000, 2_001]
            assert cell["within"] == sum(cost <= limit for cost in cell["costs"])
            assert cell["training_within"] == sum(cost <= limit for cost in cell["training_costs"])


def test_costs_in_training_are_means_over_the_chunks_in_which_episodes_ended(tmp_path):
    costs = {20: [8, None], 40: [6, None], 60: [4, 2], 80: [None, 9], 100: [1, 3]}
    lines = [json.dumps({"step": step, "episode/cost": each}) for step, each in costs.items()]
    lines.insert(3, json.dumps({"step": 70}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert constraints.in_training(tmp_path, 2, "episode/cost", 0.5) == [2.5, 14 / 3]
    assert constraints.in_training(tmp_path, 2, "episode/cost", 1.0) == [4.75, 14 / 3]


def test_defaults(study, monkeypatch):
    steps = {"sac": 200, "dqn": 200, "bc": 20, "cql_discrete": 20}
    monkeypatch.setattr(defaults, "STEPS", steps)
    row = {"from": "an environment", "steps": 1, "returns": [-3.0], "git_revision": "abc"}
    monkeypatch.setattr(defaults, "earlier", lambda path: {"dqn": row})
    agents = study(defaults, "reach", "--agents", "sac", "bc", "cql_discrete")["agents"]
    assert agents["dqn"] == row
    assert agents["sac"]["git_revision"] != "abc"
    assert {agent: row["from"] for agent, row in agents.items()} == {
        "sac": "an environment",
        "dqn": "an environment",
        "bc": "data",
        "cql_discrete": "data",
    }


def test_hidden_velocities(study):
    words = ("--seeds", 1, "--hopper-steps", 4_096, "--cartpole-steps", 1_000)
    tasks = study(hidden_velocities, "hidden_velocities", *words)["tasks"]
    assert {len(cells) for cells in tasks.values()} == {3}


def test_off_policy_agents(study):
    words = ("--tasks", "double_pendulum", "--steps", 2_000, "--seeds", 2, "--longer", 3)
    agents = ("sac-small", "tqc", "bro")  # BRO in the variant that the table has
    cells = study(off_policy, "double_pendulum", *words, "--agents", *agents)["cells"]
    assert tuple(cells) == agents
    assert cells["bro"]["updates_per_step"] == 2
    assert cells["tqc"]["steps"][-1] == 2_000
    assert cells[off_policy.BASE]["steps"][-1] == 6_000


def test_simulators(study):
    words = ("--pairs", "fasttd3", "--share", 0.08, "--seeds", 2)
    result = study(simulators, "fasttd3", *words)
    cells = result["tasks"][simulators.PENDULUM]
    assert list(cells) == ["td3", "fasttd3"]
    assert cells["fasttd3"]["steps"][-1] >= 10 * cells["td3"]["steps"][-1]


@pytest.mark.parametrize("pair", simulators.PAIRS)
def test_settings_for_simulators_are_accepted(pair):
    for cell in simulators.PAIRS[pair].cells.values():
        config = configuration.replace(
            registry.load_agent(cell.agent).Config(), dict(cell.config), cell.name
        )
        check(registry.load_agent(cell.agent), EnvSpec("test", (3,), 1), config)


def test_returns_at_equal_steps_and_at_equal_time():
    cell = {
        "steps": [10, 20, 30, 40],
        "curves": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 9.0]],
        "steps_per_second": 10.0,
    }
    assert simulators.after(cell, 30, "steps") == [2.0, 6.0]
    assert simulators.after(cell, 2.5, "seconds") == [1.5, 5.5]
    assert simulators.after(cell, 41, "steps") is None


def test_surrogates(study):
    words = ("--tasks", "Hopper-v5", "--steps", 4_096, "--seeds", 2)
    kinds = ("clip", "mdpo-whole")
    cells = study(surrogates, "surrogates", *words, "--surrogates", *kinds)["tasks"]["Hopper-v5"]
    assert tuple(cells) == kinds
    assert len(cells["clip"]["last"]) == 2
    assert cells["mdpo-whole"]["config"]["batch_size"] == surrogates.ROLLOUT


def test_goal_depth(study):
    words = ("--cells", "sac", "2", "--steps", 70_000, "--seeds", 1)
    cells = study(goal_depth, "goal_depth", *words)["cells"]
    assert len(cells["2"]["steps"]) == len(cells["2"]["success"][0]) >= 6


@pytest.mark.parametrize("key", goal_depth.CELLS)
def test_settings_of_goal_depth_are_accepted(key):
    cell = goal_depth.CELLS[key]
    configuration.replace(registry.load_agent(cell.agent).Config(), cell.config, "t")


@pytest.mark.parametrize("key", surrogates.VARIANTS)
def test_settings_of_surrogates_are_accepted(key):
    config = configuration.replace(
        registry.load_agent("ppo").Config(), surrogates.VARIANTS[key].config, "t"
    )
    assert config.num_envs * config.num_steps == surrogates.ROLLOUT


@pytest.mark.parametrize("key", off_policy.CELLS)
def test_settings_of_off_policy_agents_are_accepted(key):
    cell, task = off_policy.CELLS[key], "Hopper-v5"
    module = registry.load_agent(cell.agent)
    preset = registry.preset(cell.agent, module, task, variant=cell.variant)
    config = configuration.replace(preset, {"warmup_steps": 1_000, **cell.config}, key)
    check(module, EnvSpec(task, (11,), 3), config)
    updates = {"droq": 20, "xqc": 2, "simbav2": 2, "bro": 2}
    assert config.num_updates == updates.get(key, 1)


def test_returns_after_the_same_seconds():
    base = {
        "steps": [10, 20, 30, 40],
        "curves": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 9.0]],
        "steps_per_second": 10.0,
    }
    assert off_policy.in_seconds(base, 1.5) == ([1.0, 5.0], 1.5)
    end = ([3.0, pytest.approx(22 / 3)], 4.0)
    assert off_policy.in_seconds(base, 4.0) == end
    assert off_policy.in_seconds(base, 9.0) == end


def test_memory(study):
    chains = study(memory, "chain", "--steps", 8_192, "--seeds", 2)
    assert list(chains["returns"]) == list(memory.CHAINS)
    assert set(chains["variants"]) == set(memory.VARIANTS)


@pytest.mark.parametrize("settings", ["small", "presets"])
def test_offline_to_online(study, data, settings):
    words = (
        "--data",
        data,
        "--env",
        "Pendulum-v1",
        "--ways",
        "none",
        "rlpd",
        "iql",
        "mixed",
        "--seeds",
        2,
    )
    sizes = ("--updates", 20, "--online", 40, "--warmup", 10, "--eval-every", 10)
    written = study(offline_to_online, f"pendulum-{settings}", f"--{settings}", *words, *sizes)
    assert len(written["curves"]) == 4
    assert written["presets"] == (settings == "presets")


def test_reward_scales(untrained, command, tmp_path):
    words = ("--steps", 100, "--seeds", 2, "--agents", *reward_scales.AGENTS)
    command(reward_scales, *words, "--runs", tmp_path / "runs", "--output", tmp_path)
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert {len(scales) for scales in scores.values()} == {5}
    assert len(scores["sac"]["100.0"]["seeds"]) == 2


@pytest.mark.learn
def test_weights(monkeypatch, command, tmp_path):
    policy = small_runs.train("sac", "Hopper-v5", 100, tmp_path / "policy")
    words = (
        "--policy",
        policy,
        "--share",
        0.5,
        "--episodes",
        20,
        "--length",
        50,
        "--steps",
        20,
        "--seeds",
        2,
    )
    places = ("--eval-every", 20, "--runs", tmp_path / "runs", "--output", tmp_path)
    monkeypatch.setattr(weights, "AGENTS", {"td3_bc": "TD3+BC"})
    command(weights, *words, *places)
    scores = json.loads((tmp_path / "halfcheetah.json").read_text())["scores"]
    assert {len(values) for values in scores["td3_bc"].values()} == {2}


@pytest.mark.learn
def test_decision_frequencies(monkeypatch, command, tmp_path):
    small = decision_frequencies.TASKS["pendulum"]._replace(steps={"others": 200})
    monkeypatch.setitem(decision_frequencies.TASKS, "pendulum", small)
    for name in ("sac", "sequence_rl 4"):
        agent, config = decision_frequencies.AGENTS[name]
        sizes = {"hidden": (8, 8), "batch_size": 8, "warmup_steps": 50, "replay_size": 200}
        monkeypatch.setitem(decision_frequencies.AGENTS, name, (agent, config | sizes))
    monkeypatch.setattr(decision_frequencies, "LENGTHS", (1, 30))
    words = (
        "--task",
        "pendulum",
        "--agents",
        "sac",
        "sequence_rl 4",
        "--seeds",
        1,
        "--episodes",
        1,
    )
    command(decision_frequencies, *words, "--runs", tmp_path / "runs", "--output", tmp_path)
    agents = json.loads((tmp_path / "pendulum.json").read_text())["agents"]
    assert {name: list(entry["returns"]) for name, entry in agents.items()} == {
        "sac": ["1", "30"],
        "sequence_rl 4": ["1", "30"],
    }


@pytest.mark.learn
def test_compute(monkeypatch, command, tmp_path):
    sizes = {"num_envs": 4, "num_steps": 4, "batch_size": 8, "num_epochs": 1}
    small = dataclasses.replace(compute.TASKS["LightsOut-3x3"], small=sizes)
    monkeypatch.setitem(compute.TASKS, "LightsOut-3x3", small)
    words = (
        "--task",
        "LightsOut-3x3",
        "--steps",
        160,
        "--seeds",
        2,
        "--thinking",
        1,
        2,
        "--acting",
        1,
        2,
    )
    more = (
        "--baselines",
        "mlp",
        "--episodes",
        2,
        "--judging",
        4,
        "--runs",
        tmp_path / "runs",
        "--output",
        tmp_path,
    )
    command(compute, *words, *more)
    rows = json.loads((tmp_path / "LightsOut-3x3.json").read_text())["rows"]
    assert [(row["torso"], row["trained"], row["acting"]) for row in rows] == [
        ("iru", 1, 1),
        ("iru", 1, 2),
        ("iru", 2, 1),
        ("iru", 2, 2),
        ("mlp", 1, 1),
    ]


@pytest.mark.learn
def test_toy_policies(monkeypatch, command, tmp_path):
    small = {"hidden": (8,), "actor_lr": 1e-3}
    monkeypatch.setattr(
        toy_policies, "POLICIES", {"BC": ("bc", small, None), "IQL": ("iql", small, small)}
    )
    command(toy_policies, "--updates", 2, "--output", tmp_path)
    shares = json.loads((tmp_path / "shares.json").read_text())["shares"]
    assert [len(share) for share in shares["IQL"]] == [5, 5]
    assert shares["BC"][1] is None
