"""Streams: each transition is learnt from once; bad ones teach nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agents import stream_ac
from rljax.envs.autoreset import AutoReset
from rljax.learning import plan
from rljax.learning.configuration import stack
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.embedded import EmbeddedDriver
from rljax.learning.learner import TRANSITION, Learner
from rljax.learning.settings import Settings
from rljax.runs import failures, run
from rljax.system import hardware
from tests.helpers.counting import Counter, Fake, HostedCounter, State, assert_equal, one, settings

LIMIT = 5


class Streamed(Fake):
    """A Fake whose actions tell how much it has learnt; it remembers the transitions."""

    def experience(self, config: Any) -> Any:
        return buffers.Stream()

    def act(self, state: State, observation: Any, *_: Any) -> tuple[Any, dict]:
        """The number of updates, in hundredths; half a one less where nothing was perceived."""
        action = 0.01 * state.weight[0] - 0.005 * (state.count == 0)
        return jnp.full((*observation.shape[:-1], 1), action), {}

    def init(self, key: Any, spec: Any, config: Any) -> State:
        state = super().init(key, spec, config)
        return state.replace(weight=jnp.zeros(2), rewards=jnp.zeros((8, 5)))

    def update(self, state: State, batch: Any, key: Any, step: Any, *_: Any) -> tuple[State, dict]:
        """Remember (time, action, time after, reward, whether the episode ended)."""
        ended = batch.terminated | batch.truncated
        places = batch.observation[0], batch.action[0], batch.next_observation[0]
        row = jnp.stack([*places, batch.reward, ended * 1.0])
        rewards = state.rewards.at[step % 8].set(row)
        state = state.replace(weight=state.weight + 1.0, rewards=rewards)
        return state, {"part/loss": batch.reward}


def streamed(environment: Any, steps: int, seeds: Any = (0, 1), module: Any = stream_ac) -> Any:
    config = settings(len(seeds), counts=True)
    if module is stream_ac:
        config = stack(stream_ac.Config(hidden=(8,), time_feature=False), len(seeds))
    kind: Any = EmbeddedDriver
    if isinstance(environment, Counter):
        kind, environment = CompiledDriver, AutoReset(environment)
    driver = kind(Learner(module, environment.spec, len(seeds)), environment, config)
    driver.start(seeds)
    driver.advance(steps)
    return driver


@pytest.mark.parametrize("counter", [Counter, HostedCounter])
def test_each_transition_is_learnt_from_once_and_before_the_next_action(counter: Any) -> None:
    driver = streamed(counter(LIMIT), 7, module=Streamed())
    time = np.array([0, 1, 2, 3, 4, 0, 1])
    action = 0.01 * np.arange(7)  # chosen after as many updates
    rows = np.stack([time, action, time + 1, time + 1 + action, time == 4], axis=1)
    state = driver.agent_state.state
    for learner in range(2):
        np.testing.assert_allclose(state.rewards[learner, :7], rows, atol=1e-6)
        assert int(state.count[learner]) == 8, "each observation that is acted on, the next one too"
        assert int(state.firsts[learner]) == 2
    assert int(driver.learners.updates) == int(driver.learners.steps) == 7
    metrics = driver.report().metrics
    np.testing.assert_allclose(metrics["part/loss"], rows[:, 3].mean(), rtol=1e-5)
    np.testing.assert_array_equal(metrics["episode/length"], [LIMIT, LIMIT])
    np.testing.assert_array_equal(metrics[TRANSITION], [1.0, 1.0])


@pytest.mark.slow
def test_drivers_agree() -> None:
    first, second = (streamed(counter(LIMIT), 23) for counter in (Counter, HostedCounter))
    second.advance(4)
    first.advance(4)
    assert_equal(first.agent_state, second.agent_state, rtol=1e-4, atol=1e-5)
    assert_equal(first.carry.action, second.carry.action, rtol=1e-4, atol=1e-5)
    assert int(first.learners.steps) == int(second.learners.steps) == 27


@pytest.mark.learn
def test_streams_do_not_depend_on_each_other() -> None:
    together = streamed(Counter(LIMIT), 30, [3, 4, 5]).agent_state
    for index, seed in enumerate([3, 4, 5]):
        alone = streamed(Counter(LIMIT), 30, [seed]).agent_state
        # What rounding took off a sum is noise.
        assert_equal(one(together, index), one(alone, 0), rtol=1e-4, atol=1e-4)


class Broken(Counter):
    """A Counter with something that is not finite in its 4th step."""

    def __init__(self, what: str) -> None:
        super().__init__(LIMIT)
        self.what = what

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        observation, state, reward, *rest = super().step(key, state, action, params)
        bad = state[0] == 4
        if self.what == "reward":
            reward = jnp.where(bad, jnp.inf, reward)
        else:
            observation = jnp.where(bad, jnp.nan, observation)
        return observation, state, reward, *rest


@pytest.mark.slow
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_what_is_not_finite_teaches_nothing_inside_the_program(what: str) -> None:
    before, driver = streamed(Counter(LIMIT), 3), streamed(Broken(what), 20)
    # Two programs round apart.
    assert_equal(driver.agent_state, before.agent_state, rtol=1e-4, atol=1e-5)
    found = driver.report()
    np.testing.assert_array_equal(found.first_bad[TRANSITION], [3, 3])
    assert found.updates == 3


class Failing(HostedCounter):
    def step(self, action: np.ndarray) -> Any:
        step = super().step(action)
        if self.time[0] == 4:
            raise FloatingPointError("observation of environment 0 is not finite.")
        return step


@pytest.mark.slow
def test_what_is_not_finite_teaches_nothing_on_the_host() -> None:
    before, driver = streamed(HostedCounter(LIMIT), 3), streamed(Failing(LIMIT), 3)
    with pytest.raises(FloatingPointError, match="observation of environment 0"):
        driver.advance(5)
    assert_equal(driver.agent_state, before.agent_state)


@pytest.mark.slow
def test_a_run_says_what_was_not_finite(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import jax.numpy as jnp\nfrom rljax.envs.tasks.analytic import Pendulum\n"
        "class Mine(Pendulum):\n    def __init__(self):\n        super().__init__('mine')\n"
        "    def step(self, key, state, action, params=None):\n"
        "        observation, state, reward, *rest = super().step(key, state, action)\n"
        "        return observation, state, jnp.where(state.velocity > 3.0, jnp.nan, "
        "reward), *rest\n"
    )
    with pytest.raises(
        failures.Diverged,
        match=r"^an observation or reward of learner 0 \(seed 0\) is not finite in its step",
    ):
        run.train("stream_ac", f"{file}:Mine", 2_000, out=tmp_path / "run", config={"hidden": (8,)})


@pytest.mark.slow
def test_a_stream_keeps_parameters_and_traces_alone(tmp_path: Any) -> None:
    assert buffers.Stream().create(None) is None  # type: ignore[arg-type]
    asked = Settings("stream_ac", "HalfCheetah-v5", 100, eval_episodes=1)
    planned = plan.plan(plan.Experiment(asked, stream_ac, stream_ac.Config(), None))
    needed = hardware.nbytes(planned.stages[0].driver.template([0]))
    key, spec = jax.random.key(0), planned.spec
    state = jax.eval_shape(lambda: stream_ac.init(key, spec, stream_ac.Config()))
    parameters = 4 * sum(
        x.size for x in jax.tree.leaves((state.actor.parameters, state.critic.parameters))
    )
    assert parameters > 100_000
    assert needed - 2 * parameters < 2_000, (
        "beside parameters and traces: statistics, counters, one action"
    )
