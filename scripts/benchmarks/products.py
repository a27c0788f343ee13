"""How much of an update's time is products of matrices, and how fast they are.

  taskset -c 0 python scripts/benchmarks/products.py --agents xqc bro \\
      --output FILE

One update at full size on Humanoid's shapes; agents of goals and of chunks on cube-single's,
batches of 256; on-policy agents of the sizes in `scripts/updates/compare_reppo.py` and its like.
Times are those of XLA's profiler on a CPU, operation by operation; a product is an operation that
holds one. Beside its rate is that of one product alone, of the critic's width and as many rows as a
batch.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData

from scripts.benchmarks import offline
from scripts.benchmarks.offline import CHUNKS, GOALS, LENGTH, VARIANTS

if TYPE_CHECKING:
    from rljax.agent import EnvSpec, Transition

FROM_DATA = {name: VARIANTS[name] for name in (*GOALS, *CHUNKS)} | {
    "qc": ("qc", {"chunk_length": LENGTH}),
    "qc-fql": ("fql", {"chunk_length": LENGTH}),
}
ON_POLICY = ("reppo", "reinflow", "dppo")
AGENTS = ("xqc", "bro", "simbav2", "crossq", "flashsac", *ON_POLICY, *FROM_DATA)
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", re.M | re.S)
OPERATION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(?\w+\[[\d,]*\])[^\n]*? ([\w\-]+)\(", re.M)
DOT = re.compile(r"%?([\w.\-]+) = \w+\[([\d,]*)\][^\n]*? dot\(%?([\w.\-]+), [^\n]*")
CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
CONTAINERS = ("while", "conditional", "call")  # what they hold is counted


class Figures(NamedTuple):
    """What was measured of an update."""

    seconds: float
    share_in_products: float
    gflop_per_second_in_products: float
    gflop_per_second_of_one_product: float


def sizes(text: str) -> list[int]:
    """The sizes in "2,3"."""
    return [int(size) for size in text.split(",") if size]


def dots(body: str) -> dict[str, float]:
    """The floating-point operations of each product in the text of a computation."""
    shapes = {
        name: sizes(shape.partition("[")[2].rstrip("]"))
        for name, shape, _ in OPERATION.findall(body)
    }
    found: dict[str, float] = {}
    for dot in DOT.finditer(body):
        name, shape, left = dot.groups()
        contracted = CONTRACTED.search(dot[0])
        depth = [shapes[left][axis] for axis in sizes(contracted[1] if contracted else "")]
        found[name] = 2 * math.prod(sizes(shape)) * math.prod(depth)
    return found


def of_products(program: str) -> tuple[dict[str, float], set[str]]:
    """The floating-point operations of each operation that is a product or holds some, and the
    names of all operations but containers, of a compiled program's text.
    """
    bodies = dict(COMPUTATION.findall(program))
    inside = {computation: dots(body) for computation, body in bodies.items()}
    products: dict[str, float] = {}
    names: set[str] = set()
    for computation, body in bodies.items():
        for line in body.splitlines():
            found = OPERATION.match(line)
            if found is None or found[3] in CONTAINERS:
                continue
            name, called = found[1], re.search(r"calls=%?([\w.\-]+)", line)
            names.add(name)
            if name in inside[computation]:
                products[name] = inside[computation][name]
            elif called and inside.get(called[1]):
                products[name] = sum(inside[called[1]].values())
    return products, names


def profiled(call: Callable[[], Any]) -> Mapping[str, tuple[int, float]]:
    """How often each operation ran in a call, and its seconds in all."""
    found: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (file,) = Path(folder).rglob("*.xplane.pb")
        for plane in ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    name, duration = event.name or "", 1e-9 * (event.duration_ns or 0.0)
                    number, seconds = found.get(name, (0, 0.0))
                    found[name] = (number + 1, seconds + duration)
    return found


def one_product(rows: int, width: int) -> float:
    """GFLOP a second of [rows, width] by [width, width], one after the other."""
    kernel, number = jnp.eye(width), 50
    multiply = jax.jit(lambda x: jax.lax.fori_loop(0, number, lambda _, x: x @ kernel + 1.0, x))
    jax.block_until_ready(multiply(jnp.ones((rows, width))))
    began = time.process_time()
    jax.block_until_ready(multiply(jnp.ones((rows, width))))
    return 2e-9 * rows * width * width * number / (time.process_time() - began)


def rollout(module: Any, spec: EnvSpec, state: Any, config: Any) -> Transition:
    """A rollout [T, E, ...] of normal numbers."""
    from rljax.agent import Transition

    leading = (config.num_steps, config.num_envs)
    observation = jax.random.normal(jax.random.key(1), (*leading, *spec.observation_shape))
    action, extras = module.act(state, observation, jax.random.key(2), config, explore=True)
    ended = jnp.zeros(leading, bool)
    return Transition(observation, action, observation[..., 0], ended, ended, observation, extras)


def on_policy(agent: str, changes: Mapping[str, Any]) -> tuple[EnvSpec, Any]:
    """The spaces and the settings with which the agent is timed beside its authors' code."""
    from rljax.agent import EnvSpec
    from scripts.updates import compare_dppo, compare_reinflow, compare_reppo

    if agent == "reppo":
        full = compare_reppo.FULL
        spec = EnvSpec("test/HalfCheetah", (full.observation,), full.action)
        return spec, compare_reppo.config_of(changes, full)
    script: Any = {"reinflow": compare_reinflow, "dppo": compare_dppo}[agent]
    return script.SPEC, script.config_of({**script.FULL, **changes})


def measured(agent: str, updates: int = 5, **changes: Any) -> Figures:
    """The figures of one agent's update."""
    from scripts.updates import shared

    name = FROM_DATA[agent][0] if agent in FROM_DATA else agent
    module: Any = importlib.import_module(f"rljax.agents.{name}")
    spec, key = shared.HUMANOID, jax.random.key(0)
    if agent in FROM_DATA:
        variant = FROM_DATA[agent]
        _, learner, batch, stacked = offline.prepared(variant, 1, sampling=False, **changes)
        spec, config = learner.spec, jax.tree.map(lambda x: x[0], stacked)
    elif agent in ON_POLICY:
        spec, config = on_policy(agent, changes)
    else:
        config = module.Config(**changes)
        batch = shared.random_batch(config.batch_size)
    state = jax.jit(module.init, static_argnums=1)(key, spec, config)
    if agent in ON_POLICY:
        batch = rollout(module, spec, state, config)
    compiled = jax.jit(module.update).lower(state, batch, key, jnp.asarray(0), config).compile()
    products, names = of_products(compiled.as_text() or "")

    def call() -> Any:
        return [compiled(state, batch, key, jnp.asarray(i), config) for i in range(updates)]

    jax.block_until_ready(call())
    times = {name: x for name, x in profiled(call).items() if name in names}
    whole = sum(seconds for _, seconds in times.values())
    inside = sum(times[name][1] for name in products if name in times)
    counted = sum(times[name][0] * flop for name, flop in products.items() if name in times)
    widths = getattr(config, "critic_widths", None) or getattr(config, "critic_hidden", None)
    width = max(widths or config.hidden)
    alone = one_product(int(config.batch_size), width)
    return Figures(whole / updates, inside / whole, 1e-9 * counted / inside, alone)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    figures = {}
    for agent in options.agents:
        figures[agent] = measured(agent)._asdict()
        print(agent, {name: round(x, 3) for name, x in figures[agent].items()}, flush=True)
    if options.output:
        from scripts.updates import shared

        shared.write(options.output, {"agents": figures})


if __name__ == "__main__":
    main()
