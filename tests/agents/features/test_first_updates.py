"""The first updates of streaming agents equal those by PyTorch's rules, the authors'.

With few inputs the sparse initialisation leaves the first layer all 0: the slope of the
activation at exactly 0 decides these updates.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import stream_ac, stream_q, stream_td
from tests.agents import streaming

UPDATES, ACTIONS = 4, 2
CONTINUOUS = EnvSpec("test/Example-v0", (3,), ACTIONS)
DISCRETE = EnvSpec("test/Discrete-v0", (3,), ACTIONS, discrete=True)


def begun(module: Any, spec: EnvSpec, **extras: Any) -> tuple[Any, Any, Any, list[Any]]:
    """The agent's own first State, and the States after each transition."""
    config, stream = (
        module.Config(hidden=(32, 32)),
        streaming.transitions(0, UPDATES, spec, **extras),
    )
    state = jax.jit(lambda key: module.init(key, spec, config))(jax.random.key(0))
    assert not np.any(state.critic.parameters.params["hidden_0"]["kernel"])
    return state, config, stream, streaming.follow(module, state, stream, config)


@pytest.mark.learn
@pytest.mark.parametrize(
    ("module", "spec"), [(stream_td, CONTINUOUS), (stream_q, DISCRETE), (stream_ac, CONTINUOUS)]
)
def test_first_updates_are_those_of_pytorch(module: Any, spec: EnvSpec) -> None:
    generator = np.random.default_rng(1)
    given: dict[str, Any] = {"raw": generator.normal(size=(UPDATES, ACTIONS)).astype(np.float32)}
    if module is stream_q:
        given = {"greedy": np.ones(UPDATES, np.bool_)}
    state, config, stream, found = begun(module, spec, **given)
    critic = streaming.Exact(state.critic)
    optimiser = streaming.ObGD(critic, config.critic_kappa, config)
    actor = streaming.Exact(state.actor) if module is stream_ac else None
    actor_optimiser = None if actor is None else streaming.ObGD(actor, config.actor_kappa, config)
    rows = streaming.rows(stream, config)
    for t, (observation, action, reward, following, done, row) in enumerate(rows):
        chosen = int(action) if module is stream_q else 0
        target = reward + config.discount * (1 - done) * critic(following).max()
        error = target - critic(observation)[chosen]
        if actor is not None and actor_optimiser is not None:
            mean, spread = np.split(actor(observation), 2)
            std = np.log1p(np.exp(spread))
            distance = row.extras["raw"] - mean
            by_std = distance**2 / std**3 - 1 / std + config.entropy_cost * np.sign(error) / std
            slope = np.concatenate([distance / std**2, by_std / (1 + np.exp(-spread))])
            actor_optimiser.move(actor.gradient(observation, slope), error, done)
            streaming.assert_network(found[t].actor, actor)
        slope = np.eye(ACTIONS if module is stream_q else 1)[chosen]
        optimiser.move(critic.gradient(observation, slope), error, done)
        streaming.assert_network(found[t].critic, critic)
