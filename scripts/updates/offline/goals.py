"""What comparisons with OGBench's agents share: batches of our draw in their names, their agents,
and the numbers of their networks in ours.

All networks of a State are looked for in the authors' under `modules_NAME`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.networks import Network, Trained
from rljax.networks.goals.bilinear import Bilinear
from rljax.networks.goals.quasimetrics import Quasimetric
from scripts.updates import stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.shared import ACTION, ACTOR, BATCH, CRITIC, OBSERVATION, distance, exact

SPEC = EnvSpec("test/Goals-v0", (2 * OBSERVATION,), ACTION)  # [state; goal]
SIZES = {"hidden": ACTOR, "critic_hidden": CRITIC, "batch_size": BATCH}
THEIR_SIZES = {"actor_hidden_dims": ACTOR, "value_hidden_dims": CRITIC}


class Case(NamedTuple):
    """Our agent beside a class of `agents.NAME` of theirs, and what is compared."""

    agent: Any
    ours: Mapping[str, Any]  # settings
    theirs: Mapping[str, Any]
    metrics: Mapping[str, str]  # theirs by ours
    names: Mapping[str, str] = {}  # their modules by our networks, where names differ
    new_targets: Sequence[str] = ()  # their modules whose targets follow the new ones here

    @property
    def name(self) -> str:
        """Of the agent, the same in both."""
        return self.agent.__name__.rpartition(".")[2]

    @property
    def config(self) -> Any:
        """Our settings, in layers of the comparison's widths."""
        names = [field.name for field in dataclasses.fields(self.agent.Config)]
        sizes = {name: size for name, size in SIZES.items() if name in names}
        return self.agent.Config(**{**sizes, **self.ours})


def our_batches(agent: Any, config: Any, updates: int) -> list[Transition]:
    """Batches of our draw from recorded trajectories."""
    declared = agent.experience(config)
    data = jax.tree.map(jnp.asarray, declared.prepare(compare_qc.recorded()))
    declared = jax.tree.map(lambda x: jnp.asarray(x)[None], declared)  # of one learner
    keys = jax.random.split(jax.random.key(0), updates)
    draw = jax.jit(lambda key: declared.sample(None, data, key[None]))
    return [exact(jax.tree.map(lambda x: x[0, 0], draw(key))) for key in keys]


def state_and_goal(observation: Any) -> list[Any]:
    """The two halves of observations [..., 2 O]."""
    return jnp.split(observation, 2, axis=-1)


def their_batch(batch: Transition) -> dict[str, Any]:
    """A batch of ours in the names of their data sets; extras with a goal are added by its name."""
    state, goal = state_and_goal(batch.observation)
    result = {
        "observations": state,
        "next_observations": state_and_goal(batch.next_observation)[0],
        "actions": batch.action,
        "rewards": batch.reward,
        "masks": 1.0 - batch.terminated,
        "value_goals": goal,
    }
    extras = {"actor_observation": ("actor_goals", "high_actor_goals")}
    extras |= {"subgoal_observation": ("low_actor_goals",)}
    extras |= {"target_observation": ("high_actor_targets",)}
    for ours, theirs in extras.items():
        if ours in batch.extras:
            other = state_and_goal(batch.extras[ours])[1]
            result |= dict.fromkeys(theirs, other)
    return result


def their_agent(peer: Path, case: Case) -> Any:
    """Their agent in float64, at the comparison's sizes; `peer` is a checkout of OGBench."""
    module, _ = compare_qc.their_modules(peer / "impls", f"agents.{case.name}")
    kind = getattr(module, f"{case.name.upper()}Agent")
    options = {**module.get_config(), **THEIR_SIZES, **case.theirs}
    observation, action = np.zeros((1, OBSERVATION), np.float32), np.zeros((1, ACTION), np.float32)
    return exact(jax.tree.map(jnp.asarray, kind.create(0, observation, action, options)))


def like(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our network with the numbers of theirs: an actor's, values', a representation's or an
    MLP's.
    """
    if "actor_net" in tree:
        hidden = {x.replace("Dense", "hidden"): dict(y) for x, y in tree["actor_net"].items()}
        layers = {**hidden, "output": dict(tree["mean_net"])}
    elif "value_net" in tree:
        layers = compare_qc.ours(tree["value_net"])
    else:
        layers = compare_qc.ours(tree.get("layers_0", tree))
    if "members" in network.params:
        layers = {"members": layers}
    params = jax.tree.map(lambda _, new: jnp.asarray(new), network.params, layers)
    return network.replace(params=params)


def like_products(critics: Bilinear, tree: Mapping[str, Any]) -> Bilinear:
    """Our critics with the numbers of theirs, which have no first axis where there is but one."""

    def features(network: Network, theirs: Any) -> Network:
        new = {"members": compare_qc.ours(theirs)}
        shaped = jax.tree.map(lambda x, y: jnp.reshape(y, x.shape), network.params, new)
        return network.replace(params=shaped)

    return critics.replace(
        state_features=features(critics.state_features, tree["phi"]),
        goal_features=features(critics.goal_features, tree["psi"]),
    )


def like_distance(distance: Quasimetric, tree: Mapping[str, Any]) -> Quasimetric:
    """Our distance with the numbers of theirs."""
    layers = jax.tree.map(jnp.asarray, compare_qc.ours(tree["phi"]))
    mixing = None if distance.mixing is None else jnp.asarray(tree["alpha"]["value"])
    return distance.replace(embedding=distance.embedding.replace(params=layers), mixing=mixing)


def with_their_parameters(state: Any, params: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """Our State with the numbers of their networks."""

    def new(name: str, part: Any) -> Any:
        if isinstance(part, Network):
            return like(part, params[f"modules_{names.get(name, name)}"])
        if isinstance(part, Bilinear):
            return like_products(part, params[f"modules_{names.get(name, name)}"])
        if isinstance(part, Quasimetric):
            return like_distance(part, params[f"modules_{names.get(name, name)}"])
        if isinstance(part, Trained):
            return part.replace(parameters=new(name, part.parameters))
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            return changed(part)
        return part

    def changed(whole: Any) -> Any:
        fields = [field.name for field in dataclasses.fields(whole)]
        return whole.replace(**{name: new(name, getattr(whole, name)) for name in fields})

    return changed(state)


def networks_of(state: Any) -> dict[str, Any]:
    """The networks of a State by name."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        part = getattr(state, field.name)
        part = part.parameters if isinstance(part, Trained) else part
        if isinstance(part, Network | Bilinear | Quasimetric):
            found[field.name] = part
        elif dataclasses.is_dataclass(part):
            found |= networks_of(part)
    return found


def compared(peer: Path, updates: int, case: Case) -> dict[str, float]:
    """The largest relative differences of metrics, and of networks after all updates."""
    config, theirs = case.config, their_agent(peer, case)
    state = exact(case.agent.init(jax.random.key(0), SPEC, config))
    first = state = with_their_parameters(state, theirs.network.params, case.names)
    update = jax.jit(functools.partial(case.agent.update, config=config))
    differences = dict.fromkeys(case.metrics, 0.0)
    for i, batch in enumerate(our_batches(case.agent, config, updates)):
        before = theirs
        with stand_ins.old_names():
            theirs, info = theirs.update(their_batch(batch))
        rate = getattr(config, "target_rate", 0.0)
        theirs = compare_qc.with_new_targets(theirs, before, rate, *case.new_targets)
        state, metrics = update(state, batch, jax.random.key(0), jnp.asarray(i))
        compare_qc.keep_largest(differences, metrics, info, case.metrics)
    other = with_their_parameters(state, theirs.network.params, case.names)
    parts = [networks_of(x) for x in (first, state, other)]
    return differences | {name: distance(*(x[name] for x in parts)) for name in parts[0]}
