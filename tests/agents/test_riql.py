"""RIQL against float64 NumPy written from the authors' equations,
and what the paper promises of its parts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import riql
from rljax.runs import experiments
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {"hidden": (8, 8), "batch_size": 5, "num_critics": 3, "target_rate": 0.1}
CONFIG = riql.Config(
    **SIZES, actor_lr=1e-2, critic_lr=2e-2, value_lr=3e-2, normalise_observations=False
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {}


def example() -> tuple[EnvSpec, riql.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, dataclasses.replace(CONFIG, decay_steps=10.0, dropout=0.1), reference.transitions()


class Reference:
    """Robust implicit Q-learning in float64: arXiv:2310.12955,
    in the order and with the constants of its code.
    """

    def __init__(self, state: riql.State, config: riql.Config) -> None:
        self.config = config
        self.actor, self.value = reference.actor(state.actor), reference.mlp(state.value)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.actor_adam, self.critic_adam = (
            reference.Adam(config.actor_lr),
            reference.Adam(config.critic_lr),
        )
        self.value_adam = reference.Adam(config.value_lr)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        """One update; its metrics."""
        config = self.config
        observation = np.asarray(batch.observation, np.float64)
        next_observation = np.asarray(batch.next_observation, np.float64)
        action, reward = (np.asarray(x, np.float64) for x in (batch.action, batch.reward))
        alive = 1.0 - np.asarray(batch.terminated, np.float64)

        q = np.quantile(
            [reference.value(x, observation, action)[0] for x in self.targets],
            config.quantile,
            axis=0,
        )
        value_loss, v, gradient = reference.expectile(self.value, observation, q, config.expectile)
        next_v = reference.forward(self.value, next_observation)[0][:, 0]
        self.value = self.value_adam.step(self.value, gradient)

        y = np.clip(reward + config.discount * alive * next_v, config.target_min, config.target_max)
        critic_loss, values, linear, gradient = self.errors(observation, action, y)
        self.critics = self.critic_adam.step(self.critics, gradient)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)

        weight = np.minimum(np.exp(config.inverse_temperature * (q - v)), config.max_weight)
        squashed = config.policy == "deterministic"
        distance, gradient = reference.imitation(
            self.actor, observation, action, weight, config, key, squashed
        )
        self.actor_adam.rate = reference.cosine(config.actor_lr, step, config.decay_steps)
        self.actor = self.actor_adam.step(self.actor, gradient)
        return {
            "value/loss": value_loss,
            "value/v": v.mean(),
            "actor/loss": (weight * distance).mean(),
            "actor/advantage": (q - v).mean(),
            "actor/weight": weight.mean(),
            "critic/loss": critic_loss,
            "critic/q": values.mean(),
            "critic/target": y.mean(),
            "critic/linear": linear,
        }

    def errors(
        self, observation: np.ndarray, action: np.ndarray, y: np.ndarray
    ) -> tuple[float, Any, float, Any]:
        """Mean of h, values [C, B], the share beyond t = 1 / sigma^2, gradients:
        dh/dQ = clip((Q - y) / t, +-1).
        """
        threshold, gradients, values = 1.0 / self.config.huber_sigma**2, [], []
        for critic in self.critics:
            q, inputs = reference.forward(critic, np.concatenate([observation, action], axis=-1))
            values.append(q[:, 0])
            change = np.clip((q - y[:, None]) / threshold, -1.0, 1.0) / (len(y) * len(self.critics))
            gradients.append(reference.backward(critic, inputs, change)[0])
        error = np.abs(np.stack(values) - y)
        inside = error < threshold
        loss = np.where(inside, error**2 / (2.0 * threshold), error - threshold / 2.0).mean()
        return float(loss), np.stack(values), float(1.0 - inside.mean()), gradients


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "five critics": {"num_critics": 5, "quantile": 0.1},
    "gaussian": {"policy": "gaussian", "log_std_max": 0.0},
    "small errors": {"huber_sigma": 0.5, "discount": 0.5},
    "large errors": {"huber_sigma": 3.0, "inverse_temperature": 2.0, "max_weight": 1.05},
    "clipped targets": {"target_min": -0.2, "target_max": 0.5},
    "decay, dropout": {"decay_steps": 3.0, "dropout": 0.4, "quantile": 0.5},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(riql.update)
value_loss = jax.jit(riql.value_loss)
actor_loss = jax.jit(riql.actor_loss)
act = jax.jit(riql.act, static_argnames="explore")


def fresh(config: riql.Config) -> riql.State:
    """A State to start from, whose values lie among the critics'."""
    state = reference.state(riql, SPEC, config)
    state.value.parameters.params["output"]["bias"] -= 0.2
    return state


def constant(v: Any) -> Any:
    """A value that is a number, whatever the state."""
    return lambda observation: jnp.full((observation.shape[0], 1), v)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.mlp(state.value), expected.value, "value")
    reference.assert_same(reference.actor(state.actor), expected.actor, "actor")
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")


def test_the_cases_bound_some_and_not_all() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    metrics = {
        name: update(fresh(c), batch, KEY, 0, c)[1]
        for name, c in (
            (name, dataclasses.replace(CONFIG, **changes)) for name, changes in CASES.items()
        )
    }
    assert metrics["small errors"]["critic/linear"] == 0.0
    assert (
        0.0 < metrics["default"]["critic/linear"] < metrics["large errors"]["critic/linear"] < 1.0
    )
    q = jnp.quantile(state.target_critic(batch.observation, batch.action), 0.25, axis=0)
    advantage = np.asarray(q - state.value(batch.observation)[:, 0])
    assert 0.0 < (advantage > 0.0).mean() < 1.0
    assert 0.0 < (np.exp(2.0 * advantage) > 1.05).mean() < 1.0


@jax.jit
@jax.value_and_grad
def huber(error: Any, sigma: float) -> Any:
    """The loss of one critic that is off by `error`, and its slope."""
    critic: Any = lambda observation, action: jnp.full((1, 5), error)  # noqa: E731
    batch = reference.transitions().replace(reward=jnp.zeros(5))
    return riql.critic_loss(
        critic, jnp.zeros(5), batch, dataclasses.replace(CONFIG, huber_sigma=sigma)
    )[0]


@pytest.mark.parametrize(
    ("sigma", "threshold"), [(0.1, 100.0), (0.5, 4.0), (1.0, 1.0), (3.0, 1.0 / 9.0)]
)
def test_huber_is_quadratic_up_to_its_threshold_and_linear_beyond(
    sigma: float, threshold: float
) -> None:
    losses = np.array([huber(x * threshold, sigma) for x in (0.5, -0.999999, 3.0, -50.0)])
    np.testing.assert_allclose(losses[:, 0] / threshold, [0.125, 0.5, 2.5, 49.5], rtol=1e-5)
    np.testing.assert_allclose(losses[:, 1], [0.5, -1.0, 1.0, -1.0], rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_quantile_of_the_critics_is_numpys(share: float) -> None:
    config = dataclasses.replace(CONFIG, quantile=share, expectile=0.5, num_critics=5)
    state, batch = fresh(config), reference.transitions()
    q = np.quantile(np.asarray(state.target_critic(batch.observation, batch.action)), share, axis=0)
    metrics = update(state, batch, KEY, 0, config)[1]
    np.testing.assert_allclose(
        metrics["actor/advantage"] + metrics["value/v"], q.mean(), rtol=1e-4, atol=1e-6
    )


def test_targets_are_clipped() -> None:
    batch = reference.transitions().replace(reward=jnp.array([-1e4, -50.0, 0.0, 50.0, 1e4]))
    metrics = riql.critic_loss(lambda *_: jnp.zeros((1, 5)), jnp.zeros(5), batch, CONFIG)[1]  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(
        metrics["critic/target"], (-100.0 - 50.0 + 0.0 + 50.0 + 1000.0) / 5.0, rtol=1e-6
    )


def test_one_wild_target_pulls_no_harder_than_another() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    wild = batch.reward.at[0].set(100.0)
    wilder = batch.reward.at[0].set(1000.0)
    for left, right in zip(
        *(
            jax.tree.leaves(update(state, batch.replace(reward=x), KEY, 0, CONFIG)[0].critic)
            for x in (wild, wilder)
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)


def test_weights_grow_with_the_advantage_up_to_their_bound() -> None:
    config = dataclasses.replace(CONFIG, policy="deterministic")
    actor, batch = fresh(config).actor.parameters, reference.transitions()
    weights = [
        float(actor_loss(actor, jnp.full(5, x), batch, KEY, config)[1]["actor/weight"])
        for x in (-1, 0, 1, 9)
    ]
    np.testing.assert_allclose(weights, [np.exp(-3.0), 1.0, np.exp(3.0), 100.0], rtol=1e-5)


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return update(state, batch.replace(**flags), KEY, 0, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-5
    )


def test_no_action_but_the_datas_is_judged() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    moved = jax.tree.map(lambda x: x + 1.0, state.actor.parameters)
    other = state.replace(actor=state.actor.replace(parameters=moved))
    for part in ("critic", "value", "target_critic"):
        new, same = (getattr(update(x, batch, KEY, 0, CONFIG)[0], part) for x in (state, other))
        for left, right in zip(*map(jax.tree.leaves, (new, same)), strict=True):
            np.testing.assert_array_equal(left, right)


def test_value_judges_before_its_step() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    moving, resting = (
        update(state, batch, KEY, 0, dataclasses.replace(CONFIG, value_lr=x))[1]
        for x in (3e-2, 0.0)
    )
    assert moving["critic/target"] == resting["critic/target"]
    assert moving["actor/advantage"] == resting["actor/advantage"]


def test_order_of_the_batch_changes_nothing() -> None:
    batch = reference.transitions()
    shuffled = jax.tree.map(lambda x: np.asarray(x)[[3, 1, 4, 0, 2]], batch)
    new, other = (update(fresh(CONFIG), x, KEY, 0, CONFIG)[0] for x in (batch, shuffled))
    for left, right in zip(*map(jax.tree.leaves, (new, other)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_rate_falls_to_zero_as_a_cosine() -> None:
    config = dataclasses.replace(CONFIG, decay_steps=100.0)
    rates = [riql.actor_rate(jnp.asarray(step), config) for step in (0, 50, 100, 150)]
    np.testing.assert_allclose(np.asarray(rates), [1e-2, 0.5e-2, 0.0, 0.0], rtol=1e-5, atol=1e-9)
    old = fresh(config)
    for step, moves in ((99, True), (100, False)):
        new = update(old, reference.transitions(), KEY, step, config)[0]
        for part, expected in (("actor", moves), ("critic", True), ("value", True)):
            pairs = zip(
                *(jax.tree.leaves(getattr(x, part).parameters) for x in (old, new)), strict=True
            )
            assert any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs) == expected, part


def test_rate_stays_without_decay() -> None:
    assert (
        riql.actor_rate(jnp.asarray(10**7), dataclasses.replace(CONFIG, decay_steps=None))
        == CONFIG.actor_lr
    )


def test_begins_as_the_authors_do() -> None:
    state = jax.jit(riql.init, static_argnums=1)(KEY, SPEC, CONFIG)
    members = state.critic.parameters.params["members"]
    np.testing.assert_allclose(members["hidden_0"]["bias"], 0.1, rtol=1e-6)
    assert np.abs(members["output"]["kernel"]).max() <= 3e-3
    assert np.abs(state.value.parameters.params["output"]["kernel"]).max() > 3e-2
    assert state.actor.parameters.log_std is None


@pytest.mark.parametrize("policy", ["gaussian", "deterministic"])
def test_act_explores_around_the_mean_within_bounds(policy: Any) -> None:
    config = dataclasses.replace(CONFIG, policy=policy, exploration_noise=0.7)
    state, observation = fresh(config), reference.transitions(9, 6).observation
    actor = state.actor.parameters
    output = reference.forward(reference.mlp(actor.mean), np.asarray(observation, np.float64))[0]
    mean = np.tanh(output) if policy == "deterministic" else output
    std = 0.7 if actor.log_std is None else np.exp(np.asarray(actor.log_std, np.float64))
    noise = std * np.asarray(jax.random.normal(KEY, (6, 2)))
    actual, extras = act(state, observation, KEY, config, explore=True)
    np.testing.assert_allclose(actual, np.clip(mean + noise, -1.0, 1.0), rtol=1e-4, atol=1e-5)
    assert 0.0 < (np.abs(actual) == 1.0).mean() < 1.0
    assert extras == {}
    actual, _ = act(state, observation, KEY, config, explore=False)
    np.testing.assert_allclose(actual, np.clip(mean, -1.0, 1.0), rtol=1e-4)


@pytest.mark.parametrize(
    ("env", "data", "expected"),
    [
        ("Hopper-v5", "replay.hdf5", (0.1, "torch")),  # recorded here
        (None, "d4rl/hopper-medium-replay-v2", (1.0, "edac")),  # the authors', for their 3M updates
        ("HalfCheetah-v5", "replay.hdf5", (1.0, "edac")),  # nobody falls
    ],
)
def test_critics_see_falls_in_recordings_of_hopper(
    env: str | None, data: str, expected: tuple[float, str]
) -> None:
    config = experiments.preset("riql", riql, env, data)
    assert (config.huber_sigma, config.critic_initialisation) == expected
