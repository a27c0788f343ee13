"""SAC against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, Transition, Weighted
from rljax.agents import sac
from rljax.networks import distributions
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = sac.Config(
    hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, temperature_lr=3e-2, target_rate=0.1
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,
    "learn_temperature": False,
}  # so entropy hardly weighs


def example() -> tuple[EnvSpec, sac.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """Soft actor-critic in float64, from arXiv:1812.05905,
    with the settings that agents/sac.py adds.
    """

    def __init__(self, state: sac.State, config: sac.Config) -> None:
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

    def update(
        self, batch: Transition, next_noise: np.ndarray, noise: np.ndarray, step: int
    ) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        config, size = self.config, len(noise)
        observation = np.asarray(batch.observation, np.float64)
        next_observation = np.asarray(batch.next_observation, np.float64)
        reward, terminated = (
            np.asarray(batch.reward, np.float64),
            np.asarray(batch.terminated, np.float64),
        )
        temperature = np.exp(self.log_temperature)

        # Equation 5, its target from equation 3 with the targets' smaller critic.
        next_action, next_log_prob = self.sample(next_observation, next_noise)[:2]
        soft_value = reference.smallest(self.targets, next_observation, next_action)[0]
        if config.entropy_backup:
            soft_value = soft_value - temperature * next_log_prob
        y = config.reward_scale * reward + config.discount * (1.0 - terminated) * soft_value
        action = np.asarray(batch.action, np.float64)
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.critics = self.adams[1].step(self.critics, gradient)
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        if (step + 1) % config.policy_delay == 0:
            # Equation 9. With L = mean [alpha log pi - q] and noise fixed, u moves log pi by 2 tanh
            # u and q by (1 - tanh(u)^2) dq/da; log std moves u by std noise, and log pi by -1.
            # Clipping stops the latter.
            action, log_prob, inputs, log_std, inside = self.sample(observation, noise)
            q, slope = reference.smallest(self.critics, observation, action)
            change = (temperature * 2.0 * action - (1.0 - action**2) * slope) / size
            change_log_std = (change * np.exp(log_std) * noise - temperature / size) * inside
            gradient = reference.backward(
                self.actor, inputs, np.concatenate([change, change_log_std], axis=1)
            )[0]
            self.actor = self.adams[0].step(self.actor, gradient)
            entropy = -log_prob.mean()
            metrics |= {"actor/loss": (temperature * log_prob - q).mean(), "actor/entropy": entropy}

            # Equation 18: L = alpha (entropy - target), or log alpha for alpha; and d alpha / d log
            # alpha = alpha.
            rule = -config.target_entropy_share * action.shape[1]
            target = rule if config.target_entropy is None else config.target_entropy
            own_form = config.temperature_loss == "alpha"
            factor, slope = (temperature, temperature) if own_form else (self.log_temperature, 1.0)
            metrics |= {
                "temperature/loss": factor * (entropy - target),
                "temperature/value": temperature,
            }
            if config.learn_temperature:
                self.log_temperature = self.adams[2].step(
                    self.log_temperature, slope * (entropy - target)
                )

        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


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

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(sac.update)
act = jax.jit(sac.act, static_argnames="explore")


def fresh(config: sac.Config) -> sac.State:
    """A State to start from."""
    return reference.state(
        sac, SPEC, config, log_temperature=jnp.log(jnp.float32(config.init_temperature))
    )


@jax.jit
def critic_loss(state: sac.State, batch: Transition, config: sac.Config) -> tuple[Any, Any]:
    """The loss with its metrics, and its gradients in whatever it reads."""

    def loss(critic: Any, actor: Any, target_critic: Any, log_temperature: Any) -> Any:
        temperature = state.log_temperature.replace(parameters=log_temperature)
        whole = state.replace(actor=actor, target_critic=target_critic, log_temperature=temperature)
        return sac.critic_loss(critic, whole, batch, KEY, config)

    learnt = (state.critic.parameters, state.actor.parameters)
    parts = (*learnt, state.target_critic, state.log_temperature.parameters)
    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*parts)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
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
        reference.assert_metrics(metrics, expected.update(batch, next_noise, noise, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **CASES["clipped log std"])
    batch = reference.transitions()
    inside = Reference(fresh(config), config).sample(
        np.asarray(batch.observation), np.zeros((5, 2))
    )[4]
    assert 0.0 < inside.mean() < 1.0


def test_critic_loss_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(
        reward=np.asarray([1.0, 2.0], np.float32), terminated=np.array([False, True])
    )
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0)
    state = fresh(CONFIG).replace(
        actor=lambda observation: jnp.zeros((*observation.shape[:-1], 4)),
        target_critic=lambda observation, action: jnp.array([[3.0, 1.0], [2.0, 5.0]]),
        log_temperature=networks.Trained(np.float32(-np.inf), None),  # no entropy: plain arithmetic
    )
    critic: Any = lambda observation, action: jnp.array([[10.0, 20.0], [12.0, 23.0]])  # noqa: E731
    loss, metrics = jax.jit(lambda key: sac.critic_loss(critic, state, batch, key, config))(KEY)
    # y = (10 + 0.5 min(3, 2), 20) = (11, 20);  errors (-1, 0) and (1, 3);  1/2 + (1 + 9)/2
    np.testing.assert_allclose(
        [loss, metrics["critic/target"], metrics["critic/q"]], [5.5, 15.5, 16.25]
    )


CRITICS = jnp.asarray([[1.0, -2.0], [-1.5, 0.5], [0.3, 0.2]])  # [C, A], of linear values


@jax.jit
def actor_loss(config: sac.Config) -> Any:
    """The actor's loss where critic c is worth `CRITICS`[c] times the action."""
    critic: Any = lambda s, a: jnp.einsum("ca,...a->c...", CRITICS, a)  # noqa: E731
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
    batch, state = reference.transitions(), fresh(CONFIG)
    shape = batch.action.shape
    action, log_prob = Reference(state, CONFIG).sample(
        np.asarray(batch.observation, np.float64), reference.noise(KEY, shape)
    )[:2]
    value = axis_mean(action @ np.asarray(CRITICS, np.float64).T, axis=1)
    expected = (np.exp(state.log_temperature.parameters) * log_prob - value).mean()
    np.testing.assert_allclose(actor_loss(config), expected, rtol=1e-5)


@pytest.mark.parametrize("entropy_backup", [False, True])
def test_the_best_of_several_next_actions_makes_the_target(entropy_backup: bool) -> None:
    """WSRL's order: the smallest critic, the entropy, and then the best of `n_actions`; and its
    rewards are `reward_scale` r + `reward_bias`.
    """
    changes: dict[str, Any] = {"reward_scale": 10.0, "reward_shift": -5.0, "num_next_actions": 4}
    config = dataclasses.replace(CONFIG, entropy_backup=entropy_backup, **changes)
    state, batch = fresh(CONFIG), reference.transitions()
    expected = Reference(state, CONFIG)
    noise = np.asarray(jax.random.normal(KEY, (4, *batch.action.shape)), np.float64)
    following = np.asarray(batch.next_observation, np.float64)
    values = []
    for each in noise:
        action, log_prob = expected.sample(following, each)[:2]
        value = reference.smallest(expected.targets, following, action)[0]
        alpha = np.exp(float(state.log_temperature.parameters))
        values.append(value - alpha * log_prob * entropy_backup)
    masks = 1.0 - np.asarray(batch.terminated, np.float64)
    rewards = 10.0 * np.asarray(batch.reward, np.float64) - 5.0
    target = rewards + config.discount * masks * np.max(values, axis=0)
    metrics = critic_loss(state, batch, config)[0][1]
    np.testing.assert_allclose(metrics["critic/target"], target.mean(), rtol=1e-5)


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return critic_loss(state, batch.replace(**flags), CONFIG)[0][1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_reward_scale_scales_rewards() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    scaled = critic_loss(state, batch, dataclasses.replace(CONFIG, reward_scale=3.0))[0][0]
    by_hand = critic_loss(state, batch.replace(reward=3.0 * np.asarray(batch.reward)), CONFIG)[0][0]
    np.testing.assert_allclose(scaled, by_hand, rtol=1e-6)


def test_order_of_the_batch_changes_nothing() -> None:
    # With std e^-20 an action hardly depends on its row's noise; at temperature 1e-12 its
    # probability hardly counts.
    config = dataclasses.replace(
        CONFIG, log_std_min=-20.0, log_std_max=-20.0, init_temperature=1e-12
    )
    state, batch = fresh(config), reference.transitions()
    shuffled = jax.tree.map(lambda x: np.asarray(x)[[3, 1, 4, 0, 2]], batch)
    (plain, mixed), (gradient, other) = zip(
        *[critic_loss(state, x, config) for x in (batch, shuffled)], strict=True
    )
    np.testing.assert_allclose(plain[0], mixed[0], rtol=1e-5)
    for left, right in zip(*map(jax.tree.leaves, (gradient[0], other[0])), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_critic_loss_teaches_the_critic_alone() -> None:
    own, *others = critic_loss(fresh(CONFIG), reference.transitions(), CONFIG)[1]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(own))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(others))


def test_delayed_actor_and_temperature_rest() -> None:
    config = dataclasses.replace(CONFIG, **CASES["paper's temperature, delay"])
    old = fresh(config)
    for step in range(4):
        new, metrics = update(old, reference.transitions(), KEY, step, config)
        for part in ("actor", "log_temperature"):
            pairs = zip(
                *map(jax.tree.leaves, (getattr(old, part), getattr(new, part))), strict=True
            )
            assert any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs) == (
                step % 2 == 1
            ), part
        assert isinstance(metrics["actor/loss"], Weighted)
        assert metrics["actor/loss"].weight == step % 2


@jax.jit
def sampled(output: jax.Array, key: jax.Array) -> Any:
    """Actions with their log-probabilities, of a policy whose network puts out `output`."""
    return distributions.squashed(output, CONFIG).sample_and_log_prob(seed=key)


def test_density_integrates_to_one() -> None:
    action = np.tanh(np.linspace(-7.0, 7.0, 4_001))
    output = jnp.asarray([0.3, np.log(0.8)], jnp.float32)
    log_prob = jax.jit(lambda action: distributions.squashed(output, CONFIG).log_prob(action))
    density = np.exp(log_prob(action[:, None].astype(np.float32)))
    np.testing.assert_allclose(np.trapezoid(density, action), 1.0, rtol=1e-3)


@pytest.mark.parametrize("mean", [-30.0, -9.0, 0.0, 9.0, 30.0])
def test_log_prob_is_exact_far_out(mean: float) -> None:
    action, log_prob = sampled(np.full((4, 2), [mean, np.log(0.5)], np.float32), KEY)
    noise = reference.noise(KEY, (4, 1))[:, 0]
    u = mean + 0.5 * noise
    # 1 - tanh(u)^2 = 4 e^-2|u| / (1 + e^-2|u|)^2, the same on either side
    jacobian = np.log(4.0) - 2.0 * np.abs(u) - 2.0 * np.log1p(np.exp(-2.0 * np.abs(u)))
    expected = -0.5 * noise**2 - np.log(0.5) - 0.5 * np.log(2.0 * np.pi) - jacobian
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(action[:, 0], np.tanh(u), rtol=1e-6)


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    state, observation = fresh(CONFIG), reference.observed()[:6]
    output = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    u = output[:, :2] + explore * np.exp(output[:, 2:]) * reference.noise(KEY, (6, 2))
    action, extras, memory = act(state, observation, KEY, CONFIG, explore=explore)
    np.testing.assert_allclose(action, np.tanh(u), rtol=1e-4, atol=1e-5)
    assert extras == {}
    assert memory is None


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
    first = observation @ np.asarray(params["mean"]["hidden_0"]["kernel"], np.float64)
    normed = (first - first.mean(axis=-1, keepdims=True)) / first.std(axis=-1, keepdims=True)
    x = np.maximum(normed, 0.0) @ np.asarray(params["mean"]["hidden_1"]["kernel"], np.float64)
    x = np.maximum((x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True), 0.0)
    expected = x @ np.asarray(params["mean"]["output"]["kernel"], np.float64)
    np.testing.assert_allclose(mean, expected, atol=1e-4)
