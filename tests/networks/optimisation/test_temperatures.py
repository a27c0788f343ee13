"""Temperatures: their loss by hand, and where they begin and stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agents import h2o, sac
from rljax.networks.optimisation import temperatures
from rljax.networks.optimisation.temperatures import TemperatureSettings


def test_begins_at_the_initial_temperature() -> None:
    log_temperature = temperatures.create(TemperatureSettings(init_temperature=0.3)).parameters
    np.testing.assert_allclose(log_temperature, np.log(0.3), rtol=1e-6)


@pytest.mark.parametrize(("form", "factor"), [("log_alpha", np.log(0.5)), ("alpha", 0.5)])
def test_loss_by_hand(form: Any, factor: float) -> None:
    settings = TemperatureSettings(temperature_loss=form)
    loss = jax.value_and_grad(temperatures.loss, has_aux=True)
    log_temperature = jnp.float32(np.log(0.5))
    (value, metrics), _ = loss(log_temperature, np.float32(1.5), 2, settings)
    np.testing.assert_allclose(value, factor * (1.5 - -2.0), rtol=1e-6)  # the target is -A = -2
    np.testing.assert_allclose(metrics["temperature/value"], 0.5, rtol=1e-6)
    slopes = [loss(log_temperature, np.float32(x), 2, settings)[1] for x in (-2.5, -1.5)]
    assert slopes[0] < 0.0 < slopes[1], "too little entropy raises alpha"


@pytest.mark.parametrize(("changes", "target"), [({}, -3.0), ({"target_entropy_share": 0.5}, -1.5)])
def test_target_is_a_share_of_the_actions_size(changes: dict[str, Any], target: float) -> None:
    settings = TemperatureSettings(temperature_loss="alpha", **changes)
    for other, expected in ((settings, target), (settings._replace(target_entropy=0.25), 0.25)):
        loss, _ = temperatures.loss(jnp.zeros(()), jnp.ones(()), 3, other)
        np.testing.assert_allclose(loss, 1.0 - expected)


def test_targets_of_a_softmax_count_the_allowed_actions() -> None:
    """The published target log(A / 2), A of each state."""
    mask = jnp.array([[True] * 4, [True, True, False, False], [False, True, False, False]])
    q = jnp.where(mask, 0.0, -1e9)
    entropies = [np.log(4.0), np.log(2.0), 0.0]
    targets = [np.log(4 / 2), np.log(2 / 2), np.log(1 / 2)]
    zero = jnp.zeros(())
    loss, metrics = temperatures.softmax_loss(zero, q, mask, None)
    expected = np.square(np.subtract(entropies, targets)).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["actor/entropy"], np.mean(entropies), rtol=1e-5)
    for arguments, target in (((q[:1], None, None), np.log(2.0)), ((q[:1], mask[:1], 0.5), 0.5)):
        loss, _ = temperatures.softmax_loss(zero, *arguments)
        np.testing.assert_allclose(loss, (np.log(4.0) - target) ** 2, rtol=1e-5)


@pytest.mark.parametrize("learns", [True, False])
def test_moves_only_where_it_is_learnt(learns: bool) -> None:
    settings = TemperatureSettings(temperature_lr=0.1, learn_temperature=learns)
    old = temperatures.create(settings)
    new, metrics = temperatures.step(old, jnp.zeros(()), 2, settings)
    assert (new.parameters != old.parameters) == learns
    assert metrics.keys() == {"temperature/loss", "temperature/value"}


def test_settings_are_those_of_a_config() -> None:
    settings = TemperatureSettings.of(sac.Config(target_entropy=-0.7, temperature_loss="alpha"))
    assert settings == TemperatureSettings(target_entropy=-0.7, temperature_loss="alpha")
    frozen = TemperatureSettings.of(h2o.Config(), learn_temperature=False)
    assert frozen == TemperatureSettings(learn_temperature=False)
