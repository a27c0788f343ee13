"""CQL against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from rljax.agent import EnvSpec, Transition
from rljax.agents import cql
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = cql.Config(
    hidden=(8, 8),
    critic_hidden=(8, 8),
    batch_size=5,
    num_parts=1,
    num_actions=3,
    bc_steps=2,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
)
LAGRANGE = dataclasses.replace(CONFIG, lagrange=True)
KEY = jax.random.key(0)
# Critics are not held low.
PROBE: dict[str, Any] = {"penalty_weight": 0.0, "critic_hidden": (32, 32)}


def example() -> tuple[EnvSpec, cql.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, LAGRANGE, reference.transitions()


class Reference:
    """CQL(H) in float64, from arXiv:2006.04779, with the settings that agents/cql.py adds."""

    def __init__(self, state: cql.State, config: cql.Config) -> None:
        self.config = config
        self.actor = reference.mlp(state.actor)
        self.critics = reference.critics(state.critic)
        self.targets = reference.critics(state.target_critic)
        self.log_temperature = np.log(config.init_temperature)
        self.log_multiplier = np.log(config.init_multiplier)
        rates = (config.actor_lr, config.critic_lr, config.temperature_lr, config.critic_lr)
        self.adams = [reference.Adam(rate) for rate in rates]

    def heads(self, observation: np.ndarray) -> tuple[Any, ...]:
        """Mean, log std, the inputs of each layer, and where log std is not clipped."""
        output, inputs = reference.forward(self.actor, observation)
        mean, raw = np.split(output, 2, axis=-1)
        raw = raw + self.config.log_std_offset
        log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
        return mean, log_std, inputs, raw == log_std

    def sample(self, observation: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """a = tanh u, u = mean + std noise, and log pi(a|s) = sum_i log
        N(u_i) - log(1 - tanh(u_i)^2).
        """
        mean, log_std = self.heads(observation)[:2]
        u = mean + np.exp(log_std) * noise
        return np.tanh(u), density(u, mean, log_std)

    def values(
        self, critics: list[Any], observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, list[Any]]:
        """Q_c(s, a) [C, K, B] of actions [K, B, A], and the inputs of each critic's layers."""
        rows = np.concatenate(
            [np.broadcast_to(observation, (len(action), *observation.shape)), action], axis=-1
        )
        passes = [reference.forward(critic, rows.reshape(-1, rows.shape[-1])) for critic in critics]
        return np.stack([q.reshape(action.shape[:2]) for q, _ in passes]), [
            inputs for _, inputs in passes
        ]

    def whole(self, batch: Transition, key: Any) -> tuple[dict[str, float], list[Any]]:
        """Metrics and the critics' gradient."""
        config, number, size = self.config, self.config.num_actions, len(batch.reward)
        observation = np.asarray(batch.observation, np.float64)
        next_observation = np.asarray(batch.next_observation, np.float64)
        key_policy, key_uniform = jax.random.split(key)
        shape = (1 + number, 2 * size, batch.action.shape[1])
        noise = np.asarray(jax.random.normal(key_policy, shape), np.float64)
        action, log_prob = self.sample(observation, noise[:, :size])
        next_action, next_log_prob = self.sample(next_observation, noise[:, size:])

        # The target: one action without or with entropy, or the best of N by each critic or by the
        # smaller.
        if config.backup in ("deterministic", "entropy"):
            next_q = self.values(self.targets, next_observation, next_action[:1])[0].min(axis=0)[0]
        else:
            next_q = self.values(self.targets, next_observation, next_action[1:])[0]
            next_q = (
                next_q.max(axis=1).min(axis=0)
                if config.backup == "max"
                else next_q.min(axis=0).max(axis=0)
            )
        if config.backup == "entropy":
            next_q = next_q - np.exp(self.log_temperature) * next_log_prob[0]
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        y = np.asarray(batch.reward, np.float64) + config.discount * alive * next_q

        # Equation 4, with 3 N candidates.
        box = jax.random.uniform(
            key_uniform, (number, *batch.action.shape), minval=-1.0, maxval=1.0
        )
        first = np.asarray(batch.action, np.float64)[None]
        q, inputs = self.values(
            self.critics, observation, np.concatenate([first, box, action[1:], next_action[1:]])
        )
        q, free = self.bounded(q, batch)
        logits = q.copy()
        if config.importance_sampling:
            volume = np.full((number, size), np.log(0.5 ** shape[-1]))
            logits[:, 1:] -= np.concatenate([volume, log_prob[1:], next_log_prob[1:]])
            logits[:, 0] = -np.inf
        temperature = config.gap_temperature
        gap = temperature * logsumexp(logits / temperature, axis=1) - q[:, 0]  # [C, B]
        low = -np.inf if config.gap_min is None else config.gap_min
        high = np.inf if config.gap_max is None else config.gap_max
        self.clipped = (gap < low) | (gap > high)
        mean_gap = np.clip(gap, low, high).mean(axis=1)

        # Errors in Q of the data's action and of the candidates: the soft maximum's slope is a
        # softmax.
        weight = config.penalty_weight * (np.exp(self.log_multiplier) if config.lagrange else 1.0)
        change = softmax(logits / temperature, axis=1)
        change[:, 0] -= 1.0
        change = change * weight * (~self.clipped)[:, None] * free / size
        change[:, 0] += 2.0 * (q[:, 0] - y) / size
        pairs = zip(self.critics, inputs, change, strict=True)
        gradient = [
            reference.backward(critic, rows, dq.reshape(-1, 1))[0] for critic, rows, dq in pairs
        ]
        error = np.square(q[:, 0] - y).mean(axis=1).sum()
        return {
            "critic/loss": error + sum(self.penalty(g) for g in mean_gap),
            "critic/error": error,
            "critic/gap": mean_gap.mean(),
            "critic/q": q[:, 0].mean(),
            "critic/target": y.mean(),
        }, gradient

    def bounded(self, q: np.ndarray, batch: Transition) -> tuple[np.ndarray, np.ndarray]:
        """The values [C, 1 + 3 N, B] that the gaps see, and where they move with the critics."""
        del batch
        return q, np.ones_like(q)

    def penalty(self, gap: float) -> float:
        """w G, or m (w G - tau), or m w (G - tau)."""
        config, m = self.config, np.exp(self.log_multiplier)
        if not config.lagrange:
            return config.penalty_weight * gap
        if config.weighted_target:
            return m * config.penalty_weight * (gap - config.target_gap)
        return m * (config.penalty_weight * gap - config.target_gap)

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        """One update and its metrics."""
        config, size = self.config, len(batch.reward)
        key_critic, key_actor = jax.random.split(key)
        metrics, gradient = self.whole(batch, key_critic)  # whatever `num_parts` is
        old = self.critics
        self.critics = self.adams[1].step(self.critics, gradient)

        # The actor through critics after their step or before it; at first towards the data's
        # actions instead: log N of u = artanh a has the slopes z / std in the mean and z^2 - 1 in
        # log std.
        observation = np.asarray(batch.observation, np.float64)
        temperature = np.exp(self.log_temperature)
        noise = reference.noise(key_actor, batch.action.shape)
        mean, log_std, inputs, inside = self.heads(observation)
        action, log_prob = self.sample(observation, noise)
        change = temperature * 2.0 * action / size
        change_log_std = (temperature * 2.0 * action * np.exp(log_std) * noise - temperature) / size
        if step < config.bc_steps:
            u = np.arctanh(np.clip(np.asarray(batch.action, np.float64), -1.0 + 1e-5, 1.0 - 1e-5))
            z = (u - mean) / np.exp(log_std)
            merit = density(u, mean, log_std)
            change = change - z / np.exp(log_std) / size
            change_log_std = change_log_std - (z**2 - 1.0) / size
        else:
            judges = self.critics if config.update_order == "critic_first" else old
            merit, slope = reference.smallest(judges, observation, action)
            slope = (1.0 - action**2) * slope / size
            change = change - slope
            change_log_std = change_log_std - slope * np.exp(log_std) * noise
        change = np.concatenate([change, change_log_std * inside], axis=1)
        self.actor = self.adams[0].step(
            self.actor, reference.backward(self.actor, inputs, change)[0]
        )
        entropy = -log_prob.mean()
        metrics |= {"actor/loss": (temperature * log_prob - merit).mean(), "actor/entropy": entropy}

        excess = entropy - (
            -action.shape[1] if config.target_entropy is None else config.target_entropy
        )
        metrics |= {
            "temperature/loss": self.log_temperature * excess,
            "temperature/value": temperature,
        }
        self.log_temperature = self.adams[2].step(self.log_temperature, excess)
        if config.lagrange:
            # Linear in m, so its slope in log m is itself.
            cost = self.penalty(metrics["critic/gap"])
            metrics |= {"multiplier/loss": -cost, "multiplier/value": np.exp(self.log_multiplier)}
            self.log_multiplier = self.adams[3].step(self.log_multiplier, -cost)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


def density(u: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """log pi of a = tanh u."""
    gaussian = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return (gaussian - 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))).sum(axis=-1)


CASES: dict[str, dict[str, Any]] = {
    "the authors'": {},
    "entropy backed up, no importance sampling, in parts, together": {
        "backup": "entropy",
        "importance_sampling": False,
        "gap_temperature": 0.5,
        "num_parts": 5,
        "update_order": "together",
        "init_temperature": 0.4,
        "target_entropy": -0.7,
        "penalty_weight": 3.0,
    },
    "maximum backed up, the authors' multiplier": {
        "backup": "max",
        "lagrange": True,
        "init_multiplier": 0.6,
        "gap_temperature": 2.0,
    },
    "CORL's maximum and multiplier, clipped gaps, three critics": {
        "backup": "max_of_min",
        "lagrange": True,
        "weighted_target": True,
        "target_gap": 0.8,
        "init_multiplier": 2.718,
        "gap_min": 4.0,
        "gap_max": 5.0,
        "num_critics": 3,
        "log_std_offset": -0.5,
        "log_std_min": -1.1,
        "log_std_max": 0.0,
        "bc_steps": 0,
    },
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(cql.update)
act = jax.jit(cql.act, static_argnames="explore")


def fresh(config: cql.Config) -> cql.State:
    """A State to start from."""
    starts = {"log_temperature": config.init_temperature, "log_multiplier": config.init_multiplier}
    return reference.state(
        cql, SPEC, config, **{name: jnp.log(jnp.float32(x)) for name, x in starts.items()}
    )


def loss_of(critic: Any, state: cql.State, batch: Transition, key: Any, config: cql.Config) -> Any:
    """The critics' loss on the candidates that a key draws."""
    part = (batch, cql.candidates(state, batch, key, config))
    return cql.critic_loss(critic, part, state, jax.random.fold_in(key, 1), config)


@jax.jit
def critic_loss(state: cql.State, batch: Transition, config: cql.Config) -> tuple[Any, Any]:
    """The loss with its metrics, and its gradients in whatever it reads."""

    def loss(critic: Any, actor: Any, target_critic: Any) -> Any:
        whole = state.replace(actor=actor, target_critic=target_critic)
        return loss_of(critic, whole, batch, KEY, config)

    parts = (state.critic.parameters, state.actor.parameters, state.target_critic)
    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*parts)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )
    reference.assert_same(
        state.log_multiplier.parameters, expected.log_multiplier, "log_multiplier"
    )


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **list(CASES.values())[-1])
    expected = Reference(fresh(config), config)
    expected.whole(reference.transitions(), KEY)
    assert 0.0 < expected.clipped.mean() < 1.0
    assert 0.0 < expected.heads(np.asarray(reference.transitions().observation))[3].mean() < 1.0


def test_init_starts_at_the_initial_temperature_and_multiplier() -> None:
    config = dataclasses.replace(CONFIG, init_temperature=0.3, init_multiplier=0.2)
    state = jax.jit(lambda key: cql.init(key, SPEC, config))(KEY)
    starts = [state.log_temperature.parameters, state.log_multiplier.parameters]
    np.testing.assert_allclose(starts, np.log([0.3, 0.2]), rtol=1e-6)


def fixed(mean: float, log_std: float) -> Any:
    """An actor that puts out the same everywhere."""
    return lambda observation: jnp.broadcast_to(
        jnp.asarray([mean] * 2 + [log_std] * 2), (*observation.shape[:-1], 4)
    )


@pytest.mark.parametrize("curvature", [0.0, 3.0])
def test_soft_maximum_approaches_the_integral_over_all_actions(curvature: float) -> None:
    # Each candidate's exp(Q) / p is an unbiased estimate of the integral of exp(Q) over [-1, 1]^2;
    # their number is left out. For Q = 0 that is the box's volume, so that uniform ones weigh 2^2
    # each.
    config = dataclasses.replace(CONFIG, num_actions=20_000)
    zero: Any = lambda s, a: jnp.zeros((1, *a.shape[:2]))  # noqa: E731
    state = fresh(CONFIG).replace(actor=fixed(0.2, np.log(0.9)), target_critic=zero)
    critic: Any = lambda s, a: -curvature * jnp.square(a - 0.3).sum(axis=-1)[None]  # noqa: E731
    batch = reference.transitions()
    _, metrics = jax.jit(lambda key: loss_of(critic, state, batch, key, config))(KEY)
    action = np.linspace(-1.0, 1.0, 2_001)
    integral = np.trapezoid(np.exp(-curvature * (action - 0.3) ** 2), action) ** 2
    estimate = metrics["critic/gap"] + metrics["critic/q"] - np.log(3 * config.num_actions)
    np.testing.assert_allclose(estimate, np.log(integral), atol=0.01)


def test_critic_loss_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(
        reward=np.asarray([1.0, 2.0], np.float32), terminated=np.array([False, True])
    )
    config = dataclasses.replace(
        CONFIG, discount=0.5, penalty_weight=2.0, importance_sampling=False
    )
    state = fresh(CONFIG).replace(
        target_critic=lambda s, a: jnp.array([[[3.0, 1.0]], [[2.0, 5.0]]])
    )
    critic: Any = lambda s, a: jnp.broadcast_to(  # noqa: E731
        jnp.array([[[10.0, 20.0]], [[12.0, 23.0]]]), (2, 10, 2)
    )
    loss, metrics = jax.jit(lambda key: loss_of(critic, state, batch, key, config))(KEY)
    # y = (1 + 0.5 min(3, 2), 2) = (2, 2);  errors (8, 18) and (10, 21);
    # (64 + 324 + 100 + 441) / 2 All ten candidates, the data's action among them, are worth the
    # same: G = log 10 for either critic.
    error, gap = 464.5, np.log(10.0)
    parts = [metrics[f"critic/{name}"] for name in ("target", "q", "error", "gap")]
    np.testing.assert_allclose(
        [loss, *parts], [error + 2 * 2.0 * gap, 2.0, 16.25, error, gap], rtol=1e-6
    )


@pytest.mark.parametrize(("backup", "expected"), [("max", 3.0), ("max_of_min", 2.0)])
def test_maximum_over_actions_comes_before_or_after_the_minimum(
    backup: Any, expected: float
) -> None:
    config = dataclasses.replace(CONFIG, backup=backup, num_actions=2, discount=1.0)
    values = jnp.array([[[1.0], [4.0]], [[3.0], [2.0]]])  # two critics, two actions
    state = fresh(CONFIG).replace(target_critic=lambda s, a: jnp.broadcast_to(values, (2, 2, 5)))
    batch = reference.transitions().replace(
        reward=np.zeros(5, np.float32), terminated=np.zeros(5, bool)
    )
    metrics = jax.jit(lambda key: loss_of(state.critic.parameters, state, batch, key, config))(KEY)[
        1
    ]
    np.testing.assert_allclose(metrics["critic/target"], expected)


def test_random_critics_are_penalised_as_in_wsrl() -> None:
    """WSRL's loss is the mean squared error of all critics plus alpha times the mean gap of those
    that it has drawn; here it is C times that. All candidates are worth the data's action: a gap
    is log 10 plus nothing.
    """
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    config = dataclasses.replace(
        CONFIG, num_critics=3, min_critics=2, penalty_weight=5.0, importance_sampling=False
    )
    state = fresh(CONFIG).replace(target_critic=lambda s, a: jnp.zeros((3, len(a), 2)))
    values = jnp.array([[[10.0, 20.0]], [[12.0, 23.0]], [[0.0, 1.0]]])
    critic: Any = lambda s, a: jnp.broadcast_to(values, (3, 10, 2))  # noqa: E731
    loss, metrics = jax.jit(lambda key: loss_of(critic, state, batch, key, config))(KEY)
    td_loss = np.square(np.asarray(values)[:, 0] - np.asarray(batch.reward)).mean()
    np.testing.assert_allclose(metrics["critic/gap"], np.log(10.0), rtol=1e-6)
    np.testing.assert_allclose(loss, 3 * (td_loss + 5.0 * np.log(10.0)), rtol=1e-6)


def test_penalty_lowers_actions_that_the_data_lack() -> None:
    batch = reference.transitions().replace(action=jnp.full((5, 2), 0.5))
    missing = jnp.asarray([[-0.9, -0.9], [-0.9, 0.9], [0.9, -0.9]])[:, None] * jnp.ones((3, 5, 2))

    @jax.jit
    def learnt(state: cql.State, config: cql.Config) -> Any:
        return jax.lax.fori_loop(
            0, 100, lambda i, state: cql.update(state, batch, KEY, i, config)[0], state
        )

    heights = []
    for weight in (0.0, 5.0):
        critic = learnt(fresh(CONFIG), dataclasses.replace(CONFIG, penalty_weight=weight)).critic
        heights.append(
            critic(batch.observation, missing).mean()
            - critic(batch.observation, batch.action).mean()
        )
    assert heights[1] < min(heights[0], 0.0) - 1.0


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return critic_loss(state, batch.replace(**flags), CONFIG)[0][1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_critic_loss_teaches_the_critic_alone() -> None:
    of_critic, *others = critic_loss(fresh(CONFIG), reference.transitions(), CONFIG)[1]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(of_critic))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(others))


def test_actor_clones_first_and_then_listens_to_the_critics() -> None:
    batch = reference.transitions()
    batch = batch.replace(action=jnp.ones((5, 2)))  # at the bounds, where a density can be infinite
    loss = jax.jit(jax.value_and_grad(cql.actor_loss, has_aux=True))
    state = fresh(CONFIG)
    other = state.replace(critic=jax.tree.map(lambda x: 2.0 * x, state.critic))
    for step, cloning in ((0, True), (1, True), (2, False)):
        both = [loss(s.actor.parameters, s, batch, KEY, step, CONFIG) for s in (state, other)]
        (values, gradients) = zip(*both, strict=True)
        assert np.isfinite(values[0][0])
        assert bool(values[0][0] == values[1][0]) == cloning
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients[0]))


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    state, observation = fresh(CONFIG), reference.observed()[:6]
    output = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    u = output[:, :2] + explore * np.exp(output[:, 2:]) * reference.noise(KEY, (6, 2))
    action, extras = act(state, observation, KEY, CONFIG, explore=explore)
    np.testing.assert_allclose(action, np.tanh(u), rtol=1e-4, atol=1e-5)
    assert extras == {}


def test_refuses_parts_of_unequal_size() -> None:
    with pytest.raises(
        ValueError, match=r"^--config\.num-parts is 2, it must divide the batch of 5\.$"
    ):
        cql.check(SPEC, dataclasses.replace(CONFIG, num_parts=2))


def test_parts_of_a_batch_change_speed_alone() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    one, five = (
        jax.jit(cql.update)(state, batch, KEY, 0, dataclasses.replace(CONFIG, num_parts=number))[0]
        for number in (1, 5)
    )
    pairs = zip(*map(jax.tree.leaves, (one.critic.parameters, five.critic.parameters)), strict=True)
    for left, right in pairs:
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)
