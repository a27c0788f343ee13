"""Our updates beside those of CORL's unmodified files: the same first parameters, the same batches, no noise.

CORL's file trains by its own `train`. Its first and last parameters, its batches and its losses are kept. Our agent
begins with the same parameters and learns from the same rows of the recorded file, which it normalises by itself. What
is left is arithmetic: the losses of each update, and the parameters at the end. TD3+BC and ReBRAC have no noise on
target actions here. IQL and BC have none at all.

  python scripts/reference_updates.py HalfCheetah-medium.hdf5 --corl CORL --peer peer/bin/python \
      --jax-peer jax-peer/bin/python --output results/references/updates.json

The data set and the peer are those of scripts/references_study.py.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import reference_offline

UPDATES = 200
SETTINGS = "--device cpu --env halfcheetah-medium-v2 --buffer_size 100000 --max_timesteps {updates} --eval_freq 1000000"

# Our settings where CORL's differ from our defaults, and CORL's where its table for the set differs from its defaults.
IQL: dict[str, Any] = {
    "values": "old",
    "normalise_observations": True,
    "reward_transform": "none",
    "initialisation": "torch",
    "log_std_min": -20.0,
}
REBRAC: dict[str, Any] = {"batch_size": 256, "actor_penalty": 0.001, "critic_penalty": 0.01}
REBRAC_ARGUMENTS = "--batch_size 256 --actor_bc_coef 0.001 --critic_bc_coef 0.01"


class Pair(NamedTuple):
    """One of CORL's files, and our agent with the same settings."""

    file: str
    learner: str  # the class with the method `train`; none in files that use JAX
    networks: Mapping[str, tuple[str, ...]]  # our networks by name: theirs, one for each member
    losses: Mapping[str, tuple[str, float]]  # their losses by name: our metric, and how many of theirs it is
    arguments: str
    config: Mapping[str, Any]
    offset: int = 0  # of the number of an update: CORL's ReBRAC moves the actor on its first one, ours on its second


PAIRS = {
    "td3_bc": Pair(
        "td3_bc.py",
        "TD3_BC",
        {"actor": ("actor",), "critic": ("critic_1", "critic_2")},
        {"critic_loss": ("critic/loss", 1.0), "actor_loss": ("actor/loss", 1.0)},
        f"{SETTINGS} --policy_noise 0.0",
        {"target_noise": 0.0},
    ),
    "iql": Pair(
        "iql.py",
        "ImplicitQLearning",
        {"actor": ("actor",), "critic": ("qf.q1", "qf.q2"), "value": ("vf",)},
        {"value_loss": ("value/loss", 1.0), "q_loss": ("critic/loss", 2.0), "actor_loss": ("actor/loss", 1.0)},
        SETTINGS,
        IQL,
    ),
    "bc": Pair(
        "any_percent_bc.py",
        "BC",
        {"actor": ("actor",)},
        {"actor_loss": ("actor/loss", 1.0)},
        f"{SETTINGS} --frac 1.0",
        {},
    ),
    "rebrac": Pair(
        "rebrac.py",
        "",
        {"actor": ("actor",), "critic": ("critic",)},
        {"critic_loss": ("critic/loss", 1.0), "actor_loss": ("actor/loss", 1.0)},
        "--num_epochs 1 --num_updates_on_epoch {updates} --eval_episodes 0 --policy_noise 0.0 " + REBRAC_ARGUMENTS,
        REBRAC | {"target_noise": 0.0},
        offset=1,
    ),
}


# In the peer's Python, without rljax


def watch(agent: str, data: Path, corl: Path, out: Path) -> None:
    """Train CORL's file, and keep its parameters, batches and losses as arrays."""
    pair = PAIRS[agent]
    reference_offline.install(reference_offline.Recorded(data))
    module = reference_offline.loaded(corl / "algorithms" / "offline" / pair.file)
    sys.argv = [pair.file, *pair.arguments.format(updates=UPDATES).split()]
    first, last, batches, losses = (watch_torch if pair.learner else watch_jax)(module, pair)
    arrays = {f"first/{key}": value for key, value in first.items()} | {f"last/{key}": x for key, x in last.items()}
    arrays |= {f"loss/{name}": np.array([each.get(name, np.nan) for each in losses]) for name in pair.losses}
    observations, actions = (np.stack([batch[i] for batch in batches]) for i in (0, 1))
    np.savez(out, observations=observations, actions=actions, **arrays)


def watch_torch(module: Any, pair: Pair) -> tuple[dict, dict, list, list]:
    """First and last parameters, batches and losses of a file whose learner has a method `train`."""
    importlib.import_module("torch").set_num_threads(1)
    learner = getattr(module, pair.learner)
    train, batches, losses, seen = learner.train, [], [], []

    def watched(self: Any, batch: Any) -> Any:
        if not seen:
            seen.extend([self, torch_parameters(self, pair)])
        batches.append([x.numpy() for x in batch])
        losses.append(train(self, batch))
        return losses[-1]

    learner.train = watched
    module.train()
    return seen[1], torch_parameters(seen[0], pair), batches, losses


def torch_parameters(learner: Any, pair: Pair) -> dict[str, np.ndarray]:
    """Kernels and biases of all networks under our names: 'critic/0/hidden_1/kernel' is of member 0."""
    found = {}
    for name, members in pair.networks.items():
        for i, member in enumerate(members):
            network = learner
            for part in member.split("."):
                network = getattr(network, part)
            layers = [layer for layer in network.modules() if type(layer).__name__ == "Linear"]
            for j, layer in enumerate(layers):
                key = f"{name}/{i}/{'output' if layer is layers[-1] else f'hidden_{j}'}"
                found[f"{key}/kernel"] = layer.weight.detach().numpy().T.copy()
                found[f"{key}/bias"] = layer.bias.detach().numpy().copy()
    return found


def watch_jax(module: Any, pair: Pair) -> tuple[dict, dict, list, list]:
    """The same of CORL's rebrac.py, whose updates are two functions inside a compiled loop."""
    import jax

    kept: dict[int, Any] = {}

    def keep(number: Any, *given: Any) -> None:
        kept[int(number[0])] = jax.tree_util.tree_map(np.asarray, given)

    def watching(update: Any) -> Any:
        def watched(**given: Any) -> Any:
            key, actor, critic, metrics = update(**given)
            before, after = given["metrics"].accumulators, metrics.accumulators
            counted = [name for name in pair.losses if after[name][1] is not before[name][1]]
            losses = {name: after[name][0] - before[name][0] for name in counted}
            batch = [given["batch"][name] for name in ("states", "actions")]
            first = {"actor": given["actor"].params, "critic": given["critic"].params}
            last = {"actor": actor.params, "critic": critic.params}
            jax.debug.callback(keep, after["critic_loss"][1], first, last, batch, losses)
            return key, actor, critic, metrics

        return watched

    for name in ("update_td3", "update_td3_no_targets"):
        setattr(module, name, watching(getattr(module, name)))
    module.main()
    jax.effects_barrier()
    updates = [kept[number] for number in sorted(kept)]
    losses = [{name: float(loss[0]) for name, loss in each[3].items()} for each in updates]
    return jax_parameters(updates[0][0]), jax_parameters(updates[-1][1]), [each[2] for each in updates], losses


def jax_parameters(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters of Flax's modules under our names."""
    found = {}
    for name in ("actor", "critic"):
        tree = given[name]["params"]
        tree = tree.get("VmapCritic_0", tree)
        last = f"Dense_{sum(layer.startswith('Dense') for layer in tree) - 1}"
        for layer, arrays in tree.items():
            own = "output" if layer == last else layer.replace("Dense", "hidden").replace("LayerNorm", "norm")
            for kind, array in arrays.items():
                for i in range(2 if name == "critic" else 1):
                    found[f"{name}/{i}/{own}/{kind}"] = np.asarray(array[i] if name == "critic" else array)
    return found


# In our Python


def compared(agent: str, data: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Train our agent from the same parameters on the same batches, and compare."""
    import jax
    import jax.numpy as jnp

    from rljax import buffers, datasets, networks
    from rljax.agent import EnvSpec
    from rljax.networks import normalise
    from rljax.training import registry

    pair, module = PAIRS[agent], registry.load_agent(agent)
    rows = datasets.load(str(data)).transitions
    place = {action.tobytes(): i for i, action in enumerate(np.asarray(rows.action))}
    chosen = np.array([[place[action.tobytes()] for action in batch] for batch in arrays["actions"]])  # [N, B]
    config = module.Config(**pair.config)
    if hasattr(module, "schedule"):
        config = module.schedule(config, UPDATES)
    spec = EnvSpec("data", rows.observation.shape[1:], rows.action.shape[1])
    state = module.prepare(module.init(jax.random.key(0), spec, config), rows, config)
    if agent == "rebrac":
        rows = rows.replace(extras=buffers.NextAction().of_data(rows))
    for name in pair.networks:
        state = replaced(state, name, arrays)
    if agent != "bc":
        state = state.replace(target_critic=networks.copy(state.critic))
    if hasattr(state, "target_actor"):
        state = state.replace(target_actor=networks.copy(state.actor))
    observations = rows.observation[chosen[0]]
    if config.normalise_observations:
        observations = normalise.standardise(state.statistics, observations)

    @jax.jit
    def learn(state: Any, rows: Any, chosen: Any) -> Any:
        def update(state: Any, given: Any) -> Any:
            step, places = given
            batch = jax.tree.map(lambda x: x[places], rows)
            return module.update(state, batch, jax.random.key(0), step, config)

        return jax.lax.scan(update, state, (jnp.arange(len(chosen)) + pair.offset, chosen))

    end, metrics = learn(state, jax.tree.map(jnp.asarray, rows), jnp.asarray(chosen))
    moved, apart = 0.0, 0.0
    for name in pair.networks:
        for key, value in leaves(params(end, name)):
            first, last = (arrays[f"{when}/{name}/{key}"] for when in ("first", "last"))
            moved, apart = moved + np.square(last - first).sum(), apart + np.square(last - value).sum()
    return {
        "updates": UPDATES,
        "observations": float(np.abs(observations - arrays["observations"][0]).max()),
        "losses": {
            name: relative(
                np.asarray(getattr(metrics[metric], "value", metrics[metric])), arrays[f"loss/{name}"] * times
            )
            for name, (metric, times) in pair.losses.items()
        },
        "parameters": float(np.sqrt(apart / moved)),
    }


def relative(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """The largest difference of two losses [N], relative to theirs, in the first 10 updates and in all."""
    known = np.isfinite(theirs)
    off = np.abs(ours - theirs)[known] / np.maximum(np.abs(theirs[known]), 1e-2)
    return {"first 10": float(off[: known[:10].sum()].max()), "all": float(off.max())}


def params(state: Any, name: str) -> Any:
    """The parameters of one of our networks."""
    network = getattr(state, name)
    return getattr(network, "mean", network).params


def leaves(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a network, each with a name such as '0/hidden_1/kernel', where 0 is a member of an ensemble."""
    several = "members" in tree
    for layer, arrays in tree.get("members", tree).items():
        for kind, array in arrays.items():
            for i, value in enumerate(array if several else [array]):
                yield f"{i}/{layer}/{kind}", np.asarray(value)


def replaced(state: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """The state with one network's parameters from the arrays."""
    several = "members" in params(state, name)
    tree = {
        layer: {
            kind: np.stack([arrays[f"first/{name}/{i}/{layer}/{kind}"] for i in range(len(array))])
            if several
            else arrays[f"first/{name}/0/{layer}/{kind}"]
            for kind, array in found.items()
        }
        for layer, found in (params(state, name)["members"] if several else params(state, name)).items()
    }
    network = getattr(state, name)
    own = getattr(network, "mean", network).replace(params={"members": tree} if several else tree)
    return state.replace(**{name: network.replace(mean=own) if hasattr(network, "mean") else own})


def described(data: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, with the data set and the versions."""
    from rljax.distributed.hardware import provenance

    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    return {"data": data.name, "sha256": digest, **provenance(), "agents": found}


def main() -> None:
    """Compare all pairs, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the recorded file")
    parser.add_argument("--agents", nargs="*", choices=PAIRS, help="only these, beside what the output has already")
    parser.add_argument("--corl", type=Path, required=True, help="the folder with CORL's files")
    parser.add_argument("--peer", type=Path, help="the Python for CORL's files")
    parser.add_argument("--jax-peer", type=Path, help="the Python for rebrac.py")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    parser.add_argument(
        "--watch", nargs=2, help=argparse.SUPPRESS
    )  # in the peer's Python: an agent, and a file to write
    options = parser.parse_args()
    if options.watch:
        watch(options.watch[0], options.data, options.corl, Path(options.watch[1]))
        return
    found = json.loads(options.output.read_text())["agents"] if options.agents else {}
    environment = os.environ | {"NPROC": "4"}  # with a single thread JAX would wait for its own callbacks for ever
    with tempfile.TemporaryDirectory() as folder:
        for agent in options.agents or PAIRS:
            out = Path(folder, f"{agent}.npz")
            python = options.peer if PAIRS[agent].learner else options.jax_peer
            command = [python, __file__, options.data, "--corl", options.corl, "--watch", agent, out]
            subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL, env=environment)
            found[agent] = compared(agent, options.data, np.load(out))
            print(agent, json.dumps(found[agent]))
    options.output.write_text(json.dumps(described(options.data, found), indent=1) + "\n")


if __name__ == "__main__":
    main()
