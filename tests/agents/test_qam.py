"""QAM against float64 NumPy written from the paper, and its edits from the authors' code
(ColinQiyangLi/qam), all gradients by differences.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Transition, first_memory
from rljax.agents import qam
from tests.agents import reference, trees, value_learning
from tests.agents.test_expo import edited
from tests.agents.test_qc import A, H, chunks
from tests.agents.value_learning import KEY, SPEC

K = 3
CONFIG = qam.Config(
    hidden=(6, 6),
    batch_size=5,
    learning_rate=1e-2,
    target_rate=0.1,
    activation="relu",
    layer_norm=False,
    flow_steps=K,
    num_critics=3,
    inverse_temperature=2.0,
)
PROBE: dict[str, Any] = {"layer_norm": False, "num_critics": 2, "pessimism": 0.0}
POLICY_IS_A_DRAW = True  # also without exploring
TARGETS_LAG = True  # they follow networks from before their step


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def critics(state: qam.State, *inputs: Any) -> Any:
    """Q_c, for tests of what all agents have in common."""
    return state.networks.parameters.critic(*inputs)


def slopes(function: Any, x: np.ndarray, size: float = 1e-5) -> np.ndarray:
    """The gradient [B, A] of values [B] of independent rows x [B, A], by differences."""
    result = np.zeros(x.shape)
    for j in range(x.shape[1]):
        change = size * np.eye(x.shape[1])[j]
        result[:, j] = (function(x + change) - function(x - change)) / (2.0 * size)
    return result


class Reference:
    """arXiv:2601.14234, and arXiv:2409.08861 for the process and its adjoints."""

    def __init__(self, state: qam.State, config: qam.Config) -> None:
        learnt = state.networks.parameters
        self.config, self.spec = config, state.spec
        self.learnt = {
            "critic": reference.critics(learnt.critic),
            "base": reference.field(learnt.base),
            "tuned": reference.field(learnt.tuned),
        }
        if config.form == "fql":
            self.learnt["one_step"] = reference.field(learnt.one_step)
        if config.form == "edit":
            self.learnt["edit"] = reference.field(learnt.edit)
            self.learnt["log_temperature"] = reference.exact(learnt.log_temperature)
        self.adams = {name: reference.Adam(config.learning_rate) for name in self.learnt}
        self.target_critic = reference.critics(state.target_critic)
        self.target_base = reference.field(state.target_base)

    def values(self, critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.stack([reference.value(x, observation, action)[0] for x in critics])

    def flow(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        x = noise
        for i in range(K):
            time = np.full(len(x), i / K)
            x = x + reference.of_field(self.learnt["tuned"], x, observation, time) / K
        return np.clip(x, -1.0, 1.0)

    def one_step(self, policy: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return reference.of_field(policy, noise, observation)

    def adjoints(self, observation: np.ndarray, key: jax.Array) -> tuple[list[Any], list[Any]]:
        """x_i and g_i."""
        d, size = 1.0 / K, (len(observation), self.spec.action_size)
        key_first, key_noise = jax.random.split(key)
        x = np.asarray(jax.random.normal(key_first, size), np.float64)
        points = [x]
        for i, each in enumerate(jax.random.split(key_noise, K - 1)):
            t, time = i * d, np.full(len(x), i * d)
            sigma = np.sqrt(2.0 * (1.0 - t + d) / (t + d))
            v = reference.of_field(self.learnt["tuned"], x, observation, time)
            noise = np.asarray(jax.random.normal(each, size), np.float64)
            x = x + d * (2.0 * v - x / (t + d)) + np.sqrt(d) * sigma * noise
            points.append(x)
        time = np.full(len(x), 1.0 - d)
        end = x + d * reference.of_field(self.target_base, x, observation, time)

        def value(x: np.ndarray) -> np.ndarray:
            return self.values(self.target_critic, observation, np.clip(x, -1, 1)).mean(axis=0)

        g, found = -self.config.inverse_temperature * slopes(value, end), []
        for i in reversed(range(K)):
            after, now = (i + 1) * d, g

            def pulled(x: np.ndarray, after: float = after, now: Any = now) -> np.ndarray:
                time = np.full(len(x), after)
                drift = 2.0 * reference.of_field(self.target_base, x, observation, time)
                return ((drift - x / after) * now).sum(axis=1)

            g = g + d * slopes(pulled, points[i])
            found.insert(0, g)
        return points, found

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        observation, action, successor, _, alive = value_learning.arrays(batch)
        length, total, whole = reference.chunk_return(batch, config.discount)
        key_critic, key_base, key_tuned, key_form = jax.random.split(key, 4)
        noise, of_edit = (reference.noise(x, action.shape) for x in jax.random.split(key_critic))
        if config.form == "fql":
            policy = self.learnt["one_step"]
            following = np.clip(self.one_step(policy, successor, noise), -1.0, 1.0)
        else:
            following = self.flow(successor, noise)
        if config.form == "edit":
            following = edited(config, self.learnt["edit"], successor, following, of_edit)[0]
        q = self.values(self.target_critic, successor, following)
        q = q.mean(axis=0) - config.pessimism * q.std(axis=0)
        y = total + config.discount**length * alive * q
        key_noise, key_time = jax.random.split(key_base)
        start = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        time = np.asarray(jax.random.uniform(key_time, (5,)), np.float64)
        between = (1.0 - time[:, None]) * start + time[:, None] * action
        points, adjoints = self.adjoints(observation, key_tuned)
        noise = reference.noise(key_form, action.shape)
        if config.form == "edit":
            noise, of_edit = (reference.noise(x, action.shape) for x in jax.random.split(key_form))
        target = self.flow(observation, noise)
        old_critics = self.learnt["critic"]

        def critic_loss(critics: Any) -> float:
            return float((whole * np.square(self.values(critics, observation, action) - y)).mean())

        def base_loss(base: Any) -> float:
            velocity = reference.of_field(base, between, observation, time)
            return float((whole[:, None] * np.square(velocity - (action - start))).mean())

        def matching_loss(tuned: Any) -> float:
            error = np.zeros(5)
            for i, (x, g) in enumerate(zip(points, adjoints, strict=True)):
                at, t, d = np.full(5, i / K), i / K, 1.0 / K
                sigma = np.sqrt(2.0 * (1.0 - t + d) / (t + d))
                change = reference.of_field(tuned, x, observation, at)
                change = change - reference.of_field(self.target_base, x, observation, at)
                error += np.square(2.0 * change / sigma + sigma * g).sum(axis=1)
            return float(error.mean())

        def one_step_loss(policy: Any) -> float:
            sample = self.one_step(policy, observation, noise)
            q = self.values(old_critics, observation, np.clip(sample, -1.0, 1.0))
            return float(config.distillation_weight * np.square(sample - target).mean() - q.mean())

        def edit_loss(edit: Any) -> float:
            changed, log_prob = edited(config, edit, observation, target, of_edit)
            q = self.values(old_critics, observation, changed).mean(axis=0)
            return float((np.exp(self.learnt["log_temperature"]) * log_prob - q).mean())

        def temperature_loss(log_temperature: Any) -> float:
            _, log_prob = edited(config, self.learnt["edit"], observation, target, of_edit)
            wanted = config.target_entropy_share * self.spec.action_size
            return float(np.exp(log_temperature) * (wanted - log_prob.mean()))

        losses = {"critic": critic_loss, "base": base_loss, "tuned": matching_loss}
        names = {"critic": "critic/loss", "base": "actor/base", "tuned": "actor/matching"}
        if config.form == "fql":
            losses["one_step"], names["one_step"] = one_step_loss, "actor/one_step"
        if config.form == "edit":
            losses |= {"edit": edit_loss, "log_temperature": temperature_loss}
            names |= {"edit": "actor/edit", "log_temperature": "temperature/loss"}
        metrics = {names[name]: loss(self.learnt[name]) for name, loss in losses.items()}
        metrics["critic/q"] = float(self.values(old_critics, observation, action).mean())
        metrics["critic/target"] = float(y.mean())
        gradient = {
            name: reference.differences(loss, self.learnt[name]) for name, loss in losses.items()
        }
        norm = np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(gradient)))
        if config.max_grad_norm:
            factor = min(1.0, config.max_grad_norm / norm)
            gradient = jax.tree.map(lambda x: factor * x, gradient)
        old = dict(self.learnt)
        for name, change in gradient.items():
            self.learnt[name] = self.adams[name].step(self.learnt[name], change)
        rate = config.target_rate
        self.target_critic = reference.towards(old["critic"], self.target_critic, rate)
        self.target_base = reference.towards(old["base"], self.target_base, rate)
        return metrics


CASES: dict[str, Any] = {
    "single actions": {},
    "chunks, without a limit": {"chunk_length": H, "max_grad_norm": None, "pessimism": 0.0},
    "with FQL's policy": {"form": "fql", "distillation_weight": 3.0},
    "with edits": {"form": "edit", "edit_scale": 0.4, "chunk_length": H},
}
update = jax.jit(qam.update)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(qam, SPEC, config)
    batches = reference.transitions if config.chunk_length == 1 else chunks
    expected = Reference(state, config)
    for step in range(2):
        batch, key = batches(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    learnt = state.networks.parameters
    actual = {"critic": reference.critics(learnt.critic), "base": reference.field(learnt.base)}
    actual |= {"tuned": reference.field(learnt.tuned)}
    if config.form == "fql":
        actual["one_step"] = reference.field(learnt.one_step)
    if config.form == "edit":
        actual |= {"edit": reference.field(learnt.edit), "log_temperature": learnt.log_temperature}
    for name, network in actual.items():
        reference.assert_same(network, expected.learnt[name], name)
    reference.assert_same(
        reference.critics(state.target_critic), expected.target_critic, "target_critic"
    )
    reference.assert_same(reference.field(state.target_base), expected.target_base, "target_base")


def test_edits_move_the_flows_actions_by_at_most_their_scale() -> None:
    config = dataclasses.replace(CONFIG, form="edit", chunk_length=H, edit_scale=0.2)
    plain = dataclasses.replace(config, form="flow")
    state, observation = reference.state(qam, SPEC, config), reference.observed()
    decide = jax.jit(qam.policy)
    edited, action = (decide(state, observation, KEY, x) for x in (config, plain))
    assert action.shape == (len(observation), H * A)
    assert 0.0 < np.abs(edited - action).max() <= 0.2 + 1e-6
    after, metrics = update(state, chunks(), KEY, 0, config)
    assert {"actor/edit", "temperature/loss"} <= metrics.keys()
    before = state.networks.parameters
    assert not trees.equal(after.networks.parameters.edit, before.edit)
    assert not trees.equal(after.networks.parameters.log_temperature, before.log_temperature)


def test_without_a_temperature_the_policy_stays_the_datas_flow() -> None:
    """Points have no pull: L(v) is the distance to the slow copy."""
    config = dataclasses.replace(CONFIG, inverse_temperature=0.0, max_grad_norm=None)
    state = reference.state(qam, SPEC, config)
    learnt = state.networks.parameters
    state = state.replace(
        networks=state.networks.replace(parameters=learnt.replace(tuned=state.target_base))
    )
    after, metrics = update(state, reference.transitions(), KEY, 0, config)
    np.testing.assert_allclose(metrics["actor/matching"], 0.0, atol=1e-10)
    assert trees.equal(after.networks.parameters.tuned, state.target_base)


def test_chunks_are_played() -> None:
    config = dataclasses.replace(CONFIG, chunk_length=H)
    state, observation = reference.state(qam, SPEC, config), jnp.zeros((2, 3))
    memory = first_memory(qam, SPEC, config, 2)
    actions = []
    for i in range(H):
        key = jax.random.fold_in(KEY, i)
        action, _, memory = qam.act(state, observation, key, config, True, memory)
        actions.append(action)
    np.testing.assert_array_equal(np.stack(actions, axis=1), memory["actions"])
