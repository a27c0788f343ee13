"""HIQL and OTA against float64 NumPy written from the authors' code and the papers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import hiql
from tests.agents import chain, reference, trees, value_learning
from tests.agents.chain import KEY, SPEC

SIZES: Any = {"hidden": (8, 8), "batch_size": 5, "target_rate": 0.1, "representation_size": 4}
CONFIG = hiql.Config(
    **SIZES, learning_rate=1e-2, option_steps=2, activation="relu", layer_norm=False
)
TARGETS_LAG = True  # they follow the networks from before a step


def transitions(seed: int = 0) -> Transition:
    """Options end in states of their own."""
    names = ("subgoal_observation", "target_observation", "option_observation")
    batch = chain.transitions(seed, *names)
    generator = np.random.default_rng(seed + 200)
    goal = batch.extras["option_observation"][:, 3:]
    successor = generator.normal(size=(5, 3)).astype(np.float32)
    reached = generator.random(5) < 0.4
    options = {
        "option_next_observation": jnp.concatenate([successor, goal], axis=1),
        "option_reward": reached.astype(np.float32) - 1.0,
        "option_terminated": reached,
    }
    return batch.replace(extras={**batch.extras, **options})


def example() -> Any:
    return SPEC, CONFIG, transitions()


def on_sphere(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True) * np.sqrt(x.shape[-1])


def values(phi: Any, heads: Any, s: np.ndarray, g: np.ndarray) -> np.ndarray:
    """V(s, z(s, g)) [C, B]: a state, and phi of both on a sphere."""
    z = on_sphere(reference.forward(phi, np.concatenate([s, g], axis=1))[0])
    inputs = np.concatenate([s, z], axis=1)
    return np.stack([reference.forward(head, inputs)[0][:, 0] for head in heads])


class Reference:
    """Every loss is of the networks before the update, as in the authors' hiql.py.

    Targets have phi of the networks. OTA's high value learns as the other, from transitions of
    options, and is the high actor's alone.
    """

    def __init__(self, state: hiql.State, config: hiql.Config) -> None:
        self.config, learnt = config, state.networks.parameters
        self.has_options = learnt.high_value is not None
        self.phi = reference.mlp(learnt.representation)
        self.heads, self.targets = (
            [reference.critics(learnt.value)],
            [reference.critics(state.target_value)],
        )
        if self.has_options:
            self.heads.append(reference.critics(learnt.high_value))
            self.targets.append(reference.critics(state.target_high_value))
        self.high, self.low = map(reference.mlp, (learnt.high_actor, learnt.low_actor))
        self.adams = [reference.Adam(config.learning_rate) for _ in range(3)]

    def update(self, batch: Transition) -> dict[str, float]:
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        extras = {name: np.asarray(x, np.float64) for name, x in batch.extras.items()}
        rows = [(observation, successor, reward, alive)]
        if self.has_options:
            parts = ("observation", "next_observation", "reward", "terminated")
            *others, ended = (extras[f"option_{part}"] for part in parts)
            rows.append((*others, 1.0 - ended))
        metrics: dict[str, float] = {}
        weighed = [
            self.target(targets, *row) for targets, row in zip(self.targets, rows, strict=True)
        ]

        def loss(parameters: Any) -> float:
            """sum_c mean |tau - 1(u < 0)| (y_c - V_c)^2, of values and of options."""
            phi, heads = parameters
            total = 0.0
            for part, (y, weight), row in zip(heads, weighed, rows, strict=True):
                v = values(phi, part, row[0][:, :3], row[0][:, 3:])
                total += (weight * (y - v) ** 2).mean(axis=1).sum()
            return total

        for i, name in enumerate(["value", "high_value"][: len(rows)]):
            y, weight = weighed[i]
            v = values(self.phi, self.heads[i], rows[i][0][:, :3], rows[i][0][:, 3:])
            metrics |= {f"{name}/v": v.mean(), f"{name}/target": y.mean()}
            metrics[f"{name}/loss"] = (weight * (y - v) ** 2).mean(axis=1).sum()
        gradient = reference.differences(loss, [self.phi, self.heads])
        metrics |= self.improve(action, successor[:, :3], extras)
        rate = self.config.target_rate
        self.targets = [
            reference.towards(x, y, rate) for x, y in zip(self.heads, self.targets, strict=True)
        ]
        self.phi, self.heads = self.adams[0].step([self.phi, self.heads], gradient)
        return metrics

    def target(
        self, targets: Any, observation: Any, successor: Any, reward: Any, alive: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """y_c [C, B] and |tau - 1(u < 0)| [B], u = min_c y_c - mean_c V'_c(s, g)."""
        goal, tau = observation[:, 3:], self.config.expectile
        later = values(self.phi, targets, successor[:, :3], goal)
        y = reward + self.config.discount * alive * later
        u = y.min(axis=0) - values(self.phi, targets, observation[:, :3], goal).mean(axis=0)
        return y, np.where(u >= 0.0, tau, 1.0 - tau)

    def improve(
        self, action: np.ndarray, successor: np.ndarray, extras: dict[str, np.ndarray]
    ) -> dict[str, float]:
        """Both actors imitate, weighted by gains of value on the way to subgoal and goal."""
        config, s = self.config, extras["actor_observation"][:, :3]
        x, h, w = (extras[f"{name}_observation"][:, 3:] for name in ("subgoal", "actor", "target"))

        def representation(goal: np.ndarray) -> np.ndarray:
            pair = np.concatenate([s, goal], axis=1)
            return on_sphere(reference.forward(self.phi, pair)[0])

        def gain(heads: Any, later: np.ndarray, goal: np.ndarray) -> np.ndarray:
            pair = (values(self.phi, heads, y, goal).mean(axis=0) for y in (later, s))
            later_v, v = pair
            return later_v - v

        low, gradient = self.imitate(
            self.low,
            np.concatenate([s, representation(x)], axis=1),
            action,
            gain(self.heads[0], successor, x),
            config.low_inverse_temperature,
        )
        self.low = self.adams[1].step(self.low, gradient)
        high, gradient = self.imitate(
            self.high,
            np.concatenate([s, h], axis=1),
            representation(w),
            gain(self.heads[-1], w, h),
            config.high_inverse_temperature,
        )
        self.high = self.adams[2].step(self.high, gradient)
        metrics = {f"low_actor/{name}": x for name, x in low.items()}
        return metrics | {f"high_actor/{name}": x for name, x in high.items()}

    def imitate(
        self, actor: Any, inputs: np.ndarray, target: np.ndarray, advantage: np.ndarray, beta: Any
    ) -> tuple[dict[str, float], Any]:
        """mean w (|a - m|^2 / 2 + log(2 pi) A / 2), dm = w (m - a) / B."""
        weight = np.minimum(np.exp(beta * advantage), self.config.max_weight)
        mean, rows = reference.forward(actor, inputs)
        distance = 0.5 * np.square(mean - target).sum(axis=1)
        distance += 0.5 * np.log(2.0 * np.pi) * target.shape[1]
        gradient = weight[:, None] * (mean - target) / len(target)
        metrics = {"loss": (weight * distance).mean(), "advantage": advantage.mean()}
        metrics["weight"] = weight.mean()
        return metrics, reference.backward(actor, rows, gradient)[0]


CASES = {
    "OTA": {},
    "HIQL": {"option_steps": 1, "expectile": 0.4},
    "bounded weights, three values": {"max_weight": 1.05, "num_values": 3},
}

update = jax.jit(hiql.update)
act = jax.jit(hiql.act, static_argnames="explore")


def fresh(config: hiql.Config) -> hiql.State:
    return reference.state(hiql, SPEC, config)


@reference.cases(CASES, quick=2)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch = transitions(step)
        state, metrics = update(state, batch, KEY, step, config)
        reference.assert_metrics(metrics, expected.update(batch))
    learnt = state.networks.parameters
    reference.assert_same(reference.mlp(learnt.representation), expected.phi, "phi")
    found = [(learnt.value, state.target_value), (learnt.high_value, state.target_high_value)]
    pairs = zip(found, zip(expected.heads, expected.targets, strict=True), strict=False)
    for networks, others in pairs:
        for network, other in zip(networks, others, strict=True):
            reference.assert_same(reference.critics(network), other, "values")
    reference.assert_same(reference.mlp(learnt.low_actor), expected.low, "low actor")
    reference.assert_same(reference.mlp(learnt.high_actor), expected.high, "high actor")


def test_acts_through_a_subgoal_on_the_sphere() -> None:
    state, observation = fresh(CONFIG), transitions(9).observation
    learnt, seen = state.networks.parameters, np.asarray(observation, np.float64)
    high, low = map(reference.mlp, (learnt.high_actor, learnt.low_actor))

    def mean(noise: Any) -> np.ndarray:
        z = on_sphere(reference.forward(high, seen)[0] + noise)
        return reference.forward(low, np.concatenate([seen[:, :3], z], axis=1))[0]

    key_high, key_low = jax.random.split(KEY)
    noise = np.asarray(jax.random.normal(key_high, (5, 4)))
    rest = np.asarray(jax.random.normal(key_low, (5, 2)))
    for explore, expected in ((False, mean(0.0)), (True, mean(noise) + rest)):
        action, _ = act(state, observation, KEY, CONFIG, explore=explore)
        np.testing.assert_allclose(action, np.clip(expected, -1.0, 1.0), rtol=1e-4, atol=1e-5)


def test_each_actor_has_the_values_of_its_level() -> None:
    state, batch = fresh(CONFIG), transitions()
    learnt = state.networks.parameters
    shifted = learnt.replace(high_value=jax.tree.map(lambda x: 2.0 * x, learnt.high_value))
    other = state.replace(networks=state.networks.replace(parameters=shifted))
    one, two = (update(x, batch, KEY, 0, CONFIG)[1] for x in (state, other))
    for name, same in (("low_actor", True), ("high_actor", False)):
        assert (one[f"{name}/advantage"] == two[f"{name}/advantage"]) == same, name


def test_the_low_actor_alone_leaves_the_representation_as_it_is() -> None:
    def loss(learnt: Any) -> Any:
        before = fresh(CONFIG).networks.parameters
        return hiql.low_actor_loss(learnt, before, transitions(), CONFIG)[0]

    gradient = jax.jit(jax.grad(loss))(fresh(CONFIG).networks.parameters)
    assert not any(np.any(x) for x in jax.tree.leaves(gradient.representation))
    assert all(np.any(x) for x in jax.tree.leaves(gradient.low_actor.params["output"]))


def test_without_options_there_is_one_value() -> None:
    config = dataclasses.replace(CONFIG, option_steps=1)
    state = jax.jit(hiql.init, static_argnums=1)(KEY, SPEC, config)
    assert state.networks.parameters.high_value is state.target_high_value is None
    assert trees.equal(state.networks.parameters.value, state.target_value)


@pytest.mark.learn
@pytest.mark.parametrize("option_steps", [1, 2])
def test_on_a_chain_subgoals_lead_to_goals_beyond_them(option_steps: int) -> None:
    """Subgoals are two steps away. Options of two steps make all goals within them alike."""
    changes = {
        "hidden": (64, 64),
        "batch_size": 128,
        "learning_rate": 1e-3,
        "discount": 0.9,
        "expectile": 0.9,
        "target_rate": 0.05,
        "subgoal_steps": 2,
        "option_steps": option_steps,
        "actor_goal_future": 0.5,
        "high_inverse_temperature": 10.0,
        "low_inverse_temperature": 10.0,
    }
    state = chain.learnt(hiql, changes, 2_000, steps=chain.LENGTH)
    chain.assert_leads_to_goals(hiql, state, nearest=1 + option_steps)
