"""Mixtures of experts against float64 NumPy written from T2MIR's moe.py and gpt2moe_model.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.networks import layers
from rljax.networks.recurrent import experts
from tests.agents import reference

B, N, M = 6, 5, 4
SIZES = experts.Sizes(tokens=4, tasks=3, chosen=2, width=3)
KEY = jax.random.key(3)


def created() -> tuple[Any, Any, Any]:
    """Mixtures with parameters far from 0, tokens and a target gate."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(B, N, M)), jnp.float32)
    network = layers.create(experts.Mixtures(SIZES), KEY, x)

    def random(leaf: Any) -> Any:
        return jnp.asarray(generator.normal(size=leaf.shape), jnp.float32)

    network = network.replace(params=jax.tree.map(random, network.params))
    return network, x, jax.tree.map(random, dict(network.params["task_gate"]))


def gate(x: Any, params: Any) -> Any:
    return np.tanh(x @ params["hidden"]) @ params["output"]


def chosen(logits: Any, number: int) -> Any:
    """The softmax over the largest logits of a token, in a loop."""
    weight = np.zeros_like(logits)
    for at in np.ndindex(logits.shape[:-1]):
        best = np.argsort(-logits[at])[:number]
        share = np.exp(logits[at][best] - logits[at].max())
        weight[at][best] = share / share.sum()
    return weight


def mixed(x: Any, weight: Any, params: Any) -> Any:
    """The chosen experts' outputs, one after the other."""
    y = 0.0
    for e in range(weight.shape[-1]):
        up = x @ params["up"][e] + params["up_bias"][e]
        hidden = np.where(up > 0, up, 0.01 * up)
        y = y + weight[..., e : e + 1] * (hidden @ params["down"][e] + params["down_bias"][e])
    return y


def variation(x: Any) -> float:
    return x.var(ddof=1) / (x.mean() ** 2 + 1e-10)


def balance(plain: Any, noise: Any, scale: Any, number: int) -> float:
    """`TopKBalancedNoisyGate.forward`, row by row."""
    from scipy.stats import norm

    plain, noise, scale = (x.reshape(-1, x.shape[-1]) for x in (plain, noise, scale))
    noisy = plain + noise
    load = np.zeros(plain.shape[-1])
    for row in range(len(plain)):
        ordered = np.sort(noisy[row])[::-1]
        if_in, if_out = ordered[number], ordered[number - 1]
        for e in range(len(load)):
            threshold = if_in if noise[row, e] > if_in else if_out
            load[e] += norm.cdf((plain[row, e] - threshold) / scale[row, e])
    return variation(chosen(noisy, number).sum(axis=0)) + variation(load)


def contrast(z: Any, target: Any, matrix: Any) -> float:
    """`contrastive_loss`, pair by pair."""
    z, target = z[:, 1:].mean(axis=1), target[:, 1:].mean(axis=1)
    half, loss = len(z) // 2, 0.0
    for i in range(half):
        for own, others in ((z[i], target[half:]), (z[half + i], target[:half])):
            scores = np.array([own @ matrix @ other for other in others])
            loss += 0.5 * (np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[i])
    return loss / half


@pytest.mark.parametrize("trains", [False, True])
def test_outputs_and_losses_equal_a_loop(trains: bool) -> None:
    network, x, target = created()
    params, inputs, other = (reference.float64(y) for y in (network.params, x, target))
    of_tokens, of_tasks = gate(inputs, params["token_gate"]), gate(inputs, params["task_gate"])
    noise, scale = np.zeros_like(of_tokens), None
    options: dict[str, Any] = {}
    if trains:
        options = {"trains": experts.GateTraining(target, KEY)}
        scale = np.log1p(np.exp(inputs @ params["noise"])) + 0.01
        drawn = jax.random.normal(KEY, of_tokens.shape)
        noise = scale * np.asarray(drawn, np.float64)
    y, losses = network(x, **options)
    weights = (chosen(of_tokens + noise, 2), chosen(of_tasks, 2))
    parts = [mixed(inputs, w, params[n]) for w, n in zip(weights, ("tokens", "tasks"), strict=True)]
    np.testing.assert_allclose(y, np.concatenate(parts, axis=-1), rtol=1e-4, atol=1e-4)
    if not trains:
        assert losses == experts.Losses(0.0, 0.0)
        return
    np.testing.assert_allclose(losses.balance, balance(of_tokens, noise, scale, 2), rtol=1e-3)
    expected = contrast(of_tasks, gate(inputs, other), params["contrast"])
    np.testing.assert_allclose(losses.contrast, expected, rtol=1e-4)


def test_all_experts_may_be_chosen() -> None:
    sizes = experts.Sizes(tokens=2, tasks=2, chosen=2, width=3)
    x = jax.random.normal(KEY, (B, N, M))
    network = layers.create(experts.Mixtures(sizes), KEY, x)
    target = experts.target_gate({"mixtures": network.params})

    def loss(params: Any) -> Any:
        options = {"trains": experts.training(target, KEY)}
        return network.replace(params=params)(x, **options)[1].total(experts.WithExperts())

    gradient = jax.grad(loss)(network.params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert float(jnp.abs(gradient["task_gate"]["hidden"]).max()) > 0.0


def test_the_target_gate_follows() -> None:
    network, _, target = created()
    params = {"mixtures": network.params}
    moved = experts.followed(target, params, 0.25)
    for name, gate_now in network.params["task_gate"].items():
        expected = 0.75 * np.asarray(target[name]) + 0.25 * np.asarray(gate_now)
        np.testing.assert_allclose(moved[name], expected, rtol=1e-5)
    assert experts.followed(None, {}, 0.25) is None
    assert experts.target_gate({}) is None


@pytest.mark.parametrize(
    ("changes", "width", "batch_size", "message"),
    [
        ({"token_experts": 4}, 4, 4, "are chosen of --config.token-experts 4 and --config.task-ex"),
        ({"token_experts": 4, "task_experts": 1}, 4, 4, "give at least as many of both, or 0"),
        ({"token_experts": 4, "task_experts": 4}, 5, 4, "Both must be even"),
        ({"token_experts": 4, "task_experts": 4}, 4, 5, "Both must be even"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    changes: Any, width: int, batch_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        experts.check(experts.WithExperts(**changes), width, batch_size)
