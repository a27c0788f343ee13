"""RIQL against float64 NumPy written from the authors' equations."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import riql
from rljax.runs import experiments
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SPEC

CONFIG = riql.Config(
    **value_learning.SIZES, num_critics=3, value_lr=3e-2, normalise_observations=False
)
PROBE = {}


def example() -> Any:
    return SPEC, dataclasses.replace(CONFIG, decay_steps=10.0, dropout=0.1), reference.transitions()


class Reference(value_learning.Networks):
    """arXiv:2310.12955, in the order and with the constants of its code."""

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, squashed = self.config, self.config.policy == "deterministic"
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        each = [reference.value(x, observation, action)[0] for x in self.targets]
        q = np.quantile(each, config.quantile, axis=0)
        v, next_v = (value_learning.state_values(self.value, x) for x in (observation, successor))
        y = np.clip(reward + config.discount * alive * next_v, config.target_min, config.target_max)
        metrics = self.fit_value(observation, q)
        metrics |= self.imitate(observation, action, q - v, key, step, squashed)
        threshold = 1.0 / config.huber_sigma**2
        losses, values, linear, gradients = value_learning.linear_errors(
            self.critics, observation, action, y, threshold
        )
        scale = 2.0 * threshold * len(self.critics)  # h is a mean over critics, with slopes of +-1
        self.move_critics(reference.zip_map(lambda x: x / scale, gradients))
        return metrics | {
            "critic/loss": losses.mean() / (2.0 * threshold),
            "critic/q": values.mean(),
            "critic/target": y.mean(),
            "critic/linear": linear,
        }


CASES = {
    "default": {},
    "five critics": {"num_critics": 5, "quantile": 0.1},
    "gaussian": {"policy": "gaussian", "log_std_max": 0.0},
    "small errors": {"huber_sigma": 0.5, "discount": 0.5},
    "large errors": {"huber_sigma": 3.0, "inverse_temperature": 2.0, "max_weight": 1.05},
    "clipped targets": {"target_min": -0.2, "target_max": 0.5},
    "decay, dropout": {"decay_steps": 3.0, "dropout": 0.4, "quantile": 0.5},
}

update = jax.jit(riql.update)
act = jax.jit(riql.act, static_argnames="explore")


def fresh(config: riql.Config) -> riql.State:
    """Values lie among the critics'."""
    state = reference.state(riql, SPEC, config)
    state.value.parameters.params["output"]["bias"] -= 0.2
    return state


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    value_learning.assert_updates_equal(update, fresh(config), config, Reference)


def test_the_cases_bound_some_and_not_all() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    configs = {name: dataclasses.replace(CONFIG, **changes) for name, changes in CASES.items()}
    metrics = {name: update(fresh(c), batch, KEY, 0, c)[1] for name, c in configs.items()}
    assert metrics["small errors"]["critic/linear"] == 0.0
    assert (
        0.0 < metrics["default"]["critic/linear"] < metrics["large errors"]["critic/linear"] < 1.0
    )
    q = jnp.quantile(state.target_critic(batch.observation, batch.action), 0.25, axis=0)
    advantage = np.asarray(q - state.value(batch.observation)[:, 0])
    assert 0.0 < (advantage > 0.0).mean() < 1.0
    assert 0.0 < (np.exp(2.0 * advantage) > 1.05).mean() < 1.0


@jax.jit
@jax.value_and_grad
def huber(error: Any, sigma: float) -> Any:
    """The loss of one critic that is off by `error`, and its slope."""
    critic: Any = lambda observation, action: jnp.full((1, 5), error)  # noqa: E731
    batch = reference.transitions().replace(reward=jnp.zeros(5))
    return riql.critic_loss(
        critic, jnp.zeros(5), batch, dataclasses.replace(CONFIG, huber_sigma=sigma)
    )[0]


@pytest.mark.parametrize(
    ("sigma", "threshold"), [(0.1, 100.0), (0.5, 4.0), (1.0, 1.0), (3.0, 1.0 / 9.0)]
)
def test_huber_is_quadratic_up_to_its_threshold_and_linear_beyond(
    sigma: float, threshold: float
) -> None:
    losses = np.array([huber(x * threshold, sigma) for x in (0.5, -0.999999, 3.0, -50.0)])
    np.testing.assert_allclose(losses[:, 0] / threshold, [0.125, 0.5, 2.5, 49.5], rtol=1e-5)
    np.testing.assert_allclose(losses[:, 1], [0.5, -1.0, 1.0, -1.0], rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_quantile_of_the_critics_is_numpys(share: float) -> None:
    config = dataclasses.replace(CONFIG, quantile=share, expectile=0.5, num_critics=5)
    state, batch = fresh(config), reference.transitions()
    q = np.quantile(np.asarray(state.target_critic(batch.observation, batch.action)), share, axis=0)
    metrics = update(state, batch, KEY, 0, config)[1]
    np.testing.assert_allclose(
        metrics["actor/advantage"] + metrics["value/v"], q.mean(), rtol=1e-4, atol=1e-6
    )


def test_targets_are_clipped() -> None:
    batch = reference.transitions().replace(reward=jnp.array([-1e4, -50.0, 0.0, 50.0, 1e4]))
    metrics = riql.critic_loss(lambda *_: jnp.zeros((1, 5)), jnp.zeros(5), batch, CONFIG)[1]  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(
        metrics["critic/target"], (-100.0 - 50.0 + 0.0 + 50.0 + 1000.0) / 5.0, rtol=1e-6
    )


def test_one_wild_target_pulls_no_harder_than_another() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    batches = (batch.replace(reward=batch.reward.at[0].set(x)) for x in (100.0, 1000.0))
    assert trees.equal(*(update(state, x, KEY, 0, CONFIG)[0].critic for x in batches))


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_value_judges_before_its_step() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    moving, resting = (
        update(state, batch, KEY, 0, dataclasses.replace(CONFIG, value_lr=x))[1]
        for x in (3e-2, 0.0)
    )
    assert moving["critic/target"] == resting["critic/target"]
    assert moving["actor/advantage"] == resting["actor/advantage"]


def test_begins_as_the_authors_do() -> None:
    state = jax.jit(riql.init, static_argnums=1)(KEY, SPEC, CONFIG)
    members = state.critic.parameters.params["members"]
    np.testing.assert_allclose(members["hidden_0"]["bias"], 0.1, rtol=1e-6)
    assert np.abs(members["output"]["kernel"]).max() <= 3e-3
    assert np.abs(state.value.parameters.params["output"]["kernel"]).max() > 3e-2
    assert state.actor.parameters.log_std is None


@pytest.mark.parametrize("policy", ["gaussian", "deterministic"])
def test_act_explores_around_the_mean_within_bounds(policy: Any) -> None:
    config = dataclasses.replace(CONFIG, policy=policy, exploration_noise=0.7)
    state, seen = fresh(config), reference.transitions(9, 6).observation
    mean, *log_std = reference.actor(state.actor)
    mean = reference.forward(mean, np.asarray(seen, np.float64))[0]
    mean, std = (mean, np.exp(log_std[0])) if log_std else (np.tanh(mean), 0.7)
    value_learning.assert_explores_around(mean, std, act, state, seen, config)


@pytest.mark.parametrize(
    ("env", "data", "expected"),
    [
        ("Hopper-v5", "replay.hdf5", (0.1, "torch")),  # recorded here
        (None, "d4rl/hopper-medium-replay-v2", (1.0, "edac")),  # the authors', for their 3M updates
        ("HalfCheetah-v5", "replay.hdf5", (1.0, "edac")),  # nobody falls
    ],
)
def test_critics_see_falls_in_recordings_of_hopper(
    env: str | None, data: str, expected: tuple[float, str]
) -> None:
    config = experiments.preset("riql", riql, env, data)
    assert (config.huber_sigma, config.critic_initialisation) == expected
