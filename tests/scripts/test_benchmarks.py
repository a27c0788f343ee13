"""The benchmarks: what is measured once, and whether their loops run.

Their numbers are not tested.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rljax import cli
from rljax.analysis import published
from scripts.benchmarks import accelerator as accelerator_script
from scripts.benchmarks import (
    atari,
    exported,
    functions,
    grids,
    measuring,
    memory,
    offline,
    online,
    peers,
    populations,
    pqn,
    products,
    report,
    streaming,
    torsos,
)
from scripts.benchmarks.authors import h2o


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs scripts/benchmarks/accelerator.py with these arguments, and returns what it wrote."""
    output = tmp_path / "figures.json"

    def run(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(
            sys, "argv", ["accelerator.py", "--tiny", "--output", str(output), *arguments]
        )
        accelerator_script.main()
        return json.loads(output.read_text()) if output.exists() else {}

    return run


def test_a_measurement_that_fails_is_the_only_one_that_is_repeated(
    accelerator, monkeypatch, capsys
):
    measured, broken = [], True

    def measure(_: str, worker: str, *arguments: str, script: str) -> dict[str, Any]:
        measured.append((worker, *map(json.loads, arguments)))
        if worker == "updates" and broken:
            raise SystemExit("no memory")
        return {"curve": [[1.0, 2.0], [3.0, 10.0 if worker == "ours" else 20.0]]}

    monkeypatch.setattr(measuring, "measure", measure)
    with pytest.raises(SystemExit, match="failed: iql updates x 1"):
        accelerator("--only", "iql updates x 1", "fast ours", "fast brax")
    assert [worker for worker, *_ in measured] == ["updates", "ours", "brax"]
    assert (
        "return 9 reached after 3.0 s by ours and 3.0 s by Brax's trainer"
        in capsys.readouterr().out
    )
    broken = False
    figures = accelerator("--only", "iql updates x 1", "fast ours", "fast brax")
    assert measured[3:] == [("updates", "iql", 20, 1, "")]
    assert {
        "iql updates x 1",
        "ppo brax/fast ours",
        "ppo brax/fast brax",
        "devices",
    } <= figures.keys()


def test_pairs_are_measured_in_turns_beside_the_peers_that_are_there(
    accelerator, monkeypatch, tmp_path
):
    (tmp_path / "purejaxql").mkdir()
    (tmp_path / "xqc").mkdir()
    asked = []

    def measure(python: str, worker: str, *arguments: Any, script: str) -> dict[str, Any]:
        asked.append((python, worker, *arguments, Path(script).name))
        return {"steps_per_second": 30.0 + len(asked) if worker == "ours" else 10.0}

    def result_of(command: list[str]) -> dict[str, Any]:
        asked.append(tuple(command))
        return {"ratio": 1.5}

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring, "result_of", result_of)
    words = ("--peers", str(tmp_path), "--python", "purejaxql=other", "--only", "beside")
    waiting = accelerator(*words, "purejaxql", "--rounds", "2", "--minutes", "-1")
    assert not asked
    assert not [name for name in waiting if "beside" in name]
    figures = accelerator(*words, "--rounds", "2")
    pair = figures["pqn gymnax/Breakout-MinAtar beside purejaxql"]
    ours = (sys.executable, "ours", "Breakout-MinAtar", 50, "pqn.py")
    theirs = ("other", "peer", "Breakout-MinAtar", 50, str(tmp_path / "purejaxql"), "pqn.py")
    assert asked[:4] == [ours, theirs, ours, theirs]
    assert (pair["ours"], pair["theirs"], pair["ratio"]) == (32.0, 10.0, 3.2)
    assert figures["xqc update beside its authors"] == {"ratio": 1.5}
    assert asked[-1][1:] == (
        str(measuring.ROOT / "scripts/updates/compare_xqc.py"),
        *("--peer", str(tmp_path / "xqc"), "--times"),
    )
    assert not any("JAX-CORL" in name or "reppo update" in name for name in figures)


@pytest.mark.parametrize("name", peers.PAIRS)
def test_both_sides_of_a_pair_are_workers(name):
    pair = peers.PAIRS[name]
    path = pair.script.removesuffix(".py").replace("/", ".")
    workers = importlib.import_module(f"scripts.{path}").WORKERS
    for worker, *arguments in (pair.ours, pair.theirs):
        inspect.signature(workers[worker]).bind(*arguments)


@pytest.mark.slow
def test_sac_of_brax_is_measured():
    sizes = {"num_envs": 8, "num_updates": 1, "batch_size": 16}
    figures = peers.brax_sac("brax/fast", 5, **sizes, warmup_steps=64, replay_size=1_024)
    assert figures["steps_per_second"] > 0


@pytest.mark.learn
def test_loops_and_updates_are_measured(accelerator):
    figures = accelerator("--only", "sac Pendulum-v1 x 2", "iql updates x 1")
    loop, updates = figures["sac Pendulum-v1 x 2"], figures["iql updates x 1"]
    assert loop["steps_per_second"] > 0
    assert updates["hours_of_a_million"] == pytest.approx(
        1e6 / updates["updates_per_second"] / 3600
    )


@pytest.mark.slow
def test_returns_stand_beside_published_ones(tmp_path):
    (tiny,) = accelerator_script.TINY_RETURNS
    figures = accelerator_script.returns(*tiny, str(tmp_path))
    assert len(figures["seeds"]) == 3
    assert "published" not in figures  # no one published it after 200 steps
    assert accelerator_script.returns(*tiny, str(tmp_path)) == figures  # it is not trained again
    for agent, environment, steps, _ in accelerator_script.RETURNS:
        points = published.curve(agent, published.task_of(environment), "return")
        assert steps in {point.step for point in points}


# What a benchmark measures of ours, at tiny sizes. The peers are not installed.


@pytest.mark.parametrize("variant", offline.VARIANTS | offline.ACTING)
def test_data_of_every_variant_are_prepared(variant):
    _, learner, data, config = offline.prepared(variant, 1)
    assert data.reward.shape[0] == offline.TRANSITIONS
    assert learner.spec.observation_shape[0] in (
        data.observation.shape[-1],
        2 * data.observation.shape[-1],
    )
    assert config.batch_size == offline.BATCH
    batch = offline.prepared(variant, 1, sampling=False)[2]
    assert batch.reward.shape == (offline.BATCH,)


def test_a_file_is_written_and_read(tmp_path):
    path = str(tmp_path / offline.FILE)
    assert offline.written(path, 2_000)["bytes"] == Path(path).stat().st_size
    assert offline.read(path)["data_bytes"] > 2_000 * 4 * sum(offline.SIZE)


def test_grids_are_stepped():
    assert set(grids.random_actions("rljax/LightsOut-5x5", 4, 5, 1)) == {
        "steps/s",
        "steps/s of the processor",
    }


@pytest.mark.slow
def test_actions_of_exported_policies_are_timed():
    figures = exported.ours(8, 2)
    assert figures.keys() == {"rljax.load", "policy.py", "policy.onnx"}
    assert min(figures.values()) > 0


@pytest.mark.learn
@pytest.mark.parametrize("variant", ["iql", "gciql"])
def test_updates_from_data_are_measured(variant):
    assert offline.ours(variant, 2, 1)["updates_per_second"] > 0
    assert offline.bound(variant, 2)["updates_per_second"] > 0


@pytest.mark.learn
def test_acting_is_measured():
    assert offline.acting("dql 5 steps, 1 candidate", 2)["seconds"] > 0


@pytest.fixture
def small_online(monkeypatch):
    """Sizes with which training on the host takes seconds."""
    monkeypatch.setattr(online, "WARMUP", 64)
    monkeypatch.setattr(online, "TURNS", 2)


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["sac", "dqn", "droq"])
def test_loops_on_the_host_are_measured(small_online, agent):
    assert online.ours(agent, 8, 1)["steps_per_second"] > 0


@pytest.mark.learn
def test_the_loop_is_compared_with_its_bare_update(small_online):
    figures = online.share("sac", 16)
    assert figures["share"] > 0
    assert figures["steps_per_second"] > 0
    assert online.bound("sac", 8, "16-16-gelu")["steps_per_second"] > 0
    assert online.head("c51", 8)["steps_per_second"] > 0
    rates = online.arithmetic("sac", 8, 16)
    assert min(rates.values()) > 0


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "smaller"),
    [
        ("sac", {"batch_size": 8}),
        ("qc", {"num_candidates": 2, "num_critics": 1}),
        ("reinflow", {"num_envs": 2, "num_steps": 4, "batch_size": 4, "num_epochs": 1}),
    ],
)
def test_products_of_an_update_are_counted_and_timed(agent, smaller):
    small = {"hidden": (8, 8), "critic_hidden": (16, 16), **smaller}
    figures = products.measured(agent, 2, **small)
    assert 0.0 < figures.share_in_products < 1.0
    assert figures.gflop_per_second_in_products > 0


def test_floating_point_operations_of_products_are_twice_their_three_sizes():
    """Also of those inside another operation."""

    def program(x, y):
        return jnp.tanh(x @ y + 1.0), jnp.einsum("bij,bkj->bik", x[None], 2.0 * x[None])

    compiled = jax.jit(program).lower(jnp.ones((3, 5)), jnp.ones((5, 7))).compile()
    found, names = products.of_products(compiled.as_text() or "")
    assert sum(found.values()) == 2 * 3 * 5 * 7 + 2 * 3 * 3 * 5
    assert set(found) <= names


@pytest.mark.learn
def test_ppo_is_measured_on_the_host_and_inside_the_program():
    assert online.ours_ppo("HalfCheetah-v5", 1)["steps_per_second"] > 0
    assert online.ours_pendulum(1)["steps_per_second"] > 0


@pytest.mark.learn
def test_the_first_update_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert online.first_update("sac", str(tmp_path))["seconds"] > 0


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["h2o", "famo2o", "ro2o"])
def test_updates_of_agents_beside_their_authors_are_measured(monkeypatch, agent):
    monkeypatch.setattr(h2o, "BATCH", 8)
    assert h2o.ours(2, agent)["updates_per_second"] > 0


@pytest.mark.learn
def test_games_are_measured(monkeypatch):
    monkeypatch.setattr(atari, "WARMUP", 32)
    monkeypatch.setattr(atari, "ROWS", 200)
    figures = atari.ours("atari/Breakout", 32)
    assert figures["steps_per_second"] > 0
    assert figures["weights"] > 1e6


@pytest.mark.learn
def test_memories_are_measured(monkeypatch):
    for name, value in {"ENVS": 4, "LENGTH": 8, "ROLLOUT": 32}.items():
        monkeypatch.setattr(memory, name, value)
    assert memory.ours(1)["steps_per_second"] > 0


@pytest.mark.learn
def test_pqn_is_measured():
    assert pqn.ours("Breakout-MinAtar", 1)["steps_per_second"] > 0


@pytest.mark.learn
def test_functions_are_measured():
    assert functions.function(2, 1)["steps_per_second"] > 0
    assert functions.loop(2, 1)["steps_per_second"] > 0


@pytest.mark.learn
def test_streams_are_measured():
    figures = streaming.ours("stream_q", "gymnax/CartPole-v1", 2, 8)
    assert figures["steps_per_second"] > 0
    assert figures["bytes"] > 0
    assert streaming.python_loop(8)["steps_per_second"] > 0


@pytest.mark.learn
def test_torsos_are_measured(monkeypatch, command, tmp_path):
    monkeypatch.setattr(torsos, "THINKING", (1,))
    monkeypatch.setattr(
        torsos, "SIZES", {"num_envs": 4, "num_steps": 4, "batch_size": 8, "num_epochs": 1}
    )
    command(torsos, "--repetitions", 1, "--output", tmp_path / "figures.json")
    medians = json.loads((tmp_path / "figures.json").read_text())["medians"]
    assert {"milliseconds, iru-1", "milliseconds, mlp"} <= medians.keys()


@pytest.mark.learn
def test_a_report_is_timed(monkeypatch, command, capsys):
    for name, value in {
        "AGENTS": ("sac",),
        "TASKS": ("Hopper",),
        "EVALUATIONS": 4,
        "LINES": 10,
    }.items():
        monkeypatch.setattr(report, name, value)
    command(report, "--runs", 2)
    assert capsys.readouterr().out.startswith("2 runs, ")


@pytest.fixture
def small_populations(monkeypatch):
    """Few steps, few learners, and commands in this process."""
    sizes = {"num_envs": 2, "num_steps": 16, "batch_size": 16, "num_epochs": 1}
    words = [
        word
        for name, value in sizes.items()
        for word in (f"--config.{name.replace('_', '-')}", str(value))
    ]
    monkeypatch.setattr(populations, "PPO", sizes)
    monkeypatch.setattr(populations, "FLAGS", words)
    monkeypatch.setattr(populations, "LEARNERS", 2)
    monkeypatch.setattr(populations, "SWEEP", {"trials": 2, "population": 2, "steps": 64})
    monkeypatch.setattr(populations, "command", lambda *words, **_: cli.main([*map(str, words)]))


@pytest.mark.learn
def test_one_learner_is_compared_with_a_loop_by_hand(small_populations):
    figures = populations.one_learner(2, 1)
    assert figures["steps_per_second"] > 0
    assert figures["by_hand"] > 0


@pytest.mark.learn
def test_learners_of_one_program_are_compared_with_runs(small_populations):
    assert populations.together(64)["seconds"] > 0
    assert populations.one_by_one(64, 2, 1)["seconds"] > 0
    assert populations.trial_by_trial(2)["seconds"] > 0
    assert populations.swept()["seconds"] > 0


@pytest.mark.learn
@pytest.mark.parametrize(("agent", "steps"), [("ppo", 4_096), ("bc", 400)])
def test_populations_with_cores_of_their_own_are_measured(
    monkeypatch, small_populations, agent, steps
):
    words = populations.POPULATIONS[agent][2]
    monkeypatch.setitem(populations.POPULATIONS, agent, (2, steps, words))
    assert populations.population(agent, 0)["steps_per_second"] > 0


def test_medians_and_ratios_are_written(monkeypatch, command, tmp_path):
    def measure(_: str, worker: str, *arguments: Any, script: str) -> dict[str, Any]:
        return {"steps_per_second": 10.0, "peak_memory_bytes": 1e6, "share": 0.5, "seconds": 2.0}

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(online, "seconds_of", lambda words: 0.5)
    command(
        online,
        "--peer",
        "python",
        "--rejax",
        "python",
        "--rounds",
        1,
        "--output",
        tmp_path / "figures.json",
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["ratios"]["sac steps/s ours / sbx-rl"] == 1.0
    assert figures["medians"]["sac share of the bound"] == 0.5
    assert figures["samples"]["rljax --help, s"] == [0.5]
