"""The sizes of a run, before anything is allocated or compiled: its memory, and numbers that make a run useless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import EnvSpec
from rljax.buffers import Dataset, Experience, Replay, Rollout, Sequences, Stream
from rljax.buffers.draws import NStep
from rljax.buffers.experience import rows_of
from rljax.distributed import processes
from rljax.system import hardware
from rljax.training.evaluation import LIMIT
from rljax.training.learner import Hyperparameters, Learner, LearnerState
from rljax.training.settings import Settings

HOSTED_BYTES = 4_000  # of the smallest environments on the host
HOSTED_SECONDS = 0.001  # that it takes to create one of them
SEED_BYTES = 100  # of an environment's seed, as a Python number and as a key
LONG_START = 60  # seconds: creating environments for longer is worth a warning
MANY_STEPS = 1_000  # steps of an evaluation for each step of training: more are worth a warning
LONGEST_CHUNK = 10_000_000  # steps: the sums of a chunk are float32


def check_stage(driver: Any, template: Any, data_bytes: int, limit: int | None, where: str) -> None:
    """Raise `ValueError` where this process's part of a driver's state, and `data_bytes` of a data set, need too much.

    `template` has the shapes of the driver's arrays. `limit` is the memory in bytes that is left on the device `where`.
    """
    parts = memory(template, driver.learner, driver.hyper, driver.data)
    remedies = {name: remedy(name) for name in parts}
    parts = {name: size // processes.process_count() for name, size in parts.items()}
    if data_bytes:
        parts["data set"] = data_bytes
        remedies["data set"] = (
            f"The data set takes {data_bytes / 1e9:.1f} GB of them: keep it on the host with --data-on-host, which is "
            "slower, or lower --seeds."
        )
    require_room(parts, limit, where, remedies)


def require_room(parts: Mapping[str, int], limit: int | None, where: str, remedies: Mapping[str, str]) -> None:
    """Raise `ValueError` where all parts, in bytes by name, need more than `limit`. Its remedy is of the largest part.

    The message lists the parts, the largest first. Without a known limit nothing is refused.
    """
    total = sum(parts.values())
    if limit is None or total <= limit:
        return
    ranked = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])
    width = max(map(len, ranked))
    table = "".join(f"\n  {name:<{width}}  {parts[name] / 1e9:>12,.1f} GB" for name in ranked)
    raise ValueError(
        f"the run needs {total / 1e9:,.1f} GB on {where}, {limit / 1e9:,.1f} GB are there. {remedies[ranked[0]]}{table}"
    )


def require_environments(settings: Settings, experience: Experience, on_host: bool) -> None:
    """Raise `ValueError` where the machine's memory cannot hold the environments. None has to be created for this.

    `on_host`: the environments are not inside the program.
    """
    number, each = len(settings.seeds), SEED_BYTES + (HOSTED_BYTES if on_host else 0)
    parts, remedies = {}, {}
    online = experience.online if experience.needs_data else experience
    if online is not None and (settings.then_online or not experience.needs_data):
        name = f"{number:,} x {online.num_envs:,} environments of training"
        parts[name] = number * online.num_envs * each
        remedies[name] = "Lower --config.num-envs or --seeds."
    if settings.env != "none":
        name = f"{number:,} x {settings.eval_episodes:,} environments of evaluation"
        parts[name] = number * settings.eval_episodes * each
        remedies[name] = "Lower --eval-episodes or --seeds."
    if parts:
        require_room(parts, hardware.available_memory(), "this machine", remedies)


def memory(template: Mapping[str, Any], learner: Learner, hyper: Hyperparameters, data: Any) -> dict[str, int]:
    """The bytes of the parts of a stage's state and of its updates, by name, at the least.

    `template` has the shapes of a driver's state, and `data` [N, ...] is its data set, where there is one.
    """
    experience, num_learners = hyper.experience, learner.num_learners
    is_learners = lambda x: isinstance(x, LearnerState)  # noqa: E731
    (learners,) = filter(is_learners, jax.tree.leaves(template["training"], is_leaf=is_learners))
    agents, storage = hardware.nbytes(template["agent"]), hardware.nbytes(learners.storage)
    return {
        "agents": agents,
        "copies of the agents": agents * (2 if num_learners > 1 else 1),  # the best, and those before a chunk
        experience.kind: storage,
        "environments": hardware.nbytes(template["training"]) - storage,
        "batches of an iteration": _batches(experience, learners.storage, data, num_learners),
        "layers of an update": _largest_product(learner, learners.replace(agent=template["agent"]), hyper, data),
    }


def _largest_product(learner: Learner, state: LearnerState, hyper: Hyperparameters, data: Any) -> int:
    """The bytes of the largest matrix product of an iteration's updates. All of a product is in memory at some time."""
    if hyper.experience.streams:
        return 0
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), data)
    program = jax.make_jaxpr(learner.update)(state, hyper, shapes)
    products = [x for x in _equations(program.jaxpr) if x.primitive.name in ("dot_general", "conv_general_dilated")]
    return max((hardware.nbytes([x.aval for x in product.outvars]) for product in products), default=0)


def _equations(program: Any) -> Iterator[Any]:
    """All equations of a program, also those of the programs in it."""
    for equation in program.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(value, "eqns"):
                yield from _equations(value)


def _batches(experience: Experience, storage: Any, data: Any, num_learners: int) -> int:
    """The bytes of all batches of an iteration. Those of a rollout are another order of its rows."""
    if isinstance(experience, Rollout):
        rows = experience.data_size * num_learners
        return hardware.nbytes(storage) + (int(rows * hardware.nbytes(data) / data.reward.shape[0]) if rows else 0)
    stored = data if storage is None else storage.data
    if stored is None or isinstance(experience, Stream):
        return 0
    draw, row = getattr(experience, "draw", None), hardware.nbytes(stored) / stored.reward.size
    if storage is None:  # pictures of a data set are stored once, and drawn as often as rows show them
        row = hardware.nbytes(jax.eval_shape(lambda data: rows_of(data, jnp.zeros((), jnp.int32)), stored))
    if storage is not None and storage.beside is not None:  # of each observation, one frame is stored, two are drawn
        row += (2 * storage.beside.stack - 1) * hardware.nbytes(stored.observation) / stored.reward.size
    if isinstance(draw, NStep):
        row += 16 * draw.steps  # rows, rewards and ends of the following steps
    if isinstance(draw, Sequences):
        row *= draw.length
    return int(num_learners * experience.num_updates * _batch_size(experience) * row)


def _batch_size(experience: Experience) -> int:
    return experience.batch_size if isinstance(experience, Dataset | Replay | Rollout) else 0


def remedy(part: str) -> str:
    """What a user can do where a part of the state is too large."""
    known = {
        "replay": "--config.replay-size or --seeds",
        "mixed": "--config.replay-size or --seeds",
        "rollout": "--config.num-envs, --config.num-steps or --seeds",
        "environments": "--config.num-envs or --seeds",
        "batches of an iteration": "--config.batch-size, --config.num-updates or --seeds",
        "layers of an update": "--config.batch-size, the sizes of the networks or --seeds",
    }
    return f"Lower {known.get(part, 'the sizes of the networks or --seeds')}."


def warnings(
    stages: Sequence[Any], settings: Settings, spec: EnvSpec, rows: int | None, on_host: bool
) -> Iterator[str]:
    """Warnings about numbers of steps, rows and episodes in the `stages` of a plan. `rows` are those of a data set."""
    before = 0
    declared = [stage.driver.hyper.experience for stage in stages]
    for stage, experience in zip(stages, declared, strict=True):
        flag = "--then-online" if settings.then_online else "--steps"
        steps, before = stage.end - before, stage.end
        warning = nothing_learnt(experience, steps, stage.iteration, on_host, flag)
        yield from [] if warning is None else [warning]
    yield from oddities(settings, declared, spec, rows, on_host)


def nothing_learnt(experience: Experience, steps: int, iteration: int, on_host: bool, flag: str) -> str | None:
    """A warning where `steps` environment steps of each learner hold no update; None where they do.

    On the host, an update comes with the iteration after the one that makes it possible.
    """
    needed = -(-experience.steps_before_updates // iteration) * iteration + (iteration if on_host else 0)
    if experience.streams or experience.needs_data or steps >= needed:
        return None
    settings = "--config.num-envs or --config.num-steps"
    if isinstance(experience, Replay):
        warm_up = experience.warmup_steps >= experience.steps_before_updates
        settings = "--config.warmup-steps" if warm_up else "--config.batch-size"
    return (
        f"nothing will be learnt: the first update comes after {needed:,} environment steps of each learner, and there "
        f"are {steps:,}. Give more with {flag}, or lower {settings}."
    )


def oddities(
    settings: Settings, experiences: Sequence[Experience], spec: EnvSpec, rows: int | None, on_host: bool
) -> Iterator[str]:
    """Warnings about numbers that work, but hardly as they were meant. `rows` is the size of the data set, if any."""
    for experience in experiences:
        size, draw = _batch_size(experience), getattr(experience, "draw", None)
        if rows is not None and size > rows:
            yield f"--config.batch-size {size:,} is more than the data set's {rows:,} rows, which repeat in it."
        limit = spec.max_episode_steps
        if isinstance(draw, NStep) and limit is not None and draw.steps > limit:
            yield f"--config.n-step {draw.steps:,} is more than the {limit:,} steps of the longest episode."
    if settings.env == "none":
        return
    number, episodes = len(settings.seeds), settings.eval_episodes
    longest = episodes * (spec.max_episode_steps or LIMIT)
    if longest > MANY_STEPS * settings.eval_every:
        yield (
            f"each evaluation plays {episodes:,} episodes with each learner, which are up to {longest:,} steps, after "
            f"{settings.eval_every:,} steps of training. Lower --eval-episodes or raise --eval-every."
        )
    environments = number * (episodes + max(experience.num_envs for experience in experiences))
    if on_host and environments * HOSTED_SECONDS > LONG_START:
        yield f"{environments:,} environments are created on the host, which takes minutes."
