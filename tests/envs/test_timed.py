"""The time in an episode as a last observation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.runs import records, run
from rljax.runs.policies import collect, evaluate

LIMIT = 200


@pytest.mark.learn
def test_time_inside_the_program() -> None:
    plain, timed = envs.make("rljax/Pendulum"), envs.make("timed/rljax/Pendulum")
    assert timed.spec.observation_shape == (4,)
    keys, step = jax.random.split(jax.random.key(0), 2), jax.jit(timed.step)
    observation, state = timed.reset(keys)
    reference, other = plain.reset(keys)
    np.testing.assert_array_equal(observation, np.c_[reference, [-0.5, -0.5]])
    for i in range(1, LIMIT + 2):
        action = jnp.ones((2, 1))
        told, state = step(keys, state, action)
        known, other = jax.jit(plain.step)(keys, other, action)
        since = i if i <= LIMIT else i - LIMIT
        np.testing.assert_allclose(told.next_observation[:, 3], since / LIMIT - 0.5, atol=1e-6)
        np.testing.assert_allclose(told.observation[:, 3], (i % LIMIT) / LIMIT - 0.5, atol=1e-6)
        np.testing.assert_array_equal(told.observation[:, :3], known.observation)
        np.testing.assert_array_equal(told.next_observation[:, :3], known.next_observation)
        np.testing.assert_array_equal(told.truncated, known.truncated)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("prefix", ["", "async/"])
def test_time_on_the_host(prefix: str) -> None:
    timed, plain = (
        envs.make_hosted(f"timed/{prefix}Pendulum-v1", 2),
        envs.make_hosted("Pendulum-v1", 2),
    )
    assert timed.spec.observation_shape == (4,)
    np.testing.assert_array_equal(timed.reset([1, 2]), np.c_[plain.reset([1, 2]), [-0.5, -0.5]])
    for i in range(1, LIMIT + 2):
        told, known = (hosted.step(np.ones((2, 1), np.float32)) for hosted in (timed, plain))
        since = i if i <= LIMIT else i - LIMIT
        np.testing.assert_allclose(told.next_observation[:, 3], since / LIMIT - 0.5, atol=1e-6)
        np.testing.assert_allclose(told.observation[:, 3], (i % LIMIT) / LIMIT - 0.5, atol=1e-6)
        np.testing.assert_array_equal(told.observation[:, :3], known.observation)
        np.testing.assert_array_equal(told.next_observation[:, :3], known.next_observation)
    timed.close()


def test_saved_on_the_host_with_its_time() -> None:
    hosted, other = envs.make_hosted("timed/Hopper-v5", 1), envs.make_hosted("timed/Hopper-v5", 1)
    hosted.reset([0])
    for _ in range(3):
        hosted.step(np.zeros((1, 3), np.float32))
    blob = hosted.save()
    assert blob is not None
    np.testing.assert_allclose(other.restore(blob)[0, -1], 3 / 1000 - 0.5)
    following = [each.step(np.zeros((1, 3), np.float32)).observation for each in (hosted, other)]
    np.testing.assert_array_equal(*following)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("timed/rljax/Delay", "has no time limit"),
        (
            "timed/gymnax/Breakout-MinAtar",
            r"shows pictures of shape \(10, 10, 4\) and dtype float32",
        ),
    ],
)
def test_refused_where_there_is_no_time_to_tell(name: str, why: str) -> None:
    if "gymnax" in name:
        pytest.importorskip("gymnax")
    with pytest.raises(
        ValueError, match=rf"{why}, so no time can be observed with it: --config\.no-time-feature$"
    ):
        envs.make(name)


@pytest.mark.learn
def test_runs_whose_agent_observes_the_time(tmp_path: Any) -> None:
    config = {"hidden": (8,)}
    settings = {"eval_every": 200, "eval_episodes": 2, "config": config}
    out = run.train("stream_ac", "Pendulum-v1", 400, out=tmp_path / "run", **settings)
    assert records.read_config(out)["environment"] == "Pendulum-v1"
    assert len(evaluate.evaluate_run(out, episodes=2)["episodes"][0]["returns"]) == 2
    data = collect.record(out, source="exploring", steps=250, num_envs=1)
    assert data.observation_size == 3, "the time is no part of the data"
