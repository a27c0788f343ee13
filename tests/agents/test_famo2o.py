"""FamO2O against float64 NumPy written from its authors' code."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import datasets
from rljax.agent import EnvSpec, Transition
from rljax.agents import famo2o, iql
from rljax.networks import Actor, Network
from rljax.runs import records, run
from rljax.runs.policies import loading
from tests.agents import actor_critic, reference
from tests.environments import reach
from tests.helpers import counting, small_runs

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = famo2o.Config(
    hidden=(6, 6),
    batch_size=5,
    target_rate=0.1,
    actor_lr=1e-2,
    critic_lr=2e-2,
    value_lr=3e-2,
    balance_lr=4e-2,
    temperature_lr=5e-2,
)
KEY = jax.random.key(0)
# With biases of 0, an observation of 0 moves the last layer alone.
PROBE: dict[str, Any] = {"initialisation": "torch"}


SOURCES = ([True] * 5, [True, False, True, True, False], [True] * 5)  # of the rows of three batches
transitions = functools.partial(reference.two_sources, offline=SOURCES[0])


def example() -> tuple[EnvSpec, famo2o.Config, Transition]:
    return SPEC, CONFIG, transitions(offline=SOURCES[1])


class Reference(actor_critic.ActorCritic):
    """FamO2O on IQL in float64, in the order of its authors' code;
    gradients of both policies are differences.
    """

    def __init__(self, state: famo2o.State, config: famo2o.Config) -> None:
        super().__init__(state, config)
        self.balance, self.value = reference.exact(state.balance), reference.exact(state.value)
        self.log_temperature, self.online = np.log(config.init_temperature), False

    def beta(self, x: np.ndarray) -> np.ndarray:
        """Between both ends, [B]."""
        low, high = self.config.inverse_temperature_min, self.config.inverse_temperature_max
        return (x + 1.0) / 2.0 * (high - low) + low

    def position(
        self, balance: Any, observation: np.ndarray, key: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """x [B] of the balance policy, and log b(x|s) [B]: the Gaussian's, minus log(1 - x^2)."""
        noise = reference.noise(key, (len(observation),))
        log_std = np.clip(balance[1], -10.0, 2.0)[0]
        x = np.tanh(reference.forward(balance[0], observation)[0][:, 0] + np.exp(log_std) * noise)
        return x, -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi) - np.log(1.0 - x**2)

    def gaussian(
        self, actor: Any, observation: np.ndarray, beta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean [B, A] and std [A] of the actions; beta enters as d numbers,
        whose frequencies are 10000^(-2 i / d).
        """
        d = 2 * self.config.num_frequencies
        angle = np.stack([beta / 10_000.0 ** (2 * i / d) for i in range(d // 2)], axis=1)
        inputs = np.concatenate([observation, np.sin(angle), np.cos(angle)], axis=1)
        log_std = np.clip(actor[1], self.config.log_std_min, self.config.log_std_max)
        return np.tanh(reference.forward(actor[0], inputs)[0]), np.exp(log_std)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, s, a = self.config, batch.observation, batch.action
        key_balance, key_uniform, key_position = jax.random.split(key, 3)

        q = reference.smallest(self.target_critic, s, a)[0]
        value_loss, old_v, gradient = reference.expectile(self.value, s, q, config.expectile)
        self.move("value", gradient)
        v, next_v = (reference.forward(self.value, x)[0][:, 0] for x in (s, batch.next_observation))

        alpha, balance, actor = np.exp(self.log_temperature), self.balance, self.actor
        key_x, key_action = jax.random.split(key_balance)
        noise = reference.noise(key_action, a.shape)

        def climbed(balance: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            x, log_prob = self.position(balance, s, key_x)
            mean, std = self.gaussian(actor, s, self.beta(x))
            climbed_q = reference.smallest(self.target_critic, s, mean + std * noise)[0]
            return climbed_q, log_prob, self.beta(x)

        def balance_loss(balance: Any) -> float:
            value, log_prob, _ = climbed(balance)
            return (alpha * log_prob - value).mean()

        q_climbed, log_prob, beta = climbed(balance)
        metrics = {"balance/loss": balance_loss(balance), "balance/q": q_climbed.mean()}
        metrics |= {"balance/beta": beta.mean(), "balance/beta_std": beta.std()}
        metrics["balance/entropy"] = -log_prob.mean()
        self.move("balance", reference.differences(balance_loss, balance))
        gap = -log_prob.mean() - config.target_entropy
        metrics |= {"temperature/loss": alpha * gap, "temperature/value": alpha}
        self.log_temperature = self.adams["temperature"].step(self.log_temperature, alpha * gap)

        self.online = self.online or not batch.extras["offline"].all()
        x = reference.uniform(key_uniform, q.shape)
        beta = self.beta(self.position(balance, s, key_position)[0] if self.online else x)
        weight = np.minimum(np.exp(beta * (q - v)), config.max_weight)
        if config.shared_weights:  # family_actor.py: [B] times [B, 1]
            weight = np.minimum(np.exp((q - v) * beta[:, None]), config.max_weight)

        def actor_loss(actor: Any) -> float:
            mean, std = self.gaussian(actor, s, beta)
            log_prob = -0.5 * ((a - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)
            return -(weight * log_prob.sum(axis=1)).mean()

        metrics |= {
            "actor/loss": actor_loss(actor),
            "actor/advantage": (q - v).mean(),
            "actor/weight": weight.mean(),
        }
        self.move("actor", reference.differences(actor_loss, actor))
        metrics |= self.teach_critics(batch, self.bootstrapped(batch, next_v))
        self.follow("critic")
        return metrics | {"value/loss": value_loss, "value/v": old_v.mean()}


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "antmaze": {"inverse_temperature_min": 8.0, "inverse_temperature_max": 14.0, "expectile": 0.9},
    "others, shared weights": {
        "num_frequencies": 2,
        "num_critics": 3,
        "max_weight": 1.1,
        "shared_weights": True,
    }
    | {"log_std_max": 0.0, "target_entropy": 0.3, "init_temperature": 0.2},
}

update = jax.jit(famo2o.update)
act = jax.jit(famo2o.act, static_argnames="explore")


def fresh(config: famo2o.Config) -> famo2o.State:
    """A State to start from, whose values lie among the critics'."""
    state = reference.state(famo2o, SPEC, config)
    state.value.parameters.params["output"]["bias"] -= 0.2
    return state


@reference.cases(CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    batches = lambda step: transitions(step, offline=SOURCES[step])  # noqa: E731
    reference.assert_updates(update, fresh(config), config, Reference, batches, range(3))


def test_new_experience_is_remembered() -> None:
    """A pooled batch of the data's rows alone is no sign that the run is not online."""
    state, online = fresh(CONFIG), []
    for offline in SOURCES:
        state = update(state, transitions(offline=offline), KEY, 0, CONFIG)[0]
        online.append(bool(state.online))
    assert online == [False, True, True]


def test_what_the_actor_learns_with_changes_online() -> None:
    """On data its beta does not depend on the balance policy; from then on it does."""
    state = fresh(CONFIG)
    other = state.replace(balance=jax.tree.map(lambda x: x + 1, state.balance))
    for offline, depends in zip(SOURCES[:2], (False, True), strict=True):
        one, two = (
            update(x, transitions(offline=offline), KEY, 0, CONFIG)[1]["actor/weight"]
            for x in (state, other)
        )
        assert (one != two) == depends


def test_critics_do_not_depend_on_either_policy() -> None:
    state, batch = fresh(CONFIG), transitions(offline=SOURCES[1])
    moved = {
        name: jax.tree.map(lambda x: x + 1, getattr(state, name)) for name in ("actor", "balance")
    }
    new, other = (update(x, batch, KEY, 0, CONFIG)[0] for x in (state, state.replace(**moved)))
    for part in ("critic", "value", "target_critic"):
        assert not reference.moved(getattr(new, part), getattr(other, part))


def test_at_one_beta_the_actor_learns_as_iqls() -> None:
    """An actor that does not read its sines has IQL's loss."""
    actor, batch = fresh(CONFIG).actor.parameters, transitions()
    advantage = jnp.linspace(-1.0, 1.0, 5)
    first = actor.mean.params["hidden_0"]

    def with_kernel(kernel: Any) -> Actor:
        params = actor.mean.params | {"hidden_0": first | {"kernel": kernel}}
        return Actor(Network(params, actor.mean.module), actor.log_std)

    of_iql, blind = with_kernel(first["kernel"][:3]), with_kernel(first["kernel"].at[3:].set(0.0))
    config = iql.Config(inverse_temperature=2.0)
    expected = jax.jit(iql.actor_loss)(of_iql, advantage, batch, KEY, config)[0]
    loss = jax.jit(famo2o.actor_loss)(blind, advantage, jnp.full(5, 2.0), batch, CONFIG)[0]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("explore", [False, True])
def test_acts_with_the_balance_policys_mean(explore: bool) -> None:
    state, rows = fresh(CONFIG), reference.transitions(9, 6).observation
    numbers = Reference(state, CONFIG)
    observation = np.asarray(rows, np.float64)
    x = np.tanh(reference.forward(numbers.balance[0], observation)[0][:, 0])
    mean, std = numbers.gaussian(numbers.actor, observation, numbers.beta(x))
    noise = explore * std * reference.noise(KEY, (6, 2))
    for online in (False, True):
        state = state.replace(online=jnp.asarray(online))
        actual, extras = act(state, rows, KEY, CONFIG, explore=explore)
        np.testing.assert_allclose(actual, np.clip(mean + noise, -1.0, 1.0), rtol=1e-4, atol=1e-5)
        assert extras == {}


@pytest.mark.parametrize(("log_std", "expected"), [(-20.0, -10.0), (5.0, 2.0)])
def test_the_balance_policys_std_is_bounded(log_std: float, expected: float) -> None:
    mean: Any = lambda observation: jnp.zeros((5, 1))  # noqa: E731
    balance = Actor(mean, jnp.full(1, log_std))
    pi: Any = famo2o.balance_policy(balance, transitions().observation)
    np.testing.assert_allclose(np.log(pi.distribution.stddev()), expected, rtol=1e-5)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        update, fresh(CONFIG), CONFIG, transitions()
    )


@pytest.mark.learn
def test_balance_policy_finds_the_beta_of_the_best_action() -> None:
    """With critics that want a larger beta in one half of the states, else a smaller one."""
    config = dataclasses.replace(CONFIG, init_temperature=1e-3)
    state, batch = fresh(config), reference.transitions(0, 64)
    actor = state.actor.parameters.replace(log_std=jnp.full(2, -9.0))
    state = state.replace(actor=state.actor.replace(parameters=actor))
    low, high = (
        famo2o.policy(actor, batch.observation, jnp.full(64, beta), config)[:, 0]
        for beta in (1.0, 5.0)
    )

    @jax.jit
    def learnt(state: famo2o.State) -> Any:
        rising = jnp.where(batch.observation[:, 1] > 0.0, 1.0, -1.0) * jnp.sign(high - low)
        judge: Any = lambda observation, action: (rising * action[:, 0] * 100.0)[None]  # noqa: E731

        def step(i: Any, balance: Any) -> Any:
            key, of = jax.random.fold_in(KEY, i), state.replace(target_critic=judge)
            gradient = jax.grad(famo2o.balance_loss, has_aux=True)(balance, of, batch, key, config)[
                0
            ]
            return jax.tree.map(lambda x, g: x - 3e-2 * g, balance, gradient)

        balance = jax.lax.fori_loop(0, 500, step, state.balance.parameters)
        return balance.mean(batch.observation)[:, 0]

    x, wants_more = np.tanh(learnt(state)), np.asarray(batch.observation[:, 1] > 0.0)
    assert x[wants_more].mean() > 0.5
    assert x[~wants_more].mean() < -0.5


@pytest.mark.learn
def test_the_family_follows_the_advantage_as_far_as_beta_says() -> None:
    """Of actions -1/2 and 1/2 with advantages -1 and 1, the weighted mean is tanh(beta) / 2,
    for each beta.
    """
    config = dataclasses.replace(CONFIG, hidden=(32, 32))
    batch = jax.tree.map(lambda x: jnp.zeros((256, *x.shape[1:]), x.dtype), transitions())
    sign = jnp.where(jnp.arange(256) % 2 == 0, 1.0, -1.0)
    batch = batch.replace(action=0.5 * sign[:, None] * jnp.ones(2))

    @jax.jit
    def learnt(actor: Any, betas: Any) -> Any:
        adam = optax.adam(3e-3)

        def step(i: Any, carry: Any) -> Any:
            actor, optimiser = carry
            beta = jax.random.uniform(jax.random.fold_in(KEY, i), (256,), maxval=2.0)
            gradient = jax.grad(famo2o.actor_loss, has_aux=True)(actor, sign, beta, batch, config)[
                0
            ]
            changes, optimiser = adam.update(gradient, optimiser)
            return optax.apply_updates(actor, changes), optimiser

        actor, _ = jax.lax.fori_loop(0, 2_000, step, (actor, adam.init(actor)))
        return famo2o.policy(actor, batch.observation[: len(betas)], betas, config)

    betas = np.array([0.1, 0.5, 1.0, 1.5, 1.9], np.float32)
    means = learnt(fresh(config).actor.parameters, betas)
    np.testing.assert_allclose(means, 0.5 * np.tanh(betas)[:, None] * np.ones(2), atol=0.05)


@pytest.mark.learn
def test_begins_orthogonal_and_in_the_middle_of_its_range() -> None:
    state = jax.jit(famo2o.init, static_argnums=1)(
        KEY, SPEC, dataclasses.replace(CONFIG, init_temperature=0.5)
    )
    actor, balance = state.actor.parameters, state.balance.parameters
    for network in (actor.mean, balance.mean, state.value.parameters):
        kernel = np.asarray(network.params["output"]["kernel"])
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), np.sqrt(2.0), rtol=1e-4)
    np.testing.assert_array_equal(actor.log_std, np.zeros(2))
    np.testing.assert_array_equal(balance.log_std, np.zeros(1))
    np.testing.assert_allclose(np.exp(state.log_temperature.parameters), 0.5, rtol=1e-6)
    assert not state.online


def test_refuses_a_range_that_is_upside_down() -> None:
    message = r"^--config\.inverse-temperature-min is 6\.0, it must not be above --config\.inv"
    with pytest.raises(ValueError, match=message):
        famo2o.check(SPEC, dataclasses.replace(CONFIG, inverse_temperature_min=6.0))


@pytest.mark.learn
def test_it_goes_on_online_and_is_resumed_there(tmp_path: Path) -> None:
    """Two learners with ranges of their own know that they are online, and do when resumed."""
    data = str(datasets.write(counting.recorded("Pendulum-v1"), tmp_path / "data.npz"))
    config = {
        "hidden": (16,),
        "batch_size": 32,
        "replay_size": 300,
        "inverse_temperature_max": (2.0, 5.0),
    }
    every = small_runs.EVERY | {"data": data, "config": config, "seeds": 2}
    whole = run.train(
        "famo2o", "Pendulum-v1", 100, out=tmp_path / "whole", then_online=200, **every
    )
    half = run.train("famo2o", "Pendulum-v1", 100, out=tmp_path / "half", then_online=100, **every)
    alone = run.train("famo2o", "Pendulum-v1", 100, out=tmp_path / "alone", **every)
    run.resume(half, 300)
    small_runs.assert_same(whole, half)
    assert [loading.load_all(out).state.state.online.tolist() for out in (whole, alone)] == [
        [True, True],
        [False, False],
    ]
    betas = [line["balance/beta"] for line in records.read(whole, "metrics")]
    assert all(1.0 < first < 2.0 < second < 5.0 for first, second in betas)


@pytest.mark.learn
def test_defaults_learn_and_go_on_online(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "seeds": 2,
        "data": str(reach.journeys(tmp_path / "reach.npz")),
        "eval_every": 1_000,
    }
    settings |= {"then_online": 300, "offline_share": 0.5, "eval_episodes": 30}
    out = run.train("famo2o", f"{reach.__file__}:Reach", 1_000, out=tmp_path / "run", **settings)
    assert records.read_summary(out)["final"]["mean"] >= -5.0  # the data's is -9, and the best -1
