"""Float64 NumPy of critics that learn distributions of returns, from the papers, loop by loop.

Outputs are [B, K], several critics' [C, B, K]; a penalty [B] is taken off the next return.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rljax.agent import Transition
from tests.agents import actor_critic, reference
from tests.networks.reference import softmax


class Categorical:
    """C51, arXiv:1707.06887, whose bins hold the entropy as in arXiv:2604.04539."""

    def __init__(self, atoms: int, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.support = np.linspace(low, high, atoms)

    def mean(self, outputs: np.ndarray) -> np.ndarray:
        return softmax(outputs) @ self.support

    def slope(self, outputs: np.ndarray) -> np.ndarray:
        """Of the mean: dQ / dx_i = p_i (z_i - Q)."""
        return softmax(outputs) * (self.support - self.mean(outputs)[..., None])

    def projected(
        self,
        probabilities: np.ndarray,
        reward: np.ndarray,
        discount: np.ndarray,
        penalty: Any = 0.0,
    ) -> np.ndarray:
        """[Bellemare et al., algorithm 1], for z_j -> r + gamma (z_j - penalty)."""
        width = self.support[1] - self.support[0]
        result, penalty = np.zeros_like(probabilities), np.broadcast_to(penalty, reward.shape)
        for row, p in enumerate(probabilities):
            for j, z in enumerate(self.support):
                value = reward[row] + discount[row] * (z - penalty[row])
                place = (min(max(value, self.low), self.high) - self.low) / width
                lower = min(int(np.floor(place)), len(self.support) - 2)
                result[row, lower] += p[j] * (lower + 1 - place)
                result[row, lower + 1] += p[j] * (place - lower)
        return result

    def combined(self, outputs: np.ndarray, combination: str) -> np.ndarray:
        """Probabilities of all critics [B, K], or of each [C, B, K]."""
        p = softmax(outputs)
        if combination == "own":
            return p
        if combination == "mean":
            return p.mean(axis=0)
        return p[(p @ self.support).argmin(axis=0), np.arange(p.shape[1])]

    def target(
        self, outputs: np.ndarray, combination: str, *step: Any
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Targets, their mean and how much of them is clipped."""
        p = self.combined(outputs, combination)
        each = p if p.ndim == 3 else p[None]
        target = np.stack([self.projected(rows, *step) for rows in each])
        reward, discount, penalty = (np.broadcast_to(x, p.shape[-2])[:, None] for x in step)
        value = reward + discount * (self.support - penalty)
        clipped = (p * ((value < self.low) | (value > self.high))).sum(axis=-1).mean()
        metrics = {"critic/target": (target @ self.support).mean(), "critic/clipped": clipped}
        return target.reshape(p.shape), metrics

    def loss(self, outputs: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cross-entropy [B], and its slope p - m in the outputs."""
        return -(target * np.log(softmax(outputs))).sum(axis=-1), softmax(outputs) - target


class Quantile:
    """QR-DQN, arXiv:1710.10044, algorithm 1."""

    def __init__(self, number: int, kappa: float) -> None:
        self.kappa = kappa
        self.tau = (2.0 * np.arange(number) + 1.0) / (2.0 * number)

    def mean(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.mean(axis=-1)

    def slope(self, outputs: np.ndarray) -> np.ndarray:
        return np.full_like(outputs, 1.0 / outputs.shape[-1])

    def combined(self, outputs: np.ndarray, combination: str) -> np.ndarray:
        """Quantiles of all critics [B, K], or of each [C, B, K]."""
        if combination == "own":
            return outputs
        if combination == "mean":
            return outputs.mean(axis=0)
        return outputs[outputs.mean(axis=-1).argmin(axis=0), np.arange(outputs.shape[1])]

    def target(
        self, outputs: np.ndarray, combination: str, *step: Any
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Targets and their mean."""
        theta = self.combined(outputs, combination)
        reward, discount, penalty = (np.broadcast_to(x, theta.shape[-2])[:, None] for x in step)
        target = reward + discount * (theta - penalty)
        return target, {"critic/target": target.mean()}

    def loss(self, outputs: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """sum_i mean_j |tau_i - 1(u < 0)| L(u) / kappa [B] with u = y_j - theta_i, and its slope:
        dL = clip(u, -kappa, kappa) du.
        """
        losses, slope = np.zeros(len(outputs)), np.zeros_like(outputs)
        for row, theta in enumerate(outputs):
            for i, tau in enumerate(self.tau):
                u = target[row] - theta[i]
                weight = np.abs(tau - (u < 0.0)) / self.kappa
                limited = np.clip(u, -self.kappa, self.kappa)
                losses[row] += (weight * limited * (u - 0.5 * limited)).mean()
                slope[row, i] = -(weight * limited).mean()
        return losses, slope


def head_of(config: Any) -> Any:
    """By the settings of SAC or TD3, or of TQC."""
    if getattr(config, "value_head", "quantile") == "quantile":
        return Quantile(config.quantiles, config.kappa)
    return Categorical(config.bins, config.v_min, config.v_max)


class Distributional(actor_critic.ActorCritic):
    """Critics with a head, before SAC or TD3 among a class's bases."""

    def __init__(self, state: Any, config: Any) -> None:
        super().__init__(state, config)
        self.head = head_of(config)

    def next_outputs(self, batch: Transition, action: np.ndarray) -> np.ndarray:
        """Of the target critics [C, B, K]."""
        inputs = np.concatenate([batch.next_observation, action], axis=-1)
        return np.stack([reference.forward(each, inputs)[0] for each in self.target_critic])

    def step(self, batch: Transition, penalty: Any) -> tuple[Any, Any, Any]:
        """Rewards, discounts and penalties."""
        discount = self.config.discount * (1 - batch.terminated)
        return self.config.reward_scale * batch.reward, discount, penalty

    def next_target(
        self, batch: Transition, action: np.ndarray, penalty: Any
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Targets and their metrics."""
        outputs, step = self.next_outputs(batch, action), self.step(batch, penalty)
        return self.head.target(outputs, self.config.target_value, *step)

    def teach_critics(self, batch: Transition, y: Any) -> dict[str, float]:
        """One step down the sum of the critics' mean losses."""
        target, metrics = y
        inputs = np.concatenate([batch.observation, batch.action], axis=-1)
        loss, values, gradient = 0.0, [], []
        for i, critic in enumerate(self.critic):
            outputs, layers = reference.forward(critic, inputs)
            losses, slope = self.head.loss(outputs, target[i] if target.ndim == 3 else target)
            loss += losses.mean()
            values.append(self.head.mean(outputs))
            gradient.append(reference.backward(critic, layers, slope / len(slope))[0])
        self.move("critic", gradient)
        return metrics | {"critic/loss": loss, "critic/q": float(np.mean(values))}

    def value(
        self, critic: Any, observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Q [B] of one critic, and its slope in the action [B, A]."""
        inputs = np.concatenate([observation, action], axis=-1)
        outputs, layers = reference.forward(critic, inputs)
        slope = reference.backward(critic, layers, self.head.slope(outputs))[1]
        return self.head.mean(outputs), slope[:, observation.shape[1] :]

    def judged(
        self, critics: Any, observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        pairs = [self.value(critic, observation, action) for critic in critics]
        q, slope = (np.stack(parts) for parts in zip(*pairs, strict=True))
        return q.min(axis=0), slope[q.argmin(axis=0), np.arange(len(action))]


class ForManyEnvironments(Distributional):
    """What FastTD3 and FastSAC share: AdamW, and critics of which each may count."""

    def move(self, name: str, gradient: Any) -> None:
        """One step of AdamW."""
        rate = getattr(self.config, f"{name}_lr") * self.config.weight_decay
        before = getattr(self, name)
        super().move(name, gradient)
        moved = reference.zip_map(lambda x, old: x - rate * old, getattr(self, name), before)
        setattr(self, name, moved)

    def judged(
        self, critics: Any, observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mean over critics, or the smallest."""
        if self.config.target_value == "smallest":
            return super().judged(critics, observation, action)
        pairs = [self.value(critic, observation, action) for critic in critics]
        q, slope = (np.mean(parts, axis=0) for parts in zip(*pairs, strict=True))
        return q, slope


class SAC(Distributional, actor_critic.SAC):
    """SAC with a head."""


class TD3(Distributional, actor_critic.TD3):
    """TD3 with a head."""

    def actor_loss(
        self, batch: Transition, action: np.ndarray, step: int
    ) -> tuple[dict[str, float], np.ndarray]:
        q, slope = self.value(self.critic[0], batch.observation, action)
        return {"actor/loss": -q.mean()}, -slope
