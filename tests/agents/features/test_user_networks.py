"""A user's own encoder stands before every network of every agent that has encoders."""

from __future__ import annotations

import dataclasses
import importlib

import jax
import pytest

from rljax import agent as contract
from rljax.learning import registry
from rljax.networks import Network
from rljax.system.user_files import FileClass
from tests.helpers import user_networks

ENCODER = FileClass(f"{user_networks.__file__}:Encoder")
AGENTS = [
    name
    for name in registry.names()
    if "encoder" in registry.load_agent(name).Config.__dataclass_fields__
]


@pytest.mark.parametrize("name", AGENTS)
def test_each_network_has_the_encoder(name: str) -> None:
    module = registry.load_agent(name)
    spec, config, _ = importlib.import_module(f"tests.agents.test_{name}").example()
    config = dataclasses.replace(config, encoder=ENCODER)
    contract.check(module, spec, config)
    state = jax.eval_shape(lambda key: module.init(key, spec, config), jax.random.key(0))
    networks = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Network))
    params = [network.params for network in networks if isinstance(network, Network)]
    assert params
    assert [x for x in params if "'encoder'" not in str(x)] == []
