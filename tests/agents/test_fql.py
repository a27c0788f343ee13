"""FQL against float64 NumPy written from the paper, its gradients by differences,
and what the paper promises.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import fql
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "batch_size": 5,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "target_rate": 0.1,
}
CONFIG = fql.Config(**SIZES, activation="relu", layer_norm=False, flow_steps=3)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {"layer_norm": False}
POLICY_IS_A_DRAW = True  # also without exploring


def example() -> tuple[EnvSpec, fql.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


def draws(key: jax.Array, batch: Transition) -> dict[str, np.ndarray]:
    """The random numbers of an update, as the agent draws them:
    the noise of the target, the flow and the policy.
    """
    key_critic, key_actor = jax.random.split(key)
    key_flow, key_policy = jax.random.split(key_actor)
    key_noise, key_time = jax.random.split(key_flow)
    drawn = {
        name: jax.random.normal(each, batch.action.shape)
        for name, each in (("target", key_critic), ("flow", key_noise), ("policy", key_policy))
    }
    drawn["time"] = jax.random.uniform(key_time, batch.reward.shape)
    return {name: np.asarray(x, np.float64) for name, x in drawn.items()}


def fields(state: fql.State) -> list[Any]:
    """The parameters of the flow and of the policy."""
    actor = state.actor.parameters
    return [reference.field(actor.flow), reference.field(actor.one_step)]


class Reference:
    """FQL in float64, from equations 4, 7 and 8 of arXiv:2502.02538."""

    def __init__(self, state: fql.State, config: fql.Config) -> None:
        self.config = config
        self.actor = fields(state)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.actor_adam, self.critic_adam = (
            reference.Adam(config.actor_lr),
            reference.Adam(config.critic_lr),
        )

    def values(self, critics: list[Any], observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Q(s, clip(a)) [C, B]."""
        return np.stack(
            [
                reference.value(critic, observation, np.clip(action, -1.0, 1.0))[0]
                for critic in critics
            ]
        )

    def flow(self, velocity: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Where a velocity leads from noise [B, A]."""
        action, steps = noise, self.config.flow_steps
        for i in range(steps):
            action = (
                action
                + reference.of_field(velocity, action, observation, np.full(len(noise), i / steps))
                / steps
            )
        return np.clip(action, -1.0, 1.0)

    def update(self, batch: Transition, drawn: dict[str, np.ndarray]) -> dict[str, float]:
        """One update, and its metrics."""
        config = self.config
        observation = np.asarray(batch.observation, np.float64)
        successor = np.asarray(batch.next_observation, np.float64)
        action = np.asarray(batch.action, np.float64)
        old_actor, old_critics = self.actor, self.critics

        q = self.values(
            self.targets, successor, reference.of_field(old_actor[1], drawn["target"], successor)
        )
        q = q.mean(axis=0) if config.target == "mean" else q.min(axis=0)
        y = np.asarray(batch.reward) + config.discount * (1.0 - np.asarray(batch.terminated)) * q
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        gradient = reference.zip_map(lambda x: x / len(self.critics), gradient)
        self.critics = self.critic_adam.step(self.critics, gradient)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        metrics = {
            "critic/loss": loss / len(self.critics),
            "critic/q": q.mean(),
            "critic/target": y.mean(),
        }

        noise, time = drawn["flow"], drawn["time"]
        between = (1.0 - time[:, None]) * noise + time[:, None] * action
        teacher = self.flow(old_actor[0], observation, drawn["policy"])
        sizes: list[float] = []  # of Q, at the actor as it is

        def parts(actor: Any) -> dict[str, float]:
            straight = reference.of_field(actor[0], between, observation, time)
            sample = reference.of_field(actor[1], drawn["policy"], observation)
            q = self.values(old_critics, observation, sample).mean(axis=0)
            sizes.append(np.abs(q).mean() if config.normalise_value else 1.0)
            terms = {
                "actor/flow": np.square(straight - (action - noise)).mean(),
                "actor/distillation": np.square(sample - teacher).mean(),
                "actor/q": q.mean(),
            }
            rest = (
                config.distillation_weight * terms["actor/distillation"]
                - terms["actor/q"] / sizes[0]
            )
            return terms | {"actor/loss": terms["actor/flow"] + rest}

        metrics |= parts(self.actor)
        gradient = reference.differences(lambda actor: parts(actor)["actor/loss"], self.actor)
        self.actor = self.actor_adam.step(self.actor, gradient)
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "smallest critic, normalised value": {
        "target": "min",
        "normalise_value": True,
        "distillation_weight": 0.3,
    },
    "three critics, one step": {
        "num_critics": 3,
        "flow_steps": 1,
        "discount": 0.5,
    },
}

update = jax.jit(fql.update)
act = jax.jit(fql.act, static_argnames="explore")


def fresh(config: fql.Config) -> fql.State:
    """A State to start from, some of whose actions leave their bounds."""
    state = reference.state(fql, SPEC, config)
    larger = jax.tree.map(lambda x: 1.7 * x, state.actor.parameters)
    return state.replace(actor=state.actor.replace(parameters=larger))


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, draws(key, batch)))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(fields(state), expected.actor, "actor")


def test_the_cases_clip_some_and_not_all() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    noise = draws(KEY, batch)["policy"]
    action = reference.of_field(fields(state)[1], noise, np.asarray(batch.observation))
    assert 0.0 < (np.abs(action) > 1.0).mean() < 1.0


def test_flow_learns_nothing_from_the_critics() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    louder = jax.tree.map(lambda x: 3.0 * x, state.critic.parameters)
    critics = (state.critic, state.critic.replace(parameters=louder))
    states = [update(state.replace(critic=x), batch, KEY, 0, CONFIG)[0] for x in critics]
    new, other = (x.actor.parameters for x in states)
    jax.tree.map(np.testing.assert_array_equal, new.flow, other.flow)
    assert any(
        np.any(x != y)
        for x, y in zip(*map(jax.tree.leaves, (new.one_step, other.one_step)), strict=True)
    )


def test_the_weight_holds_the_policy_near_the_flow() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    config = dataclasses.replace(CONFIG, distillation_weight=1e4)
    for step in range(300):
        state, metrics = update(state, batch, KEY, step, config)
    assert metrics["actor/distillation"] < 0.02


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return update(state, batch.replace(**flags), KEY, 0, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_acts_by_one_step() -> None:
    state, observation = fresh(CONFIG), reference.observed()
    noise = np.asarray(jax.random.normal(KEY, (12, 2)), np.float64)
    expected = reference.of_field(fields(state)[1], noise, observation)
    for explore in (False, True):
        action, extras = act(state, observation, KEY, CONFIG, explore=explore)
        np.testing.assert_allclose(action, np.clip(expected, -1.0, 1.0), rtol=1e-4, atol=1e-5)
        assert extras == {}
