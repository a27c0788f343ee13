"""The updates of IFQL and ReBRAC with many critics and chunks beside those of the unmodified agents
that QAM's authors compare it with: the same first parameters, the same chunks of the same
trajectories, and the same random numbers.

  python scripts/updates/offline/compare_qam_others.py --peer qam \
      --output results/checks/references/qam_others.json

The folder `qam` has ColinQiyangLi/qam of GitHub at f93efd2. Three things are ours here, as the
pages of both agents say: their targets follow the new networks, their actor of ReBRAC sees the new
critics, and their Adam has its epsilon divided by the number of critics, whose losses they average
and we add. Their actor of ReBRAC moves in every update, and its targets in every second one: here
ours have a rate of 0 in the others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rljax.agents import ifql, rebrac
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.offline.compare_qc import LENGTH, SMALL
from scripts.updates.shared import ACTION, ACTOR, distance, exact

CRITICS = 10
OURS: dict[str, Any] = {"num_critics": CRITICS, "pessimism": 0.5, "chunk_length": LENGTH}
REBRAC = {**OURS, "actor_lr": 3e-4, "critic_lr": 3e-4, "activation": "gelu_tanh"}
REBRAC |= {"critic_penalty": 0.0, "policy_delay": 1, "exploration_noise": 0.2}


class Case(NamedTuple):
    """Our agent, its settings, theirs, and the updates from one move of targets to the next."""

    agent: Any
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    every: int = 1


ACTING = {"num_candidates": 4}, {"num_samples": 4}
TUNED = {"actor_penalty": 0.03}, {"alpha_actor": 0.03}
PLAIN = {"chunk_length": 1, "pessimism": 0.0}
CASES = {
    "IFQL": Case(ifql, {**OURS, **ACTING[0]}, ACTING[1]),
    "IFQL, single actions": Case(
        ifql, {**OURS, **ACTING[0], **PLAIN, "expectile": 0.7}, {**ACTING[1], "kappa": 0.7}
    ),
    "ReBRAC": Case(rebrac, {**REBRAC, **TUNED[0]}, TUNED[1], every=2),
    "ReBRAC, single actions": Case(rebrac, {**REBRAC, **TUNED[0], **PLAIN}, TUNED[1], every=2),
}


def their_agent(peer: Path, case: Case, config: Any) -> tuple[Any, Any]:
    """The authors' agent, and their data set of our rows."""
    name = case.agent.__name__.rpartition(".")[2]
    module, data = compare_qc.their_modules(peer, f"agents.{name}")
    options = {**module.get_config(), **case.theirs, "horizon_length": config.chunk_length}
    options |= {"actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden}
    options |= {"action_chunking": True, "rho": config.pessimism, "num_qs": config.num_critics}
    agent = module.IFQLAgent if case.agent is ifql else module.ReBRACAgent
    rows = compare_qc.recorded()
    theirs = agent.create(0, rows.observation[0], rows.action[0], options)
    return theirs, compare_qc.their_data(data, rows)


def with_our_epsilon(theirs: Any) -> Any:
    """Their agent, whose Adam divides gradients of mean losses as ours divides those of sums."""
    network = theirs.network
    critics = optax.adam(theirs.config["lr"], eps=1e-8 / theirs.config["num_qs"])
    others = optax.adam(theirs.config["lr"])
    labels = {name: name == "modules_critic" for name in network.params}
    both = optax.multi_transform({True: critics, False: others}, labels)
    return theirs.replace(network=network.replace(tx=both, opt_state=both.init(network.params)))


def like_mlp(network: Network, *trees: Mapping[str, Any]) -> Network:
    """Our MLP with the numbers of their layers, of which the last may stand alone."""
    layers = {name: layer for tree in trees for name, layer in tree.items()}
    names = compare_qc.ours(layers)
    return network.replace(params=jax.tree.map(lambda _, x: jnp.asarray(x), network.params, names))


def like_actor(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our actor of ReBRAC with the numbers of theirs."""
    body = tree["actor_net"]
    return like_mlp(network, body, {f"Dense_{len(body)}": tree["mean_net"]})


def with_their_parameters(state: Any, params: Mapping[str, Any]) -> Any:
    """Our State with the numbers of their networks."""
    names = {"critic": (compare_qc.like, "critic")}
    if hasattr(state, "value"):
        value = lambda network, tree: like_mlp(network, tree["value_net"])  # noqa: E731
        names |= {"actor": (compare_qc.like, "actor_flow"), "value": (value, "value")}
    else:
        names |= {"actor": (like_actor, "actor")}
    changed = {}
    for name, (read, other) in names.items():
        old = getattr(state, name)
        changed[name] = old.replace(parameters=read(old.parameters, params[f"modules_{other}"]))
        target = f"target_{name}"
        if hasattr(state, target):
            changed[target] = read(getattr(state, target), params[f"modules_{target}"])
    return state.replace(**changed)


def updated(theirs: Any, case: Case, batch: Any) -> tuple[Any, Mapping[str, Any]]:
    """Their update; ReBRAC's actor sees the new critics."""
    after, info = theirs.update(batch)
    if case.agent is ifql:
        return after, info
    old, new = theirs.network, after.network
    critic = {**old.params, "modules_critic": new.params["modules_critic"]}
    later, later_info = theirs.replace(network=old.replace(params=critic)).update(batch)

    def with_its_actor(path: Any, one: Any, other: Any) -> Any:
        return other if "'modules_actor'" in jax.tree_util.keystr(path) else one

    network = jax.tree_util.tree_map_with_path(with_its_actor, new, later.network)
    actors = {name: x for name, x in later_info.items() if name.startswith("actor/")}
    return after.replace(network=network), {**info, **actors}


def compared(peer: Path, updates: int, case: Case) -> dict[str, float]:
    """The largest relative differences of losses, of parameters after all updates, and of an
    action then.
    """
    agent = case.agent
    config = agent.Config(hidden=ACTOR, **case.ours)
    length = config.chunk_length
    theirs, data = their_agent(peer, case, config)
    theirs = with_our_epsilon(exact(jax.tree.map(jnp.asarray, theirs)))
    first = exact(agent.init(jax.random.key(0), SMALL, config))
    first = state = with_their_parameters(first, theirs.network.params)
    prepared = compare_qc.prepared()
    update = jax.jit(agent.update)
    names = {"critic/loss": "critic/critic_loss", "actor/loss": "actor/actor_loss"}
    if agent is ifql:
        names["value/loss"] = "value/value_loss"
    else:
        names["actor/loss"] = "actor/total_loss"
    differences = dict.fromkeys(names, 0.0)
    with compare_qc.same_numbers(), stand_ins.old_names():
        for i in range(updates):
            batch = compare_qc.their_chunks(data, i, length, config.discount)
            rate = config.target_rate if i % case.every == case.every - 1 else 0.0
            before = theirs
            theirs, info = updated(theirs, case, batch)
            targets = ["critic"] if agent is ifql else ["critic", "actor"]
            theirs = compare_qc.with_new_targets(theirs, before, rate, *targets)
            chunks = compare_qc.our_chunks(prepared, i, length)
            unknown = {"next_action": chunks.action, "has_next_action": chunks.terminated}
            chunks = chunks.replace(extras={**chunks.extras, **unknown})
            settings = dataclasses.replace(config, target_rate=rate)
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i), settings)
            losses = {**metrics, "critic/loss": metrics["critic/loss"] / config.num_critics}
            compare_qc.keep_largest(differences, losses, info, names)
        observation = prepared.observation[0]
        ours = agent.act(state, observation, jax.random.key(0), config, True)[0]
        action = theirs.sample_actions(observation, jax.random.key(0))[:ACTION]
        differences["action"] = float(jnp.abs(ours - action).max())
    other = with_their_parameters(state, theirs.network.params)
    for name in ("actor", "critic", "value", "target_critic", "target_actor"):
        if hasattr(state, name):
            trees = (getattr(x, name) for x in (first, state, other))
            differences[name] = distance(*(getattr(x, "parameters", x) for x in trees))
    return differences


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, options.peer))


if __name__ == "__main__":
    main()
