"""Sequence RL against float64 NumPy: updates, acting, and evaluation at other rates."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import cli
from rljax.agent import EnvSpec, Transition, first_memory
from rljax.agents import sequence_rl
from rljax.learning import evaluation
from rljax.runs import run
from rljax.runs.policies import evaluate
from tests.agents import actor_critic, reference
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

update = jax.jit(sequence_rl.update)
act = jax.jit(sequence_rl.act, static_argnames="explore")
fresh = functools.partial(reference.state, sequence_rl, SPEC)


def example() -> tuple[EnvSpec, sequence_rl.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class Reference(actor_critic.SAC):
    """Sequence RL in float64, from the equations of agents/sequence_rl.py;
    the actor's gradient by differences.
    """

    def __init__(self, state: sequence_rl.State, config: sequence_rl.Config) -> None:
        super().__init__(state, config)
        self.model = reference.exact(state.model)

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
        actions, log_probs, means = [], [], []
        for k in range(len(noise)):
            x = np.concatenate([observation, before], axis=1)
            x = np.maximum(np.maximum(x @ p[0] + p[1], 0.0) @ p[2] + p[3], 0.0)
            h = reference.gru(p[4:8], x, h)
            mean, raw = np.split(h @ p[8] + p[9], 2, axis=1)
            log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
            v = mean + np.exp(log_std) * noise[k]
            log_probs.append(actor_critic.log_density(v, mean, log_std))
            actions.append(np.tanh(v))
            means.append(np.tanh(mean))
            before = actions[-1] if fed is None else fed[k]
        return np.stack(actions), np.stack(log_probs), np.stack(means)

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        size = batch.action.shape
        key_critic, key_actor = jax.random.split(key)
        next_noise, noise = (
            np.stack([reference.noise(key, size) for key in jax.random.split(key, number)])
            for key, number in ((key_critic, 1), (key_actor, self.config.sequence_length))
        )
        observation, following = batch.observation, batch.next_observation
        pairs = np.concatenate([observation, batch.action], axis=1)
        difference, inputs = reference.forward(self.model, pairs)
        error = observation + difference - following
        metrics = {"model/loss": np.square(error).mean()}
        self.move("model", reference.backward(self.model, inputs, 2.0 * error / error.size)[0])

        first, log_prob, _ = self.emitted(self.actor, following, next_noise)
        soft_value = self.smallest_target(batch, first[0]) - self.temperature * log_prob[0]
        metrics |= self.teach_critics(batch, self.bootstrapped(batch, soft_value))

        if self.is_due(step):
            fed, states = self.emitted(self.actor, observation, noise)[0], [observation]
            for k in range(len(noise) - 1):
                joined = np.concatenate([states[k], fed[k]], axis=1)
                states.append(states[k] + reference.forward(self.model, joined)[0])

            def values(p: list[np.ndarray]) -> tuple[float, float]:
                actions, log_prob, _ = self.emitted(p, observation, noise, fed)
                q = [
                    reference.smallest(self.critic, *pair)[0]
                    for pair in zip(states, actions, strict=True)
                ]
                return (self.temperature * log_prob - np.stack(q)).mean(), -log_prob.mean()

            metrics["actor/loss"], entropy = values(self.actor)
            self.move("actor", reference.differences(lambda p: values(p)[0], self.actor))
            metrics |= self.cool(entropy, size[1])
        self.follow("critic")
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
    reference.assert_updates(update, fresh(config), config, Reference, steps=range(3))


def test_states_between_actions_are_imagined_by_the_model() -> None:
    actions = jnp.arange(6.0).reshape(3, 1, 2)
    model: Any = lambda state, action: state * action.sum(axis=-1, keepdims=True)  # noqa: E731
    states = sequence_rl.imagined(model, jnp.ones((1, 3)), actions)
    # s = 1, 1 + 1 (0 + 1), 2 + 2 (2 + 3)
    np.testing.assert_array_equal(states, np.broadcast_to([[[1.0]], [[2.0]], [[12.0]]], (3, 1, 3)))


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_sequences_are_played_to_their_end() -> None:
    state, observations = fresh(CONFIG), reference.observed()
    expected = Reference(state, CONFIG)
    means = expected.emitted(expected.actor, observations[:4], np.zeros((LENGTH, 4, 2)))[2]
    memory, played = first_memory(sequence_rl, SPEC, CONFIG, 4), []
    for step in range(LENGTH + 1):
        # What is seen in between changes nothing.
        shown = observations[:4] if step in (0, LENGTH) else observations[4:8] + step
        key = jax.random.key(step)
        action, extras, memory = act(state, shown, key, CONFIG, explore=False, memory=memory)
        played.append(np.asarray(action))
        assert extras == {}
    np.testing.assert_allclose(played[:LENGTH], means, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(played[LENGTH], played[0])
    alone = act(state, observations[:4], KEY, CONFIG, explore=False)[0]
    np.testing.assert_array_equal(alone, played[0])

    memory = first_memory(sequence_rl, SPEC, CONFIG, 4)
    _, _, memory = act(state, observations[:4], KEY, CONFIG, explore=True, memory=memory)
    memory = memory | {"played": jnp.array([1, LENGTH, 2, 1], jnp.int32)}
    key, before = jax.random.key(9), np.asarray(memory["actions"])
    action, _, after = act(state, observations[:4], key, CONFIG, explore=True, memory=memory)
    # Only the one that is used up is decided anew.
    changed = np.any(np.asarray(after["actions"]) != before, axis=(1, 2))
    np.testing.assert_array_equal(changed, [False, True, False, False])
    np.testing.assert_array_equal(after["played"], [2, 1, 3, 2])
    np.testing.assert_array_equal(np.asarray(action)[[0, 2]], before[[0, 2], [1, 2]])


def test_exploring_sequences_are_sampled() -> None:
    state, observation = fresh(CONFIG), reference.observed()[:4]
    noise = np.stack([reference.noise(key, (4, 2)) for key in jax.random.split(KEY, LENGTH)])
    expected = Reference(state, CONFIG)
    actions = expected.emitted(expected.actor, observation, noise)[0]
    memory = first_memory(sequence_rl, SPEC, CONFIG, 4)
    _, _, memory = act(state, observation, KEY, CONFIG, explore=True, memory=memory)
    drawn = np.moveaxis(np.asarray(memory["actions"]), 1, 0)
    np.testing.assert_allclose(drawn, actions, rtol=1e-4, atol=1e-5)


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
    holds = (None, 3, 1)
    plain, same, other = (evaluate.evaluate_run(half, episodes=2, hold=hold) for hold in holds)
    assert plain == same
    assert plain["hold"] == 3
    assert plain["episodes"] != other["episodes"]
    capsys.readouterr()
    cli.main(["eval", str(half), "--episodes", "2", "--hold", "1", "4"])
    shown = capsys.readouterr().out
    assert "a decision in every 4 steps" in shown
    longer = evaluate.evaluate_run(half, episodes=2, config={"sequence_length": 1})
    assert longer["episodes"] == other["episodes"], "held and set: the same"
    message = r"^--hold sets --config\.sequence-length for this agent: give one of them\.$"
    with pytest.raises(ValueError, match=message):
        evaluate.evaluate_run(half, config={"sequence_length": 1}, hold=2)
    assert "frequency-averaged return over holds of 1 to 4 steps: -" in shown


def test_refuses_pictures() -> None:
    spec = EnvSpec("test/Pictures-v0", (8, 8, 3), 2, observation_dtype="uint8")
    with pytest.raises(ValueError, match=r"^agent 'sequence_rl' observes vectors"):
        sequence_rl.check(spec, CONFIG)
