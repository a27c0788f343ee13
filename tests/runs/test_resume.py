"""A run that was killed and resumed equals one that never stopped, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.runs import checkpoints, records, run
from rljax.training import loop
from tests.helpers import small_runs

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
    """Start a run as a user would and kill it as soon as its checkpoint of step `after` is
    there.
    """
    command = [sys.executable, "-m", "rljax", "train", agent, "--env", env, "--steps", str(steps)]
    command += ["--seeds", str(seeds), "--out", str(out), "--quiet", *small_runs.flags(agent)]
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
    resumed_from = checkpoints.steps(tmp_path / "broken" / "checkpoints")[-1]
    if resumed_from >= 400:
        pytest.fail(f"killed too late, at step {resumed_from}")
    run.resume(tmp_path / "broken", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.learn
def test_killed_between_the_last_checkpoint_and_the_summary(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 200, tmp_path / "run")
    before = json.loads((out / "summary.json").read_text())
    (out / "summary.json").unlink()
    run.resume(out)
    after = json.loads((out / "summary.json").read_text())
    assert (after["complete"], after["final"]) == (True, before["final"])
    with pytest.raises(ValueError, match="is complete at 200 steps"):
        run.resume(out)


def test_longer_run_continues_a_finished_one(tmp_path: Path) -> None:
    small_runs.train("td3", "rljax/Pendulum", 400, tmp_path / "whole")
    small_runs.trained("td3", "rljax/Pendulum", 200, tmp_path / "half")
    run.resume(tmp_path / "half", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")


@pytest.mark.slow
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_a_resumed_run_uses_the_programs_of_the_first(env: str, tmp_path: Path) -> None:
    small_runs.train("td3", env, 200, tmp_path / "run", {"hidden": (18, 16)})
    compiled = set()

    def heard(event: str, seconds: float, **details: Any) -> None:
        del seconds
        if event.endswith("backend_compile_duration"):
            compiled.add(details["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        run.resume(tmp_path / "run", 400)
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    # Single operations, of a millisecond each, may compile; before, training compiled twice.
    assert compiled <= {
        f"jit({name})" for name in ("convert_element_type", "stage", "broadcast_in_dim")
    }


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_input_statistics_are_resumed(env: str, tmp_path: Path) -> None:
    config = {"normalise_observations": True, "num_envs": 2, "num_steps": 5, "num_updates": 2}
    small_runs.train("sac", env, 400, tmp_path / "whole", config)
    small_runs.train("sac", env, 200, tmp_path / "half", config)
    run.resume(tmp_path / "half", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    counts = [
        array
        for place, array in small_runs.arrays(tmp_path / "half").items()
        if place.endswith("['statistics']['count']")
    ]
    # Every observation acted on is counted once: on the host also the one that waits for its action
    # to be taken.
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
    small_runs.train("dqn", env, 400, tmp_path / "whole", config)
    small_runs.train("dqn", env, 200, tmp_path / "half", config)
    run.resume(tmp_path / "half", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")


@pytest.mark.learn
def test_same_seed_same_bits(tmp_path: Path) -> None:
    small_runs.train("sac", "Pendulum-v1", 200, tmp_path / "one", seeds=2)
    small_runs.train("sac", "Pendulum-v1", 200, tmp_path / "two", seeds=2)
    small_runs.assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.learn
def test_damaged_newest_checkpoint_falls_back(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 200, tmp_path / "run")
    small_runs.train("td3", "rljax/Pendulum", 300, tmp_path / "whole")
    newest = checkpoints.newest(out / "checkpoints")
    victim = max(
        (path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.warns(UserWarning, match=r"is damaged .* falling back to the one before it"):
        run.resume(out, 300)
    small_runs.assert_same(tmp_path / "whole", out)


@pytest.mark.slow
def test_half_written_checkpoint_is_ignored(tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 200, tmp_path / "run")
    (out / "checkpoints" / ".partial-000000000300").mkdir()
    assert checkpoints.steps(out / "checkpoints") == [100, 200]
    run.resume(out, 300)
    assert checkpoints.steps(out / "checkpoints") == [200, 300]


@pytest.mark.learn
def test_interrupt_saves_and_prints_how_to_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "rljax",
        "train",
        "td3",
        "--env",
        "Pendulum-v1",
        "--steps",
        "1000000",
    ]
    process = subprocess.Popen(
        [*command, "--out", str(out), *small_runs.flags("td3"), "--checkpoint-every", "1000000"],
        stderr=subprocess.PIPE,
        text=True,
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
    assert json.loads((out / "summary.json").read_text())["final"]["step"] == 150
    with pytest.raises(ValueError, match="is complete at 150 steps"):
        run.resume(out)


CHANGED = {"schedule": [[100, {"actor_lr": 1e-3}], [250, {"actor_lr": 1e-2}]]}


@pytest.mark.learn
def test_a_run_with_a_schedule_is_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "seeds": 2,
        "config": {"actor_lr": [1e-4, 1e-4]},
        "schedule": CHANGED,
    }
    whole = small_runs.train("td3", "rljax/Pendulum", 400, tmp_path / "whole", **settings)
    half = small_runs.train("td3", "rljax/Pendulum", 200, tmp_path / "half", **settings)
    run.resume(half, 400)
    small_runs.assert_same(whole, half)
    whole_changes, half_changes = (records.read(out, "changes") for out in (whole, half))
    assert [change["step"] for change in whole_changes] == [100, 250]
    values = [change["values"] for change in whole_changes]
    assert values == [change["values"] for change in half_changes]


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


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run"):
        run.resume(tmp_path)


@pytest.mark.parametrize(("steps", "message"), [(50, "made 100 steps: give --s"), (0, "than 0")])
def test_fewer_steps_than_were_made_are_refused(steps: int, message: str, tmp_path: Path) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    (out / "summary.json").unlink()  # as if the run had not come to its end
    with pytest.raises(ValueError, match=message):
        run.resume(out, steps)
