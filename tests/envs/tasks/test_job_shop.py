"""Job shops, compared with dispatching in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import MASK
from rljax.envs.tasks import job_shop
from rljax.envs.tasks.job_shop import JobShop
from rljax.runs import records, run

# The jobs of an optimal schedule's operations, in order.
OPTIMAL = {
    "ft06": [
        2, 1, 0, 0, 2, 3, 1, 5, 2, 3, 5, 0, 4, 1, 4, 2, 3, 2,
        5, 3, 4, 1, 0, 2, 5, 4, 3, 0, 1, 5, 5, 4, 1, 4, 3, 0,
    ],
}  # fmt: skip
# Jobs, operations, all durations.
LOADS = {"ft06": (6, 6, 197), "ft10": (10, 10, 5109), "la01": (10, 5, 2849)}
instances = pytest.mark.parametrize("instance", list(LOADS))


def made(instance: str) -> JobShop:
    environment = JobShop(f"rljax/JobShop-{instance}")
    assert isinstance(environment, JobShop)
    return environment


def dispatched(instance: str, order: list[int]) -> list[tuple[int, int, int, int]]:
    """Job, machine, start and end of each operation; finished jobs wait."""
    jobs = [
        list(zip(line[::2], line[1::2], strict=True))
        for line in job_shop.INSTANCES[instance]["jobs"]
    ]
    found: list[tuple[int, int, int, int]] = []
    for job in order:
        done = [bar for bar in found if bar[0] == job]
        if len(done) == len(jobs[job]):
            continue
        machine, duration = jobs[job][len(done)]
        start = max(
            [end for one, other, _, end in found if one == job or other == machine], default=0
        )
        found.append((job, machine, start, start + duration))
    return found


def played(environment: JobShop, order: Any) -> tuple[Any, Any, Any]:
    """Observations, states and other results [T, ...]."""

    def body(state: Any, job: Any) -> Any:
        observation, state, *others = environment.step(jax.random.key(0), state, job, None)
        return state, (observation, state, others)

    _, state = environment.reset(jax.random.key(0), None)
    steps = jax.jit(lambda state, order: jax.lax.scan(body, state, order)[1])(
        state, jnp.asarray(order, jnp.int32)
    )
    return jax.tree.map(np.asarray, steps)


def random_order(instance: str, forbidden: int = 0) -> list[int]:
    jobs, operations, _ = LOADS[instance]
    random = np.random.default_rng(3)
    order = np.concatenate(
        [np.repeat(np.arange(jobs), operations), random.integers(0, jobs, forbidden)]
    )
    return random.permutation(order).tolist()


@instances
def test_the_instance_is_the_published_one(instance: str) -> None:
    environment = made(instance)
    jobs, operations, total = LOADS[instance]
    assert environment.durations.shape == (jobs, operations)
    assert environment.durations.sum() == total
    np.testing.assert_array_equal(
        np.sort(environment.machines, axis=1), np.tile(np.arange(operations), (jobs, 1))
    )
    loads = [
        environment.durations[environment.machines == machine].sum()
        for machine in range(operations)
    ]
    assert max(*loads, environment.durations.sum(axis=1).max()) <= environment.optimum


@pytest.mark.parametrize("instance", list(OPTIMAL))
def test_the_optimal_order_reaches_the_optimum(instance: str) -> None:
    environment = made(instance)
    _, state, (reward, terminated, truncated, info) = played(environment, OPTIMAL[instance])
    assert state.job_ready[-1].max() == environment.optimum == 55
    assert reward.sum() == pytest.approx(-1.0, abs=1e-5)
    assert info["success"].tolist() == [False] * 35 + [True]
    assert terminated.tolist() == [False] * 35 + [True]
    assert not truncated.any()


@pytest.mark.slow_after(1)
@instances
def test_schedules_equal_dispatching_in_plain_python(instance: str) -> None:
    environment, order = made(instance), random_order(instance, forbidden=20)
    jobs, operations, _ = LOADS[instance]
    observation, state, (reward, terminated, _, info) = played(environment, order)
    spans = [0]
    for time in range(len(order)):
        bars = dispatched(instance, order[: time + 1])
        spans.append(max(end for *_, end in bars))
        by_job = [[bar for bar in bars if bar[0] == job] for job in range(jobs)]
        ready = {machine: end for _, machine, _, end in bars}
        vector = []
        for job, own in enumerate(by_job):
            assert state.start[time, job, : len(own)].tolist() == [start for _, _, start, _ in own]
            assert (state.start[time, job, len(own) :] == -1).all()
            left = environment.durations[job, len(own) :]
            machine = None if len(left) == 0 else environment.machines[job, len(own)]
            following = (0, 0) if machine is None else (left[0], ready.get(machine, 0))
            times = [left.sum(), own[-1][3] if own else 0, *following]
            vector += [len(own) / operations, *(x / environment.optimum for x in times)]
        np.testing.assert_allclose(observation["vector"][time], vector, rtol=1e-6)
        assert observation[MASK][time].tolist() == [len(own) < operations for own in by_job]
        assert terminated[time] == (len(bars) == jobs * operations)
        assert reward[time] == pytest.approx(
            (spans[-2] - spans[-1]) / environment.optimum, abs=1e-6
        )
    assert terminated[-1]
    assert not info["success"].any()


def test_charts_show_the_schedule() -> None:
    environment = made("ft06")
    _, state, _ = played(environment, OPTIMAL["ft06"])
    state = jax.tree.map(lambda x: x[-1], state)
    text = environment.text(state).splitlines()
    assert text[-1] == "makespan 55, optimum 55"
    assert [len(line) for line in text[:-1]] == [100] * 6
    # A character is 1.1 units of time, and machine 2 begins with job 2 (C).
    assert text[2].startswith("CCCC") and all(set(line[50:]) == {"."} for line in text[:-1])  # noqa: PT018
    assert {letter for line in text[:-1] for letter in line} == set("ABCDEF.")
    pictures = [environment.render(one) for one in (environment.reset(jax.random.key(0))[1], state)]
    assert pictures[0].shape == pictures[1].shape == (96, 480, 3)
    assert pictures[0].dtype == np.uint8
    assert not np.array_equal(pictures[0], pictures[1])
    assert "\x1b[48;2;" in environment.text(state, colours=True)


def test_episodes_begin_again() -> None:
    environment = envs.make("rljax/JobShop-ft06")
    first, state = environment.reset(jax.random.split(jax.random.key(0), 2))
    step = jax.jit(environment.step)
    for number, job in enumerate(OPTIMAL["ft06"]):
        keys = jax.random.split(jax.random.key(number), 2)
        result, state = step(keys, state, jnp.array([job, 0], jnp.int32))
    assert result.terminated.tolist() == [True, False]
    assert result.success is not None
    assert result.success.tolist() == [True, False]
    assert result.episode_return[0] == pytest.approx(-1.0, abs=1e-5)
    assert not result.next_observation[MASK][0].any()
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y[0]), result.observation, first)


def test_unknown_instances_are_refused() -> None:
    with pytest.raises(ValueError, match="Nearest: 'rljax/JobShop-ft06'"):
        envs.make("rljax/JobShop-ft6")


@pytest.mark.learn
def test_ppo_schedules_far_better_than_chance(tmp_path: Path) -> None:
    chance = max(end for *_, end in dispatched("ft06", random_order("ft06")))
    out = run.train(
        "ppo", "rljax/JobShop-ft06", 60_000, seeds=3, out=tmp_path / "run", eval_every=60_000
    )
    lines = records.read(out, "evaluations")
    makespans = [-55 * np.mean(line["returns"]) for line in lines]
    assert max(makespans) <= 66 < chance, makespans
