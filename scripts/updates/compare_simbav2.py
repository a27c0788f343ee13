"""SimbaV2's updates beside those of the authors' unmodified code: the same first parameters,
batches and noise.

  python scripts/updates/compare_simbav2.py --peer simbav2 \
      --output results/checks/references/simbav2.json

The folder `simbav2` has DAVIAN-Robotics/SimbaV2 of GitHub at 86899c2. Their networks and update are
imported as they are, in float64 as ours; only their readers of settings and checkpoints are left
out, and distributions are those of distrax. Every normal number is the same in both: the standard
normals of a fixed seed. Targets begin apart from their critics. What is left is arithmetic.

With --times the processor's seconds of one update at full size, of Humanoid's shapes, in float32
and in turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import simbav2
from rljax.networks import Network
from scripts.updates import shared, stand_ins
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

CONFIG = simbav2.Config(hidden=(16,), critic_hidden=(24, 24), batch_size=BATCH, discount=0.995)
CASES: dict[str, dict[str, Any]] = {"two critics": {}, "one critic": {"num_critics": 1}}
APART = 0.02  # std of the difference between targets and critics at the start


@contextlib.contextmanager
def their_code(peer: Path) -> Iterator[Any]:
    """The module of their agent."""
    settings = types.ModuleType("omegaconf")
    settings.OmegaConf = None  # type: ignore[attr-defined]
    training = types.ModuleType("flax.training")
    training.checkpoints = None  # type: ignore[attr-defined]
    modules = {"omegaconf": settings, "flax.training": training}
    with stand_ins.importing(peer, modules) as imported:
        yield imported("scale_rl.agents.simbaV2.simbaV2_agent")


def their_settings(config: simbav2.Config, updates: int) -> dict[str, Any]:
    """The fields of their Config that their first parameters depend on; others are None."""
    fields: dict[str, Any] = {
        "seed": 0,
        "learning_rate_init": config.actor_lr,
        "learning_rate_end": config.actor_lr * config.rate_end,
        "learning_rate_decay_step": updates,
        "critic_use_cdq": config.num_critics == 2,
        "critic_num_bins": config.bins,
        "critic_min_v": config.v_min,
        "critic_max_v": config.v_max,
        "temp_initial_value": config.init_temperature,
    }
    for name, blocks in (("actor", config.hidden), ("critic", config.critic_hidden)):
        width = blocks[0]
        fields |= {
            f"{name}_num_blocks": len(blocks),
            f"{name}_hidden_dim": width,
            f"{name}_c_shift": 3.0,
            f"{name}_scaler_init": math.sqrt(2 / width),
            f"{name}_scaler_scale": math.sqrt(2 / width),
            f"{name}_alpha_init": 1 / (len(blocks) + 1),
            f"{name}_alpha_scale": 1 / math.sqrt(width),
        }
    return fields


def their_update(
    module: Any, config: simbav2.Config, shapes: tuple[int, int], updates: int
) -> tuple[list[Any], Callable[[list[Any], Any], tuple[list[Any], dict[str, Any]]]]:
    """Their first networks (actor, critic, target, temperature), and a function of these and a
    batch to those after an update and its metrics.
    """
    names = [field.name for field in dataclasses.fields(module.SimbaV2Config)]
    settings = module.SimbaV2Config(**dict.fromkeys(names) | their_settings(config, updates))
    key, *first = module._init_simbav2_networks(*shapes, settings)
    static = {
        "gamma": config.discount,
        "n_step": 1,
        "actor_bc_alpha": 0.0,
        "critic_use_cdq": settings.critic_use_cdq,
        "critic_min_v": config.v_min,
        "critic_max_v": config.v_max,
        "critic_num_bins": config.bins,
        "target_tau": config.target_rate,
        "temp_target_entropy": -0.5 * shapes[1],
    }

    def update(networks: list[Any], batch: Any) -> tuple[list[Any], dict[str, Any]]:
        _, *after, info = module._update_simbav2_networks(key, *networks, batch, **static)
        return after, info

    return first, update


def theirs(batch: Transition) -> dict[str, Any]:
    """A batch with their names."""
    fields = {
        "observation": batch.observation,
        "action": batch.action,
        "reward": batch.reward,
        "terminated": batch.terminated,
        "next_observation": batch.next_observation,
    }
    dtype = batch.reward.dtype
    return {name: jnp.asarray(x, dtype) for name, x in fields.items()}


def ours(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one of their networks by our names."""
    tree = tree.get("VmapSimbaV2Critic_0", tree)

    def kernel(layer: Any) -> dict[str, Any]:
        return {"kernel": layer["hyper_dense"]["kernel"]}

    def factors(scaler: Any) -> dict[str, Any]:
        return {"factors": scaler["scaler"]}

    embedder = tree["embedder"]
    params = {"input": kernel(embedder["w"]), "input_scaler": factors(embedder["scaler"])}
    for name, layer in tree["encoder"].items():
        i = name.removeprefix("layers_")
        block = layer["mlp"]
        params |= {
            f"inner_{i}": kernel(block["w1"]),
            f"inner_{i}_scaler": factors(block["scaler"]),
            f"outer_{i}": kernel(block["w2"]),
            f"step_{i}": factors(layer["alpha_scaler"]),
        }
    last = tree["predictor"]
    prefixes = {"": "value"} if "w1" in last else {"mean_": "mean", "std_": "std"}
    for i, (prefix, name) in enumerate(prefixes.items()):
        params |= {
            f"head_{i}": kernel(last[f"{prefix}w1"]),
            f"head_{i}_scaler": factors(last[f"{prefix}scaler"]),
            f"output_{i}": kernel(last[f"{prefix}w2"]),
            f"bias_{i}": last[f"{name}_bias"],
        }
    return params


def like(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our network with the numbers of theirs."""
    params = ours(tree)
    if "member" in network.params:
        single = "VmapSimbaV2Critic_0" not in tree
        params = {"member": jax.tree.map(lambda x: x[None] if single else x, params)}
    return network.replace(params=jax.tree.map(lambda _, x: jnp.asarray(x), network.params, params))


def begun(state: simbav2.State, networks: list[Any]) -> simbav2.State:
    """Our State with the numbers of their networks."""
    actor, critic, target, temperature = (network.params for network in networks)
    return state.replace(
        actor=state.actor.replace(parameters=like(state.actor.parameters, actor)),
        critic=state.critic.replace(parameters=like(state.critic.parameters, critic)),
        target_critic=like(state.target_critic, target),
        log_temperature=state.log_temperature.replace(parameters=temperature["log_temp"]),
    )


def apart(network: Any) -> Any:
    """A target of theirs whose parameters differ from its critic's."""
    generator = np.random.default_rng(1)
    params = jax.tree.map(lambda x: x + APART * generator.normal(size=x.shape), network.params)
    return network.replace(params=params)


def compared(module: Any, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences after `updates` updates."""
    config = dataclasses.replace(CONFIG, rate_updates=float(updates), **changes)
    networks, their_step = their_update(module, config, (OBSERVATION, ACTION), updates)
    networks = exact(networks)
    networks[2] = apart(networks[2])
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    state = begun(exact(simbav2.init(jax.random.key(0), spec, config)), networks)
    first, update = state, jax.jit(simbav2.update)
    names = {"actor/loss", "critic/loss", "temperature/loss"}
    differences = dict.fromkeys(sorted(names), 0.0)
    with fixed_noise():
        for step, batch in enumerate(batches(updates)):
            batch = exact(batch)
            state, metrics = update(state, batch, jax.random.key(0), step, config)
            networks, info = their_step(networks, theirs(batch))
            for name in names:
                other = relative(metrics[name], info[name])
                differences[name] = max(differences[name], other)
    other = begun(state, networks)
    for name in ("actor", "critic", "target_critic", "log_temperature"):
        parts = (getattr(x, name) for x in (first, state, other))
        differences[name] = distance(*[getattr(part, "parameters", part) for part in parts])
    return differences


def times(module: Any) -> dict[str, Any]:
    """See `shared.beside`, in float32 and on the same batch."""
    config = simbav2.Config(rate_updates=1e6)
    spec, batch = shared.HUMANOID, shared.random_batch(config.batch_size)
    shapes = (spec.observation_shape[0], spec.action_size)
    networks, their_step = their_update(module, config, shapes, 1_000_000)
    state = jax.jit(simbav2.init, static_argnums=1)(jax.random.key(0), spec, config)
    their_batch = theirs(batch)
    width = config.critic_hidden[0]
    return shared.beside(
        lambda: their_step(networks, their_batch), simbav2.update, state, batch, config, width
    )


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    with their_code(options.peer) as module:
        shared.report_or_time(options, CASES, compared, times, module)


if __name__ == "__main__":
    main()
