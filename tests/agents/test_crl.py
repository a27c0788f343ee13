"""CRL against float64 NumPy written from the papers and OGBench's code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import crl
from rljax.learning import configuration
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from tests.agents import reference, trees, value_learning
from tests.agents.test_gciql import SPEC, transitions
from tests.agents.value_learning import KEY, SIZES

SMALL = {name: size for name, size in SIZES.items() if name != "target_rate"}
CONFIG = crl.Config(**SMALL, value_lr=3e-2, latent_size=4, activation="relu", layer_norm=False)


def example() -> Any:
    return SPEC, CONFIG, transitions()


class Reference:
    """Every loss is of the networks before the update, as in the authors' crl.py."""

    def __init__(self, state: crl.State, config: crl.Config) -> None:
        self.config, self.actor = config, reference.exact(state.actor)
        self.critic = reference.exact(state.critic)  # features of states, and of goals
        self.value = None if state.value is None else reference.exact(state.value)
        self.actor_adam = reference.Adam(config.actor_lr)
        self.critic_adam = reference.Adam(config.critic_lr)
        self.value_adam = reference.Adam(config.value_lr)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        metrics, gradient = self.policy(batch)
        self.actor = self.actor_adam.step(self.actor, gradient)
        state, goal = np.split(batch.observation, 2, axis=1)
        both = np.concatenate([state, batch.action], axis=1)
        more, gradient = self.contrast(self.critic, both, goal, "critic")
        self.critic = self.critic_adam.step(self.critic, gradient)
        if self.value is not None:
            others, gradient = self.contrast(self.value, state, goal, "value")
            self.value = self.value_adam.step(self.value, gradient)
            more |= others
        return metrics | more

    def contrast(self, critics: Any, left: Any, right: Any, name: str) -> tuple[dict, Any]:
        """Metrics and gradient: with x = f k^T / sqrt(K) and the chance p that a goal is the row's
        own, dx = (p - 1(i = j)) / number, df = dx k / sqrt(K) and dk = dx^T f / sqrt(K); info_nce
        has p (1 + 0.2 n) in place of p.
        """
        size, number = len(left), len(critics[0])
        diagonal = np.eye(size, dtype=bool)
        scores, losses, gradients = [], [], []
        for of_state, of_goal in zip(*critics, strict=True):
            f, states = reference.forward(of_state, left)
            k, goals = reference.forward(of_goal, right)
            x = f @ k.T / np.sqrt(f.shape[1])
            if self.config.objective == "binary":
                chance = 1.0 / (1.0 + np.exp(-x))
                losses.append(-np.where(diagonal, np.log(chance), np.log(1 - chance)).mean())
                change = (chance - diagonal) / (number * size**2)
            else:
                total = np.exp(x).sum(axis=1, keepdims=True)
                chance, normaliser = np.exp(x) / total, np.log(total)
                losses.append((0.1 * normaliser**2).mean() - np.log(chance[diagonal]).mean())
                change = (chance * (1.0 + 0.2 * normaliser) - diagonal) / (number * size)
            change = change / np.sqrt(f.shape[1])
            of_f = reference.backward(of_state, states, change @ k)[0]
            gradients.append((of_f, reference.backward(of_goal, goals, change.T @ f)[0]))
            scores.append(x)
        x = np.stack(scores)
        metrics = {
            f"{name}/loss": np.mean(losses),
            f"{name}/positive": x[:, diagonal].mean(),
            f"{name}/negative": x[:, ~diagonal].mean(),
            f"{name}/accuracy": (x.mean(axis=0).argmax(axis=1) == np.arange(size)).mean(),
        }
        return metrics, [list(part) for part in zip(*gradients, strict=True)]

    def values(self, critics: Any, left: Any, goal: Any) -> tuple[np.ndarray, np.ndarray]:
        """The smallest product [B], and its slope in `left` [B, I]."""
        products, slopes = [], []
        for of_state, of_goal in zip(*critics, strict=True):
            f, rows = reference.forward(of_state, left)
            k = reference.forward(of_goal, goal)[0] / np.sqrt(f.shape[1])
            products.append((f * k).sum(axis=1))
            slopes.append(reference.backward(of_state, rows, k)[1])
        least = np.argmin(products, axis=0)
        return np.min(products, axis=0), np.stack(slopes)[least, np.arange(len(goal))]

    def policy(self, batch: Transition) -> tuple[dict[str, float], Any]:
        """The actor's metrics and its gradient.

        With distance d = |a - m|^2 / 2 + log(2 pi) A / 2 and c the mean m within +-1: ddpg_bc is
        -mean q(c) / |mean q| + alpha mean d, dm = (-dq/dc 1(m = c) / size + alpha (m - a)) / B; awr
        is mean w d, dm = w (m - a) / B.
        """
        config, size, action = self.config, len(batch.action), batch.action
        observation = np.asarray(batch.extras["actor_observation"])
        state, goal = np.split(observation, 2, axis=1)
        mean, inputs = reference.forward(self.actor, observation)
        distance = 0.5 * np.square(mean - action).sum(axis=1)
        distance += 0.5 * np.log(2.0 * np.pi) * action.shape[1]
        if config.policy_loss == "awr":
            q = self.values(self.critic, np.concatenate([state, action], axis=1), goal)[0]
            advantage = q - self.values(self.value, state, goal)[0]
            weight = np.minimum(np.exp(config.inverse_temperature * advantage), config.max_weight)
            change = weight[:, None] * (mean - action) / size
            metrics = {"actor/advantage": advantage.mean(), "actor/weight": weight.mean()}
            metrics["actor/loss"] = (weight * distance).mean()
        else:
            clipped = np.clip(mean, -1.0, 1.0)
            both = np.concatenate([state, clipped], axis=1)
            q, slope = self.values(self.critic, both, goal)
            scale = np.abs(q).mean() + 1e-6
            change = config.imitation_weight * (mean - action)
            change = (change - slope[:, state.shape[1] :] * (mean == clipped) / scale) / size
            metrics = {"actor/q": q.mean(), "actor/imitation": distance.mean()}
            metrics["actor/loss"] = -q.mean() / scale + config.imitation_weight * distance.mean()
        return metrics, reference.backward(self.actor, inputs, change)[0]


CASES = {
    "default": {},
    "cube": {"imitation_weight": 3.0},
    "weighted": {"policy_loss": "awr"},
    "one goal of many": {"objective": "info_nce"},
    "bounded weights, three critics": {
        "policy_loss": "awr",
        "max_weight": 1.05,
        "num_critics": 3,
        "objective": "info_nce",
    },
}

update = jax.jit(crl.update)
act = jax.jit(crl.act, static_argnames="explore")


def fresh(config: crl.Config) -> crl.State:
    return reference.state(crl, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference, transitions)


def test_only_the_actor_sees_its_own_goals() -> None:
    state, batch = fresh(CONFIG), transitions()
    other = batch.replace(extras={"actor_observation": batch.observation})
    one, two = (update(state, x, KEY, 0, CONFIG)[0] for x in (batch, other))
    for part, same in (("critic", True), ("actor", False)):
        assert trees.equal(getattr(one, part), getattr(two, part)) == same, part


def test_rewards_and_ends_do_not_matter() -> None:
    state, batch = fresh(CONFIG), transitions()
    other = batch.replace(reward=batch.reward + 1.0, terminated=~batch.terminated)
    one, two = (update(state, x, KEY, 0, CONFIG)[0] for x in (batch, other))
    assert trees.equal(one, two)


def test_begins_as_the_authors_do() -> None:
    config = crl.Config(hidden=(16, 16), latent_size=8, policy_loss="awr")
    state = jax.jit(crl.init, static_argnums=1)(KEY, SPEC, config)
    assert state.value is not None
    limit = np.sqrt(6.0 / (16 + 2))
    actor = state.actor.parameters.params
    kernel = np.asarray(actor["output"]["kernel"])
    # A tenth of the others: a hundredth of their variance.
    assert 0.05 * limit < np.abs(kernel).max() <= 0.1 * limit
    assert "norm_0" not in actor
    for part, number, width in ((state.critic, 2, 3 + 2), (state.value, 1, 3)):
        for net, inputs in (
            (part.parameters.state_features, width),
            (part.parameters.goal_features, 3),
        ):
            members = net.params["members"]
            assert members["hidden_0"]["kernel"].shape == (number, inputs, 16)
            assert members["output"]["kernel"].shape == (number, 16, 8)
            assert "norm_1" in members


@pytest.mark.learn
@pytest.mark.parametrize("torso", ["resnet", "iru", "recall"])
def test_every_torso_learns(torso: Any) -> None:
    compute = 1 if torso == "resnet" else 3
    config = dataclasses.replace(CONFIG, torso=torso, compute=compute, policy_loss="awr")
    crl.check(SPEC, config)
    state = crl.init(KEY, SPEC, config)
    new, metrics = update(state, transitions(), KEY, 0, config)
    assert all(np.isfinite(value) for value in metrics.values())
    for part in ("actor", "critic", "value"):
        both = (getattr(x, part).parameters for x in (state, new))
        assert trees.all_differ(*both), part


@pytest.mark.learn
def test_progressive_losses_are_of_a_part_of_the_steps_in_every_network() -> None:
    changes: Any = {"torso": "iru", "compute": 12, "hidden": (8,), "policy_loss": "awr"}
    config = dataclasses.replace(CONFIG, **changes)
    state, batch = crl.init(KEY, SPEC, config), transitions()
    configs = (dataclasses.replace(config, progressive=alpha) for alpha in (None, 0.0, 1.0))
    whole, none, part = (update(state, batch, KEY, 0, x)[0] for x in configs)
    for name in ("actor", "critic", "value"):
        first, second, third = (getattr(x, name).optimiser_state[0].mu for x in (whole, none, part))
        trees.assert_close(first, second, rtol=1e-5, atol=1e-7)
        with pytest.raises(AssertionError):
            trees.assert_close(first, third, rtol=1e-5, atol=1e-4)


def test_act_explores_around_the_mean_within_bounds() -> None:
    state, observation = fresh(CONFIG), transitions(9).observation
    mean = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    value_learning.assert_explores_around(mean, 1.0, act, state, observation, CONFIG)


def test_refuses_a_single_feature() -> None:
    with pytest.raises(ValueError, match=r"--config\.latent-size is 1, it must be at least 2"):
        crl.check(SPEC, dataclasses.replace(CONFIG, latent_size=1))


# Walks on a chain of states, whose ends are walls.
LENGTH, STEPS, WALKS, DISCOUNT, BATCH, UPDATES = 5, 20, 300, 0.8, 64, 4_000


def walks() -> tuple[Transition, np.ndarray]:
    """One-hot states, and the score of each state, side and goal in them, [LENGTH, 2, LENGTH].

    An action a in [-1, 1] leads to the right with probability (1 + a) / 2. The score is that of the
    least binary loss, log p(g | s, side) / ((B - 1) p(g)): a row meets its own goal, and those of
    B - 1 others.
    """
    generator = np.random.default_rng(0)
    action = generator.uniform(-1.0, 1.0, size=(WALKS, STEPS))
    right = 2.0 * generator.uniform(size=action.shape) < 1.0 + action
    place = np.zeros((WALKS, STEPS + 1), int)
    place[:, 0] = generator.integers(LENGTH, size=WALKS)
    for i in range(STEPS):
        place[:, i + 1] = np.clip(place[:, i] + np.where(right[:, i], 1, -1), 0, LENGTH - 1)
    joint = np.zeros((LENGTH, 2, LENGTH))
    for i in range(STEPS):
        for k in range(1, 100):
            goal = place[:, min(i + k, STEPS - 1)]
            chance = (1.0 - DISCOUNT) * DISCOUNT ** (k - 1)
            np.add.at(joint, (place[:, i], right[:, i].astype(int), goal), chance)
    joint /= joint.sum()
    apart = joint.sum(axis=2, keepdims=True) * joint.sum(axis=(0, 1))
    one_hot, never = np.eye(LENGTH, dtype=np.float32), np.zeros(WALKS * STEPS, bool)
    ends = np.tile(np.arange(STEPS) == STEPS - 1, WALKS)
    here, after = one_hot[place[:, :-1].ravel()], one_hot[place[:, 1:].ravel()]
    actions, nothing = action.reshape(-1, 1).astype(np.float32), never.astype(np.float32)
    columns: Any = (here, actions, nothing, never, ends, after)
    return Transition(*columns), np.log(joint / apart / (BATCH - 1))


@pytest.mark.learn
@pytest.mark.parametrize("policy_loss", ["ddpg_bc", "awr"])
def test_on_a_chain_scores_are_ratios_and_actions_lead_to_the_goal(policy_loss: str) -> None:
    changes: Any = {
        "hidden": (64, 64),
        "latent_size": 16,
        "batch_size": BATCH,
        "discount": DISCOUNT,
        "actor_goal_future": 0.0,
        "policy_loss": policy_loss,
        "imitation_weight": 0.1,
        "inverse_temperature": 10.0,
        "rate_schedule": "cosine",
        "rate_updates": UPDATES,
    } | {f"{name}_lr": 1e-3 for name in ("actor", "critic", "value")}
    config = configuration.stack(configuration.replace(crl.Config(), changes, "test"), 1)
    learner = Learner(crl, EnvSpec("chain", (2 * LENGTH,), 1), 1)  # pyright: ignore[reportArgumentType]
    data, expected = walks()
    driver = OfflineDriver(learner, crl.experience(config).prepare(data), config)
    driver.start([0])
    driver.advance(UPDATES)
    state: Any = jax.tree.map(lambda x: x[0], driver.agent_state.state)
    one_hot = np.eye(LENGTH, dtype=np.float32)
    place, side, goal = (x.ravel() for x in np.mgrid[:LENGTH, :2, :LENGTH])
    observation = jnp.concatenate([one_hot[place], one_hot[goal]], axis=1)
    score = state.critic(observation, jnp.asarray(2.0 * side - 1.0)[:, None]).mean(axis=0)
    np.testing.assert_allclose(score.reshape(expected.shape), expected, atol=0.5)
    action = np.asarray(crl.act(state, observation, KEY, crl.Config(), explore=False)[0])[:, 0]
    apart = place != goal
    np.testing.assert_array_equal(np.sign(action[apart]), np.sign(goal - place)[apart])
