"""Lifetimes: several episodes of one task as one episode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import EnvSpec

ENDS_AFTER = 3  # steps of an episode that terminates


class Counting:
    """Rewards are the steps so far; the task is a number that stays, or is drawn anew."""

    params = None

    def __init__(self) -> None:
        self.spec = EnvSpec("test/Counting", (2,), 2, discrete=True, max_episode_steps=4)

    def reset(self, key: Any, params: Any = None) -> Any:
        task = jax.random.uniform(key)
        return self._begun(task)

    def restart(self, key: Any, state: Any, params: Any = None) -> Any:
        return self._begun(state[0])

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
        task, time = state
        ended = (time + 1 == ENDS_AFTER) & (action == 1)
        after = (task, time + 1)
        reward = time + 1.0
        return jnp.stack([task, time + 1.0]), after, reward, ended, jnp.zeros((), bool), {}

    def _begun(self, task: Any) -> Any:
        return jnp.stack([task, 0.0]), (task, jnp.zeros(()))


@pytest.fixture(scope="module")
def environment() -> Any:
    return envs.make(f"lifetime-3/{__file__}:Counting")


def played(environment: Any, actions: list[int], steps: int) -> list[Any]:
    """The steps of two environments, each with one action throughout."""
    _, state = environment.reset(jax.random.split(jax.random.key(0), len(actions)))
    step, result = jax.jit(environment.step), []
    for time in range(steps):
        keys = jax.random.split(jax.random.key(time), len(actions))
        after, state = step(keys, state, jnp.asarray(actions))
        result.append(after)
    return result


def test_episodes_follow_each_other_with_the_same_task(environment: Any) -> None:
    """Of the first environment they are cut after 4 steps, of the second they end after 3."""
    steps = played(environment, [0, 1], 13)
    for i, length in enumerate((4, ENDS_AFTER)):
        shown = [np.asarray(x.observation[i]) for x in steps]
        assert len({float(x[0]) for x in shown[: 3 * length - 1]}) == 1, "one task"
        times = [int(x[1]) for x in shown[: 3 * length - 1]]
        assert times == ([*range(1, length), 0] * 3)[:-1]
        truncated = [bool(x.truncated[i]) for x in steps]
        terminated = [bool(x.terminated[i]) for x in steps]
        assert truncated.index(True) if i == 0 else terminated.index(True) == 3 * length - 1
        assert not any((truncated, terminated)[1 - i][: 3 * length])
        last = steps[3 * length - 1]
        assert float(last.next_observation[i, 1]) == length, "the true successor"
        one = sum(range(1, length + 1))
        assert float(last.episode_return[i]) == 3 * one
        sums = {name: float(x[i]) for name, x in last.episode_signals.items()}
        assert sums == {"first_episode": one, "last_episode": one}
        assert float(last.observation[i, 0]) != shown[0][0], "a new task"


def test_a_lifetime_has_the_time_limit_of_its_episodes(environment: Any) -> None:
    spec = environment.spec
    assert spec.max_episode_steps == 3 * 4
    assert spec.name.startswith("lifetime-3/")
    assert [part.name for part in spec.signals] == ["first_episode", "last_episode"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lifetime-1/rljax/DarkRoom-3x3", "has 1 episodes, it must have at least 2"),
        ("lifetime-2/rljax/LightsOut-3x3", "draws a new task, so no lifetime"),
        ("lifetime-2/CartPole-v1", "is on the host, .* Remove: lifetime-2/"),
    ],
)
def test_what_cannot_be_repeated_is_refused(name: str, message: str) -> None:
    make = envs.make if envs.is_compiled(name) else lambda name: envs.make_hosted(name, 1)
    with pytest.raises(ValueError, match=message):
        make(name)


def test_other_prefixes_stand_before_it() -> None:
    name = envs.with_last_step("lifetime-2/rljax/DarkRoom-3x3-4")
    spec = envs.make(name).spec
    assert spec.observation_shape == (2 + 5 + 1,)
    assert envs.task(name) == "rljax/DarkRoom-3x3-4"
