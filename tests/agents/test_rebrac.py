"""ReBRAC against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import rebrac
from rljax.learning import registry
from tests.agents import actor_critic, reference
from tests.agents.test_qc import H, chunks

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = rebrac.Config(
    hidden=(8, 8),
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    target_rate=0.1,
    actor_penalty=0.6,
    critic_penalty=0.7,
)
PLAIN = dataclasses.replace(CONFIG, layer_norm=False)  # as the reference's networks
KEY = jax.random.key(0)


def example() -> tuple[EnvSpec, rebrac.Config, Transition]:
    return SPEC, CONFIG, transitions()


def transitions(seed: int = 0, size: int = 5) -> Transition:
    """A batch in which some rows have a next action."""
    known = np.random.default_rng(seed + 100).uniform(-1, 1, (size, 2)).astype(np.float32)
    has = np.resize([True, False, True, True, False], size)
    extras = {"next_action": jnp.asarray(known), "has_next_action": jnp.asarray(has)}
    return reference.transitions(seed, size).replace(extras=extras)


class Reference(actor_critic.TD3):
    """TD3's, with equations 5 and 6 of arXiv:2305.09836; of chunks, agents/rebrac.py of
    arXiv:2601.14234's code.
    """

    def bootstrapped(self, batch: Transition, value: np.ndarray) -> np.ndarray:
        discount = self.config.discount
        length, reward, _ = reference.chunk_return(batch, discount)
        return reward + discount**length * (1 - batch.terminated) * value

    def teach_critics(self, batch: Transition, y: Any, weight: Any = 1.0) -> dict[str, float]:
        whole = reference.chunk_return(batch, self.config.discount)[2]
        return super().teach_critics(batch, y, weight * whole)

    def penalty(self, batch: Transition, action: np.ndarray) -> tuple[Any, dict[str, float]]:
        """beta_2 |a' - a'_data|^2 [B], where that is known."""
        if self.config.chunk_length > 1:
            return 0.0, {"critic/penalty": 0.0}
        apart = np.square(action - batch.extras["next_action"]).sum(axis=1)
        penalty = self.config.critic_penalty * apart * batch.extras["has_next_action"]
        return penalty, {"critic/penalty": penalty.mean()}

    def actor_loss(
        self, batch: Transition, action: np.ndarray, step: int
    ) -> tuple[dict[str, float], np.ndarray]:
        """dL/da = 2 beta_1 w (a - a_data) - lambda dq/da, q the smallest value, w 1 for whole
        chunks.
        """
        config = self.config
        q, slope = reference.smallest(self.critic, batch.observation, action)
        scale = 1.0 / np.abs(q).mean()
        fallen = np.interp(step, (config.decay_begin, config.decay_end), (0.0, 1.0))
        beta = config.actor_penalty * (1.0 - fallen * (1.0 - config.penalty_end))
        whole = reference.chunk_return(batch, config.discount)[2]
        apart = whole[:, None] * (action - batch.action)
        imitation = np.square(apart).sum(axis=1).mean()
        metrics = {"actor/loss": beta * imitation - scale * q.mean()}
        metrics |= {"actor/imitation": imitation, "actor/value_scale": scale}
        return metrics, 2.0 * beta * apart - scale * slope


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "chunks": {"chunk_length": H, "critic_penalty": 0.0},
    "no delay, three critics, a falling penalty": {
        "policy_delay": 1,
        "num_critics": 3,
        "penalty_end": 0.2,
        "decay_begin": 0.5,
        "decay_end": 2.5,
    },
    "noise that clips": {"target_noise": 0.8, "target_noise_clip": 0.3, "discount": 0.5},
}

update = jax.jit(rebrac.update)
fresh = functools.partial(reference.state, rebrac, SPEC)


@reference.cases(CASES, quick=2)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(PLAIN, **changes)
    batches = transitions if config.chunk_length == 1 else chunks
    reference.assert_updates(update, fresh(config), config, Reference, batches)


def metrics(batch: Transition, **changes: Any) -> Any:
    """Those of a first update."""
    config = dataclasses.replace(PLAIN, **changes)
    return update(fresh(config), batch, KEY, 0, config)[1]


def test_the_penalty_is_of_known_next_actions_and_of_what_goes_on() -> None:
    batch = transitions()
    none = batch.replace(extras={**batch.extras, "has_next_action": jnp.zeros(5, bool)})
    assert metrics(none)["critic/penalty"] == 0.0
    assert metrics(none)["critic/target"] == metrics(batch, critic_penalty=0.0)["critic/target"]
    ended = batch.replace(terminated=jnp.ones(5, bool))
    np.testing.assert_allclose(metrics(ended)["critic/target"], batch.reward.mean(), rtol=1e-6)
    assert metrics(batch)["critic/target"] < metrics(none)["critic/target"]
    never = batch.replace(terminated=jnp.zeros(5, bool))
    cut = never.replace(truncated=jnp.ones(5, bool))
    assert metrics(cut)["critic/target"] == metrics(never)["critic/target"], "a limit is no end"


def test_the_actor_follows_the_smallest_critic() -> None:
    batch, state = transitions(), fresh(PLAIN)
    raised = []
    for member in range(2):
        other = jax.tree.map(lambda x: np.asarray(x).copy(), state.critic)
        other.parameters.params["members"]["output"]["bias"][member] += 100.0
        changed = state.replace(critic=other)
        parameters, step = state.actor.parameters, jnp.int32(0)
        metrics = rebrac.actor_loss(parameters, changed, batch, step, PLAIN)[1]
        raised.append(metrics["actor/value_scale"])
    action = rebrac.policy(state.actor, batch.observation)
    values = np.asarray(state.critic(batch.observation, action))
    np.testing.assert_allclose(raised, 1.0 / np.abs(values[::-1]).mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize("updates", [100, 1_000])
def test_the_actors_penalty_falls_online_as_corls(updates: int) -> None:
    """CORL's finetune/rebrac.py, with as many updates online as offline, which the preset is for:
    actor_bc_coef *= max(min_decay_coef, lin_coef).
    """
    changes = registry.preset_online("rebrac", None, "d4rl/pen-cloned-v1")
    plain = dataclasses.replace(CONFIG, **changes)
    config = rebrac.schedule(plain, 2.0 * updates)
    for i in range(0, 2 * updates, 7):
        min_decay_coef, lin_coef = 0.5, (updates + updates - i + 0) / updates
        expected = max(min_decay_coef, lin_coef) if i >= updates else 1.0
        share = rebrac.penalty_share(jnp.int32(i), config)
        np.testing.assert_allclose(share, expected, rtol=1e-5)
    assert rebrac.penalty_share(jnp.int32(9), rebrac.schedule(CONFIG, 10.0)) == 1.0


def test_only_critics_are_normalised_and_after_the_activation() -> None:
    state = fresh(CONFIG)
    assert {name for name in state.actor.parameters.params if "norm" in name.lower()} == set()
    members = state.critic.parameters.params["members"]
    scale = {name: x["scale"] for name, x in members.items() if "scale" in x}
    assert len(scale) == len(CONFIG.hidden)
    assert state.critic.parameters.module.layer_norm == "last"


def test_batches_have_the_next_action_offline_and_online() -> None:
    declared: Any = rebrac.experience(rebrac.Config())
    assert declared.columns == declared.online.columns == (buffers.NextAction(),)
    assert (declared.batch_size, declared.online.batch_size) == (1024, 1024)


def test_chunks_have_no_critics_penalty() -> None:
    """The authors' agent with chunks has none, and the data's next chunk is not in a batch."""
    config = dataclasses.replace(CONFIG, chunk_length=H)
    with pytest.raises(ValueError, match=r"chunk-length 3, use --config\.critic-penalty 0\."):
        rebrac.check(SPEC, config)
    config = dataclasses.replace(config, critic_penalty=0.0)
    rebrac.check(SPEC, config)
    declared: Any = rebrac.experience(config)
    assert declared.columns == declared.online.columns == ()
    assert (declared.chunk_length, declared.online.chunk_length) == (H, H)
