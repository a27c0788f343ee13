"""Our updates beside those of other people's unmodified files:
the same first parameters, batches and noise.

The script watch_authors_file.py keeps the other file's first and last parameters, its batches, its
losses and the numbers that it draws. Our agent begins with the same parameters and learns from the
same rows of the recorded file, which the suite normalises, with the same numbers in place of random
ones. What is left is arithmetic: the losses of each update, and the parameters at the end. TD3+BC
and ReBRAC have no noise on target actions here. IQL, BC and RIQL have none at all.

  python scripts/checks/compare_updates.py HalfCheetah-medium.hdf5 --peers peers \
      --peer peer/bin/python --jax-peer jax-peer/bin/python \
      --output results/checks/references/updates.json

The folder `peers` has these projects of GitHub: tinkoff-ai/CORL at 6afec90 and YangRui2015/RIQL at
cc07d81, as CORL and RIQL, seohongpark/fql at 719d044 as FQL, and
Zhendong-Wang/Diffusion-Policies-for-Offline-RL at d871f5c as Diffusion-QL. The data set and both
Pythons are those of compare_returns.py. FQL needs distrax 0.1.5 and ml-collections too,
Diffusion-QL tabulate and python-dateutil.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from scripts.benchmarks import measuring
from scripts.checks.authors.pairs import PAIRS, UPDATES

# Equal at the beginning.
TARGETS = {"target_critic": "critic", "target_actor": "actor", "average_actor": "actor"}
DRAWS = ("normal", "uniform", "randint", "bernoulli")  # functions of jax.random


def compared(agent: str, data: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Train our agent from the same parameters on the same batches, and compare."""
    import jax
    import jax.numpy as jnp

    from rljax import buffers, datasets, networks
    from rljax.agent import EnvSpec
    from rljax.learning import agent_state, registry

    pair, module = PAIRS[agent], registry.load_agent(agent)
    rows = datasets.load(str(data)).transitions
    place = {action.tobytes(): i for i, action in enumerate(np.asarray(rows.action))}
    places = np.array(
        [[place[action.tobytes()] for action in batch] for batch in arrays["actions"]]
    )  # [N, B]
    config = module.Config(**pair.config)
    if hasattr(module, "schedule"):
        config = module.schedule(config, UPDATES)
    spec = EnvSpec("data", rows.observation.shape[1:], rows.action.shape[1])
    inputs = module.experience(config).inputs
    trained = agent_state.create(module, jax.random.key(0), spec, config, inputs)
    trained = agent_state.prepare(module, trained, rows, config)
    columns = {"rebrac": (buffers.NextAction(),), "calql": (buffers.ReturnToGo(discount=0.99),)}
    for column in columns.get(agent, ()):
        rows = rows.replace(extras=column.of_data(rows))
    names = list(dict.fromkeys(name.split("/")[0] for name in pair.networks))
    state = trained.state
    for name in names:
        state = replaced(state, name, arrays)
    for target, network in TARGETS.items():
        if hasattr(state, target):
            parameters = networks.parameters_of(getattr(state, network))
            state = state.replace(**{target: networks.copy(parameters)})
    trained = trained.replace(state=state)
    observations = trained.see(rows.observation[places[0]])

    @jax.jit
    def learn(state: Any, rows: Any, places: Any, noise: Any) -> Any:
        def update(state: Any, inputs: Any) -> Any:
            step, places, noise = inputs
            batch = jax.tree.map(lambda x: x[places], rows)
            with given_noise(noise):
                return agent_state.update(module, state, batch, jax.random.key(0), step, config)

        return jax.lax.scan(update, state, (jnp.arange(len(places)) + pair.offset, places, noise))

    noise = {
        kind: [arrays[name] for name in arrays if name.startswith(f"{kind}/")] for kind in DRAWS
    }
    end, metrics = learn(trained, jax.tree.map(jnp.asarray, rows), jnp.asarray(places), noise)
    moved, apart = 0.0, 0.0
    for name in names:
        for key, value in leaves(parameters_of(end.state, name)):
            first, last = (arrays[f"{when}/{name}/{key}"] for when in ("first", "last"))
            moved = moved + np.square(last - first).sum()
            apart = apart + np.square(last - value).sum()
    return {
        "updates": UPDATES,
        "observations": float(np.abs(observations - arrays["observations"][0]).max()),
        "losses": {
            name: relative(
                np.asarray(getattr(metrics[metric], "value", metrics[metric])),
                arrays[f"loss/{name}"] * times,
            )
            for name, (metric, times) in pair.losses.items()
        },
        "parameters": float(np.sqrt(apart / moved)),
    }


@contextlib.contextmanager
def given_noise(noise: Mapping[str, list[Any]]) -> Iterator[None]:
    """Inside, JAX draws these numbers, in turn, in place of random ones."""
    import jax

    with contextlib.ExitStack() as stack:
        for kind, draws in noise.items():
            left = iter(draws)

            def drawn(key: Any, shape: Any = (), *_: Any, left: Any = left, **__: Any) -> Any:
                return next(left).reshape(shape)

            if draws:
                stack.enter_context(mock.patch.object(jax.random, kind, drawn))
        yield


def relative(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """The largest difference of two losses [N], relative to theirs,
    in the first 10 updates and in all.
    """
    known = np.isfinite(theirs)
    off = np.abs(ours - theirs)[known] / np.maximum(np.abs(theirs[known]), 1e-2)
    return {"first 10": float(off[: known[:10].sum()].max()), "all": float(off.max())}


def network_of(state: Any, name: str) -> Any:
    """Our network 'critic', or 'actor.flow' where the actor has several."""
    from rljax import networks

    outer, _, inner = name.partition(".")
    network = networks.parameters_of(getattr(state, outer))
    return getattr(network, inner) if inner else network


def parameters_of(state: Any, name: str) -> Any:
    """The parameters of one of our networks."""
    network = network_of(state, name)
    return getattr(network, "mean", network).params


def leaves(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a network, each with a name such as '0/hidden_1/kernel',
    where 0 is a member of an ensemble.
    """
    import jax

    for path, array in jax.tree_util.tree_leaves_with_path(tree.get("members", tree)):
        name = "/".join(key.key for key in path)
        for i, value in enumerate(array if "members" in tree else [array]):
            yield f"{i}/{name}", np.asarray(value)


def replaced(state: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """The state with one network's parameters from the arrays."""
    import jax

    from rljax import networks

    params = parameters_of(state, name)
    several = "members" in params

    def of_arrays(path: Any, leaf: Any) -> np.ndarray:
        key = "/".join(each.key for each in path)
        members = [arrays[f"first/{name}/{i}/{key}"] for i in range(len(leaf) if several else 1)]
        return np.stack(members) if several else members[0]

    taken = jax.tree_util.tree_map_with_path(of_arrays, params["members"] if several else params)
    network = network_of(state, name)
    parts = getattr(network, "mean", network).replace(
        params={"members": taken} if several else taken
    )
    parts = network.replace(mean=parts) if hasattr(network, "mean") else parts
    outer, _, inner = name.partition(".")
    field = getattr(state, outer)
    parameters = networks.parameters_of(field).replace(**{inner: parts}) if inner else parts
    if isinstance(field, networks.Trained):
        parameters = field.replace(parameters=parameters)
    return state.replace(**{outer: parameters})


def described(data: Path, agents: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, with the data set and the versions."""
    from rljax.system.hardware import provenance

    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    return {"data": data.name, "sha256": digest, **provenance(), "agents": agents}


def main() -> None:
    """Compare all pairs, and write what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="the recorded file")
    parser.add_argument(
        "--agents", nargs="*", choices=PAIRS, help="only these, beside what the output has already"
    )
    parser.add_argument(
        "--peers", type=Path, required=True, help="the folder with the other projects"
    )
    parser.add_argument("--peer", type=Path, help="the Python for their files")
    parser.add_argument("--jax-peer", type=Path, help="the Python for those that use JAX")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    agents = json.loads(options.output.read_text())["agents"] if options.agents else {}
    environment = measuring.variables() | {
        "NPROC": "4"
    }  # with a single thread JAX would wait for its own callbacks for ever
    with tempfile.TemporaryDirectory() as folder:
        for agent in options.agents or PAIRS:
            out = Path(folder, f"{agent}.npz")
            python = options.jax_peer if PAIRS[agent].uses_jax else options.peer
            command = [
                python,
                Path(__file__).with_name("watch_authors_file.py"),
                agent,
                options.data,
                options.peers,
                out,
            ]
            subprocess.run(
                [str(x) for x in command], check=True, stdout=subprocess.DEVNULL, env=environment
            )
            agents[agent] = compared(agent, options.data, np.load(out))
            print(agent, json.dumps(agents[agent]))
    options.output.write_text(json.dumps(described(options.data, agents), indent=1) + "\n")


if __name__ == "__main__":
    main()
