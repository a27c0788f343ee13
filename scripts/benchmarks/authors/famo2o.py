"""Updates per CPU second of FamO2O, beside those of its authors' code (JAX) and of our IQL.

  git clone https://github.com/LeapLabTHU/FamO2O peer/FamO2O
  sed -i "s/_, params = variables.pop/params = variables.pop/" peer/FamO2O/jax_iql/common.py
  taskset -c 0 python scripts/benchmarks/authors/famo2o.py --peer .venv/bin/python \\
      --code peer/FamO2O/jax_iql --output results/speed/measurements/famo2o.json

Sizes of HalfCheetah, random rows, and the defaults of both: batches of 256 rows and networks of 2 x
256. The authors' code is of an older JAX: the changed line and a name that JAX has moved are all
that it needs, in any environment with flax, optax and tensorflow-probability. Its updates are calls
of one compiled function each; ours run in one program, and so they do where rljax trains.
Measurements alternate, each in a separate process, after compilation. Medians are reported.
`taskset` limits all to one core, and seconds are those of the processor: other work on it does not
count.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.benchmarks.authors import h2o
from scripts.benchmarks.authors.h2o import ACTIONS, BATCH, OBSERVATIONS, ROWS
from scripts.benchmarks.measuring import compare_with_authors, options_of, use_code


def peer(updates: int, code: str) -> dict[str, Any]:
    """Updates per CPU second of the authors' `FamilyLearner.update`,
    with uniform coefficients as from data.
    """
    import jax

    jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]
    use_code(code)
    from common import Batch  # pyright: ignore[reportMissingImports]
    from family_learner import FamilyLearner  # pyright: ignore[reportMissingImports]

    example = np.zeros((1, OBSERVATIONS), np.float32), np.zeros((1, ACTIONS), np.float32)
    learner = FamilyLearner(0, *example, opt_decay_schedule=None)
    data = h2o.rows(ROWS)

    def one() -> None:
        rows = np.random.randint(0, ROWS, BATCH)
        columns = {f"{name}s": x[rows] for name, x in data.items()}
        learner.update(Batch(**columns, masks=np.ones(BATCH, np.float32)), True)

    for _ in range(3):
        one()
    began = time.process_time()
    for _ in range(updates):
        one()
    jax.block_until_ready(learner.critic.params)
    return {"updates_per_second": updates / (time.process_time() - began)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": functools.partial(h2o.ours, clock=time.process_time),
    "peer": peer,
}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", help="Python of an environment that has what the authors' code needs"
    )
    parser.add_argument("--code", help="the folder jax_iql of the authors' code")
    parser.add_argument("--updates", type=int, default=200)
    options = options_of(parser, WORKERS)
    if options.peer and not options.code:
        raise SystemExit("--peer needs the folder of the authors' code: --code peer/FamO2O/jax_iql")
    compare_with_authors(("FamO2O", "famo2o"), ("IQL", "iql"), options, __file__)


if __name__ == "__main__":
    main()
