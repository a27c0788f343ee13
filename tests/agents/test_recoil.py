"""ReCOIL against float64 NumPy written from its authors' code,
and what it learns from an expert and anybody.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition, check
from rljax.agents import recoil
from rljax.runs import records, run
from tests.agents import reference
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = recoil.Config(
    hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, value_lr=3e-2, target_rate=0.1
)
PLAIN = dataclasses.replace(CONFIG, layer_norm=False)  # as the reference's networks


def example() -> tuple[EnvSpec, recoil.Config, Transition]:
    """What the contract's tests run on: 4 rows of the mixture and 4 of the expert."""
    return (
        SPEC,
        dataclasses.replace(CONFIG, decay_steps=10.0, dropout=0.1),
        reference.transitions(size=8),
    )


class Reference:
    """ReCOIL in float64, in the order of the authors' code: the value, the actor, the critics."""

    def __init__(self, state: recoil.State, config: recoil.Config) -> None:
        self.config = config
        self.actor, self.value = reference.actor(state.actor), reference.mlp(state.value)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.actor_adam, self.critic_adam = (
            reference.Adam(config.actor_lr),
            reference.Adam(config.critic_lr),
        )
        self.value_adam = reference.Adam(config.value_lr)

    def value_loss(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """The part of L(V) for surpluses [B], and its slope in each."""
        config = self.config
        if config.value_loss == "expectile":
            weight = np.where(u > 0, config.expectile, 1 - config.expectile)
            return (weight * u**2).mean(), 2 * weight * u / u.size
        z = np.minimum(u / config.temperature, config.max_exponent)
        scale = np.exp(-max(z.max(), -1.0))
        free = u / config.temperature < config.max_exponent
        return ((np.exp(z) - z - 1) * scale).mean(), (
            np.exp(z) - 1
        ) * scale * free / config.temperature / u.size

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        """One update; its metrics."""
        config, size = self.config, len(batch.reward) // 2
        observation = np.asarray(batch.observation, np.float64)
        following = np.asarray(batch.next_observation, np.float64)[:size]
        action = np.asarray(batch.action, np.float64)
        ended = np.asarray(batch.terminated)[:size]
        mixture, done = observation[:size], action[:size]

        q = reference.smallest(self.targets, mixture, done)[0]
        v, inputs = reference.forward(self.value, observation)
        surplus = q - v[:size, 0]
        value_loss, slope = self.value_loss(surplus)
        change = np.concatenate([-slope, np.zeros(size)])
        gap = (v[:size] - v[size:]).mean()
        if config.value_loss == "expectile":
            value_loss += config.value_gap * gap
            change += config.value_gap / size * np.repeat([1.0, -1.0], size)
        self.value = self.value_adam.step(
            self.value, reference.backward(self.value, inputs, change[:, None])[0]
        )
        new_v, next_v = (reference.forward(self.value, x)[0][:, 0] for x in (mixture, following))

        weight = np.minimum(np.exp(config.inverse_temperature * (q - new_v)), config.max_weight)
        distance, gradient = reference.imitation(self.actor, mixture, done, weight, config, key)
        self.actor_adam.rate = reference.cosine(config.actor_lr, step, config.decay_steps)
        self.actor = self.actor_adam.step(self.actor, gradient)

        largest = config.expert_reward / (1 - config.discount)
        y = -config.expert_reward + config.discount * np.where(ended, -largest, next_v)
        # Of all 2 B rows: a mean over them is half of L(Q)'s sum.
        goal = np.concatenate([y, np.full(size, largest)])
        critic_loss, values, gradients = reference.squared_errors(
            self.critics, observation, action, goal
        )
        self.critics = self.critic_adam.step(self.critics, gradients)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return {
            "value/loss": value_loss,
            "value/v": v[:size].mean(),
            "value/expert_v": v[size:].mean(),
            "actor/loss": (weight * distance).mean(),
            "actor/advantage": (q - new_v).mean(),
            "actor/weight": weight.mean(),
            "critic/loss": critic_loss,
            "critic/q": values[:, :size].mean(),
            "critic/expert_q": values[:, size:].mean(),
        }


CASES: dict[str, dict[str, Any]] = {
    "reverse KL": {"temperature": 0.4, "max_exponent": 0.5, "discount": 0.9},
    "expectile, deterministic": {
        "value_loss": "expectile",
        "policy": "deterministic",
        "decay_steps": 3.0,
        "discount": 0.8,
    },
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(recoil.update)


@reference.cases(CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(PLAIN, **changes)
    state = reference.state(recoil, SPEC, config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step, 10), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.value), expected.value, "value")
    reference.assert_same(reference.actor(state.actor), expected.actor, "actor")


def test_the_expert_is_the_second_half_and_its_rewards_do_not_matter() -> None:
    batch = reference.transitions(0, 10)
    other = batch.replace(
        reward=batch.reward + 1.0, next_observation=batch.next_observation.at[5:].set(7.0)
    )
    state = reference.state(recoil, SPEC, PLAIN)
    results = [update(state, x, jax.random.key(0), 0, PLAIN) for x in (batch, other)]
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"discount": 1.0},
            r"^--config\.discount is 1, it must be finite and in \[0, 0\.9999\]\.$",
        ),
        (
            {"expectile": 0.4},
            r"^--config\.expectile is 0\.4, it must be finite and in \[0\.5, 0\.9999\]\.$",
        ),
        ({"expert_part": -1}, r"^--config\.expert-part is -1, it must be at least 0\.$"),
    ],
)
def test_refuses_numbers_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(recoil, SPEC, dataclasses.replace(CONFIG, **changes))


@pytest.mark.learn
def test_learns_from_an_expert_what_a_mixture_does_not_show(tmp_path: Path) -> None:
    """Defaults but for a batch of 128: near the expert's -1.3,
    where imitation of all earns what most of them do.
    """
    data, steps, returns = str(reach.demonstrations(tmp_path / "reach.npz")), 2_000, {}
    for agent in ("bc", "recoil"):
        out = tmp_path / agent
        env, config = f"{reach.__file__}:Reach", {"batch_size": 128}
        run.train(
            agent,
            env,
            steps,
            data=data,
            seeds=2,
            out=out,
            config=config,
            eval_every=steps,
            eval_episodes=40,
        )
        last = [line for line in records.read(out, "evaluations") if line["step"] == steps]
        returns[agent] = [np.mean(line["returns"]) for line in last]
    assert min(returns["recoil"]) > -4.0
    assert max(returns["bc"]) < -6.0


def test_data_without_the_expert_are_refused(tmp_path: Path) -> None:
    joined = reach.demonstrations(tmp_path / "joined.npz", 1, 2)
    with pytest.raises(
        ValueError, match=r"^--config\.expert-part is 2, and the data have the parts 0, 1\.$"
    ):
        run.train(
            "recoil", "none", 4, data=str(joined), out=tmp_path / "run", config={"expert_part": 2}
        )
    plain = str(reach.journeys(tmp_path / "plain.npz", 4))
    with pytest.raises(
        ValueError,
        match=r"^agent 'recoil' tells joined data sets apart by the signal 'part', and '.*",
    ):
        run.train("recoil", "none", 4, data=plain, out=tmp_path / "run")
