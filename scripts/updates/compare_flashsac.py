"""FlashSAC's updates beside those of the authors' unmodified agent in PyTorch: the same first
parameters, batches and noise, in float64.

  python -m venv peer && peer/bin/pip install torch==2.14.1 gymnasium
  python scripts/updates/compare_flashsac.py --peer FlashSAC --python peer/bin/python \
      --output results/checks/references/flashsac.json

The folder `FlashSAC` has Holiday-Robot/FlashSAC of GitHub at 87edc90. Their agent is run by
scripts/updates/authors_flashsac.py, which is called from here. Both begin from their parameters,
which are moved a little first, so that targets differ from critics. With `--seconds`, the time of
updates at their sizes is measured instead, of both in turns; `taskset -c 0` before the command
keeps both on one core.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import flashsac
from rljax.buffers import RewardScale
from rljax.buffers.storage.reward_scales import SeenReturns
from rljax.networks import Network
from scripts.checks.compare_updates import given_noise
from scripts.updates import shared
from scripts.updates.shared import distance, exact, relative

OBSERVATION, ACTION = 17, 6  # those of HalfCheetah
ENDS = 0.2  # share of rows that end an episode
FIRST = 4  # updates that are not measured: programs are compiled in them
STREAM = (400, 3)  # steps and environments of rewards
PEER = Path(__file__).with_name("authors_flashsac.py")
LOSSES = ("actor/loss", "actor/entropy", "critic/loss", "temperature/loss")
# Batch, our settings, and theirs.
CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "their sizes": (512, {}, {}),
    "small, three steps, imitation": (
        64,
        {
            "hidden": (16, 16, 16),
            "critic_hidden": (24,),
            "bins": 21,
            "imitation_weight": 2.5,
            "n_step": 3,
        },
        {
            "actor_num_blocks": 3,
            "actor_hidden_dim": 16,
            "critic_num_blocks": 1,
            "critic_hidden_dim": 24,
            "critic_num_bins": 21,
            "actor_bc_alpha": 2.5,
            "n_step": 3,
        },
    ),
}


def inputs(updates: int, batch: int, changes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What both learn from: batches [N, B, ...], and the noise of actions.

    The actor's noise is [N, 2 B, A]: theirs draws actions for next observations too.
    """
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=(updates, *shape))

    def ended(*shape: int) -> np.ndarray:
        return generator.random(shape) < 0.02

    sizes = {"updates": updates, "observation": OBSERVATION, "action": ACTION}
    return {
        "settings": np.array(json.dumps(sizes | {"changes": dict(changes)})),
        "observation": 3.0 * normal(batch, OBSERVATION) + 1.0,
        "action": np.tanh(normal(batch, ACTION)),
        "reward": normal(batch),
        "terminated": generator.random((updates, batch)) < ENDS,
        "next_observation": 3.0 * normal(batch, OBSERVATION) + 1.0,
        "actor_noise": normal(2 * batch, ACTION),
        "critic_noise": normal(batch, ACTION),
        "stream/reward": generator.normal(1.0, 2.0, size=STREAM),
        "stream/terminated": ended(*STREAM),
        "stream/truncated": ended(*STREAM),
    }


def theirs(
    options: argparse.Namespace, arrays: Mapping[str, Any], *flags: str
) -> dict[str, np.ndarray]:
    """What their agent makes of `inputs`."""
    with tempfile.TemporaryDirectory() as folder:
        first, last = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(first, **arrays)
        words = [options.python, PEER, options.peer, first, last, *flags]
        subprocess.run(list(map(str, words)), check=True)
        return dict(np.load(last))


def ours(arrays: Mapping[str, np.ndarray], prefix: str) -> tuple[Any, Any]:
    """Parameters and statistics of one of their networks by our names, from arrays with names that
    begin with `prefix`.
    """
    arrays = {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}

    def kernel(name: str) -> np.ndarray:
        x = arrays[f"{name}.weight"] if f"{name}.weight" in arrays else arrays[f"{name}.w.weight"]
        return np.swapaxes(x, -1, -2)

    def norm(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        layer = {"scale": arrays[f"{name}.weight"], "shift": arrays[f"{name}.bias"]}
        moments = {"mean": arrays[f"{name}.running_mean"]}
        return layer, moments | {"variance": arrays[f"{name}.running_var"]}

    params, moments = {"embedding": {"kernel": kernel("embedder.w")}}, {}
    params["norm_input"], moments["norm_input"] = norm("embedder.norm")
    block = 0
    while f"encoder.{block}.norm1.weight" in arrays:
        name, layers, statistics = f"encoder.{block}", {}, {}
        for i in range(2):
            layers[f"hidden_{i}"] = {"kernel": kernel(f"{name}.w{i + 1}")}
            layers[f"norm_{i}"], statistics[f"norm_{i}"] = norm(f"{name}.norm{i + 1}")
        params[f"block_{block}"], moments[f"block_{block}"] = layers, statistics
        block += 1
    params["norm_output"] = {"scale": arrays["post_norm.weight"]}
    if "predictor.bias" in arrays:
        output = {"kernel": kernel("predictor.w"), "bias": arrays["predictor.bias"]}
        return {"member": params | {"output": output}}, {"member": moments}
    heads = ("mean", "std")
    params["output"] = {
        "kernel": np.concatenate([kernel(f"predictor.{head}_w") for head in heads], axis=-1),
        "bias": np.concatenate([arrays[f"predictor.{head}_bias"] for head in heads]),
    }
    return params, moments


def like(network: Network, arrays: Mapping[str, np.ndarray], prefix: str) -> Network:
    """Our network with the numbers of theirs."""
    params, moments = ours(arrays, prefix)
    params = jax.tree.map(lambda old, new: jnp.asarray(new), network.params, params)
    old = dict(network.collections)
    moments = jax.tree.map(lambda old, new: jnp.asarray(new), old, {"batch_stats": moments})
    return network.replace(params=params, collections=moments)


def of_theirs(state: flashsac.State, arrays: Mapping[str, np.ndarray], when: str) -> flashsac.State:
    """Our State with their parameters of the "first" or "last" update."""
    actor = like(state.actor.parameters, arrays, f"{when}/actor/")
    critic = like(state.critic.parameters, arrays, f"{when}/critic/")
    target = like(state.target_critic, arrays, f"{when}/target_critic/")
    log_temperature = jnp.asarray(arrays[f"{when}/temperature/log_temp"][0])
    return state.replace(
        actor=state.actor.replace(parameters=actor),
        critic=state.critic.replace(parameters=critic),
        target_critic=target,
        log_temperature=state.log_temperature.replace(parameters=log_temperature),
    )


def example(batch: int, updates: int, changes: Mapping[str, Any]) -> tuple[Any, flashsac.State]:
    """Our Config and a first State."""
    config = flashsac.Config(batch_size=batch, rate_updates=float(updates), **changes)
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    return config, flashsac.init(jax.random.key(0), spec, config)


def transition(arrays: Mapping[str, np.ndarray], index: int, config: Any) -> Transition:
    """The batch of one update."""
    names = ("observation", "action", "reward", "terminated", "next_observation")
    batch: dict[str, Any] = {name: jnp.asarray(arrays[name][index]) for name in names}
    extras = {}
    if config.n_step > 1:  # no row ends early
        extras["discount"] = jnp.full(config.batch_size, config.discount**config.n_step)
    return Transition(**batch, truncated=jnp.zeros(config.batch_size, bool), extras=extras)


def learn(
    state: flashsac.State, arrays: Mapping[str, np.ndarray], config: Any
) -> tuple[flashsac.State, dict[str, np.ndarray]]:
    """Our State after all updates, and losses [N]."""

    @jax.jit
    def update(state: Any, batch: Transition, noise: Any, step: Any) -> Any:
        with given_noise({"normal": noise}):
            return flashsac.update(state, batch, jax.random.key(0), step, config)

    losses: dict[str, list[float]] = {name: [] for name in LOSSES}
    for step in range(len(arrays["reward"])):
        noise = [arrays["actor_noise"][step, : config.batch_size], arrays["critic_noise"][step]]
        batch = transition(arrays, step, config)
        state, metrics = update(state, batch, list(map(jnp.asarray, noise)), step)
        for name, values in losses.items():
            values.append(float(getattr(metrics[name], "value", metrics[name])))
    return state, {name: np.array(values) for name, values in losses.items()}


def compared(state: flashsac.State, arrays: Mapping[str, Any], peer: Any, config: Any) -> Any:
    """The largest relative differences after all updates."""
    first = of_theirs(exact(state), peer, "first")
    last, losses = learn(first, arrays, config)
    other = of_theirs(exact(state), peer, "last")
    results = {}
    for name, values in losses.items():
        due = np.isfinite(peer[f"loss/{name}"])
        pairs = zip(values[due], peer[f"loss/{name}"][due], strict=True)
        results[name] = max(relative(*pair) for pair in pairs)
    for name in ("actor", "critic"):
        networks = [getattr(x, name).parameters for x in (first, last, other)]
        results[name] = distance(*(x.params for x in networks))
        results[f"{name} statistics"] = distance(*(x.collections for x in networks))
    results["target critic"] = distance(*(x.target_critic.params for x in (first, last, other)))
    results["log temperature"] = distance(
        *(x.log_temperature.parameters for x in (first, last, other))
    )
    return results


def scales(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """What our rewards are divided by after each step [T]."""
    scale = RewardScale(discount=0.99, return_limit=5.0, carry_rewards=True)
    seen, result = SeenReturns.create(1, STREAM[1]), []
    steps = [arrays[f"stream/{name}"] for name in ("reward", "terminated", "truncated")]
    observe = jax.jit(scale.observe)
    for reward, terminated, truncated in zip(*steps, strict=True):
        rows: list[Any] = [jnp.asarray(x)[None] for x in (reward, terminated, truncated)]
        step = Transition(reward, reward, *rows, next_observation=reward)
        seen = observe(seen, step)
        ones = step.replace(reward=jnp.ones((1, 1, 1)))
        result.append(1.0 / float(scale.scaled(seen, ones).reward[0, 0, 0]))
    return np.array(result)


def seconds(state: flashsac.State, arrays: Mapping[str, np.ndarray], config: Any) -> np.ndarray:
    """The seconds of each of our updates."""
    update = jax.jit(flashsac.update, donate_argnums=0)
    times, steps = [], len(arrays["reward"])
    rows = [transition(arrays, i, config) for i in range(steps)]
    for i, batch in enumerate(rows):
        start = time.perf_counter()
        state, metrics = update(state, batch, jax.random.key(i), i, config)
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - start)
    return np.array(times)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Mean seconds of updates at their sizes, in turns, without the first ones."""
    arrays = inputs(FIRST + options.updates, 512, {})
    times: dict[str, list[float]] = {}

    def add(name: str, each: np.ndarray) -> None:
        times.setdefault(name, []).append(round(float(each[FIRST:].mean()), 4))

    for _ in range(options.turns):
        config, state = example(512, options.updates, {})
        add("ours", seconds(state, arrays, config))
        add("theirs", theirs(options, arrays, "--seconds")["seconds"])
        add("theirs, compiled", theirs(options, arrays, "--seconds", "--compiled")["seconds"])
    return {"batch": 512, "updates": options.updates, "seconds of an update": times}


def differences(options: argparse.Namespace, updates: int, case: Any) -> dict[str, float]:
    """Those of a case, and of its scales of rewards."""
    batch, changes, their_changes = case
    arrays = inputs(updates, batch, their_changes)
    peer = theirs(options, arrays)
    config, state = example(batch, updates, changes)
    off = np.abs(scales(arrays) / peer["scales"] - 1.0)
    return compared(state, arrays, peer, config) | {"scales of rewards": float(off.max())}


def main() -> None:
    """Compare all cases, or measure, and write the result."""
    parser = shared.parser(__doc__)
    parser.add_argument("--python", required=True, help="a Python with PyTorch")
    parser.add_argument("--seconds", action="store_true", help="measure the time of updates")
    parser.add_argument("--turns", type=int, default=3, help="with --seconds: of each code")
    options = parser.parse_args()
    if options.seconds:
        result = measured(options)
        shared.publish(options.output, result)
    else:
        shared.report(options, CASES, functools.partial(differences, options))


if __name__ == "__main__":
    main()
