"""DQN against float64 NumPy written from the papers."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from rljax.agent import EnvSpec, Transition
from rljax.agents import dqn
from rljax.networks import torsos
from tests.agents import actor_critic, reference
from tests.helpers import small_runs

ACTIONS = 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
CONFIG = dqn.Config(
    hidden=(8, 8),
    batch_size=5,
    learning_rate=1e-2,
    target_rate=0.1,
    target_every=1,
    loss="huber",
    max_grad_norm=10.0,
)
SOFTMAX: dict[str, Any] = {
    "exploration": "softmax",
    "temperature_lr": 1e-2,
    "init_temperature": 0.5,
}
KEY = jax.random.key(0)


def transitions(seed: int = 0, n_step: int = 1) -> Transition:
    """A batch of every kind, as a replay with `NStep` draws it."""
    batch = reference.choices(ACTIONS, seed)
    if n_step == 1:
        return batch
    steps = np.random.default_rng(seed).integers(1, n_step + 1, size=5)
    return batch.replace(extras={"discount": jnp.asarray(CONFIG.discount**steps, jnp.float32)})


def example() -> tuple[EnvSpec, dqn.Config, Transition]:
    return SPEC, CONFIG, transitions()


class Reference(actor_critic.ActorCritic):
    """Q-learning with targets in float64; the numbers are those of the papers in agents/dqn.py."""

    def __init__(self, state: dqn.State, config: dqn.Config) -> None:
        super().__init__(state, config)
        self.adams["critic"] = reference.Adam(config.learning_rate)
        self.log_temperature = np.log(config.init_temperature)

    def inputs(self, observation: np.ndarray) -> np.ndarray:
        """What a critic is given for each action [B, A, I]: that too, where it is an input."""
        rows = np.repeat(observation[:, None], ACTIONS, axis=1)
        each = np.broadcast_to(np.eye(ACTIONS), (len(observation), ACTIONS, ACTIONS))
        return np.concatenate([rows, each], axis=-1) if self.config.action_input else rows

    def head(self) -> np.ndarray:
        """Q(s, a) is outputs @ head[:, a], [K, A]: with [3, eq. 9], of a value and A advantages."""
        if self.config.action_input:
            return np.ones((1, ACTIONS))
        each = np.eye(ACTIONS)
        return np.vstack([np.ones(ACTIONS), each - 1.0 / ACTIONS]) if self.config.dueling else each

    def q(self, critic: reference.MLP, observation: np.ndarray) -> np.ndarray:
        """Q(s, .) [B, A]."""
        outputs = reference.forward(critic, self.inputs(observation))[0]
        return (outputs * self.head().T).sum(axis=-1)

    def reduced(self, critics: Any, observation: np.ndarray) -> np.ndarray:
        """The critics' mean or smallest values [B, A]."""
        q = np.stack([self.q(critic, observation) for critic in critics])
        return q.mean(axis=0) if self.config.reduction == "mean" else q.min(axis=0)

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, size, row = self.config, len(batch.reward), np.arange(len(batch.reward))
        observation, action = batch.observation, batch.action
        next_q = self.reduced(self.target_critic, batch.next_observation)
        judges = self.critic if config.double else self.target_critic  # [2]
        best = self.reduced(judges, batch.next_observation).argmax(axis=-1)
        discount = batch.extras.get("discount", config.discount)
        y = batch.reward + discount * (1.0 - batch.terminated) * next_q[row, best]
        policy_q = self.reduced(self.critic, observation)

        q = np.stack([self.q(critic, observation)[row, action] for critic in self.critic])
        error = q - y
        # e^2 / 2 within 1, |e| - 1/2 beyond: the slope is the clipped error
        if config.loss == "huber":
            loss = np.where(np.abs(error) <= 1.0, 0.5 * error**2, np.abs(error) - 0.5)
            slope = np.clip(error, -1.0, 1.0)
        else:
            loss, slope = error**2, 2.0 * error
        gradient = []
        for critic, change in zip(self.critic, slope / size, strict=True):
            inputs = reference.forward(critic, self.inputs(observation)[row, action])[1]
            change = change[:, None] * self.head()[:, action].T
            gradient.append(reference.backward(critic, inputs, change)[0])
        self.move("critic", reference.limited(gradient, config.max_grad_norm or None))
        metrics = {
            "critic/loss": loss.mean(axis=1).sum(),
            "critic/q": q.mean(),
            "critic/target": y.mean(),
        }
        is_softmax = config.exploration == "softmax"
        metrics |= self.policy(policy_q) if is_softmax else {"actor/epsilon": self.epsilon(step)}
        if (step + 1) % config.target_every == 0:
            self.follow("critic")
        return metrics

    def policy(self, q: np.ndarray) -> dict[str, float]:
        """The temperature's step: dH / dlog alpha = var(Q / alpha) under the softmax."""
        config = self.config
        target = np.log(ACTIONS / 2) if config.target_entropy is None else config.target_entropy
        logits = q / np.exp(self.log_temperature)
        p = softmax(logits, axis=1)
        entropy = -(p * np.log(p)).sum(axis=1)
        variance = (p * logits**2).sum(axis=1) - (p * logits).sum(axis=1) ** 2
        metrics = {
            "temperature/loss": np.square(entropy - target).mean(),
            "temperature/value": np.exp(self.log_temperature),
            "actor/entropy": entropy.mean(),
        }
        change = (2.0 * (entropy - target) * variance).mean()
        self.log_temperature = self.adams["temperature"].step(self.log_temperature, change)
        return metrics

    def epsilon(self, step: int) -> float:
        """Falls from its start to its end over so many environment steps."""
        config = self.config
        steps = step * config.num_envs * config.num_steps / config.num_updates
        share = min(steps / config.epsilon_steps, 1.0)
        return (1.0 - share) * config.epsilon_start + share * config.epsilon_end


CASES: dict[str, dict[str, Any]] = {
    "default": {"epsilon_steps": 30.0},
    "double": {"double": True, "discount": 0.8, "max_grad_norm": 0.1},
    "dueling, squared": {"dueling": True, "loss": "squared", "target_every": 2, "target_rate": 1.0},
    "n-step, double, dueling": {"n_step": 3, "double": True, "dueling": True},
    "twins averaged, softmax": {
        "num_critics": 2,
        "loss": "squared",
        "max_grad_norm": 0.0,
        **SOFTMAX,
    },
    "the smallest of three": {"num_critics": 3, "reduction": "min"},
    "twins with the action as an input": {
        "num_critics": 2,
        "action_input": True,
        "target_entropy": 0.9,
        **SOFTMAX,
    },
}

update = jax.jit(dqn.update)
act = jax.jit(dqn.act, static_argnames="explore")
fresh = functools.partial(reference.state, dqn, SPEC)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    dqn.check(SPEC, config)
    batches = functools.partial(transitions, n_step=config.n_step)
    state, _ = reference.assert_updates(update, fresh(config), config, Reference, batches)
    assert state.steps == 4


def test_losses_by_hand() -> None:
    batch = reference.two_rows(
        action=jnp.array([0, 3]), observation=jnp.zeros((2, 3)), next_observation=jnp.ones((2, 3))
    )
    config = dataclasses.replace(CONFIG, discount=0.5)

    def online(observation: Any) -> Any:
        after = jnp.array([3.0, 9.0, 0.0, 0.0])
        return jnp.where(observation[..., :1] > 0, after, jnp.arange(4.0))[None]

    def target(observation: Any) -> Any:
        values = jnp.array([8.0, 4.0, 2.0, 0.0])
        return jnp.broadcast_to(values, (*observation.shape[:-1], 4))[None]

    state = fresh(CONFIG).replace(critic=online, target_critic=target)
    # Q(s, a) = (0, 3); y = (1 + 0.5 max(8, 4, 2, 0), 2) = (5, 2): errors -5 and 1, Huber 4.5 and
    # 0.5. Double: the online critic takes action 1, of which the target thinks 4: y = (3, 2),
    # errors -3 and 1.
    for double, expected in ((False, [2.5, 3.5, 1.5]), (True, [1.5, 2.5, 1.5])):
        changed = dataclasses.replace(config, double=double)
        error, metrics = dqn.critic_loss(online, state, batch, changed)
        values = [error, metrics["critic/target"], metrics["critic/q"]]
        np.testing.assert_allclose(values, expected)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        update, fresh(CONFIG), CONFIG, transitions()
    )


def test_targets_rest_between_their_moves() -> None:
    config = dataclasses.replace(CONFIG, target_every=3, target_rate=1.0)
    state = fresh(config)
    for step in range(6):
        new, _ = update(state, transitions(), KEY, step, config)
        is_due = step % 3 == 2
        assert reference.moved(state.target_critic, new.target_critic) == is_due
        if is_due:
            reference.assert_close(new.target_critic, new.critic.parameters)
        state = new


def test_explores_less_and_less() -> None:
    changes: dict[str, Any] = {"epsilon_start": 0.8, "epsilon_end": 0.2, "epsilon_steps": 100.0}
    config = dataclasses.replace(CONFIG, num_envs=4, num_steps=5, num_updates=10, **changes)
    state, observation = fresh(config), jnp.ones((20_000, 3))
    best = act(state, np.ones(3, np.float32), KEY, config, explore=False)[0]
    # 2 environment steps with each
    for updates, share in ((0, 0.8), (25, 0.5), (50, 0.2), (1_000, 0.2)):
        state = state.replace(steps=jnp.asarray(updates))
        action = act(state, observation, KEY, config, explore=True)[0]
        expected = share * (ACTIONS - 1) / ACTIONS
        np.testing.assert_allclose((action != best).mean(), expected, atol=0.02)


def test_softmax_draws_by_the_values() -> None:
    config = dataclasses.replace(CONFIG, num_critics=2, **SOFTMAX)
    state = fresh(config)
    observation = jnp.ones((40_000, 3))
    q = np.asarray(dqn.values(state.critic, observation[0], state, config))
    action = act(state, observation, KEY, config, explore=True)[0]
    drawn = np.bincount(action, minlength=ACTIONS) / 40_000
    np.testing.assert_allclose(drawn, softmax(q / 0.5), atol=0.01)
    assert act(state, observation, KEY, config, explore=False)[0].tolist() == [q.argmax()] * 40_000


def test_the_target_of_a_softmax_is_that_of_the_allowed_actions() -> None:
    """L(alpha) with log(n / 2) for n allowed actions, and the entropy over these."""
    config, batch = dataclasses.replace(CONFIG, exploration="softmax"), transitions()
    mask = jnp.broadcast_to(jnp.arange(ACTIONS) < 3, (5, ACTIONS))
    state = reference.state(dqn, reference.masked_spec(ACTIONS), config)
    batch = reference.masked(batch, mask, mask)
    metrics = update(state, batch, KEY, 0, config)[1]
    q = np.asarray(dqn.values(state.critic, batch.observation, state, config), np.float64)[:, :3]
    alpha = np.exp(float(state.log_temperature.parameters))
    p = softmax(q / alpha, axis=1)
    entropy = -(p * np.log(p)).sum(axis=1)
    expected = np.square(entropy - np.log(3 / 2)).mean()
    np.testing.assert_allclose(metrics["temperature/loss"], expected, rtol=1e-4)


@pytest.mark.learn
@pytest.mark.parametrize("torso", ["iru", "drc"])
def test_progressive_loss_learns_from_a_part_of_the_steps(torso: Any) -> None:
    """With weight 1 only that part counts."""
    spec = EnvSpec("test/Pictures-v0", (8,), ACTIONS, discrete=True)
    changes: dict[str, Any] = {"torso": torso, "compute": 4, "hidden": (8,), "num_critics": 2}
    config = dataclasses.replace(
        CONFIG, grid=(2, 2) if torso == "drc" else None, progressive=1.0, **changes
    )
    dqn.check(spec, config)
    state = jax.jit(lambda key: dqn.init(key, spec, config))(KEY)
    critic = state.critic.parameters
    state = state.replace(target_critic=jax.tree.map(lambda x: 1.5 * np.asarray(x), critic))
    batch = transitions()
    seen = reference.noise(KEY, (2, 5, 8)).astype(np.float32)
    batch = batch.replace(observation=seen[0], next_observation=seen[1])

    @jax.jit
    def gradient(critic: Any, span: Any) -> Any:
        loss = lambda x: dqn.critic_loss(torsos.during(x, span), state, batch, config)[0]  # noqa: E731
        return jax.grad(loss)(critic)

    span = jax.jit(lambda key: torsos.spans(jax.random.fold_in(key, 1), config.compute))(KEY)
    part, whole = (gradient(critic, x) for x in (span, torsos.Span(jnp.asarray(0), jnp.asarray(4))))
    leaves = jax.tree.leaves(jax.tree.map(jnp.subtract, part, whole))
    assert sum(np.square(x).sum() for x in leaves) > 1e-8, "another gradient"
    stepped, _ = update(state, batch, KEY, 0, config)
    by_hand, _ = jax.jit(dqn.optimiser(0, config).update)(part, state.critic.optimiser_state)
    expected = jax.tree.map(lambda x, y: np.asarray(x) + y, critic, by_hand)
    reference.assert_close(stepped.critic.parameters, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("torso", ["mlp", "resnet", "iru", "recall"])
@pytest.mark.parametrize("action_input", [False, True])
def test_torsos(torso: Any, action_input: bool) -> None:
    changes: dict[str, Any] = {"torso": torso, "action_input": action_input}
    changes |= {"compute": 3 if torso in torsos.THINKING else 1, "num_critics": 2}
    config = dataclasses.replace(CONFIG, hidden=(8,), **changes)
    dqn.check(SPEC, config)

    def learnt() -> Any:
        state = dqn.init(KEY, SPEC, config)
        q = dqn.values(state.critic, jnp.zeros((6, 3)), state, config)
        return q, state, dqn.update(state, transitions(), KEY, 0, config)[0]

    q, state, again = jax.eval_shape(learnt)
    assert q.shape == (6, ACTIONS)
    assert jax.tree.structure(again) == jax.tree.structure(state)


def test_refuses_continuous_actions() -> None:
    with pytest.raises(
        ValueError,
        match=r"^agent 'dqn' chooses among discrete actions, those of 'Pendulum-v1' are "
        r"continuous\. Use: rljax train sac --env Pendulum-v1, or choose an environment such "
        r"as CartPole-v1\.$",
    ):
        dqn.check(EnvSpec("Pendulum-v1", (3,), 1), CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_entropy": 1.5}, r"target-entropy is 1\.5, it must be finite and in \[0, 1\.386"),
        (
            {"action_input": True, "dueling": True},
            r"action-input does not go with --config\.dueling: ",
        ),
        (
            {"action_input": True, "torso": "drc", "grid": (1, 3)},
            r"action-input does not go with --config\.torso drc: ",
        ),
        ({"evaluation": "softmax"}, r"evaluation softmax needs the temperature that"),
        ({"munchausen": True, "double": True}, r"munchausen does not go with --config\.double: "),
        ({"munchausen": True, "n_step": 3}, r"munchausen does not go with --config\.n-step: "),
        (
            {"munchausen": True, "distribution": "c51"},
            r"munchausen does not go with --config\.distribution c51: choose none or quantile",
        ),
    ],
)
def test_refuses_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^--config\.{message}"):
        dqn.check(SPEC, dataclasses.replace(CONFIG, **changes))


def test_is_evaluated_by_its_best_actions_or_by_draws() -> None:
    observation = reference.transitions(0, 200).observation
    actions = {}
    for name in ("greedy", "softmax"):
        config = dataclasses.replace(CONFIG, evaluation=name, **SOFTMAX)
        state = reference.state(dqn, SPEC, config, log_temperature=jnp.zeros(()))
        actions[name] = [
            act(state, observation, jax.random.key(i), config, explore=False)[0] for i in range(2)
        ]
    np.testing.assert_array_equal(*actions["greedy"])
    assert 0.1 < np.mean(actions["softmax"][0] != actions["softmax"][1]) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "config", "message"),
    [
        (
            "gymnax/CartPole-v1",
            {"hindsight": 0.5},
            (
                r"^--config\.hindsight replaces goals, and the observations of "
                r"'gymnax/CartPole-v1' hold none\. Choose an environment whose observations hold "
                r"goals, such as rljax/BoxPick-4x4, or --config\.hindsight 0\.$"
            ),
        ),
        ("CartPole-v1", {"hindsight": [0.0, 0.5]}, r"the observations of 'CartPole-v1' hold none"),
        (
            "rljax/BoxPick-2x4",
            {"hindsight": 0.5, "n_step": 2, "num_envs": 2},
            (
                r"^--config\.n-step sums rewards that --config\.hindsight would have to replace: "
                r"use one of them, with --config\.n-step 1 or --config\.hindsight 0\.$"
            ),
        ),
    ],
)
def test_refuses_draws_that_cannot_be(
    env: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        small_runs.train("dqn", env, 100, tmp_path / "run", config, seeds=2)
