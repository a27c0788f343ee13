"""DQN's distributions, noisy layers, prioritised draws and soft targets, against float64 NumPy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent, buffers
from rljax.agent import Transition
from rljax.agents import dqn
from rljax.networks import noise
from tests.agents import distributional, reference, trees
from tests.agents.test_dqn import CONFIG, KEY, SPEC, act, fresh, transitions, update
from tests.helpers import small_runs
from tests.networks.reference import softmax

C51: dict[str, Any] = {"distribution": "c51", "atoms": 7, "v_min": -2.0, "v_max": 3.0}
QUANTILES: dict[str, Any] = {"distribution": "quantile", "quantiles": 5, "kappa": 0.5}


def drawn(seed: int, config: dqn.Config) -> Transition:
    """With weights where it is drawn by priority."""
    batch = transitions(seed, config.n_step)
    if not config.prioritised:
        return batch
    weight = np.random.default_rng(seed).uniform(0.2, 1.0, 5)
    weights = {"row": np.arange(5), "weight": jnp.asarray(weight, jnp.float32)}
    return batch.replace(extras={**batch.extras, **weights})


class Reference:
    """One critic, with outputs [B, A, K] of every kind."""

    def __init__(self, state: dqn.State, config: dqn.Config) -> None:
        (self.critic,), (self.target,) = map(reference.critics, (state.critic, state.target_critic))
        self.config, self.adam = config, reference.Adam(config.learning_rate)
        numbers = {"none": 1, "c51": config.atoms, "quantile": config.quantiles}
        self.number = numbers[config.distribution]
        self.support = np.linspace(config.v_min, config.v_max, config.atoms)

    def outputs(self, critic: Any, observation: Any) -> np.ndarray:
        """[B, A, K], dueling or not."""
        flat = reference.forward(critic, np.asarray(observation, np.float64))[0]
        each = flat.reshape(len(flat), -1, self.number)
        if not self.config.dueling:
            return each
        return each[:, :1] + each[:, 1:] - each[:, 1:].mean(axis=1, keepdims=True)

    def mean(self, outputs: np.ndarray) -> np.ndarray:
        """Q [...] of outputs [..., K]."""
        if self.config.distribution == "c51":
            return (softmax(outputs) * self.support).sum(axis=-1)
        return outputs.mean(axis=-1)

    def losses(self, found: np.ndarray, target: np.ndarray) -> np.ndarray:
        """[B] of outputs [B, K]."""
        if self.config.distribution == "c51":
            return -(target * np.log(softmax(found))).sum(axis=-1)
        if self.config.distribution == "quantile":
            head = distributional.Quantile(self.config.quantiles, self.config.kappa)
            return head.loss(found, target)[0]
        return np.square(found - target)[:, 0]

    def soft(
        self, following: np.ndarray, observation: Any, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """sum_a pi (z(s', a) - tau log pi(a|s')) [B, K], and alpha [tau log pi(a|s)] clipped [B],
        with the settings of arXiv:2007.14430, appendix B: 0.9, 0.03 and -1.
        """
        tau = 0.03
        next_policy = softmax(self.mean(following) / tau)
        penalised = following - tau * np.log(next_policy)[..., None]
        policy = softmax(self.mean(self.outputs(self.target, observation)) / tau)
        logarithm = tau * np.log(policy[np.arange(len(action)), action])
        return (next_policy[..., None] * penalised).sum(axis=1), 0.9 * np.clip(logarithm, -1, 0)

    def update(self, batch: Transition, step: int) -> tuple[dict[str, float], np.ndarray]:
        """Metrics and priorities."""
        config, rows = self.config, np.arange(5)
        following = self.outputs(self.target, batch.next_observation)
        judge = self.outputs(self.critic, batch.next_observation) if config.double else following
        reward, action = np.asarray(batch.reward, np.float64), np.asarray(batch.action)
        if config.munchausen:
            following, bonus = self.soft(following, batch.observation, action)
            reward = reward + bonus
        else:
            following = following[rows, self.mean(judge).argmax(axis=1)]
        discount = batch.extras["discount"] if config.n_step > 1 else config.discount
        discount = np.asarray(discount) * (1.0 - np.asarray(batch.terminated, np.float64))
        if config.distribution == "c51":
            head = distributional.Categorical(config.atoms, config.v_min, config.v_max)
            target = head.projected(softmax(following), reward, discount)
            value = (target * self.support).sum(axis=-1)
        else:
            target = reward[:, None] + discount[:, None] * following
            value = target.mean(axis=-1)
        weight = np.asarray(batch.extras.get("weight", np.ones(5)), np.float64)

        def chosen(critic: Any) -> np.ndarray:
            return self.outputs(critic, batch.observation)[rows, action]

        def loss(critic: Any) -> float:
            return (weight * self.losses(chosen(critic), target)).mean()

        found = chosen(self.critic)
        losses = self.losses(found, target)
        gradient = reference.differences(loss, self.critic)
        gradient = reference.limited(gradient, config.max_grad_norm)
        self.critic = self.adam.step(self.critic, gradient)
        self.target = reference.towards(self.critic, self.target, config.target_rate)
        metrics = {
            "critic/loss": (weight * losses).mean(),
            "critic/q": self.mean(found).mean(),
            "critic/target": value.mean(),
            "actor/epsilon": 1.0 + (config.epsilon_end - 1.0) * min(step / 30, 1),
        }
        if config.distribution == "c51":
            values = reward[:, None] + discount[:, None] * self.support
            beyond = (values < config.v_min - 1e-6) | (values > config.v_max + 1e-6)
            metrics["critic/clipped"] = (softmax(following) * beyond).sum(axis=-1).mean()
            # The divergence, without the target's own entropy.
            safe = np.where(target > 0, target, 1.0)
            return metrics, losses + (target * np.log(safe)).sum(axis=-1)
        return metrics, np.abs(self.mean(found) - value)


EVERY = {"double": True, "dueling": True, "n_step": 3}
CASES = {
    "c51": C51,
    "c51, double, dueling, n steps, priorities": C51
    | EVERY
    | {"prioritised": 0.5, "max_grad_norm": 0.1},
    "quantiles": QUANTILES | {"discount": 0.8},
    "quantiles, double, dueling, n steps": QUANTILES | EVERY,
    "priorities": {"prioritised": 0.6, "loss": "squared"},
    "munchausen, dueling": {"munchausen": True, "loss": "squared", "dueling": True},
    "munchausen, quantiles": QUANTILES | {"munchausen": True},
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, epsilon_steps=30.0 * CONFIG.num_steps, **changes)
    dqn.check(SPEC, config)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch = drawn(step, config)
        state, metrics = update(state, batch, KEY, step, config)
        priorities = metrics.pop("priorities", None)
        expected_metrics, expected_priorities = expected.update(batch, step)
        reference.assert_metrics(metrics, expected_metrics)
        if config.prioritised:
            np.testing.assert_allclose(priorities, expected_priorities, rtol=1e-3, atol=1e-4)
        else:
            assert priorities is None
    reference.assert_same(reference.critics(state.critic), [expected.critic], "critic")
    reference.assert_same(
        reference.critics(state.target_critic), [expected.target], "target_critic"
    )


@pytest.mark.slow
def test_noise_is_drawn_for_each_call_and_evaluation_has_none() -> None:
    config = dataclasses.replace(CONFIG, exploration="noisy", noise=5.0)
    state = fresh(config)
    observation = jnp.asarray(np.random.default_rng(0).normal(size=(300, 3)), jnp.float32)
    keys = [jax.random.key(seed) for seed in range(2)]
    explored = [np.asarray(act(state, observation, key, config, explore=True)[0]) for key in keys]
    assert (explored[0] != explored[1]).mean() > 0.1
    for key, actions in zip(keys, explored, strict=True):
        q = dqn.values(noise.sampled(state.critic.parameters, key), observation, state, config)
        np.testing.assert_array_equal(actions, np.asarray(q).argmax(axis=-1))
    greedy = [act(state, observation, key, config, explore=False)[0] for key in keys]
    np.testing.assert_array_equal(*greedy)
    np.testing.assert_array_equal(
        greedy[0], dqn.values(state.critic, observation, state, config).argmax(axis=-1)
    )


@pytest.mark.slow
def test_updates_draw_noise_for_each_network() -> None:
    """Three networks have their own noise; deviations learn."""
    config = dataclasses.replace(CONFIG, exploration="noisy", double=True)
    state, batch = fresh(config), transitions()
    new, metrics = update(state, batch, KEY, 0, config)
    online = state.critic.parameters
    critic, chooser, target = noise.sampled((online, online, state.target_critic), KEY)
    plain = dataclasses.replace(config, exploration="epsilon")
    parts = state.replace(critic=chooser, target_critic=target)
    loss, _ = jax.jit(lambda: dqn.critic_loss(critic, parts, batch, plain))()
    np.testing.assert_allclose(metrics["critic/loss"], loss, rtol=1e-5)
    assert "actor/epsilon" not in metrics
    moved = jax.tree.map(lambda x, y: np.any(x != y), new.critic.parameters.params, online.params)
    for layer in moved["members"].values():
        assert layer["kernel_deviation"]
        assert layer["bias_deviation"]
    other, _ = update(state, batch, jax.random.key(5), 0, config)
    assert not trees.equal(new.critic, other.critic)


def test_the_experience_has_the_settings_of_the_draw() -> None:
    config = dataclasses.replace(
        CONFIG, prioritised=0.5, correction_steps=0.5, n_step=3, clip_rewards=True
    )
    found = dqn.experience(dqn.schedule(config, 1_000.0))
    assert found.draw == buffers.Prioritised(
        steps=3, discount=config.discount, exponent=0.5, correction=0.4, correction_steps=500.0
    )
    assert found.clip_rewards


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            C51 | {"num_critics": 2},
            r"^--config\.num-critics is 2: a distribution of returns is that of one critic\.",
        ),
        (
            C51 | {"v_min": 3.0},
            r"^--config\.v-min is 3\.0, it must be below --config\.v-max 3\.0\.$",
        ),
        (QUANTILES | {"kappa": 0.0}, r"^--config\.kappa is 0\.0, it must be above 0\.$"),
        ({"atoms": 1}, r"^--config\.atoms is 1, it must be at least 2"),
        ({"quantiles": 1}, r"^--config\.quantiles is 1, it must be at least 2"),
        (
            {"exploration": "noisy", "torso": "iru", "hidden": (8,)},
            r"^--config\.exploration noisy is for --config\.torso mlp or resnet, not for iru\.$",
        ),
        (
            {"prioritised": 1.5},
            r"^--config\.prioritised is 1\.5, it must be finite and in \[0, 1\]\.$",
        ),
    ],
)
def test_refuses_what_makes_no_sense(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agent.check(dqn, SPEC, dataclasses.replace(CONFIG, **changes))


def test_priorities_and_goals_in_hindsight_are_refused(tmp_path: Path) -> None:
    config = {"hindsight": 0.5, "prioritised": 0.5, "num_envs": 2}
    message = (
        r"^--config\.prioritised draws by errors on rewards that --config\.hindsight would have "
        r"to replace: use"
    )
    with pytest.raises(ValueError, match=message):
        small_runs.train("dqn", "rljax/BoxPick-2x4", 100, tmp_path / "run", config)
