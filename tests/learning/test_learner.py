"""Learners side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import Array, EnvSpec, Transition, Weighted
from rljax.buffers import Draw, NStep
from rljax.buffers.experience import declaration
from rljax.learning import configuration, registry
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.driver import report
from rljax.learning.learner import Learner
from rljax.learning.tally import LARGEST, add_to_tally, counted, empty_tally, environment_steps
from tests.helpers.counting import (
    UPDATES,
    Counter,
    Fake,
    OnPolicy,
    State,
    assert_equal,
    driven,
    one,
    replay,
    settings,
)
from tests.learning.drivers import kinds

# Acting and the warm-up.


def acting(num_envs: int, warmup_steps: int, module: Any, spec: EnvSpec) -> Any:
    """The function from steps done to actions and extras of 2 learners."""
    config = settings(2, num_envs=num_envs, warmup_steps=warmup_steps, replay_size=2 * num_envs)
    learners = Learner(module, spec, 2)
    hyper = learners.hyperparameters(config)
    state = learners.init(jax.random.split(jax.random.key(0), 2), hyper)
    observation = jnp.ones((2, num_envs, *spec.observation_shape))
    act = jax.jit(lambda steps: learners.act(state.replace(steps=steps), observation, hyper))
    return lambda steps: jax.tree.map(np.asarray, act(jnp.asarray(steps, jnp.int32)))


@pytest.mark.slow
def test_warm_up_acts_uniformly_within_the_bounds() -> None:
    act = acting(2000, 4000, Fake(), EnvSpec("Some", (2,), 1))
    action, extras = act(0)
    assert action.shape == (2, 2000, 1)
    assert action.dtype == np.float32
    assert not extras["acted"].any()
    for learner_actions in action[..., 0]:
        ranked = np.sort(learner_actions)
        assert -1 <= ranked[0] < ranked[-1] <= 1
        distance = np.abs((ranked + 1) / 2 - np.linspace(0, 1, 2000)).max()
        assert distance < 1.95 / np.sqrt(2000), "Kolmogorov and Smirnov: one in a thousand"
    assert (action[0] == action[1]).mean() < 0.01
    assert (action == act(1)[0]).mean() < 0.01, "other actions in every step"
    np.testing.assert_array_equal(action, act(0)[0])


def test_warm_up_counts_the_steps_of_all_environments() -> None:
    act = acting(50, 120, Fake(), EnvSpec("Some", (2,), 1))
    # 0, 100, 150 and 200 environment steps done
    for steps, warm in ((0, False), (2, False), (3, True), (4, True)):
        action, extras = act(steps)
        assert extras["acted"].all() == warm
        assert (action >= 0).all() == warm


def test_exploration_differs_between_environments_learners_and_steps() -> None:
    act = acting(20, 0, Fake(), EnvSpec("Some", (2,), 1))
    drawn = np.concatenate([act(steps)[0].ravel() for steps in range(3)])
    assert np.unique(drawn).size == drawn.size


@pytest.mark.slow
def test_warm_up_with_discrete_actions() -> None:
    class Discrete(Fake):
        def act(self, state: State, observation: Any, *_: Any) -> tuple[Any, dict]:
            return jnp.full(observation.shape[:-1], 9, jnp.int32), {}

    act = acting(900, 900, Discrete(), EnvSpec("Some", (2,), 3, discrete=True))
    action, _ = act(0)
    assert action.shape == (2, 900)
    assert action.dtype == np.int32
    for learner_actions in action:
        counts = np.bincount(learner_actions, minlength=3)
        assert counts.size == 3
        assert np.abs(counts - 300).max() < 5 * np.sqrt(300)
    assert (act(1)[0] == 9).all()


def test_warm_up_stays_a_branch() -> None:
    learners = Learner(Fake(), EnvSpec("Some", (2,), 1), 2)
    hyper = learners.hyperparameters(settings(2))
    state = learners.init(jax.random.split(jax.random.key(0), 2), hyper)
    program = jax.make_jaxpr(lambda state, x: learners.act(state, x, hyper))(
        state, jnp.zeros((2, 1, 2))
    )
    assert any(equation.primitive.name == "cond" for equation in program.jaxpr.eqns)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("changes", "first", "updates"),
    [
        ({"warmup_steps": 8}, 8, 1),
        ({"warmup_steps": 20, "num_envs": 4, "num_steps": 2, "num_updates": 3}, 3, 3),
        ({"warmup_steps": 0, "batch_size": 6}, 6, 1),
    ],
)
def test_nothing_is_learnt_before_the_warm_up_is_over(
    changes: Any, first: int, updates: int
) -> None:
    """`first` is the first iteration, from 1, that ends with enough stored."""
    driver = driven([0, 1], 0, **changes)
    fresh = jax.tree.map(np.array, driver.agent_state.state)
    driver.advance(first - 1)
    assert int(driver.learners.updates) == 0
    assert_equal(driver.agent_state.state, fresh)
    driver.advance(1)
    assert int(driver.learners.updates) == updates
    assert not np.allclose(driver.agent_state.state.weight, fresh.weight)
    driver.advance(5)
    assert int(driver.learners.updates) == 6 * updates
    config = driver.hyper.config
    assert int(driver.learners.steps) == (first + 5) * config.num_steps
    assert int(driver.learners.storage.size) == (first + 5) * config.num_steps * config.num_envs


def test_stored_is_what_happened() -> None:
    driver = driven([0, 1], 12, environment=Counter(limit=5), num_envs=2)
    stored = jax.tree.map(
        lambda x: np.asarray(x).reshape(2, -1, 2, *x.shape[2:])[:, :12],
        driver.learners.storage.data,
    )
    time = np.arange(12) % 5
    np.testing.assert_array_equal(
        stored.observation[..., 0], np.broadcast_to(time[:, None], (2, 12, 2))
    )
    np.testing.assert_array_equal(stored.next_observation[..., 0], stored.observation[..., 0] + 1)
    np.testing.assert_array_equal(stored.next_observation[..., 1], stored.action[..., 0])
    np.testing.assert_array_equal(
        stored.truncated, np.broadcast_to((time == 4)[:, None], (2, 12, 2))
    )
    assert not stored.terminated.any()
    # 8 steps of 2 environments in the warm-up would be 16; 4 are enough for 8.
    np.testing.assert_array_equal(
        stored.extras["acted"], np.broadcast_to(np.arange(12)[:, None] >= 4, (2, 12, 2))
    )


# Counters near 2^31.

EDGE = LARGEST


@pytest.mark.parametrize("as_type", [int, jnp.int32])
def test_counters_neither_overflow_nor_become_small_again(as_type: Any) -> None:
    counter = as_type(EDGE - 2)
    seen = []
    for by in (1, 1, 1, 5, 2**30):
        counter = counted(counter, by)
        seen.append(int(counter))
    assert seen == [EDGE - 1, EDGE, 2**30, 2**30 + 5, 2**30 + 5]
    assert int(counted(as_type(0), 3)) == 3
    for steps, num_envs, number in ((3, 50, 150), (2**25, 64, EDGE // 64 * 64), (EDGE, 1, EDGE)):
        assert int(environment_steps(as_type(steps), num_envs)) == number


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_envs"), [("compiled", 64), ("embedded", 1), ("hosted", 64)])
def test_learning_goes_on_beyond_2_to_the_31_environment_steps(kind: str, num_envs: int) -> None:
    """The product of steps and environments passes 2^31, or the steps do."""
    driver = kinds.driven(kind, [0], 12, num_envs=num_envs, replay_size=256)
    before = int(driver.learners.updates)
    edge = 2**31 // num_envs - 3
    if kind == "hosted":
        driver.steps = edge
        driver.learnt = driver.learnt.replace(updates=jnp.int32(EDGE - 2))
    else:
        near = driver.learners.replace(steps=jnp.int32(edge), updates=jnp.int32(EDGE - 2))
        driver.carry = driver.carry.replace(learners=near)
    frozen = np.asarray(driver.agent_state.state.weight).copy()
    driver.advance(6)
    assert before > 0
    assert int(driver.learners.updates) == 2**30 + 6 - 3
    assert not np.allclose(driver.agent_state.state.weight, frozen)
    rows = slice(12, 18) if num_envs == 1 else slice(None)
    assert np.asarray(driver.learners.storage.data.extras["acted"])[:, rows].all(), (
        "no uniform actions"
    )
    assert int(driver.learners.steps) == (edge + 6 if num_envs > 1 else 2**30 + 6 - 3)


# Updates.


def expected(state: Any, rate: float, weight: np.ndarray, updates: int) -> list[np.ndarray]:
    """A Fake's weights after each update, from the batches that it remembers."""
    weights = []
    for k in range(updates):
        weight = weight + rate * (state.rewards[k].mean(dtype=np.float64) * (k + 1) - weight)
        weights.append(weight)
    return weights


@pytest.mark.slow
def test_updates_of_one_iteration_follow_each_other_on_batches_of_their_own() -> None:
    driver = driven([0, 1], 0, num_updates=4)
    fresh = jax.tree.map(np.array, driver.agent_state.state)
    driver.advance(8 + 1)
    assert int(driver.learners.updates) == UPDATES
    for i in range(2):
        state = one(driver.agent_state.state, i)
        weights = expected(state, 0.1, fresh.weight[i].astype(np.float64), UPDATES)
        np.testing.assert_allclose(state.weight, weights[-1], rtol=1e-5)
        np.testing.assert_allclose(state.losses, [weight.sum() for weight in weights], rtol=1e-5)
        assert len({tuple(row) for row in state.rewards}) == UPDATES
        assert np.isin(state.rewards, np.asarray(driver.learners.storage.data.reward[i])).all()
    noise = np.asarray(driver.agent_state.state.noise)
    assert np.unique(noise).size == noise.size, "a key for each update of each learner"


ASKED: list[tuple[int, int]] = []  # updates and rows of a Scripted draw's batches
REWARDS = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


@declaration
class Scripted(Draw):
    """Batches with the rewards REWARDS, from update `start` on."""

    start: int = 0

    def __call__(self, buffer: Any, keys: Array, experience: Any) -> Transition:
        number, size = experience.num_updates, experience.batch_size
        ASKED.append((number, size))
        example = jax.tree.map(
            lambda x: jnp.zeros((2, number, size, *x.shape[2:]), x.dtype), buffer.data
        )
        return example.replace(reward=jnp.asarray(REWARDS[:, self.start : self.start + number]))


@pytest.mark.slow
def test_several_updates_are_as_many_single_ones() -> None:
    """On the same batches: a draw is asked for all of them at once."""

    def learners(start: int = 0) -> Learner:
        declare = lambda config: replay(config, draw=Scripted(start=start))  # noqa: E731
        return Learner(Fake(), EnvSpec("Some", (2,), 1), 2, declare)

    whole = learners()
    hyper = whole.hyperparameters(settings(2, num_updates=3))
    start = whole.init(jax.random.split(jax.random.key(0), 2), hyper)
    ASKED.clear()
    together = whole.update(start, hyper)
    assert ASKED == [(3, 4)]
    state = start
    for k in range(3):
        single = learners(k)
        state = single.update(state, single.hyperparameters(settings(2)))
    states = (learners.agent.state.replace(noise=0) for learners in (together, state))
    assert_equal(*states, rtol=1e-6)
    assert_equal(together.tally, state.tally, rtol=1e-6)
    assert int(together.updates) == int(state.updates) == 3
    assert together.storage is start.storage


@pytest.mark.learn
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_learner_learns_the_same_alone_and_in_a_population(name: str) -> None:
    module = registry.load_agent(name)
    changes = {
        "hidden": (16, 16),
        "batch_size": 16,
        "warmup_steps": 40,
        "replay_size": 1000,
        "num_envs": 2,
    }
    config = configuration.replace(module.Config(), changes, "test")
    environment = envs.make("rljax/Pendulum")

    def trained(seeds: list[int]) -> CompiledDriver:
        learners = Learner(module, environment.spec, len(seeds))
        driver = CompiledDriver(learners, environment, configuration.stack(config, len(seeds)))
        driver.start(seeds)
        driver.advance(20 + 19)
        assert int(driver.learners.updates) == 20
        return driver

    together, alone = trained([3, 5, 9]), trained([5])
    stored, single = (
        one(driver.learners.storage.data, i) for driver, i in ((together, 1), (alone, 0))
    )
    # Of the warm-up.
    stored, single = (jax.tree.map(lambda x: x[:40], rows) for rows in (stored, single))
    assert_equal(stored, single, rtol=1e-5, atol=1e-6)
    assert_equal(one(together.agent_state, 1), one(alone.agent_state, 0), rtol=1e-3, atol=1e-5)
    kernel = jax.tree.leaves(together.agent_state.state.actor)[1]
    assert not np.allclose(kernel[0], kernel[1], atol=1e-2), "other seeds are other learners"


def test_floats_per_learner() -> None:
    rates = [0.1, 0.5, 0.0]
    together = driven([4, 4, 4], 20, learning_rate=rates)
    weights = np.asarray(together.agent_state.state.weight)
    for i, rate in enumerate(rates):
        alone = driven([4], 20, learning_rate=rate)
        assert_equal(one(together.agent_state, i), one(alone.agent_state, 0), rtol=1e-5)
        assert not np.allclose(weights[i], weights[i - 1], rtol=0.1)
    fresh = driven([4], 0).agent_state.state.weight[0]
    np.testing.assert_array_equal(weights[2], fresh)  # a rate of 0


@pytest.mark.slow
@pytest.mark.parametrize("num_learners", [1, 2])
def test_a_number_in_a_declaration_is_every_learners(num_learners: int) -> None:
    class Told(Fake):
        def experience(self, config: Any) -> Any:
            return replay(config, draw=NStep(steps=2, discount=0.5))

    class Asked(Fake):
        def experience(self, config: Any) -> Any:
            return replay(config, draw=NStep(steps=2, discount=config.learning_rate))

    told, asked = (
        driven(range(num_learners), 12, module, learning_rate=0.5) for module in (Told(), Asked())
    )
    assert told.hyper.experience.draw.discount.shape == (num_learners,)
    assert int(told.learners.updates) == 5
    assert_equal(told.agent_state, asked.agent_state)


def test_same_seed_same_bits_in_chunks_of_any_length() -> None:
    first, second = driven([7, 8], 30, num_envs=2), driven([7, 8], 13, num_envs=2)
    second.advance(1)
    second.advance(16)
    assert_equal(first.learners, second.learners)
    assert not np.array_equal(
        driven([9], 30, num_envs=2).agent_state.state.weight[0], first.agent_state.state.weight[0]
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", kinds.ON_HOST)
def test_drivers_agree(kind: str) -> None:
    """On the host an iteration begins with learning, to step meanwhile; inside the program it ends
    with it.
    """
    changes: Any = {"num_envs": 3, "num_steps": 2, "num_updates": 2, "warmup_steps": 30}
    inside, outside = (
        kinds.driven(each, [1, 2], 11, limit=5, **changes) for each in ("compiled", kind)
    )
    assert_equal(inside.learners.storage, outside.learners.storage, rtol=1e-5, atol=1e-6)
    action = outside.action if kind == "hosted" else outside.carry.action
    assert_equal(inside.carry.action, action, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        outside.report().metrics["episode/length"], inside.report().metrics["episode/length"]
    )
    outside.advance(1)
    assert int(inside.learners.updates) == int(outside.learners.updates) == 14
    assert_equal(inside.agent_state, outside.agent_state, rtol=1e-5, atol=1e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_rollouts_are_whole_in_order_and_learnt_from_once(kind: str) -> None:
    changes: Any = {"num_envs": 3, "num_steps": 4, "batch_size": 12, "warmup_steps": 10**6}
    # On the host the next iteration begins with learning.
    iterations = 3 if kind == "compiled" else 4
    driver = kinds.driven(kind, [0, 1], iterations, OnPolicy(), **changes)
    assert int(driver.learners.updates) == 3
    for learner_times in np.asarray(driver.agent_state.state.rewards)[:, :3]:  # [updates, T x E]
        np.testing.assert_array_equal(
            learner_times.reshape(12, 3), np.arange(1, 13)[:, None].repeat(3, axis=1)
        )
    actions = np.asarray(driver.learners.storage.data.extras["acted"])
    assert actions.all(), "no uniform actions, whatever warm-up other storages have"


# Metrics.


@pytest.mark.slow
def test_report_is_the_mean_of_the_updates_since_the_last() -> None:
    driver = driven([0, 1], 8 + 3, delay=2)
    losses = np.asarray(driver.agent_state.state.losses)
    result = driver.report()
    np.testing.assert_allclose(result.metrics["loss"], losses[:, :4].mean(axis=1), rtol=1e-6)
    # Of updates 1 and 3, the others have none.
    np.testing.assert_array_equal(result.metrics["delayed"], [2.0, 2.0])
    assert result.updates == 4
    driver.advance(3)
    losses = np.asarray(driver.agent_state.state.losses)
    result = driver.report()
    np.testing.assert_allclose(result.metrics["loss"], losses[:, 4:7].mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(result.metrics["delayed"], [5.0, 5.0])
    assert result.updates == 7


@pytest.mark.slow
def test_report_of_nothing_is_not_a_number() -> None:
    result = driven([0, 1], 3, environment=Counter(limit=5)).report()
    assert result.updates == 0
    assert {name: np.isnan(x).all() for name, x in result.metrics.items()} == dict.fromkeys(
        ("loss", "delayed", "episode/return", "episode/length"), True
    )
    assert all((x == -1).all() for x in result.first_bad.values())


@pytest.mark.slow
def test_report_has_the_episodes_that_ended() -> None:
    result = driven([0], 11, environment=Counter(limit=5), num_envs=2).report()
    assert result.metrics["episode/length"] == [5.0]
    # 1 + 2 + ... + 5 and five actions in [-1, 1].
    assert abs(result.metrics["episode/return"][0] - 15) <= 5


def test_first_update_that_is_not_finite_is_found() -> None:
    driver = driven([0, 1, 2], 8 + 6, bad_from=[1e9, 3.0, 0.0])
    result = driver.report()
    np.testing.assert_array_equal(result.first_bad["loss"], [-1, 3, 0])
    np.testing.assert_array_equal(result.first_bad["delayed"], [-1, -1, -1])
    np.testing.assert_array_equal(np.isfinite(result.metrics["loss"]), [True, False, False])
    driver.advance(2)
    np.testing.assert_array_equal(driver.report().first_bad["loss"], [-1, 7, 7])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_tally_counts_weights(value: float) -> None:
    tally = empty_tally(("plain", "weighted"), 2)
    zeros, ones = jnp.zeros(2), jnp.ones(2)
    for update, (plain, weighted) in enumerate(
        [
            ([1, 2], Weighted(4 * ones, ones)),
            ([3, 6], Weighted(zeros, zeros)),
            ([5, value], Weighted(ones, ones)),
        ]
    ):
        metrics = {"plain": jnp.asarray(plain, jnp.float32), "weighted": weighted}
        tally = add_to_tally(tally, metrics, jnp.asarray(update))
    nothing = dict.fromkeys(("return", "length", "count"), np.zeros(2))
    result = report(tally, 3, nothing)
    np.testing.assert_array_equal(result.metrics["plain"], [3.0, value])
    np.testing.assert_array_equal(result.metrics["weighted"], [2.5, 2.5])
    np.testing.assert_array_equal(result.first_bad["plain"], [-1, 2])
    np.testing.assert_array_equal(result.first_bad["weighted"], [-1, -1])


# Perceiving.


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_observation_is_perceived_once(kind: str) -> None:
    """All that is stored, and the newest."""
    changes: Any = {
        "num_envs": 3,
        "num_steps": 2,
        "num_updates": 2,
        "warmup_steps": 12,
        "counts": True,
    }
    driver = kinds.driven(kind, [0, 1], 9, limit=4, **changes)
    newest = driver.observation if kind == "hosted" else driver.carry.observation
    state, stored = (
        driver.agent_state.state,
        np.asarray(driver.learners.storage.data.observation)[:, : 9 * 2 * 3],
    )
    seen = np.concatenate([stored, np.asarray(newest)], axis=1)
    np.testing.assert_array_equal(state.count, [57, 57])
    np.testing.assert_array_equal(state.firsts, (seen[..., 0] == 0).sum(axis=1))
    np.testing.assert_allclose(state.total, seen.sum(axis=1), rtol=1e-5)


def test_single_learner_has_the_axis_too() -> None:
    learners = Learner(Fake(), EnvSpec("Some", (2,), 1), 1)
    hyper = learners.hyperparameters(settings(1, num_envs=3))
    state = jax.eval_shape(
        lambda keys: learners.init(keys, hyper), jax.random.split(jax.random.key(0), 1)
    )
    shared = {"steps", "updates", "position", "size"}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        counter = jax.tree_util.keystr(path).rpartition(".")[2] in shared
        assert leaf.shape[:1] == (() if counter else (1,)), path


def test_learner_is_frozen() -> None:
    learners: Any = Learner(Fake(), EnvSpec("Some", (2,), 1), 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        learners.num_learners = 2


# What is stored.


@pytest.mark.slow
def test_rewards_are_stored_clipped_and_reported_whole() -> None:
    class Clipped(Fake):
        def experience(self, config: Any) -> Any:
            return replay(config, clip_rewards=True)

    plain, clipped = (driven([0], 10, module, Counter(5)) for module in (Fake(), Clipped()))
    whole, stored = (np.asarray(driver.learners.storage.data.reward) for driver in (plain, clipped))
    assert whole.max() > 2
    assert stored.max() == 1.0
    assert clipped.report().metrics["episode/return"][0] > 5
