"""XQC's updates beside those of the authors' unmodified learner: the same first parameters,
batches and noise.

  python scripts/updates/compare_xqc.py --peer xqc --output results/checks/references/xqc.json

The folder `xqc` has danielpalenicek/xqc of GitHub at 9a6832b. Their learner is imported as it is;
the distributions of TensorFlow Probability, which the newest JAX cannot import, are those of
distrax here, and an action's log-probability is computed from the number that the action came of,
as there. Every normal number is the same in both: the standard normals of a fixed seed, so that
actor and critic see the same noise in each update. What is left is arithmetic.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import xqc
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.shared import (
    ACTION,
    ACTOR,
    BATCH,
    CRITIC,
    OBSERVATION,
    batches,
    distance,
    exact,
    fixed_noise,
    relative,
)

CASES: dict[str, dict[str, Any]] = {
    "XQC": {},
    "their CrossQ": {"value_head": "squared", "norm_place": "after", "unit_norm": False},
}
DISCOUNT = 0.995


class Sizes(NamedTuple):
    """Sizes of an observation, an action and the hidden layers."""

    observation: int = OBSERVATION
    action: int = ACTION
    actor: tuple[int, ...] = ACTOR
    critic: tuple[int, ...] = CRITIC


SMALL = Sizes()


class Batch(NamedTuple):
    """A batch with their names."""

    observations: Any
    actions: Any
    rewards: Any
    masks: Any
    next_observations: Any
    discount: Any


def their_learner(
    peer: Path, updates: int, changes: Mapping[str, Any], sizes: Sizes = SMALL
) -> Any:
    """The authors' learner, of one seed."""
    log = types.ModuleType("xqc.logging")
    log.print_total_param_count = lambda *_: None  # type: ignore[attr-defined]
    with stand_ins.importing(peer, {"xqc.logging": log}) as imported:
        learner = imported("xqc.agents.xqc.xqc_learner").XQCLearner
    classes = changes.get("value_head") != "squared"
    return learner(
        seed=0,
        observations=np.zeros((1, sizes.observation), np.float32),
        actions=np.zeros((1, sizes.action), np.float32),
        actor_lr=3e-4,
        critic_lr=3e-4,
        temp_lr=3e-4,
        lr_end=3e-5,
        num_interactions=updates,
        updates_per_step=1,
        hidden_dims_critic=sizes.critic,
        hidden_dims_actor=sizes.actor,
        policy_delay=3,
        tau=0.005,
        target_entropy="auto",
        init_temperature=0.01,
        num_seeds=1,
        min_v=-5.0,
        max_v=5.0,
        critic_loss="categorical" if classes else "mse",
        target_net_update_freq=1,
        n_critics=2,
        pre_activation_bn=changes.get("norm_place") != "after",
        weight_decay=0.0,
        normalize_last_layer=True,
        use_layer_norm=False,
        use_batch_norm=True,
        decay_bn=False,
        use_weight_norm=changes.get("unit_norm", True),
        skip_connections=False,
    )


def ours(model: Any, hidden: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and statistics of one of their networks, by our names."""
    tree, statistics = (
        jax.tree.map(lambda x: np.asarray(x[0]), dict(part))
        for part in (model.params, model.batch_stats)
    )
    outer = [part.get("VmapCritic_0", part) for part in (tree, statistics)]
    tree, statistics = (part["MLP_0"] for part in outer)
    block = next(name for name in tree if name.endswith("Block_0"))[:-1]
    params, moments = {}, {}

    def norm(name: str, place: tuple[str, ...]) -> None:
        scale, mean = tree, statistics
        for part in place:
            scale, mean = scale[part], mean[part]
        params[name] = {"scale": scale["scale"], "shift": scale["bias"]}
        moments[name] = {"mean": mean["mean"], "variance": mean["var"]}

    for i in range(len(hidden)):
        params[f"hidden_{i}"] = dict(tree[f"{block}{i}"]["Dense_0"])
        norm(f"norm_{i}", (f"{block}{i}", "BatchNorm_0"))
    tree, statistics = outer
    norm("norm_input", ("BatchNormEmbedder_0", "BatchNorm_0"))
    last = tree[next(name for name in tree if name.startswith("predictor"))]
    heads = [last["value"]] if "value" in last else [last["mean"], last["log_std"]]
    params["output"] = {
        part: np.concatenate([layer[part] for layer in heads], axis=-1)
        for part in ("kernel", "bias")
    }
    return params, moments


def like(network: Network, model: Any, hidden: tuple[int, ...]) -> Network:
    """Our network with the numbers of theirs."""
    params, moments = ours(model, hidden)
    if "member" in network.params:
        params, moments = {"member": params}, {"member": moments}
    params = jax.tree.map(lambda old, new: jnp.asarray(new), network.params, params)
    moments = {"batch_stats": moments}
    old = dict(network.collections)
    return network.replace(
        params=params, collections=jax.tree.map(lambda old, new: jnp.asarray(new), old, moments)
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences after `updates` updates."""
    learner = their_learner(peer, updates, changes)
    for name in ("actor", "critic", "target_critic", "temperature"):
        setattr(learner, name, exact(getattr(learner, name)))
    config = xqc.Config(
        hidden=ACTOR,
        critic_hidden=CRITIC,
        discount=DISCOUNT,
        batch_size=BATCH,
        rate_updates=float(updates),
        **changes,
    )
    spec = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
    state = xqc.init(jax.random.key(0), spec, config)
    actor = like(state.actor.parameters, learner.actor, ACTOR)
    critic = like(state.critic.parameters, learner.critic, CRITIC)
    target = like(critic, learner.target_critic, CRITIC)
    state = state.replace(
        actor=state.actor.replace(parameters=actor),
        critic=state.critic.replace(parameters=critic),
        target_critic=target,
    )
    state = exact(state)
    first, losses = state, {"critic": 0.0, "actor": 0.0}
    update = jax.jit(xqc.update)
    with fixed_noise():
        for step, batch in enumerate(batches(updates)):
            batch = exact(batch)
            state, metrics = update(state, batch, jax.random.key(0), step, config)
            info = learner.update(theirs(batch))
            off = relative(metrics["critic/loss"], info["critic_loss"][0])
            losses["critic"] = max(losses["critic"], off)
            if step % config.policy_delay == 0:
                loss = metrics["actor/loss"]
                off = relative(getattr(loss, "value", loss), info["actor_loss"][0])
                losses["actor"] = max(losses["actor"], off)
    found = {f"{name} loss": off for name, off in losses.items()}
    pairs = {
        "actor": (first.actor, state.actor, like(actor, learner.actor, ACTOR)),
        "critic": (first.critic, state.critic, like(critic, learner.critic, CRITIC)),
    }
    for name, (before, after, other) in pairs.items():
        found[name] = distance(before.parameters.params, after.parameters.params, other.params)
        collections = (before.parameters.collections, after.parameters.collections)
        found[f"{name} statistics"] = distance(*collections, other.collections)
    other = like(target, learner.target_critic, CRITIC).params
    found["target critic"] = distance(first.target_critic.params, state.target_critic.params, other)
    temperature = learner.temperature.params["log_temp"][0]
    found["log temperature"] = relative(state.log_temperature.parameters, temperature)
    return found


def theirs(batch: Transition, dtype: Any = np.float64) -> Any:
    """A batch in the order of their buffer: seeds, updates, rows."""
    fields = {
        "observations": batch.observation,
        "actions": batch.action,
        "rewards": batch.reward,
        "masks": 1.0 - batch.terminated,
        "next_observations": batch.next_observation,
        "discount": np.full((len(batch.reward), 1), DISCOUNT),
    }
    fields = {name: np.asarray(x, dtype)[None, None] for name, x in fields.items()}
    return Batch(**fields)


def times(peer: Path) -> dict[str, Any]:
    """See `shared.beside`, in float32 and on the same batch."""
    config = xqc.Config(rate_updates=1e6)
    spec, batch = shared.HUMANOID, shared.random_batch(config.batch_size)
    (observation,) = spec.observation_shape
    sizes = Sizes(observation, spec.action_size, config.hidden, config.critic_hidden)
    learner = their_learner(peer, 1_000_000, {}, sizes)
    state = jax.jit(xqc.init, static_argnums=1)(jax.random.key(0), spec, config)
    their_batch = theirs(batch, np.float32)
    width = config.critic_hidden[0]
    return shared.beside(
        lambda: learner.update(their_batch), xqc.update, state, batch, config, width
    )


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, times, options.peer)


if __name__ == "__main__":
    main()
