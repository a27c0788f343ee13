"""The comparison of ReinFlow with its authors' code: names, rows and noise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agents import reinflow
from scripts.updates import compare_reinflow
from scripts.updates.compare_reinflow import CONFIG, ENVS, ITERATIONS, SPEC, STEPS


class Tensor(SimpleNamespace):
    """As much of a tensor as is needed."""

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self.values


def theirs(params: Any) -> SimpleNamespace:
    """A network of ours as one of their modules."""
    names = [name for name in params if name != "output"]
    modules = []
    for name in [*names, "output"]:
        weight, bias = np.asarray(params[name]["kernel"]).T, np.asarray(params[name]["bias"])
        linear = SimpleNamespace(weight=Tensor(values=weight), bias=Tensor(values=bias))
        modules.append(SimpleNamespace(linear_1=linear))
    return SimpleNamespace(moduleList=modules)


def test_their_parameters_come_under_our_names() -> None:
    state = reinflow.init(jax.random.key(0), SPEC, CONFIG)
    ours = compare_reinflow.of_ours(state)
    first = ours["noise"]["hidden_0"]  # theirs has the time before the state
    kernel = np.roll(np.asarray(first["kernel"]), 1, axis=0)
    noise = {**ours["noise"], "hidden_0": {**first, "kernel": kernel}}
    actor = SimpleNamespace(
        policy=SimpleNamespace(mlp_mean=theirs(ours["flow"]["body"])),
        explore_noise_net=SimpleNamespace(mlp_logvar=theirs(noise)),
    )
    critic = SimpleNamespace(Q1=theirs(ours["critic"]))
    peer = compare_reinflow.of_peer(SimpleNamespace(actor_ft=actor, critic=critic))
    jax.tree.map(np.testing.assert_array_equal, peer, dict(ours))
    fresh = reinflow.init(jax.random.key(1), SPEC, CONFIG)
    again = compare_reinflow.of_ours(compare_reinflow.with_parameters(fresh, peer))
    jax.tree.map(np.testing.assert_array_equal, again, dict(ours))


def test_rows_end_some_episodes_and_each_order_holds_all() -> None:
    rows = compare_reinflow.rows_of(0, CONFIG)
    assert 0 < rows["terminated"].sum() < rows["terminated"].size
    assert rows["observation"].shape[:2] == (STEPS + 1, ENVS)
    assert [sorted(order) for order in rows["orders"]] == [list(range(STEPS * ENVS))] * 2


def test_cases_have_shares_of_the_run_in_steps() -> None:
    for changes in compare_reinflow.CASES.values():
        config = compare_reinflow.config_of(changes)
        assert config.noise_steps == ITERATIONS * STEPS * ENVS
        assert (ITERATIONS * config.noise_hold / config.noise_steps) % 1 == pytest.approx(0)


def test_a_folder_without_their_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        compare_reinflow.compared(tmp_path, 1, {})
