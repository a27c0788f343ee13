"""Updates of TQC and of SBX's TQC (JAX),
from the same parameters, on the same batches and with the same noise.

  python -m venv peer && peer/bin/pip install sbx-rl==0.28.0 distrax==0.1.9
  PYTHONPATH=. peer/bin/python scripts/updates/compare_tqc.py \
      --output results/checks/references/tqc.json

The settings are SBX's defaults: two critics of 25
quantiles, of which each loses two, and layers of 256 units; the batch is 256. Each update's losses
are compared, and all parameters at the end, relative to how far they have moved.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import networks
from rljax.agent import EnvSpec, Transition
from rljax.agents import tqc
from scripts.checks.authors import learners
from scripts.checks.compare_updates import given_noise, relative

OBSERVATIONS, ACTIONS, BATCH = 17, 6, 256  # those of HalfCheetah
HIDDEN = (256, 256)
CONFIG = tqc.Config(hidden=HIDDEN, critic_hidden=HIDDEN, num_critics=2)
ENDS = 0.2  # share of rows that end an episode
SPREAD = 0.02  # std of what targets are apart from their critics


def critic_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one of SBX's critics under our names."""
    *hidden, output = sorted(params, key=lambda name: int(name.split("_")[1]))
    names = {name: f"hidden_{i}" for i, name in enumerate(hidden)} | {output: "output"}
    return {ours: dict(params[theirs]) for theirs, ours in names.items()}


def actor_layers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same of its actor, whose last two layers, of mean and log std, are one of ours."""
    *_, mean, log_std = sorted(params, key=lambda name: int(name.split("_")[1]))
    rest = {name: layer for name, layer in params.items() if name not in (mean, log_std)}
    pair = [params[mean], params[log_std]]
    output = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-1), *pair)
    return critic_layers({**rest, mean: output})


def of_peer(policy: Any, temperature: Any) -> dict[str, Any]:
    """All that SBX learns, in the form of ours."""
    pair = (policy.qf1_state, policy.qf2_state)

    def members(name: str) -> dict[str, Any]:
        critics = [critic_layers(getattr(state, name)["params"]) for state in pair]
        return {"members": jax.tree.map(lambda *x: jnp.stack(x), *critics)}

    return {
        "actor": actor_layers(policy.actor_state.params["params"]),
        "critic": members("params"),
        "target_critic": members("target_params"),
        "log_temperature": temperature.params["log_ent_coef"],
    }


def of_ours(state: Any) -> dict[str, Any]:
    """The same of our State."""
    return {
        "actor": state.actor.parameters.params,
        "critic": state.critic.parameters.params,
        "target_critic": state.target_critic.params,
        "log_temperature": state.log_temperature.parameters,
    }


def with_parameters(state: Any, known: Mapping[str, Any]) -> Any:
    """Our State with these parameters."""

    def replaced(name: str) -> Any:
        network = networks.parameters_of(getattr(state, name))
        return network.replace(params=jax.tree.map(jnp.asarray, known[name]))

    return state.replace(
        actor=state.actor.replace(parameters=replaced("actor")),
        critic=state.critic.replace(parameters=replaced("critic")),
        target_critic=replaced("target_critic"),
        log_temperature=state.log_temperature.replace(
            parameters=jnp.asarray(known["log_temperature"])
        ),
    )


def batches(number: int) -> list[tuple[Transition, list[np.ndarray]]]:
    """Batches [B, ...], and the noise [B, A] of next and of new actions for each."""
    generator, normal = learners.normals()
    rows = []
    for _ in range(number):
        ends = generator.random(BATCH) < ENDS
        batch = Transition(
            observation=normal(BATCH, OBSERVATIONS),
            action=np.tanh(normal(BATCH, ACTIONS)),  # pyright: ignore[reportArgumentType]
            reward=3.0 * normal(BATCH),  # pyright: ignore[reportArgumentType]
            terminated=ends,  # pyright: ignore[reportArgumentType]
            truncated=np.zeros(BATCH, bool),  # pyright: ignore[reportArgumentType]
            next_observation=normal(BATCH, OBSERVATIONS),
        )
        rows.append((batch, [normal(BATCH, ACTIONS) for _ in range(2)]))
    return rows


def peers(rows: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, list[float]]]:
    """SBX's parameters before and after the updates, and its losses."""
    from gymnasium import spaces
    from sbx import TQC  # pyright: ignore[reportMissingImports]
    from sbx.common.type_aliases import ReplayBufferSamplesNp  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]

    high = np.full(OBSERVATIONS, np.inf, np.float32)
    observations, actions = spaces.Box(-high, high), spaces.Box(-1.0, 1.0, (ACTIONS,))
    model = TQC("MlpPolicy", DummyVecEnv([lambda: still(observations, actions)]), seed=0)
    policy, temperature = model.policy, model.ent_coef_state
    _, normal = learners.normals(1)
    for name in ("qf1_state", "qf2_state"):
        state = getattr(policy, name)
        apart = jax.tree.map(lambda x: x + SPREAD * normal(*x.shape), state.target_params)
        setattr(policy, name, state.replace(target_params=apart))
    first = of_peer(policy, temperature)
    losses: dict[str, list[float]] = {"critic": [], "actor": [], "temperature": []}
    for batch, noise in rows:
        ends = batch.terminated.astype(np.float32)
        discounts = np.full(BATCH, model.gamma, np.float32)
        names = (batch.observation, batch.action, batch.next_observation, ends, batch.reward)
        data = ReplayBufferSamplesNp(*names, discounts)
        states = (policy.qf1_state, policy.qf2_state, policy.actor_state, temperature)
        # TensorFlow Probability draws [A, B].
        with jax.disable_jit(), given_noise({"normal": [draw.T for draw in noise]}):
            result = TQC._train(
                model.tau,
                model.target_entropy,
                1,
                policy.n_target_quantiles,
                data,
                1,
                0,
                *states,
                jax.random.key(0),
            )
        policy.qf1_state, policy.qf2_state, policy.actor_state, temperature, _, values = result
        losses["critic"].append(float(values[0] + values[1]))
        losses["actor"].append(float(values[2]))
        losses["temperature"].append(float(values[3]))
    return first, of_peer(policy, temperature), losses


def still(observations: Any, actions: Any) -> Any:
    """An environment that is only asked for its spaces."""
    import gymnasium

    class Still(gymnasium.Env):
        """It has spaces."""

        observation_space, action_space = observations, actions

    return Still()


def ours(rows: Any, first: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Our parameters after the updates from `first`, and our losses."""
    spec = EnvSpec("Example-v0", (OBSERVATIONS,), ACTIONS)
    state = with_parameters(tqc.init(jax.random.key(0), spec, CONFIG), first)

    @jax.jit
    def update(state: Any, batch: Transition, noise: Any, step: Any) -> Any:
        with given_noise({"normal": noise}):
            return tqc.update(state, batch, jax.random.key(0), step, CONFIG)

    losses: dict[str, list[float]] = {"critic": [], "actor": [], "temperature": []}
    for step, (batch, noise) in enumerate(rows):
        state, metrics = update(state, jax.tree.map(jnp.asarray, batch), noise, step)
        for name, values in losses.items():
            values.append(float(metrics[f"{name}/loss"]))
    return of_ours(state), losses


def apart(first: Any, mine: Any, other: Any) -> float:
    """The distance of two trees of parameters, relative to how far the second has moved."""
    trees = [map(np.asarray, jax.tree.leaves(tree)) for tree in (first, mine, other)]
    parts = [
        (np.square(x - y).sum(), np.square(y - z).sum()) for z, x, y in zip(*trees, strict=True)
    ]
    distance, moved = map(sum, zip(*parts, strict=True))
    return float(np.sqrt(distance / moved))


def main() -> None:
    """Make the updates, and print and write by how much they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=10, help="how many are made")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    rows = batches(options.updates)
    first, last, their_losses = peers(rows)
    mine, losses = ours(rows, first)
    result = {
        "updates": options.updates,
        "losses": {
            name: relative(np.array(values), np.array(their_losses[name]))["all"]
            for name, values in losses.items()
        },
        "parameters": {name: apart(first[name], mine[name], last[name]) for name in mine},
        "versions": {name: importlib.metadata.version(name) for name in ("sbx-rl", "jax", "flax")},
    }
    print(json.dumps(result, indent=1))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
