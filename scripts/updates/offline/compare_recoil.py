"""Updates of ReCOIL and of its authors' code (JAX),
from the same parameters and on the same batches.

  git clone https://github.com/chufanchen/ReCOIL peer/ReCOIL
  python scripts/updates/offline/compare_recoil.py peer/ReCOIL/offline

It needs flax, optax and tensorflow-probability. The repository is a copy of the authors', whose
last commit there is 85662f4. Nothing in an update is random: dropout is 0.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import recoil
from scripts.benchmarks.measuring import use_code
from scripts.checks.authors import learners
from scripts.checks.authors.learners import ACTIONS, BATCH, HIDDEN, OBSERVATIONS


def main() -> None:
    """Make the updates and print by how much they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("code", help="the folder offline of the authors' code")
    parser.add_argument("--updates", type=int, default=100, help="how many are made")
    parser.add_argument("--temperature", type=float, default=5.0, help="their --temp, our T")
    parser.add_argument("--value-layer-norm", action="store_true", help="as on Adroit and Kitchen")
    options = parser.parse_args()
    use_code(options.code)
    learners.use_old_tree_map()
    from common import Batch, MixedBatch  # pyright: ignore[reportMissingImports]
    from learner_imitate import Learner  # pyright: ignore[reportMissingImports]

    generator, normal = learners.normals()
    norm = options.value_layer_norm
    learner = Learner(
        0,
        normal(1, OBSERVATIONS),
        normal(1, ACTIONS),
        hidden_dims=HIDDEN,
        temperature=3.0,
        dropout_rate=0.0,
        layernorm=norm,
        max_steps=1_000_000,
        loss_temp=options.temperature,
        vanilla=False,
        args=learners.arguments(**learners.FLAGS),
    )
    learners.spread(learner, ("value", "critic", "target_critic", "actor"), normal)
    config = recoil.Config(
        hidden=HIDDEN, temperature=options.temperature, value_layer_norm=norm, decay_steps=1e6
    )
    state = recoil.init(jax.random.key(0), EnvSpec("Example-v0", (OBSERVATIONS,), ACTIONS), config)
    state = learners.with_parameters(state, learners.of_authors(learner))
    update = jax.jit(recoil.update)

    for step in range(options.updates):
        ends = generator.random(2 * BATCH) < 0.2
        shapes = (OBSERVATIONS, ACTIONS, OBSERVATIONS)
        observation, action, successor = (normal(2 * BATCH, size) for size in shapes)
        action, reward = np.tanh(action), normal(2 * BATCH)
        columns = (observation, action, reward, 1.0 - ends.astype(np.float32), successor)
        mixture, expert = [x[:BATCH] for x in columns], [x[BATCH:] for x in columns]
        learner.update(MixedBatch(*mixture, is_expert=np.zeros(BATCH)), Batch(*expert))
        rows = (observation, action, reward, ends, np.zeros(2 * BATCH, bool), successor)
        batch = Transition(*map(jnp.asarray, rows), extras={})
        state, _ = update(state, batch, jax.random.key(step), jnp.int32(step), config)

    print(f"after {options.updates} updates:")
    learners.show(learners.of_ours(state), learners.of_authors(learner))


if __name__ == "__main__":
    main()
