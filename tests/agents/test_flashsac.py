"""FlashSAC against float64 written from the paper and the authors' code, with its own networks.

scripts/updates/compare_flashsac.py compares it with the authors' code itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import flashsac
from rljax.networks import noise
from tests.agents import batch_norms, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = flashsac.Config(
    hidden=(6, 6),
    critic_hidden=(5, 5),
    expansion=2,
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
    bins=11,
    rate_updates=10.0,
    init_temperature=0.3,
    imitation_weight=0.7,
)
KEY = jax.random.key(0)
# So that entropy hardly weighs, and rewards keep their size.
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,
    "learn_temperature": False,
    "normalise_rewards": False,
    "critic_hidden": (32, 32),
    "v_min": -15.0,
    "v_max": 15.0,
}
# Its only observation has no variance. Then the actor's running means lag behind its weights, in
# units of sqrt(1e-5), and actions by running statistics are not those that it learns.
UNSOLVED = ("Action",)


def example() -> tuple[EnvSpec, flashsac.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


def norm(x: Any, layer: Any, moments: Any, train: bool) -> tuple[Any, Any]:
    """Batch normalisation as PyTorch has it, and the running moments after it."""
    mean, variance = moments["mean"], moments["variance"]
    if train:
        mean, variance = x.mean(axis=0), x.var(axis=0)
        rows = len(x)
        moments = {
            "mean": 0.99 * moments["mean"] + 0.01 * mean,
            "variance": 0.99 * moments["variance"] + 0.01 * variance * rows / (rows - 1),
        }
    y = (x - mean) / jnp.sqrt(variance + 1e-5)
    return layer["scale"] * y + layer["shift"], moments


def forward(params: Any, moments: Any, x: Any, train: bool) -> tuple[Any, Any]:
    """One network's outputs, and its running moments after them."""
    after: dict[str, Any] = {}
    x, after["norm_input"] = norm(x, params["norm_input"], moments["norm_input"], train)
    x = x @ params["embedding"]["kernel"]
    for name in ("block_0", "block_1"):
        layers, statistics = params[name], moments[name]
        y, first = norm(
            x @ layers["hidden_0"]["kernel"], layers["norm_0"], statistics["norm_0"], train
        )
        y = jnp.maximum(y, 0.0) @ layers["hidden_1"]["kernel"]
        y, second = norm(y, layers["norm_1"], statistics["norm_1"], train)
        x = jnp.maximum(y, 0.0) + x
        after[name] = {"norm_0": first, "norm_1": second}
    x = x / jnp.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * params["norm_output"]["scale"]
    return x @ params["output"]["kernel"] + params["output"]["bias"], after


def projected(params: Any) -> Any:
    """Rows of length 1; scales, with shifts if any, of length n^1/2."""
    if "kernel" in params:
        kernel = params["kernel"]
        return {**params, "kernel": kernel / np.sqrt((kernel**2).sum(axis=0))}
    if "scale" in params:
        joined = np.concatenate(list(params.values()))
        factor = np.sqrt(len(params["scale"]) / ((joined**2).sum() + 1e-8))
        return {name: factor * x for name, x in params.items()}
    return {name: projected(layer) for name, layer in params.items()}


def policy(output: Any, key: Any) -> tuple[Any, Any]:
    """a = tanh u and log pi(a|s), with log std = -10 + 6 (1 + tanh x)."""
    mean, x = jnp.split(output, 2, axis=1)
    log_std = -10.0 + 6.0 * (1.0 + jnp.tanh(x))
    drawn = jnp.asarray(reference.noise(key, mean.shape))
    u = mean + jnp.exp(log_std) * drawn
    gaussian = -0.5 * drawn**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return jnp.tanh(u), (gaussian - jnp.log(1.0 - jnp.tanh(u) ** 2)).sum(axis=1)


class Expected:
    """The authors' agent, step by step."""

    def __init__(self, state: flashsac.State) -> None:
        self.support = np.linspace(-5.0, 5.0, CONFIG.bins)
        actor, critic = state.actor.parameters, state.critic.parameters
        self.actor, self.actor_moments = actor.params, actor.collections["batch_stats"]
        self.critic = batch_norms.members(critic.params)
        self.moments = batch_norms.members(critic.collections["batch_stats"])
        self.target = batch_norms.members(state.target_critic.params)
        self.log_alpha = state.log_temperature.parameters
        # Each schedule counts the steps of its own optimiser, the actor's every other update.
        self.optimisers = {
            name: optax.adam(optax.cosine_decay_schedule(rate, 10, alpha=0.5))
            for name, rate in (("actor", 1e-2), ("critic", 2e-2), ("log_alpha", 3e-2))
        }
        self.states = {
            name: optimiser.init(getattr(self, name)) for name, optimiser in self.optimisers.items()
        }

    def value(self, outputs: Any) -> Any:
        return jax.nn.softmax(outputs) @ self.support

    def move(self, name: str, gradient: Any) -> None:
        changes, self.states[name] = self.optimisers[name].update(gradient, self.states[name])
        setattr(self, name, optax.apply_updates(getattr(self, name), changes))

    def outputs(self, critics: Any, rows: Any, train: bool) -> tuple[list[Any], list[Any]]:
        pairs = [forward(c, m, rows, train) for c, m in zip(critics, self.moments, strict=True)]
        return [output for output, _ in pairs], [moments for _, moments in pairs]

    def actor_loss(self, actor: Any, batch: Transition, key: Any) -> tuple[Any, Any]:
        number = len(batch.reward)
        both = jnp.concatenate([batch.observation, batch.next_observation])
        output, after = forward(actor, self.actor_moments, both, True)
        action, log_prob = policy(output[:number], key)
        rows = jnp.concatenate([batch.observation, action], axis=1)
        values = [self.value(x) for x in self.outputs(self.critic, rows, False)[0]]
        q = jnp.minimum(*values)
        loss = (jnp.exp(self.log_alpha) * log_prob - q).mean()
        size = jax.lax.stop_gradient(jnp.abs(q).mean())
        loss += CONFIG.imitation_weight * size * ((action - batch.action) ** 2).mean()
        return loss, (after, -log_prob.mean())

    def critic_loss(self, critics: Any, batch: Transition, key: Any) -> tuple[Any, Any]:
        number = len(batch.reward)
        output, _ = forward(self.actor, self.actor_moments, batch.next_observation, False)
        next_action, log_prob = policy(output, key)
        rows = jnp.concatenate(
            [
                jnp.concatenate([batch.observation, batch.action], axis=1),
                jnp.concatenate([batch.next_observation, next_action], axis=1),
            ]
        )
        nexts = jnp.stack([x[number:] for x in self.outputs(self.target, rows, True)[0]])
        lowest = self.value(nexts).argmin(axis=0)
        p = np.asarray(jax.nn.softmax(nexts[lowest, np.arange(number)]))
        alive = CONFIG.discount * (1.0 - batch.terminated)
        entropy = jnp.exp(self.log_alpha) * log_prob
        y = batch.reward[:, None] + alive[:, None] * (self.support - entropy[:, None])
        position = (np.clip(np.asarray(y), -5.0, 5.0) + 5.0) / (self.support[1] - self.support[0])
        lower = np.floor(position).astype(int)
        masses = np.zeros(p.shape)
        for row, j in np.ndindex(p.shape):
            share, place = position[row, j] - lower[row, j], lower[row, j]
            masses[row, place] += p[row, j] * (1.0 - share)
            masses[row, min(place + 1, CONFIG.bins - 1)] += p[row, j] * share
        outputs, after = self.outputs(critics, rows, True)
        losses = [-(masses * jax.nn.log_softmax(x[:number])).sum(axis=1).mean() for x in outputs]
        return sum(losses) / 2.0, after

    def update(self, batch: Transition, key: Any, step: int) -> None:
        key_actor, key_critic = jax.random.split(key)
        if step % 2 == 0:
            slope = jax.grad(self.actor_loss, has_aux=True)
            gradient, (self.actor_moments, entropy) = slope(self.actor, batch, key_actor)
            self.move("actor", gradient)
            self.actor = projected(self.actor)
            # sigma = 0.15 in each of two dimensions
            target = 0.5 * 2 * np.log(2.0 * np.pi * np.e * 0.15**2)
            self.move("log_alpha", jnp.exp(self.log_alpha) * (entropy - target))
        slope = jax.grad(self.critic_loss, has_aux=True)
        gradient, self.moments = slope(self.critic, batch, key_critic)
        self.move("critic", gradient)
        self.critic = [projected(critic) for critic in self.critic]
        self.target = jax.tree.map(lambda new, old: 0.1 * new + 0.9 * old, self.critic, self.target)


@pytest.mark.slow
def test_updates_equal_the_authors() -> None:
    """In float64, since Adam makes a step of any rounding error along a direction without slope."""
    with jax.enable_x64():
        state = batch_norms.exact(flashsac.init(KEY, SPEC, CONFIG))
        expected, update = Expected(state), jax.jit(flashsac.update)
        for step in range(4):
            batch = batch_norms.exact(reference.transitions(step, size=6))
            key = jax.random.key(step)
            state, metrics = update(state, batch, key, step, CONFIG)
            expected.update(batch, key, step)
    critic = state.critic.parameters
    for actual, theirs in (
        (state.actor.parameters.params, expected.actor),
        (state.actor.parameters.collections["batch_stats"], expected.actor_moments),
        (state.log_temperature.parameters, expected.log_alpha),
        *zip(batch_norms.members(critic.params), expected.critic, strict=True),
        *zip(batch_norms.members(critic.collections["batch_stats"]), expected.moments, strict=True),
        *zip(batch_norms.members(state.target_critic.params), expected.target, strict=True),
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8), actual, theirs
        )
    assert np.isfinite(metrics["critic/loss"])


def test_only_termination_cuts_the_bootstrap() -> None:
    config = dataclasses.replace(CONFIG, value_head="squared")
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(flashsac.update), flashsac.init(KEY, SPEC, config), config
    )


def test_a_batch_of_several_steps_brings_its_own_discount() -> None:
    state, batch = flashsac.init(KEY, SPEC, CONFIG), reference.transitions()
    loss = jax.jit(
        lambda batch, config: flashsac.critic_loss(
            state.critic.parameters, state, batch, KEY, config
        )[0]
    )
    steps = batch.replace(extras={"discount": jnp.full(len(batch.reward), 0.5)})
    halved = loss(batch, dataclasses.replace(CONFIG, discount=0.5))
    assert loss(steps, CONFIG) == pytest.approx(float(halved), rel=1e-6)
    assert loss(batch, CONFIG) != pytest.approx(float(halved), rel=1e-3)


def test_noise_is_held_between_steps() -> None:
    assert isinstance(flashsac.remember(SPEC, flashsac.Config()), noise.Held)
    state = flashsac.init(KEY, SPEC, CONFIG)
    held = noise.Held(jnp.ones(2), jnp.asarray(3, jnp.int32))
    act = jax.jit(flashsac.act, static_argnames="explore")
    actions = [
        act(state, jnp.ones(3), jax.random.key(seed), CONFIG, True, held)[0] for seed in range(2)
    ]
    np.testing.assert_array_equal(*actions)


@pytest.mark.parametrize("widths", [(), (8, 4)])
def test_blocks_of_several_widths_are_refused(widths: tuple[int, ...]) -> None:
    config = dataclasses.replace(CONFIG, critic_hidden=widths)
    with pytest.raises(ValueError, match=r"^--config\.critic-hidden is .*, all equal\.$"):
        flashsac.check(SPEC, config)
