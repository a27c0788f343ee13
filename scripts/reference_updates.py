"""Our updates beside those of other people's unmodified files: the same first parameters, batches and noise.

The other file trains by its own `train`. Its first and last parameters, its batches, its losses and the numbers that it
draws are kept. Our agent begins with the same parameters and learns from the same rows of the recorded file, which it
normalises by itself, with the same numbers in place of random ones. What is left is arithmetic: the losses of each
update, and the parameters at the end. TD3+BC and ReBRAC have no noise on target actions here. IQL and BC have none at
all. EDAC, CQL and Cal-QL draw actions in each update.

  python scripts/reference_updates.py HalfCheetah-medium.hdf5 --peers peers --peer peer/bin/python \
      --jax-peer jax-peer/bin/python --output results/references/updates.json

The folder `peers` has github.com/tinkoff-ai/CORL at 6afec90 and github.com/YangRui2015/RIQL at cc07d81, as CORL and
RIQL. The data set and both Pythons are those of scripts/references_study.py.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import Any
from unittest import mock

import numpy as np
import reference_offline
from reference_pairs import PAIRS, UPDATES, Noise, Pair, no_noise

# In the peer's Python, without rljax


def watch(which: str, data: Path, peers: Path, out: Path) -> None:
    """Train the other file, and keep its parameters, batches, losses and noise as arrays."""
    pair = PAIRS[which]  # this frame has no `agent`: reference_offline looks for one among its callers
    reference_offline.install(reference_offline.Recorded(data))
    sys.path.insert(0, str((peers / pair.file).parent))
    module = reference_offline.loaded(peers / pair.file)
    sys.argv = [pair.file, *pair.arguments.format(updates=UPDATES).split()]
    for name, value in pair.fields.items():
        setattr(module.TrainConfig, name, value)
    first, last, batches, losses, noise = (watch_torch if pair.learner else watch_jax)(module, pair)
    arrays = {f"first/{key}": value for key, value in first.items()} | {f"last/{key}": x for key, x in last.items()}
    arrays |= {f"loss/{name}": np.array([added(each, name) for each in losses]) for name in pair.losses}
    arrays |= {f"{kind}/{i}": x for kind, draws in noise.items() for i, x in enumerate(draws)}
    observations, actions = (np.stack([batch[i] for batch in batches]) for i in (0, 1))
    np.savez(out, observations=observations, actions=actions, **arrays)


def added(losses: Mapping[str, float], names: str) -> float:
    """The sum of an update's losses 'a+b'; NaN where it has none."""
    return sum(losses.get(name, np.nan) for name in names.split("+"))


def watch_torch(module: Any, pair: Pair) -> tuple[dict, dict, list, list, Noise]:
    """First and last parameters, batches, losses and noise of a file whose learner has a method for an update."""
    importlib.import_module("torch").set_num_threads(1)
    learner = getattr(module, pair.learner)
    train, batches, losses, noise, seen = getattr(learner, pair.method), [], [], [], []

    def watched(self: Any, batch: Any) -> Any:
        if not seen:
            for name in pair.fixed:
                part_of(self, name).requires_grad_(False)
            seen.extend([self, torch_parameters(self, pair)])
        batches.append([x.numpy() for x in batch])
        with watched_noise(pair.repeated) as drawn:
            losses.append(train(self, batch))
        noise.append(drawn)
        return losses[-1]

    setattr(learner, pair.method, watched)
    module.train(*[module.TrainConfig] * bool(pair.fields))
    normal, uniform = ([np.stack(x) for x in zip(*[each[k] for each in noise], strict=True)] for k in (0, 1))
    return seen[1], torch_parameters(seen[0], pair), batches, losses, pair.noise(normal, uniform)


@contextlib.contextmanager
def watched_noise(repeated: Mapping[int, int]) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """The normal and the uniform numbers that torch draws inside, in order; some draws are those of an earlier one."""
    import torch  # pyright: ignore[reportMissingImports]

    place, normal, uniform = torch.distributions.normal, [], []
    drawn, filled = place._standard_normal, torch.Tensor.uniform_

    def watched_normal(*given: Any, **options: Any) -> Any:
        again = repeated.get(len(normal))
        normal.append(drawn(*given, **options) if again is None else normal[again])
        return normal[-1]

    def watched_uniform(self: Any, *given: Any, **options: Any) -> Any:
        uniform.append(filled(self, *given, **options).numpy().copy())
        return self

    place._standard_normal, torch.Tensor.uniform_ = watched_normal, watched_uniform
    try:
        yield normal, uniform
    finally:
        place._standard_normal, torch.Tensor.uniform_ = drawn, filled


def part_of(learner: Any, name: str) -> Any:
    """The part 'qf.q1' of a learner."""
    for each in name.split("."):
        learner = getattr(learner, each)
    return learner


def torch_parameters(learner: Any, pair: Pair) -> dict[str, np.ndarray]:
    """Kernels and biases of all networks under our names: 'critic/0/hidden_1/kernel' is of member 0."""
    found = {}
    for name, members in pair.networks.items():
        arrays = [each for member in members for each in torch_members(part_of(learner, member))]
        for i, layers in enumerate(arrays):
            for j, (kernel, bias) in enumerate(layers):
                key = f"{name}/{i}/{'output' if j == len(layers) - 1 else f'hidden_{j}'}"
                found |= {f"{key}/kernel": kernel.copy(), f"{key}/bias": bias.copy()}
    return found


def torch_members(network: Any) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Kernel [in, out] and bias [out] of each layer, of each member of an ensemble. Two heads count as one layer."""
    layers = [x for x in network.modules() if type(x).__name__ in ("Linear", "VectorizedLinear")]
    weights = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in layers]
    if type(layers[0]).__name__ == "VectorizedLinear":
        return [[(weight[i], bias[i, 0]) for weight, bias in weights] for i in range(network.num_critics)]
    arrays = [(weight.T, bias) for weight, bias in weights]
    if hasattr(network, "log_sigma"):  # the last two, the mean's and this one, read the same features
        *arrays, mean, log_std = arrays
        arrays.append((np.concatenate([mean[0], log_std[0]], axis=1), np.concatenate([mean[1], log_std[1]])))
    return [arrays]


def watch_jax(module: Any, pair: Pair) -> tuple[dict, dict, list, list, Noise]:
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
    first, last, batches = jax_parameters(updates[0][0]), jax_parameters(updates[-1][1]), [each[2] for each in updates]
    return first, last, batches, losses, no_noise([], [])


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
    columns = {"rebrac": (buffers.NextAction(),), "calql": (buffers.ReturnToGo(discount=0.99),)}
    for column in columns.get(agent, ()):
        rows = rows.replace(extras=column.of_data(rows))
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
    def learn(state: Any, rows: Any, chosen: Any, noise: Any) -> Any:
        def update(state: Any, given: Any) -> Any:
            step, places, noise = given
            batch = jax.tree.map(lambda x: x[places], rows)
            with given_noise(noise):
                return module.update(state, batch, jax.random.key(0), step, config)

        return jax.lax.scan(update, state, (jnp.arange(len(chosen)) + pair.offset, chosen, noise))

    noise = {kind: [arrays[name] for name in arrays if name.startswith(kind)] for kind in ("normal", "uniform")}
    end, metrics = learn(state, jax.tree.map(jnp.asarray, rows), jnp.asarray(chosen), noise)
    moved, apart = 0.0, 0.0
    for name in pair.networks:
        for key, value in leaves(parameters_of(end, name)):
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
    """The largest difference of two losses [N], relative to theirs, in the first 10 updates and in all."""
    known = np.isfinite(theirs)
    off = np.abs(ours - theirs)[known] / np.maximum(np.abs(theirs[known]), 1e-2)
    return {"first 10": float(off[: known[:10].sum()].max()), "all": float(off.max())}


def parameters_of(state: Any, name: str) -> Any:
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
    several = "members" in parameters_of(state, name)
    tree = {
        layer: {
            kind: np.stack([arrays[f"first/{name}/{i}/{layer}/{kind}"] for i in range(len(array))])
            if several
            else arrays[f"first/{name}/0/{layer}/{kind}"]
            for kind, array in found.items()
        }
        for layer, found in (parameters_of(state, name)["members"] if several else parameters_of(state, name)).items()
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
    parser.add_argument("--peers", type=Path, required=True, help="the folder with the other projects")
    parser.add_argument("--peer", type=Path, help="the Python for their files")
    parser.add_argument("--jax-peer", type=Path, help="the Python for rebrac.py")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    parser.add_argument(
        "--watch", nargs=2, help=argparse.SUPPRESS
    )  # in the peer's Python: an agent, and a file to write
    options = parser.parse_args()
    if options.watch:
        watch(options.watch[0], options.data, options.peers, Path(options.watch[1]))
        return
    found = json.loads(options.output.read_text())["agents"] if options.agents else {}
    environment = os.environ | {"NPROC": "4"}  # with a single thread JAX would wait for its own callbacks for ever
    with tempfile.TemporaryDirectory() as folder:
        for agent in options.agents or PAIRS:
            out = Path(folder, f"{agent}.npz")
            python = options.peer if PAIRS[agent].learner else options.jax_peer
            command = [python, __file__, options.data, "--peers", options.peers, "--watch", agent, out]
            subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL, env=environment)
            found[agent] = compared(agent, options.data, np.load(out))
            print(agent, json.dumps(found[agent]))
    options.output.write_text(json.dumps(described(options.data, found), indent=1) + "\n")


if __name__ == "__main__":
    main()
