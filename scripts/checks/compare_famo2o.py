"""One update of FamO2O and one of its authors' code (JAX),
from the same parameters and on the same batch.

  git clone https://github.com/LeapLabTHU/FamO2O peer/FamO2O
  sed -i "s/_, params = variables.pop/params = variables.pop/" peer/FamO2O/jax_iql/common.py
  python scripts/checks/compare_famo2o.py peer/FamO2O/jax_iql

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

OBSERVATIONS, ACTIONS, BATCH, HIDDEN = 5, 3, 64, (32, 32)
RANGE, EXPECTILE = (8.0, 14.0), 0.9
SAME = 1e-5  # below it, parameters are equal: one step of Adam moves them by 3e-4
# The authors' code interleaves sines and cosines; ours has all sines first.
ORDER = np.array([*range(OBSERVATIONS), *(OBSERVATIONS + i for i in (0, 2, 4, 1, 3, 5))])


def layers(params: Any) -> dict[str, Any]:
    """The authors' parameters of one MLP under our names."""
    body = params["MLP_0"]
    return {
        "hidden_0": body["Dense_0"],
        "hidden_1": body["Dense_1"],
        "output": params.get("Dense_0", body.get("Dense_2")),
    }


def of_authors(learner: Any) -> dict[str, Any]:
    """All that the authors' learner learns, in the form of ours."""
    actor = layers(learner.actor.params)
    actor["hidden_0"] = {**actor["hidden_0"], "kernel": actor["hidden_0"]["kernel"][ORDER]}
    critics = [
        [layers(model.params[f"Critic_{i}"]) for i in range(2)]
        for model in (learner.critic, learner.target_critic)
    ]
    critic, target = ({"members": jax.tree.map(lambda *x: jnp.stack(x), *pair)} for pair in critics)
    return {
        "value": layers(learner.value.params),
        "critic": critic,
        "target_critic": target,
        "log_temperature": learner.hierarchical_temp.params["log_temp"],
        "balance": (
            layers(learner.hierarchical_actor.params),
            learner.hierarchical_actor.params["log_stds"],
        ),
        "actor": (actor, learner.actor.params["log_stds"]),
    }


def of_ours(state: famo2o.State) -> dict[str, Any]:
    """The same of our State."""
    networks = {name: getattr(state, name).parameters.params for name in ("value", "critic")}
    networks["target_critic"] = state.target_critic.params
    actors = {name: getattr(state, name).parameters for name in ("balance", "actor")}
    policies = {name: (actor.mean.params, actor.log_std) for name, actor in actors.items()}
    return networks | policies | {"log_temperature": state.log_temperature.parameters}


def with_parameters(state: famo2o.State, known: dict[str, Any]) -> famo2o.State:
    """Our State with the parameters of `of_authors`."""

    def trained(name: str, parameters: Any) -> Any:
        return getattr(state, name).replace(parameters=parameters)

    changes = {}
    for name in ("value", "critic"):
        network = getattr(state, name).parameters
        changes[name] = trained(name, network.replace(params=known[name]))
    for name in ("balance", "actor"):
        actor, (params, log_std) = getattr(state, name).parameters, known[name]
        actor = actor.replace(mean=actor.mean.replace(params=params), log_std=log_std)
        changes[name] = trained(name, actor)
    return state.replace(
        **changes,
        target_critic=state.target_critic.replace(params=known["target_critic"]),
        log_temperature=trained("log_temperature", known["log_temperature"]),
    )


def main() -> None:
    """Make the updates and print by how much they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("code", help="the folder jax_iql of the authors' code")
    use_code(parser.parse_args().code)
    jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]  # an older JAX has it
    from common import Batch  # pyright: ignore[reportMissingImports]
    from family_learner import FamilyLearner  # pyright: ignore[reportMissingImports]

    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float32)

    known: dict[str, Any] = {
        "hidden_dims": HIDDEN,
        "family_coefficient_range": RANGE,
        "expectile": EXPECTILE,
    }
    learner = FamilyLearner(
        0, normal(1, OBSERVATIONS), normal(1, ACTIONS), opt_decay_schedule=None, **known
    )
    # No target equals its critic.
    for name in ("actor", "hierarchical_actor", "value", "critic", "target_critic"):
        model = getattr(learner, name)
        params = jax.tree.map(lambda x: x + 0.2 * normal(*x.shape), model.params)
        if "log_stds" in params:
            params["log_stds"] = jnp.full_like(params["log_stds"], -12.0)
        setattr(learner, name, model.replace(params=params))
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
        for part, ours in of_ours(new).items():
            pairs = zip(*map(jax.tree.leaves, (ours, after[part])), strict=True)
            gap = np.concatenate([np.abs(np.ravel(x - y)) for x, y in pairs])
            print(
                f"  {part:<16} largest difference {gap.max():.1e}, "
                f"equal {100 * (gap < SAME).mean():.1f} %"
            )


if __name__ == "__main__":
    main()
