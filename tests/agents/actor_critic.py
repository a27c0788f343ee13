"""Float64 NumPy that actor-critics are checked against: TD3 and SAC, and what others have of them.

Attributes have the names of a State's fields; `adams` those of the learning rates without "_lr".
Batches are in float64, and noise is drawn as the agents draw it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from rljax import networks
from rljax.agent import Transition
from tests.agents import reference

NO_ENTROPY = networks.Trained(np.float32(-np.inf), None)  # a temperature of 0
# Settings that not all agents have.
DEFAULTS: dict[str, Any] = {
    "reward_scale": 1.0,
    "policy_delay": 1,
    "log_std_offset": 0.0,
    "entropy_backup": True,
    "learn_temperature": True,
    "temperature_loss": "log_alpha",
    "target_entropy": None,
    "target_entropy_share": 1.0,
}


class ActorCritic:
    """An actor, critics and their targets, of which not all agents have all."""

    actor: Any
    target_actor: Any
    critic: Any
    target_critic: Any

    def __init__(self, state: Any, config: Any) -> None:
        self.config: Any = SimpleNamespace(**DEFAULTS | vars(config))
        for name in ("actor", "target_actor", "critic", "target_critic"):
            if hasattr(state, name):
                setattr(self, name, reference.exact(getattr(state, name)))
        self.adams = {
            name.removesuffix("_lr"): reference.Adam(rate)
            for name, rate in vars(config).items()
            if name.endswith("_lr")
        }

    def move(self, name: str, gradient: Any) -> None:
        """One step of Adam."""
        setattr(self, name, self.adams[name].step(getattr(self, name), gradient))

    def follow(self, *names: str) -> None:
        """Targets move towards what they follow."""
        for name in names:
            online, target = getattr(self, name), getattr(self, f"target_{name}")
            moved = reference.towards(online, target, self.config.target_rate)
            setattr(self, f"target_{name}", moved)

    def bootstrapped(self, batch: Transition, value: np.ndarray) -> np.ndarray:
        """y = r + gamma (1 - terminated) V(s') [B]."""
        config = self.config
        return config.reward_scale * batch.reward + config.discount * (1 - batch.terminated) * value

    def smallest_target(self, batch: Transition, action: np.ndarray) -> np.ndarray:
        """min_c Q'_c(s', a') [B]."""
        return reference.smallest(self.target_critic, batch.next_observation, action)[0]

    def next_target(self, batch: Transition, action: np.ndarray, penalty: Any) -> Any:
        """y [B] for next actions, whose values lose a penalty."""
        return self.bootstrapped(batch, self.smallest_target(batch, action) - penalty)

    def judged(
        self, critics: Any, observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The value [B] that the actor climbs, and its slope in the action [B, A]."""
        return reference.smallest(critics, observation, action)

    def teach_critics(self, batch: Transition, y: Any, weight: Any = 1.0) -> dict[str, float]:
        """One step down the squared errors."""
        observation, action = batch.observation, batch.action
        loss, q, gradient = reference.squared_errors(self.critic, observation, action, y, weight)
        self.move("critic", gradient)
        return {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        raise NotImplementedError

    def is_due(self, step: int) -> bool:
        """Whether the actor moves."""
        return (step + 1) % self.config.policy_delay == 0


class TD3(ActorCritic):
    """Algorithm 1 of arXiv:1802.09477."""

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, limit = self.config, self.config.target_noise_clip
        noise = reference.noise(key, batch.action.shape)
        output = reference.forward(self.target_actor, batch.next_observation)[0]
        smoothing = np.clip(config.target_noise * noise, -limit, limit)
        action = np.clip(np.tanh(output) + smoothing, -1.0, 1.0)
        penalty, metrics = self.penalty(batch, action)
        y = self.next_target(batch, action, penalty)
        metrics |= self.teach_critics(batch, y)
        if self.is_due(step):
            # a = tanh(u):  dL/du = (1 - a^2) dL/da
            output, inputs = reference.forward(self.actor, batch.observation)
            action = np.tanh(output)
            of_actor, slope = self.actor_loss(batch, action, step)
            change = (1.0 - action**2) * slope / len(action)
            self.move("actor", reference.backward(self.actor, inputs, change)[0])
            self.follow("actor", "critic")
            metrics |= of_actor
        return metrics

    def penalty(self, batch: Transition, action: np.ndarray) -> tuple[Any, dict[str, float]]:
        """What is taken off the values of next actions, and its metrics: nothing."""
        return 0.0, {}

    def actor_loss(
        self, batch: Transition, action: np.ndarray, step: int
    ) -> tuple[dict[str, float], np.ndarray]:
        """Minus the first critic's value, and each row's slope in its action [B, A]."""
        q, slope = reference.value(self.critic[0], batch.observation, action)
        return {"actor/loss": -q.mean()}, -slope


def log_density(u: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """log pi of a = tanh u: sum_i log N(u_i) - log(1 - tanh(u_i)^2)."""
    gaussian = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return (gaussian - 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))).sum(axis=-1)


class SAC(ActorCritic):
    """arXiv:1812.05905, with the settings that agents/sac.py adds."""

    def __init__(self, state: Any, config: Any) -> None:
        super().__init__(state, config)
        self.log_temperature = np.log(config.init_temperature)

    @property
    def temperature(self) -> float:
        """alpha."""
        return np.exp(self.log_temperature)

    def heads(self, actor: Any, observation: np.ndarray) -> tuple[Any, ...]:
        """Mean and log std [..., A] before the tanh, the inputs of each layer, and where log std is
        not clipped.
        """
        output, inputs = reference.forward(actor, observation)
        mean, raw = np.split(output, 2, axis=-1)
        raw = raw + self.config.log_std_offset
        log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
        return mean, log_std, inputs, raw == log_std

    def sample(
        self, actor: Any, observation: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """a = tanh u [..., A] for u = mean + std noise, and log pi(a|s) [...]."""
        mean, log_std = self.heads(actor, observation)[:2]
        u = mean + np.exp(log_std) * noise
        return np.tanh(u), log_density(u, mean, log_std)

    def next_sample(self, batch: Transition, key: Any) -> tuple[np.ndarray, np.ndarray]:
        """Next actions [B, A] and their log pi [B]."""
        noise = reference.noise(key, batch.action.shape)
        return self.sample(self.actor, batch.next_observation, noise)

    def target(self, batch: Transition, key: Any) -> Any:
        """y [B], from the actor and the temperature as they are: equation 3."""
        action, log_prob = self.next_sample(batch, key)
        penalty = self.temperature * log_prob if self.config.entropy_backup else 0.0
        return self.next_target(batch, action, penalty)

    def climb(
        self, batch: Transition, noise: np.ndarray, slope: Any, also: Any = 0.0, share: float = 1.0
    ) -> None:
        """A step of the actor down `share` mean [alpha log pi(a|s) - M], equation 9, where M has
        this slope [B, A] in the action, and `also` [B, 2 A] in the outputs.

        u moves log pi by 2 tanh u and M by (1 - tanh(u)^2) dM/da; log std moves u by std noise, and
        log pi by -1. Clipping stops it.
        """
        _, log_std, inputs, inside = self.heads(self.actor, batch.observation)
        action = self.sample(self.actor, batch.observation, noise)[0]
        of_mean = self.temperature * 2.0 * action - (1.0 - action**2) * slope
        of_log_std = of_mean * np.exp(log_std) * noise - self.temperature
        change = np.concatenate([of_mean, of_log_std], axis=1) - also
        change *= np.concatenate([np.ones_like(of_mean), inside], axis=1) * share / len(noise)
        self.move("actor", reference.backward(self.actor, inputs, change)[0])

    def improve(self, batch: Transition, key: Any, critics: Any = None) -> dict[str, float]:
        """Equation 9 with the smallest of the critics (if given, of these), and the temperature."""
        critics = self.critic if critics is None else critics
        noise = reference.noise(key, batch.action.shape)
        action, log_prob = self.sample(self.actor, batch.observation, noise)
        q, slope = self.judged(critics, batch.observation, action)
        loss = (self.temperature * log_prob - q).mean()
        self.climb(batch, noise, slope)
        return {"actor/loss": loss, **self.cool(-log_prob.mean(), action.shape[1])}

    def cool(self, entropy: float, size: float) -> dict[str, float]:
        """Equation 18: L = alpha (entropy - target), or log alpha for alpha; d alpha / d log alpha
        is alpha. The target is minus a share of the actions' `size`, if it is not set.
        """
        config, temperature = self.config, self.temperature
        rule = -config.target_entropy_share * size
        excess = entropy - (rule if config.target_entropy is None else config.target_entropy)
        factor, slope = self.log_temperature, 1.0
        if config.temperature_loss == "alpha":
            factor = slope = temperature
        if config.learn_temperature:
            adam = self.adams["temperature"]
            self.log_temperature = adam.step(self.log_temperature, slope * excess)
        return {
            "actor/entropy": entropy,
            "temperature/loss": factor * excess,
            "temperature/value": temperature,
        }

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        metrics = self.learn(batch, *jax.random.split(key), step)
        self.follow("critic")
        return metrics

    def learn(
        self, batch: Transition, key_critic: Any, key_actor: Any, step: int
    ) -> dict[str, float]:
        """All but the targets, with the keys of its two parts."""
        metrics = self.teach_critics(batch, self.target(batch, key_critic))
        if self.is_due(step):
            metrics |= self.improve(batch, key_actor)
        return metrics


def assert_acts_by_a_squashed_gaussian(
    act: Any, state: Any, config: Any, explore: bool
) -> tuple[Any, ...]:
    """a = tanh(mean + std noise), or tanh(mean), of a State whose log std is within its limits.
    Returns what else `act` puts out.
    """
    observation, key = reference.observed()[:6], jax.random.key(0)
    output = reference.forward(reference.exact(state.actor), observation)[0]
    u = output[:, :2] + explore * np.exp(output[:, 2:]) * reference.noise(key, (6, 2))
    action, *others = act(state, observation, key, config, explore=explore)
    np.testing.assert_allclose(action, np.tanh(u), rtol=1e-4, atol=1e-5)
    return tuple(others)


def assert_acts_with_noise(act: Any, state: Any, config: Any, explore: bool) -> tuple[Any, ...]:
    """tanh of the actor's outputs plus noise, clipped. Returns what else `act` puts out."""
    observation, key = reference.observed()[:6], jax.random.key(0)
    action = np.tanh(reference.forward(reference.exact(state.actor), observation)[0])
    noise = explore * config.exploration_noise * reference.noise(key, (6, 2))
    actual, *others = act(state, observation, key, config, explore=explore)
    np.testing.assert_allclose(actual, np.clip(action + noise, -1.0, 1.0), rtol=1e-4, atol=1e-5)
    return tuple(others)


def clipped_share(expected: SAC) -> float:
    """The share of a batch's log stds that are clipped."""
    inside = expected.heads(expected.actor, np.asarray(reference.transitions().observation))[3]
    return 1.0 - inside.mean()
