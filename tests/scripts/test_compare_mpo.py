"""MPO beside Acme's learner: its names of parameters, batches and empty packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import mpo
from scripts.updates import compare_mpo

SPEC = EnvSpec("test/Example-v0", (compare_mpo.OBSERVATION,), compare_mpo.ACTION)
TORSO = "feedforward_mlp_torso/~/"


def theirs(params: Any, heads: list[str]) -> dict[str, Any]:
    """A network of ours by Haiku's names."""
    names = {f"hidden_{i + 1}": f"{TORSO}mlp/~/linear_{i}" for i in range(2)}
    names["hidden_0"] = f"{TORSO}linear"
    norm = {"scale": params["norm_0"]["scale"], "offset": params["norm_0"]["bias"]}
    tree = {f"{TORSO}layer_norm": norm}
    for ours, name in names.items():
        tree[name] = {"w": params[f"{ours}_kernel"], "b": params[f"{ours}_bias"]}
    parts = [np.split(params[f"output_{x}"], len(heads), axis=-1) for x in ("kernel", "bias")]
    return tree | {name: {"w": parts[0][i], "b": parts[1][i]} for i, name in enumerate(heads)}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("part", "heads"),
    [
        ("actor", ["MultivariateNormalDiagHead/~/linear", "MultivariateNormalDiagHead/~/linear_1"]),
        ("critic", ["linear"]),
        ("critic", ["categorical_critic_head/~/DiscreteValuedHead/linear"]),
    ],
)
def test_their_parameters_come_under_our_names(part: str, heads: list[str]) -> None:
    state = mpo.init(jax.random.key(0), SPEC, compare_mpo.config_of({}))
    params = getattr(state, part).parameters.params
    params = params if part == "actor" else jax.tree.map(lambda x: x[0], params["members"])
    params = jax.tree.map(np.asarray, params)
    jax.tree.map(np.testing.assert_array_equal, compare_mpo.layers(theirs(params, heads)), params)


def test_batches_have_ends_and_several_steps() -> None:
    first, second = compare_mpo.batches(2)
    assert 0 < np.sum(first.terminated) < compare_mpo.BATCH
    assert len(set(np.asarray(first.extras["discount"]).tolist())) == 4
    assert not np.array_equal(first.reward, second.reward)


def test_missing_packages_are_empty(tmp_path: Path) -> None:
    finder = compare_mpo.Finder()
    spec = finder.find_spec("acme.adders.reverb")
    assert finder.create_module(spec).anything is not None
    assert finder.find_spec("acme.specs") is None
