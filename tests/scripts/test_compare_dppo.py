"""The comparison of DPPO with its authors' code: names, rows and the environment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agents import dppo
from scripts.updates import compare_dppo
from scripts.updates.compare_dppo import CONFIG, ENVS, SPEC, STEPS, K
from tests.scripts.test_compare_reinflow import Tensor


def linear(params: Any) -> list[SimpleNamespace]:
    """Layers of ours as theirs."""
    names = [name for name in params if name != "output"]
    result = []
    for name in [*names, "output"]:
        weight, bias = np.asarray(params[name]["kernel"]).T, np.asarray(params[name]["bias"])
        result.append(SimpleNamespace(weight=Tensor(values=weight), bias=Tensor(values=bias)))
    return result


def mlp(params: Any) -> SimpleNamespace:
    return SimpleNamespace(moduleList=[SimpleNamespace(linear_1=x) for x in linear(params)])


def denoiser(params: Any) -> SimpleNamespace:
    waves, activation = SimpleNamespace(), SimpleNamespace()
    first, last = linear(params["time_0"])
    return SimpleNamespace(
        time_embedding=[waves, first, activation, last], mlp_mean=mlp(params["body"])
    )


def test_their_parameters_come_under_our_names() -> None:
    state = dppo.init(jax.random.key(0), SPEC, CONFIG)
    ours = compare_dppo.of_ours(state)
    model = SimpleNamespace(
        actor_ft=denoiser(ours["actor"]),
        actor=denoiser(ours["base"]),
        critic=SimpleNamespace(Q1=mlp(ours["critic"])),
    )
    peer = compare_dppo.of_peer(model)
    jax.tree.map(np.testing.assert_array_equal, peer, dict(ours))
    fresh = dppo.init(jax.random.key(1), SPEC, CONFIG)
    again = compare_dppo.of_ours(compare_dppo.with_parameters(fresh, peer))
    jax.tree.map(np.testing.assert_array_equal, again, dict(ours))


def test_rows_end_some_episodes_and_each_order_holds_all_steps() -> None:
    rows = compare_dppo.rows_of(0, CONFIG)
    assert 0 < rows["terminated"].sum() < rows["terminated"].size
    assert rows["observation"].shape[:2] == (STEPS + 1, ENVS)
    assert [sorted(order) for order in rows["orders"]] == [list(range(STEPS * ENVS * K))] * 2


def test_their_environment_answers_with_the_rows() -> None:
    rows = compare_dppo.rows_of(0, CONFIG)
    environment = compare_dppo.Environment(rows)
    np.testing.assert_array_equal(environment.reset()["state"][:, 0], rows["observation"][0])
    for t in range(STEPS):
        observation, reward, terminated, truncated, _ = environment.step(None)
        np.testing.assert_array_equal(observation["state"][:, 0], rows["observation"][t + 1])
        np.testing.assert_array_equal(reward, rows["reward"][t])
        np.testing.assert_array_equal(terminated, rows["terminated"][t])
        assert not truncated.any()


def test_a_folder_without_their_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        compare_dppo.compared(tmp_path, 1, {})
