"""Agents that learn from rollouts, in float64 NumPy: sums term by term, gradients by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.networks import distributions
from tests.agents import reference, trees

STEPS, ENVS = 4, 3
SIZES: dict[str, Any] = {
    "num_steps": STEPS,
    "num_envs": ENVS,
    "batch_size": 6,
    "num_epochs": 2,
    "actor_hidden": (8, 8),
    "critic_hidden": (8, 8),
    "activation": "relu",
    "learning_rate": 1e-2,
}
KEY = jax.random.key(0)
# Metrics of the critics of rewards and of costs.
NAMES = (("loss", "value"), ("cost_loss", "cost_value"))


def in_rollout(batch: Transition, steps: int = STEPS) -> Transition:
    """Rows [T E, ...] as a rollout [T, E, ...]."""
    return jax.tree.map(lambda x: x.reshape(steps, -1, *x.shape[1:]), batch)


def rollout(seed: int, spec: EnvSpec) -> Transition:
    """A rollout [T, E] with every kind of end."""
    generator, size = np.random.default_rng(seed), (STEPS, ENVS)
    raw: Any = 0.5 * generator.normal(size=(*size, 2)).astype(np.float32)
    if spec.discrete:
        raw = generator.integers(spec.action_size, size=size).astype(np.int32)
    extras = {"raw": raw, "log_prob": generator.normal(-2.0, 0.3, size=size).astype(np.float32)}
    if spec.signals:
        extras["cost"] = (generator.random(size) < 0.6).astype(np.float32)
    batch = in_rollout(reference.transitions(seed, STEPS * ENVS))
    action = jnp.asarray(raw if spec.discrete else np.clip(raw, -1, 1))
    return continued(batch.replace(action=action, extras=jax.tree.map(jnp.asarray, extras)))


def continued(batch: Transition) -> Transition:
    """Each step begins where the one before it ended, but for new episodes."""
    ended = (batch.terminated | batch.truncated)[:-1, :, None]
    following = jnp.where(ended, batch.next_observation[:-1], batch.observation[1:])
    return batch.replace(next_observation=batch.next_observation.at[:-1].set(following))


def along(batch: Transition, terms: np.ndarray, decay: float) -> np.ndarray:
    """Discounted sums of terms [T, E] from each step to the end of its episode, or to the last."""
    ended, result = np.asarray(batch.terminated | batch.truncated), np.zeros(terms.shape)
    for t, e in np.ndindex(terms.shape):
        for later in range(t, len(terms)):
            result[t, e] += decay ** (later - t) * terms[later, e]
            if ended[later, e]:
                break
    return result


def mixed_returns(batch: Transition, value: np.ndarray, config: Any) -> np.ndarray:
    """Returns [T, E] over n steps, which bootstrap with the values [T, E] of successors, in shares
    (1 - lambda) lambda^(n-1); the last gets the rest.
    """
    reward = config.reward_scale * np.asarray(batch.reward, np.float64)
    result = np.zeros(value.shape)
    for t, e in np.ndindex(value.shape):
        total, share = 0.0, 1.0
        for n in range(t, len(value)):
            total += config.discount ** (n - t) * reward[n, e]
            follows = 0.0 if batch.terminated[n, e] else value[n, e]
            whole = total + config.discount ** (n - t + 1) * follows
            if batch.terminated[n, e] or batch.truncated[n, e] or n == len(value) - 1:
                result[t, e] += share * whole
                break
            result[t, e] += share * (1.0 - config.trace_decay) * whole
            share *= config.trace_decay
    return result


def rows(x: Any) -> np.ndarray:
    """Rows [T E, ...] of a rollout, in float64."""
    return np.asarray(x, np.float64).reshape(STEPS * ENVS, *np.shape(x)[2:])


def minibatches(key: jax.Array, size: int, number: int = STEPS * ENVS) -> np.ndarray:
    """The rows of each, in the agents' order."""
    return np.asarray(distributions.permutation(key, number)).reshape(-1, size)


def means(lines: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([line[name] for line in lines])) for name in lines[0]}


def explained(advantage: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """How much of the returns a critic explains that errs by the advantages, as SB3 defines it."""
    return {"critic/explained_variance": 1.0 - float(np.var(advantage) / np.var(target))}


def assert_ratio_is_one(act: Any, update: Any, state: Any, batch: Transition, config: Any) -> None:
    """For the policy that gathered the rollout, in one minibatch of all rows."""
    config = dataclasses.replace(config, num_epochs=1, batch_size=STEPS * ENVS)
    action, extras, *_ = act(state, batch.observation, KEY, config, explore=True)
    metrics = update(state, batch.replace(action=action, extras=extras), KEY, 0, config)[1]
    np.testing.assert_allclose(metrics["actor/kl"], 0.0, atol=1e-6)
    assert metrics["actor/clipped"] == 0.0


def assert_only_time_limits_bootstrap(
    with_advantages: Any, networks: Any, critic: Any, batch: Transition, config: Any
) -> None:
    """Advantages of episodes of one step; the `critic` [..., 1] is one of the `networks`."""
    here, after = (
        np.asarray(critic(x))[..., 0] for x in (batch.observation, batch.next_observation)
    )
    no, yes = jnp.zeros((STEPS, ENVS), bool), jnp.ones((STEPS, ENVS), bool)
    cases = ((no, yes, config.discount, 1e-4), (yes, no, 0.0, 1e-5), (yes, yes, 0.0, 1e-5))
    for terminated, truncated, share, rtol in cases:
        ended = batch.replace(terminated=terminated, truncated=truncated)
        extras = with_advantages(networks, ended, config).extras
        expected = batch.reward + share * after
        trees.assert_close(extras["advantage"], expected - here)
        trees.assert_close(extras["advantage"] + extras["value"], expected, rtol=rtol)


class Learner:
    """A Gaussian policy, and critics of rewards and maybe of costs."""

    def __init__(self, config: Any, mean: Any, log_std: Any, critics: Any = ()) -> None:
        self.config = config
        self.actor, self.log_std = reference.mlp(mean), np.asarray(log_std, np.float64)
        self.critics = [reference.mlp(critic) for critic in critics]
        self.adam = reference.Adam(config.learning_rate, config.adam_epsilon)
        self.running, self.sums = [np.zeros(ENVS), np.zeros(ENVS)], [[], []]

    def of(self, which: int, name: str) -> float:
        """A setting for rewards, or for costs."""
        return getattr(self.config, ("", "cost_")[which] + name)

    def std(self, which: int) -> float:
        """Of discounted sums so far."""
        return np.sqrt(np.ravel(self.sums[which]).var() + 1e-8)

    def scaled(self, which: int, values: Any, batch: Transition) -> np.ndarray:
        """Rewards or costs [T, E] divided by that std; rewards are clipped."""
        values = np.asarray(values, np.float64)
        for t in range(STEPS):
            self.running[which] = values[t] + self.of(which, "discount") * self.running[which]
            self.sums[which].append(self.running[which])
            ended = batch.terminated[t] | batch.truncated[t]
            self.running[which] = np.where(ended, 0.0, self.running[which])
        scaled = values / self.std(which)
        return np.clip(scaled, -10, 10) if which == 0 else scaled

    def values(self, which: int, observation: np.ndarray) -> np.ndarray:
        """V or V_c [...]."""
        return reference.forward(self.critics[which], observation)[0][..., 0]

    def advantages(self, which: int, batch: Transition, gain: np.ndarray) -> np.ndarray:
        """Generalised ones [N], arXiv:1506.02438, of rewards or costs [T, E]."""
        observation, following = (
            np.asarray(x, np.float64) for x in (batch.observation, batch.next_observation)
        )
        discount = self.of(which, "discount")
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        error = gain + discount * alive * self.values(which, following)
        error -= self.values(which, observation)
        return along(batch, error, discount * self.of(which, "trace_decay")).ravel()

    def policy(self, observation: np.ndarray, raw: np.ndarray) -> tuple[Any, np.ndarray]:
        """Inputs of the actor's layers, and (raw - mean) / std [N, A]."""
        mean, inputs = reference.forward(self.actor, observation)
        return inputs, (raw - mean) / np.exp(self.log_std)

    def score(self, inputs: Any, scaled: np.ndarray, weight: np.ndarray) -> list[Any]:
        """The gradient of the weighted sum of log pi, by the actor and by log std."""
        weight = weight[:, None]
        layers = reference.backward(self.actor, inputs, weight * scaled / np.exp(self.log_std))[0]
        return [layers, (weight * (scaled**2 - 1)).sum(axis=0)]

    def entropy(self) -> float:
        return (self.log_std + 0.5 * np.log(2 * np.pi * np.e)).sum()

    def surrogate(
        self, observation: np.ndarray, raw: np.ndarray, old: np.ndarray, advantage: np.ndarray
    ) -> tuple[dict[str, float], list[Any]]:
        """Metrics and gradients of clipped surrogate and entropy: arXiv:1707.06347, eq. 7, 9."""
        inputs, scaled = self.policy(observation, raw)
        log_prob = (-0.5 * scaled**2 - self.log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        ratio, limit = np.exp(log_prob - old), self.config.clip_ratio
        clipped = np.clip(ratio, 1 - limit, 1 + limit)
        slope = np.where(ratio * advantage <= clipped * advantage, -ratio * advantage, 0.0)
        layers, of_std = self.score(inputs, scaled, slope / len(raw))
        metrics = {
            "actor/loss": -np.minimum(ratio * advantage, clipped * advantage).mean(),
            "actor/entropy": self.entropy(),
            "actor/kl": (ratio - 1 - (log_prob - old)).mean(),
            "actor/clipped": (np.abs(ratio - 1) > limit).mean(),
        }
        return metrics, [layers, of_std - self.config.entropy_cost]

    def errors(
        self, observation: np.ndarray, targets: Any, old: Any = None
    ) -> tuple[dict[str, float], list[Any]]:
        """Metrics, and the gradient of half of each critic's squared error to targets [N]."""
        metrics, gradients = {}, []
        for critic, target, (loss, value) in zip(self.critics, targets, NAMES, strict=False):
            output, inputs = reference.forward(critic, observation)
            square, change = self.square(output[:, 0], target, old)
            gradients.append(reference.backward(critic, inputs, change[:, None] / len(change))[0])
            metrics |= {
                f"critic/{loss}": 0.5 * square.mean(),
                f"critic/{value}": output.mean(),
            }
        return metrics, gradients

    def square(
        self, new: np.ndarray, target: np.ndarray, old: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Squared errors, and half their slopes."""
        return (new - target) ** 2, new - target

    def proximal_step(
        self, observation: Any, raw: Any, log_prob: Any, advantage: Any, targets: Any, old: Any = 0
    ) -> dict[str, float]:
        """A step of Adam down the loss of PPO; the metrics before it."""
        metrics, (actor, log_std) = self.surrogate(observation, raw, log_prob, advantage)
        more, critics = self.errors(observation, targets, old)
        critics = reference.zip_map(lambda x: self.config.value_cost * x, critics)
        limit = self.config.max_grad_norm or None
        gradient = reference.limited([actor, *critics, log_std], limit)
        parameters = [self.actor, *self.critics, self.log_std]
        self.actor, *self.critics, self.log_std = self.adam.step(parameters, gradient)
        return metrics | more


class TrustRegion(Learner):
    """Natural gradients, with the Hessian of KL as a matrix."""

    def flat(self, layers: Any, log_std: np.ndarray) -> np.ndarray:
        return np.concatenate([*(x.ravel() for x in layers), log_std])

    def shaped(self, point: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        *parts, log_std = np.split(point, np.cumsum([x.size for x in self.actor]))
        return [x.reshape(old.shape) for x, old in zip(parts, self.actor, strict=True)], log_std

    def hessian(self, inputs: Any) -> np.ndarray:
        """Of the mean KL, damped."""
        size, width = len(inputs[0]), len(self.log_std)
        number = len(self.flat(self.actor, self.log_std))
        hessian = self.config.damping * np.eye(number)
        for row, unit in np.ndindex(size, width):
            slope = np.zeros((size, width))
            slope[row, unit] = np.exp(-self.log_std[unit])
            layers = reference.backward(self.actor, inputs, slope)[0]
            of_mean = self.flat(layers, np.zeros(width))
            hessian += np.outer(of_mean, of_mean) / size
        hessian[-width:, -width:] += 2.0 * np.eye(width)
        return hessian

    def judge(
        self, observation: np.ndarray, raw: np.ndarray, gains: np.ndarray
    ) -> Callable[[np.ndarray], tuple[np.ndarray, float]]:
        """Of a point: means [K] of ratio times gains [N, K], and the mean KL."""
        log_std, std = self.log_std, np.exp(self.log_std)
        mean = reference.forward(self.actor, observation)[0]
        before = (-0.5 * ((raw - mean) / std) ** 2 - log_std).sum(axis=1, keepdims=True)

        def judged(point: np.ndarray) -> tuple[np.ndarray, float]:
            layers, new_log_std = self.shaped(point)
            new, deviation = reference.forward(layers, observation)[0], np.exp(new_log_std)
            now = -0.5 * ((raw - new) / deviation) ** 2 - new_log_std
            ratio = np.exp(now.sum(axis=1, keepdims=True) - before)
            kl = new_log_std - log_std + (std**2 + (mean - new) ** 2) / (2 * deviation**2) - 0.5
            return (ratio * gains).mean(axis=0), kl.sum(axis=1).mean()

        return judged
