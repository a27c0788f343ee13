"""Speed and memory of online training, compared with Stable Baselines Jax (sbx-rl) and rejax.

Measurements alternate (ours, peer, ours, peer, ...), each in a separate process. Medians are
reported. The peers are installed in separate environments, whose Pythons are arguments:

  python scripts/benchmarks/online.py --peer peer/bin/python --rejax rejax/bin/python \\
      --output results/speed/measurements/online.json

EnvPool and gymnax are measured with our agents if they are installed: pip install
'rljax-suite[envpool,gymnax]'.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.benchmarks import measuring
from scripts.benchmarks.measuring import (
    ENVIRONMENT,
    add_sample,
    conclude,
    options_of,
    prepared,
    timed,
)

if TYPE_CHECKING:  # importing rljax takes time that is measured
    from rljax.learning.loop import Training

WARMUP = 1_000
ROLLOUT = 8 * 256  # environments x steps of PPO
# For PPO inside the program, in 8 minibatches.
PENDULUM = {"num_envs": 64, "num_steps": 64, "num_epochs": 4}
PLAIN: dict[str, Any] = {  # as rejax's default
    "recompute_advantages": False,
    "normalise_observations": False,
    "normalise_rewards": False,
}
# DQN on CartPole, with an update after each step.
CARTPOLE = {
    "hidden": (256, 256),
    "batch_size": 64,
    "replay_size": 100_000,
    "target_every": 1_000,
    "num_steps": 1,
}
AGENTS = ("sac", "td3", "dqn", "ppo", "tqc", "droq", "redq", "crossq")
PEER = "sbx-rl"
# Of SAC, TQC and CrossQ, with the peer's sizes: our agent, and its settings.
CROSSQ = (1_024, 1_024)
TWENTY: dict[str, Any] = {"num_updates": 20, "policy_delay": 20}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tqc": ("tqc", {"num_critics": 2, "critic_hidden": (256, 256)}),
    "droq": ("sac", {"dropout": 0.01, "layer_norm": True} | TWENTY),
    "redq": ("sac", {"num_critics": 10, "min_critics": 2, "actor_value": "mean"} | TWENTY),
    "crossq": ("crossq", {"critic_hidden": CROSSQ}),
}
PEER_TWENTY: dict[str, Any] = {"gradient_steps": 20, "policy_delay": 20}
PEER_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # its REDQ takes the smallest of all
    "droq": ("SAC", {"policy_kwargs": {"dropout_rate": 0.01, "layer_norm": True}} | PEER_TWENTY),
    "redq": ("SAC", {"policy_kwargs": {"n_critics": 10}} | PEER_TWENTY),
    "crossq": ("CrossQ", {"policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [*CROSSQ]}}}),
}
HEADS = ("two_hot", "hl_gauss", "c51", "quantile")  # of SAC's critics
TURNS = 9  # repetitions of the loop and of its bare update, to measure the share of the bound


def process_age() -> float:
    """Seconds since this process started (Linux)."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Peak resident memory of this process in bytes (Linux)."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ours(agent: str, steps: int, seeds: int) -> dict[str, Any]:
    """Steps per second of the training loop of an agent that learns from replay."""
    environment = "CartPole-v1" if agent == "dqn" else ENVIRONMENT
    agent, changes = ("dqn", CARTPOLE) if agent == "dqn" else VARIANTS.get(agent, (agent, {}))
    changes = changes | {"warmup_steps": WARMUP}
    with prepared(agent, seeds, WARMUP + 200 + steps, changes, environment) as training:
        timed(training.driver, WARMUP + 200)
        seconds = timed(training.driver, steps)
    return {"steps_per_second": steps * seeds / seconds, "peak_memory_bytes": peak_memory()}


def ours_ppo(environment: str, rollouts: int) -> dict[str, Any]:
    """Steps per second of PPO's training loop on the host."""
    changes = {"recompute_advantages": False}
    with prepared("ppo", 1, (2 + rollouts) * ROLLOUT, changes, environment) as training:
        timed(training.driver, 2)
        seconds = timed(training.driver, rollouts)
    return {"steps_per_second": rollouts * ROLLOUT / seconds, "peak_memory_bytes": peak_memory()}


def ours_pendulum(rollouts: int) -> dict[str, Any]:
    """Steps per second of PPO's training loop inside the program."""
    size = PENDULUM["num_envs"] * PENDULUM["num_steps"]
    changes = PENDULUM | PLAIN | {"batch_size": size // 8}
    total = (2 + 2 * rollouts) * size
    with prepared("ppo", 1, total, changes, "gymnax/Pendulum-v1") as training:
        timed(training.driver, rollouts)
        seconds = timed(training.driver, rollouts)
    return {"steps_per_second": rollouts * size / seconds}


def rejax_pendulum(rollouts: int) -> dict[str, Any]:
    """Steps per second of PPO's training loop in rejax."""
    import jax
    from rejax import PPO  # pyright: ignore[reportMissingImports]

    size = PENDULUM["num_envs"] * PENDULUM["num_steps"]
    ppo = PPO.create(env="Pendulum-v1", num_minibatches=8, total_timesteps=size, **PENDULUM)
    state = jax.jit(ppo.init_state)(jax.random.PRNGKey(0))
    loop = jax.jit(
        lambda state: jax.lax.fori_loop(
            0, rollouts, lambda _, state: ppo.train_iteration(state), state
        )
    )
    jax.block_until_ready(loop(state))
    began = time.perf_counter()
    jax.block_until_ready(loop(state))
    return {"steps_per_second": rollouts * size / (time.perf_counter() - began)}


def update_alone(training: Training, updates: int) -> Callable[[], float]:
    """A function that times a number of bare updates of a run, in one compiled loop."""
    import jax

    learner = training.driver.learner

    def loop(state: Any, hyper: Any) -> Any:
        return jax.lax.fori_loop(
            0, updates, lambda _, state: learner.update(state, hyper), state
        ).agent

    compiled = jax.jit(loop)

    def seconds() -> float:
        began = time.perf_counter()
        jax.block_until_ready(compiled(training.driver.learners, training.driver.hyper))
        return time.perf_counter() - began

    seconds()
    return seconds


def bound(agent: str, steps: int, size: str = "") -> dict[str, Any]:
    """Updates per second of the bare update.

    `size` has the widths and the activation of the networks, such as "256-256-256-gelu". The
    default is the agent's.
    """
    *widths, activation = size.split("-")
    changes = {"hidden": tuple(map(int, widths)), "activation": activation} if size else {}
    return bare(agent, steps, changes)


def head(kind: str, steps: int) -> dict[str, Any]:
    """The same of SAC with another head."""
    return bare("sac", steps, {"value_head": kind})


def bare(agent: str, steps: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Updates per second of the bare update of an agent with these settings."""
    with prepared(agent, 1, WARMUP, {"warmup_steps": WARMUP} | changes) as training:
        training.driver.advance(WARMUP)
        return {"steps_per_second": steps / update_alone(training, steps)()}


def share(agent: str, steps: int) -> dict[str, Any]:
    """The share of the bound that the training loop reaches.

    Both alternate in one process; the median of `TURNS`.
    """
    each = steps // TURNS
    agent, changes = VARIANTS.get(agent, (agent, {}))
    changes = changes | {"warmup_steps": WARMUP}
    with prepared(agent, 1, WARMUP + 200 + steps, changes) as training:
        timed(training.driver, WARMUP + 200)
        alone = update_alone(training, each)
        turns = [(alone(), timed(training.driver, each)) for _ in range(TURNS)]
    return {
        "share": statistics.median(alone / loop for alone, loop in turns),
        "steps_per_second": each / statistics.median(alone for alone, _ in turns),
    }


def arithmetic(agent: str, updates: int, width: int) -> dict[str, Any]:
    """How many floating-point operations, in billions, a second of a bare update does, by XLA's
    count, and a second of one product alone: [512, width] by [width, width].
    """
    import jax
    import jax.numpy as jnp

    name, changes = VARIANTS.get(agent, (agent, {}))
    with prepared(name, 1, WARMUP, {"warmup_steps": WARMUP} | changes) as training:
        driver = training.driver
        driver.advance(WARMUP)
        update = jax.jit(lambda state, hyper: driver.learner.update(state, hyper).agent)
        costs: Any = update.lower(driver.learners, driver.hyper).compile().cost_analysis()
        seconds = update_alone(training, updates)() / updates
    rows, kernel = jnp.ones((512, width)), jnp.ones((width, width))
    multiply = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, x: jnp.tanh(x @ kernel), x))
    jax.block_until_ready(multiply(rows))
    began = time.perf_counter()
    jax.block_until_ready(multiply(rows))
    alone = (time.perf_counter() - began) / 50
    return {
        "update": 1e-9 * costs["flops"] / seconds,
        "product": 2e-9 * rows.size * width / alone,
    }


def first_update(agent: str, cache: str) -> dict[str, Any]:
    """Seconds from the start of the process to the end of the first update,
    with the given compile cache.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    with prepared(agent, 1, 300, {"warmup_steps": 256}) as training:
        training.driver.advance(257)
        training.driver.report()
        return {"seconds": process_age()}


def peer_seconds(model: Any, warmup: int, steps: int) -> float:
    """Seconds that the peer takes for `steps` steps after its first `warmup` steps."""
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]

    class Timer(BaseCallback):
        """Records the end of the warm-up."""

        began = 0.0

        def _on_step(self) -> bool:
            if not self.began and self.num_timesteps >= warmup:
                self.began = time.perf_counter()
            return True

    timer = Timer()
    model.learn(warmup + steps, callback=timer)
    return time.perf_counter() - timer.began


def peer(agent: str, steps: int) -> dict[str, Any]:
    """Steps per second of the same training in sbx-rl."""
    import sbx  # pyright: ignore[reportMissingImports]

    environment, settings = ENVIRONMENT, {"buffer_size": 1_000_000, "batch_size": 256}
    if agent == "dqn":
        environment, settings = "CartPole-v1", {"batch_size": CARTPOLE["batch_size"]}
        settings |= {
            "buffer_size": CARTPOLE["replay_size"],
            "target_update_interval": CARTPOLE["target_every"],
        }
        settings |= {"train_freq": 1, "policy_kwargs": {"net_arch": list(CARTPOLE["hidden"])}}
    name, more = PEER_VARIANTS.get(agent, (agent.upper(), {}))
    settings |= {"learning_starts": WARMUP, "seed": 0} | more
    model = getattr(sbx, name)("MlpPolicy", environment, **settings)
    seconds = peer_seconds(model, WARMUP + 200, steps)
    return {"steps_per_second": steps / seconds, "peak_memory_bytes": peak_memory()}


def peer_ppo(rollouts: int) -> dict[str, Any]:
    """The same PPO in sbx-rl."""
    import sbx  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]

    environments = make_vec_env(ENVIRONMENT, n_envs=8)
    model = sbx.PPO("MlpPolicy", environments, n_steps=256, batch_size=64, n_epochs=10, seed=0)
    seconds = peer_seconds(model, 2 * ROLLOUT, rollouts * ROLLOUT)
    return {"steps_per_second": rollouts * ROLLOUT / seconds, "peak_memory_bytes": peak_memory()}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": ours,
    "ours_ppo": ours_ppo,
    "ours_pendulum": ours_pendulum,
    "rejax_pendulum": rejax_pendulum,
    "bound": bound,
    "head": head,
    "share": share,
    "arithmetic": arithmetic,
    "first_update": first_update,
    "peer": peer,
    "peer_ppo": peer_ppo,
}


def seconds_of(command: list[str]) -> float:
    """Wall-clock seconds of a command."""
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", help="Python of an environment that has sbx-rl; without it only ours is measured"
    )
    parser.add_argument("--rejax", help="Python of an environment that has rejax and gymnax < 1")
    parser.add_argument("--agents", nargs="+", default=AGENTS, choices=AGENTS)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--rollouts", type=int, default=12)
    options = options_of(parser, WORKERS)

    measure = functools.partial(measuring.measure, script=__file__)
    samples: dict[str, list[float]] = {}

    note = functools.partial(add_sample, samples)

    def note_loop(name: str, result: dict[str, Any]) -> None:
        note(f"{name} steps/s", result["steps_per_second"])
        note(f"{name} peak MB", result["peak_memory_bytes"] / 1e6)

    for _ in range(options.rounds):
        for agent in [agent for agent in options.agents if agent != "ppo"]:
            steps = options.steps * (5 if agent == "dqn" else 1)
            steps = steps // 10 if agent in PEER_VARIANTS else steps
            note_loop(f"{agent} ours", measure(sys.executable, "ours", agent, steps, 1))
            if options.peer:
                note_loop(f"{agent} {PEER}", measure(options.peer, "peer", agent, steps))
            if agent not in ("dqn", *PEER_VARIANTS):
                result = measure(sys.executable, "share", agent, steps)
                note(f"{agent} bound steps/s", result["steps_per_second"])
                note(f"{agent} share of the bound", result["share"])
            if agent == "crossq":
                rates = measure(sys.executable, "arithmetic", agent, steps, max(CROSSQ))
                for part, rate in rates.items():
                    note(f"crossq {part} GFLOP/s", rate)
        if "ppo" in options.agents:
            note_loop(
                "ppo ours", measure(sys.executable, "ours_ppo", ENVIRONMENT, options.rollouts)
            )
            if importlib.util.find_spec("envpool"):
                pool = measure(
                    sys.executable, "ours_ppo", f"envpool/{ENVIRONMENT}", options.rollouts
                )
                note("ppo ours, EnvPool steps/s", pool["steps_per_second"])
            if options.peer:
                note_loop(f"ppo {PEER}", measure(options.peer, "peer_ppo", options.rollouts))
            if importlib.util.find_spec("gymnax"):
                inside = measure(sys.executable, "ours_pendulum", 20 * options.rollouts)
                note("ppo Pendulum ours steps/s", inside["steps_per_second"])
            if options.rejax:
                inside = measure(options.rejax, "rejax_pendulum", 20 * options.rollouts)
                note("ppo Pendulum rejax steps/s", inside["steps_per_second"])
        if "sac" in options.agents:
            note(
                "dsact bound steps/s",
                measure(sys.executable, "bound", "dsact", options.steps)["steps_per_second"],
            )
            equal = measure(sys.executable, "bound", "sac", options.steps, "256-256-256-gelu")[
                "steps_per_second"
            ]
            note("sac of DSAC-T's size, bound steps/s", equal)
            for kind in HEADS:
                rate = measure(sys.executable, "head", kind, options.steps)["steps_per_second"]
                note(f"sac {kind} bound steps/s", rate)
            population = measure(sys.executable, "ours", "sac", options.steps // 3, 4)
            note("sac 4 learners total steps/s", population["steps_per_second"])
    for _ in range(min(options.rounds, 3) if "sac" in options.agents else 0):
        with tempfile.TemporaryDirectory() as cache:
            note(
                "first update, cold, s",
                measure(sys.executable, "first_update", "sac", cache)["seconds"],
            )
            note(
                "first update, cached, s",
                measure(sys.executable, "first_update", "sac", cache)["seconds"],
            )
        note("rljax --help, s", seconds_of([sys.executable, "-m", "rljax", "--help"]))

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {}
    for agent in options.agents:
        for measured in ("steps/s", "peak MB") if options.peer else ():
            ratios[f"{agent} {measured} ours / {PEER}"] = (
                medians[f"{agent} ours {measured}"] / medians[f"{agent} {PEER} {measured}"]
            )
    for name, one, other in (
        ("ppo steps/s ours, EnvPool / sbx-rl", "ppo ours, EnvPool steps/s", f"ppo {PEER} steps/s"),
        (
            "ppo Pendulum steps/s ours / rejax",
            "ppo Pendulum ours steps/s",
            "ppo Pendulum rejax steps/s",
        ),
        (
            "dsact time / sac time, equal sizes",
            "sac of DSAC-T's size, bound steps/s",
            "dsact bound steps/s",
        ),
        ("sac 4 learners / 1", "sac 4 learners total steps/s", "sac ours steps/s"),
        *((f"sac {x} / sac", f"sac {x} bound steps/s", "sac bound steps/s") for x in HEADS),
    ):
        if one in medians and other in medians:
            ratios[name] = medians[one] / medians[other]
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
