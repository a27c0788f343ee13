"""The decision-pretrained transformer against float64 NumPy written from the papers, its gradient
by differences; and what it remembers of a lifetime.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import datasets
from rljax.agent import EnvSpec, Transition, first_memory
from rljax.agents import dpt
from rljax.runs import records
from rljax.runs.policies import collect
from tests.agents import reference
from tests.agents.test_dt import attended, far_from_zero, layer_norm, linear

H, O, A, B = 3, 2, 3, 4  # noqa: E741
SPEC = EnvSpec("test/Example-v0", (O + A + 1,), A, discrete=True)
CONFIG = dpt.Config(
    batch_size=B,
    learning_rate=1e-2,
    context_length=H,
    width=4,
    layers=1,
    heads=2,
    weight_decay=0.1,
)
DISTILLATION = dataclasses.replace(CONFIG, imitates="data")
EXPERTS = dataclasses.replace(CONFIG, token_experts=3, task_experts=2, expert_width=5)
KEY = jax.random.key(0)
POLICY_IS_A_DRAW = True  # evaluations draw actions


def pieces(seed: int = 0, size: int = B) -> Transition:
    """Pieces of lifetimes, H + 1 transitions each."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return generator.normal(size=(size, H + 1, *shape)).astype(np.float32)

    flags = np.zeros((size, H + 1), bool)
    action, optimal = generator.integers(A, size=(2, size, H + 1))
    shown, after = (np.concatenate([normal(O), np.zeros((*flags.shape, A + 1))], -1) for _ in "12")
    extras = {"optimal_action": optimal.astype(np.float32)}
    columns: Any = (np.float32(shown), np.int32(action), normal(), flags, flags, np.float32(after))
    return jax.tree.map(jnp.asarray, Transition(*columns, extras=extras))


def example() -> Any:
    return SPEC, dataclasses.replace(CONFIG, dropout=0.1), pieces()


def gelu(x: np.ndarray) -> np.ndarray:
    """GPT-2's approximation."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def logits(params: Any, query: Any, rows: Any, heads: int) -> Any:
    """Outputs [B, j + 1, A] for queries [B, O] and transitions [B, j, 2 O + A + 1]."""
    first = np.concatenate([query, np.zeros((len(query), rows.shape[-1] - query.shape[-1]))], -1)
    x = linear(np.concatenate([first[:, None], rows], axis=1), params["input"])
    x = x + params["place"][: x.shape[1]]
    inner = params["transformer"]
    assert "norm_tokens" not in inner
    for i in range(sum(name.startswith("attention") for name in inner)):
        x = x + attended(
            layer_norm(x, inner[f"norm_attention_{i}"]), inner[f"attention_{i}"], heads
        )
        hidden = gelu(linear(layer_norm(x, inner[f"norm_hidden_{i}"]), inner[f"hidden_{i}"]))
        x = x + linear(hidden, inner[f"output_{i}"])
    return linear(layer_norm(x, inner["norm_output"]), params["output"])


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class Reference:
    """Cross-entropies by AdamW: equation 2 of arXiv:2306.14892, or 3 of arXiv:2210.14215."""

    def __init__(self, state: dpt.State, config: dpt.Config) -> None:
        leaves, self.tree = jax.tree.flatten(state.policy.parameters.params)
        self.leaves = [np.asarray(x, np.float64) for x in leaves]
        self.config, self.adam = config, reference.Adam(config.learning_rate)

    def losses(self, leaves: Any, batch: Transition) -> np.ndarray:
        """Minus the log-probability of each example and number of transitions."""
        params = jax.tree.unflatten(self.tree, leaves)
        state, after = batch.observation[..., :O], batch.next_observation[..., :O]
        vectors = np.eye(A)[np.asarray(batch.action, int)]
        rows = np.concatenate([state, vectors, after, batch.reward[..., None]], axis=-1)
        losses = []
        for i in range(len(rows)):
            if self.config.imitates == "data":
                out = logits(params, state[i : i + 1, 0], rows[i : i + 1, :-1], self.config.heads)
                targets = np.asarray(batch.action[i], int)
            else:
                query = state[i : i + 1, -1]
                out = logits(params, query, rows[i : i + 1, :-1], self.config.heads)[:, 1:]
                targets = np.full(H, int(batch.extras["optimal_action"][i, -1]))
            losses.append([-log_softmax(x)[t] for x, t in zip(out[0], targets, strict=True)])
        return np.array(losses)

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        batch = reference.float64(batch)
        losses = self.losses(self.leaves, batch)
        gradient = reference.differences(
            lambda leaves: float(self.losses(leaves, batch).sum()), self.leaves
        )
        assert self.config.weight_decay is not None
        decay = self.config.learning_rate * self.config.weight_decay
        moved = self.adam.step(self.leaves, gradient)
        self.leaves = [x - decay * old for x, old in zip(moved, self.leaves, strict=True)]
        return {"policy/loss": losses.mean(), "policy/last_loss": losses[:, -1].mean()}


update = jax.jit(dpt.update)
act = jax.jit(dpt.act, static_argnames="explore")


def fresh(config: dpt.Config = CONFIG) -> dpt.State:
    return far_from_zero(dpt, SPEC, config)


@pytest.mark.parametrize("config", [CONFIG, DISTILLATION], ids=["optimal", "data"])
def test_updates_equal_cross_entropies_with_a_transformer(config: dpt.Config) -> None:
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch = pieces(step)
        state, metrics = update(state, batch, KEY, step, config)
        reference.assert_metrics(metrics, expected.update(batch, KEY, step))
    params = jax.tree.unflatten(expected.tree, expected.leaves)
    for each in (state.policy.parameters.params, params):  # of keys: softmax does not see it
        bias = each["transformer"]["attention_0"].pop("bias")
        each["transformer"]["attention_0"] |= {"query": bias[:4], "value": bias[8:]}
    reference.assert_close(state.policy.parameters.params, params, rtol=1e-3, atol=2e-5)


def test_experts_add_their_losses_and_their_target_follows() -> None:
    """The loss's parts are those of the network; without weights, they change nothing."""
    state, batch = fresh(EXPERTS), pieces()
    policy = state.policy.parameters
    loss, metrics = dpt.policy_loss(policy, state, batch, EXPERTS, KEY)
    assert metrics["policy/balance"] > 0.0
    assert metrics["policy/contrast"] > 0.0
    added = 0.01 * metrics["policy/balance"] + 1e-3 * metrics["policy/contrast"]
    np.testing.assert_allclose(loss, B * H * (metrics["policy/loss"] + added), rtol=1e-5)
    new, _ = update(state, batch, KEY, 0, EXPERTS)
    gates = [
        x.policy.parameters.params["transformer"]["mixtures"]["task_gate"] for x in (state, new)
    ]
    for name, gate in new.target_gate.items():
        expected = 0.995 * state.target_gate[name] + 0.005 * gates[1][name]
        np.testing.assert_allclose(gate, expected, rtol=1e-4, atol=1e-6)
        assert (np.asarray(gates[0][name]) != np.asarray(gates[1][name])).any()


@pytest.mark.parametrize(
    ("imitates", "episode_steps"), [("optimal", 1), ("optimal", 3), ("data", 3)]
)
def test_acts_by_the_transitions_of_a_lifetime(imitates: Any, episode_steps: int) -> None:
    """Two environments side by side, of which one begins a new lifetime after five steps."""
    config = dataclasses.replace(
        CONFIG, imitates=imitates, episode_steps=episode_steps, sampled=False
    )
    state, generator = fresh(config), np.random.default_rng(3)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), state.policy.parameters.params)
    memory, fresh_memory = (first_memory(dpt, SPEC, config, 2) for _ in range(2))
    lifetimes: list[list[Any]] = [[], []]  # of (state, action, successor, reward)
    last: list[Any] = [None, None]
    for step in range(8):
        if step == 5:
            lifetimes[1], last[1] = [], None
            memory = jax.tree.map(lambda x, new: x.at[1].set(new[1]), memory, fresh_memory)
        states, shown = generator.normal(size=(2, O)), []
        for i, now in enumerate(states):
            if last[i] is not None:
                lifetimes[i].append((*last[i][:2], now, last[i][2]))
            vector = np.zeros(A) if last[i] is None else np.eye(A)[last[i][1]]
            shown.append([*now, *vector, 0.0 if last[i] is None else last[i][2]])
        action, extras, memory = act(
            state, jnp.asarray(shown, jnp.float32), KEY, config, False, memory
        )
        assert not extras
        for i, now in enumerate(states):
            rows = list(enumerate(lifetimes[i], start=1))
            if imitates == "optimal":  # of episodes that have ended, but for their last ones
                ended = len(rows) // episode_steps * episode_steps
                rows = [x for x in rows if x[0] <= ended]
                rows = [x for x in rows if episode_steps == 1 or x[0] % episode_steps]
            seen = [[*s, *np.eye(A)[a], *after, r] for _, (s, a, after, r) in rows[-H:]]
            query = seen[0][:O] if seen and imitates == "data" else now
            table = np.array(seen).reshape(1, len(seen), 2 * O + A + 1)
            expected = logits(params, np.array(query)[None], table, config.heads)[0, -1]
            assert int(action[i]) == expected.argmax()
            last[i] = (now, int(action[i]), float(np.float32(generator.normal())))


def test_evaluations_draw_actions_or_take_the_best() -> None:
    memory = first_memory(dpt, SPEC, CONFIG)
    observation = jnp.ones(O + A + 1)
    state = jax.jit(dpt.init, static_argnums=1)(KEY, SPEC, CONFIG)

    def actions(config: dpt.Config) -> set[int]:
        keys = jax.random.split(KEY, 50)
        taken = [act(state, observation, key, config, False, memory)[0] for key in keys]
        return {int(x) for x in taken}

    assert len(actions(CONFIG)) == A
    assert len(actions(dataclasses.replace(CONFIG, sampled=False))) == 1


def test_heads_must_divide_the_width() -> None:
    config: Any = dataclasses.replace(CONFIG, heads=3)
    with pytest.raises(ValueError, match=r"--config\.width 4 is not a multiple of .*heads 3"):
        dpt.check(SPEC, config)


@pytest.mark.learn
@pytest.mark.parametrize("imitates", ["optimal", "data"])
def test_defaults_learn_bandits_in_context(imitates: str, tmp_path: Any) -> None:
    """With contexts of a quarter of the default length. Uniform pulls have a regret of 150."""
    env = "rljax/Bandit-4"
    options: dict[str, Any] = {"steps": 80_000, "length": 26}
    if imitates == "data":
        options = {"steps": 100_000, "length": 2, "source": "learning"}
    dataset = collect.demonstrated(env, **options)
    file = datasets.write(dataset, tmp_path / "bandits.npz")
    changes = {"context_length": 25, "imitates": imitates}
    rljax.train(
        "dpt",
        env,
        600,
        data=str(file),
        config=changes,
        out=tmp_path / "run",
        eval_every=600,
        eval_episodes=100,
    )
    (line,) = [x for x in records.read(tmp_path / "run", "evaluations") if x["step"] == 600]
    regret = np.mean(line["signals"]["regret"])
    assert regret < 100.0, regret
