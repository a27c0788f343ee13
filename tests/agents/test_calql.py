"""Cal-QL against the reference of CQL in float64 with bounded candidates."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers, datasets
from rljax.agent import EnvSpec, Transition
from rljax.agents import calql, cql
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.runs import records, run
from tests.agents import reference, test_cql
from tests.helpers import counting, small_runs

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = calql.Config(**test_cql.SIZES, backup="deterministic")
KEY = jax.random.key(0)
HAS, ALL = np.array([True, False, True, True, True]), np.ones(5, bool)
PROBE = test_cql.PROBE


def example() -> tuple[EnvSpec, calql.Config, Transition]:
    return SPEC, dataclasses.replace(CONFIG, lagrange=True), transitions()


def transitions(
    seed: int = 0, low: float = -1.0, high: float = 1.0, has: np.ndarray = HAS
) -> Transition:
    """A batch with returns to go between two numbers, in some rows."""
    returns = np.random.default_rng(seed + 50).uniform(low, high, 5).astype(np.float32)
    extras = {"return_to_go": jnp.asarray(returns), "has_return_to_go": jnp.asarray(has)}
    return reference.transitions(seed).replace(extras=extras)


class Reference(test_cql.Reference):
    """CQL's, with the policy's candidates worth at least the return to go."""

    def bounded(self, q: np.ndarray, batch: Transition) -> tuple[np.ndarray, np.ndarray]:
        raised, free = q.copy(), np.ones_like(q)
        returns, has = (batch.extras[name] for name in ("return_to_go", "has_return_to_go"))
        first = 1 + self.config.num_actions
        for c, k, b in np.ndindex(q.shape):
            if k >= first and has[b] and q[c, k, b] < returns[b]:
                raised[c, k, b], free[c, k, b] = returns[b], 0.0
        self.below = 1.0 - free[:, first:].mean()
        return raised, free

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        metrics = super().update(batch, key, step)
        assert 0.0 < self.below < 1.0, "some candidates are below the bound, some are not"
        return metrics | {"critic/bounded": self.below}


CASES: dict[str, dict[str, Any]] = {
    "the authors'": {"lagrange": True, "backup": "max_of_min"},
    "no importance sampling, in parts": {
        "importance_sampling": False,
        "num_parts": 5,
        "gap_temperature": 0.5,
    },
}

update = jax.jit(calql.update)
fresh = functools.partial(reference.state, calql, SPEC)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference, transitions)


@functools.partial(jax.jit, static_argnames="agent")
def critic_loss(state: Any, batch: Transition, config: Any, agent: Any = calql) -> Any:
    """The critics' loss with its metrics, and its gradient."""
    loss = jax.value_and_grad(test_cql.critic_loss, has_aux=True)
    return loss(state.critic.parameters, state, batch, config, agent)


def test_without_a_bound_it_is_cql() -> None:
    """Where no return is known, where all are low, and where it is turned off."""
    state = fresh(CONFIG)
    fields = {field.name for field in dataclasses.fields(cql.Config)}
    plain_config = cql.Config(**{name: x for name, x in vars(CONFIG).items() if name in fields})
    batch = transitions(0, 5.0, 6.0, ALL)
    (_, plain), expected = critic_loss(state, batch, plain_config, cql)
    off = dataclasses.replace(CONFIG, calibrate=False)
    cases = [
        (batch, off),
        (transitions(0, 5.0, 6.0, ~ALL), CONFIG),
        (transitions(0, -99, -98, ALL), CONFIG),
    ]
    for batch, config in cases:
        (_, metrics), gradient = critic_loss(state, batch, config)
        assert metrics.pop("critic/bounded", None) == (None if config is off else 0.0)
        reference.assert_close((metrics, gradient), (plain, expected))


def test_candidates_of_the_policy_are_not_pushed_below_the_bound() -> None:
    """Above all values the bound takes the weight of the soft maximum,
    and only the data's action is pushed: up.
    """
    state = fresh(CONFIG)
    (_, metrics), gradient = critic_loss(state, transitions(0, 500.0, 600.0, ALL), CONFIG)
    assert metrics["critic/bounded"] == 1.0

    @jax.jit
    def expected(critic: Any) -> Any:
        batch = transitions()
        target = state.target_critic(batch.next_observation, samples.next_action[:, 0]).min(axis=0)
        target = batch.reward + CONFIG.discount * (1.0 - batch.terminated) * target
        q = critic(batch.observation, batch.action)
        return (jnp.square(q - target) - CONFIG.penalty_weight * q).mean(axis=-1).sum()

    samples = jax.jit(calql.candidates)(state, transitions(), KEY, CONFIG)
    of_data = jax.grad(expected)(state.critic.parameters)
    reference.assert_close(gradient, of_data, rtol=1e-4, atol=1e-5)


def test_both_sources_have_returns_to_go_unless_it_is_turned_off() -> None:
    """And new rows are those of ended episodes: others have none, and would not be bounded."""
    column = buffers.ReturnToGo(discount=0.9, failure=-5.0)
    declared = calql.experience(calql.Config(discount=0.9, failure_reward=-5.0))
    assert declared.columns == declared.online.columns == (column,)
    assert declared.online.draw == buffers.EndedEpisodes()
    plain = calql.experience(calql.Config(calibrate=False))
    assert (plain.columns, plain.online.draw) == ((), buffers.Uniform())


@pytest.mark.parametrize("ended", [0, 3])
def test_every_row_of_a_batch_is_bounded_from_the_hand_over_on(ended: int) -> None:
    """The authors' replay holds whole episodes, so that each row has its `mc_returns`. Here an
    episode of 4 steps ends `ended` times, and another one goes on.
    """
    config = dataclasses.replace(CONFIG, batch_size=16, replay_size=40, num_envs=1)
    declared = buffers.Mixed.of(calql.experience(config).online, 0.5)
    data = jax.tree.map(np.asarray, reference.transitions(0, 6))
    data = declared.prepare(data.replace(truncated=np.zeros(6, bool), terminated=np.arange(6) == 5))
    steps = 4 * ended + 3
    rows = reference.transitions(1, steps)
    rows = rows.replace(terminated=jnp.zeros(steps, bool), truncated=jnp.arange(steps) % 4 == 3)
    buffer = ReplayBuffer.create(jax.tree.map(lambda x: x[None, :1], rows), 40)
    for t in range(steps):
        buffer = buffer.add(jax.tree.map(lambda x, t=t: x[None, t : t + 1], rows))
    batch = jax.jit(buffers.Mixed.sample)(declared, buffer, data, jax.random.split(KEY, 1))
    assert batch.extras["has_return_to_go"].all()
    is_new = ~np.isin(np.asarray(batch.reward[0, 0]), data.reward)
    assert is_new.sum() == (8 if ended else 0), "half of the batch, once an episode has ended"
    # As the authors' `calc_return_to_go` sums them.
    known = {
        float(x): sum(r * config.discount**k for k, r in enumerate(rows.reward[i : i - i % 4 + 4]))
        for i, x in enumerate(rows.reward[: 4 * ended])
    }
    rewards = np.asarray(batch.reward[0, 0])[is_new]
    returns = np.asarray(batch.extras["return_to_go"][0, 0])[is_new]
    np.testing.assert_allclose(returns, [known[float(x)] for x in rewards], rtol=1e-5)


@pytest.mark.learn
@pytest.mark.parametrize("env", ["Pendulum-v1", "rljax/Pendulum"])
def test_it_goes_on_online_and_is_resumed_there(env: str, tmp_path: Path) -> None:
    """On the host and inside the program, from within the second episode of 200 steps; the bound
    is that of the transformed rewards.
    """
    data = str(datasets.write(counting.recorded("Pendulum-v1"), tmp_path / "data.npz"))
    small = {
        "hidden": (16,),
        "critic_hidden": (16,),
        "batch_size": 32,
        "num_parts": 1,
        "num_actions": 2,
    }
    config = small | {"replay_size": 300, "reward_transform": "times_10_plus_5"}
    every = small_runs.EVERY | {"data": data, "config": config}
    whole = run.train("calql", env, 100, out=tmp_path / "whole", then_online=400, **every)
    half = run.train("calql", env, 100, out=tmp_path / "half", then_online=300, **every)
    run.resume(half, 500)
    small_runs.assert_same(whole, half)
    bounded = [line["critic/bounded"][0] for line in records.read(whole, "metrics")]
    assert all(0.0 < x <= 1.0 for x in bounded), (
        "the data's rewards are positive now, fresh values are small"
    )
    assert len(set(bounded)) > 1
