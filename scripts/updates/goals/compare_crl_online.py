"""Updates of CRL-online and of its authors' code (JaxGCRL), from the same parameters, on the same
batches and with the same noise.

  git clone https://github.com/MichalBortkiewicz/JaxGCRL && git -C JaxGCRL checkout 6dccab2
  python scripts/updates/goals/compare_crl_online.py --peer JaxGCRL \
      --output results/checks/references/crl_online.json

All is in float64, and the networks have a few units. The authors' two files, losses.py and
networks.py, are imported as they are, without the package around them, which has simulators. Their
networks see parts of an observation, ours all of it with zeros: the rows of weights that only ours
have are left out. With `--times` one update at their width is timed in turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.training.train_state import TrainState

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import crl_online
from rljax.networks.goals.energies import Energy
from scripts.updates import shared
from scripts.updates.shared import ACTION, BATCH, OBSERVATION, distance, exact, relative

Shapes = tuple[int, int, tuple[int, ...]]  # numbers of a state, of an action, those of a goal
SMALL: Shapes = (OBSERVATION, ACTION, (0, 1))
ANT: Shapes = (29, 8, (0, 1))
CONFIG = crl_online.Config(
    hidden=(16,),
    critic_hidden=(16,),
    latent_size=8,
    actor_lr=3e-3,
    critic_lr=3e-3,
    temperature_lr=3e-3,
)
DEEP = {"depth": 9, "skip": 4, "layer_norm": True}
# Settings, and whether our density has their 1e-6, too.
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "their settings": ({}, False),
    "nine layers with sums and norms": (DEEP, False),
    "their settings and density": ({}, True),
    "nine layers with sums and norms, their density": (DEEP, True),
    "backward, squares, their density": ({"contrast": "backward", "energy": "square"}, True),
    "symmetric, products, their density": ({"contrast": "symmetric", "energy": "product"}, True),
}
ENERGIES = {"distance": "norm", "square": "l2", "product": "dot"}
DIRECTIONS = {"forward": "fwd_infonce", "backward": "bwd_infonce", "symmetric": "sym_infonce"}
LOSSES = {
    "actor/loss": "actor_loss",
    "temperature/loss": "alpha_loss",
    "critic/loss": "critic_loss",
    "critic/normaliser": "logsumexp",
    "critic/positive": "logits_pos",
    "critic/negative": "logits_neg",
    "critic/accuracy": "categorical_accuracy",
}
FOLDER = Path("jaxgcrl/agents/crl")
FULL = crl_online.Config()  # at their width


class Rows(NamedTuple):
    """A batch as their losses read it."""

    observation: Any  # [B, S + G]
    action: Any  # [B, A]
    extras: dict[str, Any]


@struct.dataclass
class Learner:
    """What their losses read and replace."""

    actor_state: TrainState
    critic_state: TrainState
    alpha_state: TrainState


class Theirs(NamedTuple):
    """Their code with our settings."""

    losses: types.ModuleType
    settings: dict[str, Any]
    networks: dict[str, Any]
    learner: Learner


def module(peer: Path, name: str) -> types.ModuleType:
    """A file of the authors."""
    spec: Any = importlib.util.spec_from_file_location(name, peer / FOLDER / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def their_code(peer: Path, config: crl_online.Config, shapes: Shapes) -> Theirs:
    """The authors' networks, optimisers and losses for our settings."""
    state, action, goals = shapes
    code = module(peer, "networks")
    style: dict[str, Any] = {"skip_connections": config.skip, "use_ln": config.layer_norm}
    style["network_depth"] = config.depth
    width = {"network_width": config.critic_widths[0], "repr_dim": config.latent_size}
    networks = {
        "actor": code.Actor(action, network_width=config.hidden[0], **style),
        "sa_encoder": code.Encoder(**width, **style),
        "g_encoder": code.Encoder(**width, **style),
    }
    sizes = {"actor": state + len(goals), "sa_encoder": state + action, "g_encoder": len(goals)}
    keys = dict(zip(sizes, jax.random.split(jax.random.key(1), 3), strict=True))
    first = {name: networks[name].init(keys[name], jnp.zeros((1, sizes[name]))) for name in sizes}
    critic = {name: first[name] for name in ("sa_encoder", "g_encoder")}
    alpha = {"log_alpha": jnp.log(jnp.asarray(config.init_temperature, jnp.float32))}

    def trained(parameters: Any, rate: Any) -> TrainState:
        adam = optax.adam(float(rate))
        made = TrainState.create(apply_fn=None, params=parameters, tx=adam)  # pyright: ignore[reportArgumentType]
        return made.replace(step=jnp.asarray(made.step))

    settings = {
        "state_size": state,
        "goal_indices": np.asarray(goals),
        "energy_fn": ENERGIES[config.energy],
        "contrastive_loss_fn": DIRECTIONS[config.contrast],
        "logsumexp_penalty_coeff": float(config.normaliser_penalty),
        "target_entropy": -float(config.target_entropy_share) * action,
    }
    learner = Learner(
        actor_state=trained(first["actor"], config.actor_lr),
        critic_state=trained(critic, config.critic_lr),
        alpha_state=trained(alpha, config.temperature_lr),
    )
    return Theirs(module(peer, "losses"), settings, networks, learner)


def learn(theirs: Theirs, learner: Learner, rows: Rows, key: jax.Array) -> tuple[Learner, Any]:
    """One update in the order of their loop."""
    these = (theirs.settings, theirs.networks, rows)
    learner, metrics = theirs.losses.update_actor_and_alpha(*these, learner, key)
    learner, others = theirs.losses.update_critic(*these, learner, key)
    return learner, {**metrics, **others}


def layers(params: Any, depth: int, inputs: int, rows: Any) -> dict[str, Any]:
    """The parameters of one of their networks, of `depth` hidden layers, under our names.

    Our network has so many `inputs`, and theirs some `rows` of them; other weights are 0. Their two
    last layers are one of ours.
    """
    params = jax.tree.map(np.asarray, params["params"])
    last = [params[f"Dense_{i}"] for i in range(depth, len(params)) if f"Dense_{i}" in params]
    known = {f"hidden_{i}": params[f"Dense_{i}"] for i in range(depth)}
    norms = {f"norm_{i}": params.get(f"LayerNorm_{i}") for i in range(depth)}
    known |= {name: norm for name, norm in norms.items() if norm is not None}
    first = known["hidden_0"]["kernel"]
    kernel = np.zeros((inputs, first.shape[1]), first.dtype)
    kernel[rows] = first
    known["hidden_0"] = {**known["hidden_0"], "kernel": kernel}
    return known | {"output": jax.tree.map(lambda *x: np.concatenate(x, axis=-1), *last)}


def of_peer(learner: Learner, config: crl_online.Config, shapes: Shapes) -> dict[str, Any]:
    """All that theirs learns, in the form of ours."""
    state, action, goals = shapes
    size, depth = state + len(goals), config.depth
    seen = np.r_[:state, size : size + action]  # of [state; goal; action]
    critic = learner.critic_state.params
    parts = {
        "actor": (learner.actor_state.params, size, np.arange(size)),
        "of_actions": (critic["sa_encoder"], size + action, seen),
        "of_goals": (critic["g_encoder"], size, np.arange(state, size)),
    }
    return {
        name: layers(params, depth, inputs, rows) for name, (params, inputs, rows) in parts.items()
    }


def networks_of(state: crl_online.State) -> dict[str, Any]:
    """Our networks by name."""
    critic: Energy = state.critic.parameters
    both = {"of_actions": critic.of_actions, "of_goals": critic.of_goals}
    return {"actor": state.actor.parameters, **both}


def with_parameters(state: crl_online.State, params: Any) -> crl_online.State:
    """Our State with other parameters."""
    mine = {name: x.replace(params=params[name]) for name, x in networks_of(state).items()}
    actor = mine.pop("actor")
    critic = state.critic.parameters.replace(**mine)
    return state.replace(
        actor=state.actor.replace(parameters=actor), critic=state.critic.replace(parameters=critic)
    )


def begun(theirs: Theirs, config: crl_online.Config, shapes: Shapes) -> crl_online.State:
    """Our State with their first parameters."""
    state, action, goals = shapes
    spec = EnvSpec("test/Example-v0", (state + len(goals),), action)
    first = jax.jit(crl_online.init, static_argnums=1)(jax.random.key(0), spec, config)
    return with_parameters(first, of_peer(theirs.learner, config, shapes))


def batches(number: int, size: int, shapes: Shapes) -> list[tuple[Transition, Rows]]:
    """Random batches, ours and theirs: later states, whose goals are those of the rows."""
    generator = np.random.default_rng(0)
    pairs = []
    for _ in range(number):
        state, later = generator.normal(size=(2, size, shapes[0])).astype(np.float32)
        action = np.tanh(generator.normal(size=(size, shapes[1]))).astype(np.float32)
        observation = np.concatenate([state, later[:, shapes[2]]], axis=1)
        is_goal = np.zeros_like(observation)
        is_goal[:, shapes[0] :] = 1.0
        nothing = np.zeros(size, bool)
        ours = Transition(
            observation=observation,
            action=action,  # pyright: ignore[reportArgumentType]
            reward=nothing.astype(np.float32),  # pyright: ignore[reportArgumentType]
            terminated=nothing,  # pyright: ignore[reportArgumentType]
            truncated=nothing,  # pyright: ignore[reportArgumentType]
            next_observation=observation,
            extras={buffers.IS_GOAL: is_goal},  # pyright: ignore[reportArgumentType]
        )
        pairs.append((ours, Rows(observation, action, {"future_state": later})))
    return pairs


def their_slope(self: Any, x: Any) -> Any:
    """The logarithm of tanh's slope as they add it to densities."""
    return jnp.log(1.0 - jnp.square(jnp.tanh(x)) + 1e-6)


def compared(peer: Path, updates: int, case: tuple[Mapping[str, Any], bool]) -> dict[str, float]:
    """The largest relative difference of losses, and how far parameters lie apart after `updates`
    updates, relative to how far theirs have moved.
    """
    with contextlib.ExitStack() as stack:
        if case[1]:
            slope = "forward_log_det_jacobian"
            stack.enter_context(mock.patch.object(distrax.Tanh, slope, their_slope))
        return differences(peer, updates, dataclasses.replace(CONFIG, **case[0]))


def differences(peer: Path, updates: int, config: crl_online.Config) -> dict[str, float]:
    """What `compared` returns."""
    theirs = their_code(peer, config, SMALL)
    learner = exact(theirs.learner)
    state = exact(begun(theirs, config, SMALL))
    first, start = of_peer(learner, config, SMALL), state.log_temperature.parameters
    update = jax.jit(crl_online.update)
    their_update = jax.jit(lambda learner, rows, key: learn(theirs, learner, rows, key))
    results = dict.fromkeys(LOSSES, 0.0)
    for step, (batch, rows) in enumerate(batches(updates, BATCH, SMALL)):
        key = jax.random.key(step)
        state, metrics = update(state, exact(batch), key, jnp.asarray(step), config)
        learner, others = their_update(learner, exact(rows), key)
        for ours, name in LOSSES.items():
            difference = relative(metrics[ours], others[name])
            results[ours] = max(results[ours], difference)
    mine, last = networks_of(state), of_peer(learner, config, SMALL)
    for name, network in mine.items():
        results[f"parameters/{name}"] = distance(first[name], network.params, last[name])
    log_alpha = np.asarray(learner.alpha_state.params["log_alpha"])
    after = state.log_temperature.parameters
    results["parameters/log_temperature"] = distance(start, after, log_alpha)
    return results


def seconds(peer: Path) -> dict[str, Any]:
    """Processor's seconds of one update in turns, at their width on the ant's shapes."""
    theirs = their_code(peer, FULL, ANT)
    ((batch, rows),) = batches(1, FULL.batch_size, ANT)
    key = jax.random.key(0)
    their_update = jax.jit(lambda learner, rows: learn(theirs, learner, rows, key))
    return shared.update_times(
        crl_online,
        begun(theirs, FULL, ANT),
        batch,
        FULL,
        lambda: their_update(theirs.learner, rows),
    )


def main() -> None:
    """Compare all cases, or measure, and write the differences."""
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, seconds, options.peer)


if __name__ == "__main__":
    main()
