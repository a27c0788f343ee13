"""EDAC against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
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

            def similarity(critics: Any) -> float:
                return diversity(critics, observation, action)

            cost, slope = similarity(self.critic), reference.differences(similarity, self.critic)
            gradient = reference.zip_map(lambda g, d: g + weight * d, gradient, slope)
            loss = error + weight * cost
            metrics["critic/similarity"] = cost / len(self.critic)
        self.move("critic", gradient)
        self.follow("critic")
        metrics |= {"critic/loss": loss, "critic/error": error}
        return metrics | {"critic/q": q.mean(), "critic/target": y.mean()}


def diversity(critics: list[reference.MLP], observation: np.ndarray, action: np.ndarray) -> float:
    """D = mean_B sum_{c != k} <n_c, n_k> / (C - 1), n = g / (|g| + 1e-10), g = dQ/da."""
    g = np.stack([reference.value(critic, observation, action)[1] for critic in critics])
    n = g / (np.linalg.norm(g, axis=-1, keepdims=True) + 1e-10)
    cosines = np.einsum("cba,kba->bck", n, n) * (1.0 - np.eye(len(critics)))
    return float(cosines.sum(axis=(1, 2)).mean() / (len(critics) - 1))


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
    state, batch = fresh(CONFIG), reference.float64(reference.transitions())

    @jax.jit
    @jax.grad
    def gradient(critic: Any) -> Any:
        slope = networks.values_and_slopes(critic, batch.observation, batch.action)[1]
        return len(slope) * edac.likeness(slope).mean()

    expected = reference.differences(
        lambda critics: diversity(critics, batch.observation, batch.action),
        reference.exact(state.critic),
    )
    reference.assert_same(reference.exact(gradient(state.critic.parameters)), expected)


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
        log_temperature=actor_critic.NO_ENTROPY,
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

    def likeness(weight: float) -> Any:
        config = dataclasses.replace(CONFIG, diversity_weight=weight)
        critic = reference.learnt(edac, fresh(CONFIG), batch, config).critic
        slope = networks.values_and_slopes(critic, batch.observation, batch.action)[1]
        return edac.likeness(slope).mean()

    plain, diverse = map(likeness, (0.0, 20.0))
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
