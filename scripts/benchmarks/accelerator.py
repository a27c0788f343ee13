"""Speed of training on an accelerator beside the peers that run there,
of training inside the program and on the host, and returns of XQC and FlashSAC beside published
ones.

First come pairs, ours and a peer's in turns, with medians of their rounds. Then steps per second
and, on a data set, updates per second, with one learner and with ten; then the wall-clock time in
which PPO and Brax's PPO, with the same settings, reach the same return, and the returns of XQC and
FlashSAC after 200,000 steps, with three seeds as one program. Such a training, when it is cut off,
goes on from `--runs`. Each measurement is a separate process. Environments of gymnax and Playground
are measured if they are installed.

  pip install 'rljax-suite[cuda13,gymnax]'
  python scripts/benchmarks/accelerator.py --peers peers \
      --output results/speed/measurements/accelerator.json

`--peers` is a folder with clones of purejaxql, JAX-CORL, fql, xqc and reppo. What a peer needs
beside our requirements may lie in its folder `packages`, by `pip install --no-deps --target`, for
machines without a network; a peer with a Python of its own is named by `--python
xqc=older/bin/python`. A peer that is not there is left out.

A measurement that fails is noted, and the others go on. What the output has already is not measured
again, so that the script can run in pieces: --only sac measures those with "sac" in their names,
which are printed, and nothing begins after `--minutes`. To check on a laptop that the script works:
--tiny.

Brax 0.14.2's trainer uses a function that JAX 0.10 no longer has, `jax.device_put_replicated`. The
script defines it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts.benchmarks import measuring, offline, peers

# Agent, environment, iterations per measurement.
LOOPS = [
    ("sac", "HalfCheetah-v5", 3_000),
    ("xqc", "HalfCheetah-v5", 1_000),
    ("flashsac", "HalfCheetah-v5", 1_000),
    ("sac", "brax/hopper", 200),
    ("ppo", "brax/ant", 10),
    ("pqn", "gymnax/Breakout-MinAtar", 20),
    ("reppo", "brax/ant", 5),
    ("ppo", "playground/CheetahRun", 2),
    ("fasttd3", "playground/CheetahRun", 300),
    ("fastsac", "playground/G1JoystickFlatTerrain", 100),
]
TINY_LOOPS = [("sac", "Pendulum-v1", 200), ("sac", "brax/fast", 3)]
# Of environments, by the first part of their names.
PACKAGES = {"gymnax": "gymnax", "playground": "mujoco_playground"}
# Agent, updates per measurement; sizes as in offline.py.
UPDATES = [("iql", 20_000), ("fql", 3_000), ("dql", 3_000), ("ofql", 3_000)]
TINY_UPDATES = [("iql", 20)]
# Agent, environment, steps, settings of trainings beside published returns.
RETURNS: list[tuple[str, str, int, dict[str, Any]]] = [
    (agent, environment, 200_000, {})
    for agent in ("xqc", "flashsac")
    for environment in ("HalfCheetah-v5", "Walker2d-v5", "Humanoid-v5")
]
SMALL: dict[str, Any] = {
    "hidden": (8,),
    "critic_hidden": (8,),
    "warmup_steps": 100,
    "batch_size": 32,
}
TINY_RETURNS = [("xqc", "Hopper-v5", 200, SMALL)]
# From Brax's training notebook: rollouts of 2,048 x 80 steps in minibatches of 1,024 x 5.
SHAPE = {"num_envs": 2_048, "num_steps": 80, "batch_size": 5_120, "learning_rate": 3e-4}
TINY_SHAPE = {"num_envs": 8, "num_steps": 20, "batch_size": 80, "learning_rate": 3e-4}


def loop(agent: str, environment: str, seeds: int, iterations: int) -> dict[str, Any]:
    """Environment steps per second of all learners together, with the environment's preset,
    and the compile time.
    """
    from rljax.learning import configuration, registry

    module = registry.load_agent(agent)
    preset = configuration.as_json(registry.preset(agent, module, environment))
    warmup = preset.get("warmup_steps", 0) // preset["num_envs"] + 2
    with measuring.prepared(agent, seeds, 10**9, preset, environment) as training:
        first = measuring.timed(training.driver, warmup)
        measuring.timed(training.driver, iterations)
        seconds = statistics.median(measuring.timed(training.driver, iterations) for _ in range(3))
        rate = training.stage.iteration * iterations * seeds / seconds
    return {"steps_per_second": rate, "first_seconds": first, "peak_memory_bytes": device_memory()}


def updates(agent: str, number: int, seeds: int, precision: str) -> dict[str, Any]:
    """Updates per second of all learners together on a data set,
    and the hours for a million updates of each.
    """
    figures = offline.ours(agent, number, seeds, precision)
    return figures | {"hours_of_a_million": 1e6 * seeds / figures["updates_per_second"] / 3600}


def device_memory() -> int | None:
    """Peak memory of the first device in bytes, if the device reports it."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def ours_curve(environment: str, steps: int, shape: dict[str, Any]) -> dict[str, Any]:
    """(wall seconds, mean return) of PPO's evaluations, and steps per second between them."""
    from rljax.runs import records, run
    from scripts.studies import shared

    with tempfile.TemporaryDirectory() as folder:
        out = run.train(
            "ppo", environment, steps, config=shape, out=Path(folder, "run"), eval_every=steps // 10
        )
        lines, rate = records.read(out, "evaluations"), shared.steps_per_second(out)
    curve = [(line["wall_seconds"], statistics.fmean(line["returns"])) for line in lines]
    return {"curve": curve, "steps_per_second": rate}


def brax_curve(environment: str, steps: int, shape: dict[str, Any]) -> dict[str, Any]:
    """(wall seconds, mean return) of evaluations of Brax's own trainer with the settings of our
    preset, and steps per second between them.
    """
    from brax import envs
    from brax.training.agents.ppo import train as ppo

    peers.with_old_names()
    curve: list[tuple[float, float]] = []
    rates: list[float] = []

    def note(step: int, metrics: Mapping[str, Any]) -> None:
        del step
        curve.append((time.perf_counter() - began, float(metrics["eval/episode_reward"])))
        if "training/sps" in metrics:
            rates.append(float(metrics["training/sps"]))

    began = time.perf_counter()
    minibatches = 32 if shape["num_envs"] > 100 else 2
    ppo.train(
        environment=envs.get_environment(environment.removeprefix("brax/")),
        num_timesteps=steps,
        episode_length=1000,
        num_envs=shape["num_envs"],
        unroll_length=5,
        batch_size=shape["batch_size"] // 5,
        num_minibatches=minibatches,
        num_updates_per_batch=4,
        discounting=0.97,
        learning_rate=shape["learning_rate"],
        entropy_cost=0.01,
        reward_scaling=10.0,
        normalize_observations=True,
        num_evals=11,
        deterministic_eval=True,
        progress_fn=note,
    )
    return {"curve": curve, "steps_per_second": statistics.median(rates)}


def returns(
    agent: str, environment: str, steps: int, settings: dict[str, Any], runs: str
) -> dict[str, Any]:
    """Returns of three seeds after `steps` steps, beside the published mean, and whether the
    difference of the means is at most the published standard deviation.
    """
    from rljax.analysis import published
    from rljax.runs import records, run
    from scripts.studies import shared

    out = Path(runs, f"{agent}-{environment}")

    def begin() -> None:
        each = max(steps // 20, 1)
        words = {"seeds": 3, "eval_every": each, "checkpoint_every": each, "quiet": False}
        run.train(agent, environment, steps, config=settings, out=out, **words)

    shared.trained(out, steps, begin)
    lines = [line for line in records.read(out, "evaluations") if line["step"] == steps]
    seeds = [statistics.fmean(line["returns"]) for line in lines]
    figures: dict[str, Any] = {"seeds": seeds, "seconds": records.read_summary(out)["wall_seconds"]}
    points = published.curve(agent, published.task_of(environment), "return")
    for point in points:
        if point.step == steps and point.std is not None:
            inside = abs(statistics.fmean(seeds) - point.mean) <= point.std
            figures |= {"published": point.mean, "std": point.std, "inside": inside}
    return figures


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "loop": loop,
    "updates": updates,
    "ours": ours_curve,
    "brax": brax_curve,
    "returns": returns,
}


def reached(curve: list[list[float]], mark: float) -> float | None:
    """Seconds until a curve first reaches `mark`."""
    return next((seconds for seconds, value in curve if value >= mark), None)


def measurements(tiny: bool, steps: int, runs: str) -> dict[str, tuple[Any, ...]]:
    """The worker and its arguments by the names of measurements."""
    plan: dict[str, tuple[Any, ...]] = {}
    learners = (1, 2) if tiny else (1, 10)
    for agent, environment, iterations in TINY_LOOPS if tiny else LOOPS:
        package = PACKAGES.get(environment.partition("/")[0], "rljax")
        for seeds in learners if importlib.util.find_spec(package) else ():
            plan[f"{agent} {environment} x {seeds}"] = (
                "loop",
                agent,
                environment,
                seeds,
                iterations,
            )
    for agent, number in TINY_UPDATES if tiny else UPDATES:
        for precision in ("float32", "bfloat16") if agent in offline.PRECISE else ("",):
            for seeds in learners:
                name = f"{agent} updates {precision}".strip()
                plan[f"{name} x {seeds}"] = ("updates", agent, number, seeds, precision)
    for agent, environment, length, settings in TINY_RETURNS if tiny else RETURNS:
        name = f"{agent} {environment} returns after {length:,} steps"
        plan[name] = ("returns", agent, environment, length, settings, runs)
    environment, steps, shape = (
        ("brax/fast", 5_000, TINY_SHAPE) if tiny else ("brax/ant", steps, SHAPE)
    )
    for whose in ("ours", "brax"):
        plan[f"ppo {environment} {whose}"] = (whose, environment, steps, shape)
    return plan


def main() -> None:
    """Measure everything, print the numbers and write them to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=30_000_000, help="of the two trainings on brax/ant"
    )
    parser.add_argument("--runs", default="runs/accelerator", help="folder of trainings")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of measurements")
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of their code")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="NAME=PYTHON", help="Pythons that run peers"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of ours and a peer's in turns")
    parser.add_argument("--minutes", type=float, default=13.0, help="after which nothing begins")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--worker", nargs="+")
    options = parser.parse_args()
    if options.worker:
        name, *arguments = options.worker
        print(json.dumps(WORKERS[name](*map(json.loads, arguments))))
        return
    from rljax.system.hardware import provenance

    figures: dict[str, Any] = provenance()
    if options.output and options.output.exists():
        figures = json.loads(options.output.read_text())
    pythons = dict(word.split("=", 1) for word in options.python)
    planned = measurements(options.tiny, options.steps, options.runs)
    plan = peers.plan(peers.Peers(options.peers, pythons), options.rounds)
    for name, (worker, *arguments) in planned.items():
        words = (sys.executable, worker, *map(json.dumps, arguments))
        plan[name] = functools.partial(measuring.measure, *words, script=__file__)
    failures, began = [], time.monotonic()
    for name, work in plan.items():
        if name in figures or not any(part in name for part in options.only):
            continue
        if time.monotonic() - began > 60 * options.minutes:
            print(f"{options.minutes:g} minutes are over: '{name}' and what follows wait.")
            break
        try:
            figures[name] = work()
        except SystemExit as failure:
            failures.append(name)
            print(failure, file=sys.stderr)
            continue
        print(f"{name:<40} {json.dumps(figures[name])}", flush=True)
        if options.output:  # after each measurement: the machine may be taken away
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(figures, indent=1) + "\n")
    # In this order.
    trainings = [name for name, (worker, *_) in planned.items() if worker in ("ours", "brax")]
    curves = [figures[name]["curve"] for name in trainings if name in figures]
    if len(curves) == 2:
        mark = 0.9 * min(max(value for _, value in curve) for curve in curves)
        times = [reached(curve, mark) for curve in curves]
        print(
            f"return {mark:.0f} reached after {times[0]:.1f} s by ours and {times[1]:.1f} s "
            "by Brax's trainer"
        )
    if failures:
        raise SystemExit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
