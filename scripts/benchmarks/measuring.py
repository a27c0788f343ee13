"""Shared parts of the benchmarks: runs to be timed, workers in processes of their own,
samples and their file.

The Pythons of peers import it too. So it imports nothing but the standard library until a function
needs more.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing rljax takes time that is measured
    from rljax.learning.drivers.driver import Driver
    from rljax.learning.loop import Training

ROOT = Path(__file__).resolve().parents[2]  # of the repository
ENVIRONMENT = "HalfCheetah-v5"


@contextlib.contextmanager
def prepared(
    agent: str, seeds: int, steps: int, changes: dict[str, Any], environment: str = ENVIRONMENT
) -> Iterator[Training]:
    """Our run with the peer's settings, created but not started,
    in a folder that is removed at the end.
    """
    from rljax.learning import registry
    from rljax.learning.plan import Experiment
    from rljax.learning.settings import Settings
    from rljax.runs import active
    from rljax.runs.display import console

    module = registry.load_agent(agent)
    settings = Settings(
        agent,
        environment,
        steps,
        tuple(range(seeds)),
        eval_episodes=1,
        eval_every=10**9,
        checkpoint_every=10**9,
        without_updates=True,  # some measure what comes before the first one, or an update alone
    )
    experiment = Experiment(settings, module, module.Config(**changes), None)
    with tempfile.TemporaryDirectory() as folder:
        begun = active.ActiveRun.begin(experiment, Path(folder, "run"), console.View(), "benchmark")
        try:
            yield begun.training
        finally:
            begun.close()


def timed(driver: Driver, iterations: int) -> float:
    """Seconds that a driver needs for its next iterations:
    environment, storage, update, metrics.
    """
    began = time.perf_counter()
    driver.advance(iterations)
    driver.report()
    return time.perf_counter() - began


def variables() -> dict[str, str]:
    """The environment variables of a process whose Python, also a peer's,
    is to find `scripts` in this repository.
    """
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def measure(python: str, worker: str, *arguments: Any, script: str) -> dict[str, Any]:
    """Run a worker of a script in a separate process and read its result."""
    return result_of([python, script, "--worker", worker, *map(str, arguments)])


def result_of(command: list[str]) -> dict[str, Any]:
    """What a command prints last, as JSON."""
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def work(workers: dict[str, Callable[..., dict[str, Any]]], words: list[str]) -> None:
    """Run as a worker of `measure`: call the function named by the first word,
    and print its result.
    """
    name, *arguments = words
    print(json.dumps(workers[name](*(int(x) if x.isdigit() else x for x in arguments))))


def options_of(
    parser: argparse.ArgumentParser,
    workers: dict[str, Callable[..., dict[str, Any]]],
    rounds: int = 5,
) -> argparse.Namespace:
    """The options of a script that measures, with those that all have.

    A worker of `measure` does its work and ends.
    """
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", nargs="+")
    options = parser.parse_args()
    if options.worker:
        work(workers, options.worker)
        raise SystemExit
    return options


def use_code(*folders: str | Path) -> None:
    """Import from the folders of a peer's code, and no longer from this repository:
    both may have `agents`.
    """
    sys.path[:] = [*map(str, folders), *(path for path in sys.path if Path(path).resolve() != ROOT)]


def loaded(name: str, path: str | Path) -> Any:
    """A peer's file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add_sample(samples: dict[str, list[float]], name: str, value: float) -> None:
    """Add a value to the samples of this name, and print it."""
    samples.setdefault(name, []).append(value)
    print(f"{name:<56} {value:>14,.2f}", flush=True)


def compare_with_authors(
    agent: tuple[str, str], base: tuple[str, str], options: argparse.Namespace, script: str
) -> None:
    """Measure updates of an agent, of the one that it extends, and of the authors' code, in turns.

    `agent` and `base` are a printed name and the agent's. The workers of `script` are "ours" and
    "peer"; `options` has those of `options_of`, `updates`, `peer` and `code`.
    """
    samples: dict[str, list[float]] = {}
    workers = [(name, sys.executable, "ours", argument) for name, argument in (agent, base)]
    if options.peer:
        workers.append(("authors", options.peer, "peer", options.code))
    for _ in range(options.rounds):
        for name, python, worker, argument in workers:
            figures = measure(python, worker, options.updates, argument, script=script)
            add_sample(samples, f"{name} updates/s", figures["updates_per_second"])
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ours = medians[f"{agent[0]} updates/s"]
    ratios = {f"{agent[0]} / {base[0]}": ours / medians[f"{base[0]} updates/s"]}
    if options.peer:
        ratios["ours / the authors'"] = ours / medians["authors updates/s"]
    conclude(medians, ratios, samples, options.output)


def conclude(
    medians: dict[str, float],
    ratios: dict[str, float],
    samples: dict[str, list[float]],
    output: Path | None,
) -> None:
    """Print a table, and write the numbers to `output` if it is given."""
    print("\nmedians")
    for name, value in (medians | ratios).items():
        print(f"  {name:<36} {value:>14,.3f}")
    if output:
        from rljax.system.hardware import provenance

        command = " ".join(["python", *sys.argv])
        figures = {
            "command": command,
            **provenance(),
            "medians": medians,
            "ratios": ratios,
            "samples": samples,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(figures, indent=1) + "\n")
