"""EDAC against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, Transition, check
from rljax.agents import edac
from tests.agents import actor_critic, reference

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
    return SPEC, CONFIG, reference.transitions()


class Reference(actor_critic.SAC):
    """EDAC in float64, from arXiv:2110.01548, with the settings that agents/edac.py adds."""

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        """One update: the actor, with critics before their step, and the critics."""
        weight = self.config.diversity_weight
        key_critic, key_actor = jax.random.split(key)
        y = self.target(batch, key_critic)
        metrics = self.improve(batch, key_actor)
        if self.config.update_order == "actor_first":
            y = self.target(batch, key_critic)
        observation, action = batch.observation, batch.action
        error, q, gradient = reference.squared_errors(self.critic, observation, action, y)
        loss = error
        if weight is not None:
            cost, slope = diversity(self.critic, observation, action)
            gradient = reference.zip_map(lambda g, d: g + weight * d, gradient, slope)
            loss = error + weight * cost
            metrics["critic/similarity"] = cost / len(self.critic)
        self.move("critic", gradient)
        self.follow("critic")
        metrics |= {"critic/loss": loss, "critic/error": error}
        return metrics | {"critic/q": q.mean(), "critic/target": y.mean()}


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

update = jax.jit(edac.update)
act = jax.jit(edac.act, static_argnames="explore")
fresh = functools.partial(reference.state, edac, SPEC)


@jax.jit
def critic_loss(critic: Any, state: edac.State) -> Any:
    """The loss of the examples' batch."""
    return edac.critic_loss(critic, state, reference.transitions(), KEY, CONFIG)[0]


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference)


def test_diversity_gradient_equals_finite_differences() -> None:
    """The derivation above, of which no part is taken from here."""
    critics, batch = reference.critics(fresh(CONFIG).critic), reference.transitions()
    observation, action = map(reference.float64, (batch.observation, batch.action))

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
    assert 0.0 < actor_critic.clipped_share(Reference(fresh(config), config)) < 1.0


def test_init_starts_at_the_initial_temperature() -> None:
    config = dataclasses.replace(CONFIG, init_temperature=0.3)
    log_temperature = jax.jit(lambda key: edac.init(key, SPEC, config).log_temperature)(KEY)
    np.testing.assert_allclose(log_temperature.parameters, np.log(0.3), rtol=1e-6)


def test_critic_loss_by_hand() -> None:
    config = dataclasses.replace(SAC_N, discount=0.5)
    state = fresh(SAC_N).replace(
        actor=lambda observation: jnp.zeros((*observation.shape[:-1], 4)),
        target_critic=lambda observation, action: jnp.array([[3.0, 1.0], [2.0, 5.0], [4.0, 9.0]]),
        log_temperature=networks.Trained(np.float32(-np.inf), None),  # no entropy: plain arithmetic
    )
    critic: Any = lambda observation, action: jnp.array([[1.0, 0.0], [3.0, 3.0], [2.0, 4.0]])  # noqa: E731
    loss, metrics = edac.critic_loss(critic, state, reference.two_rows(), KEY, config)
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
    state = fresh(CONFIG)
    still = jax.tree.map(
        lambda x: x.at[0].set(-jnp.abs(x[0]) if x.ndim == 2 else 0.0), state.critic.parameters
    )
    loss, gradient = jax.value_and_grad(critic_loss)(still, state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((loss, gradient)))


def test_no_weight_is_sac_n() -> None:
    batch = reference.transitions()
    without, zero = (dataclasses.replace(CONFIG, diversity_weight=weight) for weight in (None, 0.0))
    states = [update(fresh(CONFIG), batch, KEY, 0, config)[0] for config in (without, zero)]
    reference.assert_close(*states)


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
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_critic_loss_teaches_the_critic_alone() -> None:
    reference.assert_teaches_the_critic_alone(critic_loss, fresh(CONFIG))


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    others = actor_critic.assert_acts_by_a_squashed_gaussian(act, fresh(CONFIG), CONFIG, explore)
    assert others == ({},)


def test_diversity_needs_two_critics() -> None:
    check(edac, SPEC, dataclasses.replace(SAC_N, num_critics=1))
    with pytest.raises(ValueError, match=r"^--config\.num-critics is 1, it must be at least 2\.$"):
        check(edac, SPEC, dataclasses.replace(CONFIG, num_critics=1))
