"""IDQL's updates and actions beside those of its authors' unmodified agent: the same first
parameters, batches and random numbers.

  python scripts/updates/offline/compare_idql.py --peer IDQL \
      --output results/checks/references/idql.json
  python scripts/updates/offline/compare_idql.py --peer IDQL --times --output FILE

The folder `IDQL` has philippe-eecs/IDQL of GitHub at 7582571. Its agent is the one that its scripts
import, `ddpm_iql_simple`, alone: other agents of the package need other packages.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import idql
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.offline import compare_qsm
from scripts.updates.shared import ACTION, ACTOR, OBSERVATION, distance, exact, relative

WIDTH, WAVES = 256, 8  # the first cannot be set in theirs
SPEC = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
CASES: dict[str, dict[str, Any]] = {
    "IDQL": {"decay_steps": 20.0},
    "IDQL, antmaze, no dropout": {"decay_steps": None, "dropout": None, "expectile": 0.9},
}


def config_of(changes: Mapping[str, Any]) -> idql.Config:
    """Our settings, in small layers where theirs can be small."""
    sizes = {"hidden": (WIDTH,) * 2, "critic_hidden": ACTOR, "embedding": WAVES}
    return idql.Config(num_candidates=16, **sizes, **changes)


@contextlib.contextmanager
def same_numbers() -> Iterator[None]:
    """Inside, JAX's random numbers do not depend on keys, as in `compare_qsm`."""

    def bernoulli(key: Any, p: Any = 0.5, shape: Any = (), *_: Any) -> Any:
        return jnp.asarray(np.random.RandomState(5).uniform(size=shape)) < p

    with compare_qsm.same_numbers(), mock.patch.object(jax.random, "bernoulli", bernoulli):
        yield


def their_agent(peer: Path, config: idql.Config, spec: EnvSpec = SPEC) -> Any:
    """The authors' agent."""
    names = ("jaxrl5.agents", "jaxrl5.agents.ddpm_iql_simple", "jaxrl5.data.dataset", "gym")
    replaced: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    for name in names[:2]:  # without what these packages import at first
        replaced[name].__path__ = [str(peer.joinpath(*name.split(".")))]
    replaced[names[2]].DatasetDict = dict
    replaced["gym"].spaces = types.SimpleNamespace(Space=object, Box=object)
    with stand_ins.importing(peer, replaced) as imported:
        module = imported("jaxrl5.agents.ddpm_iql_simple.ddpm_iql_learner")
    spaces = [
        types.SimpleNamespace(sample=lambda size=size: np.zeros(size, np.float32), shape=(size,))
        for size in (*spec.observation_shape, spec.action_size)
    ]
    return module.DDPMIQLLearner.create(
        0,
        *spaces,
        actor_lr=config.actor_lr,
        critic_hidden_dims=config.critic_hidden,
        critic_hyperparam=config.expectile,
        actor_num_blocks=len(config.hidden),
        actor_dropout_rate=config.dropout,
        time_dim=config.embedding,
        T=config.denoising_steps,
        N=config.num_candidates,
        decay_steps=config.decay_steps,
    )


def their_batch(batch: Transition) -> dict[str, Any]:
    """A batch under their names."""
    return {
        "observations": batch.observation,
        "actions": batch.action,
        "rewards": batch.reward,
        "masks": 1.0 - np.asarray(batch.terminated, np.float64),
        "next_observations": batch.next_observation,
    }


def mlp(tree: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """Our names for the hidden layers and the last layer of theirs."""
    layers = {f"hidden_{name[-1]}": x for name, x in tree.items() if name.startswith("Dense")}
    return {**layers, "output": output}


def like_critic(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our critics with the numbers of theirs."""
    (members,) = tree.values()
    return with_numbers(network, {"members": mlp(members["MLP_0"], members["Dense_0"])})


def like_value(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our V with the numbers of theirs, whose inputs are normalised."""
    layers = mlp(tree["MLP_0"], tree["OutputVDense"])
    return with_numbers(network, {"norm": tree["MLP_0"]["LayerNorm_0"], "net": layers})


def like_denoiser(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our noise predictor with the numbers of theirs, which reads actions, observations and times;
    ours reads times before observations.
    """
    blocks, times = tree["MLPResNet_0"], tree["MLP_0"]
    kernel = jnp.asarray(blocks["Dense_0"]["kernel"])
    parts = jnp.split(kernel, [ACTION, ACTION + OBSERVATION])
    first = {**blocks["Dense_0"], "kernel": jnp.concatenate([parts[0], parts[2], parts[1]])}
    body: dict[str, Any] = {"input": first, "output": blocks["Dense_1"]}
    for i in range(sum(name.startswith("MLPResNetBlock") for name in blocks)):
        block = blocks[f"MLPResNetBlock_{i}"]
        names = {"norm": "LayerNorm_0", "inner": "Dense_0", "outer": "Dense_1"}
        body |= {f"{ours}_{i}": block[other] for ours, other in names.items()}
    new = {
        "frequencies_0": tree["FourierFeatures_0"]["kernel"][:, 0],
        "time_0": mlp({"Dense_0": times["Dense_0"]}, times["Dense_1"]),
        "body": body,
    }
    return with_numbers(network, new)


def with_numbers(network: Network, params: Any) -> Network:
    """A network with the numbers of a tree that is built alike."""
    new = jax.tree.map(lambda _, x: jnp.asarray(x), network.params, params)
    return network.replace(params=new)


def with_their_parameters(state: idql.State, theirs: Any) -> idql.State:
    """Our State with the numbers of their networks."""
    actor = like_denoiser(state.average_actor, theirs.score_model.params)
    critic = like_critic(state.target_critic, theirs.critic.params)
    value = like_value(state.value.parameters, theirs.value.params)
    return state.replace(
        actor=state.actor.replace(parameters=actor),
        critic=state.critic.replace(parameters=critic),
        value=state.value.replace(parameters=value),
        average_actor=like_denoiser(state.average_actor, theirs.target_score_model.params),
        target_critic=like_critic(state.target_critic, theirs.target_critic.params),
    )


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """The largest relative differences of losses, of parameters after all updates, and how far
    apart actions are then.
    """
    config = config_of(changes)
    theirs = exact(jax.tree.map(jnp.asarray, their_agent(peer, config)))
    first = exact(idql.init(jax.random.key(0), SPEC, config))
    first = state = with_their_parameters(first, theirs)
    update = jax.jit(functools.partial(idql.update, config=config))
    names = {"actor/loss": "actor_loss", "value/loss": "value_loss", "critic/loss": "critic_loss"}
    differences = dict.fromkeys(names, 0.0)
    with same_numbers(), stand_ins.old_names():
        for i, batch in enumerate(shared.batches(updates)):
            batch = exact(batch)
            theirs, info = theirs.update(their_batch(batch))
            state, metrics = update(state, batch, jax.random.key(0), jnp.asarray(i))
            for ours, other in names.items():
                differences[ours] = max(differences[ours], relative(metrics[ours], info[other]))
        observation = exact(shared.batches(1)[0].observation[0])
        acting = theirs.replace(N=config.num_candidates)
        other_action, _ = acting.eval_actions(observation)
        action, _ = idql.act(state, observation, jax.random.key(0), config, explore=False)
    other = with_their_parameters(state, theirs)
    for name in ("actor", "value", "critic"):
        differences[name] = distance(*(getattr(x, name).parameters for x in (first, state, other)))
    for name in ("average_actor", "target_critic"):
        differences[name] = distance(*(getattr(x, name) for x in (first, state, other)))
    differences["action"] = float(np.abs(action - other_action).max())
    return differences


def times(peer: Path) -> dict[str, Any]:
    """See `shared.beside`, with the defaults, which are the authors'."""
    config, spec = idql.Config(decay_steps=None), shared.HUMANOID
    batch = shared.random_batch(config.batch_size)
    learner = their_agent(peer, config, spec)
    theirs = shared.in_float32(their_batch(batch))
    state = jax.jit(idql.init, static_argnums=1)(jax.random.key(0), spec, config)
    update = functools.partial(learner.update, theirs)
    return shared.beside(update, idql.update, state, batch, config, config.hidden[0])


def main() -> None:
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, times, options.peer)


if __name__ == "__main__":
    main()
