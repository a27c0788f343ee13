"""The loop of a training."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from rljax.agents import iql
from rljax.learning.loop import Training, checkpoint_state
from rljax.learning.plan import Experiment
from rljax.learning.settings import Settings
from rljax.system import runtime
from tests.helpers.counting import recorded


def test_compilations_are_kept_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        jax.config.update(names[0], "already/chosen")
        runtime.persist_compilations()
        assert jax.config.values[names[0]] == "already/chosen"
        jax.config.update(names[0], None)
        runtime.persist_compilations()
        assert jax.config.values[names[0]] == str(tmp_path / "rljax/xla")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def offline(config: iql.Config) -> Training:
    asked = Settings("iql", "none", 4, data="recorded.npz")
    return Training(Experiment(asked, iql, config, recorded()))


def test_a_checkpoint_depends_on_what_changes_online() -> None:
    """Not on floats, which change nothing about the arrays."""
    online = {"actor_lr": 1e-4, "batch_size": 16, "num_updates": 2, "replay_size": 300}
    asked = Settings("iql", "rljax/Pendulum", 4, data="recorded.npz", then_online=4, online=online)
    config = iql.Config(hidden=(8,), batch_size=32, decay_steps=None, replay_size=300)
    training = Training(Experiment(asked, iql, config, recorded()))
    structure = checkpoint_state.structure(training)
    found = {name: x for name, x in structure.items() if name.startswith("online.")}
    assert found == {"online.batch_size": 16, "online.num_updates": 2}
    assert structure["config.batch_size"] == 32
    assert "config.actor_lr" not in structure
    assert training.config.actor_lr == 3e-4, "of the first stage"
    assert (training.total, training.stage) == (8, training.stages[0])
    training.close()
    plain = offline(config)
    assert not [name for name in checkpoint_state.structure(plain) if name.startswith("online.")]
    plain.close()


def test_a_longer_run_stretches_what_follows_its_length() -> None:
    for value, expected, said in (
        (1.0, 8, "decay_steps 4 -> 8"),
        (4.0, 4, "falls to 0 at step 4"),
        (None, None, ""),
    ):
        config = iql.Config(hidden=(8,), batch_size=8, decay_steps=value)
        training = offline(config)
        assert training.warnings == []
        training.extend(8)
        assert training.driver.hyper.config.decay_steps == expected  # pyright: ignore[reportAttributeAccessIssue]
        assert training.stacked.decay_steps == expected
        assert [said in warning for warning in training.warnings] == [True] * bool(said)
        training.close()
