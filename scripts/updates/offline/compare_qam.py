"""QAM's updates, in all forms, beside those of the authors' unmodified agent: the same first
parameters, the same chunks, and the same random numbers.

  python scripts/updates/offline/compare_qam.py --peer qam \
      --output results/checks/references/qam.json

The folder `qam` has ColinQiyangLi/qam of GitHub at f93efd2. Distributions of TensorFlow Probability
are those of distrax there, and every random number is the same in both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agents import qam
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.offline.compare_qc import LENGTH, SMALL
from scripts.updates.shared import ACTOR, distance, exact

CASES: dict[str, dict[str, Any]] = {
    "QAM": {},
    "QAM, single actions": {"chunk_length": 1, "pessimism": 0.0, "inverse_temperature": 3.0},
    "QAM with FQL": {"form": "fql"},
    "QAM with edits": {"form": "edit"},
}


def config_of(changes: Mapping[str, Any]) -> qam.Config:
    """Our settings, in layers of the comparison's width."""
    return qam.Config(hidden=ACTOR, **{"chunk_length": LENGTH, **changes})


def their_agent(peer: Path, config: qam.Config) -> tuple[Any, Any]:
    """The authors' agent, and their data set of our rows."""
    module, data = compare_qc.their_modules(peer, "agents.qam")
    options = {**module.get_config(), "horizon_length": config.chunk_length}
    options |= {"actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden}
    options |= {"action_chunking": True, "rho": config.pessimism}
    options |= {"inv_temp": config.inverse_temperature}
    options["fql_alpha"] = config.distillation_weight if config.form == "fql" else 0.0
    options["edit_scale"] = config.edit_scale if config.form == "edit" else 0.0
    rows = compare_qc.recorded()
    theirs = module.QAMAgent.create(0, rows.observation[0], rows.action[0], options)
    return theirs, compare_qc.their_data(data, rows)


def with_their_parameters(state: qam.State, params: Mapping[str, Any]) -> qam.State:
    """Our State with the numbers of their networks."""
    learnt, like = state.networks.parameters, compare_qc.like
    changed: dict[str, Any] = {
        "critic": like(learnt.critic, params["modules_critic"]),
        "base": like(learnt.base, params["modules_actor_slow"]),
        "tuned": like(learnt.tuned, params["modules_actor_fast"]),
    }
    if learnt.one_step is not None:
        changed["one_step"] = like(learnt.one_step, params["modules_one_step_actor"])
    if learnt.edit is not None:
        changed["edit"] = compare_qc.like_gaussian(
            learnt.edit, params["modules_edit_actor"], "body"
        )
        value = params["modules_edit_alpha"]["log_value"]
        changed["log_temperature"] = jnp.asarray(value)
    return state.replace(
        networks=state.networks.replace(parameters=learnt.replace(**changed)),
        target_critic=like(state.target_critic, params["modules_target_critic"]),
        target_base=like(state.target_base, params["modules_target_actor_slow"]),
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(changes)
    length = config.chunk_length
    theirs, data = their_agent(peer, config)
    theirs = exact(jax.tree.map(jnp.asarray, theirs))
    first = exact(qam.init(jax.random.key(0), SMALL, config))
    first = state = with_their_parameters(first, theirs.network.params)
    prepared = compare_qc.prepared()
    update = jax.jit(functools.partial(qam.update, config=config))
    names = {
        "critic/loss": "critic/critic_loss",
        "actor/base": "actor/flow_loss",
        "actor/matching": "actor/adj_loss",
    }
    differences = dict.fromkeys(names, 0.0)
    with compare_qc.same_numbers(), stand_ins.old_names():
        for i in range(updates):
            batch = compare_qc.their_chunks(data, i, length, config.discount)
            theirs, info = theirs.update(batch)
            chunks = compare_qc.our_chunks(prepared, i, length)
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i))
            compare_qc.keep_largest(differences, metrics, info, names)
    other = with_their_parameters(state, theirs.network.params)
    for name in ("critic", "base", "tuned", "one_step", "edit", "log_temperature"):
        trees = [getattr(x.networks.parameters, name) for x in (first, state, other)]
        if trees[0] is not None:
            differences[name] = distance(*trees)
    differences["targets"] = distance(*(x.target_critic for x in (first, state, other)))
    return differences


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, options.peer))


if __name__ == "__main__":
    main()
