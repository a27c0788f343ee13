"""Updates per second of H2O, beside those of its authors' code (PyTorch) and of our SAC.

  git clone https://github.com/t6-thu/H2O peer/H2O
  peer/bin/pip install torch numpy ml_collections
  taskset -c 0 python scripts/benchmarks/authors/h2o.py --peer peer/bin/python --code peer/H2O \\
      --output results/speed/measurements/h2o.json

Sizes of HalfCheetah: observations of 17 numbers, actions of 6; random rows. Batches are 256 rows,
half of them real, and networks are 2 x 256. The authors' `train` draws batches of its own for the
discriminators, 256 rows of each source; ours uses the critics' rows. Nobody steps an environment.
Measurements alternate, each in a separate process, after compilation. Medians are reported.
`taskset` limits all to one core.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.measuring import compare_with_authors, options_of, use_code

OBSERVATIONS, ACTIONS, BATCH, ROWS = 17, 6, 256, 10_000


def rows(number: int) -> dict[str, np.ndarray]:
    """Random transitions [number, ...]."""
    generator = np.random.default_rng(0)
    return {
        "observation": generator.normal(size=(number, OBSERVATIONS)).astype(np.float32),
        "action": generator.uniform(-1, 1, (number, ACTIONS)).astype(np.float32),
        "reward": generator.normal(size=number).astype(np.float32),
        "next_observation": generator.normal(size=(number, OBSERVATIONS)).astype(np.float32),
    }


def ours(
    updates: int, agent: str, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Updates per second of our agent, all in one program, by a clock."""
    import jax
    import jax.numpy as jnp

    from rljax.agent import EnvSpec, Transition
    from rljax.learning import registry

    module, spec = registry.load_agent(agent), EnvSpec("HalfCheetah-v5", (OBSERVATIONS,), ACTIONS)
    config, zeros = module.Config(), jnp.zeros(ROWS, bool)
    drawn = {name: jnp.asarray(x) for name, x in rows(ROWS).items()}
    data = Transition(**drawn, terminated=zeros, truncated=zeros, extras={})
    extras = {"offline": jnp.arange(BATCH) < BATCH // 2} if agent in ("h2o", "famo2o") else {}

    def one(state: Any, key: Any) -> tuple[Any, Any]:
        key, key_rows = jax.random.split(key)
        places = jax.random.randint(key_rows, (BATCH,), 0, ROWS)
        batch = jax.tree.map(lambda x: x[places], data).replace(extras=extras)
        return module.update(state, batch, key, jnp.zeros((), jnp.int32), config)

    state = module.init(jax.random.key(0), spec, config)
    keys = jax.random.split(jax.random.key(1), updates)
    program = (
        jax.jit(lambda state, keys: jax.lax.scan(one, state, keys)).lower(state, keys).compile()
    )
    began = clock()
    jax.block_until_ready(program(state, keys))
    return {"updates_per_second": updates / (clock() - began)}


def peer(updates: int, code: str) -> dict[str, Any]:
    """Updates per second of the authors' `Sim2realSAC.train`."""
    use_code(Path(code, "SimpleSAC"), code)
    for name in (
        "imp",
        "pandas",
        "certifi",
        "utils_h2o",
        "turtle",
        "distutils.command.config",
        "distutils.command",
    ):
        sys.modules[name] = types.ModuleType(name)  # imported and, but for `prefix_metrics`, unused
        # For which PyTorch looks.
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    for module, name in (
        ("certifi", "where"),
        ("turtle", "pd"),
        ("distutils.command.config", "config"),
    ):
        setattr(sys.modules[module], name, None)
    sys.modules["utils_h2o"].prefix_metrics = lambda metrics, prefix: {  # pyright: ignore[reportAttributeAccessIssue]
        f"{prefix}/{key}": value for key, value in metrics.items()
    }
    import torch  # pyright: ignore[reportMissingImports]
    from model import FullyConnectedQFunction, TanhGaussianPolicy  # pyright: ignore[reportMissingImports]
    from Network.Weight_net import ConcatDiscriminator  # pyright: ignore[reportMissingImports]
    from sim2real_sac import Sim2realSAC  # pyright: ignore[reportMissingImports]

    data = {name: torch.as_tensor(x) for name, x in rows(ROWS).items()}

    class Buffer:
        """What the learner asks of the authors' buffer."""

        def get_mean_std(self) -> tuple[Any, Any]:
            """Of observations, [1, O] each."""
            observation = data["observation"]
            return observation.mean(0, keepdim=True), observation.std(0, keepdim=True)

        def sample(self, number: int, scope: str, type: str | None = None) -> dict[str, Any]:
            """Random rows."""
            del scope
            places = np.random.randint(0, ROWS, number)
            columns = {
                "observations": data["observation"][places],
                "actions": data["action"][places],
                "rewards": data["reward"][places][:, None],
                "next_observations": data["next_observation"][places],
                "dones": torch.zeros(number, 1),
            }
            names = ("observations", "actions", "next_observations") if type == "sas" else columns
            return {name: columns[name] for name in names}

    critics = [FullyConnectedQFunction(OBSERVATIONS, ACTIONS) for _ in range(4)]
    judges = [
        ConcatDiscriminator(n, 256, 2, "cpu")
        for n in (OBSERVATIONS + ACTIONS, 2 * OBSERVATIONS + ACTIONS)
    ]
    policy = TanhGaussianPolicy(OBSERVATIONS, ACTIONS, log_std_multiplier=1.0, log_std_offset=-1.0)
    settings = {"device": "cpu", "target_entropy": -float(ACTIONS)}
    learner = Sim2realSAC(settings, policy, *critics, *judges, Buffer())
    for _ in range(20):
        learner.train(BATCH // 2, BATCH // 2)
    began = time.perf_counter()
    for _ in range(updates):
        learner.train(BATCH // 2, BATCH // 2)
    return {"updates_per_second": updates / (time.perf_counter() - began)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": ours, "peer": peer}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", help="Python of an environment that has what the authors' code needs"
    )
    parser.add_argument("--code", help="folder of the authors' code")
    parser.add_argument("--updates", type=int, default=300)
    options = options_of(parser, WORKERS)
    if options.peer and not options.code:
        raise SystemExit("--peer needs the folder of the authors' code: --code peer/H2O")
    compare_with_authors(("H2O", "h2o"), ("SAC", "sac"), options, __file__)


if __name__ == "__main__":
    main()
