"""AWAC's updates beside those of CORL's unmodified file: the same first parameters, batches and
noise.

  python -m venv peer && peer/bin/pip install torch jax==0.10.2 flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/offline/compare_awac.py --peer CORL \
      --output results/checks/references/awac.json

The folder `CORL` has tinkoff-ai/CORL of GitHub at 6afec90. The classes of its
algorithms/offline/awac.py are used as they are; d4rl, Gym, Weights & Biases and pyrallis, which the
file imports, are empty here. Everything is in float64.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import awac
from scripts.checks.compare_updates import given_noise
from scripts.updates import shared
from scripts.updates.shared import distance, relative

OBSERVATION, ACTION, BATCH, WIDTH = 5, 3, 32, 24
SPREAD = 30.0  # of the critics' last weights, so that advantages and weights differ much
EMPTY = ("d4rl", "gym", "pyrallis", "wandb")  # packages that are not needed
CASES: dict[str, dict[str, Any]] = {
    "locomotion": {"temperature": 0.3333},
    "AntMaze": {"temperature": 0.1},  # where most weights are at their bound or near 0
}


def imported(peer: Path) -> Any:
    """CORL's file as a module."""
    import torch.nn.functional  # noqa: F401  # pyright: ignore[reportMissingImports]
    import tqdm  # noqa: F401

    path = peer / "algorithms/offline/awac.py"
    spec: Any = importlib.util.spec_from_file_location("corl_awac", path)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in EMPTY}):
        sys.modules["corl_awac"] = module
        spec.loader.exec_module(module)
    return module


def config_of(changes: dict[str, Any]) -> awac.Config:
    """Our settings of a case."""
    return awac.Config(hidden=(WIDTH,) * 3, batch_size=BATCH, **changes)


def their_learner(module: Any, config: awac.Config) -> Any:
    """CORL's learner with the settings of ours."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    size = (OBSERVATION, ACTION, WIDTH)
    actor = module.Actor(*size).double()
    critics = [module.Critic(*size).double() for _ in range(2)]
    with torch.no_grad():
        for critic in critics:
            critic._mlp[-1].weight.mul_(SPREAD)
    rates = [(actor, config.actor_lr), *((critic, config.critic_lr) for critic in critics)]
    adams = [torch.optim.Adam(network.parameters(), lr=rate) for network, rate in rates]
    pairs = [x for pair in zip([actor, *critics], adams, strict=True) for x in pair]
    return module.AdvantageWeightedActorCritic(
        *pairs,
        gamma=config.discount,
        tau=config.target_rate,
        awac_lambda=config.temperature,
        exp_adv_max=config.max_weight,
    )


def batches(updates: int) -> list[tuple[Transition, list[np.ndarray]]]:
    """Batches of random transitions, and the noise [B, A] of next and of new actions for each."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return generator.normal(size=(BATCH, *shape))

    def batch() -> Transition:
        return Transition(
            observation=normal(OBSERVATION),
            action=np.tanh(normal(ACTION)),  # pyright: ignore[reportArgumentType]
            reward=3.0 * normal(),
            terminated=generator.random(BATCH) < 0.2,  # pyright: ignore[reportArgumentType]
            truncated=np.zeros(BATCH, bool),  # pyright: ignore[reportArgumentType]
            next_observation=normal(OBSERVATION),
        )

    return [(batch(), [normal(ACTION), normal(ACTION)]) for _ in range(updates)]


def layers(parameters: list[np.ndarray]) -> dict[str, Any]:
    """The parameters of one of their networks, weights and biases in turn, by our names."""
    names = [*(f"hidden_{i}" for i in range(len(parameters) // 2 - 1)), "output"]
    pairs = zip(parameters[::2], parameters[1::2], strict=True)
    return {
        name: {"kernel": jnp.asarray(weight.T), "bias": jnp.asarray(bias)}
        for name, (weight, bias) in zip(names, pairs, strict=True)
    }


def of_theirs(learner: Any) -> dict[str, Any]:
    """All that they learn, by our names."""

    def of_network(network: Any) -> dict[str, Any]:
        return layers([x.detach().numpy().copy() for x in network._mlp.parameters()])

    def members(kind: str) -> dict[str, Any]:
        pair = [of_network(getattr(learner, f"_{kind}_{i}")) for i in (1, 2)]
        return {"members": jax.tree.map(lambda *x: jnp.stack(x), *pair)}

    return {
        "actor": of_network(learner._actor),
        "log_std": jnp.asarray(learner._actor._log_std.detach().numpy().copy()),
        "critic": members("critic"),
        "target_critic": members("target_critic"),
    }


def of_ours(state: awac.State) -> dict[str, Any]:
    """The same of our State."""
    return {
        "actor": state.actor.parameters.mean.params,
        "log_std": state.actor.parameters.log_std,
        "critic": state.critic.parameters.params,
        "target_critic": state.target_critic.params,
    }


def with_parameters(state: awac.State, known: dict[str, Any]) -> awac.State:
    """Our State in float64, with these parameters."""
    state = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64 if jnp.issubdtype(x.dtype, jnp.floating) else None),
        state,
    )
    actor = state.actor.parameters
    actor = actor.replace(mean=actor.mean.replace(params=known["actor"]), log_std=known["log_std"])
    critic = state.critic.parameters.replace(params=known["critic"])
    return state.replace(
        actor=state.actor.replace(parameters=actor),
        critic=state.critic.replace(parameters=critic),
        target_critic=state.target_critic.replace(params=known["target_critic"]),
    )


def their_update(learner: Any, batch: Transition, noise: list[np.ndarray]) -> dict[str, float]:
    """One update of theirs with this noise; its losses."""
    import torch  # pyright: ignore[reportMissingImports]

    left = iter(noise)

    def drawn(*_: Any, **__: Any) -> Any:
        return torch.from_numpy(next(left))

    columns = (batch.observation, batch.action, batch.reward, batch.next_observation)
    rows = [np.asarray(x).reshape(BATCH, -1) for x in (*columns, batch.terminated)]
    tensors = [torch.from_numpy(x.astype(np.float64)) for x in rows]
    with mock.patch("torch.distributions.normal._standard_normal", drawn):
        return learner.update(tensors)


def compared(module: Any, updates: int, changes: dict[str, Any]) -> dict[str, Any]:
    """The largest relative differences after `updates` of both, from the same start."""
    config = config_of(changes)
    learner, spec = their_learner(module, config), EnvSpec("Example-v0", (OBSERVATION,), ACTION)
    known = of_theirs(learner)
    state = with_parameters(awac.init(jax.random.key(0), spec, config), known)

    @jax.jit
    def update(state: awac.State, batch: Transition, noise: Any, number: Any) -> Any:
        with given_noise({"normal": list(noise)}):
            return awac.update(state, batch, jax.random.key(0), number, config)

    losses: dict[str, list[float]] = {"critic": [], "actor": []}
    weights = []
    for number, (batch, noise) in enumerate(batches(updates)):
        theirs = their_update(learner, batch, noise)
        state, mine = update(state, jax.tree.map(jnp.asarray, batch), noise, number)
        for name, values in losses.items():
            values.append(relative(mine[f"{name}/loss"], theirs[f"{name}_loss"]))
        weights.append(float(mine["actor/weight"]))
    last, ours = of_theirs(learner), of_ours(state)
    return {
        "mean weight": float(np.mean(weights)),
        "losses": {name: max(values) for name, values in losses.items()},
        "parameters": {name: distance(known[name], last[name], ours[name]) for name in last},
    }


def main() -> None:
    """Compare all cases, and write the differences."""
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, imported(options.peer)))


if __name__ == "__main__":
    main()
