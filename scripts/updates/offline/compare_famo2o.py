"""One update of FamO2O and one of its authors' code (JAX),
from the same parameters and on the same batch.

  git clone https://github.com/LeapLabTHU/FamO2O peer/FamO2O
  sed -i "s/_, params = variables.pop/params = variables.pop/" peer/FamO2O/jax_iql/common.py
  python scripts/updates/offline/compare_famo2o.py peer/FamO2O/jax_iql

It needs flax, optax and tensorflow-probability. The batch is new experience, so that beta comes
from the balance policy. Both stds are at their lower clip, exp(-5) and exp(-10): random numbers,
which differ, then hardly matter. Our update is made twice: as it is, and with `shared_weights`, as
the authors' code has them.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import famo2o
from scripts.benchmarks.measuring import use_code
from scripts.checks.authors import learners
from scripts.checks.authors.learners import ACTIONS, BATCH, HIDDEN, OBSERVATIONS

RANGE, EXPECTILE = (8.0, 14.0), 0.9
# The authors' code interleaves sines and cosines; ours has all sines first.
ORDER = np.array([*range(OBSERVATIONS), *(OBSERVATIONS + i for i in (0, 2, 4, 1, 3, 5))])


def of_authors(learner: Any) -> dict[str, Any]:
    """All that the authors' learner learns, in the form of ours."""
    actor = learners.layers(learner.actor.params)
    actor["hidden_0"] = {**actor["hidden_0"], "kernel": actor["hidden_0"]["kernel"][ORDER]}
    balance = learner.hierarchical_actor.params
    return {
        "value": learners.layers(learner.value.params),
        **learners.critics_of(learner),
        "log_temperature": learner.hierarchical_temp.params["log_temp"],
        "balance": (learners.layers(balance), balance["log_stds"]),
        "actor": (actor, learner.actor.params["log_stds"]),
    }


def of_ours(state: famo2o.State) -> dict[str, Any]:
    """The same of our State."""
    balance = state.balance.parameters
    return learners.of_ours(state) | {
        "balance": (balance.mean.params, balance.log_std),
        "log_temperature": state.log_temperature.parameters,
    }


def with_parameters(state: famo2o.State, known: dict[str, Any]) -> famo2o.State:
    """Our State with the parameters of `of_authors`."""
    state = learners.with_parameters(state, known, actors=("balance", "actor"))
    log_temperature = state.log_temperature.replace(parameters=known["log_temperature"])
    return state.replace(log_temperature=log_temperature)


def main() -> None:
    """Make the updates and print by how much they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("code", help="the folder jax_iql of the authors' code")
    use_code(parser.parse_args().code)
    learners.use_old_tree_map()
    from common import Batch  # pyright: ignore[reportMissingImports]
    from family_learner import FamilyLearner  # pyright: ignore[reportMissingImports]

    generator, normal = learners.normals()
    known: dict[str, Any] = {
        "hidden_dims": HIDDEN,
        "family_coefficient_range": RANGE,
        "expectile": EXPECTILE,
    }
    learner = FamilyLearner(
        0, normal(1, OBSERVATIONS), normal(1, ACTIONS), opt_decay_schedule=None, **known
    )
    names = ("actor", "hierarchical_actor", "value", "critic", "target_critic")
    learners.spread(learner, names, normal)
    for name in names[:2]:
        model = getattr(learner, name)
        log_stds = jnp.full_like(model.params["log_stds"], -12.0)
        setattr(learner, name, model.replace(params={**model.params, "log_stds": log_stds}))
    low, high = RANGE
    config = famo2o.Config(
        hidden=HIDDEN,
        expectile=EXPECTILE,
        inverse_temperature_min=low,
        inverse_temperature_max=high,
    )
    before = of_authors(learner)
    state = famo2o.init(jax.random.key(0), EnvSpec("Example-v0", (OBSERVATIONS,), ACTIONS), config)
    state = with_parameters(state, before)

    observation = normal(BATCH, OBSERVATIONS)
    next_observation = normal(BATCH, OBSERVATIONS)
    reward = 0.1 * normal(BATCH)
    action, ends = np.tanh(normal(BATCH, ACTIONS)), generator.random(BATCH) < 0.2
    told = learner.update(
        Batch(observation, action, reward, 1.0 - ends.astype(np.float32), next_observation), False
    )
    after = of_authors(learner)
    columns = (observation, action, reward, ends, np.zeros(BATCH, bool), next_observation)
    batch = Transition(*map(jnp.asarray, columns), extras={"offline": jnp.zeros(BATCH, bool)})
    update = jax.jit(famo2o.update)
    for name, shared in (("ours", False), ("ours with shared weights", True)):
        changed = dataclasses.replace(config, shared_weights=shared)
        new, metrics = update(state, batch, jax.random.key(0), jnp.int32(0), changed)
        print(
            f"{name}: actor's loss {metrics['actor/loss']:.3f}, the "
            f"authors' {told['actor_loss']:.3f}"
        )
        learners.show(of_ours(new), after)


if __name__ == "__main__":
    main()
