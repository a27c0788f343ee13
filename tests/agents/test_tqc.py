"""TQC against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import tqc
from rljax.learning import registry
from rljax.networks.optimisation import resets
from tests.agents import actor_critic, distributional, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = tqc.Config(
    hidden=(8, 8),
    critic_hidden=(8, 7),
    batch_size=5,
    quantiles=6,
    num_critics=3,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
)
KEY = jax.random.key(0)
# So that entropy hardly weighs.
PROBE: dict[str, Any] = {
    "critic_hidden": (64, 64),
    "num_critics": 2,
    "quantiles": 10,
    "dropped_quantiles": 1,
    "init_temperature": 1e-3,
    "learn_temperature": False,
}


def example() -> tuple[EnvSpec, tqc.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class TQC(distributional.Distributional, actor_critic.SAC):
    """Algorithm 1 of arXiv:2005.04269."""

    def next_target(self, batch: Transition, action: np.ndarray, penalty: Any) -> Any:
        outputs, config = self.next_outputs(batch, action), self.config
        number = len(outputs) * (config.quantiles - config.dropped_quantiles)
        union = [sorted(outputs[:, row].ravel())[:number] for row in range(len(action))]
        reward, discount, penalty = self.step(batch, penalty)
        target = reward[:, None] + discount[:, None] * (union - penalty[:, None])
        return target, {"critic/target": target.mean()}

    def judged(
        self, critics: Any, observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mean of all quantiles, and its slope."""
        pairs = [self.value(critic, observation, action) for critic in critics]
        return tuple(np.mean(parts, axis=0) for parts in zip(*pairs, strict=True))  # pyright: ignore[reportReturnType]


class MeanQuantile(distributional.Quantile):
    """The mean over quantiles where Dabney et al. have their sum."""

    def loss(self, outputs: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        loss, slope = super().loss(outputs, target)
        return loss / len(self.tau), slope / len(self.tau)


def expected(state: Any, config: Any) -> TQC:
    exact = TQC(state, config)
    exact.head = MeanQuantile(config.quantiles, config.kappa)
    return exact


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "half dropped, kappa, scaled rewards": {
        "dropped_quantiles": 3,
        "kappa": 0.3,
        "reward_scale": 3.0,
        "discount": 0.5,
        "init_temperature": 0.3,
    },
    "none dropped, delay": {"dropped_quantiles": 0, "policy_delay": 2},
}

update = jax.jit(tqc.update)
act = jax.jit(tqc.act, static_argnames="explore")
fresh = functools.partial(reference.state, tqc, SPEC)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, expected)


def test_critic_loss_by_hand() -> None:
    """Two critics with quantiles (0, 2) and (1, 9), of which each loses one: 0 and 1 are left."""
    config = dataclasses.replace(
        CONFIG, quantiles=2, dropped_quantiles=1, num_critics=2, discount=0.5
    )
    following = jnp.array([[[0.0, 2.0], [5.0, 5.0]], [[1.0, 9.0], [5.0, 5.0]]])
    state = fresh(CONFIG).replace(
        actor=lambda observation: jnp.zeros((*observation.shape[:-1], 4)),
        target_critic=lambda observation, action, **_: following,
        log_temperature=actor_critic.NO_ENTROPY,
    )
    critic: Any = lambda observation, action, **_: jnp.array(  # noqa: E731
        [[[1.0, 1.5], [2.0, 2.0]], [[2.0, 2.0], [2.0, 2.0]]]
    )
    loss, metrics = tqc.critic_loss(critic, state, reference.two_rows(), KEY, config)
    # Row 0 has y = 1 + 0.5 (0, 1) = (1, 1.5); row 1 ends: y = (2, 2), without an error.
    # Critic 0, tau = 1/4: theta = 1 has u = (0, 0.5), and 1/4 (0 + 1/8) / 2 = 1/64;
    #           tau = 3/4: theta = 1.5 has u = (-0.5, 0), and |3/4 - 1| (1/8 + 0) / 2 = 1/64.
    # Critic 1, theta = 2 twice: u = (-1, -0.5), and (3/4 or 1/4) (1/2 + 1/8) / 2, 5/32 on average.
    # Both, over two rows: (1/64 + 5/32) / 2 = 11/128
    values = [loss, metrics["critic/target"], metrics["critic/q"]]
    np.testing.assert_allclose(values, [11 / 128, 1.625, 1.8125], rtol=1e-6)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_critic_loss_teaches_the_critic_alone() -> None:
    batch = reference.transitions()
    reference.assert_teaches_the_critic_alone(
        lambda critic, state: tqc.critic_loss(critic, state, batch, KEY, CONFIG)[0], fresh(CONFIG)
    )


def test_a_reset_begins_anew() -> None:
    config = dataclasses.replace(CONFIG, reset_at=(2,))
    state = fresh(config)
    for step in range(2):
        state = update(state, reference.transitions(step), KEY, step, config)[0]
        anew = tqc.init(jax.random.fold_in(KEY, resets.RESET), SPEC, config)
        assert reference.moved(state, anew) == (step == 0)


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    others = actor_critic.assert_acts_by_a_squashed_gaussian(act, fresh(CONFIG), CONFIG, explore)
    assert others == ({}, None)


def test_more_quantiles_than_there_are_cannot_be_dropped() -> None:
    message = r"^--config\.dropped-quantiles is 6, it must be below --config\.quantiles 6\.$"
    with pytest.raises(ValueError, match=message):
        tqc.check(SPEC, dataclasses.replace(CONFIG, dropped_quantiles=6))


@pytest.mark.parametrize(
    ("env", "dropped"),
    [
        ("Hopper-v5", 5),
        ("HalfCheetah-v4", 0),
        ("Walker2d-v5", 2),
        ("Ant-v5", 2),
        ("Humanoid-v5", 2),
        ("Pendulum-v1", 2),
    ],
)
def test_presets_drop_what_the_authors_table_says(env: str, dropped: int) -> None:
    """SamsungLabs/tqc_pytorch 65114eb, README.md: top_quantiles_to_drop_per_net."""
    config: Any = registry.preset("tqc", tqc, env)
    assert config.dropped_quantiles == dropped
    assert (config.num_critics, config.quantiles) == (5, 25)
    assert (config.hidden, config.critic_hidden) == ((256, 256), (512, 512, 512))
