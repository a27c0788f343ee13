"""The Decision Transformer against float64 NumPy written from the papers, its gradient by
differences; and what it remembers of an episode.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, Transition, first_memory
from rljax.agents import dt
from tests.agents import reference, trees

K, O, A, B = 3, 2, 1, 5  # noqa: E741
SPEC = EnvSpec("test/Example-v0", (O + A + 1,), A)
CONFIG = dt.Config(
    batch_size=B,
    learning_rate=1e-2,
    warmup_updates=3.0,
    context_length=K,
    return_scale=0.5,
    width=4,
    layers=1,
    heads=2,
    dropout=0.0,
    times=6,
    weight_decay=0.1,
    normalise_observations=False,
)
KEY = jax.random.key(0)


def pieces(seed: int = 0, size: int = B) -> Transition:
    """Pieces of trajectories, of which some end early."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return generator.normal(size=(size, K, *shape)).astype(np.float32)

    flags, last = np.zeros((size, K), bool), np.zeros((size, K, A + 1), np.float32)
    shown = np.concatenate([normal(O), last], axis=-1)
    extras = {
        "return_to_go": normal(),
        "has_return_to_go": ~flags,
        "time": (np.arange(size)[:, None] % 2 + np.arange(K)).astype(np.int32),
        "valid": np.arange(K) <= (np.arange(size) % K)[:, None],
    }
    following = np.concatenate([normal(O), last], axis=-1)
    columns: Any = (shown, np.tanh(normal(A)), normal(), flags, flags, following, extras)
    return jax.tree.map(jnp.asarray, Transition(*columns))


def example() -> Any:
    return SPEC, dataclasses.replace(CONFIG, dropout=0.1, target_return=1.0), pieces()


def layer_norm(x: np.ndarray, parts: Any) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    score = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
    return score * parts["scale"] + parts["bias"]


def linear(x: np.ndarray, parts: Any) -> np.ndarray:
    return x @ parts["kernel"] + parts["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def attended(x: np.ndarray, parts: Any, heads: int) -> np.ndarray:
    """softmax(q k^T / sqrt d) v of each head over what is not later, token by token."""
    width = x.shape[-1]
    query, key, value = np.split(x @ parts["kernel"] + parts["bias"], 3, axis=-1)
    result, size = np.zeros_like(x), width // heads
    for row in np.ndindex(x.shape[:2]):
        for head in range(heads):
            at = slice(head * size, (head + 1) * size)
            keys = key[row[0], : row[1] + 1, at]
            logits = keys @ query[row][at] / np.sqrt(size)
            weight = np.exp(logits - logits.max())
            result[row][at] = weight / weight.sum() @ value[row[0], : row[1] + 1, at]
    return linear(result, parts["output"])


def outputs(params: Any, state: Any, action: Any, target: Any, time: Any, heads: int) -> Any:
    """What comes out [B, 3 K, m] of figure 1 of arXiv:2106.01345, in blocks as in GPT-2."""
    of_time = params["time"][time]
    tokens = [
        linear(x, params[name]) + of_time
        for name, x in (("return", target[..., None]), ("state", state), ("action", action))
    ]
    x = np.stack(tokens, axis=2).reshape(len(state), -1, of_time.shape[-1])
    inner = params["transformer"]
    x = layer_norm(x, inner["norm_tokens"])
    for i in range(sum(name.startswith("attention") for name in inner)):
        normed = layer_norm(x, inner[f"norm_attention_{i}"])
        x = x + attended(normed, inner[f"attention_{i}"], heads)
        hidden = gelu(linear(layer_norm(x, inner[f"norm_hidden_{i}"]), inner[f"hidden_{i}"]))
        x = x + linear(hidden, inner[f"output_{i}"])
    return layer_norm(x, inner["norm_output"])


def actions(params: Any, *inputs: Any) -> Any:
    """Algorithm 1 of arXiv:2106.01345."""
    return np.tanh(linear(outputs(params, *inputs)[:, 1::3], params["output"]))


class Reference:
    """Regression of actions by AdamW with a warm-up, as in CORL's dt.py, and of the next states and
    returns, which follow from the tokens of actions as in the class of the authors of [1].
    """

    def __init__(self, state: dt.State, config: dt.Config) -> None:
        params = state.policy.parameters.params
        leaves, self.tree = jax.tree.flatten(params)
        self.leaves = [np.asarray(x, np.float64) for x in leaves]
        self.config, self.adam = config, reference.Adam(0.0)

    def losses(self, leaves: Any, batch: Transition) -> dict[str, float]:
        """Errors beyond the end of an episode are 0, and count in the mean."""
        extras, params = batch.extras, jax.tree.unflatten(self.tree, leaves)
        target = float(self.config.return_scale) * extras["return_to_go"]
        inputs = (batch.observation[..., :O], batch.action, target, extras["time"])
        inputs = (*inputs, self.config.heads)
        inside = extras["valid"][..., None]
        losses = {
            "policy/loss": (np.square(actions(params, *inputs) - batch.action) * inside).mean()
        }
        if self.config.predict_next:
            following = linear(outputs(params, *inputs)[:, 2::3], params["next"])
            rest = float(self.config.return_scale) * (extras["return_to_go"] - batch.reward)
            of_state = following[..., :O] - batch.next_observation[..., :O]
            of_return = following[..., O:] - rest[..., None]
            losses["policy/state_loss"] = (np.square(of_state) * inside).mean()
            losses["policy/return_loss"] = (np.square(of_return) * inside).mean()
        return losses

    def loss(self, leaves: Any, batch: Transition) -> float:
        weights = (1.0, self.config.state_weight, self.config.return_weight)
        losses = self.losses(leaves, batch).values()
        return float(sum(w * x for w, x in zip(weights, losses, strict=False)))

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        batch, config = reference.float64(batch), self.config
        losses = self.losses(self.leaves, batch)
        gradient = reference.differences(lambda leaves: self.loss(leaves, batch), self.leaves)
        gradient = reference.limited(gradient, config.max_grad_norm)
        assert config.warmup_updates is not None
        assert config.weight_decay is not None
        self.adam.rate = config.learning_rate * min((step + 1) / config.warmup_updates, 1.0)
        decay = self.adam.rate * config.weight_decay
        moved = self.adam.step(self.leaves, gradient)
        self.leaves = [x - decay * old for x, old in zip(moved, self.leaves, strict=True)]
        return losses


update = jax.jit(dt.update)
act = jax.jit(dt.act, static_argnames="explore")


def far_from_zero(module: Any, spec: EnvSpec, config: Any) -> Any:
    """A State of an agent with a `policy`, whose parameters are all far from 0."""
    state = jax.jit(module.init, static_argnums=1)(KEY, spec, config)
    leaves, tree = jax.tree.flatten(state.policy.parameters)
    generator = np.random.default_rng(0)
    moved = [jnp.asarray(x + 0.3 * generator.normal(size=x.shape), jnp.float32) for x in leaves]
    policy = networks.trained(jax.tree.unflatten(tree, moved), config.learning_rate, config)
    return state.replace(policy=policy)


def fresh(config: dt.Config = CONFIG) -> dt.State:
    return far_from_zero(dt, SPEC, config).replace(best_return=jnp.asarray(4.0))


PREDICTS = dataclasses.replace(CONFIG, predict_next=True, state_weight=0.7, return_weight=0.3)


@pytest.mark.parametrize("config", [CONFIG, PREDICTS], ids=["actions", "states and returns too"])
def test_updates_equal_regression_with_a_transformer(config: dt.Config) -> None:
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


def test_what_lies_beyond_an_episode_is_not_learnt_from() -> None:
    batch, other = pieces(), pieces(1)
    valid = batch.extras["valid"]

    def mixed(own: Any, others: Any) -> Any:
        return jnp.where(valid.reshape(*valid.shape, *[1] * (own.ndim - 2)), own, others)

    names = ("return_to_go", "time")
    extras = {name: mixed(batch.extras[name], other.extras[name]) for name in names}
    changed = batch.replace(
        observation=mixed(batch.observation, other.observation),
        action=mixed(batch.action, other.action),
        extras={**batch.extras, **extras},
    )
    state = fresh()
    gradients = [
        jax.grad(lambda x, b=b: dt.policy_loss(x, b, CONFIG, KEY)[0])(state.policy.parameters)
        for b in (batch, changed)
    ]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), *gradients)


def test_dropout_changes_the_loss_and_no_action() -> None:
    config = dataclasses.replace(CONFIG, dropout=0.5)
    losses = [
        float(update(fresh(), pieces(), jax.random.key(i), 0, config)[1]["policy/loss"])
        for i in range(2)
    ]
    assert losses[0] != losses[1]
    memory = first_memory(dt, SPEC, CONFIG)
    observation = jnp.ones(O + A + 1)
    one, other = (act(fresh(), observation, KEY, c, False, memory)[0] for c in (config, CONFIG))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("target", [None, 2.5])
def test_acts_by_the_last_steps_and_what_is_left_of_the_return(target: float | None) -> None:
    """Two environments side by side, of which one begins anew after two steps."""
    config = dataclasses.replace(CONFIG, target_return=target)
    state, generator = fresh(), np.random.default_rng(3)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), state.policy.parameters.params)
    memory, fresh_memory = (first_memory(dt, SPEC, config, 2) for _ in range(2))
    episodes: list[Any] = [{"state": [], "action": [], "reward": []} for _ in range(2)]
    for step in range(5):
        if step == 2:
            episodes[1] = {"state": [], "action": [], "reward": []}
            memory = jax.tree.map(lambda x, new: x.at[1].set(new[1]), memory, fresh_memory)
        states = generator.normal(size=(2, O))
        shown = []
        for each, now in zip(episodes, states, strict=True):
            last = [*each["action"][-1], each["reward"][-1]] if each["state"] else [0.0] * (A + 1)
            each["state"].append(now)
            shown.append([*now, *last])
        observation = jnp.asarray(shown, jnp.float32)
        action, extras, memory = act(state, observation, KEY, config, False, memory)
        assert not extras
        for i, each in enumerate(episodes):
            number = len(each["state"])
            aim = (4.0 if target is None else target) - np.cumsum([0.0, *each["reward"]])
            taken = [*each["action"], np.zeros(A)]
            inputs = [np.asarray(x)[-K:][None] for x in (each["state"], taken, 0.5 * aim)]
            time = np.arange(number)[-K:][None]
            expected = actions(params, *inputs, time, CONFIG.heads)[0, -1]
            np.testing.assert_allclose(action[i], expected, rtol=1e-4, atol=1e-5)
            each["action"].append(np.asarray(action[i]))
            each["reward"].append(float(np.float32(generator.normal())))


def test_the_target_is_the_largest_return_of_the_data() -> None:
    extras = {
        "return_to_go": jnp.asarray([3.0, 9.0, 5.0, 1.0]),
        "time": jnp.asarray([0, 1, 0, 1]),
    }
    data = jax.tree.map(lambda x: x[:4, 0], pieces()).replace(extras=extras)
    assert dt.prepare(fresh(), data, CONFIG).best_return == 5.0


def test_heads_must_divide_the_width() -> None:
    config: Any = dataclasses.replace(CONFIG, heads=3)
    with pytest.raises(ValueError, match=r"--config\.width 4 is not a multiple of .*heads 3"):
        dt.check(SPEC, config)


def test_only_states_actions_and_returns_are_read() -> None:
    batch, other = pieces(), pieces(1)
    observation = batch.observation.at[..., O:].set(7.0)
    mixed = other.replace(observation=observation, action=batch.action, extras=batch.extras)
    assert trees.equal(*(update(fresh(), x, KEY, 0, CONFIG) for x in (batch, mixed)))
