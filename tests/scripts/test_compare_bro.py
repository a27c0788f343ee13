"""The comparison of BRO with its authors' learner: their names and batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import bro
from scripts.updates import compare_bro

SPEC = EnvSpec("test/Example-v0", (compare_bro.OBSERVATION,), compare_bro.ACTION)
CONFIG = bro.Config(hidden=(8,), critic_hidden=(6, 6), quantiles=4)


def bronet(params: Any, blocks: int) -> dict[str, Any]:
    """A torso of ours by their names, which count layers."""
    order = ["input", *(f"{i}_{layer}" for i in range(blocks) for layer in range(2))]
    names = {"Dense": "hidden", "LayerNorm": "norm"}
    return {
        f"{theirs}_{i}": params["torso"][f"{ours}_{name}"]
        for theirs, ours in names.items()
        for i, name in enumerate(order)
    }


def theirs(state: bro.State) -> dict[str, Any]:
    """Networks of ours by their names."""
    actor, optimist, critic = (
        getattr(state, name).parameters.params for name in ("actor", "optimist", "critic")
    )
    halves = {name: jnp.split(x, 2, axis=-1) for name, x in actor["output"].items()}
    heads = {f"Dense_{i}": {name: x[i] for name, x in halves.items()} for i in range(2)}
    members = [jax.tree.map(lambda x, c=c: x[c], critic["member"]) for c in range(2)]
    critics = {
        f"Critic_{c}": {"BroNet_0": {**bronet(member, 2), "Dense_5": member["output"]}}
        for c, member in enumerate(members)
    }
    return {
        "actor": {"BroNet_0": bronet(actor, 1), **heads},
        "optimist": {"BroNet_0": bronet(optimist, 1), "Dense_0": optimist["output"]},
        "critic": critics,
    }


@pytest.mark.slow
def test_their_numbers_come_under_our_names() -> None:
    one, other = (bro.init(jax.random.key(seed), SPEC, CONFIG) for seed in range(2))
    for name, tree in theirs(one).items():
        copy = compare_bro.like(getattr(other, name).parameters, tree)
        source = getattr(one, name).parameters
        jax.tree.map(np.testing.assert_array_equal, copy.params, source.params)


def test_batches_have_their_names_and_axes() -> None:
    batch = compare_bro.batches(1)[0]
    rows = compare_bro.theirs(batch)
    assert rows.observations.shape == (1, 1, compare_bro.BATCH, compare_bro.OBSERVATION)
    np.testing.assert_array_equal(rows.masks[0, 0], 1.0 - np.asarray(batch.terminated))
