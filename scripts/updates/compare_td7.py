"""Updates of TD7 and of its authors' code (PyTorch),
from the same parameters, on the same rows and with the same noise.

  git clone https://github.com/sfujim/TD7 && git -C TD7 checkout c1c280d
  python -m venv peer && peer/bin/pip install torch jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/compare_td7.py --peer TD7 \
      --updates 520 --output results/checks/references/td7.json

All is in float64, and the networks have a few units. Targets are copied after 250 and after 500
updates. The authors' code returns no losses: what is compared are all parameters at the end,
relative to how far theirs have moved, the ranges of targets, and the priorities of all rows. A
second part shows the same episodes to both kinds of checkpoints.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Step
from rljax.agents import td7
from rljax.buffers.prioritised import Pending, Priorities
from rljax.networks.optimisation.assessment import Assessment
from scripts.checks.compare_updates import given_noise
from scripts.updates import shared
from scripts.updates.compare_tqc import apart

OBSERVATIONS, ACTIONS, BATCH = 5, 2, 32
ROWS, CAPACITY = 200, 350  # at first, and at most
SIZES = {"zs_dim": 12, "enc_hdim": 16, "critic_hdim": 20, "actor_hdim": 24}
CONFIG = td7.Config(
    hidden=(24, 24, 24), critic_hidden=(20, 20, 20), encoder_hidden=(16, 16), embedding_size=12
)
CASES: dict[str, dict[str, Any]] = {"online": {}, "offline": {"offline": True}}
PARTS = ("actor", "critic", "encoder", "fixed_encoder")
TARGETS = ("target_actor", "target_critic", "past_encoder")
LATE = 3_000  # updates until assessments are long
ACTOR = {"l0": "first", "l1": "hidden_0", "l2": "hidden_1", "l3": "output"}
STATE = {"zs1": "hidden_0", "zs2": "hidden_1", "zs3": "output"}
PAIR = {"zsa1": "hidden_0", "zsa2": "hidden_1", "zsa3": "output"}
CRITICS = (
    {"q01": "first", "q1": "hidden_0", "q2": "hidden_1", "q3": "output"},
    {"q02": "first", "q4": "hidden_0", "q5": "hidden_1", "q6": "output"},
)


def layers(module: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Layers of one of their modules under our names."""
    result: dict[str, Any] = {}
    for theirs, ours in names.items():
        layer = getattr(module, theirs)
        weight, bias = (x.detach().numpy().copy() for x in (layer.weight, layer.bias))
        result[ours] = {"kernel": weight.T, "bias": bias}
    first = {"first": result.pop("first")} if "first" in result else {}
    return first | {"layers": result}


def encoder_of(module: Any) -> dict[str, Any]:
    """The parameters of one of their encoders."""
    return {"of_state": layers(module, STATE), "of_pair": layers(module, PAIR)["layers"]}


def critic_of(module: Any) -> dict[str, Any]:
    """The parameters of their critics."""
    members = [layers(module, names) for names in CRITICS]
    return {"members": jax.tree.map(lambda *x: np.stack(x), *members)}


def of_peer(agent: Any) -> dict[str, Any]:
    """All that their agent learns, in the form of ours."""
    return {
        "actor": layers(agent.actor, ACTOR),
        "target_actor": layers(agent.actor_target, ACTOR),
        "critic": critic_of(agent.critic),
        "target_critic": critic_of(agent.critic_target),
        "encoder": encoder_of(agent.encoder),
        "fixed_encoder": encoder_of(agent.fixed_encoder),
        "past_encoder": encoder_of(agent.fixed_encoder_target),
    }


def params_of(part: Any) -> Any:
    """The parameters of a part of our State."""
    part = getattr(part, "parameters", part)
    if hasattr(part, "of_state"):
        return {"of_state": part.of_state.params, "of_pair": part.of_pair.params}
    return part.params


def of_ours(state: Any) -> dict[str, Any]:
    """The same of our State."""
    return {name: params_of(getattr(state, name)) for name in (*PARTS, *TARGETS)}


def with_parameters(part: Any, params: Any) -> Any:
    """A part of our State with these parameters."""
    if hasattr(part, "parameters"):
        return part.replace(parameters=with_parameters(part.parameters, params))
    if hasattr(part, "of_state"):
        names = ("of_state", "of_pair")
        changes = {name: with_parameters(getattr(part, name), params[name]) for name in names}
        return part.replace(**changes)
    return part.replace(params=jax.tree.map(lambda _, x: jnp.asarray(x), part.params, params))


def distance(first: Any, mine: Any, last: Any) -> float:
    """How far apart two trees are, relative to how far the second has moved, if it has."""
    moved = not all(map(np.array_equal, *map(jax.tree.leaves, (first, last))))
    if moved:
        return apart(first, mine, last)
    gaps = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), mine, last)
    return max(jax.tree.leaves(gaps))


def exact(tree: Any) -> Any:
    """A tree whose float32 are float64."""
    return jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, tree)


def rows(number: int) -> dict[str, np.ndarray]:
    """Transitions [number, ...], in their names and in the order of their buffer's `add`."""
    generator = np.random.default_rng(0)
    return {
        "observation": generator.normal(size=(number, OBSERVATIONS)),
        "action": np.tanh(generator.normal(size=(number, ACTIONS))),
        "next_observation": generator.normal(size=(number, OBSERVATIONS)),
        "reward": 3.0 * generator.normal(size=number),
        "terminated": generator.random(number) < 0.2,
    }


def draws(updates: int, is_offline: bool) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each update the steps stored before it, the drawn rows [B], and noise [B, A]."""
    generator = np.random.default_rng(1)
    for update in range(updates):
        steps = ROWS if is_offline else ROWS + update + 1
        drawn = generator.integers(min(steps, CAPACITY), size=BATCH)
        yield steps, drawn, generator.normal(size=(BATCH, ACTIONS))


def their_agent(peer: Path, is_offline: bool) -> Any:
    """The authors' agent, without a row."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with mock.patch.object(sys, "path", [str(peer), *sys.path]):
        import TD7  # pyright: ignore[reportMissingImports]
    hp = TD7.Hyperparameters(batch_size=BATCH, buffer_size=CAPACITY, **SIZES)
    return TD7.Agent(OBSERVATIONS, ACTIONS, 1.0, is_offline, hp)


def their_updates(agent: Any, known: Mapping[str, np.ndarray], updates: int) -> None:
    """Let the authors' agent learn."""
    import torch  # pyright: ignore[reportMissingImports]

    buffer = agent.replay_buffer

    def add(row: int) -> None:
        parts = [known[name][row] for name in ("observation", "action", "next_observation")]
        buffer.add(*parts, known["reward"][row], float(known["terminated"][row]))

    for row in range(ROWS):
        add(row)
    stored = ROWS
    for steps, drawn, noise in draws(updates, agent.offline):
        for row in range(stored, steps):
            add(row)
        stored = steps
        buffer.ind = drawn
        names = ("state", "action", "next_state", "reward", "not_done")
        batch = [torch.tensor(getattr(buffer, name)[drawn]) for name in names]
        buffer.sample = lambda batch=batch: batch
        with mock.patch.object(torch, "randn_like", lambda _, x=noise: torch.tensor(x)):
            agent.train()


def our_updates(
    state: Any, config: td7.Config, known: Mapping[str, np.ndarray], updates: int
) -> tuple[Any, Priorities]:
    """Our State and the priorities after the updates."""
    period = None if config.offline else config.target_every
    exponent, nothing = jnp.full(1, config.prioritised), Pending.none(np.zeros((1, 1, BATCH)))

    @jax.jit
    def update(state: Any, batch: Any, noise: Any, step: Any) -> Any:
        with given_noise({"normal": [noise]}):
            state, metrics = td7.update(state, batch, jax.random.key(0), step, config)
        return state, metrics["priorities"]

    @jax.jit
    def store(priorities: Priorities, pending: Pending, row: Any) -> Priorities:
        return priorities.written(pending, row[None], exponent, period)

    priorities, pending = exact(Priorities.create(1, CAPACITY)), exact(nothing)
    for row in range(ROWS):
        priorities = store(priorities, pending, jnp.asarray(row))
    stored = ROWS
    contents = {name: x[:CAPACITY].copy() for name, x in known.items()}
    for step, (steps, drawn, noise) in enumerate(draws(updates, config.offline)):
        for row in range(stored, steps):
            for name, x in contents.items():
                x[row % CAPACITY] = known[name][row]
            priorities = store(priorities, pending, jnp.asarray(row % CAPACITY))
        if steps == stored:
            priorities = priorities.updated(pending, exponent)
        stored = steps
        batch = {name: jnp.asarray(x[drawn]) for name, x in contents.items()}
        extras = {"row": jnp.asarray(drawn), "weight": jnp.ones(BATCH)}
        batch = td7.Transition(**batch, truncated=jnp.zeros(BATCH, bool), extras=extras)
        state, priority = update(state, batch, jnp.asarray(noise), step)
        parts = (jnp.asarray(drawn)[None, None], priority[None, None], jnp.asarray(True))
        pending = Pending(*parts, updates=jnp.asarray(step + 1))
    return state, priorities.updated(pending, exponent, period)


def compared(peer: Path, updates: int, changes: Mapping[str, Any]) -> dict[str, float]:
    """By how much both differ after `updates` updates."""
    config = dataclasses.replace(CONFIG, **changes)
    agent = their_agent(peer, config.offline)
    first, known = of_peer(agent), rows(ROWS + updates)
    spec = EnvSpec("Example-v0", (OBSERVATIONS,), ACTIONS)
    state = jax.jit(td7.init, static_argnums=1)(jax.random.key(0), spec, config)
    parts = {name: with_parameters(getattr(state, name), x) for name, x in first.items()}
    state = exact(state.replace(**parts))
    their_updates(agent, known, updates)
    state, priorities = our_updates(state, config, known, updates)
    mine, last = of_ours(state), of_peer(agent)
    # A part that has not moved yet is compared as it is.
    result = {name: distance(first[name], mine[name], last[name]) for name in mine}
    ranges = np.array([agent.min_target, agent.max_target, agent.min, agent.max])
    ours = np.concatenate([state.clip_range, state.seen_range])
    result["ranges of targets"] = float(np.abs(ours - ranges).max())
    size = agent.replay_buffer.size
    mass = np.asarray(priorities.sums)[0, priorities.sums.shape[1] // 2 :][:size]
    theirs = agent.replay_buffer.priority[:size].numpy()
    result["priorities"] = float(np.abs(mass - theirs).max() / theirs.max())
    if not config.offline:  # no row comes after the data's, so that it has no meaning
        largest = float(priorities.largest[0]) ** config.prioritised
        most = agent.replay_buffer.max_priority
        result["largest priority"] = abs(largest - most) / most
    return result


def checkpoints(peer: Path, episodes: int) -> dict[str, Any]:
    """The best policies and their returns, by the authors' checkpoints and by ours."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(1, 60, size=episodes)
    returns = generator.normal(50.0, 20.0, size=episodes) + 0.1 * np.arange(episodes)
    returns = returns.astype(np.float32)
    agent = their_agent(peer, False)
    agent.hp.steps_before_checkpointing = LATE
    saved: list[int] = []
    agent.checkpoint_actor.load_state_dict = lambda _: saved.append(agent.training_steps)

    def train() -> None:
        agent.training_steps += 1

    agent.train = train
    settings = dataclasses.replace(CONFIG, warmup_steps=0, late_updates=LATE)
    ours: Any = Assessment.create(jnp.zeros((), jnp.int32), settings)
    review = jax.jit(lambda ours, *inputs: ours.reviewed(*inputs, settings))
    times, best, theirs = np.cumsum(lengths), [], []
    for length, value, time in zip(lengths, returns, times, strict=True):
        agent.maybe_train_and_checkpoint(int(length), float(value))
        theirs.append((saved[-1] if saved else 0, agent.best_min_return))
        outcome = Step(
            observation=None,
            next_observation=None,
            reward=jnp.zeros(1),
            terminated=jnp.ones(1, bool),
            truncated=jnp.zeros(1, bool),
            episode_return=jnp.asarray([value]),
            episode_length=jnp.asarray([length], jnp.int32),
        )
        updates = jnp.asarray(time, jnp.int32)
        ours = review(ours.replace(updates=updates), updates, outcome, updates)
        best.append((int(ours.best), float(ours.best_worst)))
    policies, floors = (np.array(x) for x in zip(*best, strict=True))
    their_policies, their_floors = (np.array(x) for x in zip(*theirs, strict=True))
    return {
        "episodes": episodes,
        "checkpoints": len(set(saved)),
        "late": bool(ours.is_late),
        "other policies": int((policies != their_policies).sum()),
        "worst returns": float(np.abs(floors - their_floors).max()),
    }


def main() -> None:
    """Compare, and print and write by how much both differ."""
    parser = shared.parser(__doc__, updates=520)
    parser.add_argument("--episodes", type=int, default=1_000)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    result: dict[str, Any] = {"updates": options.updates, "cases": {}}
    for name, changes in CASES.items():
        result["cases"][name] = compared(options.peer, options.updates, changes)
    result["checkpoints"] = checkpoints(options.peer, options.episodes)
    shared.publish(options.output, result)


if __name__ == "__main__":
    main()
