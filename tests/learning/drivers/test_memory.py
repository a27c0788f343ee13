"""Memories through time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import buffers, cli
from rljax.agent import Step
from rljax.envs.autoreset import AutoReset
from rljax.learning import agent_state
from rljax.learning.agent_state import AgentState
from rljax.learning.evaluation import CompiledEvaluator, HeldActions, HostedEvaluator
from rljax.networks.inputs import Raw
from rljax.runs import checkpoints, run
from rljax.runs.policies import evaluate
from tests.helpers import small_runs
from tests.helpers.counting import Counter, Fake, HostedCounter, assert_equal, settings
from tests.learning.drivers import kinds

LIMIT, STEPS, ENVS = 5, 3, 2  # of an episode and of a rollout, which do not divide each other
SIZES: Any = {"num_envs": ENVS, "num_steps": STEPS, "batch_size": STEPS * ENVS}


class Remembering(Fake):
    """It remembers how many observations of the episode it has seen, and their sum."""

    def experience(self, config: Any) -> Any:
        sizes = {name: getattr(config, name) for name in ("num_envs", "num_steps", "batch_size")}
        return buffers.Rollout(**sizes, remembers=True)

    def remember(self, spec: Any, config: Any) -> Any:
        return {"seen": jnp.zeros((), jnp.int32), "sum": jnp.zeros(2)}

    def act(
        self, state: Any, observation: Any, key: Any, config: Any, explore: bool, memory: Any = None
    ) -> Any:
        memory = {"seen": memory["seen"] + 1, "sum": memory["sum"] + observation}
        return memory["seen"][..., None].astype(jnp.float32), {"sum": memory["sum"]}, memory

    def update(self, state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        times = batch.observation[..., 0]
        wrong = {
            "action": batch.action[..., 0] != times + 1,
            "memory": batch.extras["memory"]["seen"] != times[0],
            "sum": batch.extras["memory"]["sum"] + batch.observation[0]
            != batch.extras["sum"][0].reshape(-1, 2),
            "first": batch.extras["first"] != ((times == 0) & (jnp.arange(STEPS) > 0)[:, None]),
        }
        return state, {name: x.mean() for name, x in wrong.items()} | {
            "firsts": batch.extras["first"].mean()
        }


class Saved(HostedCounter):
    def save(self, rows: Any) -> bytes:
        return np.stack([self.time, self.returns, self.last]).astype(np.float64).tobytes()

    def restore(self, saved: bytes) -> np.ndarray:
        time, returns, self.last = np.frombuffer(saved).reshape(3, -1)
        self.num_envs, self.time, self.returns = (
            len(time),
            time.astype(np.int32),
            returns.astype(np.float32),
        )
        return np.stack([time, self.last], axis=1).astype(np.float32)

    def reset(self, seeds: Sequence[int] | None) -> np.ndarray:
        self.last = np.zeros(self.num_envs if seeds is None else len(seeds))
        return super().reset(range(self.num_envs) if seeds is None else seeds)

    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        self.last = np.asarray(step.observation)[:, 1]
        return step


def driver(kind: str, iterations: int) -> Any:
    return kinds.driven(kind, [1, 2], iterations, Remembering(), Saved(LIMIT), LIMIT, **SIZES)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_memories_follow_episodes(kind: str) -> None:
    metrics = driver(kind, 2 * LIMIT).report().metrics
    for name in ("action", "memory", "sum", "first"):
        assert np.max(metrics[name]) == 0.0, name
    assert np.all(metrics["firsts"] > 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_memories_are_restored(kind: str) -> None:
    whole, broken, restored = (driver(kind, iterations) for iterations in (3, 3, 0))
    for made in (whole, broken):  # in the middle of an episode
        made.report()
    restored.restore(jax.tree.map(jnp.array, broken.arrays()), broken.environments())
    for made in (whole, restored):
        made.advance(3)
        made.report()
    assert_equal(whole.arrays(), restored.arrays())
    template = driver(kind, 0).template([1, 2])
    assert jax.tree.map(lambda x: (x.shape, x.dtype), template) == jax.tree.map(
        lambda x: (x.shape, x.dtype), restored.arrays()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.ON_HOST)
def test_fresh_episodes_begin_without_memory(kind: str) -> None:
    made = driver(kind, 3)
    made.report()
    made.restore(jax.tree.map(jnp.array, made.arrays()), None)
    made.advance(4)
    metrics = made.report().metrics
    assert np.max(metrics["action"]) == np.max(metrics["memory"]) == 0


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("hold", [1, 2, 7])
@pytest.mark.parametrize("inside", [True, False])
def test_evaluation_remembers(inside: bool, hold: int) -> None:
    environment: Any = AutoReset(Counter(LIMIT)) if inside else Saved(LIMIT)
    environment.num_envs, environment.success = 4, np.full(4, np.nan)
    kind: Any = CompiledEvaluator if inside else HostedEvaluator
    agent, config = Remembering(), settings(2, **SIZES)
    keys = jax.random.split(jax.random.key(0), 2)

    def create(key: Any) -> AgentState:
        return agent_state.create(agent, key, environment.spec, Fake.Config(**SIZES), Raw())

    state = jax.vmap(create)(keys)
    held: Any = agent if hold == 1 else HeldActions(agent, hold)
    evaluator = kind(held, environment, 2)
    played = evaluator(state, evaluator.starts(range(2), 2), config)
    # The number of decisions so far: nothing is seen in between.
    actions = [1 + time // hold for time in range(LIMIT)]
    np.testing.assert_array_equal(
        played.returns, np.full((2, 2), sum(range(LIMIT + 1)) + sum(actions))
    )


def trained(env: str, steps: int, out: Path, **changes: Any) -> Path:
    config = {"memory": "lstm", "memory_hidden": (8,), "batch_size": 25} | changes
    return small_runs.train("ppo", env, steps, out, config, seeds=2)


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Hopper-v5"])
def test_runs_resume_with_what_they_remember(env: str, tmp_path: Path) -> None:
    trained(env, 200, tmp_path / "whole")
    trained(env, 100, tmp_path / "half")
    run.resume(tmp_path / "half", 200)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    assert checkpoints.steps(tmp_path / "half/checkpoints")[-1] == 200

    loaded = rljax.load(tmp_path / "half")
    seen = (
        np.random.default_rng(0).normal(size=(3, *loaded.spec.observation_shape)).astype(np.float32)
    )
    with pytest.raises(ValueError, match="step=0"):
        loaded(seen[0])
    with pytest.raises(ValueError, match="Begin an episode with step=0"):
        loaded(seen[0], step=1)
    first, second = loaded(seen[0], step=0), loaded(seen[1], step=1)
    anew = loaded(seen[1], step=0)
    assert np.abs(second - anew).max() > 0
    np.testing.assert_array_equal(loaded(seen[0], step=0), first)
    together = [loaded(seen[:2], step=0), loaded(seen[[1, 0]], step=np.array([1, 0]))]
    np.testing.assert_allclose(together[0][0], first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(together[1], [second, first], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="as many environments"):
        loaded(seen, step=2)


@pytest.mark.learn
def test_actions_are_held_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = small_runs.trained("ppo", "rljax/Pendulum", 100, tmp_path / "run")
    cli.main(["eval", str(out), "--episodes", "2", "--hold", "1", "4"])
    shown = capsys.readouterr().out
    assert "each action held for 4 steps" in shown
    assert "frequency-averaged return over holds of 1 to 4 steps: -" in shown
    with pytest.raises(ValueError, match="--hold is 0, it must be at least 1"):
        evaluate.evaluate_run(out, hold=0)
