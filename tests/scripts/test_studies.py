"""The scripts behind results/: what they share, and the figures that they hold from papers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.analysis.comparison import mean_difference, mean_interval
from rljax.training import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script, none of which is a part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def write(folder: Path, *, complete: bool) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({"complete": complete, "steps": 10}))


def test_runs_are_made_once(script, tmp_path):
    studies = script("studies")
    out, begun = tmp_path / "run", []

    def begin() -> None:
        begun.append(1)
        write(out, complete=True)

    for _ in range(2):
        assert studies.trained(out, 10, begin) == out
    assert begun == [1]


def test_interrupted_runs_end_a_study_and_go_on(script, tmp_path, monkeypatch):
    studies = script("studies")
    out, resumed = tmp_path / "run", []
    with pytest.raises(SystemExit, match="the same command goes on"):
        studies.trained(out, 10, lambda: write(out, complete=False))
    (out / "checkpoints").mkdir()

    def resume(folder: Path, steps: int, quiet: bool) -> None:
        resumed.append(steps)
        write(folder, complete=True)

    monkeypatch.setattr(studies.run, "resume", resume)
    assert studies.trained(out, 10, lambda: pytest.fail("begun anew")) == out
    assert resumed == [10]
    with pytest.raises(SystemExit):
        studies.trained(out, 20, lambda: pytest.fail("begun anew"))
    assert resumed == [10, 20], "a longer one is gone on with"


def test_a_run_of_something_else_is_not_taken(script, tmp_path):
    studies = script("studies")
    write(tmp_path, complete=True)
    described = {"data": "a.hdf5", "config": {"quantile": 0.1, "hidden": [256, 256], "seed": 3}}
    (tmp_path / "config.json").write_text(json.dumps(described))

    def trained(data: str, **config: Any) -> Path:
        return studies.trained(tmp_path, 10, lambda: pytest.fail("begun anew"), data, config)

    assert trained("a.hdf5", quantile=0.1, hidden=(256, 256)) == tmp_path
    with pytest.raises(SystemExit, match=r"has \{'quantile': 0.1\}, and not .*'quantile': 0.25"):
        trained("a.hdf5", quantile=0.25)
    with pytest.raises(SystemExit, match=r"has \{'data': 'a.hdf5'\}.* name another folder for these runs, --runs"):
        trained("b.hdf5")


def test_scores_are_means_of_the_last_evaluations(script, tmp_path):
    lines = [
        {"step": step, "learner": i, "seed": i, "returns": [step + i, step + i + 2], "scores": [step / 10 + i]}
        for step in (10, 20, 30, 40)
        for i in range(2)
    ]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.testing.assert_allclose(script("studies").last(tmp_path, 40, "returns", 3), [31, 32])
    np.testing.assert_allclose(script("studies").last(tmp_path, 39, "scores", 2), [2.5, 3.5])


def test_riqls_settings_and_scores_are_those_of_its_page(script):
    page = (ROOT / "docs" / "agents" / "riql.md").read_text()

    def rows(head: str) -> dict[str, list[str]]:
        lines = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
        return {name.strip(): [cell.strip() for cell in cells] for _, name, *cells, _ in (x.split("|") for x in lines)}

    settings, scores = rows("| sigma, alpha, C |"), rows("| corrupted | halfcheetah |")
    protocol = script("corruption_study").PROTOCOL
    for i, task in enumerate(("halfcheetah", "walker2d", "hopper")):
        assert len(protocol[task]) == len(settings) == len(scores) == 8
        for (how, what), (sigma, alpha, critics, iql, riql) in protocol[task].items():
            name = f"{how}, {what if what == 'dynamics' else what + 's'}"
            assert settings[name][i] == f"{sigma:g}, {alpha:g}, {critics}"
            assert scores[name][i] == f"{iql} -> {riql}"


def test_corruptions_are_compared_within_each_kind(script):
    study = script("corruption_study")
    found = {
        "none": {"iql": np.array([90.0, 91.0]), "riql": np.array([1.0, 2.0])},
        "random reward": {"iql": np.array([10.0, 12.0]), "riql": np.array([20.0, 22.0])},
        "adversarial reward": {"iql": np.array([30.0, 31.0]), "riql": np.array([5.0, 40.0])},
    }
    compared = study.compared(found)
    above = {group: of["riql above iql"][0] for group, of in compared.items()}
    assert above == {"random": 1.0, "adversarial": 0.5, "all": 0.75}
    assert compared["random"]["iql"][0] == 11
    scores = {name: {agent: x.tolist() for agent, x in of.items()} for name, of in found.items()}
    text = study.table({"task": "halfcheetah", "scores": scores, "compared": compared})
    assert "| random reward | 11.0 +- 1.4 | 21.0 +- 1.4 | 42.3 | 43.6 |" in text
    assert "| none | 90.5 +- 0.7 | 1.5 +- 0.7 | - | - |" in text
    assert "P(RIQL > IQL) = 0.75" in text


def test_weights_are_tabled_beside_published_scores(script):
    study = script("weights_study")
    interval = mean_interval([20.0, 22.0, 24.0])
    assert interval[0] == 22.0
    assert 20.0 <= interval[1] < 22.0 < interval[2] <= 24.0
    found = {agent: dict.fromkeys(study.WEIGHTS, interval) for agent in study.AGENTS}
    effective = {"uniform": 200, "advantage": 9.3, "top": 20.0}
    text = study.table({"effective": effective, "episodes": 200, "intervals": found})
    assert "| advantage, alpha 0.1 | 9 of 200 | 22.0 [" in text
    assert "| 50.2 |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"


def test_locks_are_tabled_by_when_they_open(script):
    study = script("combination_lock")
    curve = {"steps": [10, 20, 30], "returns": [[0.6, 0.4, 0.9], [0.1, 0.6, 0.7], [0.9, 0.9, 0.5], [0.9, 0.8, 0.7]]}
    assert study.opened(curve, 1.0) == [30, 20, None, 10], "it has to stay open"
    of = dict.fromkeys(study.AGENTS, mean_interval([0.5, 1.0]))
    opened = {name: [30, 20, None, 10] for name in study.AGENTS}
    cell = {"steps": 2_048, "intervals": of, "opened": opened | {"ppo": [None]}, "bc": 1.0, "data": 0.4}
    text = study.table({"locks": {"10": cell}})
    assert "| 10 | 2,048 | HNPG with data | 0.75 [0.50, 1.00] | 3 of 4 | 20 |" in text
    assert "| 10 | 2,048 | PPO | 0.75 [0.50, 1.00] | 0 of 1 |  |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"


def test_references_are_tabled_with_the_interval_of_the_difference(script, tmp_path):
    study, out = script("references_study"), tmp_path / "theirs.json"
    mine, other = [100.0, 110.0, 120.0], [90.0, 95.0, 100.0]
    each = {
        "label": "TD3+BC",
        "updates": 10_000,
        "seeds": [0, 1, 2],
        "returns": {"ours": [mine, mine], "theirs": [mine, other]},
        "differences": [mean_difference(mine, mine), mean_difference(mine, other)],
        "speed": {"ours, one learner": [300.0, 310.0, 290.0], "theirs": [100.0, 90.0, 150.0]},
    }
    text = study.table({"comparisons": {"td3_bc": each}})
    assert "| TD3+BC | 10,000 | 3 | 110 [100, 120] | 95 [90, 100] | +15 [" in text
    assert "] | +0 [" in text
    assert text.endswith("| 300 | 100 | 3.0 |\n")
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"
    out.write_text(json.dumps({"evaluations": [{"returns": [1.0] * 10}, {"returns": [1.0] * 9}]}))
    assert not study.finished(out), "an interrupted process is run again"
    part = {"evaluations": [{"began": 8.0, "ended": 10.0}, {"began": 30.0, "ended": 32.0}]}
    assert study.rate(part, 5_000) == 250.0, "updates alone count, not evaluations"


def test_an_agent_takes_anothers_parameters(script):
    updates = script("reference_updates")
    module = registry.load_agent("td3_bc")
    state = module.init(jax.random.key(0), EnvSpec("data", (3,), 2), module.Config(hidden=(4, 4)))
    sizes = {"actor": (1, [3, 4, 4, 2]), "critic": (2, [5, 4, 4, 1])}
    rng = np.random.default_rng(0)
    layers = ("hidden_0", "hidden_1", "output")
    given = {
        f"first/{name}/{i}/{layer}/{kind}": rng.normal(size=widths[j : j + 2] if kind == "kernel" else widths[j + 1])
        for name, (members, widths) in sizes.items()
        for i in range(members)
        for j, layer in enumerate(layers)
        for kind in ("kernel", "bias")
    }
    for name in sizes:
        taken = updates.parameters_of(updates.replaced(state, name, given), name)
        assert jax.tree.map(np.shape, taken) == jax.tree.map(np.shape, updates.parameters_of(state, name))
        found = dict(updates.leaves(taken))
        assert {f"first/{name}/{key}" for key in found} == {key for key in given if f"/{name}/" in key}
        for key, value in found.items():
            np.testing.assert_array_equal(value, given[f"first/{name}/{key}"])


def test_losses_of_updates_without_one_do_not_count(script):
    theirs = np.array([np.nan, 2.0] * 10)
    found = script("reference_updates").relative(np.where(np.arange(20) == 15, 3.0, 2.0), theirs)
    assert found == {"first 10": 0.0, "all": 0.5}


def test_updates_draw_given_numbers_in_place_of_random_ones(script):
    updates, pairs = script("reference_updates"), script("reference_pairs")
    rng = np.random.default_rng(0)
    shapes = [(5, 2, 3), (5, 2, 3), (5, 2, 4, 3), (5, 2, 4, 3)]  # 5 updates, batches of 2, 4 candidates of 3 numbers
    actor, target, present, following = normal = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    uniform = rng.uniform(size=(5, 2, 4, 3)).astype(np.float32)
    noise = pairs.cql_noise({"normal": normal, "uniform": [uniform]})

    @jax.jit
    def drawn(noise):
        with updates.given_noise(noise):
            key = jax.random.key(0)
            both, first = jax.random.normal(key, (5, 4, 3)), jax.random.normal(key, shape=(2, 3))
            return both, jax.random.uniform(key, (4, 2, 3), minval=-1.0, maxval=1.0), first

    both, candidates, first = drawn(jax.tree.map(lambda x: x[3], noise))  # of the fourth update
    np.testing.assert_array_equal(first, actor[3])
    np.testing.assert_array_equal(both[0, 2:], target[3])
    np.testing.assert_array_equal(both[1:, :2], present[3].swapaxes(0, 1))
    np.testing.assert_array_equal(both[1:, 2:], following[3].swapaxes(0, 1))
    np.testing.assert_array_equal(candidates, uniform[3].swapaxes(0, 1))
    assert jax.random.normal(jax.random.key(0), (2,)).shape == (2,), "afterwards numbers are random again"


def test_draws_of_another_agent_are_seen_in_order_and_some_repeated(script):
    watch = script("reference_watch")
    place = SimpleNamespace(draw=iter(np.arange(6.0).reshape(6, 1)).__next__)
    updates = []
    for _ in range(2):
        with watch.recorded_draws([("normal", place, "draw")], {1: 0}) as drawn:
            seen = [place.draw() for _ in range(3)]
        np.testing.assert_array_equal(seen, drawn["normal"])
        updates.append(drawn)
    (draws,) = watch.stacked(updates).values()
    np.testing.assert_array_equal(draws, [[[0], [2]], [[0], [2]], [[1], [3]]], "the second is the first again")
    np.testing.assert_array_equal(place.draw(), [4.0], "afterwards nothing is repeated")


def test_diffusion_draws_its_chains_at_once(script):
    pairs = script("reference_pairs")
    rng = np.random.default_rng(0)
    normal = [rng.normal(size=(5, 2, 3)) for _ in range(7)]  # 5 updates, batches of 2, chains of 2 steps from noise
    drawn = {"normal": normal, "integer": [np.zeros((5, 2)), np.ones((5, 2))], "uniform": [np.linspace(0, 1, 5)]}
    noise = pairs.diffusion_noise(drawn)
    target, noisy, policy = (each[4] for each in noise["normal"])  # of the last update
    np.testing.assert_array_equal(target, [each[4] for each in normal[:3]])
    np.testing.assert_array_equal(noisy, normal[3][4])
    np.testing.assert_array_equal(policy, [each[4] for each in normal[4:]])
    np.testing.assert_array_equal(noise["randint"], [np.ones((5, 2))], "not those that chose the batch")
    np.testing.assert_array_equal(noise["bernoulli"], [[False, False, False, True, True]])


@pytest.mark.slow
def test_an_actor_of_several_networks_takes_the_parameters_of_one(script):
    updates = script("reference_updates")
    module = registry.load_agent("fql")
    state = module.init(jax.random.key(0), EnvSpec("data", (3,), 2), module.Config(hidden=(4,)))
    names = [f"first/actor.flow/{name}" for name, _ in updates.leaves(updates.parameters_of(state, "actor.flow"))]
    assert "first/actor.flow/0/body/hidden_0/kernel" in names
    given = {name: np.full(1, i) for i, name in enumerate(names)}
    taken = updates.replaced(state, "actor.flow", given)
    assert [float(x[0]) for _, x in updates.leaves(updates.parameters_of(taken, "actor.flow"))] == [0, 1, 2, 3]
    assert taken.actor.one_step is state.actor.one_step
