"""A run that was killed and resumed equals one that never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rljax.learning import loop
from rljax.runs import checkpoints, records, run
from tests.cli import commands
from tests.helpers import small_runs
from tests.runs import parts

CASES = [
    pytest.param("sac", "rljax/Pendulum", 1, id="compiled", marks=pytest.mark.learn),
    pytest.param("td3", "rljax/Pendulum", 2, id="compiled-population", marks=pytest.mark.learn),
    pytest.param("td3", "Hopper-v5", 1, id="mujoco"),
    pytest.param("sac", "Hopper-v5", 2, id="mujoco-population", marks=pytest.mark.learn),
    pytest.param("td3", "Pendulum-v1", 2, id="gymnasium-population", marks=pytest.mark.learn),
    pytest.param("ppo", "rljax/Pendulum", 2, id="compiled-on-policy", marks=pytest.mark.learn),
    pytest.param("ppo", "Hopper-v5", 2, id="mujoco-on-policy", marks=pytest.mark.learn),
    pytest.param(
        "ppo_lagrangian", "rljax/PointHazards", 2, id="compiled-signals", marks=pytest.mark.learn
    ),
    pytest.param(
        "ppo_lagrangian", "velocity/Hopper-v5", 2, id="mujoco-signals", marks=pytest.mark.learn
    ),
    pytest.param("stream_ac", "rljax/Pendulum", 2, id="compiled-stream", marks=pytest.mark.learn),
    pytest.param("stream_ac", "Hopper-v5", 2, id="mujoco-stream", marks=pytest.mark.learn),
    pytest.param("dqn", "CartPole-v1", 2, id="gymnasium-discrete", marks=pytest.mark.learn),
    pytest.param("stream_sarsa", "CartPole-v1", 1, id="gymnasium-stream", marks=pytest.mark.learn),
]


def killed(agent: str, env: str, seeds: int, out: Path, after: int, steps: int) -> None:
    """Start a run as a user would, and kill it at its checkpoint of step `after`."""
    words = commands.train(agent, env, "--steps", steps, "--seeds", seeds, "--out", out)
    command = [sys.executable, "-m", "rljax", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not checkpoints.steps(out / "checkpoints"):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert checkpoints.steps(out / "checkpoints")[0] >= after


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "env", "seeds"), CASES)
def test_killed_and_resumed_equals_uninterrupted(
    agent: str, env: str, seeds: int, tmp_path: Path
) -> None:
    small_runs.train(agent, env, 400, tmp_path / "whole", seeds=seeds)
    killed(agent, env, seeds, tmp_path / "broken", after=100, steps=100_000)
    resumed_from = checkpoints.steps(tmp_path / "broken/checkpoints")[-1]
    if resumed_from >= 400:
        pytest.fail(f"killed too late, at step {resumed_from}")
    run.resume(tmp_path / "broken", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.learn
def test_killed_between_the_last_checkpoint_and_the_summary(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 200, tmp_path / "run")
    before = records.read_summary(out)
    (out / "summary.json").unlink()
    run.resume(out)
    after = records.read_summary(out)
    assert (after["complete"], after["final"]) == (True, before["final"])
    with pytest.raises(ValueError, match="is complete at 200 steps"):
        run.resume(out)


def test_longer_run_continues_a_finished_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Episodes of 200 steps that ended before are not missed: no warning says that none has."""
    train = partial(small_runs.train, "td3", "rljax/Pendulum", quiet=False)
    parts.resumed(train, 200, 400, tmp_path)
    assert "no episode of training" not in "".join(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_a_resumed_run_uses_the_programs_of_the_first(env: str, tmp_path: Path) -> None:
    small_runs.train("td3", env, 200, tmp_path / "run", {"hidden": (18, 16)})
    compiled: set[str] = set()
    with parts.compilations(lambda details: compiled.add(details["fun_name"])):
        run.resume(tmp_path / "run", 400)
    # Single operations of a millisecond may compile.
    assert compiled <= {
        f"jit({name})" for name in ("convert_element_type", "stage", "broadcast_in_dim")
    }


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_input_statistics_are_resumed(env: str, tmp_path: Path) -> None:
    config = {"normalise_observations": True, "num_envs": 2, "num_steps": 5, "num_updates": 2}
    sac = partial(small_runs.train, "sac", env, config=config)
    arrays = small_runs.arrays(parts.resumed(sac, 200, 400, tmp_path)[1])
    counts = [x for place, x in arrays.items() if place.endswith("['statistics']['count']")]
    # Every observation acted on, on the host also the one that waits for its action.
    assert counts[0].item() in (400, 402)


@pytest.mark.learn
@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("rljax/BoxPick-2x4", {"hindsight": 0.8, "exploration": "softmax"}),
        ("gymnax/CartPole-v1", {"n_step": 3, "prioritised": 0.6}),
        ("CartPole-v1", {"prioritised": 0.6, "exploration": "noisy"}),
    ],
)
def test_draws_along_episodes_are_resumed(
    env: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = changes | {
        "num_envs": 5,
        "num_steps": 2,
        "num_updates": 2,
        "target_every": 1,
        "epsilon_steps": 200,
        "correction_steps": 300,
    }
    parts.resumed(partial(small_runs.train, "dqn", env, config=config), 200, 400, tmp_path)


@pytest.mark.learn
def test_interrupt_saves_and_prints_how_to_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("--steps", 10**6, "--out", out, "--checkpoint-every", 10**6)
    words = [word for word in commands.train("td3", "Pendulum-v1", *more) if word != "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rljax", *words], stderr=subprocess.PIPE, text=True
    )
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, printed = process.communicate(timeout=60)
    (step,) = checkpoints.steps(out / "checkpoints")
    assert process.returncode == 0
    assert f"rljax resume {out}" in printed.replace("\n", "")
    run.resume(out, step + 100)
    small_runs.train(
        "td3", "Pendulum-v1", step + 100, tmp_path / "whole", checkpoint_every=1_000_000
    )
    small_runs.assert_same(tmp_path / "whole", out)


@pytest.mark.learn
def test_a_run_that_ends_where_it_was_stopped_is_evaluated_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped_at_150(self: loop.Training) -> None:
        if self.step == 150:
            os.kill(os.getpid(), signal.SIGTERM)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "change_settings", stopped_at_150)
        small_runs.train("td3", "rljax/Pendulum", 1_000, out)
    assert checkpoints.steps(out / "checkpoints") == [100, 150]
    run.resume(out, 150)
    small_runs.assert_same(small_runs.train("td3", "rljax/Pendulum", 150, tmp_path / "whole"), out)
    assert records.read_summary(out)["final"]["step"] == 150
    with pytest.raises(ValueError, match="is complete at 150 steps"):
        run.resume(out)


CHANGED = {"schedule": [[100, {"actor_lr": 1e-3}], [250, {"actor_lr": 1e-2}]]}


@pytest.mark.learn
def test_a_run_with_a_schedule_is_resumed(tmp_path: Path) -> None:
    settings: Any = {"config": {"actor_lr": [1e-4, 1e-4]}, "schedule": CHANGED}
    td3 = partial(small_runs.train, "td3", "rljax/Pendulum", seeds=2, **settings)
    whole, half = (records.read(out, "changes") for out in parts.resumed(td3, 200, 400, tmp_path))
    assert [change["step"] for change in whole] == [100, 250]
    assert [change["values"] for change in whole] == [change["values"] for change in half]


def test_structural_change_is_refused(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    config = out / "config.json"
    config.write_text(config.read_text().replace('"batch_size": 32', '"batch_size": 16'))
    with pytest.raises(
        ValueError, match=r"config\.batch_size = 16, the checkpoint was made with 32"
    ):
        run.resume(out, 200)


def test_nothing_left_to_do(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    with pytest.raises(ValueError, match=r"is complete at 100 steps\. To go on: rljax resume"):
        run.resume(out)


@pytest.mark.parametrize(("steps", "message"), [(50, "made 100 steps: give --s"), (0, "than 0")])
def test_fewer_steps_than_were_made_are_refused(steps: int, message: str, tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    (out / "summary.json").unlink()  # as if the run had not come to its end
    with pytest.raises(ValueError, match=message):
        run.resume(out, steps)
