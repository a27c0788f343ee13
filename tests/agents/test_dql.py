"""Diffusion-QL against float64 NumPy written from the paper, its gradients by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agents import dql
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY, SIZES, SPEC

CONFIG = dql.Config(
    **SIZES,
    activation="relu",
    embedding=4,
    denoising_steps=3,
    num_candidates=4,
    average_every=1,
    average_from=0,
)
PROBE = {"average_rate": 0.05}
POLICY_IS_A_DRAW = True  # also without exploring
AVERAGES = ("average_actor",)  # of the actor


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


class Reference(reference.Guided):
    """Equations 1 to 4 of arXiv:2208.06193, and algorithm 2 of arXiv:2006.11239."""

    def __init__(self, state: dql.State, config: dql.Config) -> None:
        super().__init__(state, config)
        t, steps = np.arange(1, config.denoising_steps + 1), config.denoising_steps
        self.alpha = np.exp(-0.1 / steps - 0.5 * 9.9 * (2 * t - 1) / steps**2)
        if config.noising == "linear":
            self.alpha = 1.0 - np.linspace(1e-4, 2e-2, steps)
        self.signal = np.cumprod(self.alpha)

    def clean(self, noisy: np.ndarray, t: Any, predicted: np.ndarray) -> np.ndarray:
        """Noisy actions without the predicted noise."""
        signal = self.signal[t]
        return np.clip((noisy - np.sqrt(1.0 - signal) * predicted) / np.sqrt(signal), -1.0, 1.0)

    def noise(self, key: jax.Array, *rows: int) -> np.ndarray:
        """What the reverse process begins with and adds, [T + 1, B, A]."""
        steps = self.config.denoising_steps + 1
        return np.asarray(jax.random.normal(key, (steps, *rows, 2)), np.float64).reshape(
            steps, -1, 2
        )

    def sampled(self, actor: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The reverse process for observations [B, O], from noise [T + 1, B, A]."""
        action = noise[0]
        for i, t in enumerate(range(len(self.alpha) - 1, -1, -1)):
            step = np.full(len(action), float(t))
            clean = self.clean(action, t, reference.of_field(actor, action, observation, step))
            before, beta = self.signal[t - 1] if t else 1.0, 1.0 - self.alpha[t]
            mean = np.sqrt(before) * beta * clean + np.sqrt(self.alpha[t]) * (1.0 - before) * action
            variance = beta * (1.0 - before) / (1.0 - self.signal[t])
            action = mean / (1.0 - self.signal[t]) + np.sqrt(variance) * noise[i + 1]
        return np.clip(action, -1.0, 1.0)

    def imitation(
        self, observation: np.ndarray, action: np.ndarray, key: jax.Array
    ) -> reference.Imitation:
        """The squared error to the noise, and with EDP's step what it leaves of the noisy
        actions.
        """
        key_step, key_noise = jax.random.split(key)
        step = np.asarray(
            jax.random.randint(key_step, (len(action),), 0, self.config.denoising_steps)
        )
        noise = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        signal = self.signal[step][:, None]
        noisy = np.sqrt(signal) * action + np.sqrt(1.0 - signal) * noise

        def loss(actor: Any) -> tuple[float, np.ndarray | None]:
            predicted = reference.of_field(actor, noisy, observation, step.astype(float))
            clean = (
                self.clean(noisy, step[:, None], predicted)
                if self.config.improvement == "one_step"
                else None
            )
            return np.square(predicted - noise).mean(), clean

        return loss


CASES = {
    "default": {},
    "limited, best of four": {"max_grad_norm": 0.05, "max_q_backup": 4, "value_weight": 3.0},
    "one step, ten of DDPM's": {
        "improvement": "one_step",
        "noising": "linear",
        "denoising_steps": 10,
    },
    "no limit, a rare average": {
        "max_grad_norm": None,
        "average_every": 2,
        "average_from": 1,
        "average_rate": 0.3,
    },
}

update = jax.jit(dql.update)
act = jax.jit(dql.act, static_argnames="explore")


def fresh(config: dql.Config) -> dql.State:
    return reference.state(dql, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    parts: Any = {"actor": reference.field, "average_actor": reference.field}
    value_learning.assert_updates_equal(update, fresh(config), config, Reference, **parts)


def test_the_coin_falls_both_ways_in_the_cases() -> None:
    coins = [
        jax.random.bernoulli(jax.random.split(jax.random.split(jax.random.key(i))[1], 3)[2])
        for i in range(4)
    ]
    assert 0 < sum(map(int, coins)) < 4


def test_targets_look_at_the_average_alone() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    louder = jax.tree.map(lambda x: 2.0 * np.asarray(x), state.actor.parameters)

    def target(state: dql.State) -> Any:
        return update(state, batch, KEY, 0, CONFIG)[1]["critic/target"]

    actor = state.actor.replace(parameters=louder)
    assert target(state.replace(actor=actor)) == target(state)
    assert target(state.replace(average_actor=louder)) != target(state)


@pytest.mark.learn
def test_more_actions_in_the_backup_raise_the_target() -> None:
    state, batch = fresh(CONFIG), reference.transitions(size=64)
    one, ten = (
        update(state, batch, KEY, 0, dataclasses.replace(CONFIG, max_q_backup=number))[1][
            "critic/target"
        ]
        for number in (1, 10)
    )
    assert ten > one


@pytest.mark.learn
def test_value_reaches_the_policy_through_all_steps() -> None:
    config = dataclasses.replace(CONFIG, average_from=10**9)
    state, batch = fresh(config), reference.transitions()

    def gradient(improvement: Any, weight: float) -> Any:
        changed = dataclasses.replace(config, improvement=improvement, value_weight=weight)
        loss = lambda actor: dql.actor_loss(actor, state, batch, KEY, changed)[0]  # noqa: E731
        slope = jax.jit(jax.grad(loss))(state.actor.parameters)
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(slope)])

    chain, step = (gradient(name, 1.0) - gradient(name, 0.0) for name in ("chain", "one_step"))
    assert np.abs(chain).max() > 1e-4
    assert np.abs(step).max() > 1e-4
    assert np.abs(chain - step).max() > 1e-4


@pytest.mark.learn
def test_acts_by_value_among_candidates() -> None:
    state, observation = fresh(CONFIG), reference.observed()[:1]
    sure = jax.tree.map(lambda x: 30.0 * np.asarray(x), state.target_critic)
    many = np.repeat(observation, 64, axis=0)
    keys = jax.random.split(KEY, 64)
    config = dataclasses.replace(CONFIG, num_candidates=16)

    def mean_value(target: Any, config: dql.Config) -> float:
        changed = state.replace(target_critic=target)
        act = jax.vmap(lambda key: dql.act(changed, observation[0], key, config, explore=False)[0])
        return float(jax.jit(lambda keys: sure(many, act(keys)).min(axis=0).mean())(keys))

    flat = jax.tree.map(np.zeros_like, state.target_critic)
    assert mean_value(sure, config) > mean_value(flat, config) + 0.1
    weightless, light = (
        dataclasses.replace(config, inverse_temperature=beta) for beta in (0.0, 1e-3)
    )
    np.testing.assert_allclose(mean_value(sure, weightless), mean_value(flat, config), rtol=1e-5)
    assert mean_value(flat, config) < mean_value(sure, light) < mean_value(sure, config)
    alone = dataclasses.replace(config, num_candidates=1)
    np.testing.assert_allclose(mean_value(sure, alone), mean_value(flat, alone), rtol=1e-5)


def test_acts_by_the_policy_itself_or_by_its_average() -> None:
    state, observation = fresh(CONFIG), reference.observed()
    stays = state.replace(actor=jax.tree.map(np.zeros_like, state.actor))

    def moves(average_acts: bool) -> float:
        config = dataclasses.replace(CONFIG, num_candidates=1, average_acts=average_acts)
        action, other = (act(x, observation, KEY, config, explore=False)[0] for x in (state, stays))
        return float(np.abs(action - other).max())

    assert moves(average_acts=True) == 0.0
    assert moves(average_acts=False) > 1e-3


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)
