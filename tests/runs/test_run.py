"""Runs end to end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.agents import td3
from rljax.learning import configuration, registry
from rljax.learning.plan import Experiment
from rljax.learning.settings import Settings
from rljax.runs import active, checkpoints, failures, records, run
from rljax.runs.display import console
from rljax.runs.policies import evaluate
from rljax.system.runtime import CompileClock
from tests.cli import commands
from tests.helpers import small_runs
from tests.runs import parts


def test_run_folder_holds_what_the_guide_says(tmp_path: Path) -> None:
    out = small_runs.train("sac", "rljax/Pendulum", 400, tmp_path / "run", seeds=2)
    described = records.read_config(out)
    names = "agent env steps seeds config spec command versions devices precision"
    for name in names.split():
        assert described[name] is not None, name
    metrics, evaluations = records.read(out, "metrics"), records.read(out, "evaluations")
    assert [line["step"] for line in metrics] == list(range(50, 401, 50))
    assert len(metrics[-1]["critic/loss"]) == 2
    assert [(line["step"], line["learner"]) for line in evaluations] == [
        (s, i) for s in (100, 200, 300, 400) for i in (0, 1)
    ]
    assert all(len(line["returns"]) == 2 and line["lengths"] == [200, 200] for line in evaluations)
    summary = records.read_summary(out)
    assert (summary["steps"], summary["complete"]) == (400, True)
    assert len(summary["final"]["learners"]) == 2
    assert summary["final"]["interval"] is None, "two learners"
    for name in ("wall_seconds", "compile_seconds", "steps_per_second", "peak_memory_bytes"):
        assert summary[name] > 0, name
    assert summary["compile_seconds"] < summary["wall_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", ["rljax/Pendulum", pytest.param("Pendulum-v1", marks=pytest.mark.learn)]
)
def test_nothing_compiles_after_the_first_chunks(env: str, tmp_path: Path) -> None:
    module = registry.load_agent("td3")
    sizes = small_runs.SMALL | {"hidden": (17, 16)}  # which no other test has compiled
    config = configuration.replace(module.Config(), sizes, "test")
    settings = Settings("td3", env, 400, (0, 1), **small_runs.EVERY)
    begun = active.ActiveRun.begin(
        Experiment(settings, module, config, None), tmp_path / "run", console.View(), "test"
    )
    steps: list[int] = []
    with parts.compilations(lambda _: steps.append(begun.training.step)):
        begun.execute()
    # Nothing after the first update and the first evaluation and checkpoint (step 100).
    assert steps
    assert max(steps) <= 100, steps


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_seed_gives_the_same_curve_alone_and_in_a_population(env: str, tmp_path: Path) -> None:
    together = small_runs.train("td3", env, 200, tmp_path / "together", seeds=[3, 7])
    alone = small_runs.train("td3", env, 200, tmp_path / "alone", seeds=[7])
    a, b = (records.read(out, "evaluations")[-1] for out in (together, alone))
    assert (a["step"], a["seed"]) == (b["step"], b["seed"]) == (200, 7)
    np.testing.assert_allclose(a["returns"], b["returns"], rtol=2e-2)
    a, b = records.read(together, "metrics")[2], records.read(alone, "metrics")[2]
    for name in ("critic/loss", "critic/q", "actor/loss"):
        np.testing.assert_allclose(a[name][1], b[name][0], rtol=1e-3)


@pytest.mark.learn
def test_evaluations_come_as_often_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often = {"log_every": 1_000, "eval_every": 50, "checkpoint_every": 100}
    out = small_runs.train("sac", "rljax/Pendulum", 150, tmp_path / "often", **often)
    assert [line["step"] for line in records.read(out, "evaluations")] == [50, 100, 150]
    assert "is no" not in capsys.readouterr().err
    uneven = {"log_every": 50, "eval_every": 75, "checkpoint_every": 100}
    out = small_runs.train("sac", "rljax/Pendulum", 150, tmp_path / "uneven", **uneven)
    assert [line["step"] for line in records.read(out, "evaluations")] == [100, 150]
    assert "--eval-every 75 is 100 here, a multiple of --log-every 50." in capsys.readouterr().err


@pytest.mark.slow
def test_the_best_policies_are_named_by_their_steps(tmp_path: Path) -> None:
    out = small_runs.train(
        "sac", "rljax/Pendulum", 150, tmp_path / "run", seeds=2, log_every=50, eval_every=50
    )
    evaluations = records.read(out, "evaluations")
    text = evaluate.table(evaluate.evaluate_run(out, episodes=1, best=True))
    assert "best policies until step 150" in text
    for learner in range(2):
        own = [line for line in evaluations if line["learner"] == learner]
        best = max(own, key=lambda line: np.mean(line["returns"]))
        assert f"learner {learner} (seed {learner}, of step {best['step']})" in text


def test_compiling_within_compiling_is_counted_once() -> None:
    clock = CompileClock(lambda: None)
    began = time.perf_counter()
    with clock.counting():

        @jax.jit
        def outer(x: jax.Array) -> jax.Array:
            for i in range(20):
                x = jax.jit(lambda x, i=i: jnp.sin(x) + i)(x)
            return x

        outer(jnp.zeros(7)).block_until_ready()
    assert 0 < clock.seconds <= time.perf_counter() - began


def test_policy_acts_on_numpy(tmp_path: Path) -> None:
    out = small_runs.train("sac", "rljax/Pendulum", 100, tmp_path / "run", seeds=2)
    act = rljax.load(out, learner=1)
    single, several = act(np.zeros(3)), act(np.zeros((5, 3)))
    assert single.shape == (1,)
    assert several.shape == (5, 1)
    np.testing.assert_allclose(several, np.tile(single, (5, 1)), rtol=1e-6)
    with pytest.raises(ValueError, match=r"observation has shape \(4,\), the policy needs \(3,\)"):
        act(np.zeros(4))
    with pytest.raises(ValueError, match="no learner 2: the run has 2"):
        rljax.load(out, learner=2)


@pytest.mark.slow
def test_eval_of_a_run_repeats(tmp_path: Path) -> None:
    out = small_runs.train("sac", "Pendulum-v1", 100, tmp_path / "run")
    one, two = evaluate.evaluate_run(out, episodes=3), evaluate.evaluate_run(out, episodes=3)
    assert one["episodes"] == two["episodes"]
    assert "learner 0 (seed 0)" in evaluate.table(one)
    with pytest.raises(ValueError, match=r"trained with observation_shape = \(3,\)"):
        evaluate.evaluate_run(out, env="Hopper-v5")


@pytest.mark.learn
def test_own_agent_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert small_runs.command("new", file, "--from", "td3").returncode == 0
    file.write_text(file.read_text().replace("loss = -q.mean()", "loss = -2.0 * q.mean()"))
    out = small_runs.train(str(file), "rljax/Pendulum", 150, tmp_path / "run")
    assert records.read_summary(out)["steps"] == 150


@pytest.mark.parametrize("storage", ["replay", "rollout"])
def test_an_agent_file_of_before_declarations_is_told_what_to_write(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = registry.source("td3")
    beginning, end = text.index("def experience("), text.index("def check(")
    file = tmp_path / "mine.py"
    file.write_text(f'{text[:beginning]}storage = "{storage}"\n\n\n{text[end:]}')
    words = ["train", file, "--env", "rljax/Pendulum", "--out", tmp_path / "run"]
    printed = commands.refused(words, capsys)
    assert "Traceback" not in printed
    for line in (
        "    def experience(config):\n",
        (
            "        return buffers.Replay(replay_size=config.replay_size, "
            "batch_size=config.batch_size)\n"
        ),
        "`from rljax import buffers`",
        "Replay, Rollout, Stream and Dataset",
    ):
        assert line in printed
    # What the message says is what helps.
    method = printed.split("\n\n")[1].replace("\n    ", "\n").removeprefix("    ")
    file.write_text(file.read_text().replace(f'storage = "{storage}"\n', f"{method}\n"))
    assert registry.load_agent(str(file)).experience(td3.Config()).kind == "replay"
    assert not (tmp_path / "run").exists()


@pytest.mark.learn
def test_agent_file_is_a_program(tmp_path: Path) -> None:
    words = commands.train("td3", "rljax/Pendulum", "--steps", 100, "--out", tmp_path / "run")
    done = subprocess.run(
        [sys.executable, td3.__file__, *words[2:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/summary.json").exists()


HOPPER = ["train", "sac", "--env", "Hopper-v5"]
MISTAKES = [
    (["train", "sacc", "--env", "Hopper-v5"], r"no agent 'sacc'\. Nearest: 'sac'"),
    (["train", "./nowhere.py", "--env", "Hopper-v5"], r"no agent file 'nowhere\.py'"),
    (
        ["train", "sac", "--env", "rljax/Pendlum"],
        r"no environment 'rljax/Pendlum'.*Nearest: 'rljax/Pendulum'",
    ),
    (
        ["train", "dsact", "--env", "atari/Pong"],
        (
            r"agent 'dsact' acts in a continuous space, 'atari/Pong' has 6 discrete actions.*\("
            r"rljax list agents\)"
        ),
    ),
    (
        [*HOPPER, "--steps", "0"],
        r"--steps is 0, it must be at least 1",
    ),
    (
        [*HOPPER, "--seeds", "0"],
        r"--seeds is 0, it must be at least 1",
    ),
    (
        [*HOPPER, "--seed", "-1"],
        r"the seed is -1, it must lie in \[0, 2\^32\)",
    ),
    (
        [*HOPPER, "--offline-share", "0.3"],
        r"--offline-share 0\.3 .* mixed with --data",
    ),
    (
        [*HOPPER, "--config.discount", "1.5"],
        r"--config\.discount is 1\.5",
    ),
    (["resume", "nowhere"], r"'nowhere' is not a run"),
    (["eval", "nowhere"], r"'nowhere' is not a run"),
    (["list", "agent"], r"nothing called 'agent' to list"),
]


@pytest.mark.slow_after(5)
@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=[" ".join(a)[:60] for a, _ in MISTAKES]
)
def test_mistakes_are_one_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = commands.refused(arguments, capfd)
    assert "Traceback" not in printed
    assert re.search(message, printed), printed
    assert not list(tmp_path.iterdir())


def test_existing_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(
            FileExistsError,
            match=r"exists\. Choose another --out, or continue that run: rljax resume",
        ):
            small_runs.train("td3", "rljax/Pendulum", 100, out)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_divergence_stops_names_the_metric_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(
        failures.Diverged,
        match=r"metric '(actor|critic)/loss' of learner 0 \(seed 3\) is not finite from update \d+",
    ):
        small_runs.train(
            "td3",
            "rljax/Pendulum",
            5_000,
            out,
            {"critic_lr": 1e18, "warmup_steps": 110},
            seeds=(3,),
        )
    assert checkpoints.steps(out / "checkpoints") == [100]


def test_a_random_policy_plays_beside_the_first_evaluation_alone(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 200, tmp_path / "run")
    first, second = records.read(out, "evaluations")
    summary = records.read_summary(out)
    assert len(first["random"]) == len(first["returns"]) == 2
    assert "random" not in second
    assert summary["random_return"] == pytest.approx(sum(first["random"]) / 2)
    assert 0 < first["largest_reward"] < 17
    assert 0 <= first["at_bounds"] <= 1
    assert summary["seconds"].keys() == {"training", "stepping", "evaluating"}
    described = records.read_config(out)
    assert (described["first_update"], described["num_envs"]) == (64, 1)


def test_full_disk_is_one_message_before_anything_is_written(
    tmp_path: Path, monkeypatch: Any
) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000))
        with pytest.raises(
            failures.RunError,
            match=r"could not be written .* no space is left .*No space left .* rljax resume",
        ):
            run.resume(out, 300)
    assert checkpoints.steps(out / "checkpoints") == [100]
    run.resume(out, 200)
    assert checkpoints.steps(out / "checkpoints") == [100, 200]


@pytest.mark.learn
def test_failed_write_is_one_message_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    limit = 8  # kilobytes a file may have: the checkpoint's arrays do not fit
    resume = shlex.join(
        [sys.executable, "-m", "rljax", "resume", str(out), "--steps", "300", "--quiet"]
    )
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f {limit}; trap '' XFSZ; exec {resume}"],
        capture_output=True,
        text=True,
        # Read compiled programs and modules, but write no part of one: they would be cut off and
        # kept.
        env={
            **os.environ,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "could not be written" in done.stderr
    assert checkpoints.steps(out / "checkpoints") == [100]
    run.resume(out, 200)
    assert checkpoints.steps(out / "checkpoints") == [100, 200]
