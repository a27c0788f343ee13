"""Updates per second of RO2O, beside those of its authors' code (PyTorch) and of our EDAC.

  git clone https://github.com/BattleWen/RO2O peer/RO2O
  peer/bin/pip install torch numpy
  taskset -c 0 python scripts/benchmarks/authors/ro2o.py --peer peer/bin/python \\
      --code peer/RO2O/algorithms/offline/ro2o_mujoco.py \\
      --output results/speed/measurements/ro2o.json

Sizes of HalfCheetah, random rows, and the defaults of both: batches of 256 rows, 20 perturbed
observations for each, 10 critics and networks of 3 x 256. Measurements alternate, each in a
separate process, after compilation. Medians are reported. `taskset` limits all to one core.
"""

from __future__ import annotations

import argparse
import functools
import importlib.machinery
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.benchmarks.authors import h2o
from scripts.benchmarks.authors.h2o import ACTIONS, BATCH, OBSERVATIONS, ROWS
from scripts.benchmarks.measuring import compare_with_authors, loaded, options_of


def peer(updates: int, code: str) -> dict[str, Any]:
    """Updates per second of the authors' `RO2O.update`."""
    for name in ("d4rl", "gym", "h5py", "pyrallis", "tqdm", "wandb", "yaml"):
        sys.modules[name] = types.ModuleType(name)  # imported, and unused by the learner
        # For which PyTorch looks.
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules["gym"].Env = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["tqdm"].trange = range  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["pyrallis"].wrap = lambda: lambda function: function  # pyright: ignore[reportAttributeAccessIssue]
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    module = loaded("ro2o_mujoco", code)
    config = module.TrainConfig()
    actor = module.Actor(OBSERVATIONS, ACTIONS, config.hidden_dim)
    critic = module.VectorizedCritic(OBSERVATIONS, ACTIONS, config.hidden_dim, config.num_critics)
    adam = functools.partial(torch.optim.Adam, lr=3e-4)
    sizes = {name: getattr(config, name) for name in ("sample_size", "beta_policy", "beta_ood")}
    learner = module.RO2O(
        actor, adam(actor.parameters()), critic, adam(critic.parameters()), device="cpu", **sizes
    )
    data = {name: torch.as_tensor(x) for name, x in h2o.rows(ROWS).items()}

    def one() -> None:
        places = np.random.randint(0, ROWS, BATCH)
        batch = [
            data["observation"][places],
            data["action"][places],
            data["reward"][places][:, None],
        ]
        learner.update([*batch, data["next_observation"][places], torch.zeros(BATCH, 1)])

    one()
    began = time.perf_counter()
    for _ in range(updates):
        one()
    return {"updates_per_second": updates / (time.perf_counter() - began)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": h2o.ours, "peer": peer}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", help="Python of an environment that has what the authors' code needs"
    )
    parser.add_argument("--code", help="the authors' ro2o_mujoco.py")
    parser.add_argument("--updates", type=int, default=20)
    options = options_of(parser, WORKERS)
    if options.peer and not options.code:
        raise SystemExit(
            "--peer needs the file of the authors' code: --code peer/RO2O/.../ro2o_mujoco.py"
        )
    compare_with_authors(("RO2O", "ro2o"), ("EDAC", "edac"), options, __file__)


if __name__ == "__main__":
    main()
