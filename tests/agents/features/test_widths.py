"""Widths of critics and value networks, beside those of other networks."""

from __future__ import annotations

import dataclasses
import importlib

import jax
import pytest

from rljax import agent as contract
from rljax.learning import registry

WIDTH = 37
AGENTS = [
    name
    for name in registry.names()
    if {"hidden", "critic_hidden"} <= registry.load_agent(name).Config.__dataclass_fields__.keys()
]


@pytest.mark.parametrize("name", AGENTS)
def test_critics_and_values_alone_have_their_widths(name: str) -> None:
    module = registry.load_agent(name)
    spec, config, _ = importlib.import_module(f"tests.agents.test_{name}").example()
    config = dataclasses.replace(config, critic_hidden=(WIDTH,))
    contract.check(module, spec, config)
    state = jax.eval_shape(lambda key: module.init(key, spec, config), jax.random.key(0))
    parts = [state]
    if hasattr(state, "networks"):  # that one optimiser moves
        parts = [state.replace(networks=None), state.networks.parameters]
    for part in parts:
        leaves = jax.tree.leaves_with_path(part)
        wide = {str(place[0]) for place, leaf in leaves if WIDTH in leaf.shape}
        names = [field.name for field in dataclasses.fields(part)]
        networks = {f".{name}" for name in names if getattr(part, name) is not None}
        # A representation of goals, which values alone teach; QRL's distance with its dynamics.
        kinds = ("critic", "value", "representation", *(["model"] if name == "qrl" else []))
        assert wide == {x for x in networks if any(kind in x for kind in kinds)}
