"""Kill runs of fourteen kinds at random moments, resume them,
and compare them with runs that were never stopped.

  python scripts/faults/kill_runs.py --trials 100

A trial starts a command and sends it SIGKILL, SIGTERM or SIGINT at a random moment of its time,
from the first import to the last evaluation. Then it does what a user would: `rljax resume` if the
run has written its settings, the same command if not. In every second trial, two processes do so at
once: one must go on, and the other be refused. Some trials are killed a second time while they go
on. In the end, the arrays of all checkpoints and all recorded numbers must equal those of the whole
run, bit for bit. A trial whose command ended before the signal is drawn anew.

The results are counts by kind of run, in `--output`. A trial that differs keeps its folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rljax.runs import records
from rljax.system.hardware import provenance
from rljax.tuning import grids, sweeps
from scripts.checks.revisions import numbers
from tests.helpers import small_runs

SHORT = "--log-every 200 --eval-every 400 --eval-episodes 1 --checkpoint-every 200"
REPLAY = "--config.batch-size 32 --config.warmup-steps 100 --config.replay-size 2000"
ON_POLICY = (
    "--config.num-envs 2 --config.num-steps 50 --config.batch-size 50 --config.actor-hidden 16"
)
DATA = "--data data.npz --env Pendulum-v1 --config.hidden 16 16 --config.batch-size 32 --seeds 2"
KINDS = {
    "on the host": f"train sac --env Hopper-v5 --steps 2000 --config.hidden 16 16 {REPLAY}",
    "inside the program": f"train ppo --env rljax/Pendulum --steps 8000 --seeds 2 {ON_POLICY}",
    "stream": "train stream_ac --env Pendulum-v1 --steps 2000 --config.hidden 16 16",
    "from data": f"train iql --steps 4000 {DATA}",
    "data, then online": f"train iql --steps 1000 --then-online 1000 {DATA}",
    "grid": f"train td3 --env rljax/Pendulum --steps 2000 --grid config.hidden=16,24 {REPLAY}",
    "sweep": (
        "sweep ppo --env rljax/Pendulum --steps 2000 --trials 4 --population 2 --tuning-seeds 0 "
        f"--test-seeds 100 101 {ON_POLICY}"
    ),
    "with a memory": (
        "train r2d2 --env CartPole-v1 --steps 2000 --config.hidden 16 --config.memory-hidden 16 "
        "--config.batch-size 8 --config.num-envs 2 --config.length 4 --config.burn-in 2 "
        "--config.overlap 2 --config.warmup-steps 100 --config.replay-size 2000"
    ),
    "a recurrent rollout": (
        f"train ppo --env CartPole-v1 --steps 4000 --seeds 2 {ON_POLICY} --config.memory gru "
        "--config.memory-hidden 16"
    ),
    "a rollout beside data": (
        f"train hnpg --data data.npz --env Pendulum-v1 --steps 4000 {ON_POLICY} "
        "--config.critic-hidden 16 --config.data-size 100"
    ),
    "a replay beside data": (
        f"train sac --preset rlpd --data data.npz --env Pendulum-v1 --steps 2000 {REPLAY} "
        "--config.hidden 16 16 --config.num-updates 4 --config.policy-delay 4"
    ),
    "costs, PPO-Lagrangian": (
        f"train ppo_lagrangian --env velocity/Hopper-v5 --steps 4000 {ON_POLICY}"
    ),
    "costs, CPO": f"train cpo --env rljax/PointHazards --steps 4000 --seeds 2 {ON_POLICY}",
    "costs, SAC-Lagrangian": (
        f"train sac_lagrangian --env velocity/Hopper-v5 --steps 2000 --config.hidden 16 16 {REPLAY}"
    ),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SHARE_KILLED_TWICE = 0.25
COUNTED = ("trials", "before a checkpoint", "killed twice", "two at once", "the same bits")


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """A process of rljax that works in `folder`."""
    command = [sys.executable, "-m", "rljax", *words, "--quiet"]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What a process said, after it has ended."""
    return process.communicate()[1]


def train_command(kind: str, out: str) -> list[str]:
    """The command that begins a run of this kind."""
    return [*KINDS[kind].split(), *SHORT.split(), "--out", out]


def next_command(kind: str, folder: Path, out: str) -> list[str]:
    """What a user would type after the run has stopped."""
    path = folder / out
    begun = (path / "config.json").exists() or grids.is_grid(path) or sweeps.is_sweep(path)
    return ["resume", out] if begun else train_command(kind, out)


def has_checkpoint(out: Path) -> bool:
    """Whether a checkpoint is complete in or below a folder."""
    return any(path.name.isdigit() for path in out.rglob("checkpoints/*"))


def killed(process: subprocess.Popen[str], seconds: float, number: int) -> bool:
    """Send the signal after `seconds`, and say whether the process was still working."""
    time.sleep(seconds)
    working = process.poll() is None
    if working:
        process.send_signal(number)
    ended(process)
    return working


def complete(out: Path) -> bool:
    """Whether a run, a grid or a sweep in `out` has all its results."""
    if sweeps.is_sweep(out):
        return (out / "result.json").exists()
    runs = grids.runs(out) if grids.is_grid(out) else [out]
    return all(records.read_summary(path).get("complete", False) for path in runs)


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two runs, grids or sweeps."""
    names = [] if numbers(one) == numbers(other) else ["recorded numbers"]
    places = [
        sorted(path.parent.relative_to(out) for path in out.rglob("checkpoints"))
        for out in (one, other)
    ]
    if places[0] != places[1]:
        return [*names, f"folders: {places}"]
    for place in places[0]:
        names += [
            f"{place}: {name}" for name in small_runs.different_arrays(one / place, other / place)
        ]
    if (one / "result.json").exists() and (one / "result.json").read_text() != (
        other / "result.json"
    ).read_text():
        names.append("result.json")
    return names


def trial(
    kind: str, folder: Path, out: str, seconds: float, rng: np.random.Generator, two: bool
) -> dict[str, Any]:
    """Kill a run and let it go on until it is complete. `seconds` is how long a whole run takes."""
    while not killed(
        start(train_command(kind, out), folder), rng.uniform(0, seconds), rng.choice(SIGNALS)
    ):
        shutil.rmtree(folder / out)
    outcome: dict[str, Any] = {
        "before a checkpoint": not has_checkpoint(folder / out),
        "killed twice": False,
    }
    outcome |= {"two at once": False, "problems": []}
    if not two and rng.random() < SHARE_KILLED_TWICE:
        process = start(next_command(kind, folder, out), folder)
        outcome["killed twice"] = killed(process, rng.uniform(0, seconds / 2), rng.choice(SIGNALS))
    if not complete(folder / out):
        command, outcome["two at once"] = next_command(kind, folder, out), two
        processes = [start(command, folder) for _ in range(1 + two)]
        said = [ended(process) for process in processes]
        codes = sorted(process.returncode for process in processes)
        # The second one is told that the first works there, or, if it came late, that all is done.
        refused = any(
            word in text for text in said for word in ("is in use", "is complete", "exists. Choose")
        )
        if codes != [0, 2][: len(codes)] or refused != two:
            outcome["problems"].append({"command": command, "codes": codes, "said": said})
    if not complete(folder / out):
        outcome["problems"].append("not complete")
    else:
        outcome["problems"] += differences(folder / "whole" / kind.replace(" ", "-"), folder / out)
    return outcome


def main() -> None:
    """Make the whole runs, then the trials, and write what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100, help="of all kinds together")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/kills"))
    parser.add_argument("--output", type=Path, default=Path("results/checks/faults/kills.json"))
    options = parser.parse_args()
    folder, rng = options.runs.resolve(), np.random.default_rng(options.seed)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "whole").mkdir(parents=True)
    record = [
        "train",
        "sac",
        "--env",
        "Pendulum-v1",
        "--steps",
        "2000",
        "--out",
        "recorded",
        *REPLAY.split(),
    ]
    for words in (record, ["data", "record", "recorded", "data.npz", "--from", "replay"]):
        command = [sys.executable, "-m", "rljax", *words]
        subprocess.run(
            command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    seconds = {}
    for kind in options.kinds:
        # The second one finds its programs in the compilation cache, as the trials do.
        for _ in range(2):
            place = folder / "whole" / kind.replace(" ", "-")
            shutil.rmtree(place, ignore_errors=True)
            before = time.monotonic()
            process = start(train_command(kind, f"whole/{place.name}"), folder)
            said = ended(process)
            if process.returncode:
                raise SystemExit(f"{kind}: {said}")
            seconds[kind] = time.monotonic() - before
        print(f"{kind}: a whole run takes {seconds[kind]:.0f} s", flush=True)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in options.kinds}
    table: dict[str, dict[str, int]] = {}
    for i in range(options.trials):
        kind = options.kinds[i % len(options.kinds)]
        out = f"trial-{i:03d}"
        outcome = trial(
            kind, folder, out, seconds[kind], rng, two=bool(i // len(options.kinds) % 2)
        )
        counts[kind] += Counter(["trials", *(name for name in COUNTED if outcome.get(name))])
        if outcome["problems"]:
            print(f"{out}, {kind}: {outcome}", flush=True)
        else:
            counts[kind]["the same bits"] += 1
            shutil.rmtree(folder / out)
        print(
            f"{i + 1} of {options.trials}: "
            f"{sum(count['the same bits'] for count in counts.values())}",
            flush=True,
        )
        table = {kind: {name: counts[kind][name] for name in COUNTED} for kind in options.kinds}
        options.output.write_text(
            json.dumps({"seed": options.seed, **provenance(), "kinds": table}, indent=1) + "\n"
        )
    for kind, row in table.items():
        print(f"{kind}: {row}")
    if any(row["the same bits"] != row["trials"] for row in table.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
