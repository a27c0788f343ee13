"""EXPO against float64 NumPy written from the authors' code (pd-perry/EXPO, bbd5713, and fedit.py
of ColinQiyangLi/qam, f93efd2), gradients of flow and edits by differences.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import Transition
from rljax.agents import expo, qc
from rljax.runs import records
from rljax.runs.policies import loading
from tests.agents import reference, trees, value_learning
from tests.agents.test_qc import A, H, chunks
from tests.agents.value_learning import KEY, SPEC
from tests.runs import test_run_offline

N, K = 3, 3
CONFIG = expo.Config(
    hidden=(6, 6),
    batch_size=5,
    actor_lr=1e-2,
    edit_lr=2e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
    edit_scale=0.4,
    activation="relu",
    layer_norm=False,
    flow_steps=K,
    num_candidates=N,
    num_critics=4,
)
FEDIT = {
    "num_candidates": 4,
    "keep_unedited": False,
    "edit_source": "flow",
    "pessimism": 0.5,
}
PROBE: dict[str, Any] = {
    "layer_norm": False,
    "num_critics": 2,
    "edit_scale": 0.3,
    "init_temperature": 1e-3,
    "learn_temperature": False,
}
POLICY_IS_A_DRAW = True  # also without exploring
TARGETS_LAG = True  # they follow the critics from before their step


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def edited(
    config: Any, edit: Any, observation: np.ndarray, action: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Actions that the change is added to, and its density: tanh of a Gaussian."""
    output = reference.of_field(edit, action, observation)
    mean, log_std = np.split(output, 2, axis=1)
    std = np.exp(np.clip(log_std, config.log_std_min, config.log_std_max))
    raw = mean + std * noise
    log_prob = -0.5 * np.square(noise) - np.log(std) - 0.5 * np.log(2.0 * np.pi)
    log_prob = (log_prob - np.log(1.0 - np.square(np.tanh(raw)))).sum(axis=1)
    return np.clip(action + config.edit_scale * np.tanh(raw), -1.0, 1.0), log_prob


class Reference(value_learning.Networks):
    """Both sources; which of them counts is said by the settings."""

    def __init__(self, state: expo.State, config: expo.Config) -> None:
        super().__init__(state, config, actor=reference.field)
        self.edit, self.edit_adam = reference.field(state.edit), reference.Adam(config.edit_lr)
        self.log_temperature = reference.exact(state.log_temperature)
        self.temperature_adam = reference.Adam(config.temperature_lr)
        self.parts |= {"edit": reference.field, "log_temperature": reference.exact}
        self.size = state.spec.action_size

    def flow(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        x = noise
        for i in range(K):
            time = np.full(len(x), i / K)
            x = x + reference.of_field(self.actor, x, observation, time) / K
        return np.clip(x, -1.0, 1.0)

    def edited(
        self, edit: Any, observation: np.ndarray, action: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return edited(self.config, edit, observation, action, noise)

    def drawn(self, critics: list[Any], key: jax.Array) -> list[Any]:
        """Those that judge."""
        if self.config.pessimism is not None or self.config.min_critics is None:
            return critics
        shape = (self.config.min_critics,)
        order = jax.random.choice(key, len(critics), shape, replace=False)
        return [critics[i] for i in np.asarray(order)]

    def best(self, observation: np.ndarray, key: jax.Array) -> np.ndarray:
        """`sample_batch_actions`, and `sample_actions` of fedit.py."""
        config, rows = self.config, len(observation)
        key_noise, key_edit, key_critics = jax.random.split(key, 3)
        shape = (rows, config.num_candidates, self.size)
        noise = [reference.noise(key, shape) for key in (key_noise, key_edit)]
        candidates: list[Any] = []
        for i in range(config.num_candidates):
            action = self.flow(observation, noise[0][:, i])
            change, _ = self.edited(self.edit, observation, action, noise[1][:, i])
            candidates += [action, change] if config.keep_unedited else [change]
        if config.pessimism is not None:
            q = [reference.values(self.critics, observation, x).mean(axis=0) for x in candidates]
        else:
            pair = self.drawn(self.targets, key_critics)
            q = [reference.values(pair, observation, x).min(axis=0) for x in candidates]
        index = np.argmax(q, axis=0)
        assert len(set(index)) > 1
        return np.stack(candidates)[index, np.arange(rows)]

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        observation, action, successor, _, alive = value_learning.arrays(batch)
        length, total, whole = reference.chunk_return(batch, config.discount)
        key_critic, key_actor, key_edit = jax.random.split(key, 3)
        key_action, key_critics = jax.random.split(key_critic)
        following = self.best(successor, key_action)
        q = reference.values(self.drawn(self.targets, key_critics), successor, following)
        if config.pessimism is not None:
            next_q = q.mean(axis=0) - config.pessimism * q.std(axis=0)
        else:
            next_q = q.min(axis=0)
        y = total + config.discount**length * alive * next_q
        old = self.critics

        def critic_loss(critics: Any) -> float:
            q = reference.values(critics, observation, action)
            return float((whole * np.square(q - y)).mean())

        metrics = {"critic/loss": critic_loss(old), "critic/target": float(y.mean())}
        metrics["critic/q"] = float(reference.values(old, observation, action).mean())
        gradient = reference.differences(critic_loss, old)
        self.critics = self.critic_adam.step(self.critics, gradient)
        self.targets = reference.towards(old, self.targets, config.target_rate)
        if step % config.policy_delay == config.policy_delay - 1:
            metrics |= self.improve(observation, action, whole, old, key_actor, key_edit)
        return metrics

    def improve(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        whole: np.ndarray,
        critics: Any,
        key_actor: jax.Array,
        key_edit: jax.Array,
    ) -> dict[str, float]:
        """`update_actor` with a flow, `update_edit_actor` and `update_temperature`."""
        config = self.config
        key_noise, key_time = jax.random.split(key_actor)
        start = reference.noise(key_noise, action.shape)
        time = np.asarray(jax.random.uniform(key_time, (5,)), np.float64)
        between = (1.0 - time[:, None]) * start + time[:, None] * action

        def flow_loss(actor: Any) -> float:
            velocity = reference.of_field(actor, between, observation, time)
            return float((whole[:, None] * np.square(velocity - (action - start))).mean())

        key_noise, key_change = jax.random.split(key_edit)
        edited, weight = action, whole
        if config.edit_source == "flow":
            edited = self.flow(observation, reference.noise(key_noise, action.shape))
            weight = np.ones(5)
        noise, temperature = reference.noise(key_change, action.shape), np.exp(self.log_temperature)

        def edit_loss(edit: Any) -> float:
            changed, log_prob = self.edited(edit, observation, edited, noise)
            q = reference.values(critics, observation, changed).mean(axis=0)
            return float((weight * (temperature * log_prob - q)).mean())

        entropy = -self.edited(self.edit, observation, edited, noise)[1].mean()
        surplus = entropy + config.target_entropy_share * self.size
        metrics = {
            "actor/loss": flow_loss(self.actor),
            "edit/loss": edit_loss(self.edit),
            "edit/entropy": float(entropy),
            "temperature/loss": float(temperature * surplus),
            "temperature/value": float(temperature),
        }
        gradient = reference.differences(edit_loss, self.edit)
        gradient_of_flow = reference.differences(flow_loss, self.actor)
        self.edit = self.edit_adam.step(self.edit, gradient)
        self.actor = self.actor_adam.step(self.actor, gradient_of_flow)
        # d(alpha x) / d log(alpha) = alpha x
        self.log_temperature = self.temperature_adam.step(
            self.log_temperature, temperature * surplus
        )
        return metrics


CASES: dict[str, Any] = {
    "single actions": {"init_temperature": 0.3},
    "the smallest of all critics": {"min_critics": None},
    "chunks, with a delay": {"chunk_length": H, "policy_delay": 2},
    "as fedit.py": {**FEDIT, "chunk_length": H, "init_temperature": 0.3},
}
update = jax.jit(expo.update)


@reference.cases(CASES)
def test_updates_equal_the_authors_equations(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(expo, SPEC, config)
    batches = reference.transitions if config.chunk_length == 1 else chunks
    value_learning.assert_updates_equal(update, state, config, Reference, steps=3, batches=batches)


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(
        update, reference.state(expo, SPEC, CONFIG), CONFIG
    )


def test_candidates_are_the_flows_actions_and_edits_by_at_most_their_scale() -> None:
    """All critics count the first number of an action: the largest of the candidates is chosen."""
    config = dataclasses.replace(CONFIG, chunk_length=H, pessimism=0.0, edit_scale=0.2)
    state, observation = reference.state(expo, SPEC, config), jnp.asarray(reference.observed())
    state = state.replace(critic=lambda observation, action: action[None, ..., 0])
    decide = jax.jit(lambda config: expo.best(state, observation, KEY, config))
    changes: dict[str, Any] = {
        "all": {},
        "edited": {"keep_unedited": False},
        "unedited": {"edit_scale": 0.0},
    }
    chosen = {name: decide(dataclasses.replace(config, **x)) for name, x in changes.items()}
    first = {name: np.asarray(x[..., 0]) for name, x in chosen.items()}
    assert chosen["all"].shape == (len(observation), H * A)
    np.testing.assert_array_equal(
        first["all"], np.maximum(first["edited"], first["unedited"]), "one draw in all three"
    )
    assert 0.0 < np.abs(first["all"] - first["unedited"]).max() <= 0.2 + 1e-6


def test_without_edits_and_candidates_beside_it_is_qc() -> None:
    """The public defaults of the authors' code: editing is off."""
    config = dataclasses.replace(CONFIG, edit_scale=0.0, keep_unedited=False, pessimism=0.0)
    theirs = qc.Config(hidden=(6, 6), flow_steps=K, num_candidates=N, chunk_length=1)
    theirs = dataclasses.replace(theirs, activation="relu", layer_norm=False, num_critics=4)
    state, observation = reference.state(expo, SPEC, config), jnp.asarray(reference.observed())
    other = qc.State(state.actor, state.critic, state.target_critic, state.spec)
    key_noise = jax.random.split(KEY, 3)[0]
    np.testing.assert_array_equal(
        expo.best(state, observation, KEY, config), qc.best(other, observation, key_noise, theirs)
    )


def test_random_targets_choose_and_others_judge() -> None:
    """Two of four targets: over many keys, each pair is met."""
    state = reference.state(expo, SPEC, CONFIG)
    batch = reference.transitions()
    q = state.target_critic(batch.observation, batch.action)
    met = set()
    for seed in range(40):
        pair = networks.random_members(state.target_critic, 2, jax.random.key(seed))
        values = np.asarray(pair(batch.observation, batch.action))
        rows = [int(np.flatnonzero(np.isclose(np.asarray(q), x).all(axis=1))[0]) for x in values]
        assert len(set(rows)) == 2
        met.add(frozenset(rows))
        drawn = networks.subset(q, 2, jax.random.key(seed))
        np.testing.assert_allclose(values, drawn, rtol=1e-5, atol=1e-6)
    assert len(met) == 6


def test_rows_that_are_not_whole_teach_edits_of_the_datas_actions_nothing() -> None:
    config = dataclasses.replace(CONFIG, chunk_length=H)
    state, batch = reference.state(expo, SPEC, config), chunks()
    whole = np.asarray(batch.extras["valid"][:, -1])
    changed = batch.replace(observation=batch.observation + ~whole[:, None])
    for source, same in (("data", True), ("flow", False)):
        settings = dataclasses.replace(config, edit_source=source)
        edits = [update(state, x, KEY, 0, settings)[0].edit for x in (batch, changed)]
        assert trees.equal(*edits) == same, source


@pytest.mark.slow
def test_a_frozen_flow_of_qc_stays_bit_for_bit(tmp_path: Path) -> None:
    """From data and online; edits and critics learn."""
    data = str(test_run_offline.written(tmp_path / "pendulum.npz"))
    shared = {"chunk_length": H, "flow_steps": 2, "hidden": (8, 8), "num_candidates": 2}
    flow = test_run_offline.train("qc", 60, tmp_path / "flow", data, shared)
    config = shared | {"actor_lr": 0.0, "num_critics": 3, "replay_size": 300}
    taken = {"from_run": str(flow), "from_parts": ("actor",), "then_online": 40}
    out = test_run_offline.train("expo", 60, tmp_path / "run", data, config, **taken)
    before, after = (loading.load_all(path).state.state for path in (flow, out))
    assert trees.equal(before.actor.parameters, after.actor.parameters)
    assert records.read_config(out)["inherited"].keys() == {"actor"}


def test_more_random_targets_than_there_are_is_refused() -> None:
    config = dataclasses.replace(CONFIG, min_critics=5)
    with pytest.raises(ValueError, match=r"^--config\.min-critics is 5, .* 1 and --config\.num-c"):
        expo.check(SPEC, config)
    expo.check(SPEC, dataclasses.replace(config, pessimism=0.5))
