"""Speed of many learners in one program, compared with many runs.

Also measures the cost of the population axis for one learner, a sweep compared with separate
trials, and learners with a core each compared with learners that share all cores.

  python scripts/benchmarks/populations.py --output results/speed/measurements/populations.json
  python scripts/benchmarks/populations.py --overhead --rounds 7 --rollouts 40 \\
      --output results/speed/measurements/overhead.json
  python scripts/benchmarks/populations.py --zoo zoo/bin/python --rounds 3 \\
      --output results/speed/measurements/sweep.json
  python scripts/benchmarks/populations.py --cores --rounds 3 \
      --output results/speed/measurements/cores.json

Measurements alternate, each in a separate process. Medians are reported. Sequential runs are those
of a shell loop over `rljax train`, with compiled programs kept between runs and, for comparison,
not kept.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.measuring import add_sample, conclude, measure, options_of, prepared, timed
from scripts.benchmarks.offline import synthetic

LEARNERS = 16
SWEEP = {"trials": 64, "population": 16, "steps": 50_000}
PPO: dict[str, Any] = {"num_envs": 8, "num_steps": 128, "batch_size": 256, "num_epochs": 4}
FLAGS = [
    word
    for name, value in PPO.items()
    for word in (f"--config.{name.replace('_', '-')}", str(value))
]
QUIET = ["--eval-episodes", "10", "--quiet"]
# Learners, steps, and their source of experience.
POPULATIONS: dict[str, tuple[int, int, list[str]]] = {
    "ppo": (16, 100_000, ["--env", "gymnax/Pendulum-v1", *FLAGS]),
    "dqn": (8, 10_000, ["--env", "gymnax/CartPole-v1"]),
    "sac": (4, 2_000, ["--env", "rljax/Pendulum"]),
    "bc": (4, 8_000, []),
    "iql": (4, 1_000, []),
    "cql": (4, 40, ["--config.bc-steps", "0"]),
}


def command(*words: Any, cache: str, **environment: str) -> None:
    """The command line in a separate process.

    Compiled programs are kept in `cache`, unless that is empty.
    """
    settings = (
        {"JAX_COMPILATION_CACHE_DIR": cache} if cache else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    )
    words = tuple(map(str, (sys.executable, "-m", "rljax", *words)))
    subprocess.run(
        words, check=True, stdout=subprocess.DEVNULL, env=os.environ | settings | environment
    )


def training_of_ppo(steps: int) -> list[Any]:
    """The words of a command that trains PPO and evaluates it once, at the end."""
    return ["train", "ppo", "--env", "gymnax/Pendulum-v1", "--steps", steps, "--eval-every", steps]


def together(steps: int) -> dict[str, Any]:
    """Seconds of one command that trains all learners, without compiled programs at the start."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        words = training_of_ppo(steps)
        command(
            *words,
            "--seeds",
            LEARNERS,
            "--out",
            f"{folder}/run",
            *FLAGS,
            *QUIET,
            cache=f"{folder}/cache",
        )
        return {"seconds": time.perf_counter() - began}


def one_by_one(steps: int, number: int, keep: int) -> dict[str, Any]:
    """Seconds of all commands, one per learner, estimated from the first and `number` - 1
    others.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken = []
        for seed in range(number):
            began = time.perf_counter()
            words = training_of_ppo(steps)
            place = ["--seed", seed, "--out", f"{folder}/run-{seed}"]
            command(*words, *place, *FLAGS, *QUIET, cache=f"{folder}/cache" if keep else "")
            taken.append(time.perf_counter() - began)
    return {"seconds": taken[0] + (LEARNERS - 1) * statistics.mean(taken[1:])}


def one_learner(rollouts: int, repetitions: int) -> dict[str, Any]:
    """Steps per second of PPO's usual loop for one learner and of a hand-written loop,
    alternating.
    """
    import jax

    size = PPO["num_envs"] * PPO["num_steps"]
    loop, carry = by_hand(rollouts)
    with prepared("ppo", 1, 10**9, PPO, "gymnax/Pendulum-v1") as training:
        timed(training.driver, rollouts)
        ours, hand = [], []
        for _ in range(repetitions):
            ours.append(timed(training.driver, rollouts))
            began = time.perf_counter()
            carry = jax.block_until_ready(loop(carry))
            hand.append(time.perf_counter() - began)
    steps = rollouts * size
    return {
        "steps_per_second": steps / statistics.median(ours),
        "by_hand": steps / statistics.median(hand),
    }


def by_hand(rollouts: int) -> tuple[Callable[[Any], Any], Any]:
    """The same loop for one learner, without axis P and storage,
    but with its counters and reports.
    """
    import jax
    import jax.numpy as jnp

    from rljax import envs
    from rljax.agent import Transition
    from rljax.agents import ppo
    from rljax.learning import agent_state

    environment, config = envs.make("gymnax/Pendulum-v1"), ppo.Config(**PPO)
    key_agent, key_reset, key_act, key_update = jax.random.split(jax.random.key(0), 4)
    inputs = ppo.experience(config).inputs
    agent = agent_state.create(ppo, key_agent, environment.spec, config, inputs)
    observation, state = environment.reset(jax.random.split(key_reset, config.num_envs))

    def step(carry: Any, time: Any) -> Any:
        agent, observation, state, episodes, rollout = carry
        key = jax.random.fold_in(key_act, time)
        action, extras, _ = agent_state.act(ppo, agent, observation, key, config, explore=True)
        keys = jax.random.split(jax.random.fold_in(key_reset, time), config.num_envs)
        outcome, state = environment.step(keys, state, action)
        ended = outcome.terminated | outcome.truncated
        finished = (ended * outcome.episode_return, ended * outcome.episode_length, ended)
        episodes = [total + new.sum() for total, new in zip(episodes, finished, strict=True)]
        happened = (outcome.reward, outcome.terminated, outcome.truncated, outcome.next_observation)
        carry = (agent, outcome.observation, state, episodes, rollout)
        return carry, Transition(observation, action, *happened, extras)

    def iterate(index: Any, carry: Any) -> Any:
        agent, observation, state, episodes, totals, bad = carry
        times = index * config.num_steps + jnp.arange(config.num_steps)
        carry, batch = jax.lax.scan(step, (agent, observation, state, episodes, index), times)
        key = jax.random.fold_in(key_update, index)
        agent, metrics = agent_state.update(ppo, agent, batch, key, index, config)
        totals = {name: totals[name] + value for name, value in metrics.items()}
        bad = {
            name: jnp.where((bad[name] < 0) & ~jnp.isfinite(x), index, bad[name])
            for name, x in metrics.items()
        }
        return (agent, *carry[1:4], totals, bad)

    names = (
        "actor/loss",
        "actor/entropy",
        "actor/kl",
        "actor/clipped",
        "critic/loss",
        "critic/value",
        "critic/explained_variance",
    )
    loop = jax.jit(lambda carry: jax.lax.fori_loop(0, rollouts, iterate, carry), donate_argnums=0)
    empty = (
        {name: jnp.zeros(()) for name in names},
        {name: jnp.full((), -1, jnp.int32) for name in names},
    )
    carry = (agent, observation, state, [jnp.zeros(()) for _ in range(3)], *empty)
    return loop, jax.block_until_ready(loop(carry))


def population(agent: str, cores: int) -> dict[str, Any]:
    """Steps per second of a command's loop.

    Its learners have a core each, or share the threads of one device.
    """
    seeds, steps, words = POPULATIONS[agent]
    with tempfile.TemporaryDirectory() as folder:
        if "--env" not in words:
            np.savez(f"{folder}/data.npz", allow_pickle=False, **synthetic(100_000))
            words = [*words, "--data", f"{folder}/data.npz", "--env", "none"]
        words += [
            "--seeds",
            seeds,
            "--steps",
            steps,
            "--log-every",
            steps // 4,
            "--eval-every",
            steps,
        ]
        words += [
            "--eval-episodes",
            1,
            "--checkpoint-every",
            steps,
            "--quiet",
            "--out",
            f"{folder}/run",
        ]
        devices = {} if cores else {"JAX_NUM_CPU_DEVICES": "1"}
        command("train", agent, *words, cache=f"{folder}/cache", **devices)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return {"steps_per_second": summary["steps_per_second"]}


def swept() -> dict[str, Any]:
    """Seconds of a sweep of PPO on CartPole in populations, without compiled programs at the start,
    and of its test.
    """
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        words = [
            "sweep",
            "ppo",
            "--env",
            "gymnax/CartPole-v1",
            "--steps",
            SWEEP["steps"],
            "--eval-every",
            SWEEP["steps"],
        ]
        words += [
            "--trials",
            SWEEP["trials"],
            "--population",
            SWEEP["population"],
            "--tuning-seeds",
            0,
        ]
        command(*words, "--out", f"{folder}/sweep", *FLAGS, *QUIET, cache=f"{folder}/cache")
        return {"seconds": time.perf_counter() - began}


def trial_by_trial(number: int) -> dict[str, Any]:
    """Seconds of all trials in a process each, estimated from `number` of them:
    settings do not change the time.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken = []
        for trial in range(number):
            began = time.perf_counter()
            words = ["train", "ppo", "--env", "gymnax/CartPole-v1", "--steps", SWEEP["steps"]]
            words += ["--eval-every", SWEEP["steps"], "--out", f"{folder}/run-{trial}"]
            rate = ["--config.learning-rate", f"{1e-4 * (1 + trial):g}"]
            command(*words, *rate, *FLAGS, *QUIET, cache=f"{folder}/cache")
            taken.append(time.perf_counter() - began)
    return {"seconds": taken[0] + (SWEEP["trials"] - 1) * statistics.mean(taken[1:])}


def zoo(python: str, number: int, at_once: int) -> dict[str, Any]:
    """Seconds of RL Zoo's command for all trials, estimated from `number`;
    `at_once` of them share the processor.
    """
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    budget = [
        "-n",
        str(SWEEP["steps"]),
        "--eval-freq",
        str(SWEEP["steps"]),
        "--eval-episodes",
        "10",
    ]
    settings = [
        f"n_envs:{PPO['num_envs']}",
        f"n_steps:{PPO['num_steps']}",
        f"batch_size:{PPO['batch_size']}",
    ]
    settings += [f"n_epochs:{PPO['num_epochs']}"]
    with tempfile.TemporaryDirectory() as folder:

        def trial(index: int) -> None:
            words = [
                python,
                "-m",
                "rl_zoo3.train",
                "--algo",
                "ppo",
                "--env",
                "CartPole-v1",
                *budget,
                "--verbose",
                "0",
            ]
            words += [
                "-f",
                f"{folder}/{index}",
                "--seed",
                str(index),
                "--num-threads",
                threads,
                "--device",
                "cpu",
            ]
            words += ["--hyperparams", *settings, f"learning_rate:{1e-4 * (1 + index):g}"]
            subprocess.run(words, check=True, capture_output=True)

        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(trial, range(number)))
        return {"seconds": (time.perf_counter() - began) * SWEEP["trials"] / number}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "together": together,
    "one_by_one": one_by_one,
    "one_learner": one_learner,
    "population": population,
    "swept": swept,
    "trial_by_trial": trial_by_trial,
    "zoo": zoo,
}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=100_000, help="of each of the learners that are compared"
    )
    parser.add_argument(
        "--runs", type=int, default=4, help="of those one after the other that are timed"
    )
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument(
        "--overhead", action="store_true", help="measure one learner beside the loop by hand alone"
    )
    parser.add_argument(
        "--cores",
        action="store_true",
        help="measure what learners gain by cores of their own alone",
    )
    parser.add_argument(
        "--zoo", help="Python of an environment that has rl_zoo3: measure the sweep beside it alone"
    )
    options = options_of(parser, WORKERS, rounds=3)

    samples: dict[str, list[float]] = {}

    def note(name: str, worker: str, *arguments: Any) -> None:
        for what, value in measure(sys.executable, worker, *arguments, script=__file__).items():
            full = f"{name}, {what.replace('steps_per_second', 'steps/s')}"
            add_sample(samples, full, value)

    if options.overhead:
        for _ in range(options.rounds):
            note("PPO, one learner", "one_learner", options.rollouts, 20)
        return conclude(
            {name: statistics.median(values) for name, values in samples.items()},
            {
                "one learner / by hand, of each process": statistics.median(
                    map(operator.truediv, *samples.values())
                )
            },
            samples,
            options.output,
        )
    if options.cores:
        for _ in range(options.rounds):
            for agent, (seeds, _, _) in POPULATIONS.items():
                for cores, how in enumerate(("sharing", "cores")):
                    note(f"{agent}, {seeds} learners, {how}", "population", agent, cores)
        medians = {name: statistics.median(values) for name, values in samples.items()}
        ratios = {
            f"{agent}, cores / sharing": medians[f"{agent}, {seeds} learners, cores, steps/s"]
            / medians[f"{agent}, {seeds} learners, sharing, steps/s"]
            for agent, (seeds, _, _) in POPULATIONS.items()
        }
        return conclude(medians, ratios, samples, options.output)
    sweep = f"sweep of {SWEEP['trials']} in populations of {SWEEP['population']}, with its test"
    if options.zoo:
        names = {
            1: f"RL Zoo, {SWEEP['trials']} trials one by one",
            2: f"RL Zoo, {SWEEP['trials']} trials, two at once",
        }
        for _ in range(options.rounds):
            note(sweep, "swept")
            for at_once, name in names.items():
                note(name, "zoo", options.zoo, options.runs, at_once)
        medians = {name: statistics.median(values) for name, values in samples.items()}
        ratios = {
            f"{name} / sweep": medians[f"{name}, seconds"] / medians[f"{sweep}, seconds"]
            for name in names.values()
        }
        return conclude(medians, ratios, samples, options.output)
    for _ in range(options.rounds):
        note(f"{LEARNERS} PPO learners, one program", "together", options.steps)
        note(f"{LEARNERS} PPO runs, compiled once", "one_by_one", options.steps, options.runs, 1)
        note(f"{LEARNERS} PPO runs, each compiled", "one_by_one", options.steps, 2, 0)
        note("PPO, one learner", "one_learner", options.rollouts, 20)
    note(sweep, "swept")
    note(f"{SWEEP['trials']} trials, a process each", "trial_by_trial", options.runs)

    medians = {name: statistics.median(values) for name, values in samples.items()}
    program = medians[f"{LEARNERS} PPO learners, one program, seconds"]
    ratios = {
        "runs compiled once / one program": medians[f"{LEARNERS} PPO runs, compiled once, seconds"]
        / program,
        "runs each compiled / one program": medians[f"{LEARNERS} PPO runs, each compiled, seconds"]
        / program,
        "one learner / by hand": medians["PPO, one learner, steps/s"]
        / medians["PPO, one learner, by_hand"],
        "a process each / sweep": medians[f"{SWEEP['trials']} trials, a process each, seconds"]
        / medians[f"{sweep}, seconds"],
    }
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
