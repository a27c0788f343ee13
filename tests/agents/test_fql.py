"""FQL against float64 NumPy written from the paper, its gradients by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rljax.agent import Transition
from rljax.agents import fql
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SIZES, SPEC

CONFIG = fql.Config(**SIZES, activation="relu", layer_norm=False, flow_steps=3)
PROBE = {"layer_norm": False}
POLICY_IS_A_DRAW = True  # also without exploring


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def draws(key: jax.Array, batch: Transition) -> dict[str, np.ndarray]:
    """The random numbers of an update, as the agent draws them."""
    key_critic, key_actor = jax.random.split(key)
    key_flow, key_policy = jax.random.split(key_actor)
    key_noise, key_time = jax.random.split(key_flow)
    drawn = {
        name: jax.random.normal(each, batch.action.shape)
        for name, each in (("target", key_critic), ("flow", key_noise), ("policy", key_policy))
    }
    drawn["time"] = jax.random.uniform(key_time, batch.reward.shape)
    return {name: np.asarray(x, np.float64) for name, x in drawn.items()}


def fields(actor: Any) -> list[Any]:
    """The parameters of the flow and of the policy."""
    return [reference.field(x) for x in (actor.parameters.flow, actor.parameters.one_step)]


class Reference(value_learning.Networks):
    """Equations 4, 7 and 8 of arXiv:2502.02538."""

    def __init__(self, state: fql.State, config: fql.Config) -> None:
        super().__init__(state, config, actor=fields)

    def values(self, critics: list[Any], observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Q(s, clip(a)) [C, B]."""
        action = np.clip(action, -1.0, 1.0)
        return np.stack([reference.value(critic, observation, action)[0] for critic in critics])

    def flow(self, velocity: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Where a velocity leads from noise [B, A]."""
        action, steps = noise, self.config.flow_steps
        for i in range(steps):
            time = np.full(len(noise), i / steps)
            action = action + reference.of_field(velocity, action, observation, time) / steps
        return np.clip(action, -1.0, 1.0)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, drawn = self.config, draws(key, batch)
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        old_actor, old_critics = self.actor, self.critics

        next_action = reference.of_field(old_actor[1], drawn["target"], successor)
        q = self.values(self.targets, successor, next_action)
        q = q.mean(axis=0) if config.target == "mean" else q.min(axis=0)
        y = reward + config.discount * alive * q
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.move_critics(reference.zip_map(lambda x: x / len(self.critics), gradient))
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
            rest = config.distillation_weight * terms["actor/distillation"]
            rest -= terms["actor/q"] / sizes[0]
            return terms | {"actor/loss": terms["actor/flow"] + rest}

        metrics |= parts(self.actor)
        gradient = reference.differences(lambda actor: parts(actor)["actor/loss"], self.actor)
        self.actor = self.actor_adam.step(self.actor, gradient)
        return metrics


CASES = {
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
    """Some actions leave their bounds."""
    state = reference.state(fql, SPEC, config)
    larger = jax.tree.map(lambda x: 1.7 * x, state.actor.parameters)
    return state.replace(actor=state.actor.replace(parameters=larger))


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    value_learning.assert_updates_equal(update, fresh(config), config, Reference, steps=3)


def test_the_cases_clip_some_and_not_all() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    noise = draws(KEY, batch)["policy"]
    action = reference.of_field(fields(state.actor)[1], noise, np.asarray(batch.observation))
    assert 0.0 < (np.abs(action) > 1.0).mean() < 1.0


def test_flow_learns_nothing_from_the_critics() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    louder = jax.tree.map(lambda x: 3.0 * x, state.critic.parameters)
    critics = (state.critic, state.critic.replace(parameters=louder))
    states = [update(state.replace(critic=x), batch, KEY, 0, CONFIG)[0] for x in critics]
    new, other = (x.actor.parameters for x in states)
    assert trees.equal(new.flow, other.flow)
    assert not trees.equal(new.one_step, other.one_step)


def test_the_weight_holds_the_policy_near_the_flow() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    config = dataclasses.replace(CONFIG, distillation_weight=1e4)
    for step in range(300):
        state, metrics = update(state, batch, KEY, step, config)
    assert metrics["actor/distillation"] < 0.02


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_acts_by_one_step() -> None:
    state, observation = fresh(CONFIG), reference.observed()
    noise = np.asarray(jax.random.normal(KEY, (12, 2)), np.float64)
    expected = reference.of_field(fields(state.actor)[1], noise, observation)
    for explore in (False, True):
        action, extras, memory = act(state, observation, KEY, CONFIG, explore=explore)
        trees.assert_close(action, np.clip(expected, -1.0, 1.0))
        assert extras == {}
        assert memory is None
