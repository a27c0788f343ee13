"""DQN against float64 NumPy written from the papers, and what they promise of its parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import MASK, EnvSpec, Part, Transition
from rljax.agents import dqn
from rljax.networks import torsos
from tests.agents import reference
from tests.helpers import small_runs

ACTIONS = 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
CLIPPED: dict[str, Any] = {"loss": "huber", "max_grad_norm": 10.0}
CONFIG = dqn.Config(
    hidden=(8, 8), batch_size=5, learning_rate=1e-2, target_rate=0.1, target_every=1, **CLIPPED
)
SOFTMAX: dict[str, Any] = {
    "exploration": "softmax",
    "temperature_lr": 1e-2,
    "init_temperature": 0.5,
}
KEY = jax.random.key(0)


def transitions(seed: int = 0, n_step: int = 1) -> Transition:
    """A batch of every kind, as a replay with `NStep` draws it."""
    batch, generator = reference.transitions(seed), np.random.default_rng(seed)
    batch = batch.replace(action=jnp.asarray(generator.integers(ACTIONS, size=5), jnp.int32))
    if n_step == 1:
        return batch
    steps = generator.integers(1, n_step + 1, size=5)
    return batch.replace(extras={"discount": jnp.asarray(CONFIG.discount**steps, jnp.float32)})


def example() -> tuple[EnvSpec, dqn.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, transitions()


class Reference:
    """Q-learning with targets in float64; the numbers are those of the papers in agents/dqn.py."""

    def __init__(self, state: dqn.State, config: dqn.Config) -> None:
        self.config = config
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.adam = reference.Adam(config.learning_rate)
        self.temperature_adam = reference.Adam(config.temperature_lr)
        temperature = networks.parameters_of(state.log_temperature)
        self.log_temperature = None if temperature is None else np.asarray(temperature, np.float64)

    def inputs(self, observation: np.ndarray) -> np.ndarray:
        """What a critic is given for each action [B, A, I]:
        the action too, where it is an input.
        """
        rows = np.repeat(observation[:, None], ACTIONS, axis=1)
        each = np.broadcast_to(np.eye(ACTIONS), (len(observation), ACTIONS, ACTIONS))
        return np.concatenate([rows, each], axis=-1) if self.config.action_input else rows

    def head(self) -> np.ndarray:
        """Q is outputs @ head, [K, A]: with [3, eq. 9], of a value and A advantages."""
        if self.config.action_input:
            return np.ones((1, 1))
        each = np.eye(ACTIONS)
        return np.vstack([np.ones(ACTIONS), each - 1.0 / ACTIONS]) if self.config.dueling else each

    def q(self, critic: reference.MLP, observation: np.ndarray) -> np.ndarray:
        """Q(s, .) [B, A]."""
        if self.config.action_input:
            return reference.forward(critic, self.inputs(observation))[0][..., 0]
        return reference.forward(critic, observation)[0] @ self.head()

    def reduced(self, critics: Any, observation: np.ndarray) -> np.ndarray:
        """The critics' mean or smallest values [B, A]."""
        q = np.stack([self.q(critic, observation) for critic in critics])
        return q.mean(axis=0) if self.config.reduction == "mean" else q.min(axis=0)

    def gradient(
        self, critic: reference.MLP, observation: np.ndarray, action: np.ndarray, change: np.ndarray
    ) -> Any:
        """Of the parameters, where `change` [B] is that of Q(s, a)."""
        if self.config.action_input:
            inputs = reference.forward(
                critic, self.inputs(observation)[np.arange(len(action)), action]
            )[1]
            return reference.backward(critic, inputs, change[:, None])[0]
        inputs = reference.forward(critic, observation)[1]
        return reference.backward(critic, inputs, change[:, None] * self.head()[:, action].T)[0]

    def update(self, batch: Transition, step: int) -> dict[str, float]:
        """One update, and its metrics."""
        config, size, row = self.config, len(batch.reward), np.arange(len(batch.reward))
        observation, successor = (
            np.asarray(x, np.float64) for x in (batch.observation, batch.next_observation)
        )
        action = np.asarray(batch.action)
        next_q = self.reduced(self.targets, successor)
        judge = self.reduced(self.critics, successor) if config.double else next_q  # [2]
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        discount = (
            config.discount
            if config.n_step == 1
            else np.asarray(batch.extras["discount"], np.float64)
        )
        y = (
            np.asarray(batch.reward, np.float64)
            + discount * alive * next_q[row, judge.argmax(axis=-1)]
        )
        policy_q = self.reduced(self.critics, observation)

        q = np.stack([self.q(critic, observation)[row, action] for critic in self.critics])
        error = q - y
        inside = np.abs(error) <= 1.0
        # e^2 / 2 within 1, |e| - 1/2 beyond: the slope is the clipped error
        if config.loss == "huber":
            loss, slope = (
                np.where(inside, 0.5 * error**2, np.abs(error) - 0.5),
                np.clip(error, -1.0, 1.0),
            )
        else:
            loss, slope = error**2, 2.0 * error
        gradient = [
            self.gradient(critic, observation, action, slope[c] / size)
            for c, critic in enumerate(self.critics)
        ]
        limit = config.max_grad_norm if config.max_grad_norm > 0 else None
        self.critics = self.adam.step(self.critics, reference.limited(gradient, limit))
        metrics = {
            "critic/loss": loss.mean(axis=1).sum(),
            "critic/q": q.mean(),
            "critic/target": y.mean(),
        }
        metrics |= (
            self.policy(policy_q)
            if config.exploration == "softmax"
            else {"actor/epsilon": self.epsilon(step)}
        )
        if (step + 1) % config.target_every == 0:
            self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics

    def policy(self, q: np.ndarray) -> dict[str, float]:
        """The temperature's step: dH / dlog alpha = var(Q / alpha) under the softmax."""
        config = self.config
        target = np.log(ACTIONS / 2) if config.target_entropy is None else config.target_entropy
        assert self.log_temperature is not None
        logits = q / np.exp(self.log_temperature)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        entropy = -(p * np.log(p)).sum(axis=1)
        variance = (p * logits**2).sum(axis=1) - (p * logits).sum(axis=1) ** 2
        metrics = {
            "temperature/loss": np.square(entropy - target).mean(),
            "temperature/value": np.exp(self.log_temperature),
            "actor/entropy": entropy.mean(),
        }
        change = (2.0 * (entropy - target) * variance).mean()
        self.log_temperature = self.temperature_adam.step(self.log_temperature, change)
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

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(dqn.update)
act = jax.jit(dqn.act, static_argnames="explore")


def fresh(config: dqn.Config) -> dqn.State:
    """A State to start from."""
    known: dict[str, Any] = {}
    if config.exploration == "softmax":
        known["log_temperature"] = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return reference.state(dqn, SPEC, config, **known)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    dqn.check(SPEC, config)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch = transitions(step, config.n_step)
        state, metrics = update(state, batch, KEY, step, config)
        reference.assert_metrics(metrics, expected.update(batch, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    if config.exploration == "softmax":
        assert state.log_temperature is not None
        reference.assert_same(
            state.log_temperature.parameters, expected.log_temperature, "log_temperature"
        )
    assert state.steps == 4


def loss(state: dqn.State, batch: Transition, config: dqn.Config) -> Any:
    """The loss with its metrics, and its gradients in the critics and in all else that it reads."""

    def of(critic: Any, online: Any, target_critic: Any) -> Any:
        return dqn.critic_loss(
            critic, state.replace(critic=online, target_critic=target_critic), batch, config
        )

    parts = (state.critic.parameters, state.critic.parameters, state.target_critic)
    return jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2), has_aux=True))(*parts)


def test_losses_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], transitions())
    batch = batch.replace(
        reward=np.array([1.0, 2.0]), terminated=np.array([False, True]), action=np.array([0, 3]),
        observation=np.zeros((2, 3)), next_observation=np.ones((2, 3)),
    )  # fmt: skip
    config = dataclasses.replace(CONFIG, discount=0.5)

    def online(observation: Any) -> Any:
        after = jnp.array([3.0, 9.0, 0.0, 0.0])
        return jnp.where(observation[..., :1] > 0, after, jnp.arange(4.0))[None]

    def target(observation: Any) -> Any:
        values = jnp.array([8.0, 4.0, 2.0, 0.0])
        return jnp.broadcast_to(values, (*observation.shape[:-1], 4))[None]

    state = fresh(CONFIG).replace(critic=online, target_critic=target)

    def by_hand(config: dqn.Config) -> Any:
        return jax.jit(lambda batch: dqn.critic_loss(online, state, batch, config))(batch)

    # Q(s, a) = (0, 3); y = (1 + 0.5 max(8, 4, 2, 0), 2) = (5, 2): errors -5 and 1, Huber 4.5 and
    # 0.5.
    error, metrics = by_hand(config)
    np.testing.assert_allclose(
        [error, metrics["critic/target"], metrics["critic/q"]], [2.5, 3.5, 1.5]
    )
    # Double: the online critic takes action 1, of which the target thinks 4: y = (3, 2), errors -3
    # and 1.
    error, metrics = by_hand(dataclasses.replace(config, double=True))
    np.testing.assert_allclose([error, metrics["critic/target"]], [1.5, 2.5])


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    @jax.jit
    def target(terminated: np.ndarray, truncated: np.ndarray) -> Any:
        flagged = batch.replace(terminated=terminated, truncated=truncated)
        return dqn.critic_loss(state.critic, state, flagged, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_loss_teaches_the_critic_alone() -> None:
    own, *others = loss(fresh(CONFIG), transitions(), dataclasses.replace(CONFIG, double=True))[1]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(own))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(others))


def test_targets_rest_between_their_moves() -> None:
    config = dataclasses.replace(CONFIG, target_every=3, target_rate=1.0)
    state = fresh(config)
    for step in range(6):
        new, _ = update(state, transitions(), KEY, step, config)
        pairs = list(
            zip(*map(jax.tree.leaves, (state.target_critic, new.target_critic)), strict=True)
        )
        moved = any(np.any(x != y) for x, y in pairs)
        assert moved == (step % 3 == 2)
        if moved:
            for copied, online in zip(
                *map(jax.tree.leaves, (new.target_critic, new.critic.parameters)), strict=True
            ):
                np.testing.assert_allclose(copied, online, atol=1e-6)
        state = new


def test_dueling_advantages_have_no_mean_of_their_own() -> None:
    config = dataclasses.replace(CONFIG, dueling=True)
    state = fresh(config)
    shifted = jax.tree.map(lambda x: x, state.critic.parameters)
    bias = shifted.params["members"]["output"]["bias"]
    shifted.params["members"]["output"]["bias"] = bias.at[:, 1:].add(5.0)
    observation = jnp.ones((2, 3))
    values = jax.jit(lambda critic: dqn.values(critic, observation, state, config))
    plain = values(state.critic)
    assert plain.shape == (2, ACTIONS)
    np.testing.assert_allclose(values(shifted), plain, atol=1e-5)


def test_explores_less_and_less() -> None:
    changes: dict[str, Any] = {"epsilon_start": 0.8, "epsilon_end": 0.2, "epsilon_steps": 100.0}
    config = dataclasses.replace(CONFIG, num_envs=4, num_steps=5, num_updates=10, **changes)
    state, observation = fresh(config), jnp.ones((20_000, 3))
    best = act(state, np.ones(3, np.float32), KEY, config, explore=False)[0]
    # 2 environment steps with each
    for updates, share in ((0, 0.8), (25, 0.5), (50, 0.2), (1_000, 0.2)):
        action, _ = act(
            state.replace(steps=jnp.asarray(updates)), observation, KEY, config, explore=True
        )
        np.testing.assert_allclose(
            (action != best).mean(), share * (ACTIONS - 1) / ACTIONS, atol=0.02
        )


def test_softmax_draws_by_the_values() -> None:
    config = dataclasses.replace(CONFIG, num_critics=2, **SOFTMAX)
    state = fresh(config)
    observation = jnp.ones((40_000, 3))
    q = np.asarray(dqn.values(state.critic, observation[0], state, config)) / 0.5
    expected = np.exp(q - q.max()) / np.exp(q - q.max()).sum()
    drawn = (
        np.bincount(act(state, observation, KEY, config, explore=True)[0], minlength=ACTIONS)
        / 40_000
    )
    np.testing.assert_allclose(drawn, expected, atol=0.01)
    assert act(state, observation, KEY, config, explore=False)[0].tolist() == [q.argmax()] * 40_000


def test_the_target_of_a_softmax_is_that_of_the_allowed_actions() -> None:
    """L(alpha) with log(n / 2) for n allowed actions, and the entropy over these."""
    parts = (Part(MASK, (ACTIONS,), "bool"), Part("state", (3,)))
    spec = EnvSpec("test/Masked-v0", (), ACTIONS, discrete=True, parts=parts)
    config, batch = dataclasses.replace(CONFIG, exploration="softmax"), transitions()
    mask = jnp.arange(ACTIONS) < 3
    masks = jnp.broadcast_to(mask, (len(batch.reward), ACTIONS))
    now, later = ({"state": x, MASK: masks} for x in (batch.observation, batch.next_observation))
    state = reference.state(dqn, spec, config)
    batch = batch.replace(observation=now, next_observation=later)
    metrics = update(state, batch, KEY, 0, config)[1]
    q = np.asarray(dqn.values(state.critic, now, state, config), np.float64)[:, :3]
    alpha = np.exp(float(state.log_temperature.parameters))
    p = np.exp(q / alpha) / np.exp(q / alpha).sum(axis=1, keepdims=True)
    entropy = -(p * np.log(p)).sum(axis=1)
    expected = np.square(entropy - np.log(3 / 2)).mean()
    np.testing.assert_allclose(metrics["temperature/loss"], expected, rtol=1e-4)


def test_temperature_finds_its_entropy() -> None:
    config = dataclasses.replace(CONFIG, **SOFTMAX | {"temperature_lr": 0.05}, learning_rate=0.0)
    state = fresh(config)
    for step in range(300):
        state, metrics = update(state, transitions(), KEY, step, config)
    np.testing.assert_allclose(metrics["actor/entropy"], np.log(2.0), atol=0.1)


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
    seen = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    batch = batch.replace(observation=seen[0], next_observation=seen[1])

    @jax.jit
    def gradient(critic: Any, span: Any) -> Any:
        return jax.grad(lambda x: dqn.critic_loss(torsos.during(x, span), state, batch, config)[0])(
            critic
        )

    def norm(tree: Any) -> float:
        return float(np.sqrt(sum(np.square(np.asarray(x)).sum() for x in jax.tree.leaves(tree))))

    span = jax.jit(lambda key: torsos.spans(jax.random.fold_in(key, 1), config.compute))(KEY)
    part, whole = (gradient(critic, x) for x in (span, torsos.Span(jnp.asarray(0), jnp.asarray(4))))
    assert norm(jax.tree.map(lambda x, y: np.asarray(x) - y, part, whole)) > 1e-4, (
        "another gradient"
    )
    stepped, _ = update(state, batch, KEY, 0, config)
    by_hand, _ = jax.jit(dqn.optimiser(config).update)(part, state.critic.optimiser_state)
    expected = jax.tree.map(lambda x, y: np.asarray(x) + y, critic, by_hand)
    for left, right in zip(
        *map(jax.tree.leaves, (stepped.critic.parameters, expected)), strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("torso", ["mlp", "resnet", "iru", "recall"])
@pytest.mark.parametrize("action_input", [False, True])
def test_torsos(torso: Any, action_input: bool) -> None:
    changes: dict[str, Any] = {
        "torso": torso,
        "hidden": (8,),
        "num_critics": 2,
        "action_input": action_input,
    }
    config = dataclasses.replace(CONFIG, compute=3 if torso in torsos.THINKING else 1, **changes)
    dqn.check(SPEC, config)
    state = jax.eval_shape(lambda key: dqn.init(key, SPEC, config), KEY)
    assert isinstance(state.critic.parameters, networks.Network)
    q = jax.eval_shape(
        lambda state: dqn.values(state.critic, jnp.zeros((6, 3)), state, config), state
    )
    assert q.shape == (6, ACTIONS)
    again, _ = jax.eval_shape(lambda state: dqn.update(state, transitions(), KEY, 0, config), state)
    assert jax.tree.structure(again) == jax.tree.structure(state)


def test_refuses_continuous_actions() -> None:
    with pytest.raises(
        ValueError,
        match=r"^agent 'dqn' chooses among discrete actions, those of 'Pendulum-v1' are "
        r"continuous\. Use: rljax train sac --env Pendulum-v1, or choose an environment such "
        r"as CartPole-v1\.$",
    ):
        dqn.check(EnvSpec("Pendulum-v1", (3,), 1), CONFIG)


def test_refuses_an_entropy_that_no_action_can_have() -> None:
    config = dataclasses.replace(CONFIG, target_entropy=1.5)
    with pytest.raises(
        ValueError, match=r"^--config\.target-entropy is 1\.5, it must be finite and in \[0, 1\.386"
    ):
        dqn.check(SPEC, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dueling": True}, r"^--config\.action-input does not go with --config\.dueling: "),
        (
            {"torso": "drc", "grid": (1, 3)},
            r"^--config\.action-input does not go with --config\.torso drc: ",
        ),
    ],
)
def test_refuses_an_action_as_an_input_of_what_values_all(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dqn.check(SPEC, dataclasses.replace(CONFIG, action_input=True, **changes))


def test_is_evaluated_by_its_best_actions_or_by_draws() -> None:
    observation = jnp.asarray(np.random.default_rng(0).normal(size=(200, 3)), jnp.float32)
    actions = {}
    for name in ("greedy", "softmax"):
        config = dataclasses.replace(CONFIG, evaluation=name, **SOFTMAX)
        state = reference.state(dqn, SPEC, config, log_temperature=jnp.zeros(()))
        actions[name] = [
            act(state, observation, jax.random.key(i), config, explore=False)[0] for i in range(2)
        ]
    np.testing.assert_array_equal(*actions["greedy"])
    assert 0.1 < np.mean(actions["softmax"][0] != actions["softmax"][1]) < 0.9
    with pytest.raises(
        ValueError, match=r"^--config\.evaluation softmax needs the temperature that"
    ):
        dqn.check(SPEC, dataclasses.replace(CONFIG, evaluation="softmax"))


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
