"""DSRL's updates beside those of the unmodified class in its form of QAM's comparison: the same
first parameters, the same rows, and the same random numbers.

  python scripts/updates/offline/compare_dsrl.py --peer qam \
      --output results/checks/references/dsrl.json

The folder `qam` has ColinQiyangLi/qam of GitHub at f93efd2. Both sides cut their chunks from the
same trajectories.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agents import dsrl
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.offline.compare_qc import LENGTH, SMALL
from scripts.updates.shared import ACTOR, distance, exact

CASES: dict[str, dict[str, Any]] = {
    "DSRL": {"pessimism": 0.0},
    "DSRL, with pessimism": {},
    "DSRL, single actions": {"chunk_length": 1, "pessimism": 0.0, "noise_scale": 0.4},
}
LOSSES = {
    "critic/loss": "critic/critic_loss",
    "critic/distillation": "critic/distill_loss",
    "actor/loss": "actor/actor_loss",
    "actor/flow": "actor/flow_loss",
    "temperature/loss": "actor/alpha_loss",
}


def config_of(changes: Mapping[str, Any]) -> dsrl.Config:
    """Our settings, in layers of the comparison's width."""
    return dsrl.Config(hidden=ACTOR, **{"chunk_length": LENGTH, **changes})


def their_agent(peer: Path, config: dsrl.Config) -> tuple[Any, Any]:
    """The authors' agent, and their data set of our rows."""
    module, data = compare_qc.their_modules(peer, "agents.dsrl")
    options = {**module.get_config(), "horizon_length": config.chunk_length}
    options |= {"actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden}
    options |= {"action_chunking": True, "rho": config.pessimism}
    options |= {"noise_scale": config.noise_scale}
    rows = compare_qc.recorded()
    theirs = module.DSRLAgent.create(0, rows.observation[0], rows.action[0], options)
    return theirs, compare_qc.their_data(data, rows)


def with_their_parameters(state: dsrl.State, params: Mapping[str, Any]) -> dsrl.State:
    """Our State with the numbers of their networks."""
    like = compare_qc.like
    changed = {
        "critic": like(state.critic.parameters, params["modules_critic"]),
        "noise_critic": like(state.noise_critic.parameters, params["modules_z_critic"]),
        "actor": compare_qc.like_gaussian(state.actor.parameters, params["modules_actor"]),
        "flow": like(state.flow.parameters, params["modules_actor_bc_flow"]),
        "log_temperature": jnp.asarray(params["modules_alpha"]["log_value"]),
    }
    trained = {name: getattr(state, name).replace(parameters=x) for name, x in changed.items()}
    return state.replace(
        target_critic=like(state.target_critic, params["modules_target_critic"]),
        target_flow=like(state.target_flow, params["modules_target_actor_bc_flow"]),
        **trained,
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(changes)
    length = config.chunk_length
    theirs, data = their_agent(peer, config)
    theirs = exact(jax.tree.map(jnp.asarray, theirs))
    first = exact(dsrl.init(jax.random.key(0), SMALL, config))
    first = state = with_their_parameters(first, theirs.network.params)
    prepared = compare_qc.prepared()
    update = jax.jit(functools.partial(dsrl.update, config=config))
    differences = dict.fromkeys(LOSSES, 0.0)
    with compare_qc.same_numbers(), stand_ins.old_names():
        for i in range(updates):
            batch = compare_qc.their_chunks(data, i, length, config.discount)
            theirs, info = theirs.update(batch)
            chunks = compare_qc.our_chunks(prepared, i, length)
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i))
            compare_qc.keep_largest(differences, metrics, info, LOSSES)
    other = with_their_parameters(state, theirs.network.params)
    for name in ("critic", "noise_critic", "actor", "flow", "log_temperature"):
        differences[name] = distance(*(getattr(x, name).parameters for x in (first, state, other)))
    for name in ("target_critic", "target_flow"):
        differences[name] = distance(*(getattr(x, name) for x in (first, state, other)))
    return differences


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, options.peer))


if __name__ == "__main__":
    main()
