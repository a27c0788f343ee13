"""IDQL against float64 NumPy written from the papers and the authors' code, gradients of the actor
and of V by differences.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import idql
from rljax.networks.layers import uniform_hash
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SIZES, SPEC

T, N = 3, 4
CONFIG = idql.Config(
    **{**SIZES, "hidden": (4, 4)},
    critic_hidden=(8, 8),
    value_lr=3e-2,
    actor_weight_decay=0.3,
    average_rate=0.2,
    decay_steps=None,
    dropout=None,
    activation="relu",
    denoising_steps=T,
    num_candidates=N,
    embedding=4,
)
PROBE: dict[str, Any] = {
    "initialisation": "torch",
    "dropout": None,
    "normalise_value": False,
    "average_rate": 0.05,
    "num_candidates": 8,
    "critic_hidden": None,
}
POLICY_IS_A_DRAW = True  # also without exploring
AVERAGES = ("average_actor",)  # of the actor


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def arrays(layer: Any, *names: str) -> list[np.ndarray]:
    return [np.asarray(layer[name], np.float64) for name in names or ("kernel", "bias")]


def denoiser(network: Any) -> list[Any]:
    """Frequencies, the MLP of times, the first layer, blocks and the last layer."""
    params = reference.networks.parameters_of(network).params
    body, blocks = params["body"], []
    for i in range(sum(name.startswith("norm") for name in body)):
        inner, outer = (arrays(body[f"{name}_{i}"]) for name in ("inner", "outer"))
        blocks.append([arrays(body[f"norm_{i}"], "scale", "bias"), inner, outer])
    ends = [arrays(body[name]) for name in ("input", "output")]
    return [
        [np.asarray(params["frequencies_0"], np.float64)],
        reference.layers(params["time_0"]),
        ends[0],
        blocks,
        ends[1],
    ]


def normed(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Ba et al., arXiv:1607.06450, with Flax's epsilon."""
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6) * scale + bias


def predicted(
    parts: list[Any], noisy: np.ndarray, observation: np.ndarray, time: Any, kept: Any = ()
) -> np.ndarray:
    """The noise in actions; dropout multiplies the inputs of block i by `kept[i]`."""
    (frequencies,), times, first, blocks, last = parts
    time = np.broadcast_to(np.asarray(time, np.float64), len(noisy))
    angle = 2.0 * np.pi * time[:, None] * frequencies
    waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    inputs = [noisy, reference.forward(times, waves)[0], observation]
    x = np.concatenate(inputs, axis=1) @ first[0] + first[1]
    for i, (norm, inner, outer) in enumerate(blocks):
        y = normed(x * (kept[i] if len(kept) else 1.0), *norm)
        x = x + np.maximum(y @ inner[0] + inner[1], 0.0) @ outer[0] + outer[1]
    return np.maximum(x, 0.0) @ last[0] + last[1]


def state_value(network: Any) -> list[Any]:
    """The normalisation of the inputs, and the MLP behind it."""
    params = reference.networks.parameters_of(network).params
    if "norm" not in params:
        return [[], reference.layers(params)]
    return [arrays(params["norm"], "scale", "bias"), reference.layers(params["net"])]


def values_of(parts: list[Any], observation: np.ndarray) -> np.ndarray:
    norm, mlp = parts
    x = normed(observation, *norm) if norm else observation
    return reference.forward(mlp, x)[0][:, 0]


class Reference(value_learning.Networks):
    """Equations 5 and 6 of arXiv:2110.06169, and DDPM's loss."""

    def __init__(self, state: idql.State, config: idql.Config) -> None:
        super().__init__(state, config, actor=denoiser, value=state_value)
        self.average, self.parts["average_actor"] = denoiser(state.average_actor), denoiser
        self.alpha, self.alpha_hat = noising()

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        key_step, key_noise, key_dropout = jax.random.split(key, 3)
        t = np.asarray(jax.random.randint(key_step, (5,), 0, T))
        noise = reference.noise(key_noise, action.shape)
        left = self.alpha_hat[t][:, None]
        noisy = np.sqrt(left) * action + np.sqrt(1.0 - left) * noise
        kept: list[np.ndarray] = []
        if config.dropout is not None:
            first = jax.random.fold_in(key_dropout, 0)
            for i in range(2):
                drawn = uniform_hash(jax.random.fold_in(first, i), (5, 4))
                mask = drawn < 1.0 - config.dropout
                kept.append(np.asarray(mask, np.float64) / (1.0 - config.dropout))

        def actor_loss(actor: Any) -> float:
            error = predicted(actor, noisy, observation, t, kept) - noise
            return float(np.square(error).sum(axis=1).mean())

        metrics = {"actor/loss": actor_loss(self.actor)}
        rate = config.actor_lr
        if config.decay_steps is not None:
            rate = reference.cosine(config.actor_lr, step, config.decay_steps)
        self.actor_adam.rate, old = rate, self.actor
        moved = self.actor_adam.step(old, reference.differences(actor_loss, old))
        share = rate * (config.actor_weight_decay or 0.0)
        self.actor = reference.zip_map(lambda new, x: new - share * x, moved, old)
        self.average = reference.towards(self.actor, self.average, config.average_rate)

        q = reference.smallest(self.targets, observation, action)[0]

        def value_loss(value: Any) -> float:
            error = q - values_of(value, observation)
            return float((np.abs(config.expectile - (error < 0.0)) * error**2).mean())

        metrics["value/loss"] = value_loss(self.value)
        metrics["value/v"] = values_of(self.value, observation).mean()
        gradient = reference.differences(value_loss, self.value)
        self.value = self.value_adam.step(self.value, gradient)
        y = reward + config.discount * alive * values_of(self.value, successor)
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        number = len(self.critics)
        self.move_critics(reference.zip_map(lambda x: x / number, gradient))
        metrics |= {"critic/loss": loss / number, "critic/q": q.mean(), "critic/target": y.mean()}
        return metrics


def noising() -> tuple[np.ndarray, np.ndarray]:
    """alpha_t and their products, by the authors' `vp_beta_schedule`."""
    t = np.arange(1, T + 1)
    alpha = np.exp(-0.1 / T - 0.5 * (10.0 - 0.1) * (2 * t - 1) / T**2)
    return alpha, np.cumprod(alpha)


CASES: dict[str, Any] = {
    "default": {},
    "dropout, a falling rate": {"dropout": 0.3, "decay_steps": 4.0, "expectile": 0.9},
    "a plain V, no decay of weights": {"normalise_value": False, "actor_weight_decay": None},
}

update = jax.jit(idql.update)
act = jax.jit(idql.act, static_argnames="explore")


def fresh(config: idql.Config = CONFIG) -> idql.State:
    return reference.state(idql, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    value_learning.assert_updates_equal(update, fresh(config), config, Reference, steps=3)


def drawn(state: idql.State, observation: np.ndarray, key: jax.Array) -> np.ndarray:
    """Candidates [N, B, A] by the authors' `ddpm_sampler`."""
    alpha, alpha_hat = noising()
    noise = reference.noise(key, (T + 1, len(observation), N, 2))
    average, candidates = denoiser(state.average_actor), []
    for n in range(N):
        x = noise[0, :, n]
        for i, t in enumerate(reversed(range(T))):
            eps = predicted(average, x, observation, t)
            x = (x - (1.0 - alpha[t]) / np.sqrt(1.0 - alpha_hat[t]) * eps) / np.sqrt(alpha[t])
            x = x + (t > 0) * np.sqrt(1.0 - alpha[t]) * noise[i + 1, :, n]
            x = np.clip(x, -1.0, 1.0)
        candidates.append(x)
    return np.stack(candidates)


def test_takes_the_best_action_of_the_average() -> None:
    state, observation = fresh(), reference.observed()
    candidates = drawn(state, observation, jax.random.split(KEY)[0])
    critics = reference.critics(state.target_critic)
    best = np.argmax([reference.smallest(critics, observation, x)[0] for x in candidates], axis=0)
    assert len(set(best)) > 1
    action, extras = act(state, observation, KEY, CONFIG, explore=False)
    trees.assert_close(action, candidates[best, np.arange(12)])
    assert extras == {}


@pytest.mark.learn
def test_implicit_selection_draws_by_the_side_of_v() -> None:
    """With V among the values of candidates, those above it are drawn more often."""
    state, observation = fresh(), reference.observed()[0]
    critics, keys = reference.critics(state.target_critic), jax.random.split(KEY, 2_000)
    decide = jax.jit(jax.vmap(idql.act, (None, None, 0, None, None)), static_argnums=4)

    def values(state: idql.State, expectile: float) -> np.ndarray:
        config = dataclasses.replace(CONFIG, selection="implicit", expectile=expectile)
        action, _ = decide(state, observation, keys, config, False)
        repeated = np.repeat(observation[None], len(keys), axis=0)
        return reference.smallest(critics, repeated, np.asarray(action, np.float64))[0]

    uniform = values(state, 0.5)
    v = values_of(state_value(state.value), observation[None])[0]
    value = state.value.parameters
    net = dict(value.params["net"])
    bias = net["output"]["bias"] + uniform.mean() - v
    net["output"] = {**net["output"], "bias": bias.astype(np.float32)}
    value = value.replace(params={**value.params, "net": net})
    moved = state.replace(value=state.value.replace(parameters=value))
    shares = [(values(moved, tau) > uniform.mean()).mean() for tau in (0.5, 0.9)]
    assert shares[0] == (uniform > uniform.mean()).mean()
    assert 0.2 < shares[0] < 0.8
    assert shares[1] > shares[0] + 0.1


def test_the_actors_rate_falls_to_zero_as_a_cosine() -> None:
    state = fresh()
    value_learning.assert_rate_falls_to_zero_as_a_cosine(
        idql, update, state, CONFIG, "critic", "value"
    )


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(update, fresh(), CONFIG)
