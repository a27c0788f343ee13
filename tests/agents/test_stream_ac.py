"""Stream AC against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import stream_ac
from tests.agents import streaming, trees

SPEC = EnvSpec("test/Example-v0", (3,), 2)
DISCRETE = EnvSpec("test/Discrete-v0", (3,), 4, discrete=True)
CONFIG = stream_ac.Config(hidden=(8, 8), initialisation="torch")
KEY = jax.random.key(0)

update = jax.jit(stream_ac.update)


def fresh(config: stream_ac.Config) -> stream_ac.State:
    return jax.jit(lambda key: stream_ac.init(key, SPEC, config))(KEY)


def example() -> Any:
    raw = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    return SPEC, CONFIG, streaming.first(streaming.transitions(0, 5, SPEC, raw=raw))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0.0)


def log_prob_and_entropy(output: np.ndarray, action: Any, discrete: bool) -> tuple[float, float]:
    """log pi(a|s) and H(pi(.|s)) of a network's output."""
    if discrete:
        log_softmax = output - np.log(np.exp(output).sum())
        return log_softmax[action], -(np.exp(log_softmax) * log_softmax).sum()
    mean, std = output[: output.size // 2], softplus(output[output.size // 2 :])
    density = -0.5 * np.square((action - mean) / std) - np.log(std) - 0.5 * np.log(2 * np.pi)
    return density.sum(), (0.5 + 0.5 * np.log(2 * np.pi) + np.log(std)).sum()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("discrete", [False, True])
def test_a_stream_equals_the_paper(discrete: bool) -> None:
    spec, config = DISCRETE if discrete else SPEC, dataclasses.replace(CONFIG, entropy_cost=0.1)
    stream = streaming.transitions(0, 30, spec)
    raw: Any = (
        stream.action
        if discrete
        else np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
    )
    stream = stream.replace(extras={"raw": raw})
    state = streaming.state(stream_ac, spec, config)
    critic, actor = streaming.Network(state.critic), streaming.Network(state.actor)
    critic_optimiser = streaming.ObGD(critic, config.critic_kappa, config)
    actor_optimiser = streaming.ObGD(actor, config.actor_kappa, config)
    found = streaming.follow(stream_ac, state, stream, config)
    rows = streaming.rows(stream, config)
    for t, (observation, _, reward, following, done, row) in enumerate(rows):
        target = reward + config.discount * (1 - done) * critic(following)
        error = float((target - critic(observation))[0])

        def gain(
            parameters: Any, x: Any = observation, row: Any = row, error: float = error
        ) -> float:
            output = actor(x, parameters)
            log_prob, entropy = log_prob_and_entropy(output, row.extras["raw"], discrete)
            return log_prob + config.entropy_cost * np.sign(error) * entropy

        actor_optimiser.step(gain, error, done)
        critic_optimiser.step(
            lambda parameters, x=observation: critic(x, parameters)[0], error, done
        )
        streaming.assert_network(found[t].actor, actor)
        streaming.assert_network(found[t].critic, critic)
    assert np.any(stream.terminated)
    assert np.any(stream.truncated)


@pytest.mark.slow
def test_without_traces_it_is_one_step_actor_critic() -> None:
    config = dataclasses.replace(
        CONFIG, trace_decay=0.0, entropy_cost=0.0, learning_rate=1e-3, time_feature=False
    )
    row = example()[2]
    state = fresh(config)
    stream = jax.tree.map(lambda x: jnp.stack([x] * 3), row)
    agents = streaming.follow_agent(stream_ac, state, stream, config)
    statistics = [agent.statistics for agent in agents[1:]]
    before, after = agents[1].state, agents[2].state  # the third step, when traces are there

    @jax.jit
    def scaled(statistics: Any, x: Any) -> Any:
        return (x - statistics.mean) / jnp.sqrt(statistics.variance + 1e-8)

    x = scaled(statistics[0], row.observation)
    following = scaled(statistics[1], row.next_observation)
    reward = row.reward / jnp.sqrt(after.returns.moments.variance + 1e-8)
    value, slope = jax.jit(jax.value_and_grad(lambda critic: critic(x)[0]))(
        before.critic.parameters
    )
    next_value = jax.jit(lambda critic: critic(following)[0])(before.critic.parameters)
    error = float(reward + config.discount * (1.0 - row.terminated) * next_value - value)

    def log_prob(actor: Any) -> Any:
        mean, raw = jnp.split(actor(x), 2)
        return jax.scipy.stats.norm.logpdf(row.extras["raw"], mean, jax.nn.softplus(raw)).sum()

    policy = jax.jit(jax.grad(log_prob))(before.actor.parameters)
    for old, gradient, new in (
        (before.critic, slope, after.critic),
        (before.actor, policy, after.actor),
    ):
        expected = jax.tree.map(
            lambda w, g: np.asarray(w) + 1e-3 * error * np.asarray(g), old.parameters, gradient
        )
        trees.assert_close(new.parameters, expected, atol=1e-7)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_time_limit_bootstraps_where_asked(bootstrap: bool) -> None:
    config = dataclasses.replace(
        CONFIG, bootstrap_truncated=bootstrap, normalise_observations=False
    )
    spec, _, row = example()
    state = streaming.state(stream_ac, spec, config)
    errors = {}
    for name in ("neither", "terminated", "truncated"):
        ended = row.replace(
            terminated=jnp.asarray(name == "terminated"), truncated=jnp.asarray(name == "truncated")
        )
        state_after, metrics = update(state, ended, KEY, jnp.zeros((), jnp.int32), config)
        errors[name] = float(metrics["critic/error"])
        cleared = all(
            not np.any(leaf) for leaf in jax.tree.leaves(state_after.critic.optimiser_state.trace)
        )
        assert cleared == (name != "neither"), "traces end with an episode, however it ends"
    assert errors["truncated"] == errors["neither" if bootstrap else "terminated"]
    assert errors["neither"] != errors["terminated"]


def test_actions_are_clipped_and_densities_are_not() -> None:
    observation = np.full((500, 3), 3.0, np.float32)
    action, extras = jax.jit(
        lambda state: stream_ac.act(state, observation, KEY, CONFIG, explore=True)
    )(fresh(CONFIG))
    assert np.abs(action).max() == 1.0 < np.abs(extras["raw"]).max()
    np.testing.assert_allclose(action, np.clip(extras["raw"], -1.0, 1.0), atol=1e-6)


def test_convolutions_are_for_pictures() -> None:
    message = r"^observations have shape \(3,\), --config\.convolutions are for pictures"
    with pytest.raises(ValueError, match=message):
        stream_ac.check(SPEC, dataclasses.replace(CONFIG, convolutions=((16, 3, 1),)))
