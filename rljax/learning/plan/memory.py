"""The least memory that a run needs, estimated before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from rljax.buffers import Experience
from rljax.distributed import processes
from rljax.learning.learner import Hyperparameters, Learner, LearnerState
from rljax.learning.settings import Settings
from rljax.system import hardware

HOSTED_BYTES = 4_000  # of the smallest environments on the host
SEED_BYTES = 100  # of an environment's seed, as a number and a key
LONGEST_CHUNK = 10_000_000  # steps: the sums of a chunk are float32


def check_stage(driver: Any, template: Any, data_bytes: int, limit: int | None, where: str) -> None:
    """Raise `ValueError` where this process's part of a driver's state, and `data_bytes` of a data
    set, exceed the `limit` of the device `where`, in bytes.

    `template` has the shapes of the driver's arrays.
    """
    parts = memory(template, driver.learner, driver.hyper, driver.data)
    remedies = {name: remedy(name) for name in parts}
    parts = {name: size // processes.process_count() for name, size in parts.items()}
    if data_bytes:
        parts["data set"] = data_bytes
        remedies["data set"] = (
            f"The data set takes {data_bytes / 1e9:.1f} GB of them: keep it on the host with "
            "--data-on-host, which is slower, or lower --seeds."
        )
    require_room(parts, limit, where, remedies)


def require_room(
    parts: Mapping[str, int], limit: int | None, where: str, remedies: Mapping[str, str]
) -> None:
    """Raise `ValueError` where all parts, in bytes by name, exceed a known `limit`."""
    total = sum(parts.values())
    if limit is None or total <= limit:
        return
    ranked = sorted((name for name in parts if parts[name]), key=lambda name: -parts[name])
    width = max(map(len, ranked))
    table = "".join(f"\n  {name:<{width}}  {parts[name] / 1e9:>12,.1f} GB" for name in ranked)
    raise ValueError(
        f"the run needs {total / 1e9:,.1f} GB on {where}, {limit / 1e9:,.1f} GB are "
        f"there. {remedies[ranked[0]]}{table}"
    )


def require_environments(settings: Settings, experience: Experience, on_host: bool) -> None:
    """Raise `ValueError` where the machine's memory cannot hold the environments, on the host or in
    the program.
    """
    number, counts = len(settings.seeds), []
    size = SEED_BYTES + (HOSTED_BYTES if on_host else 0)  # of an environment
    _, steps_online = experience.stages(settings.steps, settings.then_online)
    if steps_online:
        counts.append(("training", experience.in_environment().num_envs, "--config.num-envs"))
    if settings.env != "none":
        counts.append(("evaluation", settings.eval_episodes, "--eval-episodes"))
    parts, remedies = {}, {}
    for purpose, each, flag in counts:
        name = f"{number:,} x {each:,} environments of {purpose}"
        parts[name], remedies[name] = number * each * size, f"Lower {flag} or --seeds."
    if parts:
        require_room(parts, hardware.available_memory(), "this machine", remedies)


def memory(
    template: Mapping[str, Any], learner: Learner, hyper: Hyperparameters, data: Any
) -> dict[str, int]:
    """The bytes of the parts of a stage's state and of its updates, by name.

    `data` [N, ...] is the driver's data set or None.
    """
    experience, num_learners = hyper.experience, learner.num_learners
    is_learners = lambda x: isinstance(x, LearnerState)  # noqa: E731
    (learners,) = filter(is_learners, jax.tree.leaves(template["training"], is_leaf=is_learners))
    agents, storage = hardware.nbytes(template["agent"]), hardware.nbytes(learners.storage)
    return {
        "agents": agents,
        # The best, and those before a chunk.
        "copies of the agents": agents * (2 if num_learners > 1 else 1),
        experience.kind: storage,
        "environments": hardware.nbytes(template["training"]) - storage,
        "batches of an iteration": experience.batch_bytes(learners.storage, data, num_learners),
        "layers of an update": _largest_product(
            learner, learners.replace(agent=template["agent"]), hyper, data
        ),
    }


def _largest_product(
    learner: Learner, state: LearnerState, hyper: Hyperparameters, data: Any
) -> int:
    if state.storage is None and data is None:  # no batch is drawn
        return 0
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), data)
    program = jax.make_jaxpr(learner.update)(state, hyper, shapes)
    sizes = (
        hardware.nbytes([x.aval for x in equation.outvars])
        for equation in _equations(program.jaxpr)
        if equation.primitive.name in ("dot_general", "conv_general_dilated")
    )
    return max(sizes, default=0)


def _equations(program: Any) -> Iterator[Any]:
    """All equations of a program and of programs in it."""
    is_program = lambda x: hasattr(x, "eqns")  # noqa: E731
    for equation in program.eqns:
        yield equation
        values = jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)
        for inner in filter(is_program, values):
            yield from _equations(inner)


def remedy(part: str) -> str:
    """What to do where a part of the state is too large."""
    flags = {
        "replay": "--config.replay-size or --seeds",
        "mixed": "--config.replay-size or --seeds",
        "rollout": "--config.num-envs, --config.num-steps or --seeds",
        "environments": "--config.num-envs or --seeds",
        "batches of an iteration": "--config.batch-size, --config.num-updates or --seeds",
        "layers of an update": "--config.batch-size, the sizes of the networks or --seeds",
    }
    return f"Lower {flags.get(part, 'the sizes of the networks or --seeds')}."
