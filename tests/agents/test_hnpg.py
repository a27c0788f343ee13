"""HNPG against float64 NumPy written from the paper, and what data are worth to it in a lock."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax import datasets, envs
from rljax.agent import EnvSpec, Transition
from rljax.agents import hnpg
from rljax.runs import records, run
from rljax.runs.policies import collect
from tests.agents import on_policy, reference, trees, value_learning
from tests.agents.on_policy import KEY
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
ROWS = 10
CONFIG = hnpg.Config(**on_policy.SIZES, data_size=ROWS, num_draws=2, data_weight=0.7, cg_steps=40)
SMALL: Any = {
    "num_envs": 2,
    "num_steps": 5,
    "batch_size": 5,
    "actor_hidden": (8,),
    "critic_hidden": (8,),
    "data_size": 20,
}
LOCK = "rljax/CombinationLock-3-discrete"


def rollout(seed: int = 0, with_data: bool = True) -> Transition:
    """A rollout with rows of data beside it."""
    batch = on_policy.rollout(seed, SPEC)
    data = {"data": reference.transitions(seed + 50, ROWS)} if with_data else {}
    return batch.replace(extras={"raw": batch.extras["raw"]} | data)


def example() -> Any:
    return SPEC, CONFIG, rollout()


class Reference(on_policy.TrustRegion):
    """One learner."""

    def __init__(self, state: hnpg.State, config: hnpg.Config) -> None:
        super().__init__(config, state.actor.mean, state.actor.log_std)
        (self.critic,) = reference.critics(state.critic)

    def q(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        inputs = np.concatenate([observation, action], axis=-1)
        return reference.forward(self.critic, inputs)[0][..., 0]

    def drawn(self, observation: np.ndarray, key: jax.Array) -> np.ndarray:
        """Raw actions."""
        mean = reference.forward(self.actor, observation)[0]
        return mean + np.exp(self.log_std) * reference.noise(key, mean.shape)

    def drawn_values(self, observation: np.ndarray, key: jax.Array) -> np.ndarray:
        keys = jax.random.split(key, self.config.num_draws)
        actions = (np.clip(self.drawn(observation, k), -1, 1) for k in keys)
        return np.mean([self.q(observation, action) for action in actions], axis=0)

    def step(self, observation: np.ndarray, raw: np.ndarray, gains: np.ndarray) -> dict[str, float]:
        """Move the policy, with A in `gains` [N]."""
        config, (inputs, scaled) = self.config, self.policy(observation, raw)
        g = -self.flat(*self.score(inputs, scaled, gains / len(raw)))
        of_g = np.linalg.solve(self.hessian(inputs), g)
        change = -np.sqrt(2 * config.kl_limit / (g @ of_g)) * of_g
        start = self.flat(self.actor, self.log_std)
        judged = self.judge(observation, raw, -gains[:, None])
        shares = [config.backtrack**k for k in range(config.backtracks)]
        tries = [(share, *judged(start + share * change)) for share in shares]
        before, _ = judged(start)
        share = next((s for s, loss, kl in tries if kl <= config.kl_limit and loss <= before), 0.0)
        (loss,), kl = judged(start + share * change)
        metrics = {"actor/loss": loss, "actor/kl": kl, "actor/step": share}
        metrics["actor/entropy"] = self.entropy()
        self.actor, self.log_std = self.shaped(start + share * change)
        return metrics

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        config, data = self.config, batch.extras.get("data")
        reward = self.scaled(0, batch.reward, batch)
        observation = np.asarray(batch.observation, np.float64)
        following = np.asarray(batch.next_observation, np.float64)
        key_returns, key_fit, key_advantages, key_data = jax.random.split(key, 4)
        go_on = config.discount * (1.0 - np.asarray(batch.terminated, np.float64))
        cut = np.asarray(batch.truncated).copy()
        cut[-1] = True
        last = go_on * cut * self.drawn_values(following, key_returns)
        target = on_policy.along(batch, reward + last, config.discount).ravel()
        rows, action, raw = map(
            on_policy.rows, (batch.observation, batch.action, batch.extras["raw"])
        )
        lines = []
        if data is not None:
            seen, played, after, gain, alive = value_learning.arrays(data)
            gain = np.clip(gain / self.std(0), -10, 10)
        for epoch_key in jax.random.split(key_fit, config.num_epochs):
            key_order, key_rows, key_value = jax.random.split(epoch_key, 3)
            order = on_policy.minibatches(key_order, config.batch_size)
            if data is not None:
                y = gain + config.discount * alive * self.drawn_values(after, key_value)
                beside = on_policy.minibatches(key_rows, ROWS // len(order), ROWS)
            for i, part in enumerate(order):
                loss, q, (gradient,) = reference.squared_errors(
                    [self.critic], rows[part], action[part], target[part]
                )
                line = {"critic/loss": loss, "critic/q": q.mean()}
                line["critic/target"] = target[part].mean()
                if data is not None:
                    share = beside[i]
                    error, q, (more,) = reference.squared_errors(
                        [self.critic], seen[share], played[share], y[share]
                    )
                    gradient = [
                        g + config.data_weight * m for g, m in zip(gradient, more, strict=True)
                    ]
                    line |= {"critic/data_loss": error, "critic/data_q": q.mean()}
                gradient = reference.limited(gradient, config.max_grad_norm)
                self.critic = self.adam.step(self.critic, gradient)
                lines.append(line)
        key_value, key_next = jax.random.split(key_advantages)
        delta = reward + go_on * self.drawn_values(following, key_next)
        delta -= self.drawn_values(observation, key_value)
        gains = on_policy.along(batch, delta, config.discount * config.trace_decay).ravel()
        if data is not None:
            key_action, key_value = jax.random.split(key_data)
            chosen = self.drawn(seen, key_action)
            more = self.q(seen, np.clip(chosen, -1, 1)) - self.drawn_values(seen, key_value)
            rows, raw, gains = (
                np.concatenate(x) for x in ((rows, seen), (raw, chosen), (gains, more))
            )
        return self.step(rows, raw, gains) | on_policy.means(lines)


@pytest.mark.parametrize(
    "with_data", [True, pytest.param(False, marks=pytest.mark.learn)], ids=["data", "none"]
)
def test_updates_equal_the_paper(with_data: bool) -> None:
    """The larger the step, the farther is KL from the Hessian's: some are shortened."""
    shares, update, state = set(), jax.jit(hnpg.update), reference.state(hnpg, SPEC, CONFIG)
    expected = Reference(state, CONFIG)
    for step, limit in enumerate((0.01, 0.3, 3.0, 10.0)):
        expected.config = config = dataclasses.replace(CONFIG, kl_limit=limit)
        batch, key = rollout(step, with_data), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        wanted = expected.update(batch, key)
        plain = {name: float(x) for name, x in metrics.items()}
        assert plain == pytest.approx(wanted, rel=2e-3, abs=2e-5)
        shares.add(wanted["actor/step"])
    (critic,) = reference.critics(state.critic)
    actual = [*critic, *reference.mlp(state.actor.mean), np.asarray(state.actor.log_std)]
    networks = [*expected.critic, *expected.actor, expected.log_std]
    trees.assert_close(actual, networks, rtol=2e-3, atol=2e-4)
    assert len(shares) > 1


def test_values_of_one_discrete_action_are_exact() -> None:
    spec = EnvSpec("test/Discrete-v0", (3,), 4, discrete=True)
    state = reference.state(hnpg, spec, CONFIG)
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = hnpg.values(state, observation, KEY, CONFIG)
    (critic,) = reference.critics(state.critic)
    logits, q = (
        reference.forward(x, observation)[0] for x in (reference.mlp(state.actor.mean), critic)
    )
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found, (share * q).sum(axis=1) / share.sum(axis=1), rtol=1e-5)


def record(path: Path, name: str, episodes: int) -> str:
    """Episodes by those who know the combination."""
    steps = episodes * envs.make(name).environment.horizon  # pyright: ignore[reportAttributeAccessIssue]
    return str(datasets.write(collect.demonstrated(name, steps=steps), path))


@pytest.mark.learn  # it does not, but compiles a whole run
def test_it_learns_from_rows_of_the_data_beside_whole_rollouts(tmp_path: Path) -> None:
    """In the compiled driver, with weights of rows and a population."""
    data, out = record(tmp_path / "lock.npz", LOCK, 20), tmp_path / "run"
    run.train("hnpg", LOCK, 40, out=out, data=data, weights="top", seeds=2, config=SMALL)
    metrics = records.read(out, "metrics")
    assert np.isfinite([line["critic/data_loss"] for line in metrics]).all()
    assert metrics[-1]["update"] == 4


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        (
            {},
            {},
            r"a data set beside new .* Name it: --data DATA\. Or learn without one: "
            r"--config.data-size 0\.",
        ),
        ({"data_size": 0}, {"data": "lock.npz"}, "cannot use --data"),
        (
            {"data_size": 21},
            {"data": "lock.npz"},
            "--config.data-size is 21, .* in 2 minibatches: .* such as 20",
        ),
        ({"data_size": -2}, {"data": "lock.npz"}, "--config.data-size is -2"),
        (
            {},
            {"data": "reach.npz"},
            rf"has observation_shape = \(2,\), environment '{LOCK}' has \(8,\)",
        ),
        (
            {},
            {"data": "numbers.npz"},
            "has action_size = 10|has discrete = False, environment .* has True",
        ),
        (
            {},
            {"data": "lock.npz", "offline_share": 0.25},
            "--offline-share 0.25 .* --config.data-size",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    changes: Any, settings: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(Path("lock.npz"), LOCK, 20)
    record(Path("numbers.npz"), "rljax/CombinationLock-3", 20)
    reach.journeys(Path("reach.npz"), 5)
    with pytest.raises(ValueError, match=message):
        run.train("hnpg", LOCK, 40, config=SMALL | changes, out="run", **settings)


@pytest.mark.learn
def test_data_open_the_lock(tmp_path: Path) -> None:
    """Without data it finds nothing but the decoy, which pays 0.05."""
    name = "rljax/CombinationLock-10-discrete"
    data: Any = {"data": record(tmp_path / "lock.npz", name, 2_000), "seeds": 2}
    finals = {}
    for label, settings in (("data", data), ("none", {"config": {"data_size": 0}})):
        out = tmp_path / label
        run.train("hnpg", name, 140_000, out=out, eval_every=140_000, eval_episodes=100, **settings)
        lines = records.read(out, "evaluations")
        last = max(line["step"] for line in lines)
        finals[label] = [np.mean(line["returns"]) for line in lines if line["step"] == last]
    optimum = envs.make(name).environment.optimum  # pyright: ignore[reportAttributeAccessIssue]
    assert min(finals["data"]) > 0.9 * optimum
    assert max(finals["none"]) < 0.11
    assert datasets.load(str(tmp_path / "lock.npz")).returns().mean() < 0.6
