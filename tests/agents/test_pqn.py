"""PQN against float64 NumPy written from the paper, and what it promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent
from rljax.agent import MASK, EnvSpec, Part, Transition
from rljax.agents import pqn
from rljax.learning import registry
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import KEY

ACTIONS, STEPS, ENVS = 4, 6, 2
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
MASKED = EnvSpec(
    "test/Masked-v0",
    (),
    ACTIONS,
    discrete=True,
    parts=(Part(MASK, (ACTIONS,), "bool"), Part("state", (3,))),
)
CONFIG = pqn.Config(hidden=(8, 8), num_steps=STEPS, num_envs=ENVS, batch_size=6, learning_rate=1e-2)

update = jax.jit(pqn.update)
act = jax.jit(pqn.act, static_argnames="explore")
init = jax.jit(pqn.init, static_argnames="spec")


def rollout(seed: int = 0) -> Transition:
    """A rollout [T, E] with every kind of end."""
    generator = np.random.default_rng(seed)
    batch = on_policy.in_rollout(reference.transitions(seed, STEPS * ENVS), STEPS)
    kinds = jnp.asarray(generator.permutation(STEPS * ENVS).reshape(STEPS, ENVS))
    action = generator.integers(ACTIONS, size=(STEPS, ENVS))
    batch = batch.replace(
        action=jnp.asarray(action, jnp.int32),
        terminated=kinds <= 1,
        truncated=(kinds >= 1) & (kinds <= 3),
        extras={"value": jnp.zeros((STEPS, ENVS))},
    )
    return on_policy.continued(batch)


def acted(state: pqn.State, batch: Transition, config: pqn.Config) -> Transition:
    return batch.replace(extras=act(state, batch.observation, KEY, config, explore=True)[1])


def example() -> Any:
    return SPEC, CONFIG, rollout()


@dataclasses.dataclass
class RAdam:
    """Liu et al., arXiv:1908.03265, algorithm 2; its code rectifies from a length of 5 on."""

    count: int = 0
    first: Any = 0.0
    second: Any = 0.0
    rectified: int = 0

    def step(self, parameter: Any, gradient: Any, rate: float) -> Any:
        """The parameters after one step down the gradient."""
        if self.count == 0:
            self.first = self.second = reference.zip_map(lambda x: 0.0 * x, gradient)
        self.count += 1
        t, longest = self.count, 2.0 / (1.0 - 0.999) - 1.0
        self.first = reference.zip_map(lambda m, g: 0.9 * m + 0.1 * g, self.first, gradient)
        self.second = reference.zip_map(
            lambda v, g: 0.999 * v + 0.001 * g**2, self.second, gradient
        )
        length = longest - 2.0 * t * 0.999**t / (1.0 - 0.999**t)
        if length < 5.0:
            mean = reference.zip_map(lambda m: m / (1 - 0.9**t), self.first)
            return reference.zip_map(lambda x, m: x - rate * m, parameter, mean)
        self.rectified += 1
        r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)

        def moved(x: Any, m: Any, v: Any) -> Any:
            return x - rate * np.sqrt(r) * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

        return reference.zip_map(moved, parameter, self.first, self.second)


class Reference:
    """Returns of each length, mixed; gradients by differences."""

    def __init__(self, state: pqn.State, config: pqn.Config) -> None:
        self.config, self.radam = config, RAdam()
        self.critic = reference.norms(state.critic)

    def q(self, critic: Any, x: np.ndarray) -> np.ndarray:
        rows = reference.forward_norms(critic, x.reshape(-1, x.shape[-1]))
        return rows.reshape(*x.shape[:-1], -1)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        share = min(step * STEPS * ENVS / config.epsilon_steps, 1.0)
        epsilon = (1.0 - share) * config.epsilon_start + share * config.epsilon_end
        value = self.q(self.critic, np.asarray(batch.next_observation, np.float64)).max(axis=-1)
        target = on_policy.mixed_returns(batch, value, config).ravel()
        observation = np.asarray(batch.observation, np.float64).reshape(-1, 3)
        action, metrics = np.asarray(batch.action).ravel(), []
        rate = config.learning_rate
        if config.decay_steps is not None:
            rate *= max(0.0, 1.0 - step * STEPS * ENVS / config.decay_steps)
        for epoch in jax.random.split(key, config.num_epochs):
            for rows in on_policy.minibatches(epoch, config.batch_size, STEPS * ENVS):

                def chosen(critic: Any, rows: Any = rows) -> Any:
                    return self.q(critic, observation[rows])[np.arange(len(rows)), action[rows]]

                def loss(critic: Any, rows: Any = rows, chosen: Any = chosen) -> float:
                    return 0.5 * np.square(chosen(critic) - target[rows]).mean()

                metrics.append([loss(self.critic), chosen(self.critic).mean(), target[rows].mean()])
                gradient = reference.differences(loss, self.critic)
                gradient = reference.limited(gradient, config.max_grad_norm or None)
                self.critic = self.radam.step(self.critic, gradient, rate)
        names = ("critic/loss", "critic/q", "critic/target")
        return dict(zip(names, np.mean(metrics, axis=0), strict=True)) | {"actor/epsilon": epsilon}


CASES = {
    "default": {"epsilon_steps": 30.0},
    "a falling rate and short gradients": {
        "decay_steps": 40.0,
        "max_grad_norm": 0.05,
        "epsilon_steps": 1e9,
    },
    "one step, scaled rewards": {
        "trace_decay": 0.0,
        "reward_scale": 0.1,
        "discount": 0.7,
        "max_grad_norm": 0.0,
    },
    "whole returns": {"trace_decay": 1.0},
    "no layer norm": {"layer_norm": False},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_paper(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    pqn.check(SPEC, config)
    state = reference.state(pqn, SPEC, config)
    expected = Reference(state, config)
    for step in range(2):
        batch = acted(state, rollout(step), config)
        key = jax.random.fold_in(KEY, step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    assert expected.radam.rectified > 0
    reference.assert_same(Reference(state, config).critic, expected.critic, "critic")
    assert state.steps == 2


def test_the_case_with_short_gradients_limits_them() -> None:
    free, short = (dataclasses.replace(CONFIG, max_grad_norm=limit) for limit in (0.0, 0.05))
    state = reference.state(pqn, SPEC, free)
    batch = acted(state, rollout(), free)
    one, other = (update(state, batch, KEY, 0, x)[0].critic.parameters for x in (free, short))
    assert not trees.equal(one, other)


def test_targets_by_hand() -> None:
    """Lambda and gamma are 1/2; V' is 16 before the end, 32 at it, 64 after the rollout."""
    config = dataclasses.replace(CONFIG, discount=0.5, trace_decay=0.5)
    critic: Any = lambda x: jnp.stack([x[..., 0], x[..., 0] - 1.0], axis=-1)  # noqa: E731
    no = np.zeros((4, 1), bool)
    arrays: Any = (
        np.array([[[7.0]], [[16.0]], [[7.0]], [[16.0]]]),
        np.zeros((4, 1), np.int32),
        np.array([[1.0], [2.0], [4.0], [8.0]]),
        no,
        no,
        np.array([[[16.0]], [[32.0]], [[16.0]], [[64.0]]]),
        {"value": np.array([[7.0], [16.0], [7.0], [16.0]])},
    )
    batch = Transition(*arrays)

    def found(**ends: Any) -> list[float]:
        targets = jax.jit(pqn.targets, static_argnums=0)
        return targets(critic, batch.replace(**ends), config).ravel().tolist()

    at_1 = np.array([[False], [True], [False], [False]])
    # G_3 = 8 + 64/2 = 40; G_2 = 4 + (16 + 40) / 4 = 18; G_1 = 2 + 32/2, or 2 where it terminates.
    terminates = [1.0 + (16.0 + 2.0) / 4.0, 2.0, 18.0, 40.0]
    assert found(truncated=at_1) == [1.0 + (16.0 + 18.0) / 4.0, 18.0, 18.0, 40.0]
    assert found(terminated=at_1) == found(terminated=at_1, truncated=at_1) == terminates


def test_only_missing_values_are_computed_in_a_population_too() -> None:
    """Environments that are truncated at different steps, once, never or in a row."""
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(2, STEPS, 3, 1)).astype(np.float32)
    successor = np.roll(observation, -1, axis=1)
    truncated = np.zeros((2, STEPS, 3), bool)
    for p, t, e in [(0, 1, 0), (0, 2, 0), (0, 3, 0), (0, 5, 1), (1, 0, 2)]:
        truncated[p, t, e], successor[p, t, e] = True, 10.0 + t
    successor[:, -1] = 20.0
    value: Any = lambda x: jnp.concatenate([x, -x], axis=-1)  # noqa: E731
    nothing, extras = np.zeros(()), {"value": np.abs(observation[..., 0])}
    batch = Transition(observation, nothing, nothing, nothing, truncated, successor, extras)  # pyright: ignore
    axes = Transition(0, None, None, None, 0, 0, 0)  # type: ignore[arg-type]
    found = jax.jit(jax.vmap(lambda batch: pqn.next_values(value, batch), in_axes=(axes,)))(batch)
    np.testing.assert_allclose(found, np.abs(successor[..., 0]))


def test_explores_less_and_less() -> None:
    config = dataclasses.replace(CONFIG, num_envs=4, num_steps=5, epsilon_steps=100.0)
    config = dataclasses.replace(config, epsilon_start=0.8, epsilon_end=0.2)
    state, observation = reference.state(pqn, SPEC, config), jnp.ones((20_000, 3))
    best = act(state, np.ones(3, np.float32), KEY, config, explore=False)[0]
    # 20 steps with each
    for rollouts, share in ((0, 0.8), (2, 0.56), (5, 0.2), (1_000, 0.2), (2**31 - 1, 0.2)):
        state = state.replace(steps=jnp.asarray(rollouts))
        action, *_ = act(state, observation, KEY, config, explore=True)
        uniform = (action != best).mean() * ACTIONS / (ACTIONS - 1)
        np.testing.assert_allclose(uniform, share, atol=0.025)


def test_forbidden_actions_are_never_chosen() -> None:
    config = dataclasses.replace(CONFIG, epsilon_start=0.5)
    pqn.check(MASKED, config)
    state = init(KEY, MASKED, config)
    generator = np.random.default_rng(0)
    mask = generator.random((2_000, ACTIONS)) < 0.5
    mask[:, 0] |= ~mask.any(axis=1)
    observation = {"state": generator.normal(size=(2_000, 3)).astype(np.float32), MASK: mask}
    free = np.asarray(jax.jit(lambda x: state.critic(x))(observation))
    q = np.where(mask, free, -np.inf)
    assert (q.argmax(axis=1) != free.argmax(axis=1)).any(), "the mask matters"
    greedy, *_ = act(state, observation, KEY, config, explore=False)
    np.testing.assert_array_equal(greedy, q.argmax(axis=1))
    drawn, extras, _ = act(state, observation, KEY, config, explore=True)
    assert mask[np.arange(2_000), drawn].all()
    assert 0.1 < (drawn != greedy).mean() < 0.4
    np.testing.assert_allclose(extras["value"], q.max(axis=1), rtol=1e-6)


def test_targets_look_at_allowed_actions_alone() -> None:
    critic: Any = lambda x: x["state"]  # noqa: E731
    mask = np.array([[[1, 0, 0]], [[0, 0, 0]]], bool)
    seen = {"state": np.array([[[5.0, 9.0, 7.0]]] * 2), MASK: mask}
    no, ones = np.zeros((2, 1), bool), np.ones((2, 1))
    batch = Transition(seen, no, ones, no, ~no, seen, {"value": 50.0 * ones})  # pyright: ignore
    config = dataclasses.replace(CONFIG, discount=0.5)
    found = jax.jit(pqn.targets, static_argnums=0)(critic, batch, config)
    # Where nothing is allowed, nothing follows.
    np.testing.assert_allclose(found.ravel(), [1.0 + 0.5 * 5.0, 1.0])


def test_learns_from_pictures() -> None:
    spec = EnvSpec("test/Pictures-v0", (5, 5, 2), ACTIONS, discrete=True, observation_dtype="uint8")
    config = dataclasses.replace(CONFIG, hidden=())
    pqn.check(spec, config)
    state = init(KEY, spec, config)
    seen = np.random.default_rng(0).integers(0, 2, size=(2, STEPS, ENVS, 5, 5, 2), dtype=np.uint8)
    batch = rollout().replace(observation=seen[0], next_observation=seen[1])
    batch = acted(state, batch, config)
    new, metrics = update(state, batch, KEY, 0, config)
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics))
    assert trees.all_differ(state.critic.parameters, new.critic.parameters)


def test_learning_rate_falls_to_nothing() -> None:
    config = dataclasses.replace(CONFIG, decay_steps=100.0, num_envs=64, num_steps=1024)
    gradient = {"weight": jnp.ones(3)}
    # Rollouts of 2^16 steps: beyond 2^31 environment steps.
    radam = pqn.optimiser(jnp.int32(2**15 + 1), config)
    np.testing.assert_array_equal(radam.update(gradient, radam.init(gradient))[0]["weight"], 0.0)


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (EnvSpec("test/Continuous-v0", (3,), 2), {}, "rljax train ppo"),
        (
            EnvSpec("test/Several-v0", (3,), 5, discrete=True, choices=(2, 3)),
            {},
            "one discrete action at a time",
        ),
        (
            EnvSpec("test/Small-v0", (2, 9, 1), 2, discrete=True),
            {"encoder": "small"},
            "--config.encoder impala",
        ),
    ],
)
def test_what_cannot_work_is_named(spec: EnvSpec, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pqn.check(spec, dataclasses.replace(CONFIG, **changes))


@pytest.mark.parametrize(
    "task",
    [
        "gymnax/Breakout-MinAtar",
        "gymnax/CartPole-v1",
        "CartPole-v1",
        "atari/Pong",
        "envpool-lives/Pong-v5",
    ],
)
def test_presets_are_those_of_the_authors(task: str) -> None:
    config = registry.preset("pqn", pqn, task)
    pqn.experience(config).check()
    rows = config.num_envs * config.num_steps
    assert rows // config.batch_size == (16 if "CartPole" in task else 32)  # their NUM_MINIBATCHES
    assert (config.decay_steps is None) == ("Pong" in task)
    assert pqn.experience(config).clip_rewards == ("Pong" in task)  # their reward_clip


def test_the_preset_for_memory_is_the_authors() -> None:
    """purejaxql, pqn_rnn_memory_chain.yaml."""
    config = registry.preset("pqn", pqn, 'gymnax/MemoryChain-bsuite?{"memory_length": 100}')
    pqn.experience(config).check()
    expected = {
        "num_envs": 32,
        "num_steps": 128,
        "epsilon_start": 1.0,
        "epsilon_end": 0.01,
        "epsilon_steps": 0.1,
        "batch_size": 32 * 128 // 16,  # NUM_MINIBATCHES
        "num_epochs": 4,
        "hidden": (256, 256),
        "memory": "gru",
        "memory_hidden": (256,),
        "memory_span": None,
        "layer_norm": True,
        "learning_rate": 1e-3,
        "decay_steps": None,
        "max_grad_norm": 10.0,
        "reward_scale": 1.0,
        "discount": 0.99,
        "trace_decay": 0.95,
    }
    assert {name: getattr(config, name) for name in expected} == expected


def test_rewards_are_stored_clipped() -> None:
    no, zeros, seen = jnp.zeros((1, 3), bool), jnp.zeros((1, 3)), jnp.zeros((1, 3, 2))
    step = agent.Step(
        observation=seen,
        next_observation=seen,
        reward=jnp.array([[-7.0, 0.5, 4.0]]),
        terminated=no,
        truncated=no,
        episode_return=zeros,
        episode_length=zeros,
    )
    for clips, expected in ((True, [-1.0, 0.5, 1.0]), (False, [-7.0, 0.5, 4.0])):
        declared = pqn.experience(dataclasses.replace(CONFIG, clip_rewards=clips))
        stored = declared.transition(step.observation, jnp.zeros((1, 3), jnp.int32), {}, step)
        np.testing.assert_array_equal(stored.reward[0], expected)
