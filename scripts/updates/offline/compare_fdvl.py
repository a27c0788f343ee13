"""Updates of f-DVL and XQL and of their authors' code (JAX),
from the same parameters and on the same batches.

  git clone https://github.com/hari-sikchi/DVL peer/DVL
  git clone https://github.com/Div99/XQL peer/XQL
  for code in peer/DVL/offline peer/XQL/offline; do  # for newer versions of JAX and Flax
    sed -i "s/tree_multimap/tree_map/" $code/learner.py
    sed -i "s/_, params = variables.pop/params = variables.pop/" $code/common.py
    sed -i "s/('actor_def', 'distribution')/('actor_def',)/" $code/policy.py
  done
  python scripts/updates/offline/compare_fdvl.py peer/DVL/offline --divergence chi_square
  python scripts/updates/offline/compare_fdvl.py peer/XQL/offline --divergence reverse_kl

It needs flax, optax and tensorflow-probability. Nothing in an update is random: dropout is 0, and
there are no uniform actions.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import fdvl
from scripts.benchmarks.measuring import use_code
from scripts.checks.authors import learners
from scripts.checks.authors.learners import ACTIONS, BATCH, HIDDEN, OBSERVATIONS

NAMES = {
    "total_variation": "total-variation",
    "chi_square": "chi-square",
    "reverse_kl": "reverse-kl",  # the README's reverse-KL is no name in their critic.py
}


def main() -> None:
    """Make the updates and print by how much they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("code", help="the folder offline of the authors' code")
    parser.add_argument("--divergence", choices=tuple(NAMES), default="chi_square")
    parser.add_argument("--updates", type=int, default=100, help="how many are made")
    parser.add_argument("--temp", type=float, default=0.8, help="their --temp: our lambda or T")
    options = parser.parse_args()
    use_code(options.code)
    learners.use_old_tree_map()
    from common import Batch  # pyright: ignore[reportMissingImports]
    from learner import Learner  # pyright: ignore[reportMissingImports]

    generator, normal = learners.normals()
    learner = Learner(
        0,
        normal(1, OBSERVATIONS),
        normal(1, ACTIONS),
        hidden_dims=HIDDEN,
        temperature=3.0,
        dropout_rate=0.0,
        layernorm=True,
        max_steps=1_000_000,
        loss_temp=options.temp,
        vanilla=False,
        args=learners.arguments(**learners.FLAGS, f=NAMES[options.divergence]),
    )
    learners.spread(learner, ("value", "critic", "target_critic", "actor"), normal)
    name = "temperature" if options.divergence == "reverse_kl" else "optimism"
    config = fdvl.Config(
        hidden=HIDDEN, divergence=options.divergence, decay_steps=1e6, **{name: options.temp}
    )
    state = fdvl.init(jax.random.key(0), EnvSpec("Example-v0", (OBSERVATIONS,), ACTIONS), config)
    state = learners.with_parameters(state, learners.of_authors(learner))
    update = jax.jit(fdvl.update)

    for step in range(options.updates):
        ends = generator.random(BATCH) < 0.2
        observation, successor = normal(BATCH, OBSERVATIONS), normal(BATCH, OBSERVATIONS)
        action, reward = np.tanh(normal(BATCH, ACTIONS)), 10.0 * normal(BATCH)
        alive = 1.0 - ends.astype(np.float32)
        learner.update(Batch(observation, action, reward, alive, successor))
        rows = (observation, action, reward, ends, np.zeros(BATCH, bool), successor)
        batch = Transition(*map(jnp.asarray, rows), extras={})
        state, _ = update(state, batch, jax.random.key(step), jnp.int32(step), config)
    print(f"after {options.updates} updates:")
    learners.show(learners.of_ours(state), learners.of_authors(learner))


if __name__ == "__main__":
    main()
