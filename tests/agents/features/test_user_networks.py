"""A user's own encoder stands before every network of every agent that has encoders, and a torso in
those that have torsos.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rljax import agent as contract
from rljax.learning import registry
from rljax.networks import Network
from rljax.system.user_files import FileClass
from tests.helpers import user_networks


def agents_with(field: str) -> list[str]:
    configs = {name: registry.load_agent(name).Config for name in registry.names()}
    return [name for name, config in configs.items() if field in config.__dataclass_fields__]


def traced(name: str, part: str) -> list[Any]:
    """The parameters of an agent's networks with an own `part`; acts and updates are traced."""
    module = registry.load_agent(name)
    spec, config, batch = importlib.import_module(f"tests.agents.test_{name}").example()
    own = FileClass(f"{user_networks.__file__}:{part.capitalize()}")
    config = dataclasses.replace(config, **{part: own})
    contract.check(module, spec, config)
    key, step = jax.random.key(0), jnp.zeros((), jnp.int32)
    state = jax.eval_shape(lambda key: module.init(key, spec, config), key)
    updated = jax.eval_shape(module.update, state, batch, key, step, config)[0]
    assert jax.tree.structure(updated) == jax.tree.structure(state)

    def act(state: Any) -> Any:
        memory = contract.first_memory(module, spec, config, 3)
        return contract.act(module, state, spec.example(3), key, config, False, memory)[0]

    jax.eval_shape(act, state)
    networks = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Network))
    return [network.params for network in networks if isinstance(network, Network)]


SEE_EMBEDDINGS = ("td7",)  # whose second encoder has the first one's output


@pytest.mark.parametrize("name", agents_with("encoder"))
def test_each_network_has_the_encoder(name: str) -> None:
    params = traced(name, "encoder")
    without = [x for x in params if "'encoder'" not in str(x)]
    assert len(without) < len(params)
    assert without == [] or name in SEE_EMBEDDINGS


@pytest.mark.parametrize("name", agents_with("torso"))
def test_a_torso_is_a_part_of_the_agents_networks(name: str) -> None:
    params = traced(name, "torso")
    assert params
    assert any("'module'" in str(x) for x in params)
