"""QC against float64 NumPy written from the paper, its flow's gradient by differences; and how
chunks are played and learnt from by all agents that have them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition, choose, first_memory
from rljax.agents import expo, fql, ifql, qc, rebrac
from rljax.networks import policies
from rljax.runs.policies import loading
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SIZES, SPEC
from tests.runs import parts, test_run_offline

H, N, A = 3, 4, 2
CONFIG = qc.Config(
    **SIZES, activation="relu", layer_norm=False, flow_steps=3, num_candidates=N, chunk_length=1
)
CHUNKS = dataclasses.replace(CONFIG, chunk_length=H)
PROBE = {"layer_norm": False, "chunk_length": 1, "num_candidates": 8}
POLICY_IS_A_DRAW = True  # also without exploring
TARGETS_LAG = True  # they follow the critics from before their step


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


def chunks(seed: int = 0) -> Transition:
    """A batch of chunks, of which some are not whole."""
    batch = reference.transitions(seed, actions=H * A)
    rewards = np.random.default_rng(seed + 100).normal(size=(5, H)).astype(np.float32)
    whole = np.arange(1, H + 1) <= np.array([H, 1, H, H, 2])[:, None]
    extras = {"valid": jnp.asarray(whole), "rewards": jnp.asarray(rewards)}
    return batch.replace(reward=extras["rewards"][:, 0], extras=extras)


class Reference(value_learning.Networks):
    """Equations 6 and 8 of arXiv:2507.07969."""

    def __init__(self, state: qc.State, config: qc.Config) -> None:
        super().__init__(state, config, actor=reference.field)

    def values(self, critics: list[Any], observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        q = np.stack([reference.value(critic, observation, action)[0] for critic in critics])
        return q.mean(axis=0) if self.config.target == "mean" else q.min(axis=0)

    def best(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The best chunk [B, h A] of those from noise [B, N, h A]."""
        candidates, values = [], []
        for i in range(noise.shape[1]):
            action, steps = noise[:, i], self.config.flow_steps
            for step in range(steps):
                time = np.full(len(action), step / steps)
                velocity = reference.of_field(self.actor, action, observation, time)
                action = action + velocity / steps
            candidates.append(np.clip(action, -1.0, 1.0))
            values.append(self.values(self.critics, observation, candidates[-1]))
        index = np.argmax(values, axis=0)
        assert len(set(index)) > 1
        return np.stack(candidates)[index, np.arange(len(index))]

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        valid = np.asarray(batch.extras.get("valid", np.ones((5, 1))), np.float64)
        rewards = np.asarray(batch.extras.get("rewards", reward[:, None]), np.float64)
        length = valid.shape[1]
        key_critic, key_actor = jax.random.split(key)
        noise = jax.random.normal(key_critic, (5, N, length * A))
        chunk = self.best(successor, np.asarray(noise, np.float64))
        total = np.zeros(5)
        for i in range(length):
            total += config.discount**i * rewards[:, i] * valid[:, i]
        q = self.values(self.targets, successor, chunk)
        y = total + config.discount**length * alive * q
        whole, number = valid[:, -1], len(self.critics)

        def critic_loss(critics: Any) -> float:
            q = np.stack([reference.value(x, observation, action)[0] for x in critics])
            return float((whole * np.square(q - y)).mean())

        q = [reference.value(critic, observation, action)[0] for critic in self.critics]
        metrics = {"critic/loss": critic_loss(self.critics), "critic/q": np.mean(q)}
        metrics["critic/target"] = y.mean()
        gradient = reference.differences(critic_loss, self.critics)
        old = self.critics
        self.critics = self.critic_adam.step(self.critics, gradient)
        self.targets = reference.towards(old, self.targets, config.target_rate)
        assert len(self.critics) == number

        key_noise, key_time = jax.random.split(key_actor)
        noise = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        time = np.asarray(jax.random.uniform(key_time, (5,)), np.float64)
        between = (1.0 - time[:, None]) * noise + time[:, None] * action

        def flow_loss(actor: Any) -> float:
            velocity = reference.of_field(actor, between, observation, time)
            error = np.square(velocity - (action - noise)).reshape(5, length, A)
            return float((error * valid[..., None]).mean())

        metrics["actor/loss"] = flow_loss(self.actor)
        self.actor = self.actor_adam.step(self.actor, reference.differences(flow_loss, self.actor))
        return metrics


CASES: dict[str, Any] = {
    "single actions": {},
    "chunks": {"chunk_length": H},
    "chunks, three critics, the smallest": {"chunk_length": H, "num_critics": 3, "target": "min"},
}

update = jax.jit(qc.update)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(qc, SPEC, config)
    batches = reference.transitions if config.chunk_length == 1 else chunks
    value_learning.assert_updates_equal(update, state, config, Reference, steps=3, batches=batches)


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(
        update, reference.state(qc, SPEC, CONFIG), CONFIG
    )


# Agents with chunks, and their settings for tiny tasks.
OTHERS: dict[Any, dict[str, Any]] = {
    expo: {"flow_steps": 2, "num_candidates": N},
    fql: {"flow_steps": 2},
    ifql: {"flow_steps": 2, "num_candidates": N},
    qc: {"flow_steps": 2, "num_candidates": N},
    rebrac: {"critic_penalty": 0.0, "policy_delay": 1},
}


def name_of(module: Any) -> str:
    return module.__name__.rpartition(".")[2]


all_agents = pytest.mark.parametrize("module", OTHERS, ids=name_of)


@all_agents
def test_chunks_are_played_to_their_end_and_anew_in_a_new_episode(module: Any) -> None:
    config = module.Config(**SIZES, **OTHERS[module], layer_norm=False, chunk_length=H)
    state, envs = reference.state(module, SPEC, config), 4
    act = jax.jit(module.act, static_argnames="explore")
    generator = np.random.default_rng(0)
    memory = fresh = first_memory(module, SPEC, config, envs)
    expected: list[list[np.ndarray]] = [[] for _ in range(envs)]
    for t in range(11):
        observation = generator.normal(size=(envs, 3)).astype(np.float32)
        begins = generator.random(envs) < 0.25 if t else np.ones(envs, bool)
        memory = choose(jnp.asarray(begins), fresh, memory)
        key = jax.random.fold_in(KEY, t)
        action, extras, memory = act(state, observation, key, config, True, memory)
        assert extras == {}
        new, _, none = act(state, observation, key, config, True)
        assert none is None
        for env in range(envs):
            if begins[env] or not expected[env]:
                chunk = np.asarray(memory["actions"][env])
                np.testing.assert_array_equal(chunk[0], new[env])
                expected[env] = list(chunk)
            np.testing.assert_array_equal(action[env], expected[env].pop(0))


def test_single_actions_need_no_memory() -> None:
    assert first_memory(qc, SPEC, CONFIG, 2) is None
    observation = reference.observed()
    action, _, memory = qc.act(reference.state(qc, SPEC, CONFIG), observation, KEY, CONFIG, True)
    assert memory is None
    assert action.shape == (len(observation), A)


def test_chunks_have_no_value_of_one_action() -> None:
    with pytest.raises(ValueError, match="chunk-length 3 judge chunks, not single actions"):
        policies.refuse_chunks(H)
    state = reference.state(qc, SPEC, CHUNKS)
    with pytest.raises(ValueError, match=r"needs an agent with --config\.chunk-length 1"):
        qc.value(state, jnp.zeros(3), jnp.zeros(A), CHUNKS)


@all_agents
def test_a_chunk_of_one_action_teaches_what_the_action_does(module: Any) -> None:
    config = module.Config(**SIZES, **OTHERS[module], chunk_length=1)
    state, batch = reference.state(module, SPEC, config), reference.transitions()
    if module is rebrac:
        known = {"next_action": batch.action, "has_next_action": batch.terminated}
        batch = batch.replace(extras=known)
    valid, rewards = jnp.ones((5, 1), jnp.bool_), batch.reward[:, None]
    one = batch.replace(extras={**batch.extras, "valid": valid, "rewards": rewards})
    learn = jax.jit(module.update)
    first, second = (learn(state, x, KEY, 0, config) for x in (batch, one))
    trees.assert_close(first, second)


@all_agents
def test_rows_that_are_not_whole_teach_the_critics_nothing(module: Any) -> None:
    config = module.Config(**SIZES, **OTHERS[module], chunk_length=H)
    state, batch = reference.state(module, SPEC, config), chunks()
    learn = jax.jit(module.update)
    whole = np.asarray(batch.extras["valid"][:, -1])
    others = batch.replace(
        terminated=batch.terminated ^ ~whole,
        extras={**batch.extras, "rewards": batch.extras["rewards"] + 9.0 * ~whole[:, None]},
    )
    first, second = (learn(state, x, KEY, 0, config)[0] for x in (batch, others))
    assert trees.equal(first.critic, second.critic)
    changed = batch.replace(terminated=~batch.terminated)
    assert not trees.equal(first.critic, learn(state, changed, KEY, 0, config)[0].critic)


@pytest.mark.slow
@pytest.mark.parametrize("module", [ifql, qc, rebrac], ids=name_of)
def test_runs_of_chunks_go_on_in_an_environment_and_resume(module: Any, tmp_path: Path) -> None:
    data = str(test_run_offline.written(tmp_path / "pendulum.npz"))
    config = {**OTHERS[module], "chunk_length": H, "hidden": (8, 8), "replay_size": 300}

    def train(steps: int, out: Path) -> Path:
        online = {"then_online": steps - 60, "seeds": 2}
        return test_run_offline.train(name_of(module), 60, out, data, config, **online)

    whole, _ = parts.resumed(train, 100, 160, tmp_path)
    seen = np.random.default_rng(0).normal(size=(2 * H, 3))
    others = np.concatenate([seen[:1], -seen[1:H], seen[H:]])
    policies = loading.load(whole), loading.load(whole)
    played = [
        [policy(x, step=i) for i, x in enumerate(observations)]
        for policy, observations in zip(policies, (seen, others), strict=True)
    ]
    np.testing.assert_array_equal(*played, "a chunk is played, whatever is seen meanwhile")
