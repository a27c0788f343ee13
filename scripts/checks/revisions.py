"""Check that two revisions train the same, bit for bit:
the same short runs in each, and every number compared.

  # ../before is a checkout of the other revision.
  python scripts/checks/revisions.py record before --repository ../before
  python scripts/checks/revisions.py record after
  python scripts/checks/revisions.py compare before after  # exit code 1 where a number differs

`record` runs the commands of `RUNS` with the rljax of a checkout and keeps their folders. `compare`
reads the metrics and the evaluations of every run in the two folders, without what a clock says.
Both revisions need the same packages on the same kind of processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

CLOCK = {"wall_seconds", "steps_per_second"}
SHORT = "--log-every 500 --eval-every 500 --eval-episodes 2 --quiet"
DATA = "pendulum.npz"

# What is recorded, by name: commands of rljax, run in this order in one folder, where each writes
# to its name.
RUNS = {
    "sac-host": f"train sac --env Hopper-v5 --steps 1500 --config.warmup-steps 500 {SHORT}",
    "ppo-host": (
        f"train ppo --env HalfCheetah-v5 --steps 4000 --config.num-envs 2 --seeds 2 {SHORT}"
    ),
    "ppo-program": f"train ppo --env rljax/Pendulum --steps 8000 --seeds 2 {SHORT}",
    "dqn-program": (
        "train dqn --env rljax/BoxPick-3x3 --steps 4000 --config.num-envs 16 --config.num-steps 5 "
        "--config.num-updates 2 --config.batch-size 64 --config.hidden 64 64 "
        f"--config.replay-size 10000 {SHORT}"
    ),
    "dqn-n-step": (
        "train dqn --env CartPole-v1 --steps 2000 --config.warmup-steps 500 --config.n-step "
        f"3 {SHORT}"
    ),
    "stream-ac": f"train stream_ac --env Pendulum-v1 --steps 1000 {SHORT}",
    "data": (
        "train sac --env Pendulum-v1 --steps 2000 --config.warmup-steps 500 --config.num-envs "
        "2 --quiet"
    ),
    "iql-data": f"train iql --data {DATA} --env Pendulum-v1 --steps 1000 --seeds 2 {SHORT}",
    "fql-data": (
        f"train fql --data {DATA} --env Pendulum-v1 --steps 500 --config.hidden 64 64 {SHORT}"
    ),
    "sac-mixed": (
        f"train sac --data {DATA} --env Pendulum-v1 --steps 1000 --config.warmup-steps 100 {SHORT}"
    ),
    "iql-then-online": (
        f"train iql --data {DATA} --env Pendulum-v1 --steps 500 --then-online 1000 {SHORT}"
    ),
    "sac-grid": "train sac --env rljax/Pendulum --steps 1000 --config.warmup-steps 500 --seeds 2 "
    f"--grid config.actor-lr=1e-4,1e-3 {SHORT}",
    "ppo-sweep": (
        "sweep ppo --env CartPole-v1 --steps 4096 --trials 4 --population 2 --tuning-seeds 0 1 "
        f"--test-seeds 100 101 {SHORT}"
    ),
    "ppo-pbt": (
        "sweep ppo --env rljax/Pendulum --steps 8192 --method pbt --population 4 --tuning-seeds 0 "
        f"--test-seeds 100 101 --every 2048 {SHORT}"
    ),
}


def record(folder: Path, repository: Path, only: list[str]) -> None:
    """Run the commands with the rljax of `repository` and leave their runs in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(repository.resolve()), "PYTHONWARNINGS": "ignore"}
    python = [sys.executable, "-c", "import sys; from rljax import cli; cli.main(sys.argv[1:])"]
    for name, command in RUNS.items():
        if (only and name not in only) or (folder / name).exists():
            continue
        print(f"{name}: rljax {command}", flush=True)
        subprocess.run(
            [*python, *command.split(), "--out", name], cwd=folder, env=environment, check=True
        )
        if name == "data":
            written = [*python, "data", "record", name, DATA, "--from", "replay"]
            subprocess.run(
                written, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
            )


def numbers(run: Path) -> dict[str, list[dict]]:
    """The lines of all metrics and evaluations in and below a folder, without what a clock says."""
    files = {}
    for file in sorted([*run.rglob("metrics.jsonl"), *run.rglob("evaluations.jsonl")]):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        files[str(file.relative_to(run))] = [
            {name: value for name, value in line.items() if name not in CLOCK} for line in lines
        ]
    return files


def compare(before: Path, after: Path) -> bool:
    """Print for each run whether its numbers are equal; return whether all are."""
    names = [name for name in RUNS if (before / name).exists() or (after / name).exists()]
    equal = 0
    for name in names:
        one, other = numbers(before / name), numbers(after / name)
        same = bool(one) and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
        equal += same
        print(f"{name:<16} {'equal' if same else 'DIFFERENT'}: {sum(map(len, one.values()))} lines")
    print(f"{equal} of {len(names)} equal")
    return bool(names) and equal == len(names)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--repository", type=Path, default=Path(__file__).parents[2])
    recording.add_argument("--only", nargs="*", default=[])
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.folder, arguments.repository, arguments.only)
    elif not compare(arguments.before, arguments.after):
        sys.exit(1)


if __name__ == "__main__":
    main()
