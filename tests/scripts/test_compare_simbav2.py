"""The comparison of SimbaV2 with its authors' code: their names, and times in turns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import simbav2
from scripts.updates import compare_simbav2, shared, stand_ins

SPEC = EnvSpec("test/Example-v0", (compare_simbav2.OBSERVATION,), compare_simbav2.ACTION)


def theirs(params: Any, blocks: int) -> dict[str, Any]:
    """A network of ours by their names."""

    def dense(name: str) -> dict[str, Any]:
        return {"hyper_dense": params[name]}

    def scaler(name: str) -> dict[str, Any]:
        return {"scaler": params[name]["factors"]}

    layers = {}
    for i in range(blocks):
        block = {"w1": dense(f"inner_{i}"), "w2": dense(f"outer_{i}")}
        block["scaler"] = scaler(f"inner_{i}_scaler")
        layers[f"layers_{i}"] = {"mlp": block, "alpha_scaler": scaler(f"step_{i}")}
    heads = {"mean_": "mean_bias", "std_": "std_bias"}
    heads = heads if "head_1" in params else {"": "value_bias"}
    predictor = {}
    for i, (prefix, bias) in enumerate(heads.items()):
        predictor |= {
            f"{prefix}w1": dense(f"head_{i}"),
            f"{prefix}w2": dense(f"output_{i}"),
            f"{prefix}scaler": scaler(f"head_{i}_scaler"),
            bias: params[f"bias_{i}"],
        }
    embedder = {"w": dense("input"), "scaler": scaler("input_scaler")}
    return {"embedder": embedder, "encoder": layers, "predictor": predictor}


@pytest.mark.slow
def test_their_numbers_come_under_our_names() -> None:
    config = compare_simbav2.CONFIG
    one, other = (simbav2.init(jax.random.key(seed), SPEC, config) for seed in range(2))
    actor, critic = (getattr(one, name).parameters for name in ("actor", "critic"))
    trees = {
        "actor": theirs(actor.params, blocks=1),
        "critic": {"VmapSimbaV2Critic_0": theirs(critic.params["member"], blocks=2)},
    }
    for name, tree in trees.items():
        copy = compare_simbav2.like(getattr(other, name).parameters, tree)
        source = getattr(one, name).parameters
        jax.tree.map(np.testing.assert_array_equal, copy.params, source.params)


def test_batches_have_their_names() -> None:
    batch = compare_simbav2.batches(1)[0]
    fields = compare_simbav2.theirs(batch)
    np.testing.assert_array_equal(fields["terminated"], batch.terminated)
    assert fields["terminated"].dtype == fields["reward"].dtype


def test_functions_are_timed_in_turns() -> None:
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = shared.seconds_in_turns(functions, rounds=2, calls=1)
    assert calls == ["a", "b"] * 3
    assert seconds.keys() == {"a", "b"}


def test_arithmetic_is_counted() -> None:
    def update(state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        return state @ batch, {}

    matrix: Any = jnp.eye(64)
    figures = shared.beside(lambda: None, update, matrix, matrix, 1.0, width=8)
    assert figures["GFLOP of an update"] == 2 * 64**3 / 1e9
    seconds = figures["seconds of an update"]
    assert figures["ratio"] == seconds["theirs"] / seconds["ours"]
    np.testing.assert_allclose(figures["GFLOP/s of an update"], 2e-9 * 64**3 / seconds["ours"])
    assert figures["GFLOP/s of a product"] > 0


def test_actions_of_the_stand_in_have_the_probability_of_a_squashed_gaussian() -> None:
    substrates = stand_ins.probability()["tensorflow_probability.substrates"]
    distributions, tanh = substrates.jax.distributions, substrates.jax.bijectors.Tanh()
    mean, std = np.array([0.3, -0.2]), np.array([0.5, 2.0])
    gaussian = distributions.MultivariateNormalDiag(loc=mean, scale_diag=std)
    policy = distributions.TransformedDistribution(distribution=gaussian, bijector=tanh)
    action = policy.sample(seed=jax.random.key(0))
    z = (np.arctanh(action) - mean) / std
    expected = -0.5 * z**2 - np.log(std) - 0.5 * np.log(2.0 * np.pi) - np.log(1.0 - action**2)
    np.testing.assert_allclose(policy.log_prob(action), expected.sum(), rtol=1e-4)
