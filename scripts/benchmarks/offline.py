"""Speed of learning from a data set, compared with other implementations;
cost of acting and of reading a file.

Measurements alternate (ours, bound, theirs, ours, ...), each in a separate process. Medians are
reported. The other implementations are unchanged clones. github.com/corl-team/CORL and the authors'
Diffusion-QL (github.com/Zhendong-Wang/Diffusion-Policies-for-Offline-RL) need a Python with torch
and numpy; their other imports are replaced. The authors' FQL (github.com/seohongpark/fql), their
agents of goals (github.com/seohongpark/ogbench) and QAM's authors' agents that play chunks
(github.com/ColinQiyangLi/qam) need a Python with our requirements and ml_collections, the last also
tensorflow_probability.
github.com/nissymori/JAX-CORL needs one with distrax, pydantic, omegaconf and tqdm, of versions of
its time (jax 0.4.35, flax 0.9, distrax 0.1.5):

  python scripts/benchmarks/offline.py --corl CORL --dql DQL --peer peer/bin/python --fql FQL \
      --ogbench OGBENCH --qam QAM --jax-peer flax/bin/python \
      --output results/speed/measurements/offline.json
  python scripts/benchmarks/offline.py --agents td3_bc iql --jax-corl JAX-CORL \
      --jax-peer older/bin/python --rows 0 --updates 1200 \
      --output results/speed/measurements/jax_corl.json
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benchmarks import measuring
from scripts.benchmarks.measuring import add_sample, conclude, loaded, options_of, use_code

BATCH = 256
# Our agent of goals: the authors' class and data set.
GOALS = {
    "gcbc": ("GCBCAgent", "GCDataset"),
    "gcivl": ("GCIVLAgent", "GCDataset"),
    "gciql": ("GCIQLAgent", "GCDataset"),
    "hiql": ("HIQLAgent", "HGCDataset"),
    "crl": ("CRLAgent", "GCDataset"),
    "qrl": ("QRLAgent", "GCDataset"),
}
LENGTH = 5  # actions of a chunk


class Pair(NamedTuple):
    """An agent of QAM's authors that is ours, too: its module and class, and the settings of both
    where they are not the defaults.
    """

    module: str
    name: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]


# Our agents that play chunks.
CHUNKS = {
    "qam": Pair("qam", "QAMAgent", {}, {}),
    "qsm": Pair(
        "dcgql",
        "DCGQLAgent",
        {},
        {"inv_temp": 10.0, "alpha": 10.0, "clip_sampler_after": True},
    ),
    "expo": Pair(
        "fedit",
        "FEditAgent",
        {
            "edit_source": "flow",
            "keep_unedited": False,
            "num_candidates": 1,
            "min_critics": None,
            "pessimism": 0.5,
        },
        {"edit_scale": 0.05},
    ),
    "dsrl": Pair("dsrl", "DSRLAgent", {}, {}),
}
# Sizes of observations and actions, as in cube-single.
SIZES = dict.fromkeys(("fql", "qc", *GOALS, *CHUNKS), (28, 5))
SIZE = (17, 6)  # sizes for all other agents, as in HalfCheetah
TRANSITIONS = 100_000  # in the data set for learning
ROWS = 1_000_000  # of the file that is read
FILE = "halfcheetah_medium-v2.hdf5"  # D4RL's rules apply to its own file names
WARMUP = 20  # updates before the clock starts
THREADS = 2  # of PyTorch
# Our agent: CORL's file.
FILES = {"bc": "any_percent_bc", "td3_bc": "td3_bc", "iql": "iql", "cql": "cql"}
# Our agent: JAX-CORL's file and class.
JAX_FILES = {"td3_bc": ("td3bc", "TD3BC"), "iql": ("iql", "IQL")}
# Measurements: name, agent and settings. With behaviour cloning, CQL's actor would not use the
# critics.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {"normalise_observations": True}),
    "td3_bc": ("td3_bc", {"normalise_observations": True}),
    "iql": ("iql", {"normalise_observations": True}),
    "cql": ("cql", {"normalise_observations": True, "bc_steps": 0}),
    "dql": ("dql", {}),
    "dql max-Q": ("dql", {"max_q_backup": 10}),
    "dql one-step": ("dql", {"improvement": "one_step"}),
    "ofql": ("ofql", {}),
    "fql": ("fql", {}),
    **{agent: (agent, {}) for agent in GOALS},
    **{agent: (agent, {"chunk_length": LENGTH, **CHUNKS[agent].ours}) for agent in CHUNKS},
}
PRECISE = ("dql", "ofql", "fql")  # agents with a precision setting
SLOWER = {
    "cql": 20,
    "fql": 20,
    **dict.fromkeys(GOALS, 20),
    **dict.fromkeys(CHUNKS, 40),
    "gcbc": 5,
    "dql": 5,
    "dql max-Q": 10,
    "dql one-step": 5,
    "ofql": 5,
}  # factor by which the number of updates is smaller
ACTING: dict[str, tuple[str, dict[str, Any]]] = {
    "td3_bc": ("td3_bc", {}),
    **{f"dql {steps} steps": ("dql", {"denoising_steps": steps}) for steps in (5, 10, 20, 50)},
    "dql 5 steps, 1 candidate": ("dql", {"num_candidates": 1}),
    "ofql": ("ofql", {}),
    "ofql, 1 candidate": ("ofql", {"num_candidates": 1}),
    "fql": ("fql", {}),
    "fql 256": ("fql", {"hidden": (256, 256, 256)}),
}


def synthetic(rows: int, size: tuple[int, int] = SIZE) -> dict[str, Any]:
    """Random transitions under D4RL's names.

    Actions lie in [-1, 1], and about every 1,000th step is an end.
    """
    import numpy as np

    generator, (observation, action) = np.random.default_rng(0), size

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    return {
        "observations": normal(rows, observation),
        "actions": np.tanh(normal(rows, action)),
        "rewards": normal(rows),
        "terminals": generator.random(rows) < 1e-3,
        "next_observations": normal(rows, observation),
    }


def prepared(
    variant: str | tuple[str, Mapping[str, Any]], seeds: int, sampling: bool = True, **more: Any
) -> tuple[Any, Any, Any, Any]:
    """An agent's module, its learner, its data (one batch without `sampling`) and its stacked
    config, of a variant here, or of another agent and its settings.
    """
    import jax
    import numpy as np

    from rljax.agent import EnvSpec, Transition
    from rljax.learning import configuration, registry
    from rljax.learning.learner import Learner

    agent, changes = (VARIANTS | ACTING)[variant] if isinstance(variant, str) else variant
    module: Any = registry.load_agent(agent)
    size = SIZES.get(agent, SIZE)
    arrays = synthetic(TRANSITIONS if sampling else BATCH, size)
    data = Transition(
        observation=arrays["observations"],
        action=arrays["actions"],
        reward=arrays["rewards"],
        terminated=arrays["terminals"],
        truncated=np.zeros_like(arrays["terminals"]),  # type: ignore[arg-type]
        next_observation=arrays["next_observations"],
    )
    config = module.Config(batch_size=BATCH, **{**changes, **more})
    if hasattr(module, "schedule"):
        config = module.schedule(config, 1_000_000)
    config = configuration.stack(config, seeds)
    experience = module.experience(config)
    spec = experience.observed_spec(EnvSpec("data", (size[0],), size[1]), "data")
    data = experience.prepare(data)
    if not sampling:
        keys = jax.random.split(jax.random.key(0), seeds)
        data = jax.tree.map(lambda x: x[0, 0], experience.sample(None, data, keys))
    return module, Learner(module, spec, seeds), data, config


def ours(variant: str, updates: int, seeds: int, precision: str = "") -> dict[str, Any]:
    """Updates per second of the offline driver, of all learners together:
    drawing, learning and metrics.
    """
    from rljax.learning.drivers.offline import OfflineDriver

    more: dict[str, Any] = {"precision": precision} if precision else {}
    _, learner, data, config = prepared(variant, seeds, **more)
    driver = OfflineDriver(learner, data, config)
    driver.start(range(seeds))
    began = time.perf_counter()
    driver.advance(WARMUP)
    driver.report()
    compiling = time.perf_counter() - began
    began = time.perf_counter()
    driver.advance(updates)
    driver.report()
    rate = updates * seeds / (time.perf_counter() - began)
    return {"updates_per_second": rate, "compile_seconds": compiling - WARMUP * seeds / rate}


def acting(variant: str, calls: int) -> dict[str, Any]:
    """Median time of an action for one observation, with the transfers from the host and back."""
    import jax
    import numpy as np

    module, learner, data, stacked = prepared(variant, 1, sampling=False)
    config = jax.tree.map(lambda x: x[0], stacked)
    state = jax.jit(lambda key, config: module.init(key, learner.spec, config))(
        jax.random.key(0), config
    )
    act = jax.jit(lambda *inputs: module.act(*inputs, explore=False)[0])
    times = []
    for call in range(calls + WARMUP):
        key = jax.random.key(call)
        began = time.perf_counter()
        np.asarray(act(state, data.observation[call % BATCH], key, config))
        times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times[WARMUP:])}


def bound(agent: str, updates: int) -> dict[str, Any]:
    """Updates per second of the bare update: the same update on one batch in one compiled loop."""
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


def corl(agent: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of CORL's own `train`, with its own settings, on the same data.

    The files' imports other than PyTorch are replaced: the environment has shapes only, the data
    set is ours, and wandb.log, which CORL calls after each update, records the time.
    """
    from unittest import mock

    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(THREADS)
    environment, times = mock.MagicMock(), []
    environment.observation_space.shape, environment.action_space.shape = SIZE[:1], SIZE[1:]
    environment.action_space.high = np.ones(SIZE[1])
    gym, d4rl, wandb, pyrallis = (mock.MagicMock() for _ in range(4))
    gym.make.return_value = environment
    gym.wrappers.TransformObservation.side_effect = lambda wrapped, _: wrapped
    d4rl.qlearning_dataset.return_value = synthetic(TRANSITIONS)
    wandb.log.side_effect = lambda *_, **__: times.append(time.perf_counter())
    pyrallis.wrap.return_value = lambda function: function
    sys.modules.update(gym=gym, d4rl=d4rl, wandb=wandb, pyrallis=pyrallis)

    name = FILES[agent]
    module = loaded(name, Path(clone, "algorithms", "offline", f"{name}.py"))
    # The share of the best trajectories that it keeps.
    changes = {"frac": 1.0} if agent == "bc" else {}
    config = module.TrainConfig(
        device="cpu",
        max_timesteps=WARMUP + updates,
        eval_freq=10**9,
        buffer_size=TRANSITIONS,
        **changes,
    )
    module.train(config)
    assert len(times) == WARMUP + updates
    return {"updates_per_second": updates / (times[-1] - times[WARMUP - 1])}


def jax_corl(agent: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of JAX-CORL's compiled eight updates in its loop, with its own settings,
    on the same data.
    """
    from unittest import mock

    import jax

    gym, d4rl, wandb = (mock.MagicMock() for _ in range(3))
    d4rl.qlearning_dataset.return_value = synthetic(TRANSITIONS)
    sys.modules.update(gym=gym, d4rl=d4rl, wandb=wandb)
    del sys.argv[1:]  # which its files read
    name, algorithm = JAX_FILES[agent]
    module = loaded(name, Path(clone, "algos", f"{name}.py"))
    data, config = module.get_dataset(None, module.config)[0], module.config
    key, first = jax.random.PRNGKey(0), jax.tree_util.tree_map(lambda x: x[0], data)
    state = getattr(module, f"create_{name}_train_state")(
        key, first.observations, first.actions, config
    )
    update = jax.jit(getattr(module, algorithm)().update_n_times, static_argnums=3)
    calls = -(-updates // config.n_jitted_updates)
    for call in range(WARMUP + calls):
        if call == WARMUP:
            jax.block_until_ready(state)
            began = time.perf_counter()
        key, subkey = jax.random.split(key)
        state, _ = update(state, data, subkey, config)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - began  # pyright: ignore[reportPossiblyUnboundVariable]
    return {"updates_per_second": calls * config.n_jitted_updates / seconds}


def diffusion_ql(variant: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of the authors' `Diffusion_QL.train`,
    with their settings for halfcheetah-medium.
    """
    from unittest import mock

    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(THREADS)
    use_code(clone)
    sys.modules["utils.logger"] = mock.MagicMock()
    agents: Any = importlib.import_module("agents.ql_diffusion")
    arrays = synthetic(TRANSITIONS)
    names = ("observations", "actions", "next_observations")
    columns = [torch.from_numpy(arrays[name]) for name in names]
    columns += [
        torch.from_numpy(arrays["rewards"])[:, None],
        1.0 - torch.from_numpy(arrays["terminals"])[:, None].float(),
    ]
    buffer = mock.MagicMock()

    def sample(size: int) -> list[Any]:
        rows = torch.randint(0, TRANSITIONS, (size,))
        return [column[rows] for column in columns]

    buffer.sample.side_effect = sample
    learner = agents.Diffusion_QL(
        *SIZE,
        1.0,
        "cpu",
        0.99,
        0.005,
        "max-Q" in variant,
        beta_schedule="vp",
        n_timesteps=5,
        grad_norm=9.0,
    )
    learner.train(buffer, WARMUP, BATCH)
    began = time.perf_counter()
    learner.train(buffer, updates, BATCH)
    return {"updates_per_second": updates / (time.perf_counter() - began)}


def flow_ql(variant: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of the authors' FQLAgent, on batches that NumPy draws like their data
    sets.
    """
    import numpy as np

    use_code(clone)
    agents: Any = importlib.import_module("agents.fql")
    arrays = synthetic(TRANSITIONS, SIZES[variant])
    arrays["masks"] = 1.0 - arrays.pop("terminals")
    generator = np.random.default_rng(0)

    def sample(size: int) -> dict[str, Any]:
        rows = generator.integers(TRANSITIONS, size=size)
        return {name: array[rows] for name, array in arrays.items()}

    return learnt(agents.FQLAgent, agents.get_config(), sample(1), sample, updates)


def of_goals(variant: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of the authors' agents of goals, on batches from their own data sets."""
    import numpy as np

    use_code(Path(clone, "impls"))
    agents: Any = importlib.import_module(f"agents.{variant}")
    sets: Any = importlib.import_module("utils.datasets")
    arrays = synthetic(TRANSITIONS, SIZES[variant])
    del arrays["rewards"]
    arrays["terminals"][-1] = True
    arrays["terminals"] = arrays["terminals"].astype(np.float32)
    config = agents.get_config()
    name, kind = GOALS[variant]
    drawn = getattr(sets, kind)(sets.Dataset.create(**arrays), config)
    return learnt(getattr(agents, name), config, drawn.sample(1), drawn.sample, updates)


def of_chunks(variant: str, updates: int, clone: str) -> dict[str, Any]:
    """Updates per second of QAM's authors' agents, on chunks from their own data set."""
    import numpy as np

    use_code(clone)
    pair = CHUNKS[variant]
    agents: Any = importlib.import_module(f"agents.{pair.module}")
    sets: Any = importlib.import_module("utils.datasets")
    arrays = synthetic(TRANSITIONS, SIZES[variant])
    ends = arrays["terminals"].astype(np.float32)
    arrays |= {"terminals": ends, "masks": 1.0 - ends}
    config = agents.get_config()
    config.update(pair.theirs, action_chunking=True, horizon_length=LENGTH)
    data = sets.Dataset.create(**arrays)

    def sample(size: int) -> dict[str, Any]:
        return data.sample_sequence(size, LENGTH, config.discount)

    return learnt(getattr(agents, pair.name), config, data.sample(()), sample, updates)


def learnt(
    agent: Any,
    config: Any,
    first: Mapping[str, Any],
    sample: Callable[[int], dict[str, Any]],
    updates: int,
) -> dict[str, Any]:
    """Updates per second of one of the authors' agents in JAX, with batches from a Python loop.

    The `first` rows have the shapes that the agent is made for.
    """
    import jax

    learner = agent.create(0, first["observations"], first["actions"], config)
    for step in range(WARMUP + updates):
        if step == WARMUP:
            jax.block_until_ready(learner.network)
            began = time.perf_counter()
        learner, _ = learner.update(sample(BATCH))
    jax.block_until_ready(learner.network)
    return {"updates_per_second": updates / (time.perf_counter() - began)}  # pyright: ignore[reportPossiblyUnboundVariable]


def written(path: str, rows: int) -> dict[str, Any]:
    """Write a file in D4RL's layout, with D4RL's compression.

    A time limit ends an episode every 1,000 steps.
    """
    import h5py
    import numpy as np

    arrays = synthetic(rows)
    arrays["timeouts"] = np.arange(1, rows + 1) % 1000 == 0
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
    return {"bytes": Path(path).stat().st_size}


def read(path: str) -> dict[str, Any]:
    """Seconds from the file to the device, and the peak memory beyond that of a process that is
    ready to read.
    """
    import jax
    import jax.numpy as jnp

    from rljax import datasets
    from rljax.system.hardware import peak_memory

    jax.block_until_ready(jnp.zeros(1) + 1.0)  # initialises the device
    before = peak_memory()
    began = time.perf_counter()
    transitions = jax.block_until_ready(jax.device_put(datasets.load(path).transitions))
    seconds = time.perf_counter() - began
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(transitions))
    return {"seconds": seconds, "data_bytes": size, "peak_bytes": peak_memory() - before}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": ours,
    "bound": bound,
    "acting": acting,
    "corl": corl,
    "jax_corl": jax_corl,
    "diffusion_ql": diffusion_ql,
    "flow_ql": flow_ql,
    "of_goals": of_goals,
    "of_chunks": of_chunks,
    "written": written,
    "read": read,
}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corl", type=Path, help="a clone of CORL; what has no clone is measured alone"
    )
    parser.add_argument("--jax-corl", type=Path, help="a clone of JAX-CORL")
    parser.add_argument("--dql", type=Path, help="a clone of the authors' Diffusion-QL")
    parser.add_argument("--peer", help="Python of an environment that has PyTorch, for both")
    parser.add_argument("--fql", type=Path, help="a clone of the authors' FQL")
    parser.add_argument(
        "--ogbench", type=Path, help="a clone of OGBench, which holds the agents of goals"
    )
    parser.add_argument(
        "--qam", type=Path, help="a clone of QAM's authors', which holds agents that play chunks"
    )
    parser.add_argument(
        "--jax-peer", help="Python of an environment that has JAX, Flax, distrax and ml_collections"
    )
    parser.add_argument("--agents", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument(
        "--updates", type=int, default=3_000, help="of the quickest; a twentieth of them for CQL"
    )
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="of the file that is read; 0: none is"
    )
    options = options_of(parser, WORKERS)
    if (options.corl is None and options.dql is None) != (options.peer is None) or (
        any((options.fql, options.ogbench, options.qam, options.jax_corl))
        != (options.jax_peer is not None)
    ):
        parser.error(
            "a clone and the Python that runs it go together: --corl or --dql and --peer, --fql, "
            "--ogbench, --qam or --jax-corl and --jax-peer."
        )
    theirs = {
        "corl": (options.corl, options.peer, dict.fromkeys(FILES, "CORL")),
        "jax_corl": (options.jax_corl, options.jax_peer, dict.fromkeys(JAX_FILES, "JAX-CORL")),
        "diffusion_ql": (
            options.dql,
            options.peer,
            dict.fromkeys(("dql", "dql max-Q"), "authors'"),
        ),
        "flow_ql": (options.fql, options.jax_peer, {"fql": "authors'"}),
        "of_goals": (options.ogbench, options.jax_peer, dict.fromkeys(GOALS, "authors'")),
        "of_chunks": (options.qam, options.jax_peer, dict.fromkeys(CHUNKS, "authors'")),
    }

    measure = functools.partial(measuring.measure, script=__file__)
    samples: dict[str, list[float]] = {}

    note = functools.partial(add_sample, samples)
    for _ in range(options.rounds):
        for variant in options.agents:
            updates = max(options.updates // SLOWER.get(variant, 1), 1)
            figures = measure(sys.executable, "ours", variant, updates, 1)
            note(f"{variant} ours updates/s", figures["updates_per_second"])
            note(f"{variant} compiling, s", figures["compile_seconds"])
            figures = measure(sys.executable, "bound", variant, updates)
            note(f"{variant} bound updates/s", figures["updates_per_second"])
            for worker, (clone, python, peers) in theirs.items():
                if clone is not None and variant in peers:
                    figures = measure(python, worker, variant, updates, clone)
                    note(f"{variant} {peers[variant]} updates/s", figures["updates_per_second"])
            if variant in PRECISE:
                figures = measure(sys.executable, "ours", variant, updates, 1, "bfloat16")
                note(f"{variant} bfloat16 updates/s", figures["updates_per_second"])
        if "iql" in options.agents:
            population = measure(sys.executable, "ours", "iql", max(options.updates // 3, 1), 4)
            note("iql 4 learners total updates/s", population["updates_per_second"])
        for name in ACTING:
            if ACTING[name][0] in options.agents:
                note(
                    f"acting, {name}, ms",
                    1e3 * measure(sys.executable, "acting", name, 300)["seconds"],
                )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, FILE))
        if options.rows:
            note("file, MB", measure(sys.executable, "written", path, options.rows)["bytes"] / 1e6)
        for _ in range(min(options.rounds, 3) if options.rows else 0):
            figures = measure(sys.executable, "read", path)
            note("reading, s", figures["seconds"])
            note("reading, data MB", figures["data_bytes"] / 1e6)
            note("reading, peak MB", figures["peak_bytes"] / 1e6)

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {}
    for variant in options.agents:
        for other in ("bound", "CORL", "JAX-CORL", "authors'", "bfloat16"):
            if f"{variant} {other} updates/s" in medians:
                ratio = (
                    medians[f"{variant} ours updates/s"] / medians[f"{variant} {other} updates/s"]
                )
                ratios[f"{variant} ours / {other}"] = ratio
    for name, one, other in (
        ("iql 4 learners / 1", "iql 4 learners total", "iql ours"),
        ("ofql / dql", "ofql ours", "dql ours"),
        ("dql one-step / dql", "dql one-step ours", "dql ours"),
    ):
        if {f"{one} updates/s", f"{other} updates/s"} <= medians.keys():
            ratios[name] = medians[f"{one} updates/s"] / medians[f"{other} updates/s"]
    if options.rows:
        ratios["reading, peak / data"] = medians["reading, peak MB"] / medians["reading, data MB"]
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
