"""Correction of dynamics, against a right answer that is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax import cli, datasets
from rljax.agent import Transition
from rljax.datasets.tools import dynamics_correction, regression

SETTINGS = regression.RegressionSettings(hidden=(64, 64), updates=2_000)


def moved(rows: int, gain: float, seed: int) -> datasets.OfflineDataset:
    """s' = s + gain a and r = s_0 + a_0; each tenth step ends in a fall."""
    generator = np.random.default_rng(seed)
    observation, action = generator.uniform(-1, 1, (2, rows, 2)).astype(np.float32)
    reward, ends = observation[:, 0] + action[:, 0], np.arange(rows) % 10 == 9
    transitions = Transition(
        observation, action, reward, ends, np.zeros(rows, bool), observation + gain * action
    )
    return datasets.OfflineDataset(
        f"gain {gain}", transitions, "Mover-v0", None, (-np.ones(2), np.ones(2)), {"reader": "test"}
    )


@dataclasses.dataclass
class Known:
    function: Any
    outputs: Any = None

    def __call__(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.1, 10.0])
def test_a_row_is_corrected_as_the_equations_say(limit: float) -> None:
    generator = np.random.default_rng(0)
    observation, action, change = generator.uniform(-1, 1, (3, 2))
    matrix, hessian = generator.normal(size=(4, 2)), np.array([0.7, -1.3])
    scale = regression.Scale(jnp.zeros(2), jnp.array([0.5, 2.0]))
    inverse = Known(lambda x: x @ matrix)
    reward = Known(lambda x: (jnp.square(x[2:]) @ hessian + x[0])[None])
    forward = Known(lambda x: 0.3 * x[2:], scale)
    found = dynamics_correction._row(
        (inverse, reward, forward),
        limit,
        observation,
        jnp.asarray(action),
        2.0,
        observation + change,
    )
    other = np.clip(np.concatenate([observation, change]) @ matrix, -1, 1)
    gain = (2 * hessian * action) @ (other - action)
    np.testing.assert_allclose(found[0], other, rtol=1e-5)
    np.testing.assert_allclose(found[1], 2.0 + np.clip(gain, -limit, limit), rtol=1e-5)
    distances = [(((0.3 * a - change) / [0.5, 2.0]) ** 2).sum() for a in (other, action)]
    assert bool(found[2]) == (distances[0] < distances[1])


@pytest.mark.learn
def test_actions_become_those_of_the_target() -> None:
    """With half the gain, the same step takes twice the action, within the bounds."""
    source, target = moved(600, 0.2, 1), moved(2_000, 0.1, 2)
    made = dynamics_correction.correct(source, target, "corrected", SETTINGS, reward_limit=2.0)
    before, after = source.transitions, made.transitions
    falls, within = before.terminated, np.abs(before.action).max(axis=1) < 0.45
    np.testing.assert_array_equal(after.action[falls], before.action[falls])
    assert made.env == target.env
    chosen = within & ~falls
    assert np.abs(after.action - 2 * before.action)[chosen].max() < 0.1
    np.testing.assert_allclose(
        after.reward[chosen] - before.reward[chosen], before.action[chosen, 0], atol=0.1
    )
    beyond = (2 * np.abs(before.action).min(axis=1) > 1) & ~falls
    np.testing.assert_allclose(after.action[beyond], np.sign(before.action[beyond]), atol=0.1)
    note = made.provenance["correction"]
    assert note["corrected"] > 0.8
    assert max(note["errors"].values()) < 0.1
    for name in ("observation", "next_observation", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@pytest.mark.slow
def test_errors_are_of_rows_that_were_not_learnt_from() -> None:
    """The error of noise is that of the mean."""
    generator = np.random.default_rng(0)
    inputs, outputs = generator.normal(size=(2, 400, 3))
    assert regression.fit(
        inputs, outputs, regression.RegressionSettings(hidden=(32,), updates=400), 0
    ).error == pytest.approx(1.0, abs=0.2)
    with pytest.raises(ValueError, match="a model needs 20 rows"):
        regression.fit(inputs[:10], outputs[:10], SETTINGS, 0)


@pytest.mark.slow
def test_data_of_other_spaces_are_refused(tmp_path: Path, capsys: Any) -> None:
    source, target = moved(100, 0.2, 1), moved(100, 0.1, 2)
    wide = dataclasses.replace(target, action_bounds=(-2 * np.ones(2), 2 * np.ones(2)))
    with pytest.raises(ValueError, match="differ: their actions lie in"):
        dynamics_correction.correct(source, wide, "made")
    with pytest.raises(ValueError, match="--reward-limit is -1"):
        dynamics_correction.correct(source, target, "made", reward_limit=-1)
    rows = target.transitions.replace(action=np.zeros(100, np.int32))
    with pytest.raises(ValueError, match="actions are continuous"):
        dynamics_correction.correct(source, dataclasses.replace(target, transitions=rows), "made")
    paths = [
        str(datasets.write(part, tmp_path / f"{i}.npz")) for i, part in enumerate((source, target))
    ]
    out = str(tmp_path / "made.npz")
    cli.main(["data", "correct", *paths, out, "--updates", "40", "--hidden", "8"])
    assert "transitions corrected" in capsys.readouterr().out
    assert datasets.load(out).num == 100
    with pytest.raises(SystemExit):
        cli.main(["data", "correct", *paths, str(tmp_path / "other.npz"), "--updates", "0"])
    assert "--updates is 0" in capsys.readouterr().err
