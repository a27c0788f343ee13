"""Stream Q against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import stream_q, stream_sarsa
from tests.agents import streaming

SPEC = EnvSpec("test/Example-v0", (3,), 4, discrete=True)
CONFIG = stream_q.Config(hidden=(8, 8), initialisation="torch")
KEY = jax.random.key(0)

act = jax.jit(stream_q.act, static_argnames="explore")
update = jax.jit(stream_q.update)


def example() -> Any:
    stream = streaming.transitions(0, 5, SPEC, greedy=np.ones(5, np.bool_))
    return SPEC, CONFIG, streaming.first(stream)


def test_a_stream_equals_the_paper() -> None:
    stream = streaming.transitions(0, 30, SPEC, greedy=np.arange(30) % 4 != 3)
    streaming.assert_equals(stream_q, SPEC, CONFIG, stream)


def test_credit_ends_where_an_action_was_not_greedy() -> None:
    state = streaming.state(stream_q, SPEC, CONFIG)
    for greedy in (True, False):
        row = example()[2].replace(extras={"greedy": jnp.asarray(greedy)})
        after, _ = update(state, row, KEY, jnp.zeros((), jnp.int32), CONFIG)
        trace = jax.tree.leaves(after.critic.optimiser_state.trace)
        assert any(np.any(leaf) for leaf in trace) == greedy


def test_explores_less_and_less() -> None:
    config = dataclasses.replace(CONFIG, epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100.0)
    state = streaming.state(stream_q, SPEC, config)
    observation = jnp.ones((20_000, 3))
    best = act(state, np.ones(3, np.float32), KEY, config, explore=False)[0]
    for steps, share in ((0, 0.8), (50, 0.5), (100, 0.2), (1_000, 0.2)):
        action, extras = act(
            state.replace(steps=jnp.asarray(steps)), observation, KEY, config, explore=True
        )
        # A uniform action that is the greedy one counts as greedy.
        np.testing.assert_allclose((action != best).mean(), share * 3 / 4, atol=0.02)
        np.testing.assert_array_equal(extras["greedy"], action == best)


def test_pictures_need_convolutions() -> None:
    spec = EnvSpec("test/Pictures-v0", (10, 10, 4), 3, discrete=True)
    with pytest.raises(ValueError, match=r"^observations have shape \(10, 10, 4\): give conv"):
        stream_q.check(spec, CONFIG)
    config = dataclasses.replace(CONFIG, convolutions=((16, 3, 1),), hidden=(8,))
    stream_q.check(spec, config)
    state = jax.eval_shape(lambda key: stream_q.init(key, spec, config), KEY)
    chosen, _ = jax.eval_shape(
        lambda state: act(state, jnp.ones((2, 10, 10, 4)), KEY, config, explore=False), state
    )
    assert chosen.shape == (2,)
    message = r"^--config\.convolutions 16 11 1 do not fit a picture 10 wide\.$"
    with pytest.raises(ValueError, match=message):
        stream_q.check(spec, dataclasses.replace(config, convolutions=((16, 11, 1),)))


@pytest.mark.parametrize("module", [stream_q, stream_sarsa])
def test_refuses_continuous_actions(module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    message = (
        rf"^agent '{name}' chooses among discrete actions, those of 'Pendulum-v1' are continuous\. "
        r"Use: rljax train stream_ac --env Pendulum-v1, or choose an environment such as "
        r"CartPole-v1\.$"
    )
    with pytest.raises(ValueError, match=message):
        module.check(EnvSpec("Pendulum-v1", (3,), 1), module.Config())
