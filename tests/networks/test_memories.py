"""Memories: their equations in float64 NumPy, and sequences against single steps."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import Transition, choose
from rljax.networks import memories, torsos
from tests.networks.reference import (
    apply,
    assert_close,
    dense,
    doubles,
    gelu_tanh,
    normal,
    normed,
    redrawn,
    relu,
    sigmoid,
)

STEPS, ENVS, SIZE, WIDTH, LENGTH = 7, 3, 5, 4, 3
KINDS = ("gru", "lstm", "lru", "gtrxl", "iru")
FIRST = np.zeros((STEPS, ENVS), bool)
FIRST[3, 0] = FIRST[5, 1] = FIRST[0, 2] = FIRST[6, 2] = True


def settings(kind: Any, layers: int = 2, **changes: Any) -> torsos.TorsoSettings:
    sizes = {"memory_hidden": (WIDTH,) * layers, "memory_length": LENGTH}
    plain = torsos.TorsoSettings("mlp", 2, None, "tanh", "torch", memory=kind, **sizes)
    return plain._replace(**changes)


@functools.cache
def drawn(kind: str, layers: int = 2) -> networks.Network:
    """A memory without a body before it."""
    identity = networks.MLP((), None)
    create = functools.partial(memories.create, identity, settings(kind, layers))
    return redrawn(jax.eval_shape(create, jax.random.key(0), jnp.zeros(SIZE))[0], 0.5)


def core(network: networks.Network) -> Any:
    """The memory's parameters in float64."""
    return doubles(next(iter(network.params.values())))


X, NEXT = normal(STEPS, ENVS, SIZE), normal(STEPS, ENVS, SIZE, seed=2)


def fresh(kind: str, *leading: int) -> Any:
    """Where episodes begin."""
    memory = memories.initial(settings(kind))
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*leading, *x.shape)), memory)


def used(kind: str, network: networks.Network) -> Any:
    """After some steps of an episode."""
    x = normal(4, ENVS, SIZE, seed=3)
    return apply(network, x, np.zeros((4, ENVS), bool), fresh(kind, ENVS))[1]


def gru(p: Any, layer: int, x: Any, h: Any, module: Any = np) -> tuple[Any, Any]:
    """One step of one layer, gate by gate, by NumPy or JAX."""
    w, u, b = (module.split(p[f"{name}_{layer}"], 3, -1) for name in ("input", "memory", "bias"))
    r, z = (1.0 / (1.0 + module.exp(-(x @ w[i] + b[i] + h @ u[i]))) for i in (0, 1))
    n = module.tanh(x @ w[2] + b[2] + r * (h @ u[2] + p[f"inner_{layer}"]))
    h = (1.0 - z) * n + z * h
    return h, h


def lstm(p: Any, layer: int, x: Any, memory: Any, module: Any = np) -> tuple[Any, Any]:
    c, h = memory
    w, u, b = (module.split(p[f"{name}_{layer}"], 4, -1) for name in ("input", "memory", "bias"))
    f, i, g, o = (x @ w[k] + b[k] + h @ u[k] for k in range(4))
    f, i, o = (1.0 / (1.0 + module.exp(-gate)) for gate in (f + 1.0, i, o))
    c = f * c + i * module.tanh(g)
    h = o * module.tanh(c)
    return h, (c, h)


def lru(p: Any, layer: int, x: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of one block, in complex numbers: arXiv:2303.06349, appendix A, `forward`."""
    p = p[f"block_{layer}"]
    decay = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    z = normed(x, p["norm"])
    state = decay * (memory[0] + 1j * memory[1])
    state = state + np.exp(p["gamma"]) * (z @ (p["input_real"] + 1j * p["input_imaginary"]))
    y = (state @ (p["output_real"] + 1j * p["output_imaginary"])).real + p["skip"] * z
    y = gelu_tanh(y)
    x = x + dense(y, p["value"]) * sigmoid(dense(y, p["gate"]))
    return x, np.stack([state.real, state.imag])


CELLS = {"gru": gru, "lstm": lstm, "lru": lru}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", CELLS)
def test_layers_equal_their_equations(kind: str) -> None:
    network, cell = drawn(kind), CELLS[kind]
    memory = used(kind, network)
    output, after, _ = jax.tree.map(np.asarray, apply(network, X, FIRST, memory))
    p = core(network)
    for e in range(ENVS):
        now, later = (list(jax.tree.map(lambda x, e=e: x[e], doubles(m))) for m in (memory, after))
        for t in range(STEPS):
            if FIRST[t, e]:
                now = jax.tree.map(np.zeros_like, now)
            x = doubles(X[t, e])
            if kind == "lru":
                x = dense(x, p["input"])
            for layer in range(2):
                x, now[layer] = cell(p, layer, x, now[layer])
            assert_close(output[t, e], x, rtol=1e-4, atol=1e-5)
        assert_close(later, now, rtol=1e-4, atol=1e-5)


def test_gtrxl_attends_as_its_equations_say() -> None:
    network = drawn("gtrxl", layers=1)
    memory = memories.initial(settings("gtrxl", 1))
    past = normal(LENGTH, WIDTH, seed=5)
    # Of three steps two are this episode's.
    memory = {"inputs": (jnp.asarray(past)[None],), "known": jnp.array([2])}
    first = np.zeros((4, 1), bool)
    first[2] = True
    output, after, _ = jax.tree.map(np.asarray, apply(network, X[:4, :1], first, memory))
    p = core(network)
    block = p["block_0"]
    tokens = dense(doubles(X[:4, 0]), p["input"])
    seen = np.concatenate([past, tokens])
    half = WIDTH // 2
    for t in range(4):
        begins = 2 if t >= 2 else -2
        keys = [k for k in range(-LENGTH, t + 1) if k >= begins and t - k <= LENGTH]
        query = dense(normed(tokens[t], block["norm"]), block["query"]).reshape(4, 1)
        logits, values = [], []
        for k in keys:
            both = dense(normed(seen[k + LENGTH], block["norm"]), block["seen"])
            key, value = both[:WIDTH].reshape(4, 1), both[WIDTH:].reshape(4, 1)
            angle = (t - k) / 10_000.0 ** (np.arange(half) / half)
            wave = np.concatenate([np.sin(angle), np.cos(angle)])
            wave = dense(wave, block["relative"]).reshape(4, 1)
            of_content = ((query + block["content_bias"]) * key).sum(axis=1)
            of_place = ((query + block["place_bias"]) * wave).sum(axis=1)
            logits.append(of_content + of_place)
            values.append(value)
        weight = np.exp(np.stack(logits) - np.max(logits, axis=0))
        weight = weight / weight.sum(axis=0)
        read = (weight[..., None] * np.stack(values)).sum(axis=0).reshape(WIDTH)
        x = gated(block["gate_attention"], tokens[t], relu(dense(read, block["attended"])))
        hidden = relu(dense(normed(x, block["norm_hidden"]), block["hidden"]))
        x = gated(block["gate_hidden"], x, relu(dense(hidden, block["output"])))
        assert_close(output[t, 0], x, rtol=1e-4, atol=1e-5)
    assert_close(after["inputs"][0][0], tokens[1:])
    assert int(after["known"][0]) == 2, "the episode began two steps ago"


def gated(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    of_y, of_x = np.split(dense(y, p["of_result"]), 3), np.split(dense(x, p["of_input"]), 2)
    r, z = sigmoid(of_y[0] + of_x[0]), sigmoid(of_y[1] + of_x[1] - 2.0)
    return (1.0 - z) * x + z * np.tanh(of_y[2] + dense(r * x, p["of_reset"]))


def test_the_first_step_of_an_iru_is_that_of_the_torso() -> None:
    network = drawn("iru")
    output, cells, _ = apply(network, X, np.ones((STEPS, ENVS), bool), fresh("iru", ENVS))
    params = next(iter(network.params.values()))
    assert_close(output, apply(networks.Network(params, torsos.ThinkingIRU((WIDTH,) * 2, 2)), X))
    remembered = apply(network, X, np.zeros((STEPS, ENVS), bool), cells)[0]
    assert np.abs(np.asarray(remembered) - np.asarray(output)).min(axis=-1).max() > 1e-3


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_equals_its_single_steps(kind: str) -> None:
    network = drawn(kind)
    memory = before = used(kind, network)

    @jax.jit
    def step(x: Any, first: Any, memory: Any) -> Any:
        return memories.step(network, x, choose(first, fresh(kind, ENVS), memory))

    outputs, successors = [], []
    for t in range(STEPS):
        output, memory = step(X[t], FIRST[t], memory)
        outputs.append(output)
        successors.append(step(NEXT[t], np.zeros(ENVS, bool), memory)[0])
    whole = apply(network, X, FIRST, before, NEXT)
    assert_close(whole[0], np.stack(outputs), rtol=1e-4, atol=1e-5)
    assert_close(whole[2], np.stack(successors), rtol=1e-4, atol=1e-5)
    again = [step(NEXT[0], np.zeros(ENVS, bool), memory)[0] for memory in (memory, whole[1])]
    assert_close(*again, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_crosses_the_beginning_of_an_episode(kind: str) -> None:
    network = drawn(kind)
    first = jnp.asarray(FIRST[:, :1])

    def later(x: Any, memory: Any) -> Any:
        return network(x, first, memory)[0][3:].sum()

    memory = jax.tree.map(lambda x: np.asarray(x, np.float32)[:1], used(kind, network))
    known = {"known": jnp.array([3])} if kind == "gtrxl" else {}
    slopes = jax.grad(lambda x, memory: later(x, memory | known if known else memory), (0, 1))
    of_x, of_memory = jax.jit(slopes)(jnp.asarray(X[:, :1]), memory)
    assert not np.any(of_x[:3])
    assert np.any(of_x[3])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_memory))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["gru", "gtrxl"])
def test_successors_follow_from_the_next_row_unless_the_step_was_truncated(kind: str) -> None:
    network, memory = drawn(kind), used(kind, drawn(kind))
    truncated = np.roll(FIRST, -1, axis=0)
    terminated = np.zeros_like(truncated)
    truncated[4, 1], terminated[4, 1] = False, True
    after = np.concatenate([X[1:], NEXT[-1:]])
    after[truncated] = NEXT[truncated]
    rows = [None] * 2
    extras = {"memory": memory, "first": jnp.asarray(FIRST)}
    batch = Transition(
        jnp.asarray(X), *rows, terminated, jnp.asarray(truncated), jnp.asarray(after), extras
    )
    seen, successors = jax.jit(memories.following)(network, batch)
    expected = jax.jit(memories.successors)(network, batch)
    assert_close(seen, expected[0])
    alive = [np.asarray(x)[~terminated] for x in (successors, expected[1])]
    assert_close(*alive, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_of_recurrent_layers_are_those_of_single_steps(kind: str) -> None:
    network, weight = drawn(kind), jnp.asarray(normal(STEPS, ENVS, WIDTH, seed=4))
    memory = used(kind, network)

    def whole(network: networks.Network, x: Any, memory: Any) -> Any:
        output, after, _ = network(x, jnp.asarray(FIRST), memory)
        return (output * weight).sum() + sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(after))

    def single(network: networks.Network, x: Any, memory: Any) -> Any:
        total = 0.0
        p = next(iter(network.params.values()))
        for t in range(STEPS):
            memory, below = choose(jnp.asarray(FIRST[t]), fresh(kind, ENVS), memory), x[t]
            after = []
            for layer in range(2):
                below, now = CELLS[kind](p, layer, below, memory[layer], jnp)
                after.append(now)
            memory = tuple(after)
            total = total + (below * weight[t]).sum()
        return total + sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(memory))

    with jax.enable_x64():
        wide = (network, jnp.asarray(X), memory)
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), wide)
        exact = jax.jit(jax.grad(single, (0, 1, 2)))(*wide)
    slopes = jax.jit(jax.grad(whole, (0, 1, 2)))(network, jnp.asarray(X), memory)
    assert_close(slopes, exact, rtol=2e-4, atol=2e-5)


def test_batches_without_a_memory_are_seen_row_by_row() -> None:
    network = networks.create(networks.MLP((4,), None), jax.random.key(0), jnp.zeros(SIZE))
    rows = [None] * 4
    batch = Transition(jnp.asarray(X), *rows, next_observation=jnp.asarray(NEXT))
    seen = memories.successors(network, batch)
    jax.tree.map(np.testing.assert_array_equal, seen, (network(X), network(NEXT)))
    np.testing.assert_array_equal(memories.embedded(network, batch), network(X))
    np.testing.assert_array_equal(memories.embedded(None, batch), X)


@pytest.mark.parametrize("span", [None, 50])
def test_the_scale_of_an_lru_starts_as_in_its_paper_and_is_learnt(span: int | None) -> None:
    """arXiv:2303.06349, appendix A: gamma_log = log sqrt(1 - |lambda|^2), one of the parameters."""
    chosen = settings("lru", 1, memory_span=span)
    network, _ = memories.create(networks.MLP((), None), chosen, jax.random.key(0), jnp.zeros(SIZE))

    def block(params: Any) -> Any:
        (core,) = (part for part in params.values() if "block_0" in part)
        return core["block_0"]

    params = doubles(block(network.params))
    size = np.abs(np.exp(-np.exp(params["nu"]) + 1j * np.exp(params["theta"])))
    np.testing.assert_allclose(params["gamma"], np.log(np.sqrt(1.0 - size**2)), atol=1e-4)
    before = jax.tree.map(jnp.ones_like, memories.initial(chosen))

    def output(params: Any) -> jax.Array:
        return memories.step(network.replace(params=params), jnp.ones(SIZE), before)[0].sum()

    gradient = jax.jit(jax.grad(output))(network.params)
    assert np.all(np.asarray(block(gradient)["gamma"]) != 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm", "lru", "iru"])
def test_at_the_start_units_forget_within_the_span(kind: str) -> None:
    """After how many steps 1/e is left is spread evenly from 1 to the span."""
    span, width = 50, 400
    chosen = settings(kind, 1, memory_hidden=(width,), memory_span=span)
    network, _ = memories.create(networks.MLP((), None), chosen, jax.random.key(0), jnp.zeros(SIZE))
    biases = ("bias_0", "forget_bias_0", "nu", "theta")
    silent = jax.tree_util.tree_map_with_path(
        lambda path, x: x if path[-1].key in biases else 0 * x, network.params
    )
    before = jax.tree.map(jnp.ones_like, memories.initial(chosen))
    after = memories.step(network.replace(params=silent), jnp.zeros(SIZE), before)[1]
    left = [jnp.linalg.norm(jnp.atleast_2d(jax.tree.leaves(x)[0]), axis=0) for x in (after, before)]
    constants = np.sort(-1.0 / np.log(left[0] / left[1]))
    np.testing.assert_allclose(constants, np.linspace(1.0, span - 1.0, width), atol=4.0)
    assert constants[0] > 0.6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "gru", "memory_hidden": ()}, "memory-hidden"),
        ({"memory": "lru", "memory_hidden": (4, 8)}, "same width"),
        ({"memory": "gtrxl", "memory_length": 0}, "memory-length is 0"),
        ({"memory": "gru", "progressive": 0.5}, "without --config.memory gru"),
        ({"memory": "gru", "memory_span": 1}, "memory-span is 1, it must be at least 2"),
        ({"memory": "gtrxl", "memory_span": 20}, "not gtrxl: gtrxl has --config.memory-length"),
        ({"memory": "none", "memory_span": 20}, "not none: leave it out"),
    ],
)
def test_settings_that_fit_no_memory_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        torsos.check_memory(settings("gru")._replace(**changes))
