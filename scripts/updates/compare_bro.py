"""BRO's updates beside those of the authors' unmodified learner: the same first parameters,
batches and noise.

  python scripts/updates/compare_bro.py --peer bro --output results/checks/references/bro.json

The folder `bro` has naumix/BiggerRegularizedOptimistic of GitHub at 5870a13. Their learner is
imported as it is, in float64 as ours; distributions are those of distrax. Every normal number is
the same in both: the standard normals of a fixed seed. Targets begin apart from their critics.
What is left is arithmetic.

With --times the processor's seconds of one update at full size, of Humanoid's shapes, in float32
and in turns.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import bro
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.compare_simbav2 import apart
from scripts.updates.shared import (
    ACTION,
    BATCH,
    OBSERVATION,
    batches,
    distance,
    exact,
    fixed_noise,
    relative,
)

CASES: dict[str, dict[str, Any]] = {
    "quantiles": {},
    "mean values": {"value_head": "squared"},
}
LOSSES = {  # ours and theirs
    "critic/loss": "critic_loss",
    "actor/loss": "actor_loss",
    "optimist/loss": "actor_o_loss",
}
NETWORKS = {  # fields of our State and attributes of their learner
    "actor": "actor",
    "optimist": "actor_o",
    "critic": "critic",
    "target_critic": "target_critic",
    "log_temperature": "temp",
    "optimism": "optimism",
    "kl_weight": "regularizer",
}


class Batch(NamedTuple):
    """Batches with their names: seeds, updates, rows."""

    observations: Any
    actions: Any
    rewards: Any
    masks: Any
    dones: Any
    next_observations: Any


@contextlib.contextmanager
def their_code(peer: Path) -> Iterator[Any]:
    """The module of their learner."""
    gym = types.ModuleType("gym")
    gym.spaces = types.SimpleNamespace(Box=None)  # type: ignore[attr-defined]
    with stand_ins.importing(peer, {"gym": gym}) as imported:
        yield imported("jaxrl.bro.bro_learner")


def their_learner(module: Any, spec: EnvSpec, config: bro.Config) -> Any:
    """The authors' learner, of one seed."""
    return module.BRO(
        0,
        np.zeros((1, *spec.observation_shape), np.float32),
        np.zeros((1, *spec.action_shape), np.float32),
        num_seeds=1,
        updates_per_step=10,
        distributional=config.value_head == "quantile",
        n_quantiles=config.quantiles,
    )


def theirs(batch: Transition) -> Batch:
    """A batch in the order of their buffer."""
    dtype = np.asarray(batch.reward).dtype
    parts = (batch.observation, batch.action, batch.reward, 1.0 - np.asarray(batch.terminated))
    fields = (*parts, batch.truncated, batch.next_observation)
    return Batch(*[jnp.asarray(x, dtype)[None, None] for x in fields])


def torso(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one of their BroNets by our names, but for the last layer."""
    number = sum(name.startswith("LayerNorm_") for name in tree)
    names = ["input", *(f"{i // 2}_{i % 2}" for i in range(number - 1))]
    params = {f"hidden_{name}": dict(tree[f"Dense_{i}"]) for i, name in enumerate(names)}
    return params | {f"norm_{name}": dict(tree[f"LayerNorm_{i}"]) for i, name in enumerate(names)}


def ours(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one of their networks by our names."""
    if "Critic_0" in tree:
        members = []
        for name in ("Critic_0", "Critic_1"):
            net = tree[name]["BroNet_0"]
            last = max(net, key=lambda x: (x.startswith("Dense_"), x))
            members.append({"torso": torso(net), "output": dict(net[last])})
        return {"member": jax.tree.map(lambda *x: jnp.stack(x), *members)}
    layers = [tree[name] for name in ("Dense_0", "Dense_1") if name in tree]  # mean and log std
    output = {
        part: jnp.concatenate([layer[part] for layer in layers], axis=-1) for part in layers[0]
    }
    return {"torso": torso(tree["BroNet_0"]), "output": output}


def like(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our network with the numbers of theirs."""
    params = jax.tree.map(lambda _, x: jnp.asarray(x), network.params, ours(tree))
    return network.replace(params=params)


def begun(state: bro.State, learner: Any) -> bro.State:
    """Our State with the numbers of their learner."""
    params = {
        ours_: jax.tree.map(lambda x: x[0], getattr(learner, name).params)
        for ours_, name in NETWORKS.items()
    }

    def replaced(name: str, parameters: Any) -> Any:
        return getattr(state, name).replace(parameters=parameters)

    moved = {
        name: replaced(name, like(getattr(state, name).parameters, params[name]))
        for name in ("actor", "optimist", "critic")
    }
    weights = {name: params[name]["log_value"] for name in ("optimism", "kl_weight")}
    return state.replace(
        **moved,
        target_critic=like(state.target_critic, params["target_critic"]),
        log_temperature=replaced("log_temperature", params["log_temperature"]["log_temp"]),
        weights=replaced("weights", weights),
    )


def compared(module: Any, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences after `updates` updates."""
    config = bro.Config(batch_size=BATCH, reset_at=(), **changes)
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    learner = their_learner(module, spec, config)
    for name in NETWORKS.values():
        setattr(learner, name, exact(getattr(learner, name)))
    learner.target_critic = apart(learner.target_critic)
    state = begun(exact(bro.init(jax.random.key(0), spec, config)), learner)
    first, update = state, jax.jit(bro.update)
    differences = dict.fromkeys(LOSSES, 0.0)
    with fixed_noise():
        for step, batch in enumerate(batches(updates)):
            batch = exact(batch)
            state, metrics = update(state, batch, jax.random.key(0), step, config)
            info = learner.update(theirs(batch), 1, 1)
            for name, other in LOSSES.items():
                off = relative(metrics[name], info[other][0])
                differences[name] = max(differences[name], off)
    after = begun(state, learner)
    for name in ("actor", "optimist", "critic", "target_critic", "log_temperature", "weights"):
        parts = (getattr(x, name) for x in (first, state, after))
        differences[name] = distance(*[getattr(part, "parameters", part) for part in parts])
    return differences


def times(module: Any) -> dict[str, Any]:
    """See `shared.beside`, in float32 and on the same batch."""
    config, spec = bro.Config(), shared.HUMANOID
    batch = shared.random_batch(config.batch_size)
    learner = their_learner(module, spec, config)
    state = jax.jit(bro.init, static_argnums=1)(jax.random.key(0), spec, config)
    their_batch = theirs(batch)
    width = config.critic_hidden[0]
    return shared.beside(
        lambda: learner.update(their_batch, 1, 1), bro.update, state, batch, config, width
    )


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    with their_code(options.peer) as module:
        shared.report_or_time(options, CASES, compared, times, module)


if __name__ == "__main__":
    main()
