"""QSM's and DAC's updates beside those of the unmodified agent of QAM's authors: the same first
parameters, the same chunks, and the same random numbers.

  python scripts/updates/offline/compare_qsm.py --peer qam \
      --output results/checks/references/qsm.json

The folder `qam` has ColinQiyangLi/qam of GitHub at f93efd2. Every random number is the same in
both. Their loss of the policy, raised to the power of what is valid, is 1 for each chunk that is
not whole: the comparison of losses, which no gradient sees, takes that off.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agents import qsm
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qc
from scripts.updates.offline.compare_qc import LENGTH, OBSERVATION, SMALL
from scripts.updates.shared import ACTION, ACTOR, BATCH, distance, exact

CASES: dict[str, dict[str, Any]] = {
    "QSM": {"inverse_temperature": 3.0},
    "QSM, single actions": {"chunk_length": 1, "pessimism": 0.0, "inverse_temperature": 10.0},
    "DAC": {  # whose slope has no weight in their code
        "matching": "actor_critic",
        "sampling": "wide",
        "inverse_temperature": 1.0,
        "imitation_weight": 0.3,
    },
}


def config_of(changes: Mapping[str, Any]) -> qsm.Config:
    """Our settings, in layers of the comparison's width."""
    return qsm.Config(hidden=ACTOR, **{"chunk_length": LENGTH, **changes})


@contextlib.contextmanager
def same_numbers() -> Iterator[None]:
    """Inside, JAX's random numbers depend on the last two axes of a shape alone: ours draws the
    noise of all steps at once.
    """

    def normal(key: Any, shape: Any = (), *_: Any, **__: Any) -> Any:
        last = tuple(shape[-2:])
        numbers = np.random.RandomState(1).normal(size=int(np.prod(last)))
        return jnp.broadcast_to(jnp.asarray(numbers).reshape(last), shape)

    def randint(key: Any, shape: Any, low: Any, high: Any, *_: Any) -> Any:
        return low + jnp.asarray(np.random.RandomState(3).randint(high - low, size=shape))

    with (
        mock.patch.object(jax.random, "normal", normal),
        mock.patch.object(jax.random, "randint", randint),
    ):
        yield


def their_agent(peer: Path, config: qsm.Config) -> tuple[Any, Any]:
    """The authors' agent, and their data set of our rows."""
    module, data = compare_qc.their_modules(peer, "agents.dcgql")
    options = {**module.get_config(), "horizon_length": config.chunk_length}
    options |= {"actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden}
    options |= {"action_chunking": True, "rho": config.pessimism}
    options |= {"actor_loss_type": "qsm" if config.matching == "score" else "dac"}
    options |= {"inv_temp": config.inverse_temperature, "alpha": config.imitation_weight}
    limits_estimate = config.sampling != "clean"
    options |= {"clip_sampler_before": limits_estimate, "clip_sampler_after": not limits_estimate}
    rows = compare_qc.recorded()
    theirs = module.DCGQLAgent.create(0, rows.observation[0], rows.action[0], options)
    return theirs, compare_qc.their_data(data, rows)


def like_denoiser(network: Network, tree: Mapping[str, Any], actions: int) -> Network:
    """Our noise predictor with the numbers of theirs, which reads actions, observations and times;
    ours reads times before observations.
    """
    frequencies, time, body = (tree[name] for name in ("FourierFeatures_0", "MLP_0", "MLP_1"))
    layers = compare_qc.ours(body)
    kernel = jnp.asarray(layers["hidden_0"]["kernel"])
    parts = jnp.split(kernel, [actions, actions + OBSERVATION])
    layers["hidden_0"]["kernel"] = jnp.concatenate([parts[0], parts[2], parts[1]])
    new = {
        "frequencies_0": frequencies["kernel"][:, 0],
        "time_0": compare_qc.ours(time),
        "body": layers,
    }
    return network.replace(params=jax.tree.map(lambda _, x: jnp.asarray(x), network.params, new))


def with_their_parameters(state: qsm.State, params: Mapping[str, Any]) -> qsm.State:
    """Our State with the numbers of their networks."""
    learnt, like = state.networks.parameters, compare_qc.like
    denoiser = like_denoiser(learnt.denoiser, params["modules_actor"], state.spec.action_size)
    critic = like(learnt.critic, params["modules_critic"])
    changed = learnt.replace(critic=critic, denoiser=denoiser)
    return state.replace(
        networks=state.networks.replace(parameters=changed),
        target_critic=like(state.target_critic, params["modules_target_critic"]),
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates; and how far
    apart actions are then.
    """
    config = config_of(changes)
    length, rows = config.chunk_length, compare_qc.recorded()
    theirs, data = their_agent(peer, config)
    theirs = exact(jax.tree.map(jnp.asarray, theirs))
    first = exact(qsm.init(jax.random.key(0), SMALL, config))
    first = state = with_their_parameters(first, theirs.network.params)
    prepared = compare_qc.prepared()
    update = jax.jit(functools.partial(qsm.update, config=config))
    names = {"critic/loss": "critic/critic_loss", "actor/matching": "actor/actor_loss"}
    differences = dict.fromkeys(names, 0.0)
    with same_numbers(), stand_ins.old_names():
        for i in range(updates):
            batch = compare_qc.their_chunks(data, i, length, config.discount)
            theirs, info = theirs.update(batch)
            chunks = compare_qc.our_chunks(prepared, i, length)
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i))
            parts = (1.0 - batch["valid"][..., -1]).mean()
            info = {**info, "actor/actor_loss": info["actor/actor_loss"] - parts}
            compare_qc.keep_largest(differences, metrics, info, names)
        observation = exact(rows.observation[:BATCH])
        action = qsm.policy(state, observation, jax.random.key(0), config)
        other_action = theirs.sample_actions(observation, jax.random.key(0))
    other = with_their_parameters(state, theirs.network.params)
    for name in ("critic", "denoiser"):
        trees = [getattr(x.networks.parameters, name) for x in (first, state, other)]
        differences[name] = distance(*trees)
    differences["targets"] = distance(*(x.target_critic for x in (first, state, other)))
    differences["actions"] = float(np.abs(action - other_action).max())
    assert action.shape == (BATCH, length * ACTION)
    return differences


def main() -> None:
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, functools.partial(compared, options.peer))


if __name__ == "__main__":
    main()
