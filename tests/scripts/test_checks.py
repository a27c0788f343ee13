"""The checks: what comparisons with other people's files take, draw and table,
and each script at a tiny size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from rljax import datasets
from rljax.agent import EnvSpec
from rljax.agents import famo2o, recoil
from rljax.analysis.comparison import mean_difference
from rljax.analysis.diagnosis import RunFinding
from rljax.learning import registry
from scripts.checks import (
    compare_early_bc,
    compare_hindsight,
    compare_returns,
    compare_updates,
    diagnose_runs,
    revisions,
    run_d3rlpy,
    watch_authors_file,
)
from scripts.checks.authors import learners, pairs
from scripts.faults import (
    damaged_files,
    hostile_environments,
    hostile_files,
    kill_runs,
    random_commands,
)
from scripts.updates import compare_tqc
from scripts.updates.offline import compare_famo2o
from tests.helpers import run_folders

ROOT = Path(__file__).parents[2]


def test_references_are_tabled_with_the_interval_of_the_difference(tmp_path):
    out = tmp_path / "theirs.json"
    mine, other = [100.0, 105.0, 110.0, 115.0, 120.0], [90.0, 92.0, 95.0, 98.0, 100.0]
    each = {
        "label": "TD3+BC",
        "env": "HalfCheetah-v5",
        "updates": 10_000,
        "seeds": [0, 1, 2, 3, 4],
        "returns": {"ours": [mine, mine], "theirs": [mine, other]},
        "differences": [mean_difference(mine, mine), mean_difference(mine, other)],
        "speed": {"ours, one learner": [300.0, 310.0, 290.0], "theirs": [100.0, 90.0, 150.0]},
    }
    worse = each | {"returns": {"ours": [mine, [-900.0] * 5], "theirs": [mine, [-800.0] * 5]}}
    text = compare_returns.table({"comparisons": {"td3_bc": each, "rebrac": worse}})
    assert "| TD3+BC | 10,000 | 5 | 110 [1" in text
    assert "| 95 [9" in text
    assert "| +15 [" in text
    assert "] | +0 [" in text
    assert len(text.splitlines()) == 3, "no row in which both are worse than uniform actions"
    assert text.endswith("| 300 | 100 | 3.0 |\n")
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"
    out.write_text(json.dumps({"evaluations": [{"returns": [1.0] * 10}, {"returns": [1.0] * 9}]}))
    assert not compare_returns.finished(out), "an interrupted process is run again"
    part = {"evaluations": [{"began": 8.0, "ended": 10.0}, {"began": 30.0, "ended": 32.0}]}
    assert compare_returns.rate(part, 5_000) == 250.0, "updates alone count, not evaluations"


def test_an_agent_takes_anothers_parameters():
    module = registry.load_agent("td3_bc")
    state = module.init(jax.random.key(0), EnvSpec("data", (3,), 2), module.Config(hidden=(4, 4)))
    sizes = {"actor": (1, [3, 4, 4, 2]), "critic": (2, [5, 4, 4, 1])}
    rng = np.random.default_rng(0)
    layers = ("hidden_0", "hidden_1", "output")
    arrays = {
        f"first/{name}/{i}/{layer}/{kind}": rng.normal(
            size=widths[j : j + 2] if kind == "kernel" else widths[j + 1]
        )
        for name, (members, widths) in sizes.items()
        for i in range(members)
        for j, layer in enumerate(layers)
        for kind in ("kernel", "bias")
    }
    for name in sizes:
        taken = compare_updates.parameters_of(compare_updates.replaced(state, name, arrays), name)
        assert jax.tree.map(np.shape, taken) == jax.tree.map(
            np.shape, compare_updates.parameters_of(state, name)
        )
        parameters = dict(compare_updates.leaves(taken))
        assert {f"first/{name}/{key}" for key in parameters} == {
            key for key in arrays if f"/{name}/" in key
        }
        for key, value in parameters.items():
            np.testing.assert_array_equal(value, arrays[f"first/{name}/{key}"])


def test_tqc_takes_sbxs_parameters_and_is_compared(monkeypatch):
    """SBX's layers are Dense_0, ...; the last two of its actor are its mean and log std."""
    monkeypatch.setattr(
        compare_tqc,
        "CONFIG",
        compare_tqc.CONFIG.__class__(
            hidden=(4, 4), critic_hidden=(4, 4), num_critics=2, quantiles=3, batch_size=5
        ),
    )
    monkeypatch.setattr(compare_tqc, "BATCH", 5)
    rng = np.random.default_rng(0)

    def dense(*widths: int) -> dict[str, Any]:
        kernels = [rng.normal(size=pair).astype(np.float32) for pair in pairwise(widths)]
        return {
            f"Dense_{i}": {"kernel": kernel, "bias": kernel[0] + 1.0}
            for i, kernel in enumerate(kernels)
        }

    observations, actions = compare_tqc.OBSERVATIONS, compare_tqc.ACTIONS
    critic = lambda: {"params": dense(observations + actions, 4, 4, 3)}  # noqa: E731
    actor = dense(observations, 4, 4, actions)
    actor["Dense_3"] = jax.tree.map(lambda x: x + 1.0, actor["Dense_2"])
    pair = [SimpleNamespace(params=critic(), target_params=critic()) for _ in range(2)]
    policy = SimpleNamespace(
        qf1_state=pair[0], qf2_state=pair[1], actor_state=SimpleNamespace(params={"params": actor})
    )
    temperature = SimpleNamespace(params={"log_ent_coef": np.float32(0.3)})
    first = compare_tqc.of_peer(policy, temperature)
    output = np.asarray(first["actor"]["output"]["bias"])
    np.testing.assert_array_equal(output[:actions] + 1.0, output[actions:])
    rows = compare_tqc.batches(2)
    last, losses = compare_tqc.ours(rows, first)
    assert jax.tree.map(np.shape, last) == jax.tree.map(np.shape, first)
    assert all(np.isfinite(values).all() and len(values) == 2 for values in losses.values())
    other = jax.tree.map(lambda x: x + 1.0, first)
    assert compare_tqc.apart(first, first, other) == 1.0
    assert compare_tqc.apart(first, other, other) == 0.0


def test_losses_of_updates_without_one_do_not_count():
    theirs = np.array([np.nan, 2.0] * 10)
    differences = compare_updates.relative(np.where(np.arange(20) == 15, 3.0, 2.0), theirs)
    assert differences == {"first 10": 0.0, "all": 0.5}


def test_updates_draw_given_numbers_in_place_of_random_ones():
    rng = np.random.default_rng(0)
    # 5 updates, batches of 2, 4 candidates of 3 numbers
    shapes = [(5, 2, 3), (5, 2, 3), (5, 2, 4, 3), (5, 2, 4, 3)]
    actor, target, present, following = normal = [
        rng.normal(size=shape).astype(np.float32) for shape in shapes
    ]
    uniform = rng.uniform(size=(5, 2, 4, 3)).astype(np.float32)
    noise = pairs.cql_noise({"normal": normal, "uniform": [uniform]})

    @jax.jit
    def drawn(noise):
        with compare_updates.given_noise(noise):
            key = jax.random.key(0)
            both, first = jax.random.normal(key, (5, 4, 3)), jax.random.normal(key, shape=(2, 3))
            return both, jax.random.uniform(key, (4, 2, 3), minval=-1.0, maxval=1.0), first

    both, candidates, first = drawn(jax.tree.map(lambda x: x[3], noise))  # of the fourth update
    np.testing.assert_array_equal(first, actor[3])
    np.testing.assert_array_equal(both[0, 2:], target[3])
    np.testing.assert_array_equal(both[1:, :2], present[3].swapaxes(0, 1))
    np.testing.assert_array_equal(both[1:, 2:], following[3].swapaxes(0, 1))
    np.testing.assert_array_equal(candidates, uniform[3].swapaxes(0, 1))
    assert jax.random.normal(jax.random.key(0), (2,)).shape == (2,), (
        "afterwards numbers are random again"
    )


def test_draws_of_another_agent_are_seen_in_order_and_some_repeated():
    place = SimpleNamespace(draw=iter(np.arange(6.0).reshape(6, 1)).__next__)
    updates = []
    for _ in range(2):
        with watch_authors_file.recorded_draws([("normal", place, "draw")], {1: 0}) as drawn:
            numbers = [place.draw() for _ in range(3)]
        np.testing.assert_array_equal(numbers, drawn["normal"])
        updates.append(drawn)
    (draws,) = watch_authors_file.stacked(updates).values()
    np.testing.assert_array_equal(
        draws, [[[0], [2]], [[0], [2]], [[1], [3]]], "the second is the first again"
    )
    np.testing.assert_array_equal(place.draw(), [4.0], "afterwards nothing is repeated")


def test_diffusion_draws_its_chains_at_once():
    rng = np.random.default_rng(0)
    # 5 updates, batches of 2, chains of 2 steps from noise
    normal = [rng.normal(size=(5, 2, 3)) for _ in range(7)]
    drawn = {
        "normal": normal,
        "integer": [np.zeros((5, 2)), np.ones((5, 2))],
        "uniform": [np.linspace(0, 1, 5)],
    }
    noise = pairs.diffusion_noise(drawn)
    target, noisy, policy = (each[4] for each in noise["normal"])  # of the last update
    np.testing.assert_array_equal(target, [each[4] for each in normal[:3]])
    np.testing.assert_array_equal(noisy, normal[3][4])
    np.testing.assert_array_equal(policy, [each[4] for each in normal[4:]])
    np.testing.assert_array_equal(
        noise["randint"], [np.ones((5, 2))], "not those that chose the batch"
    )
    np.testing.assert_array_equal(noise["bernoulli"], [[False, False, False, True, True]])


def test_an_actor_of_several_networks_takes_the_parameters_of_one():
    module = registry.load_agent("fql")
    state = module.init(jax.random.key(0), EnvSpec("data", (3,), 2), module.Config(hidden=(4,)))
    flow = compare_updates.parameters_of(state, "actor.flow")
    names = [f"first/actor.flow/{name}" for name, _ in compare_updates.leaves(flow)]
    assert "first/actor.flow/0/body/hidden_0/kernel" in names
    arrays = {name: np.full(1, i) for i, name in enumerate(names)}
    taken = compare_updates.replaced(state, "actor.flow", arrays)
    flow = compare_updates.parameters_of(taken, "actor.flow")
    assert [float(x[0]) for _, x in compare_updates.leaves(flow)] == [0, 1, 2, 3]
    assert taken.actor.parameters.one_step is state.actor.parameters.one_step


# The scripts themselves: our side, for the peers are not installed.


def test_our_updates_are_compared_with_arrays(monkeypatch, data):
    monkeypatch.setattr(compare_updates, "UPDATES", 3)
    module, rows = registry.load_agent("td3_bc"), datasets.load(str(data)).transitions
    pair = pairs.PAIRS["td3_bc"]._replace(config={"hidden": (4,), "normalise_observations": False})
    monkeypatch.setitem(pairs.PAIRS, "td3_bc", pair)
    state = module.init(jax.random.key(1), EnvSpec("data", (3,), 1), module.Config(**pair.config))
    arrays = {f"loss/{name}": np.ones(3) for name in pair.losses}
    for name in pair.networks:
        for key, value in compare_updates.leaves(compare_updates.parameters_of(state, name)):
            arrays[f"first/{name}/{key}"] = value
            arrays[f"last/{name}/{key}"] = value + 1.0
    batches = np.arange(24).reshape(3, 8)
    arrays |= {"actions": rows.action[batches], "observations": rows.observation[batches]}
    comparison = compare_updates.compared("td3_bc", data, arrays)
    assert comparison["observations"] == 0.0
    assert comparison["losses"].keys() == pair.losses.keys()
    assert 0.9 < comparison["parameters"] < 1.1, "ours hardly moves"
    described = compare_updates.described(data, {"td3_bc": comparison})
    assert described["agents"] == {"td3_bc": comparison}


def test_returns_are_compared_over_seeds(monkeypatch, untrained, data, command, tmp_path):
    played = [{"returns": [1.0] * 10, "began": t, "ended": t + 1.0} for t in (1.0, 5.0)]
    monkeypatch.setattr(
        compare_returns, "theirs", lambda *_: {"evaluations": played, "versions": {}}
    )
    small = compare_returns.COMPARISONS["bc"]._replace(updates=40, seeds=2)
    monkeypatch.setitem(compare_returns.COMPARISONS, "bc", small)
    places = ("--runs", tmp_path / "runs", "--output", tmp_path / "results")
    command(compare_returns, "bc", "--data", data, "--peers", tmp_path, *places)
    written = json.loads((tmp_path / "results" / "bc.json").read_text())
    assert written["returns"]["theirs"] == [[1.0, 1.0], [1.0, 1.0]]
    assert written["speed"]["theirs"] == [6.7, 6.7]
    assert (tmp_path / "results" / "returns.png").exists()


def test_early_returns_are_compared(command, tmp_path):
    run_folders.write(tmp_path / "ours", "bc", seeds=(10, 11), eval_episodes=4)
    described = {
        "sha256": "0",
        "source": "CORL",
        "file": "bc.py",
        "arguments": ["--seed", "10"],
        "versions": {},
    }
    for seed in (10, 11):
        theirs = described | {"evaluations": [{"returns": [900.0, 1100.0]}]}
        (tmp_path / f"theirs-{seed}.json").write_text(json.dumps(theirs))
    command(compare_early_bc, tmp_path, "--output", tmp_path / "early.json")
    written = json.loads((tmp_path / "early.json").read_text())
    assert written["seeds"] == [10, 11]
    assert written["below_1000"]["theirs"] == [1, 1]
    assert written["arguments"] == "--seed SEED"


@pytest.mark.parametrize(
    ("agent", "script"),
    [(famo2o, compare_famo2o), (recoil, learners)],
    ids=["famo2o", "recoil"],
)
def test_an_agent_takes_its_authors_parameters(agent, script):
    config = agent.Config(hidden=(8, 8))
    spec = EnvSpec("Example-v0", (learners.OBSERVATIONS,), learners.ACTIONS)
    states = [agent.init(jax.random.key(seed), spec, config) for seed in range(2)]
    parameters = script.of_ours(states[0])
    state = script.with_parameters(states[1], parameters)
    for one, other in zip(*map(jax.tree.leaves, (script.of_ours(state), parameters)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_hindsight_runs_in_turns(monkeypatch, command, tmp_path):
    workers = []

    def measure(python: str, worker: str, *arguments: Any, script: str) -> dict[str, Any]:
        workers.append((python, worker, arguments))
        return {
            "steps_evaluated": [10],
            "success": [0.5],
            "returns": [-1.0],
            "steps_per_second": 3.0,
        }

    monkeypatch.setattr(compare_hindsight, "measure", measure)
    out = tmp_path / "hindsight.json"
    for _ in range(2):  # what is there is not run again
        command(
            compare_hindsight,
            "FetchReach",
            "--peer",
            "peer",
            "--seeds",
            2,
            "--steps",
            10,
            "--output",
            out,
        )
    assert [worker for _, worker, _ in workers] == ["ours", "peer"] * 2
    assert set(json.loads(out.read_text())["FetchReach"]["ours"]) == {"0", "1"}


def test_our_side_of_hindsight(untrained):
    pytest.importorskip("gymnasium_robotics")
    assert compare_hindsight.ours("FetchReach", 20, 0, 10)["steps_evaluated"] == [10, 20]


def test_d3rlpy_is_run_and_evaluated(monkeypatch, command, tmp_path, capsys):
    ends = {"terminals": np.zeros(8), "timeouts": np.zeros(8)}
    np.savez(
        tmp_path / "data.npz",
        observations=np.zeros((8, 4)),
        actions=np.arange(8) % 2,
        rewards=np.ones(8),
        **ends,
    )
    modules = {name: mock.MagicMock() for name in ("d3rlpy", "torch")}
    modules["d3rlpy"].algos.DiscreteCQLConfig().create().predict = lambda rows: np.zeros(
        len(rows), int
    )
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    command(run_d3rlpy, tmp_path / "data.npz", "--steps", 4)
    line = json.loads(capsys.readouterr().out)
    assert len(line["returns"]) == 2
    assert 8 < line["returns"][0] < 12, "always to the left"


@pytest.mark.learn
def test_two_revisions_give_the_same_numbers(monkeypatch, tmp_path, capsys):
    small = (
        "--config.warmup-steps 20 --config.hidden 8 --config.batch-size 4 --log-every 50 "
        "--eval-every 100 --quiet"
    )
    words = f"train sac --env Pendulum-v1 --steps 100 --eval-episodes 1 {small}"
    monkeypatch.setattr(revisions, "RUNS", {"sac": words})
    for name in ("before", "after"):
        revisions.record(tmp_path / name, ROOT, [])
    assert revisions.compare(tmp_path / "before", tmp_path / "after")
    file = tmp_path / "after" / "sac" / "evaluations.jsonl"
    file.write_text(file.read_text().replace("100", "101"))
    assert not revisions.compare(tmp_path / "before", tmp_path / "after")
    assert "sac              DIFFERENT" in capsys.readouterr().out


@pytest.mark.learn
def test_a_killed_run_goes_on(monkeypatch, command, tmp_path):
    small = "train stream_ac --env Pendulum-v1 --steps 400 --config.hidden 8 8"
    monkeypatch.setitem(kill_runs.KINDS, "stream", small)
    places = ("--runs", tmp_path / "kills", "--output", tmp_path / "kills.json")
    command(kill_runs, "--trials", 1, "--kinds", "stream", *places)
    assert (
        json.loads((tmp_path / "kills.json").read_text())["kinds"]["stream"]["the same bits"] == 1
    )


@pytest.mark.learn
def test_a_hostile_file_is_read(command, tmp_path):
    kind, name, *_ = next(hostile_files.of_tests())
    places = ("--runs", tmp_path / "hostile", "--output", tmp_path / "hostile.json")
    command(hostile_files, "--only", f"{kind}: {name}", *places)
    assert json.loads((tmp_path / "hostile.json").read_text())["kinds"][kind]["failed"] == 0


def test_every_case_of_hostile_files_has_its_commands():
    cases = [case for make in (hostile_files.of_tests, hostile_files.of_code) for case in make()]
    assert all(case.commands and callable(case.make) for case in cases)
    assert {"archives", "runs"} <= {case.kind for case in cases}


def test_random_commands_end_as_they_may(command, tmp_path):
    output = tmp_path / "random.json"
    command(random_commands, "--number", 8, "--seed", 0, "--output", output)
    kinds = json.loads(output.read_text())["kinds"].values()
    assert sum(row["commands"] for row in kinds) == 8
    assert sum(row["accepted"] + row["refused"] for row in kinds) == 8


@pytest.mark.parametrize(
    ("end", "wrong"),
    [
        (SystemExit(1), "exit code 1"),
        (SystemExit(2), "0 messages"),
        (KeyError("x"), "KeyError in"),
        (random_commands.Begun(), ""),
    ],
    ids=["another code", "no message", "an error", "the work"],
)
def test_a_random_command_that_ends_otherwise_fails(end, wrong, monkeypatch, tmp_path):
    monkeypatch.setattr(random_commands, "command_line", mock.Mock(side_effect=end))
    (tmp_path / "here").mkdir()
    outcome = random_commands.attempt(["list"], tmp_path / "here")
    assert outcome.wrong.startswith(wrong)
    assert outcome.kind == ("failed" if wrong else "accepted")


def test_a_refusal_that_leaves_a_file_fails(monkeypatch, tmp_path):
    def refuse(_):
        Path("new").touch()
        print("error: no.")
        raise SystemExit(2)

    monkeypatch.setattr(random_commands, "command_line", refuse)
    (tmp_path / "here").mkdir()
    assert random_commands.attempt([], tmp_path / "here").wrong == "changed here/new"


@pytest.mark.slow
def test_damaged_files_are_refused_or_read_as_they_were(tmp_path):
    output = tmp_path / "damaged.json"  # warnings are printed in a process of its own alone
    words = [sys.executable, damaged_files.__file__, "--number", "12", "--seed", "0"]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*words, "--output", output], cwd=tmp_path, env=surroundings, check=True)
    kinds = json.loads(output.read_text())["kinds"].values()
    assert sum(row["cases"] for row in kinds) == 12
    assert sum(row["failed"] for row in kinds) == 0


SICK = diagnose_runs.Case("sac", "rljax/Pendulum", 1, {}, "warm-up")
HEALTHY = diagnose_runs.Case("sac", "rljax/Pendulum", 1, {})


@pytest.mark.parametrize(
    ("case", "findings", "wrong"),
    [
        (SICK, ["warm-up", "no-better-than-random"], ""),
        (SICK, ["no-better-than-random"], "missed: warm-up"),
        (HEALTHY, [], ""),
        (HEALTHY, ["actor-kl"], "false alarm: actor-kl"),
    ],
)
def test_a_sickness_is_missed_or_a_false_alarm_given(case, findings, wrong):
    assert diagnose_runs.verdict(case, [RunFinding(name, "", "", "") for name in findings]) == wrong


def test_there_are_eight_sick_and_eight_healthy_runs():
    assert min(len(diagnose_runs.SICK), len(diagnose_runs.HEALTHY)) >= 8
    for sick, healthy, _ in diagnose_runs.PICTURES.values():
        assert sick in diagnose_runs.SICK
        assert healthy in diagnose_runs.HEALTHY


@pytest.mark.slow
def test_sick_and_healthy_runs_are_told_apart(command, tmp_path, capsys):
    output = tmp_path / "runs.json"
    words = ("--runs", tmp_path / "runs", "--pictures", tmp_path, "--output", output)
    with pytest.raises(SystemExit) as end:
        command(diagnose_runs, *words)
    assert end.value.code == 0, capsys.readouterr().out
    assert len(json.loads(output.read_text())) == len(diagnose_runs.SICK | diagnose_runs.HEALTHY)
    assert all((tmp_path / f"{name}.png").exists() for name in diagnose_runs.PICTURES)


def verdict(monkeypatch, outcome, numbers, name="data.npz", damage="bit 1 of byte 2 of 3"):
    """How a case ends whose commands have this outcome and these numbers."""
    monkeypatch.setattr(damaged_files, "attempt", lambda *_: (outcome, numbers))
    path = Path(name)
    kind = "run: records" if name.startswith("run") else "data"
    sound = {each: damaged_files.Result("", "sound") for each in damaged_files.commands(kind, path)}
    return damaged_files.judge(kind, path, damage, Path(), sound).outcome


@pytest.mark.parametrize(
    ("said", "numbers", "name", "outcome"),
    [
        ("", "sound", "data.npz", "the same"),
        ("", "others", "data.npz", "failed"),
        ("warning: a bit has changed", "others", "data.npz", "warned of"),
        ("", "others", "data.hdf5", "undetectable"),
        ("", "others", "run/metrics.jsonl", "failed"),
    ],
)
def test_other_numbers_need_a_word(said, numbers, name, outcome, monkeypatch):
    accepted = random_commands.Outcome("accepted", said=said)
    assert verdict(monkeypatch, accepted, numbers, name) == outcome


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("error: 'data.npz' has no rewards.", "refused"),
        ("error: no rewards.", "failed"),
        ("error: 'data.npz': 'NoneType' object is not iterable", "failed"),
    ],
)
def test_a_refusal_names_the_file_and_the_fault(said, outcome, monkeypatch):
    refused = random_commands.Outcome("refused", said=said)
    assert verdict(monkeypatch, refused, None) == outcome


@pytest.mark.slow
def test_hostile_environments_end_with_their_message(command, tmp_path):
    output = tmp_path / "environments.json"
    kinds = ("raises in a step", "its process dies")
    drivers = ("within the program", "in processes")
    command(hostile_environments, "--kinds", *kinds, "--drivers", *drivers, "--output", output)
    counts = json.loads(output.read_text())["kinds"]
    assert [counts[driver]["refused"] for driver in drivers] == [1, 2]


@pytest.mark.parametrize(
    ("code", "said", "left", "wrong"),
    [
        (2, "error: environment 0 of 'x' raised E in step 10 of its episode: y.", [], []),
        (2, "error: another.", [], ["another message"]),
        (0, "", [], ["exit code 0 in place of 2", "0 messages"]),
        (None, "error: E", [3], ["over 900 s", "1 processes left behind", "another message"]),
        (2, "Traceback\nerror: E in step", [], ["a traceback that is not the environment's"]),
    ],
)
def test_what_is_wrong_with_an_environments_end(code, said, left, wrong, tmp_path):
    kind = hostile_environments.Kind("", "E in step")
    assert hostile_environments.problems(kind, code, said, left, tmp_path, None) == wrong


def test_every_hostile_environment_is_a_class():
    for kind in hostile_environments.KINDS.values():
        compile(hostile_environments.source(kind), "hostile.py", "exec")
    assert len(hostile_environments.KINDS) >= 26
