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
import numpy as np

from rljax.agents import dsrl
from rljax.buffers import windows
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.offline.compare_qc import LENGTH, ROWS, SMALL
from scripts.updates.shared import ACTOR, BATCH, distance, exact, relative

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
        "actor": like_policy(state.actor.parameters, params["modules_actor"]),
        "flow": like(state.flow.parameters, params["modules_actor_bc_flow"]),
        "log_temperature": jnp.asarray(params["modules_alpha"]["log_value"]),
    }
    trained = {name: getattr(state, name).replace(parameters=x) for name, x in changed.items()}
    return state.replace(
        target_critic=like(state.target_critic, params["modules_target_critic"]),
        target_flow=like(state.target_flow, params["modules_target_actor_bc_flow"]),
        **trained,
    )


def like_policy(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our Gaussian with the numbers of theirs, whose outputs are two layers."""
    (body,) = (tree[name] for name in tree if name.startswith("MLP"))
    layers = {name.replace("Dense", "hidden"): dict(layer) for name, layer in body.items()}
    heads = (tree["OutputDenseMean"], tree["OutputDenseLogStd"])
    layers["output"] = {
        part: jnp.concatenate([head[part] for head in heads], axis=-1)
        for part in ("kernel", "bias")
    }
    return network.replace(params=jax.tree.map(lambda _, new: new, network.params, layers))


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(changes)
    length, rows = config.chunk_length, compare_qc.recorded()
    theirs, data = their_agent(peer, config)
    theirs = exact(jax.tree.map(jnp.asarray, theirs))
    first = exact(dsrl.init(jax.random.key(0), SMALL, config))
    first = state = with_their_parameters(first, theirs.network.params)
    prepared = exact(jax.tree.map(jnp.asarray, windows.with_last_rows(rows)))
    update = jax.jit(functools.partial(dsrl.update, config=config))
    differences = dict.fromkeys(LOSSES, 0.0)
    with compare_qc.same_numbers(), stand_ins.old_names():
        for i in range(updates):
            np.random.seed(i)
            batch = data.sample_sequence(BATCH, length, config.discount)
            np.random.seed(i)
            drawn = np.random.randint(ROWS - length + 1, size=BATCH)
            theirs, info = theirs.update(exact(jax.tree.map(jnp.asarray, batch)))
            chunks = windows.chunks_of_data(prepared, jnp.asarray(drawn), length)
            chunks = exact(chunks if length > 1 else compare_qc.plain(prepared, drawn))
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i))
            for ours, other in LOSSES.items():
                apart = relative(metrics[ours], info[other])
                differences[ours] = max(differences[ours], apart)
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
