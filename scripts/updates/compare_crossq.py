"""CrossQ's updates beside those of its authors' unmodified code: the same first parameters, batches
and noise.

  python scripts/updates/compare_crossq.py --peer CrossQ --output crossq.json

The folder `CrossQ` has adityab/CrossQ of GitHub at a318a26. Their networks and their updates of
critics, actor and temperature are imported as they are. Stable-Baselines3, which these do not use,
is left out, and the distributions are those of distrax: see `stand_ins`. A second case begins
after 100,000 passes, where batch renormalisation takes over.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from rljax.agent import EnvSpec
from rljax.agents import crossq
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.shared import ACTION, ACTOR, BATCH, CRITIC, OBSERVATION, distance, exact

CASES = {"plain": 0, "renormalised": 100_000}  # passes in training mode before the first update
RATE, MOMENTUM, DISCOUNT, DELAY = 1e-3, 0.5, 0.99, 3  # of their train.py
MODULES = ("common.type_aliases", "common.distributions", "sac.policies", "sac.sac")


class ReLU(nn.Module):
    """The activation of their train.py, as they name it."""

    def __call__(self, x: Any) -> Any:
        return nn.relu(x)


class Theirs(NamedTuple):
    """The states of their learner."""

    actor: Any
    critic: Any
    temperature: Any


@contextlib.contextmanager
def their_code(peer: Path) -> Iterator[Mapping[str, Any]]:
    """Their modules by name, importable inside."""

    class Anything:
        def __class_getitem__(cls, _: Any) -> Any:
            return cls

    def module(name: str, **content: Any) -> None:
        modules[name] = types.ModuleType(name)
        modules[name].__dict__.update(content)

    modules = stand_ins.probability()
    for name in ("", ".common"):
        module(f"stable_baselines3{name}")
    for name in ("buffers", "noise", "policies", "preprocessing", "type_aliases", "utils"):
        module(f"stable_baselines3.common.{name}", __getattr__=lambda _: Anything)
    for name in ("sbx", "sbx.common", "sbx.sac"):
        module(name, __path__=[])
    module("sbx.common.policies", BaseJaxPolicy=object)
    module("sbx.common.off_policy_algorithm", OffPolicyAlgorithmJax=object)
    array = mock.patch.object(jax.random, "KeyArray", jax.Array, create=True)
    with mock.patch.dict(sys.modules, modules), array:
        code = {}
        for name in MODULES:
            path = peer / "sbx" / (name.replace(".", "/") + ".py")
            spec = importlib.util.spec_from_file_location(f"sbx.{name}", path)
            if spec is None or spec.loader is None:
                raise FileNotFoundError(path)
            code[name] = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = code[name]
            spec.loader.exec_module(code[name])
        yield code


def by_their_names(network: Network, hidden: tuple[int, ...]) -> tuple[dict, dict]:
    """Parameters and statistics of one of our networks, with their names."""
    params, moments = network.params, network.collections["batch_stats"]
    critic = "member" in params
    if critic:
        params, moments = params["member"], moments["member"]
    tree, statistics = {}, {}
    for i, name in enumerate(["norm_input", *(f"norm_{i}" for i in range(len(hidden)))]):
        norm, moment = params[name], moments[name]
        tree[f"BatchRenorm_{i}"] = {"scale": norm["scale"], "bias": norm["shift"]}
        bounds = {"r_max": np.full_like(moment["passes"], 3.0)}
        bounds["d_max"] = np.full_like(moment["passes"], 5.0)
        statistics[f"BatchRenorm_{i}"] = bounds | {
            "mean": moment["mean"],
            "var": moment["variance"],
            "steps": moment["passes"],
        }
    for i in range(len(hidden)):
        tree[f"Dense_{i}"] = dict(params[f"hidden_{i}"])
    output = params["output"]
    parts = [output]
    if not critic:
        halves = {name: np.split(x, 2, axis=-1) for name, x in output.items()}
        parts = [{name: half[i] for name, half in halves.items()} for i in range(2)]
    for i, part in enumerate(parts):
        tree[f"Dense_{len(hidden) + i}"] = dict(part)
    outer = (lambda x: {"VmapCritic_0": x}) if critic else (lambda x: x)
    return outer(tree), outer(statistics)


def after(network: Network, passes: int) -> Network:
    """The network after `passes` passes in training mode."""
    count = {"passes": lambda x: x + passes}

    def counted(path: Any, x: Any) -> Any:
        return count.get(path[-1].key, lambda x: x)(x)

    collections = jax.tree_util.tree_map_with_path(counted, network.collections)
    return network.replace(collections=collections)


def their_learner(code: Mapping[str, Any], state: crossq.State) -> Theirs:
    """Their states with our parameters."""
    style = {"use_batch_norm": True, "batch_norm_momentum": 0.99}
    nets = code["sac.policies"]
    actor = nets.Actor(ACTOR, ACTION, bn_mode="brn_actor", **style)
    critic = nets.VectorCritic(CRITIC, ReLU, batch_norm_mode="brn_actor", n_critics=2, **style)
    states, adam = code["common.type_aliases"], optax.adam(RATE, b1=MOMENTUM)
    params, statistics = by_their_names(state.actor.parameters, ACTOR)
    theirs = {"apply_fn": actor.apply, "params": params, "batch_stats": statistics}
    first = states.ActorTrainState.create(tx=adam, **theirs)
    params, statistics = by_their_names(state.critic.parameters, CRITIC)
    targets = {"target_params": params, "target_batch_stats": statistics}
    theirs = {"apply_fn": critic.apply, "params": params, "batch_stats": statistics, **targets}
    second = states.RLTrainState.create(tx=adam, **theirs)
    alpha = code["sac.sac"].EntropyCoef(1.0)
    params = exact(alpha.init(jax.random.key(0))["params"])
    third = TrainState.create(apply_fn=alpha.apply, params=params, tx=optax.adam(RATE))
    return Theirs(first, second, third)


def compared(peer: Path, updates: int, passes: int) -> dict[str, float]:
    """The largest relative differences after `updates` updates."""
    sizes = {"hidden": ACTOR, "critic_hidden": CRITIC, "batch_size": BATCH}
    config = crossq.Config(**sizes)
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    state = exact(crossq.init(jax.random.key(0), spec, config))
    for name in ("actor", "critic"):
        trained = getattr(state, name)
        trained = trained.replace(parameters=after(trained.parameters, passes))
        state = state.replace(**{name: trained})
    first, losses = state, {"critic": 0.0, "actor": 0.0}
    update, key = jax.jit(crossq.update), jax.random.key(0)
    with their_code(peer) as code, shared.fixed_noise():
        learner, sac = their_learner(code, state), code["sac.sac"].SAC
        for step, batch in enumerate(shared.batches(updates)):
            batch = exact(batch)
            state, metrics = update(state, batch, key, step, config)
            rows = (batch.observation, batch.action, batch.next_observation, batch.reward)
            ends = batch.terminated.astype(np.float64)
            learner_states = (DISCOUNT, learner.actor, learner.critic, learner.temperature)
            critic, info, _ = sac.update_critic(
                True, False, False, *learner_states, *rows, ends, key
            )
            learner = learner._replace(critic=critic)
            off = shared.relative(metrics["critic/loss"], info["critic_loss"])
            losses["critic"] = max(losses["critic"], off)
            if (step + 1) % DELAY == 0:
                actor, _, loss, _, entropy = sac.update_actor(*learner, batch.observation, key)
                alpha, _ = sac.update_temperature(-float(ACTION), learner.temperature, entropy)
                learner = learner._replace(actor=actor, temperature=alpha)
                ours = metrics["actor/loss"]
                off = shared.relative(getattr(ours, "value", ours), loss)
                losses["actor"] = max(losses["actor"], off)
    differences = {f"{name} loss": off for name, off in losses.items()}
    for name, hidden in (("actor", ACTOR), ("critic", CRITIC)):
        networks = [getattr(each, name).parameters for each in (first, state)]
        before, end = (by_their_names(network, hidden) for network in networks)
        other = getattr(learner, name)
        differences[name] = distance(before[0], end[0], other.params)
        differences[f"{name} statistics"] = distance(before[1], end[1], other.batch_stats)
    log_alpha = learner.temperature.params["log_ent_coef"]
    off = shared.relative(state.log_temperature.parameters, log_alpha)
    return differences | {"log temperature": off}


def main() -> None:
    """Compare all cases, and write the differences."""
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, options.peer))


if __name__ == "__main__":
    main()
