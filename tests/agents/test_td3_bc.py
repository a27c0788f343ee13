"""TD3+BC against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import td3, td3_bc
from tests.agents import actor_critic, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "batch_size": 5,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "target_rate": 0.1,
}
CONFIG = td3_bc.Config(**SIZES, normalise_observations=False)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {}


def example() -> tuple[EnvSpec, td3_bc.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class Reference(actor_critic.TD3):
    """TD3's, with the actor's loss of arXiv:2106.06860, equation 3."""

    def actor_loss(
        self, batch: Transition, action: np.ndarray, step: int
    ) -> tuple[dict[str, float], np.ndarray]:
        """dL/da = 2 (a - a_data) / A - lambda dq/da, without the 1 / A of a sum."""
        q, slope = reference.value(self.critic[0], batch.observation, action)
        scale = self.config.value_weight / np.abs(q).mean()
        share = 0.5 if self.config.imitation == "mean" else 1.0
        apart = action - batch.action
        imitation = share * np.square(apart).sum(axis=1).mean()
        metrics = {"actor/loss": imitation - scale * q.mean(), "actor/imitation": imitation}
        return metrics | {"actor/value_scale": scale}, 2.0 * share * apart - scale * slope


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "noise that clips": {"target_noise": 0.8, "target_noise_clip": 0.3},
    "the sum, as ReBRAC": {"imitation": "sum", "value_weight": 1.0},
    "scaled rewards": {"reward_scale": 7.0, "discount": 0.5},
    "no delay, three critics": {"policy_delay": 1, "num_critics": 3},
}

update = jax.jit(td3_bc.update)
act = jax.jit(td3_bc.act, static_argnames="explore")
fresh = functools.partial(reference.state, td3_bc, SPEC)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference)


def test_actor_loss_by_hand() -> None:
    batch = reference.two_rows(action=jnp.array([[0.5, 0.0], [0.0, -1.0]]))
    actor: Any = lambda observation: jnp.zeros((2, 2))  # noqa: E731
    state = fresh(CONFIG)
    first = jax.tree.map(jnp.zeros_like, state.critic)
    first.parameters.params["members"]["output"]["bias"] -= 4.0
    # lambda = 2.5 / 4, so that the value's part is 2.5;
    # |0 - a|^2 = (0.25, 1), half of it as a mean over dimensions
    for imitation, expected in (("mean", 0.3125), ("sum", 0.625)):
        config = dataclasses.replace(CONFIG, imitation=imitation)  # pyright: ignore[reportArgumentType]
        loss, metrics = td3_bc.actor_loss(actor, state.replace(critic=first), batch, config)
        values = [loss, metrics["actor/imitation"], metrics["actor/value_scale"]]
        np.testing.assert_allclose(values, [2.5 + expected, expected, 0.625], rtol=1e-6)


@jax.jit
def gradient(state: td3_bc.State, config: td3_bc.Config) -> list[Any]:
    """The actor's, leaf by leaf."""
    batch = reference.transitions()
    loss = lambda actor: td3_bc.actor_loss(actor, state, batch, config)[0]  # noqa: E731
    return jax.tree.leaves(jax.grad(loss)(state.actor.parameters))


@pytest.mark.parametrize("factor", [0.01, 1000.0])
def test_size_of_the_values_does_not_matter(factor: float) -> None:
    state = fresh(CONFIG)
    larger = jax.tree.map(lambda x: x, state.critic)
    output = larger.parameters.params["members"]["output"]
    output |= {name: factor * x for name, x in output.items()}
    gradients = [gradient(x, CONFIG) for x in (state, state.replace(critic=larger))]
    reference.assert_close(*gradients, rtol=1e-4)


def test_scale_of_the_values_has_no_gradient() -> None:
    # Else lambda's mean |q| and the mean q would cancel where all q are positive.
    state = fresh(CONFIG)
    positive = jax.tree.map(lambda x: x, state.critic)
    positive.parameters.params["members"]["output"]["bias"] += 5.0
    state = state.replace(critic=positive)
    pulled, more = (
        gradient(state, dataclasses.replace(CONFIG, value_weight=x)) for x in (0.0, 2.5)
    )
    assert any(np.abs(x - y).max() > 1e-3 for x, y in zip(pulled, more, strict=True))


def test_critics_learn_as_td3s() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    theirs = td3.State(**vars(state))
    left = update(state, batch, KEY, 0, CONFIG)[0].critic
    right = jax.jit(td3.update)(theirs, batch, KEY, 0, td3.Config(**SIZES))[0].critic
    reference.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_actor_and_all_targets_rest_between_their_moves() -> None:
    delayed = ("actor", "target_actor", "target_critic")
    reference.assert_delayed(update, fresh(CONFIG), CONFIG, delayed)


@pytest.mark.parametrize("explore", [False, True])
def test_act_adds_noise_within_bounds(explore: bool) -> None:
    config = dataclasses.replace(CONFIG, exploration_noise=1.0)
    others = actor_critic.assert_acts_with_noise(act, fresh(config), config, explore)
    assert others == ({},)
