"""Sequence RL against float64 NumPy: whole updates, what acting plays,
and what evaluation at other rates does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import cli, networks
from rljax.agent import EnvSpec, Transition, first_memory
from rljax.agents import sequence_rl
from rljax.runs import run
from rljax.runs.policies import evaluate
from rljax.training import evaluation
from tests.agents import reference
from tests.agents.features.test_memory import sigmoid
from tests.helpers import small_runs

LENGTH, SIZE, WIDTH = 3, 5, 4
SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = sequence_rl.Config(
    hidden=(6, 5),
    memory_hidden=(WIDTH,),
    sequence_length=LENGTH,
    batch_size=SIZE,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    model_lr=4e-2,
    target_rate=0.1,
    activation="relu",
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,
    "learn_temperature": False,  # so entropy hardly weighs
    "sequence_length": 1,  # the known values are those of policies that see every state
    "memory_hidden": (32,),
    "model_lr": 3e-3,
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(sequence_rl.update)
act = jax.jit(sequence_rl.act, static_argnames="explore")


def example() -> tuple[EnvSpec, sequence_rl.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


def fresh(config: sequence_rl.Config) -> sequence_rl.State:
    """A State to start from."""
    log_temperature = jnp.log(jnp.float32(config.init_temperature))
    return reference.state(sequence_rl, SPEC, config, log_temperature=log_temperature)


def actor(network: Any) -> list[np.ndarray]:
    """An actor's parameters in float64: two layers, a GRU, and the last layer."""
    parts = networks.parameters_of(network).params
    (core,) = (part for name, part in parts.items() if name not in ("body", "head"))
    arrays = [parts["body"][f"hidden_{i}"][name] for i in (0, 1) for name in ("kernel", "bias")]
    arrays += [core[f"{name}_0"] for name in ("input", "memory", "bias", "inner")]
    arrays += [parts["head"]["output"][name] for name in ("kernel", "bias")]
    return [np.asarray(x, np.float64) for x in arrays]


class Reference:
    """Sequence RL in float64, from the equations of agents/sequence_rl.py;
    the actor's gradient by differences.
    """

    def __init__(self, state: sequence_rl.State, config: sequence_rl.Config) -> None:
        self.config = config
        self.actor, self.model = actor(state.actor), reference.mlp(state.model)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.log_temperature = np.log(config.init_temperature)
        rates = (config.actor_lr, config.critic_lr, config.temperature_lr, config.model_lr)
        self.adams = [reference.Adam(rate) for rate in rates]

    def emitted(
        self,
        p: list[np.ndarray],
        observation: np.ndarray,
        noise: np.ndarray,
        fed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions [J, B, A], log pi [J, B] and means, where the GRU sees actions `fed` in place of
        its own.
        """
        h, before = np.zeros((len(observation), WIDTH)), np.zeros(noise.shape[1:])
        w, u, b = np.split(p[4], 3, axis=1), np.split(p[5], 3, axis=1), np.split(p[6], 3)
        actions, log_probs, means = [], [], []
        for k in range(len(noise)):
            x = np.concatenate([observation, before], axis=1)
            x = np.maximum(np.maximum(x @ p[0] + p[1], 0.0) @ p[2] + p[3], 0.0)
            r, z = (sigmoid(x @ w[i] + b[i] + h @ u[i]) for i in (0, 1))
            h = (1.0 - z) * np.tanh(x @ w[2] + b[2] + r * (h @ u[2] + p[7])) + z * h
            mean, raw = np.split(h @ p[8] + p[9], 2, axis=1)
            log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
            v = mean + np.exp(log_std) * noise[k]
            gaussian = -0.5 * noise[k] ** 2 - log_std - 0.5 * np.log(2 * np.pi)
            log_probs.append((gaussian - np.log1p(-(np.tanh(v) ** 2))).sum(axis=1))
            actions.append(np.tanh(v))
            means.append(np.tanh(mean))
            before = actions[-1] if fed is None else fed[k]
        return np.stack(actions), np.stack(log_probs), np.stack(means)

    def update(
        self, batch: Transition, next_noise: np.ndarray, noise: np.ndarray, step: int
    ) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        config, temperature = self.config, np.exp(self.log_temperature)
        observation = np.asarray(batch.observation, np.float64)
        next_observation = np.asarray(batch.next_observation, np.float64)
        reward, terminated = (
            np.asarray(batch.reward, np.float64),
            np.asarray(batch.terminated, np.float64),
        )
        action = np.asarray(batch.action, np.float64)

        difference, inputs = reference.forward(
            self.model, np.concatenate([observation, action], axis=1)
        )
        error = observation + difference - next_observation
        metrics = {"model/loss": np.square(error).mean()}
        gradient = reference.backward(self.model, inputs, 2.0 * error / error.size)[0]
        self.model = self.adams[3].step(self.model, gradient)

        first, log_prob, _ = self.emitted(self.actor, next_observation, next_noise)
        soft_value = (
            reference.smallest(self.targets, next_observation, first[0])[0]
            - temperature * log_prob[0]
        )
        y = config.reward_scale * reward + config.discount * (1.0 - terminated) * soft_value
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.critics = self.adams[1].step(self.critics, gradient)
        metrics |= {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        if (step + 1) % config.policy_delay == 0:
            fed, states = self.emitted(self.actor, observation, noise)[0], [observation]
            for k in range(len(noise) - 1):
                joined = np.concatenate([states[k], fed[k]], axis=1)
                states.append(states[k] + reference.forward(self.model, joined)[0])

            def values(p: list[np.ndarray]) -> tuple[float, float]:
                actions, log_prob, _ = self.emitted(p, observation, noise, fed)
                q = [
                    reference.smallest(self.critics, *pair)[0]
                    for pair in zip(states, actions, strict=True)
                ]
                return (temperature * log_prob - np.stack(q)).mean(), -log_prob.mean()

            metrics["actor/loss"], entropy = values(self.actor)
            gradient = reference.differences(lambda p: values(p)[0], self.actor)
            self.actor = self.adams[0].step(self.actor, gradient)
            metrics["actor/entropy"] = entropy

            target = -action.shape[1] if config.target_entropy is None else config.target_entropy
            own_form = config.temperature_loss == "alpha"
            factor, slope = (temperature, temperature) if own_form else (self.log_temperature, 1.0)
            metrics |= {
                "temperature/loss": factor * (entropy - target),
                "temperature/value": temperature,
            }
            if config.learn_temperature:
                self.log_temperature = self.adams[2].step(
                    self.log_temperature, slope * (entropy - target)
                )

        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "delay, own entropy": {
        "policy_delay": 2,
        "temperature_loss": "alpha",
        "target_entropy": -0.7,
        "init_temperature": 0.3,
        "reward_scale": 3.0,
    },
    "one action, as SAC": {"sequence_length": 1, "learn_temperature": False, "num_critics": 3},
}


@reference.cases(CASES)
def test_updates_equal_the_equations(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = reference.transitions(step), jax.random.key(step)
        key_critic, key_actor = jax.random.split(key)
        next_noise, noise = (
            np.stack([reference.noise(key, (SIZE, 2)) for key in jax.random.split(key, number)])
            for key, number in ((key_critic, 1), (key_actor, config.sequence_length))
        )
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, next_noise, noise, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.model), expected.model, "model")
    reference.assert_same(actor(state.actor), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )


def test_states_between_actions_are_imagined_by_the_model() -> None:
    actions = jnp.arange(6.0).reshape(3, 1, 2)
    model: Any = lambda state, action: state * action.sum(axis=-1, keepdims=True)  # noqa: E731
    states = sequence_rl.imagined(model, jnp.ones((1, 3)), actions)
    # s = 1, 1 + 1 (0 + 1), 2 + 2 (2 + 3)
    np.testing.assert_array_equal(states, np.broadcast_to([[[1.0]], [[2.0]], [[12.0]]], (3, 1, 3)))


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch, never, always = (
        fresh(CONFIG),
        reference.transitions(),
        jnp.zeros(5, bool),
        jnp.ones(5, bool),
    )
    loss = jax.jit(
        lambda batch: sequence_rl.critic_loss(state.critic, state, batch, KEY, CONFIG)[1][
            "critic/target"
        ]
    )
    one, other = (
        loss(batch.replace(terminated=never, truncated=truncated)) for truncated in (never, always)
    )
    assert one == other
    ended = loss(batch.replace(terminated=always, truncated=never))
    np.testing.assert_allclose(ended, batch.reward.mean(), rtol=1e-6)


def test_sequences_are_played_to_their_end() -> None:
    state, observations = fresh(CONFIG), reference.observed()
    inputs = np.asarray(observations[:4], np.float64)
    expected = Reference(state, CONFIG)
    means = expected.emitted(actor(state.actor), inputs, np.zeros((LENGTH, 4, 2)))[2]
    memory, played = first_memory(sequence_rl, SPEC, CONFIG, 4), []
    for step in range(LENGTH + 1):
        # What is seen in between changes nothing.
        shown = observations[:4] if step in (0, LENGTH) else observations[4:8] + step
        action, extras, memory = act(
            state, shown, jax.random.key(step), CONFIG, explore=False, memory=memory
        )
        played.append(np.asarray(action))
        assert extras == {}
    np.testing.assert_allclose(played[:LENGTH], means, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(played[LENGTH], played[0])
    np.testing.assert_array_equal(
        act(state, observations[:4], KEY, CONFIG, explore=False)[0], played[0]
    )

    memory = first_memory(sequence_rl, SPEC, CONFIG, 4)
    _, _, memory = act(state, observations[:4], KEY, CONFIG, explore=True, memory=memory)
    memory = memory | {"played": jnp.array([1, LENGTH, 2, 1], jnp.int32)}
    action, _, after = act(
        state, observations[:4], jax.random.key(9), CONFIG, explore=True, memory=memory
    )
    changed = np.any(np.asarray(after["actions"]) != np.asarray(memory["actions"]), axis=(1, 2))
    np.testing.assert_array_equal(
        changed, [False, True, False, False], "only the one that is used up is decided anew"
    )
    np.testing.assert_array_equal(after["played"], [2, 1, 3, 2])
    np.testing.assert_array_equal(
        np.asarray(action)[[0, 2]], np.asarray(memory["actions"])[[0, 2], [1, 2]]
    )


def test_exploring_sequences_are_sampled() -> None:
    state, observation = fresh(CONFIG), reference.observed()[:4]
    noise = np.stack([reference.noise(key, (4, 2)) for key in jax.random.split(KEY, LENGTH)])
    expected = Reference(state, CONFIG).emitted(
        actor(state.actor), np.asarray(observation, np.float64), noise
    )[0]
    _, _, memory = act(state, observation, KEY, CONFIG, explore=True)
    np.testing.assert_allclose(
        np.moveaxis(np.asarray(memory["actions"]), 1, 0), expected, rtol=1e-4, atol=1e-5
    )


def test_evaluation_decides_as_often_as_it_is_told() -> None:
    assert evaluation.deciding(sequence_rl, CONFIG, None) == (sequence_rl, CONFIG)
    for steps in (1, 7):
        agent, config = evaluation.deciding(sequence_rl, CONFIG, steps)
        assert agent is sequence_rl
        assert config == dataclasses.replace(CONFIG, sequence_length=steps)


@pytest.mark.learn
def test_runs_resume_and_are_evaluated_at_other_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"memory_hidden": (8,), "sequence_length": 3}
    small_runs.train("sequence_rl", "rljax/Pendulum", 200, tmp_path / "whole", config, seeds=2)
    half = small_runs.train(
        "sequence_rl", "rljax/Pendulum", 100, tmp_path / "half", config, seeds=2
    )
    run.resume(half, 200)
    small_runs.assert_same(tmp_path / "whole", half)
    plain, same, other = (
        evaluate.evaluate_run(half, episodes=2, hold=hold) for hold in (None, 3, 1)
    )
    assert plain == same
    assert plain["hold"] == 3
    assert plain["episodes"] != other["episodes"]
    capsys.readouterr()
    cli.main(["eval", str(half), "--episodes", "2", "--hold", "1", "4"])
    shown = capsys.readouterr().out
    assert "a decision in every 4 steps" in shown
    longer = evaluate.evaluate_run(half, episodes=2, config={"sequence_length": 1})
    assert longer["episodes"] == other["episodes"], "held and set: the same"
    with pytest.raises(
        ValueError,
        match=r"^--hold sets --config\.sequence-length for this agent: give one of them\.$",
    ):
        evaluate.evaluate_run(half, config={"sequence_length": 1}, hold=2)
    assert "frequency-averaged return over holds of 1 to 4 steps: -" in shown


def test_refuses_pictures() -> None:
    with pytest.raises(ValueError, match=r"^agent 'sequence_rl' observes vectors"):
        sequence_rl.check(
            EnvSpec("test/Pictures-v0", (8, 8, 3), 2, observation_dtype="uint8"), CONFIG
        )
