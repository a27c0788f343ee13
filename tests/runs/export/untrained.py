"""Policies with random numbers in place of learnt ones."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import buffers
from rljax.agent import EnvSpec
from rljax.envs.host.spaces import Spaces
from rljax.envs.timed import spec_with_time
from rljax.learning import agent_state, configuration, registry
from rljax.learning.agent_state import AgentState
from rljax.learning.settings import Settings
from rljax.networks.inputs import Raw
from rljax.runs.policies.policy import Policies

SMALL = {
    "hidden": (8, 8),
    "actor_hidden": (8, 8),
    "critic_hidden": (8, 8),
    "memory_hidden": (6,),
    "memory_length": 4,
    "embedding": 4,
    "num_candidates": 4,
}


def policies(agent: str, spec: EnvSpec, spaces: Spaces | None = None, **changes: Any) -> Policies:
    """Those of one learner, small, in an environment inside the program or with `spaces`."""
    module: Any = registry.load_agent(agent)
    fields = module.Config.__dataclass_fields__
    sizes = {name: value for name, value in SMALL.items() if name in fields}
    config = configuration.stack(module.Config(**(sizes | changes)), 1)
    inputs = module.experience(config).inputs

    def create(key: Any, config: Any) -> Any:
        return agent_state.create(module, key, spec, config, inputs)

    keys = jax.random.split(jax.random.key(0), 1)
    state = jax.tree.map(random_numbers, jax.eval_shape(jax.vmap(create), keys, config))
    description = None if spaces is None else json.loads(json.dumps(spaces.described()))
    env = "rljax/Pendulum" if spaces is None else spec.name
    settings = Settings(agent, env)
    return Policies(settings, spec, module, config, state, 0, None, description)


def random_numbers(leaf: Any) -> Any:
    """In place of a parameter; statistics and deviations are positive."""
    if leaf.dtype != np.float32:
        return np.zeros(leaf.shape, leaf.dtype)
    generator = np.random.default_rng(leaf.shape)
    if leaf.ndim > 2:  # the first axis is the learner's
        inputs = np.prod(leaf.shape[-4:-1] if leaf.ndim > 4 else leaf.shape[-2])
        return (generator.normal(size=leaf.shape) / np.sqrt(inputs)).astype(np.float32)
    return generator.uniform(0.05, 0.15, leaf.shape).astype(np.float32)


def hosted(agent: str, observation: Any, action: Any, masked: bool = False, **changes: Any) -> Any:
    """The same in an environment with Gymnasium's spaces."""
    spaces = Spaces(observation, action, "Example-v0", masked)
    spec = spaces.spec(100)
    module: Any = registry.load_agent(agent)
    if "time" in module.experience(module.Config()).observes:
        spec = spec_with_time(spec)
    return policies(agent, spec, spaces, **changes)


class MeanFollower:
    """An agent without networks: its actions follow the means of observations."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def experience(self, config: Any) -> buffers.Stream:
        return buffers.Stream(time_feature=False)

    def act(self, state: Any, observation: Any, key: Any, config: Any, explore: bool) -> Any:
        """Each dimension and each choice has another multiple of their sum."""
        spec, leaves = self.spec, jax.tree.leaves(observation)
        rows = [x.reshape(x.shape[0], -1) / (255 if x.dtype == np.uint8 else 1) for x in leaves]
        means = [jnp.mean(x, axis=1) for x in rows]
        size = spec.numbers + max(1, len(spec.choices))
        number = jnp.sin(sum(means)[:, None] * jnp.arange(1.0, size + 1.0))
        choices = (number[:, spec.numbers :] > 0).astype(jnp.int32)
        if spec.discrete:
            return choices if spec.choices else choices[:, 0], {}
        number = number[:, : spec.numbers]
        return jnp.concatenate([number, choices], axis=1) if spec.choices else number, {}


def of_means(observation: Any, action: Any, agent: type = MeanFollower) -> Policies:
    """Policies of `MeanFollower`, with Gymnasium's spaces."""
    spaces = Spaces(observation, action, "Example-v0")
    spec, description = spaces.spec(100), json.loads(json.dumps(spaces.described()))
    settings, state = Settings("means", "Example-v0"), AgentState({}, None, Raw())
    return Policies(settings, spec, agent(spec), {}, state, 0, None, description)
