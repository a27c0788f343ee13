"""Torsos against NumPy loops, and the cost of thinking."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, check
from rljax.agents import ppo
from rljax.learning import action_cost, agent_state
from rljax.networks import torsos
from rljax.networks.inputs import Raw
from rljax.runs import records
from rljax.runs.policies import evaluate, loading
from tests.agents import on_policy, reference
from tests.helpers import small_runs
from tests.networks.reference import (
    apply,
    assert_close,
    dense,
    doubles,
    drawn,
    normal,
    normed,
    sigmoid,
    silu,
)

SPEC = EnvSpec("test/Grid-v0", (12,), 6, discrete=True)
CONFIG = ppo.Config(activation="silu", grid=None)
HIDDEN = {"mlp": (8, 8), "resnet": (8, 8), "iru": (8,), "recall": (8, 8), "drc": (4, 5)}
HIDDEN |= {"simba": (8, 8), "bronet": (8, 8)}
OBSERVATION = jnp.asarray(normal(5, 12, seed=1))


def config(kind: Any, compute: int = 1, **changes: Any) -> ppo.Config:
    """With pictures of 2 x 3 cells for a DRC."""
    grid = (2, 3) if kind == "drc" else None
    return dataclasses.replace(CONFIG, torso=kind, compute=compute, grid=grid, **changes)


def settings(kind: Any, compute: int = 1, **changes: Any) -> torsos.TorsoSettings:
    return torsos.TorsoSettings.of(config(kind, compute, **changes))


def example(kind: Any, compute: int = 1, hidden: Any = None) -> networks.Network:
    module = torsos.network(SPEC, settings(kind, compute), hidden or HIDDEN[kind], 3)
    return drawn(module, OBSERVATION)


def named(params: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ params[f"{name}_kernel"] + params[f"{name}_bias"]


def resnet(params: dict[str, Any], x: np.ndarray, compute: int) -> np.ndarray:
    """He et al., arXiv:1603.05027, with layer normalisation."""
    x = dense(x, params["input"])
    for block in range(2):
        y = x
        for layer in range(2):
            y = silu(normed(y, params[f"norm_{block}_{layer}"]))
            y = dense(y, params[f"hidden_{block}_{layer}"])
        x = x + y
    return silu(normed(x, params["norm"]))


def simba(params: dict[str, Any], x: np.ndarray, compute: int) -> np.ndarray:
    """Lee et al., arXiv:2410.09754, section 4.2."""
    x = dense(x, params["input"])
    for block in range(2):
        y = silu(dense(normed(x, params[f"norm_{block}"]), params[f"inner_{block}"]))
        assert y.shape[-1] == 4 * x.shape[-1]
        x = x + dense(y, params[f"outer_{block}"])
    return normed(x, params["norm"])


def bronet(params: dict[str, Any], x: np.ndarray, compute: int) -> np.ndarray:
    """Nauman et al., arXiv:2405.16158, figure 4."""

    def layer(x: np.ndarray, name: str) -> np.ndarray:
        return normed(dense(x, params[f"hidden_{name}"]), params[f"norm_{name}"])

    x = silu(layer(x, "input"))
    for block in range(2):
        x = x + layer(silu(layer(x, f"{block}_0")), f"{block}_1")
    return x


def iru(params: dict[str, Any], o: np.ndarray, compute: int) -> np.ndarray:
    """Ghugare et al., arXiv:2602.05999, with one cell per set of parameters."""
    x = normed(dense(o, params["input"]), params["norm"])
    cells = len([name for name in params if name.startswith("scale_")])
    h, c = np.zeros_like(x), [np.zeros_like(x) for _ in range(cells)]
    for _ in range(compute):
        below = h
        for cell in range(cells):
            norm = {"scale": params[f"scale_{cell}"], "bias": params[f"shift_{cell}"]}
            u = normed(np.concatenate([x, below], -1), norm, 1e-5)
            f = sigmoid(u @ params[f"forget_kernel_{cell}"] + params[f"forget_bias_{cell}"])
            i = np.tanh(u @ params[f"input_kernel_{cell}"] + params[f"input_bias_{cell}"])
            c[cell] = f * c[cell] + (1 - f) * i
            below = np.tanh(c[cell])
        h = h + below
    return h


def recall(params: dict[str, Any], o: np.ndarray, compute: int) -> np.ndarray:
    """Bansal et al., arXiv:2202.05826, over vectors."""
    h = silu(dense(o, params["input"]))
    for _ in range(compute):
        h = named(params, "recall", np.concatenate([h, o], -1))
        for block in range(2):
            inner = silu(named(params, f"hidden_{block}_0", h))
            h = silu(h + named(params, f"hidden_{block}_1", inner))
    return h


def convolved(params: dict[str, Any], name: str, pictures: np.ndarray, edge: Any) -> np.ndarray:
    """A 3x3 convolution, with zeros outside; `edge` [H, W, 9] marks these."""
    result = []
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for row, column in np.ndindex(pictures.shape[1:3]):
        x = padded[:, row : row + 3, column : column + 3].reshape(len(pictures), -1)
        if edge is not None:
            x = np.concatenate([x, np.tile(edge[row, column], (len(pictures), 1))], -1)
        result.append(named(params, name, x))
    return np.stack(result, 1).reshape(*pictures.shape[:-1], -1)


def drc(params: dict[str, Any], o: np.ndarray, compute: int) -> np.ndarray:
    """Guez et al., arXiv:1901.03559, section 2.2, on pictures [2, 3] with two channels."""
    pictures = o.reshape(len(o), 2, 2, 3).transpose(0, 2, 3, 1)
    e = silu(convolved(params, "encoder", pictures, None))
    outside = np.ones((4, 5))
    outside[1:-1, 1:-1] = 0.0
    edge = np.array([[outside[r : r + 3, c : c + 3].ravel() for c in range(3)] for r in range(2)])
    h, c = ([np.zeros((len(o), 2, 3, width)) for width in HIDDEN["drc"]] for _ in range(2))
    for _ in range(compute):
        for d in range(2):
            pooled = np.concatenate([h[d].mean((1, 2)), h[d].max((1, 2))], -1)
            pooled = named(params, f"pool_{d}", pooled)
            pooled = np.broadcast_to(pooled[:, None, None], h[d].shape)
            inputs = np.concatenate([e, h[d - 1], h[d], pooled], -1)
            gates = convolved(params, f"gates_{d}", inputs, edge)
            f, i, j, out = np.split(gates, 4, axis=-1)
            c[d] = sigmoid(f) * c[d] + sigmoid(i) * np.tanh(j)
            h[d] = sigmoid(out) * np.tanh(c[d])
    return silu(dense(np.concatenate([h[-1], e], -1).reshape(len(o), -1), params["dense"]))


TORSOS = {
    "resnet": resnet,
    "simba": simba,
    "bronet": bronet,
    "iru": iru,
    "recall": recall,
    "drc": drc,
}
CASES = [
    ("resnet", 1, (8, 8)),
    ("iru", 1, (8,)),
    ("simba", 1, (8, 8)),
    ("bronet", 1, (8, 8)),
    ("iru", 5, (8,)),
    ("iru", 3, (8, 8)),
    ("recall", 4, (8, 8)),
    ("drc", 3, (4, 5)),
    ("iru", 16, (8,)),
    ("iru", 19, (8,)),
]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(("kind", "compute", "hidden"), CASES)
def test_outputs_equal_a_loop(kind: str, compute: int, hidden: tuple[int, ...]) -> None:
    network = example(kind, compute, hidden)
    params = doubles(network.params)
    features = TORSOS[kind](params["torso"], doubles(OBSERVATION), compute)
    expected = dense(features, params["output"])
    assert_close(apply(network, OBSERVATION), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "compute"),
    [("iru", 3), ("recall", 3), pytest.param("drc", 2, marks=pytest.mark.learn), ("iru", 17)],
)
def test_gradients_equal_differences_of_a_loop(kind: str, compute: int) -> None:
    network, observation = example(kind, compute), doubles(OBSERVATION)
    whole = doubles(network.params)
    # The largest layer of a DRC has thousands of numbers.
    params = {name: x for name, x in whole["torso"].items() if (kind, name) != ("drc", "dense")}
    leaves, tree = jax.tree.flatten(params)

    def loss(leaves: list[np.ndarray]) -> float:
        torso = whole["torso"] | jax.tree.unflatten(tree, leaves)
        features = TORSOS[kind](torso, observation, compute)
        return float((dense(features, whole["output"]) ** 2).mean())

    slope = jax.jit(jax.grad(lambda network: (network(OBSERVATION) ** 2).mean()))(network)
    slopes = jax.tree.leaves({name: slope.params["torso"][name] for name in params})
    generator = np.random.default_rng(1)
    for index, leaf in enumerate(leaves):
        for place in generator.permutation(leaf.size)[:6]:
            where = np.unravel_index(place, leaf.shape)
            sides = []
            for width in (1e-6, -1e-6):
                moved = [part.copy() for part in leaves]
                moved[index][where] += width
                sides.append(loss(moved))
            expected = (sides[0] - sides[1]) / 2e-6
            assert_close(slopes[index][where], expected, rtol=2e-3, atol=2e-5)


@pytest.mark.slow
def test_the_forget_gate_begins_open_and_initialisations_are_those_of_the_settings() -> None:
    module = torsos.torso(SPEC, settings("iru", initialisation="orthogonal"), (16, 16))
    params = networks.create(module, jax.random.key(0), jnp.zeros(12)).params
    for cell in range(2):
        np.testing.assert_array_equal(params[f"forget_bias_{cell}"], 1.0)
        np.testing.assert_array_equal(params[f"input_bias_{cell}"], 0.0)
        kernel = np.asarray(params[f"forget_kernel_{cell}"])
        np.testing.assert_allclose(kernel.T @ kernel, np.eye(16), atol=1e-5)


@pytest.mark.slow
def test_an_mlp_torso_has_the_parameters_of_a_plain_mlp() -> None:
    key, x = jax.random.key(1), jnp.ones((2, 12))
    settings = torsos.TorsoSettings.of(CONFIG)
    made = networks.create(torsos.network(SPEC, settings, (8, 8), 3, 0.01), key, x)
    plain = networks.create(networks.MLP((8, 8), 3, "silu", "orthogonal", 0.01), key, x)
    jax.tree.map(np.testing.assert_array_equal, made.params, plain.params)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HIDDEN)
def test_members_of_an_ensemble_are_independent_networks(kind: Any) -> None:
    x, of_kind, hidden = OBSERVATION, settings(kind), HIDDEN[kind]
    many = drawn(torsos.ensemble(SPEC, of_kind, 2, hidden, 3), x)
    module = torsos.network(SPEC, of_kind, hidden, 3)
    (stacked,) = many.params.values()
    for member in range(2):
        alone = networks.Network(jax.tree.map(lambda leaf, i=member: leaf[i], stacked), module)
        assert_close(apply(many, x)[member], apply(alone, x))
    single = drawn(torsos.ensemble(SPEC, of_kind, 2, hidden, 1), x)
    assert jax.eval_shape(apply, single, x).shape == (2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iru", "recall", pytest.param("drc", marks=pytest.mark.learn)])
def test_a_span_is_steps_without_gradient_then_steps_with(kind: Any) -> None:
    long, x = example(kind, 6), OBSERVATION
    short = long.replace(module=torsos.network(SPEC, settings(kind, 5), HIDDEN[kind], 3))
    span = torsos.Span(jnp.int32(2), jnp.int32(5))
    during = jax.jit(lambda network, span: torsos.during(network, span)(x))
    assert_close(during(long, span), apply(short, x))

    def loss(network: networks.Network, start: jax.Array) -> jax.Array:
        part = torsos.during(network, torsos.Span(start, jnp.int32(5)))
        return jnp.square(part(x)).sum()

    gradient = jax.jit(jax.grad(loss))
    whole = gradient(long, jnp.int32(0)).params
    expected = jax.jit(jax.grad(lambda network: jnp.square(network(x)).sum()))(short).params
    assert_close(whole, expected, rtol=2e-3, atol=1e-4)
    cut = gradient(long, jnp.int32(5)).params
    assert_close(cut["output"]["kernel"], expected["output"]["kernel"], rtol=2e-3, atol=1e-4)
    if kind != "drc":  # whose last layer sees the input once more
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(cut["torso"]))


def test_spans_are_drawn_as_deep_thinking_draws_them() -> None:
    keys = jax.random.split(jax.random.key(0), 20_000)
    start, stop = jax.jit(jax.vmap(lambda key: torsos.spans(key, 4)))(keys)
    pairs, counts = np.unique(np.stack([start, stop], 1), axis=0, return_counts=True)
    expected = {(n, n + k): 1 / 4 / (4 - n) for n in range(4) for k in range(1, 4 - n + 1)}
    assert {tuple(map(int, pair)) for pair in pairs} == set(expected)
    for pair, count in zip(pairs, counts, strict=True):
        assert count / 20_000 == pytest.approx(expected[tuple(map(int, pair))], abs=0.012)


@pytest.mark.slow
def test_the_progressive_loss_mixes_both() -> None:
    network, x, key = example("iru", 5), OBSERVATION, jax.random.key(3)

    def loss(network: Any, x: jax.Array, key: jax.Array) -> tuple[jax.Array, dict]:
        value = jnp.square(network(x)).mean()
        return value, {"loss": value}

    assert torsos.progressive(loss, settings("iru", 5)) is loss
    mixture = torsos.progressive(loss, settings("iru", 5, progressive=0.25))
    mixed, metrics = jax.jit(mixture)(network, x, key)
    part = torsos.during(network, torsos.spans(jax.random.fold_in(key, 1), 5))
    alone, partial = (jax.jit(loss)(of, x, key)[0] for of in (network, part))
    np.testing.assert_allclose(mixed, 0.75 * alone + 0.25 * partial, rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], alone, rtol=1e-6)


@pytest.mark.slow
def test_memory_of_gradients_grows_with_the_square_root_of_steps() -> None:
    def needed(compute: int) -> int:
        x, network = jnp.zeros((2048, 12)), example("iru", compute)
        gradient = jax.jit(jax.grad(lambda network: jnp.square(network(x)).mean()))
        analysis = gradient.lower(network).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert needed(256) < 3.0 * needed(36)  # 7.1 times the steps, 2.7 times their root


def cost_of(config: ppo.Config) -> dict[str, Any]:
    """Of PPO, which sees observations as they are."""
    stacked = jax.tree.map(lambda x: jnp.asarray(x)[None], config)
    create = jax.vmap(lambda key, config: agent_state.create(ppo, key, SPEC, config, Raw()))
    state = jax.eval_shape(create, jax.random.split(jax.random.key(0), 1), stacked)
    return action_cost.of_action(ppo, state, SPEC, stacked)


@pytest.mark.learn
@pytest.mark.parametrize("kind", torsos.THINKING)
def test_operations_are_linear_in_the_steps_and_parameters_do_not_grow(kind: Any) -> None:
    costs = {
        compute: cost_of(config(kind, compute, shared=True, actor_hidden=HIDDEN[kind]))
        for compute in (1, 2, 3, 10, 21)
    }
    assert len({cost["parameters"] for cost in costs.values()}) == 1
    operations = {compute: cost["flops_per_action"] for compute, cost in costs.items()}
    step = operations[2] - operations[1]
    assert step > 0
    for compute in (3, 10, 21):
        expected = operations[1] + (compute - 1) * step
        assert operations[compute] == pytest.approx(expected, rel=0.02)


def test_operations_of_an_mlp_are_those_of_its_products() -> None:
    config = dataclasses.replace(CONFIG, actor_hidden=(64, 64), normalise_observations=False)
    cost = cost_of(config)
    # The critic's are not asked.
    assert cost["parameters"] == 12 * 64 + 64 + 64 * 64 + 64 + 64 * 6 + 6
    products = 2 * (12 * 64 + 64 * 64 + 64 * 6)
    assert products <= cost["flops_per_action"] < 1.1 * products


WRONG = {
    "nothing to do": (
        {"torso": "mlp", "compute": 3},
        "--config.torso mlp has nothing to do more than once",
    ),
    "no steps": ({"torso": "iru", "compute": 0}, "--config.compute is 0"),
    "widths": ({"torso": "iru", "actor_hidden": (8, 9)}, "must have the same width, not 8 9"),
    "no parts": ({"torso": "recall", "actor_hidden": ()}, "needs at least one number"),
    "no picture": ({"torso": "drc"}, "a DRC is for pictures: give their rows and columns"),
    "another grid": ({"torso": "drc", "grid": (5, 5)}, "hold no pictures of --config.grid 5 5"),
    "grid of none": ({"torso": "iru", "grid": (2, 3)}, "--config.grid is for --config.torso drc"),
    "progress of none": (
        {"torso": "mlp", "progressive": 0.1},
        "--config.progressive is for torsos that think",
    ),
    "beyond all": ({"torso": "iru", "progressive": 1.5}, "--config.progressive is 1.5"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check(ppo, SPEC, dataclasses.replace(CONFIG, **changes))


THINKER = {
    "torso": "iru",
    "compute": 3,
    "shared": True,
    "actor_hidden": (8,),
    "num_envs": 8,
    "num_steps": 25,
}


@pytest.mark.learn
def test_acting_with_other_steps_and_with_the_same(tmp_path: Path) -> None:
    out = small_runs.train("ppo", "rljax/LightsOut-2x2", 600, tmp_path / "run", THINKER, seeds=2)
    known, same = (
        evaluate.evaluate_run(out, episodes=20, **changes)
        for changes in ({}, {"config": {"compute": 3}})
    )
    assert [row["returns"] for row in known["episodes"]] == [
        row["returns"] for row in same["episodes"]
    ]
    assert "  --config.compute 3, " in evaluate.table(same)
    assert "success" in evaluate.table(same)
    actions = []
    for compute in (None, 3, 16):
        config = {} if compute is None else {"compute": compute}
        thinkers = loading.load_all(out, config=config).state.state
        first = jax.tree.map(lambda x: x[0], thinkers)
        logits = first.actor_critic.parameters.torso(jnp.eye(8))
        actions.append(np.asarray(logits))
    np.testing.assert_array_equal(actions[0], actions[1])
    assert np.abs(actions[0] - actions[2]).max() > 0.1
    with pytest.raises(ValueError, match="must be at least 1"):
        evaluate.evaluate_run(out, config={"compute": 0})


@pytest.mark.learn
def test_a_run_says_what_an_action_costs(tmp_path: Path) -> None:
    out = small_runs.train("sac", "rljax/Pendulum", 200, tmp_path / "run")
    described = records.read_config(out)
    assert described["parameters"] == 3 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2
    assert described["flops_per_action"] > 2 * (3 * 16 + 16 * 16 + 16 * 2)


@pytest.mark.slow
def test_a_shared_torso_learns_from_both_losses() -> None:
    """A tenth of PPO's gradient is Adam's first moment after one step."""
    settings = ppo.Config(
        torso="iru", compute=2, shared=True, actor_hidden=(4,),
        num_steps=2, num_envs=3, batch_size=6, num_epochs=1,
        max_grad_norm=0.0, entropy_cost=0.1, normalise_observations=False,
        normalise_rewards=False, normalise_advantages=False, initialisation="torch",
    )  # fmt: skip
    spec = EnvSpec("test/Discrete-v0", (3,), 4, discrete=True)
    batch = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), reference.transitions(0, 6))
    action = jnp.asarray([[0, 3, 1], [2, 2, 0]], jnp.int32)
    old = np.log([[0.3, 0.2, 0.25], [0.24, 0.26, 0.25]])
    batch = batch.replace(
        action=action, extras={"raw": action, "log_prob": jnp.asarray(old, jnp.float32)}
    )
    batch = on_policy.continued(batch)
    state = jax.jit(lambda key: ppo.init(key, spec, settings))(jax.random.key(0))
    after, _ = jax.jit(ppo.update)(state, batch, jax.random.key(1), 0, settings)
    before = doubles(state.actor_critic.parameters)
    leaves, tree = jax.tree.flatten(before)

    def values(parameters: Any, observation: Any) -> list[np.ndarray]:
        features = iru(parameters.torso.params, doubles(observation).reshape(6, 3), 2)
        heads = (parameters.actor, parameters.critic)
        return [dense(features, head.params["output"]) for head in heads]

    v, v_next = (
        values(before, x)[1].reshape(2, 3) for x in (batch.observation, batch.next_observation)
    )
    alive = 1.0 - np.asarray(batch.terminated)
    going = 1.0 - np.asarray(batch.terminated | batch.truncated)
    delta = np.asarray(batch.reward) + 0.99 * alive * v_next - v
    advantage = delta.copy()
    advantage[0] += 0.99 * 0.95 * going[0] * delta[1]
    target = (advantage + v).ravel()

    def loss(leaves: list[np.ndarray]) -> float:
        logits, value = values(jax.tree.unflatten(tree, leaves), batch.observation)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        ratio = np.exp(log_p[np.arange(6), np.asarray(action).ravel()] - old.ravel())
        gain = np.minimum(ratio * advantage.ravel(), np.clip(ratio, 0.8, 1.2) * advantage.ravel())
        entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
        errors = value[:, 0] - target
        return -gain.mean() + 0.5 * 0.5 * (errors**2).mean() - 0.1 * entropy

    expected = reference.differences(loss, leaves)
    moments = jax.tree.leaves(after.actor_critic.optimiser_state[1][0].mu)
    for moment, slope in zip(moments, expected, strict=True):
        assert_close(np.asarray(moment) / 0.1, slope, rtol=2e-3, atol=2e-5)
