"""Peers beside which accelerator.py measures: what is compared, and where they are."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benchmarks import measuring


class Pair(NamedTuple):
    """Two measurements of the same work. The folder of the peer's code is CODE."""

    script: str  # in scripts/
    ours: tuple[Any, ...]  # its worker and arguments
    peer: str  # the folder of its code, or a package
    theirs: tuple[Any, ...]
    figure: str = "steps_per_second"


CODE = "CODE"
BRAX_SAC = ("brax/hopper", 200)
# By value: what users ask first.
PAIRS = {
    "pqn gymnax/Breakout-MinAtar beside purejaxql": Pair(
        "benchmarks/pqn.py",
        ("ours", "Breakout-MinAtar", 50),
        "purejaxql",
        ("peer", "Breakout-MinAtar", 50, CODE),
    ),
    "ppo gymnax/Pendulum-v1 x 64 beside rejax": Pair(
        "benchmarks/functions.py", ("function", 64, 24), "rejax", ("rejax", 64, 24)
    ),
    "iql updates beside JAX-CORL": Pair(
        "benchmarks/offline.py",
        ("ours", "iql", 20_000, 1),
        "JAX-CORL",
        ("jax_corl", "iql", 20_000, CODE),
        "updates_per_second",
    ),
    "fql updates beside its authors": Pair(
        "benchmarks/offline.py",
        ("ours", "fql", 3_000, 1),
        "fql",
        ("flow_ql", "fql", 3_000, CODE),
        "updates_per_second",
    ),
    "sac brax/hopper beside Brax": Pair(
        "benchmarks/peers.py",
        ("our_sac", *BRAX_SAC),
        "brax",
        ("brax_sac", *BRAX_SAC),
    ),
}
# Of scripts/updates, which take turns themselves.
UPDATES_BESIDE = ("xqc", "reppo")


def our_sac(environment: str, iterations: int) -> dict[str, Any]:
    """Environment steps per second of SAC inside the program, with its preset."""
    from scripts.benchmarks import accelerator

    return accelerator.loop("sac", environment, 1, iterations)


def brax_sac(environment: str, iterations: int, **changes: Any) -> dict[str, Any]:
    """Environment steps per second of Brax's own SAC with the settings of our preset, and
    `changes` of them.
    """
    from brax import envs
    from brax.training.agents.sac import train as sac

    from rljax.learning import registry

    with_old_names()
    config = vars(registry.preset("sac", registry.load_agent("sac"), environment)) | changes
    figures: list[Mapping[str, Any]] = []
    parts = 4  # of which the first compiles
    sac.train(
        environment=envs.get_environment(environment.removeprefix("brax/")),
        num_timesteps=config["warmup_steps"] + parts * iterations * config["num_envs"],
        episode_length=1000,
        num_envs=config["num_envs"],
        learning_rate=config["actor_lr"],
        discounting=config["discount"],
        batch_size=config["batch_size"],
        num_evals=parts + 1,
        num_eval_envs=1,
        normalize_observations=True,
        reward_scaling=config["reward_scale"],
        min_replay_size=config["warmup_steps"],
        max_replay_size=config["replay_size"],
        grad_updates_per_step=config["num_updates"],
        progress_fn=lambda _, metrics: figures.append(metrics),
    )
    rates = [float(each["training/sps"]) for each in figures if "training/sps" in each]
    return {"steps_per_second": statistics.median(rates[1:])}


def with_old_names() -> None:
    """Give JAX the function that Brax's trainers expect."""
    import jax

    if not hasattr(jax, "device_put_replicated"):
        copy = jax.pmap(lambda _, value: value, in_axes=(0, None))
        jax.device_put_replicated = lambda value, devices: copy(
            jax.numpy.arange(len(devices)), value
        )


class Peers(NamedTuple):
    """Where peers are."""

    folder: Path
    pythons: dict[str, str]

    def use_packages(self) -> None:
        """Import from the folder `packages` too, here and in processes that are begun."""
        packages = self.folder.absolute() / "packages"
        if packages.is_dir():
            sys.path.append(str(packages))
            paths = filter(None, (os.environ.get("PYTHONPATH"), str(packages)))
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)

    def code(self, name: str) -> Path | None:
        """A clone of this name."""
        path = self.folder / name
        return path if path.is_dir() else None

    def python(self, name: str) -> str:
        """The Python that runs a peer."""
        return self.pythons.get(name, sys.executable)

    def has(self, name: str) -> bool:
        """Whether a peer is there: its code, its Python or its package."""
        here = importlib.util.find_spec(name) if name.isidentifier() else None
        return self.code(name) is not None or name in self.pythons or here is not None


def beside(pair: Pair, peers: Peers, rounds: int) -> dict[str, Any]:
    """Medians of ours and of a peer's in turns, and how many times as fast ours is."""
    script, code = str(measuring.ROOT / "scripts" / pair.script), str(peers.code(pair.peer))
    worker, *theirs = (code if word == CODE else word for word in pair.theirs)
    sides = {
        "ours": (sys.executable, *pair.ours),
        "theirs": (peers.python(pair.peer), worker, *theirs),
    }
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, words in sides.items():
            samples[name].append(measuring.measure(*words, script=script)[pair.figure])
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratio = medians["ours"] / medians["theirs"]
    return {"unit": pair.figure, **medians, "ratio": ratio, "samples": samples}


def beside_authors(agent: str, peers: Peers) -> dict[str, Any]:
    """Seconds of updates, ours and the authors', by a script of scripts/updates."""
    script = measuring.ROOT / "scripts" / "updates" / f"compare_{agent}.py"
    words = [str(script), "--peer", str(peers.code(agent)), "--times"]
    return measuring.result_of([peers.python(agent), *words])


def plan(peers: Peers, rounds: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Measurements beside the peers that are there, by name."""
    peers.use_packages()
    planned: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, pair in PAIRS.items():
        if peers.has(pair.peer):
            planned[name] = functools.partial(beside, pair, peers, rounds)
    for agent in UPDATES_BESIDE:
        if peers.code(agent) is not None:
            planned[f"{agent} update beside its authors"] = functools.partial(
                beside_authors, agent, peers
            )
    return planned


WORKERS = {"our_sac": our_sac, "brax_sac": brax_sac}


def main() -> None:
    """Print what would be measured beside the peers that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of their code")
    options = measuring.options_of(parser, WORKERS, rounds=3)
    print("\n".join(plan(Peers(options.peers, {}), options.rounds)))


if __name__ == "__main__":
    main()
