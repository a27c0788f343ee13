"""H2O against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import h2o
from rljax.runs import records, run
from rljax.runs.policies import evaluate
from tests.agents import reference
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
RATES = {
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "temperature_lr": 3e-2,
    "discriminator_lr": 4e-2,
    "target_rate": 0.1,
}
CONFIG = h2o.Config(
    hidden=(8, 8),
    batch_size=6,
    num_successors=3,
    penalty_weight=0.7,
    ratio_max=1.3,
    buffer_share=1 / 11,  # buffer_ratio=10 in sim2real_sac_main.py
    **RATES,
)
REAL = np.array([True, False, True, False, False, True])
KEY = jax.random.key(0)


def example() -> tuple[EnvSpec, h2o.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, transitions()


def transitions(seed: int = 0, real: np.ndarray = REAL) -> Transition:
    """A batch with rows of both sources."""
    return reference.transitions(seed, len(real)).replace(extras={"offline": jnp.asarray(real)})


def softmax_losses(found: np.ndarray, real: np.ndarray) -> float:
    """- mean_R log p_0 - mean_S log p_1 for logits [B, 2]."""
    log_prob = found - np.logaddexp(found[:, :1], found[:, 1:])
    return -log_prob[real, 0].mean() - log_prob[~real, 1].mean()


class Reference:
    """H2O in float64, from arXiv:2206.13464; gradients are differences of its losses."""

    def __init__(self, state: h2o.State, config: h2o.Config) -> None:
        self.config = config
        self.actor = reference.mlp(state.actor)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        discriminators = state.discriminators.parameters
        self.judges = [
            reference.mlp(network)
            for network in (discriminators["pair"], discriminators["successor"])
        ]
        self.log_temperature = np.log(config.init_temperature)
        rates = (config.discriminator_lr, config.critic_lr, config.actor_lr, config.temperature_lr)
        self.adams = [reference.Adam(rate) for rate in rates]

    def sample(
        self, actor: Any, observation: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions and their log-probabilities."""
        mean, raw = np.split(reference.forward(actor, observation)[0], 2, axis=1)
        log_std = np.clip(
            raw + self.config.log_std_offset, self.config.log_std_min, self.config.log_std_max
        )
        u = mean + np.exp(log_std) * noise
        gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (gaussian - np.log(1.0 - np.tanh(u) ** 2)).sum(axis=1)

    def tell(self, judge: Any, *parts: np.ndarray) -> np.ndarray:
        """Logits [B, 2]."""
        return 2.0 * np.tanh(reference.forward(judge, np.concatenate(parts, axis=1))[0])

    def update(self, batch: Transition, key: Any) -> dict[str, float]:
        """One update; its metrics."""
        config, real = self.config, np.asarray(batch.extras["offline"])
        s, following = (
            np.asarray(x, np.float64) for x in (batch.observation, batch.next_observation)
        )
        a, reward = np.asarray(batch.action, np.float64), np.asarray(batch.reward, np.float64)
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        key_judge, key_critic, key_actor = jax.random.split(key, 3)
        noises = [
            np.asarray(jax.random.normal(k, x.shape), np.float64)
            for k, x in zip(jax.random.split(key_judge, 3), (s, a, following), strict=True)
        ]
        noisy = [
            x + config.discriminator_noise * n
            for x, n in zip((s, a, following), noises, strict=True)
        ]

        def pair_loss(judges: Any) -> float:
            return softmax_losses(self.tell(judges[0], *noisy[:2]), real)

        def successor_loss(judges: Any) -> float:
            return softmax_losses(
                self.tell(judges[0], *noisy[:2]) + self.tell(judges[1], *noisy), real
            )

        metrics = {
            "discriminator/pair": pair_loss(self.judges),
            "discriminator/successor": successor_loss(self.judges),
        }
        slope = reference.differences(
            lambda judges: pair_loss(judges) + successor_loss(judges), self.judges
        )
        self.judges = self.adams[0].step(self.judges, slope)

        key_action, key_successor = jax.random.split(key_critic)
        next_action = self.sample(self.actor, following, reference.noise(key_action, a.shape))[0]
        y = (
            reward
            + config.discount * alive * reference.smallest(self.targets, following, next_action)[0]
        )
        noise = np.asarray(
            jax.random.normal(key_successor, (config.num_successors, *s.shape)), np.float64
        )

        def log_ratio(successor: np.ndarray) -> np.ndarray:
            """Log of simulated over real dynamics, from the four probabilities as the paper has
            them.
            """
            first = self.tell(self.judges[0], s, a)
            both = first + self.tell(self.judges[1], s, a, successor)
            p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (first, both))
            return -np.log(q[:, 0]) + np.log(q[:, 1]) + np.log(p[:, 0]) - np.log(p[:, 1])

        # mixed_replay_buffer.py: the std of the buffer before anything is simulated, plus eps.
        empty = np.zeros((round(real.sum() / config.buffer_share) - real.sum(), s.shape[1]))
        deviation = np.vstack((s[real], empty)).std(axis=0) + 1e-3
        u = np.clip(
            np.mean([log_ratio(following + deviation * n) for n in noise], axis=0),
            1e-30,
            config.gap_max,
        )
        omega = u / u[~real].sum()
        weight = np.clip(np.exp(-log_ratio(following)), config.ratio_min, config.ratio_max)

        def values(critics: Any) -> np.ndarray:
            return np.array([reference.value(critic, s, a)[0] for critic in critics])

        def losses(critics: Any) -> tuple[float, float]:
            q = values(critics)
            squared = ((q - y) ** 2)[:, real].mean(axis=1) + (weight * (q - y) ** 2)[:, ~real].mean(
                axis=1
            )
            gap = np.log((omega * np.exp(q))[:, ~real].sum(axis=1)) - q[:, real].mean(axis=1)
            return squared.sum(), gap.sum()

        squared, gap = losses(self.critics)
        metrics |= {"critic/loss": squared + config.penalty_weight * gap, "critic/error": squared}
        metrics |= {"critic/gap": gap / len(self.critics), "critic/q": values(self.critics).mean()}
        metrics |= {"critic/target": y.mean(), "dynamics/weight": weight[~real].mean()}
        metrics |= {
            "dynamics/gap": np.mean([log_ratio(following + deviation * n)[~real] for n in noise])
        }
        slope = reference.differences(
            lambda x: losses(x)[0] + config.penalty_weight * losses(x)[1], self.critics
        )
        self.critics = self.adams[1].step(self.critics, slope)

        temperature, noise = np.exp(self.log_temperature), reference.noise(key_actor, a.shape)

        def actor_loss(actor: Any) -> float:
            action, log_prob = self.sample(actor, s, noise)
            return (temperature * log_prob - reference.smallest(self.critics, s, action)[0]).mean()

        entropy = -self.sample(self.actor, s, noise)[1].mean()
        target = -a.shape[1] if config.target_entropy is None else config.target_entropy
        metrics |= {
            "actor/loss": actor_loss(self.actor),
            "actor/entropy": entropy,
            "temperature/value": temperature,
        }
        metrics |= {"temperature/loss": self.log_temperature * (entropy - target)}
        self.actor = self.adams[2].step(self.actor, reference.differences(actor_loss, self.actor))
        self.log_temperature = self.adams[3].step(self.log_temperature, entropy - target)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "clipped, target entropy, the real rows alone": {
        "buffer_share": 1.0,
        "ratio_min": 0.9,
        "gap_max": 0.3,
        "target_entropy": -0.5,
        "init_temperature": 0.3,
        "discriminator_noise": 0.4,
    },
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(h2o.update)
critic_loss = jax.jit(h2o.critic_loss)


def fresh(config: h2o.Config) -> h2o.State:
    """A State to start from."""
    return reference.state(
        h2o, SPEC, config, log_temperature=jnp.log(jnp.float32(config.init_temperature))
    )


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key))
    discriminators = state.discriminators.parameters
    reference.assert_same(reference.mlp(discriminators["pair"]), expected.judges[0], "pair")
    reference.assert_same(
        reference.mlp(discriminators["successor"]), expected.judges[1], "successor"
    )
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )


@pytest.mark.parametrize("rows", [np.zeros(6, bool), np.ones(6, bool)], ids=["simulated", "real"])
def test_a_batch_of_one_source_is_finite(rows: np.ndarray) -> None:
    state, metrics = update(fresh(CONFIG), transitions(0, rows), KEY, 0, CONFIG)
    assert all(
        np.isfinite(x).all() for x in jax.tree.leaves((state, metrics)) if x.dtype.kind == "f"
    )


def test_real_rows_do_not_need_trust() -> None:
    """Of the error, simulated rows count as much as their weight, real ones wholly."""
    state, batch = fresh(CONFIG), transitions()
    none = dataclasses.replace(CONFIG, ratio_min=0.0, ratio_max=0.0)
    error = critic_loss(state.critic, state, batch, KEY, none)[1]["critic/error"]
    other = batch.replace(reward=jnp.where(REAL, batch.reward, 100.0))
    assert critic_loss(state.critic, state, other, KEY, none)[1]["critic/error"] == error


def test_without_data_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"agent 'h2o' learns from a data set beside new experience\. Name it: --da",
    ):
        run.train("h2o", "Pendulum-v1", 100, out=tmp_path / "run")


@pytest.mark.learn
def test_wrong_dynamics_are_found_and_weigh_less(tmp_path: Path) -> None:
    """The simulator's actions have the opposite effect.

    SAC that believes both earns -27 in reality, chance is -14.
    """
    data = str(reach.journeys(tmp_path / "journeys.npz"))
    settings: dict[str, Any] = {
        "data": data,
        "seeds": 2,
        "eval_every": 4_000,
        "config": {"hidden": (64, 64)},
    }
    out = run.train(
        "h2o", f"{reach.__file__}:ReachReversed", 4_000, out=tmp_path / "run", **settings
    )
    real = evaluate.evaluate_run(out, episodes=30, env=f"{reach.__file__}:Reach")
    assert real["summary"]["mean"] > -5.0
    last = records.read(out, "metrics")[-1]
    assert max(last["dynamics/weight"]) < 0.6


def test_the_buffers_share_is_the_authors() -> None:
    """sim2real_sac_main.py: ten rows of zeros beside each real one."""
    assert h2o.Config().buffer_share == pytest.approx(1 / (1 + 10), abs=1e-4)
