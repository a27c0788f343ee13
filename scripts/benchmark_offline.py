"""Speed of learning from a data set, beside CORL's agents in PyTorch in the same run; cost of reading a file.

Measurements alternate (ours, bound, CORL's, ours, ...), each in a process of its own, and medians are reported. CORL is
a clone of github.com/corl-team/CORL; the Python given runs its files as they are and needs torch and numpy only, since
gym, d4rl, wandb and pyrallis are stood in for:

  python scripts/benchmark_offline.py --corl CORL --peer peer/bin/python --output results/benchmark_offline.json
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark_online
from benchmark_online import conclude

OBSERVATION, ACTION, BATCH = 17, 6, 256
TRANSITIONS = 100_000  # that are learnt from
ROWS = 1_000_000  # of the file that is read
FILE = "halfcheetah_medium-v2.hdf5"  # D4RL's rules are for its own names
WARMUP = 20  # updates before the clock starts
THREADS = 2  # of PyTorch
PEER = "CORL"
FILES = {"bc": "any_percent_bc", "td3_bc": "td3_bc", "iql": "iql", "cql": "cql"}  # ours, and CORL's file
SLOWER = {"cql": 20}  # which have fewer updates measured, and by what factor
CHANGES: dict[str, dict[str, Any]] = {"cql": {"bc_steps": 0}}  # cloning would spare the actor the critics


def synthetic(rows: int) -> dict[str, Any]:
    """Transitions of no meaning in D4RL's names; actions lie in [-1, 1], an end comes every 1,000 steps or so."""
    import numpy as np

    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    return {
        "observations": normal(rows, OBSERVATION),
        "actions": np.tanh(normal(rows, ACTION)),
        "rewards": normal(rows),
        "terminals": generator.random(rows) < 1e-3,
        "next_observations": normal(rows, OBSERVATION),
    }


def prepared(agent: str, seeds: int, sampling: bool = True) -> tuple[Any, Any, Any, Any]:
    """An agent's module, its learner, its data (one batch without `sampling`) and its stacked config."""
    import numpy as np

    from rljax import config as configuration
    from rljax.agent import EnvSpec, Transition
    from rljax.learner import Learner

    module: Any = configuration.load_agent(agent)
    given = synthetic(TRANSITIONS if sampling else BATCH)
    data = Transition(
        observation=given["observations"],
        action=given["actions"],
        reward=given["rewards"],
        terminated=given["terminals"],
        truncated=np.zeros_like(given["terminals"]),  # type: ignore[arg-type]
        next_observation=given["next_observations"],
    )
    changes = {"batch_size": BATCH, "normalise_observations": True} | CHANGES.get(agent, {})
    config = configuration.stack(module.Config(**changes), seeds)
    learner = Learner(module, EnvSpec("data", (OBSERVATION,), ACTION), seeds, 1, storage="dataset")
    return module, learner, data, config


def ours(agent: str, updates: int, seeds: int) -> dict[str, Any]:
    """Updates per second of the offline driver, of all learners together: drawing, learning and metrics."""
    from rljax.drivers.offline import OfflineDriver

    _, learner, data, config = prepared(agent, seeds)
    driver = OfflineDriver(learner, data, config)
    driver.start(range(seeds))
    driver.advance(WARMUP)
    driver.report()
    began = time.perf_counter()
    driver.advance(updates)
    driver.report()
    return {"updates_per_second": updates * seeds / (time.perf_counter() - began)}


def bound(agent: str, updates: int) -> dict[str, Any]:
    """Updates per second with nothing around them: the same update on one batch in one compiled loop."""
    import jax

    module, learner, batch, stacked = prepared(agent, 1, sampling=False)
    batch = jax.device_put(batch)
    config = jax.tree.map(lambda x: x[0], stacked)
    key = jax.random.key(0)
    state = jax.jit(lambda key, config: module.init(key, learner.spec, config))(key, config)

    def loop(state: Any, number: int, batch: Any, config: Any) -> Any:
        def update(step: Any, state: Any) -> Any:
            return module.update(state, batch, jax.random.fold_in(key, step), step, config)[0]

        return jax.lax.fori_loop(0, number, update, state)

    compiled = jax.jit(loop)
    state = jax.block_until_ready(compiled(state, WARMUP, batch, config))
    began = time.perf_counter()
    jax.block_until_ready(compiled(state, updates, batch, config))
    return {"updates_per_second": updates / (time.perf_counter() - began)}


def peer(agent: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of CORL's own `train`, with its own settings, on the same data.

    What its files import beside PyTorch is replaced: the environment is a shape, the data set ours, and each call of
    wandb.log, which follows each update, notes the time.
    """
    from unittest import mock

    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(THREADS)
    environment, times = mock.MagicMock(), []
    environment.observation_space.shape, environment.action_space.shape = (OBSERVATION,), (ACTION,)
    environment.action_space.high = np.ones(ACTION)
    gym, d4rl, wandb, pyrallis = (mock.MagicMock() for _ in range(4))
    gym.make.return_value = environment
    gym.wrappers.TransformObservation.side_effect = lambda wrapped, _: wrapped
    d4rl.qlearning_dataset.return_value = synthetic(TRANSITIONS)
    wandb.log.side_effect = lambda *_, **__: times.append(time.perf_counter())
    pyrallis.wrap.return_value = lambda function: function
    sys.modules.update(gym=gym, d4rl=d4rl, wandb=wandb, pyrallis=pyrallis)

    name = FILES[agent]
    spec = importlib.util.spec_from_file_location(name, Path(clone, "algorithms", "offline", f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    changes = {"frac": 1.0} if agent == "bc" else {}  # of trajectories, the best of which it keeps
    config = module.TrainConfig(
        device="cpu", max_timesteps=WARMUP + updates, eval_freq=10**9, buffer_size=TRANSITIONS, **changes
    )
    module.train(config)
    assert len(times) == WARMUP + updates
    return {"updates_per_second": updates / (times[-1] - times[WARMUP - 1])}


def written(path: str, rows: int) -> dict[str, Any]:
    """Write a file in D4RL's layout, compressed as its are: a time limit ends every 1,000th step."""
    import h5py
    import numpy as np

    arrays = synthetic(rows)
    arrays["timeouts"] = np.arange(1, rows + 1) % 1000 == 0
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
    return {"bytes": Path(path).stat().st_size}


def read(path: str) -> dict[str, Any]:
    """Seconds from the file to the device, and peak memory of it over that of a process that is ready to read."""
    import jax
    import jax.numpy as jnp

    from rljax import datasets
    from rljax.run import peak_memory

    jax.block_until_ready(jnp.zeros(1) + 1.0)  # the device is up
    before = peak_memory()
    began = time.perf_counter()
    transitions = jax.block_until_ready(jax.device_put(datasets.load(path).transitions))
    seconds = time.perf_counter() - began
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(transitions))
    return {"seconds": seconds, "data_bytes": size, "peak_bytes": peak_memory() - before}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": ours,
    "bound": bound,
    "peer": peer,
    "written": written,
    "read": read,
}


def main() -> None:
    """Measure everything, print a table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corl", type=Path, help="a clone of CORL; without it only ours is measured")
    parser.add_argument("--peer", help="Python of an environment that has PyTorch")
    parser.add_argument("--agents", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=3_000, help="a twentieth of them for CQL")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the file that is read")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", nargs="+")
    options = parser.parse_args()
    if options.worker:
        name, *arguments = options.worker
        print(json.dumps(WORKERS[name](*(int(x) if x.isdigit() else x for x in arguments))))
        return
    if (options.corl is None) != (options.peer is None):
        parser.error("--corl and --peer go together: the clone, and the Python that runs it.")

    measure = functools.partial(benchmark_online.measure, script=__file__)
    samples: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)
        print(f"{name:<36} {value:>14,.2f}", flush=True)

    for _ in range(options.rounds):
        for agent in options.agents:
            updates = max(options.updates // SLOWER.get(agent, 1), 1)
            for name, python, arguments in (
                ("ours", sys.executable, (agent, updates, 1)),
                ("bound", sys.executable, (agent, updates)),
                ("peer", options.peer, (agent, updates, options.corl)),
            ):
                if python:
                    found = measure(python, name, *arguments)
                    note(f"{agent} {PEER if name == 'peer' else name} updates/s", found["updates_per_second"])
        if "iql" in options.agents:
            population = measure(sys.executable, "ours", "iql", max(options.updates // 3, 1), 4)
            note("iql 4 learners total updates/s", population["updates_per_second"])
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, FILE))
        note("file, MB", measure(sys.executable, "written", path, options.rows)["bytes"] / 1e6)
        for _ in range(min(options.rounds, 3)):
            found = measure(sys.executable, "read", path)
            note("reading, s", found["seconds"])
            note("reading, data MB", found["data_bytes"] / 1e6)
            note("reading, peak MB", found["peak_bytes"] / 1e6)

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {}
    for agent in options.agents:
        for other in ("bound", PEER):
            if f"{agent} {other} updates/s" in medians:
                ratio = medians[f"{agent} ours updates/s"] / medians[f"{agent} {other} updates/s"]
                ratios[f"{agent} ours / {other}"] = ratio
    if "iql" in options.agents:
        ratios["iql 4 learners / 1"] = medians["iql 4 learners total updates/s"] / medians["iql ours updates/s"]
    ratios["reading, peak / data"] = medians["reading, peak MB"] / medians["reading, data MB"]
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
