"""H2O against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
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
from tests.agents import actor_critic, reference
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = h2o.Config(
    hidden=(8, 8),
    batch_size=6,
    num_successors=3,
    penalty_weight=0.7,
    ratio_max=1.3,
    buffer_share=1 / 11,  # buffer_ratio=10 in sim2real_sac_main.py
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    discriminator_lr=4e-2,
    target_rate=0.1,
)
REAL = np.array([True, False, True, False, False, True])
KEY = jax.random.key(0)


def example() -> tuple[EnvSpec, h2o.Config, Transition]:
    return SPEC, CONFIG, transitions()


transitions = functools.partial(reference.two_sources, offline=REAL)


def softmax_losses(found: np.ndarray, real: np.ndarray) -> float:
    """- mean_R log p_0 - mean_S log p_1 for logits [B, 2]."""
    log_prob = found - np.logaddexp(found[:, :1], found[:, 1:])
    return -log_prob[real, 0].mean() - log_prob[~real, 1].mean()


class Reference(actor_critic.SAC):
    """H2O in float64, from arXiv:2206.13464; gradients of the critics and discriminators are
    differences of their losses.
    """

    def __init__(self, state: h2o.State, config: h2o.Config) -> None:
        super().__init__(state, config)
        self.discriminators = reference.exact(state.discriminators)  # of pairs, of successors
        self.adams["discriminators"] = self.adams["discriminator"]

    def tell(self, judge: Any, *parts: np.ndarray) -> np.ndarray:
        """Logits [B, 2]."""
        return 2.0 * np.tanh(reference.forward(judge, np.concatenate(parts, axis=1))[0])

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, real = self.config, batch.extras["offline"]
        s, a, following = batch.observation, batch.action, batch.next_observation
        key_judge, key_critic, key_actor = jax.random.split(key, 3)
        noisy = [
            x + config.discriminator_noise * reference.noise(k, x.shape)
            for k, x in zip(jax.random.split(key_judge, 3), (s, a, following), strict=True)
        ]

        def parts(judges: Any) -> tuple[float, float]:
            first = self.tell(judges[0], *noisy[:2])
            both = first + self.tell(judges[1], *noisy)
            return softmax_losses(first, real), softmax_losses(both, real)

        of_pair, of_successor = parts(self.discriminators)
        metrics = {"discriminator/pair": of_pair, "discriminator/successor": of_successor}
        slope = reference.differences(lambda judges: sum(parts(judges)), self.discriminators)
        self.move("discriminators", slope)

        key_action, key_successor = jax.random.split(key_critic)
        next_action = self.next_sample(batch, key_action)[0]
        y = self.bootstrapped(batch, self.smallest_target(batch, next_action))
        noise = reference.noise(key_successor, (config.num_successors, *s.shape))

        def log_ratio(successor: np.ndarray) -> np.ndarray:
            """Log of simulated over real dynamics, from the paper's four probabilities."""
            first = self.tell(self.discriminators[0], s, a)
            both = first + self.tell(self.discriminators[1], s, a, successor)
            p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (first, both))
            return -np.log(q[:, 0]) + np.log(q[:, 1]) + np.log(p[:, 0]) - np.log(p[:, 1])

        # mixed_replay_buffer.py: the std of the buffer before anything is simulated, plus eps.
        empty = np.zeros((round(real.sum() / config.buffer_share) - real.sum(), s.shape[1]))
        deviation = np.vstack((s[real], empty)).std(axis=0) + 1e-3
        gap = np.mean([log_ratio(following + deviation * n) for n in noise], axis=0)
        u = np.clip(gap, 1e-30, config.gap_max)
        omega = u / u[~real].sum()
        weight = np.clip(np.exp(-log_ratio(following)), config.ratio_min, config.ratio_max)

        def losses(critics: Any) -> tuple[float, float]:
            q = reference.values(critics, s, a)
            error = (q - y) ** 2
            squared = error[:, real].mean(axis=1) + (weight * error)[:, ~real].mean(axis=1)
            penalty = np.log((omega * np.exp(q))[:, ~real].sum(axis=1)) - q[:, real].mean(axis=1)
            return squared.sum(), penalty.sum()

        def whole(critics: Any) -> float:
            squared, penalty = losses(critics)
            return squared + config.penalty_weight * penalty

        squared, penalty = losses(self.critic)
        metrics |= {"critic/loss": whole(self.critic), "critic/error": squared}
        metrics |= {"critic/gap": penalty / len(self.critic), "critic/target": y.mean()}
        metrics |= {"critic/q": reference.values(self.critic, s, a).mean()}
        metrics |= {"dynamics/weight": weight[~real].mean(), "dynamics/gap": gap[~real].mean()}
        self.move("critic", reference.differences(whole, self.critic))
        metrics |= self.improve(batch, key_actor)
        self.follow("critic")
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

update = jax.jit(h2o.update)
critic_loss = jax.jit(h2o.critic_loss)
fresh = functools.partial(reference.state, h2o, SPEC)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference, transitions, range(3))


@pytest.mark.parametrize("rows", [np.zeros(6, bool), np.ones(6, bool)], ids=["simulated", "real"])
def test_a_batch_of_one_source_is_finite(rows: np.ndarray) -> None:
    state, metrics = update(fresh(CONFIG), transitions(offline=rows), KEY, 0, CONFIG)
    leaves = jax.tree.leaves((state, metrics))
    assert all(np.isfinite(x).all() for x in leaves if x.dtype.kind == "f")


def test_real_rows_do_not_need_trust() -> None:
    """Of the error, simulated rows count as much as their weight, real ones wholly."""
    state, batch = fresh(CONFIG), transitions()
    none = dataclasses.replace(CONFIG, ratio_min=0.0, ratio_max=0.0)
    error = critic_loss(state.critic, state, batch, KEY, none)[1]["critic/error"]
    other = batch.replace(reward=jnp.where(REAL, batch.reward, 100.0))
    assert critic_loss(state.critic, state, other, KEY, none)[1]["critic/error"] == error


def test_without_data_it_is_refused(tmp_path: Path) -> None:
    message = r"agent 'h2o' learns from a data set beside new experience\. Name it: --da"
    with pytest.raises(ValueError, match=message):
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
