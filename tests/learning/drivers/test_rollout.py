"""Rollouts: each comes from one policy, the newest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agents import ppo
from rljax.learning import configuration
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.learner import Learner
from tests.helpers.counting import OnPolicy, State, driven
from tests.learning.drivers import kinds

NUMBER, STEPS = 5, 4
SIZES: Any = {"num_envs": 1, "num_steps": STEPS, "batch_size": STEPS}


class Telling(OnPolicy):
    """An OnPolicy whose actions tell how much it has learnt; it remembers those of its rollouts."""

    def init(self, key: Any, spec: Any, config: Any) -> State:
        return super().init(key, spec, config).replace(weight=jnp.zeros(2))

    def act(self, state: State, observation: Any, *_: Any) -> tuple[Any, dict]:
        return jnp.full((*observation.shape[:-1], 1), 0.1 * state.weight[0]), {}

    def update(self, state: State, batch: Any, key: Any, step: Any, *_: Any) -> tuple[State, dict]:
        rewards = state.rewards.at[step].set(batch.action[:, 0, 0])
        return state.replace(weight=state.weight + 1.0, rewards=rewards), {
            "loss": batch.reward.mean()
        }


def on_the_host(kind: str, counts: bool) -> Any:
    driver = kinds.driven(kind, [0], 2, Telling(), limit=7, **SIZES, counts=counts)
    # The host's drivers learn from a rollout before they begin the next one.
    for iterations in (1, NUMBER - 2):
        driver.advance(iterations)
    return driver


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_rollout_comes_from_one_policy(kind: str) -> None:
    if kind == "compiled":
        driver: Any = driven([0], NUMBER, Telling(), **SIZES)
    else:
        driver = on_the_host(kind, counts=False)
    actions = np.asarray(driver.agent_state.state.rewards[0])[:NUMBER]
    np.testing.assert_allclose(
        actions - 0.1 * np.arange(NUMBER)[:, None], np.zeros((NUMBER, STEPS)), atol=1e-6
    )


@pytest.mark.parametrize("kind", kinds.ON_HOST)
def test_an_observation_is_perceived_once(kind: str) -> None:
    driver = on_the_host(kind, counts=True)
    assert driver.agent_state.state.count[0] == (NUMBER + 1) * STEPS + 1


@pytest.mark.slow
def test_the_first_minibatch_of_each_rollout_has_ratio_1() -> None:
    # The only minibatch.
    sizes: Any = {"num_envs": 2, "num_steps": 4, "batch_size": 8, "num_epochs": 1}
    config = ppo.Config(**sizes, learning_rate=0.1, actor_hidden=(4,), critic_hidden=(4,))
    environment = envs.make("rljax/Pendulum")
    driver = CompiledDriver(
        Learner(ppo, environment.spec, 1), environment, configuration.stack(config, 1)
    )
    driver.start([0])
    before = jax.tree.map(np.asarray, driver.agent_state.state.actor_critic.parameters)
    for _ in range(3):
        driver.advance(1)
        assert abs(driver.report().metrics["actor/kl"][0]) < 1e-6
    after = driver.agent_state.state.actor_critic.parameters
    moved = [
        np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)
    ]
    assert max(moved) > 0.1
