"""Batches with goals, and a chain of states on which agents with goals learn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.learning import configuration
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (6,), 2)
KEY = jax.random.key(0)
LENGTH = 6  # of the chain
ONE_HOT = np.eye(LENGTH, dtype=np.float32)
PLACE, GOAL = (x.ravel() for x in np.mgrid[:LENGTH, :LENGTH])
PAIRS = np.concatenate([ONE_HOT[PLACE], ONE_HOT[GOAL]], axis=1)  # all states with all goals


# Half of the values' goals are the state itself, the others and the actor's any state.
SHARE, DISCOUNT, EXPECTILE = 0.5, 0.9, 0.9
SETTINGS: dict[str, Any] = {
    "hidden": (64, 64),
    "batch_size": 128,
    "actor_lr": 1e-3,
    "value_lr": 1e-3,
    "discount": DISCOUNT,
    "expectile": EXPECTILE,
    "target_rate": 0.05,
    "value_goal_current": SHARE,
    "value_goal_future": 0.0,
    "actor_goal_future": 0.0,
}


def transitions(seed: int = 0, *others: str) -> Transition:
    """Three numbers of a state, and three of a goal; `others` are more extras with another goal."""
    batch = reference.transitions(seed, observations=6)
    generator = np.random.default_rng(seed + 100)

    def seen() -> Any:
        goal = generator.normal(size=(5, 3)).astype(np.float32)
        return jnp.concatenate([batch.observation[:, :3], goal], axis=1)

    return batch.replace(extras={name: seen() for name in ("actor_observation", *others)})


def data(steps: int = 1) -> Transition:
    """States are one-hot, and the ends are walls. Of some steps from each state, a trajectory goes
    to the left, and one to the right.
    """
    action = np.repeat(np.tile([-1.0, 1.0], LENGTH), steps)
    walked = np.tile(np.arange(steps), 2 * LENGTH)
    start = np.repeat(np.repeat(np.arange(LENGTH), 2), steps)
    place = np.clip(start + walked * action, 0, LENGTH - 1).astype(int)
    after = np.clip(place + action, 0, LENGTH - 1).astype(int)
    never, last = np.zeros(len(action), bool), walked == steps - 1
    actions, nothing = action[:, None].astype(np.float32), np.zeros(len(action), np.float32)
    columns: Any = (ONE_HOT[place], actions, nothing, never, last, ONE_HOT[after])
    return Transition(*columns)


def learnt(agent: Any, changes: Any, updates: int, steps: int = 1) -> Any:
    """The State of an agent with changed defaults after some updates."""
    config = configuration.stack(configuration.replace(agent.Config(), changes, "test"), 1)
    learner = Learner(agent, EnvSpec("chain", (2 * LENGTH,), 1), 1)
    driver = OfflineDriver(learner, agent.experience(config).prepare(data(steps)), config)
    driver.start([0])
    driver.advance(updates)
    return jax.tree.map(lambda x: x[0], driver.agent_state.state)


def table() -> np.ndarray:
    """V(s, g), [LENGTH, LENGTH], to which the updates lead.

    A row's goal is itself with probability p = SHARE + (1 - SHARE) / rows, and one more row has the
    same state: where s = g, the part p / (p + (1 - SHARE) / rows) is terminal with reward 0, all
    else -1 + gamma V(s', g). V is the expectile of both steps' values, a > b: (tau a + (1 - tau)
    b) / 1, since tau (a - v) = (1 - tau) (v - b).
    """
    rows = 2 * LENGTH
    itself, twin = SHARE + (1.0 - SHARE) / rows, (1.0 - SHARE) / rows
    ends = itself / (itself + twin)
    v, place = np.zeros((LENGTH, LENGTH)), np.arange(LENGTH)
    for _ in range(500):
        successors = np.clip([place - 1, place + 1], 0, LENGTH - 1)
        q = -1.0 + DISCOUNT * v[successors]
        q[:, place, place] *= 1.0 - ends
        v = EXPECTILE * q.max(axis=0) + (1.0 - EXPECTILE) * q.min(axis=0)
    return v


def assert_values(value: Any) -> None:
    """V [LENGTH^2] of all pairs, by `SETTINGS` and trajectories of one step."""
    values = np.asarray(value).reshape(LENGTH, LENGTH)
    np.testing.assert_allclose(values, table(), atol=0.25)


def assert_leads_to_goals(agent: Any, state: Any, nearest: int = 1) -> None:
    """From every place the policy steps towards every one that is as far or further."""
    action = np.asarray(agent.act(state, PAIRS, KEY, agent.Config(), explore=False)[0])[:, 0]
    apart = np.abs(PLACE - GOAL) >= nearest
    np.testing.assert_array_equal(np.sign(action[apart]), np.sign(GOAL - PLACE)[apart])
