"""MOORL against float64 NumPy: SAC's reference on one source's rows,
and Reptile's step around it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import moorl
from rljax.runs import records, run
from tests.agents import reference, test_sac
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
RATES = {
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "temperature_lr": 3e-2,
    "target_rate": 0.1,
    "meta_rate": 0.3,
}
CONFIG = moorl.Config(hidden=(8, 8), batch_size=8, inner_steps=1, **RATES)
AVERAGES = ("meta_actor", "meta_critic")
OFFLINE = np.array([True, False, True, False, False, True, False, False])


def example() -> tuple[EnvSpec, moorl.Config, Transition]:
    """What the contract's tests run on: every update ends an epoch."""
    return SPEC, CONFIG, transitions()


def transitions(seed: int = 0, offline: np.ndarray = OFFLINE) -> Transition:
    """A batch with rows of both sources."""
    return reference.transitions(seed, len(offline)).replace(
        extras={"offline": jnp.asarray(offline)}
    )


def rows_of_source(offline: np.ndarray, source: bool) -> list[int]:
    """The rows of a source, from the first one on and again,
    until half as many as the batch has are there.
    """
    mine = [row for row, value in enumerate(offline) if value == source]
    return [mine[i % len(mine)] for i in range(len(offline) // 2)]


# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(moorl.update)


def fresh(config: moorl.Config, source: bool) -> moorl.State:
    """A State to start from; epochs begin with the meta-parameters."""
    known = {
        "log_temperature": jnp.log(jnp.float32(config.init_temperature)),
        "source": jnp.asarray(source),
    }
    state = reference.state(moorl, SPEC, config, **known)
    actor = state.actor.replace(parameters=state.meta_actor)
    return state.replace(actor=actor, critic=state.critic.replace(parameters=state.meta_critic))


CASES: dict[str, dict[str, Any]] = {
    "two steps": {"inner_steps": 2},
    "delayed": {"inner_steps": 3, "policy_delay": 2},
}


@reference.cases(CASES)
def test_updates_equal_sacs_and_reptiles(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config, True)
    expected: Any = test_sac.Reference(state, config)  # pyright: ignore[reportArgumentType]
    meta_actor, meta_critics = expected.actor, expected.critics
    sources = set()
    for step in range(6):
        batch, key = transitions(step), jax.random.key(step)
        source = bool(state.source)
        sources.add(source)
        rows = np.array(rows_of_source(OFFLINE, source))
        part: Any = buffers.rows_of(batch, rows)
        key_critic, key_actor, _ = jax.random.split(key, 3)
        noises = [reference.noise(k, (len(rows), 2)) for k in (key_critic, key_actor)]
        state, metrics = update(state, batch, key, step, config)
        targets = expected.targets
        values = expected.update(part, *noises, step) | {"meta/offline": float(source)}
        if (step + 1) % config.inner_steps == 0:
            moved = sum(
                np.square(x - y).sum() for x, y in zip(expected.actor, meta_actor, strict=True)
            )
            values["meta/distance"] = np.sqrt(moved)
            meta_actor = reference.towards(expected.actor, meta_actor, config.meta_rate)
            meta_critics = reference.towards(expected.critics, meta_critics, config.meta_rate)
            expected.actor, expected.critics = meta_actor, meta_critics
            expected.targets = reference.towards(meta_critics, targets, config.target_rate)
        reference.assert_metrics(metrics, values)
    assert sources == {True, False}, "both have been seen"
    reference.assert_same(reference.mlp(state.meta_actor), meta_actor, "meta_actor")
    reference.assert_same(reference.critics(state.meta_critic), meta_critics, "meta_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")


def test_an_epoch_of_k_updates_comes_with_one_transition() -> None:
    """Algorithm 1: collect a transition, K inner updates, the meta-update."""
    config = moorl.Config()
    declared = moorl.experience(config)
    assert declared.num_updates == config.inner_steps == 10
    assert declared.steps_per_iteration == 1


def test_sources_are_drawn_once_per_epoch_with_the_given_probability() -> None:
    config = dataclasses.replace(CONFIG, offline_epochs=0.25)
    state = fresh(config, True)
    end = jax.jit(jax.vmap(lambda key: moorl.reptile(state, key, config)[0].source))
    assert abs(np.mean(end(jax.random.split(jax.random.key(0), 4_000))) - 0.25) < 0.03
    slow = dataclasses.replace(CONFIG, inner_steps=2, offline_epochs=0.0)
    assert bool(update(state, transitions(), jax.random.key(0), 0, slow)[0].source), (
        "an epoch goes on"
    )
    assert not bool(update(state, transitions(), jax.random.key(0), 1, slow)[0].source)


@pytest.mark.parametrize("number", [1, 3, 7])
def test_rows_of_one_source_are_taken_as_often_as_there_are_too_few(number: int) -> None:
    offline = np.arange(8) < number
    batch = transitions(0, offline)
    for source in (True, False):
        rewards = moorl.rows_of_source(batch, jnp.asarray(source)).reward
        np.testing.assert_array_equal(
            rewards, np.asarray(batch.reward)[rows_of_source(offline, source)]
        )


def test_the_meta_policy_acts() -> None:
    state = fresh(CONFIG, True)
    other = state.replace(actor=jax.tree.map(lambda x: x + 1.0, state.actor))
    observation = transitions().observation
    actions = [
        moorl.act(x, observation, jax.random.key(0), CONFIG, explore=False)[0]
        for x in (state, other)
    ]
    np.testing.assert_array_equal(*actions)


@pytest.mark.learn
def test_learns_from_data_and_new_experience_with_defaults(tmp_path: Path) -> None:
    """Far above uniform actions' -13.6 and above the data's mean, -9."""
    data = str(reach.journeys(tmp_path / "reach.npz"))
    settings: dict[str, Any] = {"data": data, "seeds": 2, "eval_every": 1_300, "eval_episodes": 40}
    out = run.train("moorl", f"{reach.__file__}:Reach", 1_300, out=tmp_path / "run", **settings)
    last = [line for line in records.read(out, "evaluations") if line["step"] == 1_300]
    assert min(np.mean(line["returns"]) for line in last) > -6.0
