"""EDAC against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, Transition, check
from rljax.agents import edac
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = edac.Config(
    hidden=(8, 8),
    num_critics=4,
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
)
SAC_N = dataclasses.replace(CONFIG, diversity_weight=None)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,
    "temperature_lr": 0.0,
    "num_critics": 2,
    "diversity_weight": 0.1,
}


def example() -> tuple[EnvSpec, edac.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """EDAC in float64, from arXiv:2110.01548, with the settings that agents/edac.py adds."""

    def __init__(self, state: edac.State, config: edac.Config) -> None:
        self.config = config
        self.actor = reference.mlp(state.actor)
        self.critics = reference.critics(state.critic)
        self.targets = reference.critics(state.target_critic)
        self.log_temperature = np.log(config.init_temperature)
        self.adams = [
            reference.Adam(rate)
            for rate in (config.actor_lr, config.critic_lr, config.temperature_lr)
        ]

    def sample(self, observation: np.ndarray, noise: np.ndarray) -> tuple[Any, ...]:
        """a = tanh u, u = mean + std noise, and log pi(a|s) [B] = sum_i log
        N(u_i) - log(1 - tanh(u_i)^2).
        """
        output, inputs = reference.forward(self.actor, observation)
        mean, raw = np.split(output, 2, axis=1)
        log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
        u = mean + np.exp(log_std) * noise
        gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        log_prob = (gaussian - 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))).sum(axis=1)
        return np.tanh(u), log_prob, inputs, log_std, raw == log_std

    def target(self, batch: Transition, noise: np.ndarray) -> np.ndarray:
        """y [B], from the actor and the temperature as they are now."""
        observation = np.asarray(batch.next_observation, np.float64)
        action, log_prob = self.sample(observation, noise)[:2]
        soft_value = (
            reference.smallest(self.targets, observation, action)[0]
            - np.exp(self.log_temperature) * log_prob
        )
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        return np.asarray(batch.reward, np.float64) + self.config.discount * alive * soft_value

    def update(
        self, batch: Transition, next_noise: np.ndarray, noise: np.ndarray
    ) -> dict[str, float]:
        """One update and its metrics."""
        config, size = self.config, len(noise)
        observation = np.asarray(batch.observation, np.float64)
        temperature = np.exp(self.log_temperature)
        y = self.target(batch, next_noise)

        # The actor, with critics before their step: as in tests/agents/test_sac.py.
        action, log_prob, inputs, log_std, inside = self.sample(observation, noise)
        q, slope = reference.smallest(self.critics, observation, action)
        change = (temperature * 2.0 * action - (1.0 - action**2) * slope) / size
        change_log_std = (change * np.exp(log_std) * noise - temperature / size) * inside
        gradient = reference.backward(
            self.actor, inputs, np.concatenate([change, change_log_std], axis=1)
        )[0]
        self.actor = self.adams[0].step(self.actor, gradient)
        entropy = -log_prob.mean()
        metrics = {"actor/loss": (temperature * log_prob - q).mean(), "actor/entropy": entropy}
        excess = entropy - (
            -action.shape[1] if config.target_entropy is None else config.target_entropy
        )
        metrics |= {
            "temperature/loss": self.log_temperature * excess,
            "temperature/value": temperature,
        }
        self.log_temperature = self.adams[2].step(self.log_temperature, excess)

        if config.update_order == "actor_first":
            y = self.target(batch, next_noise)
        action = np.asarray(batch.action, np.float64)
        error, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        loss = error
        if config.diversity_weight is not None:
            cost, own = diversity(self.critics, observation, action)
            gradient = reference.zip_map(
                lambda g, d: g + config.diversity_weight * d, gradient, own
            )
            loss = error + config.diversity_weight * cost
            metrics["critic/similarity"] = cost / len(self.critics)
        self.critics = self.adams[1].step(self.critics, gradient)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics | {
            "critic/loss": loss,
            "critic/error": error,
            "critic/q": q.mean(),
            "critic/target": y.mean(),
        }


def diversity(
    critics: list[reference.MLP], observation: np.ndarray, action: np.ndarray
) -> tuple[float, list[Any]]:
    """D = mean_B sum_{c != k} <n_c, n_k> / (C - 1), n = g / (|g| + 1e-10), g = dQ/da,
    and each critic's gradient.

    Between kinks of the relus g is a product of matrices: with m the masks, v_L = m_L w_L^T,
    v_i = m_i (v_{i+1} W_i^T) and g the last of (v_1 W_0^T). Of dL/dg = t_0, carried forward as
    t_{i+1} = m_{i+1} (t_i W_i), the gradient of W_i is t_i^T v_{i+1}; biases have none.
    """
    x = np.concatenate([observation, action], axis=1)
    rows, number = observation.shape[1], len(critics)
    slopes, backwards, masks = [], [], []
    for critic in critics:
        _, inputs = reference.forward(critic, x)
        mask = [layer > 0.0 for layer in inputs[1:]]
        v = [np.ones((len(x), 1))]
        for i in reversed(range(len(inputs))):
            v.insert(0, v[0] @ critic[2 * i].T * (mask[i - 1] if i else 1.0))
        slopes.append(v[0][:, rows:])
        backwards.append(v)
        masks.append(mask)
    g = np.stack(slopes)  # [C, B, A]
    length = np.linalg.norm(g, axis=-1, keepdims=True)
    n = g / (length + 1e-10)
    pairs = sum((n[c] * n[k]).sum(axis=-1) for c, k in itertools.permutations(range(number), 2))
    # dD/dn_c = 2 sum_{k != c} n_k / (C - 1) / B, and n moves by dg / r - g (g . dg) / (|g| r^2)
    # where r = |g| + 1e-10.
    change = 2.0 * (n.sum(axis=0) - n) / (number - 1) / len(x)
    r = length + 1e-10
    change = change / r - g * (g * change).sum(axis=-1, keepdims=True) / (
        np.maximum(length, 1e-300) * r**2
    )
    gradients = []
    for critic, v, mask, dg in zip(critics, backwards, masks, change, strict=True):
        t, gradient = np.concatenate([np.zeros_like(observation), dg], axis=1), []
        for i in range(len(critic) // 2):
            gradient += [t.T @ v[i + 1], np.zeros_like(critic[2 * i + 1])]
            if i < len(mask):
                t = t @ critic[2 * i] * mask[i]
        gradients.append(gradient)
    return float(np.mean(pairs) / (number - 1)), gradients


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "two critics, heavy weight, clipped log std": {
        "num_critics": 2,
        "diversity_weight": 200.0,
        "log_std_min": -0.6,
        "log_std_max": 0.5,
    },
    "actor first": {
        "update_order": "actor_first",
        "diversity_weight": 5.0,
        "target_entropy": -0.7,
        "init_temperature": 0.3,
    },
    "SAC-N": {"diversity_weight": None, "discount": 0.5},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(edac.update)
act = jax.jit(edac.act, static_argnames="explore")


def fresh(config: edac.Config) -> edac.State:
    """A State to start from."""
    return reference.state(
        edac, SPEC, config, log_temperature=jnp.log(jnp.float32(config.init_temperature))
    )


@jax.jit
def critic_loss(state: edac.State, batch: Transition, config: edac.Config) -> tuple[Any, Any]:
    """The loss with its metrics, and its gradients in whatever it reads."""

    def loss(critic: Any, actor: Any, target_critic: Any, log_temperature: Any) -> Any:
        temperature = state.log_temperature.replace(parameters=log_temperature)
        whole = state.replace(actor=actor, target_critic=target_critic, log_temperature=temperature)
        return edac.critic_loss(critic, whole, batch, KEY, config)

    learnt = (state.critic.parameters, state.actor.parameters)
    parts = (*learnt, state.target_critic, state.log_temperature.parameters)
    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*parts)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        next_noise, noise = (
            reference.noise(key, batch.action.shape) for key in jax.random.split(key)
        )
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, next_noise, noise))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )


def test_diversity_gradient_equals_finite_differences() -> None:
    """The derivation above, of which no part is taken from here."""
    critics, batch = reference.critics(fresh(CONFIG).critic), reference.transitions()
    observation, action = (np.asarray(x, np.float64) for x in (batch.observation, batch.action))

    def cost() -> float:
        n = []
        for critic in critics:
            _, slope = reference.value(critic, observation, action)
            n.append(slope / (np.sqrt((slope**2).sum(axis=-1, keepdims=True)) + 1e-10))
        cosines = np.einsum("cba,kba->bck", np.stack(n), np.stack(n)) * (1.0 - np.eye(len(critics)))
        return float(cosines.sum(axis=(1, 2)).mean() / (len(critics) - 1))

    value, gradients = diversity(critics, observation, action)
    np.testing.assert_allclose(value, cost(), rtol=1e-12)
    generator = np.random.default_rng(0)
    for critic, gradient in zip(critics, gradients, strict=True):
        for array, slope in zip(critic, gradient, strict=True):
            index = tuple(generator.integers(array.shape))
            array[index] += 1e-6
            above = cost()
            array[index] -= 2e-6
            below = cost()
            array[index] += 1e-6
            np.testing.assert_allclose(slope[index], (above - below) / 2e-6, rtol=1e-5, atol=1e-8)


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **list(CASES.values())[1])
    observation = np.asarray(reference.transitions().observation)
    inside = Reference(fresh(config), config).sample(observation, np.zeros((5, 2)))[4]
    assert 0.0 < inside.mean() < 1.0


def test_init_starts_at_the_initial_temperature() -> None:
    config = dataclasses.replace(CONFIG, init_temperature=0.3)
    log_temperature = jax.jit(lambda key: edac.init(key, SPEC, config).log_temperature)(KEY)
    np.testing.assert_allclose(log_temperature.parameters, np.log(0.3), rtol=1e-6)


def test_critic_loss_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(
        reward=np.asarray([1.0, 2.0], np.float32), terminated=np.array([False, True])
    )
    config = dataclasses.replace(SAC_N, discount=0.5)
    state = fresh(SAC_N).replace(
        actor=lambda observation: jnp.zeros((*observation.shape[:-1], 4)),
        target_critic=lambda observation, action: jnp.array([[3.0, 1.0], [2.0, 5.0], [4.0, 9.0]]),
        log_temperature=networks.Trained(np.float32(-np.inf), None),  # no entropy: plain arithmetic
    )
    critic: Any = lambda observation, action: jnp.array([[1.0, 0.0], [3.0, 3.0], [2.0, 4.0]])  # noqa: E731
    loss, metrics = jax.jit(lambda key: edac.critic_loss(critic, state, batch, key, config))(KEY)
    # y = (1 + 0.5 min(3, 2, 4), 2) = (2, 2);  errors (-1, -2), (1, 1), (0, 2);  (5 + 2 + 4) / 2
    parts = [metrics[f"critic/{name}"] for name in ("error", "target", "q")]
    np.testing.assert_allclose([loss, *parts], [5.5, 5.5, 2.0, 13 / 6], rtol=1e-6)
    assert "critic/similarity" not in metrics


@pytest.mark.parametrize(
    ("slope", "expected"),
    [
        ([[3.0, 0.0], [0.1, 0.0], [7.0, 0.0]], 1.0),  # the same way, however far
        ([[2.0, 0.0], [0.0, 5.0]], 0.0),  # square to each other
        ([[2.0, 0.0], [-0.3, 0.0]], -1.0),
        # As far apart as three can be: -1 / (C - 1).
        ([[0.0, 1.0], [3**0.5, -1.0], [-(3**0.5), -1.0]], -0.5),
        ([[1.0, 0.0], [1.0, 1.0]], 0.5**0.5),
        ([[0.0, 0.0], [1.0, 0.0]], 0.0),  # no direction at all
    ],
)
def test_likeness_by_hand(slope: Any, expected: float) -> None:
    slope = jnp.asarray(slope, jnp.float32)[:, None] * jnp.ones((1, 4, 1))  # [C, B, A]
    np.testing.assert_allclose(edac.likeness(slope), np.full(4, expected), atol=1e-6)
    assert np.isfinite(jax.grad(lambda slope: edac.likeness(slope).sum())(slope)).all()


def test_critics_at_rest_leave_gradients_finite() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    still = jax.tree.map(
        lambda x: x.at[0].set(-jnp.abs(x[0]) if x.ndim == 2 else 0.0), state.critic.parameters
    )
    still = state.critic.replace(parameters=still)
    (loss, _), gradients = critic_loss(state.replace(critic=still), batch, CONFIG)
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_no_weight_is_sac_n() -> None:
    batch = reference.transitions()
    without, zero = (dataclasses.replace(CONFIG, diversity_weight=weight) for weight in (None, 0.0))
    states = [update(fresh(CONFIG), batch, KEY, 0, config)[0] for config in (without, zero)]
    for left, right in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_weight_turns_the_critics_apart() -> None:
    batch = reference.transitions()

    @jax.jit
    def learnt(state: edac.State, config: edac.Config) -> Any:
        state = jax.lax.fori_loop(
            0, 100, lambda i, state: edac.update(state, batch, KEY, i, config)[0], state
        )
        return edac.likeness(
            networks.values_and_slopes(state.critic, batch.observation, batch.action)[1]
        ).mean()

    plain, diverse = (
        learnt(fresh(CONFIG), dataclasses.replace(CONFIG, diversity_weight=x)) for x in (0.0, 20.0)
    )
    assert diverse < plain - 0.3
    assert -1.0 / (CONFIG.num_critics - 1) - 1e-5 <= diverse


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


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    state, observation = fresh(CONFIG), reference.observed()[:6]
    output = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    u = output[:, :2] + explore * np.exp(output[:, 2:]) * reference.noise(KEY, (6, 2))
    action, extras = act(state, observation, KEY, CONFIG, explore=explore)
    np.testing.assert_allclose(action, np.tanh(u), rtol=1e-4, atol=1e-5)
    assert extras == {}


def test_diversity_needs_two_critics() -> None:
    check(edac, SPEC, dataclasses.replace(SAC_N, num_critics=1))
    with pytest.raises(ValueError, match=r"^--config\.num-critics is 1, it must be at least 2\.$"):
        check(edac, SPEC, dataclasses.replace(CONFIG, num_critics=1))
