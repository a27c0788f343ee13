"""The updates of QC and QC-FQL beside those of the authors' unmodified agent: the same first
parameters, the same chunks of the same trajectories, and the same random numbers.

  python scripts/updates/offline/compare_qc.py --peer qc --output results/checks/references/qc.json
  python scripts/updates/offline/compare_qc.py --peer qc --times --output FILE

The folder `qc` has ColinQiyangLi/qc of GitHub at 48283b4. Their class cuts its chunks out of the
recorded rows itself, as ours does. Every random number is the same in both. QC-FQL is FQL with
chunks; targets of theirs follow the critics from before a step, ours the ones after it, as the page
of FQL says: here theirs follow the new ones.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import fql, qc
from rljax.buffers import windows
from rljax.networks import Network
from scripts.updates import shared, stand_ins
from scripts.updates.shared import ACTION, ACTOR, BATCH, OBSERVATION, distance, exact, relative

LENGTH = 5
ROWS, LONGEST = 400, 40  # of the data, and of its trajectories


class Case(NamedTuple):
    """Our agent, its settings and theirs."""

    agent: Any
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]


BEST = {"actor_type": "best-of-n", "actor_num_samples": 4}
CASES = {
    "QC": Case(qc, {"num_candidates": 4}, BEST),
    "QC, the smallest critic": Case(
        qc, {"num_candidates": 4, "target": "min"}, {**BEST, "q_agg": "min"}
    ),
    "QC, chunks of one": Case(qc, {"num_candidates": 4, "chunk_length": 1}, BEST),
    "QC-FQL": Case(fql, {"distillation_weight": 100.0}, {"alpha": 100.0}),
    "QC-FQL, ten critics": Case(
        fql, {"distillation_weight": 1.0, "num_critics": 10}, {"alpha": 1.0, "num_qs": 10}
    ),
}


SMALL = EnvSpec("test/Example-v0", (OBSERVATION,), ACTION)
CUBE = EnvSpec("cube-single", (28,), 5)  # whose shapes are timed


def config_of(case: Case) -> Any:
    """Our settings, in layers of the comparison's width."""
    return case.agent.Config(hidden=ACTOR, **{"chunk_length": LENGTH, **case.ours})


def recorded(spec: EnvSpec = SMALL) -> Transition:
    """Trajectories of random rows, with ends of both kinds."""
    generator = np.random.default_rng(0)
    ends = np.zeros(ROWS, np.bool_)
    ends[np.cumsum(generator.integers(1, LONGEST, ROWS // LONGEST * 2)) % ROWS] = True
    ends[-1] = True

    def normal(*shape: int) -> Any:
        return generator.normal(size=(ROWS, *shape)).astype(np.float32)

    terminated = ends & (generator.random(ROWS) < 0.5)
    rows: dict[str, Any] = {
        "observation": normal(*spec.observation_shape),
        "action": np.tanh(normal(*spec.action_shape)),
        "reward": normal(),
        "terminated": terminated,
        "truncated": ends & ~terminated,
        "next_observation": normal(*spec.observation_shape),
    }
    return Transition(**rows)


@contextlib.contextmanager
def same_numbers() -> Iterator[None]:
    """Inside, JAX's random numbers depend on their number alone, whatever the key."""

    def uniform(key: Any, shape: Any = (), *_: Any, **__: Any) -> Any:
        numbers = np.random.RandomState(2).uniform(size=int(np.prod(shape)))
        return jnp.asarray(numbers).reshape(shape)

    with shared.fixed_noise(), mock.patch.object(jax.random, "uniform", uniform):
        yield


def their_agent(peer: Path, case: Case, config: Any, spec: EnvSpec = SMALL) -> tuple[Any, Any]:
    """The authors' agent, and their data set of our rows."""
    module, data = their_modules(peer, "agents.acfql")
    rows = recorded(spec)
    options = {**module.get_config(), **case.theirs, "horizon_length": config.chunk_length}
    options |= {"actor_hidden_dims": config.hidden, "value_hidden_dims": config.hidden}
    options |= {"discount": config.discount, "tau": config.target_rate}
    theirs = module.ACFQLAgent.create(0, rows.observation[0], rows.action[0], options)
    return theirs, their_data(data, rows)


def their_modules(peer: Path, name: str) -> tuple[Any, Any]:
    """A module of their agents, and their class of data sets."""
    settings = types.ModuleType("ml_collections")
    settings.ConfigDict = dict  # type: ignore[attr-defined]
    settings.config_dict = types.SimpleNamespace(placeholder=lambda kind: None)  # type: ignore[attr-defined]
    with stand_ins.importing(peer, {"ml_collections": settings}) as imported:
        return imported(name), imported("utils.datasets").Dataset


def their_data(data: Any, rows: Transition) -> Any:
    """Our rows in their class of data sets."""
    return data.create(
        observations=rows.observation,
        actions=rows.action,
        rewards=np.asarray(rows.reward, np.float64),  # or they round discounted ones
        masks=1.0 - np.asarray(rows.terminated, np.float32),
        terminals=np.asarray(rows.terminated | rows.truncated, np.float32),
        next_observations=rows.next_observation,
    )


def ours(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Our names for the layers of their network."""
    last = f"Dense_{sum(name.startswith('Dense') for name in tree) - 1}"

    def renamed(name: str) -> str:
        name = "output" if name == last else name
        return name.replace("Dense", "hidden").replace("LayerNorm", "norm")

    return {renamed(name): dict(layer) for name, layer in tree.items()}


def like(network: Network, tree: Mapping[str, Any]) -> Network:
    """Our network with the numbers of theirs."""
    if "value_net" in tree:
        layers = {"members": ours(tree["value_net"])}
    else:
        body = ours(tree["mlp"])
        # Theirs reads observations, actions and times, ours actions, times and observations.
        kernel = jnp.roll(jnp.asarray(body["hidden_0"]["kernel"]), -OBSERVATION, axis=0)
        body["hidden_0"] = {**body["hidden_0"], "kernel": kernel}
        layers = {"body": body}
    params = jax.tree.map(lambda _, new: jnp.asarray(new), network.params, layers)
    return network.replace(params=params)


def with_their_parameters(state: Any, params: Mapping[str, Any]) -> Any:
    """Our State with the numbers of their networks."""
    actor, critic = state.actor.parameters, state.critic.parameters
    if isinstance(actor, Network):
        actor = like(actor, params["modules_actor_bc_flow"])
    else:
        flow = like(actor.flow, params["modules_actor_bc_flow"])
        one_step = like(actor.one_step, params["modules_actor_onestep_flow"])
        actor = actor.replace(flow=flow, one_step=one_step)
    return state.replace(
        actor=state.actor.replace(parameters=actor),
        critic=state.critic.replace(parameters=like(critic, params["modules_critic"])),
        target_critic=like(state.target_critic, params["modules_target_critic"]),
    )


def with_new_targets(theirs: Any, before: Any, rate: float, *names: str) -> Any:
    """Their agent, whose targets follow the new networks of these names from those `before`."""
    params = dict(theirs.network.params)
    for name in names:
        old, new = before.network.params[f"modules_target_{name}"], params[f"modules_{name}"]
        target = jax.tree.map(lambda x, y: rate * y + (1.0 - rate) * x, old, new)
        params[f"modules_target_{name}"] = target
    return theirs.replace(network=theirs.network.replace(params=params))


def compared(peer: Path, updates: int, case: Case) -> dict[str, float]:
    """The largest relative differences of losses, and of parameters after all updates."""
    config = config_of(case)
    length, rows = config.chunk_length, prepared()
    theirs, data = their_agent(peer, case, config)
    theirs = exact(jax.tree.map(jnp.asarray, theirs))
    state = exact(case.agent.init(jax.random.key(0), SMALL, config))
    first = with_their_parameters(state, theirs.network.params)
    names = {"critic's loss": "critic/critic_loss", "flow's loss": "actor/bc_flow_loss"}
    state, differences = first, dict.fromkeys(names, 0.0)
    update = jax.jit(functools.partial(case.agent.update, config=config))
    with same_numbers(), stand_ins.old_names():
        for i in range(updates):
            batch = their_chunks(data, i, length, config.discount)
            before = theirs
            theirs, info = theirs.update(batch)
            if case.agent is fql:
                theirs = with_new_targets(theirs, before, config.target_rate, "critic")
            chunks = our_chunks(rows, i, length)
            state, metrics = update(state, chunks, jax.random.key(0), jnp.asarray(i))
            flow = metrics.get("actor/flow", metrics["actor/loss"])
            ours = {"critic's loss": metrics["critic/loss"], "flow's loss": flow}
            keep_largest(differences, ours, info, names)
    other = with_their_parameters(state, theirs.network.params)
    for name in ("actor", "critic"):
        trees = (getattr(x, name).parameters for x in (first, state, other))
        differences[name] = distance(*trees)
    differences["targets"] = distance(*(x.target_critic for x in (first, state, other)))
    return differences


def drawn(i: int, length: int) -> np.ndarray:
    """The rows [B] of update `i`, as their data set draws them."""
    np.random.seed(i)
    return np.random.randint(ROWS - length + 1, size=BATCH)


def their_chunks(data: Any, i: int, length: int, discount: float) -> dict[str, Any]:
    """The chunks of update `i` that their data set cuts."""
    np.random.seed(i)
    chunks = data.sample_sequence(BATCH, length, discount)
    return exact(jax.tree.map(jnp.asarray, chunks))


def prepared() -> Transition:
    """Our data set of the recorded rows, of which `our_chunks` cuts."""
    return exact(jax.tree.map(jnp.asarray, windows.with_last_rows(recorded())))


def our_chunks(data: Transition, i: int, length: int) -> Transition:
    """The chunks of update `i` that we cut."""
    rows = drawn(i, length)
    if length == 1:
        return exact(plain(data, rows))
    return exact(windows.chunks_of_data(data, jnp.asarray(rows), length))


def keep_largest(
    differences: dict[str, float],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    names: Mapping[str, str],
) -> None:
    """Take up how far our metrics are from theirs, whose `names` follow ours."""
    for name, other in names.items():
        apart = relative(ours[name], theirs[other])
        differences[name] = max(differences[name], apart)


def like_gaussian(network: Network, tree: Mapping[str, Any], place: str | None = None) -> Network:
    """Our Gaussian's network with the numbers of theirs, whose outputs are two layers; our layers
    are below `place`, if any. A `Field` reads observations last, theirs first.
    """
    (body,) = (tree[name] for name in tree if name.startswith("MLP"))
    layers = {name.replace("Dense", "hidden"): dict(layer) for name, layer in body.items()}
    if place is not None:
        kernel = jnp.roll(jnp.asarray(layers["hidden_0"]["kernel"]), -OBSERVATION, axis=0)
        layers["hidden_0"]["kernel"] = kernel
    heads = (tree["OutputDenseMean"], tree["OutputDenseLogStd"])
    layers["output"] = {
        part: jnp.concatenate([head[part] for head in heads], axis=-1)
        for part in ("kernel", "bias")
    }
    new = layers if place is None else {place: layers}
    return network.replace(params=jax.tree.map(lambda _, x: jnp.asarray(x), network.params, new))


def plain(data: Transition, rows: np.ndarray) -> Transition:
    """Single transitions."""
    extras = {name: x for name, x in data.extras.items() if name != windows.LAST}
    return jax.tree.map(lambda x: x[rows], data.replace(extras=extras))


def times(peer: Path) -> dict[str, Any]:
    """See `shared.beside`: both at the authors' sizes, and in layers of 3 x 256 units."""
    found = {}
    for name in ("QC", "QC-FQL"):
        for hidden in ((512,) * 4, (256,) * 3):
            case, given = CASES[name], {"actor_num_samples": 32} if name == "QC" else {}
            case = case._replace(theirs={**case.theirs, **given})
            config = case.agent.Config(chunk_length=LENGTH, hidden=hidden)
            theirs, data = their_agent(peer, case, config, CUBE)
            batch = data.sample_sequence(config.batch_size, LENGTH, config.discount)
            batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), batch)
            rows = jnp.arange(config.batch_size)
            prepared = jax.tree.map(jnp.asarray, windows.with_last_rows(recorded(CUBE)))
            chunks = windows.chunks_of_data(prepared, rows, LENGTH)
            state = jax.jit(case.agent.init, static_argnums=1)(jax.random.key(0), CUBE, config)
            update = functools.partial(theirs.update, batch)
            label = f"{name}, {len(hidden)} x {hidden[0]}"
            found[label] = shared.beside(
                update, case.agent.update, state, chunks, config, hidden[0]
            )
    return found


def main() -> None:
    options = shared.timed_parser(__doc__).parse_args()
    shared.report_or_time(options, CASES, compared, times, options.peer)


if __name__ == "__main__":
    main()
