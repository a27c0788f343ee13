"""ReCOIL against float64 NumPy written from its authors' learner_imitate.py, critic_imitate.py and
actor.py.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import recoil
from rljax.runs import records, run
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY, SPEC
from tests.environments import reach

CONFIG = recoil.Config(**value_learning.SIZES, value_lr=3e-2)


def example() -> Any:
    config = dataclasses.replace(CONFIG, decay_steps=10.0, dropout=0.1)
    return SPEC, config, reference.transitions(size=8)


class Reference(value_learning.NormalisedNetworks):
    """The order of the authors' code: the value, the actor, the critics."""

    def value_loss(self, q: np.ndarray, v: np.ndarray, max_z: float) -> float:
        """For values [2 B]."""
        config, half = self.config, len(v) // 2
        if config.value_loss == "expectile":
            weight = np.where(q > v, config.expectile, 1 - config.expectile)
            gap = (v[:half] - v[half:]).mean()
            return (weight * (q - v) ** 2)[:half].mean() + config.value_gap * gap
        return self.reverse_kl(q - v, max_z)[:half].mean()

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, size = self.config, len(batch.reward) // 2
        observation, action, successor, _, alive = value_learning.arrays(batch)
        mixture, following, alive = observation[:size], successor[:size], alive[:size]
        both = reference.smallest(self.targets, observation, action)[0]
        v = value_learning.state_values(self.value, observation)
        max_z = max(self.exponent(both - v).max(), -1.0)  # of all rows, the expert's too
        value_loss = self.move_value(lambda v: self.value_loss(both, v, max_z), observation)
        new_v, next_v = (value_learning.state_values(self.value, x) for x in (mixture, following))
        q = both[:size]
        metrics = self.imitate(mixture, action[:size], q - new_v, key, step)
        largest = config.expert_reward / (1 - config.discount)
        y = -config.expert_reward + config.discount * np.where(alive, next_v, -largest)
        # Of all 2 B rows: a mean over them is half of L(Q)'s sum.
        goal = np.concatenate([y, np.full(size, largest)])
        critic_loss, outputs, gradients = reference.squared_errors(
            self.critics, observation, action, goal
        )
        self.move_critics(gradients)
        return metrics | {
            "value/loss": value_loss,
            "value/v": v[:size].mean(),
            "value/expert_v": v[size:].mean(),
            "critic/loss": critic_loss,
            "critic/q": outputs[:, :size].mean(),
            "critic/expert_q": outputs[:, size:].mean(),
        }


CASES = {
    "their flags": {},
    "clipped": {"temperature": 0.4, "max_exponent": 0.5, "discount": 0.9},
    "Adroit and Kitchen": {
        "value_layer_norm": True,
        "dropout": 0.1,
        "temperature": 2.0,
    },
    "expectile, deterministic": {
        "value_loss": "expectile",
        "policy": "deterministic",
        "decay_steps": 3.0,
        "discount": 0.8,
    },
}

update = jax.jit(recoil.update)


@reference.cases(CASES, quick=2)
def test_updates_equal_the_authors(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(recoil, SPEC, config)
    batches = functools.partial(reference.transitions, size=10)
    value_learning.assert_updates_equal(update, state, config, Reference, batches=batches)


def test_defaults_are_the_flags_and_the_mujoco_config_of_the_authors() -> None:
    """train_offline_imitate.py's flags, configs/mujoco_config.py, learner_imitate.py's arguments,
    and reward_gap and target_Q_gap of critic_imitate.py.
    """
    config = recoil.Config()
    assert (config.actor_lr, config.value_lr, config.critic_lr) == (3e-4, 3e-4, 3e-4)
    assert (config.hidden, config.discount, config.target_rate) == ((256, 256), 0.99, 0.005)
    assert (config.batch_size, config.temperature, config.max_exponent) == (1024, 1.0, 7.0)
    assert (config.expectile, config.value_gap, config.inverse_temperature) == (0.7, 0.1, 3.0)
    assert (config.layer_norm, config.value_layer_norm, config.dropout) == (False, False, None)
    assert config.expert_reward == 2.0
    assert config.expert_reward / (1 - config.discount) == pytest.approx(200.0)


def test_the_largest_exponential_is_that_of_all_rows() -> None:
    """critic_imitate.py's rkl_loss_imitate: `max_z` before the mixture's half is taken."""
    q = jnp.repeat(jnp.array([1.0, 5.0]), 4)  # where V is 0
    of_v: Any = lambda observation: jnp.zeros((8, 1))  # noqa: E731
    loss, _ = recoil.value_loss(of_v, q, reference.transitions(0, 8), CONFIG)
    np.testing.assert_allclose(loss, (np.e - 2.0) * np.exp(-5.0), rtol=1e-5)


def test_the_expert_is_the_second_half_and_its_rewards_do_not_matter() -> None:
    batch = reference.transitions(0, 10)
    other = batch.replace(
        reward=batch.reward + 1.0, next_observation=batch.next_observation.at[5:].set(7.0)
    )
    state = reference.state(recoil, SPEC, CONFIG)
    results = [update(state, x, KEY, 0, CONFIG) for x in (batch, other)]
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.learn
def test_learns_from_an_expert_what_a_mixture_does_not_show(tmp_path: Path) -> None:
    """The expert earns -1.3. The authors' critics and V are not normalised, and learn less."""
    data, steps, returns = str(reach.demonstrations(tmp_path / "reach.npz")), 2_000, {}
    norms = {"layer_norm": True, "value_layer_norm": True}
    for agent, changes in {"bc": {}, "recoil": norms}.items():
        out = tmp_path / agent
        env, config = f"{reach.__file__}:Reach", {"batch_size": 128} | changes
        run.train(
            agent,
            env,
            steps,
            data=data,
            seeds=2,
            out=out,
            config=config,
            eval_every=steps,
            eval_episodes=40,
        )
        last = [line for line in records.read(out, "evaluations") if line["step"] == steps]
        returns[agent] = [np.mean(line["returns"]) for line in last]
    assert min(returns["recoil"]) > -4.0
    assert max(returns["bc"]) < -6.0


def test_data_without_the_expert_are_refused(tmp_path: Path) -> None:
    joined = reach.demonstrations(tmp_path / "joined.npz", 1, 2)
    with pytest.raises(
        ValueError, match=r"^--config\.expert-part is 2, and the data have the parts 0, 1\.$"
    ):
        run.train(
            "recoil", "none", 4, data=str(joined), out=tmp_path / "run", config={"expert_part": 2}
        )
    plain = str(reach.journeys(tmp_path / "plain.npz", 4))
    with pytest.raises(
        ValueError,
        match=r"^agent 'recoil' tells joined data sets apart by the signal 'part', and '.*",
    ):
        run.train("recoil", "none", 4, data=plain, out=tmp_path / "run")
