"""GCIQL against float64 NumPy written from the papers and the authors' code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import gciql
from tests.agents import chain, reference, trees, value_learning
from tests.agents.chain import SPEC, transitions
from tests.agents.value_learning import KEY, SIZES

CONFIG = gciql.Config(**SIZES, value_lr=3e-2, activation="relu", layer_norm=False)


def example() -> Any:
    return SPEC, CONFIG, transitions()


class Reference(value_learning.Networks):
    """Every loss is of the networks before the update, as in the authors' gciql.py."""

    def __init__(self, state: gciql.State, config: gciql.Config) -> None:
        super().__init__(state, config, actor=reference.mlp)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        next_v = value_learning.state_values(self.value, successor)
        q = reference.smallest(self.targets, observation, action)[0]
        actor_observation = np.asarray(batch.extras["actor_observation"], np.float64)
        metrics, gradient = self.policy(actor_observation, action)
        self.actor = self.actor_adam.step(self.actor, gradient)
        metrics |= self.fit_value(observation, q)
        y = reward + self.config.discount * alive * next_v
        return metrics | self.fit_critics(observation, action, y)

    def policy(self, observation: np.ndarray, action: np.ndarray) -> tuple[dict[str, float], Any]:
        """The actor's metrics and its gradient.

        With distance d = |a - m|^2 / 2 + log(2 pi) A / 2 and c the mean m within +-1: ddpg_bc is
        -mean q(c) / |mean q| + alpha mean d, dm = (-dq/dc 1(m = c) / size + alpha (m - a)) / B; awr
        is mean w d, dm = w (m - a) / B.
        """
        config, size = self.config, len(action)
        mean, inputs = reference.forward(self.actor, observation)
        distance = 0.5 * np.square(mean - action).sum(axis=1)
        distance += 0.5 * np.log(2.0 * np.pi) * action.shape[1]
        if config.policy_loss == "awr":
            v = value_learning.state_values(self.value, observation)
            advantage = reference.smallest(self.critics, observation, action)[0] - v
            weight = np.minimum(np.exp(config.inverse_temperature * advantage), config.max_weight)
            change = weight[:, None] * (mean - action) / size
            metrics = {"actor/advantage": advantage.mean(), "actor/weight": weight.mean()}
            metrics["actor/loss"] = (weight * distance).mean()
        else:
            clipped = np.clip(mean, -1.0, 1.0)
            q, slope = reference.smallest(self.critics, observation, clipped)
            scale = np.abs(q).mean() + 1e-6
            change = config.imitation_weight * (mean - action)
            change = (change - slope * (mean == clipped) / scale) / size
            metrics = {"actor/q": q.mean(), "actor/imitation": distance.mean()}
            metrics["actor/loss"] = -q.mean() / scale + config.imitation_weight * distance.mean()
        return metrics, reference.backward(self.actor, inputs, change)[0]


CASES = {
    "default": {},
    "cube": {"imitation_weight": 1.0, "discount": 0.995},
    "another expectile": {"expectile": 0.7},
    "weighted": {"policy_loss": "awr"},
    "bounded weights, three critics": {"policy_loss": "awr", "max_weight": 1.05, "num_critics": 3},
}

update = jax.jit(gciql.update)
act = jax.jit(gciql.act, static_argnames="explore")


def fresh(config: gciql.Config) -> gciql.State:
    """Values lie among the critics', and some actions beyond their bounds."""
    state = reference.state(gciql, SPEC, config)
    state.value.parameters.params["output"]["bias"] -= 0.2
    return state


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    value_learning.assert_updates_equal(
        update, fresh(config), config, Reference, batches=transitions
    )


def test_only_the_actor_sees_its_own_goals() -> None:
    state, batch = fresh(CONFIG), transitions()
    other = batch.replace(extras={"actor_observation": batch.observation})
    one, two = (update(state, x, KEY, 0, CONFIG)[0] for x in (batch, other))
    for part, same in (("critic", True), ("value", True), ("actor", False)):
        assert trees.equal(getattr(one, part), getattr(two, part)) == same, part


def test_begins_as_the_authors_do() -> None:
    config = gciql.Config(hidden=(16, 16))
    state = jax.jit(gciql.init, static_argnums=1)(KEY, SPEC, config)
    limit = np.sqrt(6.0 / (16 + 2))
    actor, value, critic = (x.parameters.params for x in (state.actor, state.value, state.critic))
    kernel = np.asarray(actor["output"]["kernel"])
    # A tenth of the others: a hundredth of their variance.
    assert 0.05 * limit < np.abs(kernel).max() <= 0.1 * limit
    assert "norm_0" not in actor
    assert "norm_0" in value
    assert "norm_0" in critic["members"]


@pytest.mark.learn
@pytest.mark.parametrize("torso", ["resnet", "iru", "recall"])
def test_every_torso_learns(torso: Any) -> None:
    config = dataclasses.replace(CONFIG, torso=torso, compute=1 if torso == "resnet" else 3)
    gciql.check(SPEC, config)
    state = gciql.init(KEY, SPEC, config)
    new, metrics = update(state, transitions(), KEY, 0, config)
    assert all(np.isfinite(value) for value in metrics.values())
    for part in ("actor", "critic", "value"):
        both = (getattr(x, part).parameters for x in (state, new))
        assert trees.all_differ(*both), part


@pytest.mark.learn
def test_progressive_losses_are_of_a_part_of_the_steps_in_every_network() -> None:
    config = dataclasses.replace(CONFIG, torso="iru", compute=12, hidden=(8,))
    state, batch = gciql.init(KEY, SPEC, config), transitions()
    configs = (dataclasses.replace(config, progressive=alpha) for alpha in (None, 0.0, 1.0))
    whole, none, part = (update(state, batch, KEY, 0, x)[0] for x in configs)
    for name in ("actor", "critic", "value"):
        first, second, third = (getattr(x, name).optimiser_state[0].mu for x in (whole, none, part))
        trees.assert_close(first, second, rtol=1e-5, atol=1e-7)
        with pytest.raises(AssertionError):
            trees.assert_close(first, third, rtol=1e-5, atol=1e-4)


def test_act_explores_around_the_mean_within_bounds() -> None:
    state, observation = fresh(CONFIG), transitions(9).observation
    mean = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    value_learning.assert_explores_around(mean, 1.0, act, state, observation, CONFIG)


@pytest.mark.parametrize("name", ["value", "actor"])
def test_refuses_more_than_all_goals(name: str) -> None:
    shares: Any = {f"{name}_goal_current": [0.0, 0.4], f"{name}_goal_future": 0.7}
    message = (
        rf"--config\.{name}-goal-current and --config\.{name}-goal-future .* together 1\.1: .* "
        r"at most 1"
    )
    with pytest.raises(ValueError, match=message):
        gciql.check(SPEC, dataclasses.replace(CONFIG, **shares))


def test_refuses_thinking_where_there_is_nothing_to_do_twice() -> None:
    message = r"--config\.compute is 3, --config\.torso mlp has nothing to do more"
    with pytest.raises(ValueError, match=message):
        gciql.check(SPEC, dataclasses.replace(CONFIG, compute=3))


@pytest.mark.learn
@pytest.mark.parametrize(
    ("torso", "policy_loss"), [("mlp", "ddpg_bc"), ("mlp", "awr"), ("iru", "ddpg_bc")]
)
def test_on_a_chain_values_are_the_tables_and_actions_lead_to_the_goal(
    torso: str, policy_loss: str
) -> None:
    changes: Any = chain.SETTINGS | {
        "torso": torso,
        "compute": 1 if torso == "mlp" else 3,
        "hidden": (64, 64) if torso == "mlp" else (64,),
        "policy_loss": policy_loss,
        "imitation_weight": 0.5,
        "num_critics": 1,
        "critic_lr": 1e-3,
    }
    state = chain.learnt(gciql, changes, 3_000)
    chain.assert_values(state.value(chain.PAIRS)[:, 0])
    chain.assert_leads_to_goals(gciql, state)
