"""Train other people's unmodified agents, and keep their parameters, batches,
losses and noise as arrays.

scripts/checks/compare_updates.py runs this in the Python of the other project, which needs no
rljax:

  PYTHONPATH=. peer/bin/python scripts/checks/watch_authors_file.py td3_bc HalfCheetah-medium.hdf5 \
      peers OUT.npz

CORL's and RIQL's files train by their own loops. The agents of FQL and Diffusion-QL have loops that
need much more than a data set. So a loop here draws their batches, and calls their method for an
update.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from scripts.benchmarks.measuring import use_code
from scripts.checks import run_authors_file
from scripts.checks.authors.pairs import PAIRS, UPDATES, Drawn, Pair


class Watched(NamedTuple):
    """What an agent did in its updates."""

    first: dict[str, np.ndarray]  # parameters before them, by name
    last: dict[str, np.ndarray]
    batches: Sequence[Any]  # observations [B, O], actions [B, A] and more of each
    losses: Sequence[Mapping[str, float]]
    # the random numbers of each, by kind, in the order of drawing
    draws: Sequence[Mapping[str, list[np.ndarray]]]


def watch(which: str, data: Path, peers: Path, out: Path) -> None:
    """Train the other agent, and write what it did."""
    # This frame has no `agent`: run_authors_file looks for one among its callers.
    pair = PAIRS[which]
    recorded = run_authors_file.Recorded(data)
    run_authors_file.install(recorded)
    file = peers / pair.file
    use_code(file.parent, peers / pair.file.split("/")[0])
    module = run_authors_file.loaded(file)
    sys.argv = [pair.file, *pair.arguments.format(updates=UPDATES).split()]
    record = WATCHERS[pair.watcher](module, pair, recorded.serve())
    noise = pair.noise(stacked(record.draws))
    arrays: dict[str, Any] = {f"first/{name}": x for name, x in record.first.items()}
    arrays |= {f"last/{name}": x for name, x in record.last.items()}
    arrays |= {
        f"loss/{name}": np.array([added(each, name) for each in record.losses])
        for name in pair.losses
    }
    arrays |= {f"{kind}/{i}": x for kind, draws in noise.items() for i, x in enumerate(draws)}
    observations, actions = (np.stack([batch[i] for batch in record.batches]) for i in (0, 1))
    np.savez(out, observations=observations, actions=actions, **arrays)


def added(losses: Mapping[str, float], names: str) -> float:
    """The sum of an update's losses 'a+b'; NaN where it has none."""
    return sum(losses.get(name, np.nan) for name in names.split("+"))


def stacked(draws: Sequence[Mapping[str, list[np.ndarray]]]) -> Drawn:
    """The draws of all updates, each as one array [N, ...]."""
    return {
        kind: [np.stack(x) for x in zip(*[each[kind] for each in draws], strict=True)]
        for kind in draws[0]
    }


@contextlib.contextmanager
def recorded_draws(
    functions: list[tuple[str, Any, str]], repeated: Mapping[int, int] = {}
) -> Iterator[dict[str, list[np.ndarray]]]:
    """The numbers that these functions draw inside, by kind, in order;
    some normal ones are those of an earlier draw.

    A function is given as a kind, the module or class that holds it, and its name there.
    """
    drawn: dict[str, list[Any]] = {kind: [] for kind, _, _ in functions}
    with contextlib.ExitStack() as stack:
        for kind, place, name in functions:
            draw = recording(
                drawn[kind], getattr(place, name), repeated if kind == "normal" else {}
            )
            stack.enter_context(mock.patch.object(place, name, draw))
        yield drawn


def recording(drawn: list[Any], function: Any, repeated: Mapping[int, int]) -> Any:
    """The function, which appends what it draws to the list, or draws what it drew before."""

    def draw(*inputs: Any, **options: Any) -> Any:
        again = repeated.get(len(drawn))
        numbers = function(*inputs, **options) if again is None else drawn[again]
        # Tensors can change in place.
        drawn.append(numbers.clone() if hasattr(numbers, "clone") else numbers)
        return numbers

    return draw


def watch_torch(module: Any, pair: Pair, _: Mapping[str, np.ndarray]) -> Watched:
    """A file whose learner has a method for an update of a batch."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    for name, value in pair.fields.items():
        setattr(module.TrainConfig, name, value)
    learner = getattr(module, pair.learner)
    train, batches, losses, draws, learners = getattr(learner, pair.method), [], [], [], []
    functions = [
        ("normal", torch.distributions.normal, "_standard_normal"),
        ("uniform", torch.Tensor, "uniform_"),
    ]

    def update(self: Any, batch: Any) -> Any:
        if not learners:
            for name in pair.fixed:
                part_of(self, name).requires_grad_(False)
            learners.extend([self, torch_parameters(self, pair)])
        batches.append([x.numpy() for x in batch])
        with recorded_draws(functions, pair.repeated) as drawn:
            losses.append(train(self, batch))
        draws.append(drawn)
        return losses[-1]

    setattr(learner, pair.method, update)
    module.train(*[module.TrainConfig] * bool(pair.fields))
    return Watched(learners[1], torch_parameters(learners[0], pair), batches, losses, draws)


def watch_diffusion_ql(module: Any, pair: Pair, rows: Mapping[str, np.ndarray]) -> Watched:
    """Diffusion-QL, whose method makes several updates from an object that samples batches."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = rows["observations"].shape[1], rows["actions"].shape[1]
    learner = module.Diffusion_QL(*sizes, 1.0, "cpu", **pair.fields)
    sampler = importlib.import_module("utils.data_sampler").Data_Sampler(rows, "cpu")
    sample, batches, losses, draws = sampler.sample, [], [], []
    functions = [
        ("normal", torch, "randn"),
        ("normal", torch, "randn_like"),
        ("integer", torch, "randint"),
        ("uniform", np.random, "uniform"),
    ]

    def recorded_sample(size: int) -> Any:
        batches.append(sample(size))
        return batches[-1]

    sampler.sample = recorded_sample
    first = torch_parameters(learner, pair)
    for _ in range(UPDATES):
        with recorded_draws(functions) as drawn:
            metrics = learner.train(sampler, 1, 256)
        losses.append({name: values[0] for name, values in metrics.items()})
        draws.append(drawn)
    return Watched(first, torch_parameters(learner, pair), batches, losses, draws)


def part_of(learner: Any, name: str) -> Any:
    """The part 'qf.q1' of a learner; 'a+b' is a list of two."""
    if "+" in name:
        import torch  # pyright: ignore[reportMissingImports]

        return torch.nn.ModuleList([part_of(learner, each) for each in name.split("+")])
    for each in name.split("."):
        learner = getattr(learner, each)
    return learner


def torch_parameters(learner: Any, pair: Pair) -> dict[str, np.ndarray]:
    """Kernels and biases of all networks under our names:
    'critic/0/hidden_1/kernel' is of member 0.
    """
    parameters = {}
    for name, members in pair.networks.items():
        network, *inside = name.split("/")
        arrays = [each for member in members for each in torch_members(part_of(learner, member))]
        for i, layers in enumerate(arrays):
            for j, (kernel, bias) in enumerate(layers):
                key = "/".join(
                    [network, str(i), *inside, "output" if j == len(layers) - 1 else f"hidden_{j}"]
                )
                parameters |= {f"{key}/kernel": kernel.copy(), f"{key}/bias": bias.copy()}
    return parameters


def torch_members(network: Any) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Kernel [in, out] and bias [out] of each layer, of each member of an ensemble.

    Two heads count as one layer.
    """
    layers = [x for x in network.modules() if type(x).__name__ in ("Linear", "VectorizedLinear")]
    weights = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in layers]
    if type(layers[0]).__name__ == "VectorizedLinear":
        return [
            [(weight[i], bias[i, 0]) for weight, bias in weights]
            for i in range(network.num_critics)
        ]
    arrays = [(weight.T, bias) for weight, bias in weights]
    # The last two, the mean's and this one, read the same features.
    if hasattr(network, "log_sigma"):
        *arrays, mean, log_std = arrays
        arrays.append(
            (np.concatenate([mean[0], log_std[0]], axis=1), np.concatenate([mean[1], log_std[1]]))
        )
    return [arrays]


def watch_rebrac(module: Any, pair: Pair, _: Mapping[str, np.ndarray]) -> Watched:
    """CORL's rebrac.py, whose updates are two functions inside a compiled loop."""
    import jax

    calls: dict[int, Any] = {}

    def keep(number: Any, *inputs: Any) -> None:
        calls[int(number[0])] = jax.tree_util.tree_map(np.asarray, inputs)

    def watching(update: Any) -> Any:
        def watched(**inputs: Any) -> Any:
            key, actor, critic, metrics = update(**inputs)
            before, after = inputs["metrics"].accumulators, metrics.accumulators
            counted = [name for name in pair.losses if after[name][1] is not before[name][1]]
            losses = {name: after[name][0] - before[name][0] for name in counted}
            batch = [inputs["batch"][name] for name in ("states", "actions")]
            first = {"actor": inputs["actor"].params, "critic": inputs["critic"].params}
            last = {"actor": actor.params, "critic": critic.params}
            jax.debug.callback(keep, after["critic_loss"][1], first, last, batch, losses)
            return key, actor, critic, metrics

        return watched

    for name in ("update_td3", "update_td3_no_targets"):
        setattr(module, name, watching(getattr(module, name)))
    module.main()
    jax.effects_barrier()
    updates = [calls[number] for number in sorted(calls)]
    losses = [{name: float(loss[0]) for name, loss in each[3].items()} for each in updates]

    def parameters(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        actor, critic = inputs["actor"]["params"], inputs["critic"]["params"]["VmapCritic_0"]
        return jax_parameters("actor", actor) | jax_parameters("critic", critic, members=True)

    first, last = parameters(updates[0][0]), parameters(updates[-1][1])
    return Watched(first, last, [each[2] for each in updates], losses, [{}])


def watch_fql(module: Any, pair: Pair, rows: Mapping[str, np.ndarray]) -> Watched:
    """FQL's agent. Its update is compiled as one program here, which also returns what it draws."""
    import jax

    observations, actions = rows["observations"], rows["actions"]
    columns = {"observations": observations, "actions": actions, "rewards": rows["rewards"]}
    columns |= {
        "next_observations": rows["next_observations"],
        "masks": 1.0 - rows["terminals"].astype(np.float32),
    }
    learner = module.FQLAgent.create(0, observations[:1], actions[:1], module.get_config())
    for name in ("update", "total_loss", "sample_actions", "compute_flow_actions"):
        setattr(module.FQLAgent, name, getattr(module.FQLAgent, name).__wrapped__)
    size = learner.config["batch_size"]
    rng, batches, losses, draws = np.random.default_rng(0), [], [], []

    @jax.jit
    def update(learner: Any, batch: Any) -> Any:
        with recorded_draws(
            [("normal", jax.random, "normal"), ("uniform", jax.random, "uniform")]
        ) as drawn:
            learner, metrics = learner.update(batch)
        # Flax draws as well, to know the shapes of parameters.
        return (
            learner,
            metrics,
            {kind: [x for x in some if x.shape[0] == size] for kind, some in drawn.items()},
        )

    def parameters() -> dict[str, np.ndarray]:
        arrays = {}
        for name, (theirs,) in pair.networks.items():
            tree = learner.network.params[theirs]
            if name == "critic":
                arrays |= jax_parameters(name, tree["value_net"], members=True)
                continue
            network, *inside = name.split("/")
            layers = jax_parameters(network, tree["mlp"], *inside)
            first = "/".join([network, "0", *inside, "hidden_0/kernel"])
            # Theirs reads observations, actions and times, ours actions, times and observations.
            layers[first] = np.roll(layers[first], -observations.shape[1], axis=0)
            arrays |= layers
        return arrays

    first = parameters()
    for _ in range(UPDATES):
        places = rng.integers(len(actions), size=size)
        batch = {name: column[places] for name, column in columns.items()}
        learner, metrics, drawn = update(learner, batch)
        batches.append([batch["observations"], batch["actions"]])
        losses.append({name: float(metrics[name]) for name in pair.losses})
        draws.append(drawn)
    return Watched(first, parameters(), batches, losses, draws)


def jax_parameters(
    name: str, tree: Mapping[str, Any], *inside: str, members: bool = False
) -> dict[str, np.ndarray]:
    """Parameters of a Flax module under our names; with members,
    arrays are stacked along their first axis.
    """
    parameters = {}
    last = f"Dense_{sum(layer.startswith('Dense') for layer in tree) - 1}"
    for layer, arrays in tree.items():
        our_layer = (
            "output"
            if layer == last
            else layer.replace("Dense", "hidden").replace("LayerNorm", "norm")
        )
        for kind, array in arrays.items():
            for i, value in enumerate(array if members else [array]):
                parameters["/".join([name, str(i), *inside, our_layer, kind])] = np.asarray(value)
    return parameters


WATCHERS: dict[str, Callable[[Any, Pair, Mapping[str, np.ndarray]], Watched]] = {
    "torch": watch_torch,
    "diffusion_ql": watch_diffusion_ql,
    "rebrac": watch_rebrac,
    "fql": watch_fql,
}


def main() -> None:
    """Read the command line, and watch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=PAIRS, help="our name of the agent")
    parser.add_argument("data", type=Path, help="the recorded file")
    parser.add_argument("peers", type=Path, help="the folder with the other projects")
    parser.add_argument("out", type=Path, help="the .npz file to write")
    options = parser.parse_args()
    watch(options.which, options.data, options.peers, options.out)


if __name__ == "__main__":
    main()
