"""SAC against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, Transition
from rljax.agents import sac
from rljax.networks import distributions
from rljax.networks.layers import uniform_hash
from rljax.networks.optimisation import resets
from tests.agents import actor_critic, distributional, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = sac.Config(
    hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, temperature_lr=3e-2, target_rate=0.1
)
KEY = jax.random.key(0)
# So that entropy hardly weighs.
PROBE: dict[str, Any] = {"init_temperature": 1e-3, "learn_temperature": False}


def example() -> tuple[EnvSpec, sac.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "clipped log std": {"log_std_min": -0.6, "log_std_max": 0.5},
    "scaled rewards": {
        "reward_scale": 7.0,
        "discount": 0.5,
        "init_temperature": 0.3,
        "target_entropy_share": 0.5,
    },
    "paper's temperature, delay": {
        "temperature_loss": "alpha",
        "target_entropy": -0.7,
        "init_temperature": 0.3,
        "policy_delay": 2,
    },
    "fixed temperature, three critics, no entropy in the target": {
        "learn_temperature": False,
        "init_temperature": 0.2,
        "num_critics": 3,
        "entropy_backup": False,
    },
}

update = jax.jit(sac.update)
act = jax.jit(sac.act, static_argnames="explore")
fresh = functools.partial(reference.state, sac, SPEC)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, actor_critic.SAC)


HEADS: dict[str, dict[str, Any]] = {
    "C51 of the smaller mean": {"value_head": "c51", "bins": 31},
    "C51, mean probabilities": {"value_head": "c51", "bins": 31, "target_value": "mean"},
    "C51, each its own": {"value_head": "c51", "bins": 31, "target_value": "own"},
    "quantiles, each averaged": {"value_head": "quantile", "quantiles": 7, "target_value": "mean"},
    "quantiles of the smaller mean": {"value_head": "quantile", "quantiles": 7, "kappa": 0.5},
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", HEADS.values(), ids=HEADS)
def test_updates_with_distributions_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes, init_temperature=0.3)
    reference.assert_updates(update, fresh(config), config, distributional.SAC)


@pytest.mark.parametrize("value_head", ["two_hot", "hl_gauss", "c51"])
def test_bins_are_checked(value_head: Any) -> None:
    config = dataclasses.replace(CONFIG, value_head=value_head, v_min=3.0, v_max=3.0)
    with pytest.raises(
        ValueError, match=r"^--config\.v-min is 3\.0, it must be below --config\.v-max"
    ):
        sac.check(SPEC, config)
    with pytest.raises(ValueError, match=r"^--config\.bins is 5, it must be at least 11\.$"):
        sac.check(SPEC, dataclasses.replace(CONFIG, value_head="hl_gauss", bins=5))


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **CASES["clipped log std"])
    assert 0.0 < actor_critic.clipped_share(actor_critic.SAC(fresh(config), config)) < 1.0


def test_critic_loss_by_hand() -> None:
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0)
    state = fresh(CONFIG).replace(
        actor=lambda observation: jnp.zeros((*observation.shape[:-1], 4)),
        target_critic=lambda observation, action, **_: jnp.array([[3.0, 1.0], [2.0, 5.0]]),
        log_temperature=actor_critic.NO_ENTROPY,
    )
    critic: Any = lambda observation, action, **_: jnp.array([[10.0, 20.0], [12.0, 23.0]])  # noqa: E731
    loss, metrics = sac.critic_loss(critic, state, reference.two_rows(), KEY, config)
    # y = (10 + 0.5 min(3, 2), 20) = (11, 20);  errors (-1, 0) and (1, 3);  1/2 + (1 + 9)/2
    values = [loss, metrics["critic/target"], metrics["critic/q"]]
    np.testing.assert_allclose(values, [5.5, 15.5, 16.25])


CRITICS = jnp.asarray([[1.0, -2.0], [-1.5, 0.5], [0.3, 0.2]])  # [C, A], of linear values


@jax.jit
def actor_loss(config: sac.Config) -> Any:
    """The actor's loss where critic c is worth `CRITICS`[c] times the action."""
    critic: Any = lambda s, a, **_: jnp.einsum("ca,...a->c...", CRITICS, a)  # noqa: E731
    state = fresh(CONFIG).replace(critic=critic)
    return sac.actor_loss(state.actor.parameters, state, reference.transitions(), KEY, config)[0]


@pytest.mark.parametrize("min_critics", [None, 2])
@pytest.mark.parametrize(("actor_value", "axis_mean"), [("smallest", np.min), ("mean", np.mean)])
def test_the_actor_climbs_the_smallest_value_or_the_mean(
    actor_value: Any, axis_mean: Any, min_critics: int | None
) -> None:
    """WSRL: `predicted_qs.min(axis=0)`; RLPD and SERL: `qs.mean(axis=0)`; of all critics, however
    many make the target.
    """
    config = dataclasses.replace(CONFIG, actor_value=actor_value, min_critics=min_critics)
    expected = actor_critic.SAC(fresh(CONFIG), CONFIG)
    batch = reference.float64(reference.transitions())
    noise = reference.noise(KEY, batch.action.shape)
    action, log_prob = expected.sample(expected.actor, batch.observation, noise)
    value = axis_mean(action @ np.asarray(CRITICS, np.float64).T, axis=1)
    loss = (expected.temperature * log_prob - value).mean()
    np.testing.assert_allclose(actor_loss(config), loss, rtol=1e-5)


@pytest.mark.parametrize("entropy_backup", [False, True])
def test_the_best_of_several_next_actions_makes_the_target(entropy_backup: bool) -> None:
    """WSRL's order: the smallest critic, the entropy, and then the best of `n_actions`; and its
    rewards are `reward_scale` r + `reward_bias`.
    """
    changes: dict[str, Any] = {"reward_scale": 10.0, "reward_shift": -5.0, "num_next_actions": 4}
    config = dataclasses.replace(CONFIG, entropy_backup=entropy_backup, **changes)
    state, batch = fresh(config), reference.transitions()
    expected, rows = actor_critic.SAC(state, config), reference.float64(batch)
    key, values = jax.random.split(KEY)[0], []
    for noise in reference.noise(key, (4, *batch.action.shape)):
        action, log_prob = expected.sample(expected.actor, rows.next_observation, noise)
        entropy = -expected.temperature * log_prob * entropy_backup
        values.append(expected.smallest_target(rows, action) + entropy)
    target = expected.bootstrapped(rows, np.max(values, axis=0)) - 5.0
    metrics = update(state, batch, KEY, 0, config)[1]
    np.testing.assert_allclose(metrics["critic/target"], target.mean(), rtol=1e-5)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_critic_loss_teaches_the_critic_alone() -> None:
    batch = reference.transitions()
    reference.assert_teaches_the_critic_alone(
        lambda critic, state: sac.critic_loss(critic, state, batch, KEY, CONFIG)[0], fresh(CONFIG)
    )


def test_delayed_actor_and_temperature_rest() -> None:
    config = dataclasses.replace(CONFIG, **CASES["paper's temperature, delay"])
    reference.assert_delayed(update, fresh(config), config, ("actor", "log_temperature"))


def test_density_integrates_to_one() -> None:
    action = np.tanh(np.linspace(-7.0, 7.0, 4_001))
    output = jnp.asarray([0.3, np.log(0.8)], jnp.float32)
    log_prob = jax.jit(lambda action: distributions.squashed(output, CONFIG).log_prob(action))
    density = np.exp(log_prob(action[:, None].astype(np.float32)))
    np.testing.assert_allclose(np.trapezoid(density, action), 1.0, rtol=1e-3)


@pytest.mark.parametrize("mean", [-30.0, -9.0, 0.0, 9.0, 30.0])
def test_log_prob_is_exact_far_out(mean: float) -> None:
    output = jnp.full((4, 2), jnp.asarray([mean, np.log(0.5)]))
    pi = distributions.squashed(output, CONFIG)
    action, log_prob = jax.jit(lambda key: pi.sample_and_log_prob(seed=key))(KEY)
    noise = reference.noise(KEY, (4, 1))[:, 0]
    u = mean + 0.5 * noise
    # 1 - tanh(u)^2 = 4 e^-2|u| / (1 + e^-2|u|)^2, the same on either side
    jacobian = np.log(4.0) - 2.0 * np.abs(u) - 2.0 * np.log1p(np.exp(-2.0 * np.abs(u)))
    expected = -0.5 * noise**2 - np.log(0.5) - 0.5 * np.log(2.0 * np.pi) - jacobian
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(action[:, 0], np.tanh(u), rtol=1e-6)


DROPOUT = 0.4


def thinned(critics: Any, key: Any, inputs: np.ndarray) -> np.ndarray:
    """Q_c [C, B] with dropout as in [Hiraoka et al., figure 1]: each critic's own units."""
    values = []
    for i, member in enumerate(jax.random.split(key, 2)):
        one = jax.tree.map(lambda x, i=i: x[i], networks.parameters_of(critics).params["members"])
        masks = [
            uniform_hash(jax.random.fold_in(member, layer), (5, 8)) < 1.0 - DROPOUT
            for layer in range(2)
        ]
        kept = [np.asarray(mask, np.float64) / (1.0 - DROPOUT) for mask in masks]
        layers = reference.norms(networks.Network(one, None))
        values.append(reference.forward_norms(layers, inputs, kept)[:, 0])
    return np.stack(values)


def test_droqs_critics_drop_units_in_training_alone() -> None:
    """Of target, critics and the actor's critics, before the layer norms; not in `value`."""
    config = dataclasses.replace(CONFIG, dropout=DROPOUT, layer_norm=True, actor_value="mean")
    state, batch = fresh(config), reference.transitions()
    expected, rows = actor_critic.SAC(state, config), reference.float64(batch)
    key, key_actor = jax.random.split(KEY)

    @jax.jit
    def losses(config: sac.Config) -> Any:
        critic, metrics = sac.critic_loss(state.critic.parameters, state, batch, key, config)
        actor = sac.actor_loss(state.actor.parameters, state, batch, key_actor, config)[0]
        return critic, metrics["critic/target"], actor, sac.value(state, *pair, config)

    pair = (batch.observation, batch.action)
    action, log_prob = expected.next_sample(rows, key)
    inputs = np.concatenate([rows.next_observation, action], axis=1)
    q = thinned(state.target_critic, jax.random.fold_in(key, 2), inputs).min(axis=0)
    y = expected.bootstrapped(rows, q - expected.temperature * log_prob)
    inputs = np.concatenate([rows.observation, rows.action], axis=1)
    q = thinned(state.critic, jax.random.fold_in(key, 3), inputs)
    noise = reference.noise(key_actor, batch.action.shape)
    action, log_prob = expected.sample(expected.actor, rows.observation, noise)
    inputs = np.concatenate([rows.observation, action], axis=1)
    climbed = thinned(state.critic, jax.random.fold_in(key_actor, 1), inputs).mean(axis=0)
    actor = (expected.temperature * log_prob - climbed).mean()
    numbers = losses(config)
    whole = (np.square(q - y).mean(axis=1).sum(), y.mean(), actor)
    np.testing.assert_allclose(numbers[:3], whole, rtol=1e-4)
    plain = dataclasses.replace(config, dropout=None)
    np.testing.assert_array_equal(numbers[3], losses(plain)[3], "an evaluation drops nothing")


def test_a_reset_begins_anew_but_for_the_replay() -> None:
    """At the 2nd, 3rd and 4th update; in between the State is learnt from the fresh one."""
    config = dataclasses.replace(CONFIG, reset_every=2, reset_at=(3,))
    state = before = jax.jit(lambda: sac.init(KEY, SPEC, config))()
    for step in range(5):
        key = jax.random.key(step)
        state, metrics = update(state, reference.transitions(step), key, step, config)
        anew = sac.init(jax.random.fold_in(key, resets.RESET), SPEC, config)
        assert reference.moved(state, anew) == (step + 1 not in (2, 3, 4)), step
        assert np.isfinite(metrics["critic/loss"])
    assert reference.moved(state, before)


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    others = actor_critic.assert_acts_by_a_squashed_gaussian(act, fresh(CONFIG), CONFIG, explore)
    assert others == ({}, None)


def test_the_policys_network_can_be_wsrls() -> None:
    """On AntMaze: `log_stds`, zeros of shape (A,), in place of an output; layer norms before the
    activations of the actor; critics of other widths.
    """
    config = dataclasses.replace(
        CONFIG, state_dependent_std=False, actor_layer_norm=True, critic_hidden=(8, 7, 6)
    )
    state = jax.jit(lambda: sac.init(KEY, SPEC, config))()
    params = networks.parameters_of(state.actor).params
    np.testing.assert_array_equal(params["log_std"], np.zeros(2))
    assert params["mean"]["output"]["kernel"].shape == (8, 2)
    assert set(params["mean"]) == {"hidden_0", "norm_0", "hidden_1", "norm_1", "output"}
    members = networks.parameters_of(state.critic).params["members"]
    assert [members[f"hidden_{i}"]["kernel"].shape[-1] for i in range(3)] == [8, 7, 6]
    observation = reference.observed()
    mean, log_std = np.split(np.asarray(state.actor(observation)), 2, axis=-1)
    assert np.ptp(mean, axis=0).min() > 0.0
    np.testing.assert_array_equal(log_std, 0.0 * mean)
    body = networks.Network(params["mean"], None)
    expected = reference.forward_norms(reference.norms(body), observation)
    np.testing.assert_allclose(mean, expected, atol=1e-4)
