"""Data sets from our own runs.

docs/datasets.md has D4RL's recipe (Fu et al., arXiv:2004.07219, section 5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rljax import datasets, envs
from rljax.agent import EnvSpec, Transition, mask_of
from rljax.buffers.storage import frames
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.datasets.recording import contexts
from rljax.learning.drivers.driver import TRAIN, environment_seeds
from rljax.learning.plan.memory import require_room
from rljax.runs import arguments, checkpoints, resumption
from rljax.runs.active import ActiveRun
from rljax.runs.display import console
from rljax.runs.policies import evaluate, loading, policy
from rljax.runs.records import read_config
from rljax.system import hardware
from rljax.trust import Folder

Source = Literal["policy", "exploring", "random", "replay"]
SOURCES = get_args(Source)


def record(
    out: str | Path | Folder,
    *,
    steps: int = 1_000_000,
    source: Source = "policy",
    learner: int = 0,
    best: bool = False,
    num_envs: int = 10,
    seed: int = 0,
    name: str = "recorded",
) -> datasets.OfflineDataset:
    """A data set called `name` with `steps` transitions from the run in `out`.

    `source` is one of:

    - "policy": the policy plays without exploration.
    - "exploring": the policy plays with the exploration of training.
    - "random": uniform actions.
    - "replay": the learner's replay in the last checkpoint, oldest row first, perhaps fewer.

    The first three play `num_envs` environments on the host, whose last episodes are cut off.

    Raises `ValueError` for a run or a source that does not fit, too many transitions, and code
    without trust.
    """
    if source not in SOURCES:
        raise ValueError(f"--from is '{source}', it must be one of {', '.join(SOURCES)}.")
    if steps < 1 or num_envs < 1:
        raise ValueError(f"--steps is {steps} and --envs {num_envs}, both must be at least 1.")
    folder = arguments.run_folder(out)
    described = read_config(folder.path)
    env = described["env"]
    if env == "none":
        raise ValueError(
            "the run learnt from data alone, without an environment that could be recorded."
        )
    if source != "replay" and envs.is_compiled(env):
        raise ValueError(
            f"the run's environment is '{env}', inside the program, and only those on the host are "
            "played. Record what the learner stored while it was trained: --from replay"
        )
    spec = EnvSpec.read(described["spec"])
    if spec.numbers and spec.choices:
        raise ValueError(
            "actions of the run's environment have numbers and choices, data sets hold one of them."
        )
    if source == "replay":
        transitions, bounds, step = _stored(folder, learner, steps)
    else:
        policies = loading.load_all(folder, best=best, parts=("agent", "env"))
        transitions, bounds = _played(policies, env, source, learner, steps, num_envs, seed)
        step = policies.step
    provenance = {
        "reader": "record",
        "source": source,
        "agent": described["agent"],
        "environment": env,
        "training_step": step,
        "training_seed": described["seeds"][learner],
        "config": described["config"],
        "seed": seed,
        "versions": described["versions"],
        "max_episode_steps": described["spec"]["max_episode_steps"],
    }
    if spec.discrete:
        provenance |= (
            {"choices": list(spec.choices)} if spec.choices else {"num_actions": spec.action_size}
        )
    if spec.stack > 1:
        provenance["stack"] = spec.stack
    reference = datasets.reference(envs.task(env))
    return datasets.OfflineDataset(name, transitions, env, reference, bounds, provenance)


def demonstrated(
    env: str,
    *,
    steps: int,
    source: str = "policy",
    length: int | None = None,
    seed: int = 0,
    name: str = "recorded",
) -> datasets.OfflineDataset:
    """About `steps` transitions of whole episodes that the task `env` shows itself.

    Tasks that are learnt in context show lifetimes: with the `source` "policy" `length` rows, each
    with its optimal action, and with "learning" the history of a learner over `length` episodes.

    Raises `ValueError` for a task that shows none, another source, or too few steps.
    """
    task: Any = envs.make(env).environment if envs.is_compiled(env) else None
    in_context = contexts.is_known(task)
    if not in_context and not hasattr(task, "demonstrations"):
        raise ValueError(
            f"'{env}' is no run, and no task that shows its own solution, as "
            "rljax/CombinationLock-10 does."
        )
    if source not in ("policy", "learning") or (not in_context and source != "policy"):
        raise ValueError(
            f"--from is '{source}', and sources but policy are of runs; '{env}' is recorded by its "
            f"oracles{', or with --from learning by a learner' * in_context}."
        )
    if length is not None and (not in_context or length < 2):
        raise ValueError(
            f"--length is {length}, which is for lifetimes of tasks that are learnt in context, "
            "such as rljax/DarkRoom-10x10, and at least 2."
        )
    spec: EnvSpec = task.spec
    shown, longest = getattr(task, "demonstrations", None), spec.max_episode_steps
    assert longest is not None
    if source == "learning":
        length = contexts.EPISODES if length is None else length
        shown, longest = functools.partial(contexts.histories, task), length * longest
    elif in_context:
        longest = contexts.ROWS if length is None else length
        shown = functools.partial(contexts.with_optimal_actions, task)
    assert shown is not None
    if steps < longest:
        raise ValueError(f"--steps is {steps}, an episode of '{env}' has {longest}.")
    _require_room(spec, steps)
    sizes = (steps // longest, length or longest)[: 1 + in_context]
    compiled = jax.jit(shown, static_argnums=tuple(range(1, 1 + len(sizes))))
    transitions = jax.tree.map(np.asarray, compiled(jax.random.key(seed), *sizes))
    provenance = {"reader": "record", "source": "demonstrations", "environment": env, "seed": seed}
    provenance |= {"max_episode_steps": longest, "versions": hardware.versions()}
    provenance |= {"num_actions": spec.action_size} if spec.discrete else {}
    if in_context:
        provenance["source"] = "a learner" if source == "learning" else "optimal actions"
    return datasets.OfflineDataset(name, transitions, env, None, _unit_bounds(spec), provenance)


def _played(
    policies: policy.Policies,
    env: str,
    source: str,
    learner: int,
    steps: int,
    num_envs: int,
    seed: int,
) -> tuple[Transition, Any]:
    act, generator = policy.Policy(policies, learner), np.random.default_rng(seed)
    name = envs.observed(env, policies.experience.observes)
    hosted = envs.make_hosted(envs.evaluated(name), num_envs)
    size = None  # the data hold neither the time nor the goal
    if name != env:
        (whole,) = hosted.spec.observation_shape
        size = whole // 2 if name == envs.with_goals(env) else whole - 1

    def choose(observation: Any, step: np.ndarray) -> Any:
        if source == "random":
            return random_actions(generator, hosted.spec, observation)
        return act(observation, explore=source == "exploring", normalised=True, step=step)

    try:
        _require_room(hosted.spec, steps)
        return roll_out(hosted, choose, steps, seed, size), hosted.action_bounds
    finally:
        evaluate.close(hosted)


def roll_out(
    hosted: Any,
    choose: Callable[[Any, np.ndarray], Any],
    steps: int,
    seed: int,
    size: int | None = None,
) -> Transition:
    """`steps` transitions of E environments on the host, environment by environment.

    `choose` maps observations [E, O...] and steps since resets [E] to actions [E, ...]. The first
    `size` numbers of vectors stay.
    """
    observation = hosted.reset(environment_seeds(seed, TRAIN, number=hosted.num_envs))
    store = PictureStore(hosted.spec, observation)
    rows, time = [], np.zeros(hosted.num_envs, np.int64)
    for _ in range(-(-steps // hosted.num_envs)):
        action = choose(observation, time)
        step = hosted.step(action)
        time = np.where(step.terminated | step.truncated, 0, time + 1)
        before, after = (x if size is None else x[:, :size] for x in store.add(step))
        rows.append(
            Transition(
                before, action, step.reward, step.terminated, step.truncated, after, step.signals
            )
        )
        observation = step.observation
    columns = jax.tree.map(lambda *column: np.stack(column), *rows)
    return store.finished(_in_turn(columns, steps))


def random_actions(generator: np.random.Generator, spec: EnvSpec, observation: Any) -> np.ndarray:
    """Uniform actions for observations [E, ...], of those that a mask allows."""
    number = len(jax.tree.leaves(observation)[0])
    if not spec.discrete:
        return generator.uniform(-1, 1, (number, *spec.action_shape)).astype(np.float32)
    mask = mask_of(observation)
    if mask is None:
        most = np.asarray(spec.choices) if spec.choices else spec.action_size
        return generator.integers(most, size=(number, *spec.action_shape), dtype=np.int32)
    parts = np.split(np.asarray(mask), np.cumsum(spec.choices)[:-1], axis=1)
    actions = np.stack(
        [np.where(part, generator.random(part.shape), -1.0).argmax(axis=1) for part in parts],
        axis=1,
    ).astype(np.int32)
    return actions if spec.choices else actions[:, 0]


def _require_room(spec: EnvSpec, steps: int) -> None:
    each = 16 + 4 * max(spec.action_size if not spec.discrete else len(spec.choices), 1)
    for part in jax.tree.leaves(spec.observation):
        size = math.prod(part.shape) * part.dtype.itemsize
        once = frames.is_stored_once(part.shape, part.dtype)
        each += size // spec.stack + 8 * spec.stack if once else 2 * size
    name = f"{steps:,} transitions of '{spec.name}', twice"
    require_room(
        {name: 2 * steps * each},
        hardware.available_memory(),
        "this machine",
        {name: "Lower --steps."},
    )


class PictureStore:
    """The pictures of E environments, each stored once. Small arrays stay in the rows."""

    def __init__(self, spec: EnvSpec, observation: Any) -> None:
        self.stack = spec.stack
        self._pictures: dict[int, list[np.ndarray]] = {
            i: []
            for i, part in enumerate(jax.tree.leaves(spec.observation))
            if frames.is_stored_once(part.shape, part.dtype)
        }
        self._number, self._next = 0, observation
        # of the next rows
        self._index = np.zeros((len(jax.tree.leaves(observation)[0]), self.stack), np.int32)
        if self._pictures:
            self._begin(np.arange(len(self._index)), observation)

    def add(self, step: Any) -> tuple[Any, Any]:
        """A step's observations and successors, with numbers of frames for pictures."""
        if not self._pictures:
            before, self._next = self._next, step.observation
            return before, step.next_observation
        before = self._small(self._next, self._index)
        newest = [
            leaf[..., -(leaf.shape[-1] // self.stack) :] if i in self._pictures else leaf
            for i, leaf in enumerate(jax.tree.leaves(step.next_observation))
        ]
        following = np.concatenate([self._index[:, 1:], self._keep(newest)[:, None]], axis=1)
        after = self._small(step.next_observation, following)
        self._index, self._next = following.copy(), step.observation
        ended = np.flatnonzero(step.terminated | step.truncated)
        if len(ended):
            self._begin(ended, step.observation)
        return before, after

    def finished(self, rows: Transition) -> Transition:
        """The rows [N, ...] with `Frames` in place of the numbers of frames."""
        pictures = {}
        for i, parts in self._pictures.items():
            pictures[i] = np.concatenate(parts)
            parts.clear()  # frees memory before the next ones are joined
        return _with_pictures(rows, pictures)

    def _begin(self, rows: np.ndarray, observation: Any) -> None:
        """Keep the frames of first observations in these environments, equal ones once."""
        leaves = jax.tree.leaves(observation)
        split = {
            i: np.split(np.asarray(leaves[i])[rows], self.stack, axis=-1) for i in self._pictures
        }
        place = np.zeros(len(rows), np.int32)
        for k in range(self.stack):
            same = np.full(len(rows), k > 0)
            for parts in split.values():
                same &= (parts[k] == parts[k - 1]).reshape(len(rows), -1).all(axis=1)
            place[~same] = self._keep(
                [split[i][k][~same] if i in split else x for i, x in enumerate(leaves)]
            )
            self._index[rows, k] = place

    def _keep(self, leaves: list[Any]) -> np.ndarray:
        """Keep the frames [n, ...] among the leaves, and return their numbers [n]."""
        number = 0
        for i, parts in self._pictures.items():
            parts.append(np.array(leaves[i]))
            number = len(leaves[i])
        self._number += number
        return np.arange(self._number - number, self._number, dtype=np.int32)

    def _small(self, observation: Any, index: np.ndarray) -> Any:
        """Observations with the numbers of their frames [E, K] in place of pictures."""
        leaves, structure = jax.tree.flatten(observation)
        return structure.unflatten(
            [index if i in self._pictures else x for i, x in enumerate(leaves)]
        )


def _with_pictures(rows: Transition, pictures: Mapping[int, np.ndarray]) -> Transition:
    """The rows [N, ...] with `Frames` of pictures, by leaf, for numbers of frames."""

    def framed(observation: Any) -> Any:
        leaves, structure = jax.tree.flatten(observation)
        return structure.unflatten(
            [
                frames.Frames(pictures=pictures[i], index=leaf.reshape(len(leaf), -1))
                if i in pictures
                else leaf
                for i, leaf in enumerate(leaves)
            ]
        )

    observation, following = frames.taken(
        framed(rows.observation), framed(rows.next_observation), slice(None)
    )
    return rows.replace(observation=observation, next_observation=following)


def _stored(folder: Folder, learner: int, steps: int) -> tuple[Transition, Any, int]:
    run = ActiveRun.open(folder, console.View())
    try:
        training = run.training
        run.experiment.experience.require_replay(folder.path)
        policy.require_learner(training.settings, learner)
        path = checkpoints.newest(folder.path / "checkpoints")
        notes = resumption.notes_of(run.training, path)
        template = training.driver.template(training.settings.seeds)["training"]
        stored = checkpoints.restore(path, "training", template)
        hosted = getattr(training.driver, "hosted", None)
    finally:
        run.close()
    learners = stored[0] if isinstance(stored, tuple) else stored.learners
    experience = run.experiment.experience
    ring = learners.storage.of_learner(learner)
    bounds = _unit_bounds(training.spec) if hosted is None else hosted.action_bounds
    return of_ring(ring, experience.num_envs, steps, experience.signals), bounds, notes["step"]


def of_ring(
    ring: ReplayBuffer, num_envs: int, steps: int, signals: Sequence[str] = ()
) -> Transition:
    """The first `steps` transitions of a learner's ring, environment by environment.

    Of extras, `signals` stay. Pictures stored once are `Frames`.
    """
    size = int(ring.drawable)
    order: Any = ((int(ring.position) - size + np.arange(size)) % ring.capacity).reshape(
        -1, num_envs
    )
    order = order[: -(-steps // num_envs)]
    extras = {name: ring.data.extras[name] for name in signals}
    ring = ring.replace(data=ring.data.replace(extras=extras))
    if ring.successors is None:
        return _in_turn(jax.tree.map(np.asarray, ring.transitions(order)), steps)
    successors, capacity = ring.successors, ring.capacity
    leaves, structure = jax.tree.flatten(ring.data.observation)
    finals = jax.tree.leaves(successors.frames)
    sides = [(*leaf.shape[1:-1], leaf.shape[-1] * successors.stack) for leaf in leaves]
    once = [
        frames.is_stored_once(shape, leaf.dtype) for shape, leaf in zip(sides, leaves, strict=True)
    ]

    def numbered(first: int, leaf: Any, frame: bool) -> Any:
        numbers = np.arange(first, first + len(leaf), dtype=np.int32)
        return jnp.asarray(numbers.reshape(-1, 1, 1, 1)) if frame else leaf

    stored = structure.unflatten([numbered(0, *pair) for pair in zip(leaves, once, strict=True)])
    apart = structure.unflatten(
        [numbered(capacity, *pair) for pair in zip(finals, once, strict=True)]
    )
    numbers = ring.replace(
        data=ring.data.replace(observation=stored), successors=successors.replace(frames=apart)
    )
    rows = _in_turn(jax.tree.map(np.asarray, numbers.transitions(order)), steps)
    pictures = {i: np.concatenate([leaves[i], finals[i]]) for i in range(len(leaves)) if once[i]}
    return _with_pictures(rows, pictures)


def _in_turn(transitions: Transition, steps: int) -> Transition:
    """The first `steps` of transitions [T, E, ...], environment by environment, each ending an
    episode.
    """
    length, number = transitions.reward.shape
    flat = jax.tree.map(lambda x: np.concatenate(np.swapaxes(x, 0, 1))[:steps], transitions)
    return datasets.cut(flat, np.minimum(np.arange(1, number + 1) * length, len(flat.reward)) - 1)


def _unit_bounds(spec: EnvSpec) -> Any:
    if spec.discrete:
        return None
    high = np.ones(spec.action_size, np.float32)
    return -high, high
