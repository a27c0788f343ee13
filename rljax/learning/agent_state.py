"""An agent's State with the statistics that normalise its observations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import struct

from rljax.agent import Array, Base, EnvSpec, Metrics, Step, Transition, act_beside, choose
from rljax.learning import returns
from rljax.networks.inputs import Raw
from rljax.networks.optimisation.trained import Trained, parameters_of

STATISTICS = "statistics"  # the part that normalises observations


class AgentState(struct.PyTreeNode):
    """Everything that one agent has learnt."""

    state: Any  # the agent's own State
    statistics: Any  # None where observations are not normalised
    inputs: Raw = struct.field(pytree_node=False)  # how they are normalised
    # another run's policy, while the agent acts or learns; neither learnt nor saved
    base: Base | None = None

    def see(self, observation: Any) -> Any:
        """Observations [..., O...] as the agent sees them."""
        return self.inputs(self.statistics, observation)


def create(agent: Any, key: Array, spec: EnvSpec, config: Any, inputs: Raw) -> AgentState:
    """A fresh agent.

    `inputs` is that of the agent's own `experience`, also online after a data set.
    """
    return AgentState(agent.init(key, spec, config), inputs.create(spec), inputs)


def _beside_base(agent: Any, state: AgentState, config: Any) -> Any:
    """The agent's own State, which sees the base, if any."""
    return state.state if state.base is None else agent.use_base(state.state, state.base, config)


def _learnt(agent: Any, state: AgentState, inner: Any, config: Any) -> AgentState:
    """The agent with another State of its own, which no longer sees the base."""
    return state.replace(state=inner if state.base is None else agent.use_base(inner, None, config))


def beside_base(agent: Any, change: Callable[..., Any]) -> Callable[..., Any]:
    """`change`, a function of this module that returns a changed agent first, with a base as its
    last argument, which is not in what it returns.
    """

    def changed(state: AgentState, *arguments: Any) -> Any:
        *others, base = arguments
        result = change(agent, state.replace(base=base), *others)
        if isinstance(result, AgentState):
            return result.replace(base=None)
        after, metrics = result
        return after.replace(base=None), metrics

    return changed


def act(
    agent: Any,
    state: AgentState,
    observation: Any,
    key: Array,
    config: Any,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """`action`, `extras` and the next memory for observations [..., O...]."""
    observed = (observation, state.see(observation))
    arguments = (observed, key, config, explore, memory)
    return act_beside(agent, state.state, state.base, *arguments, _own_act)


def _own_act(
    agent: Any, state: Any, observation: Any, key: Array, config: Any, explore: bool, memory: Any
) -> tuple[Array, dict, Any]:
    """The `act` of any agent, with the errors of `returns`."""
    arguments = (state, observation, key, config, explore)
    if hasattr(agent, "remember"):
        returned = agent.act(*arguments, memory)
        return returns.require_parts(agent, "act", returned, "action", "extras", "memory")
    returned = agent.act(*arguments)
    return *returns.require_parts(agent, "act", returned, "action", "extras"), None


def value(agent: Any, state: AgentState, observation: Any, action: Array, config: Any) -> Array:
    """The critics' values [...] of actions [..., A] for observations [..., O...]."""
    inner = _beside_base(agent, state, config)
    return agent.value(inner, state.see(observation), action, config)


def update(
    agent: Any, state: AgentState, batch: Transition, key: Array, step: Array, config: Any
) -> tuple[AgentState, Metrics]:
    """One update of the agent on a batch as it was stored."""
    batch, statistics = state.inputs.batch(state.statistics, batch)
    returned = agent.update(_beside_base(agent, state, config), batch, key, step, config)
    inner, metrics = returns.require_parts(agent, "update", returned, "State", "metrics")
    return _learnt(agent, state.replace(statistics=statistics), inner, config), metrics


def perceives(agent: Any, inputs: Raw) -> bool:
    """Whether `perceive` changes anything."""
    return inputs.perceives or hasattr(agent, "perceive")


def perceive(
    agent: Any, state: AgentState, observation: Any, first: Array, config: Any
) -> AgentState:
    """Count observations [E, O...] before acting on them; `first` [E] begin an episode."""
    statistics = state.inputs.perceive(state.statistics, observation, first)
    state = state.replace(statistics=statistics)
    if not hasattr(agent, "perceive"):
        return state
    seen = state.see(observation)
    inner = agent.perceive(_beside_base(agent, state, config), seen, first, config)
    return _learnt(agent, state, inner, config)


def reviews(agent: Any) -> bool:
    """Whether `review` changes anything."""
    return hasattr(agent, "review")


def reviewed(agent: Any, state: AgentState, outcome: Step, time: Array, config: Any) -> AgentState:
    """Show a step [E, ...] in which an episode has ended."""
    inner = agent.review(_beside_base(agent, state, config), outcome, time, config)
    return _learnt(agent, state, inner, config)


def review(agent: Any, state: AgentState, outcome: Step, time: Array, config: Any) -> AgentState:
    """Show a step [E, ...] in which an episode may have ended; without one nothing changes."""
    ended = (outcome.terminated | outcome.truncated).any()
    return choose(ended, reviewed(agent, state, outcome, time, config), state)


def prepare(agent: Any, state: AgentState, data: Transition, config: Any) -> AgentState:
    """Show a whole data set [N, ...] with its own observations, before any update."""
    if hasattr(agent, "prepare"):
        inner = agent.prepare(_beside_base(agent, state, config), data, config)
        state = _learnt(agent, state, inner, config)
    return state.replace(statistics=state.inputs.prepare(state.statistics, data))


def parts_of(state: AgentState) -> dict[str, Any]:
    """The parts of an agent with which another can begin, by name: the State's fields, without
    optimisers' states, and any statistics.
    """
    fields = dataclasses.fields(state.state)
    names = [field.name for field in fields if field.metadata.get("pytree_node", True)]
    parts = {name: _without_optimisers(getattr(state.state, name)) for name in names}
    return parts | ({} if state.statistics is None else {STATISTICS: state.statistics})


def part_at(parts: Mapping[str, Any], place: str) -> Any:
    """A part of `parts_of`, or a field inside one, such as "actor_critic.actor".

    Raises `LookupError` or `AttributeError` where there is none.
    """
    name, *fields = place.split(".")
    return functools.reduce(getattr, fields, parts[name])


def with_parts(state: AgentState, parts: Mapping[str, Any]) -> AgentState:
    """An agent with `parts` of another at the places of `part_at`, and its own optimisers."""
    inner = state.state
    for place, part in parts.items():
        if place != STATISTICS:
            inner = _with_part(inner, place.split("."), part)
    return state.replace(state=inner, statistics=parts.get(STATISTICS, state.statistics))


def _with_part(node: Any, fields: Sequence[str], part: Any) -> Any:
    if not fields:
        return _with_optimisers(node, part)
    if _is_trained(node):
        return node.replace(parameters=_with_part(node.parameters, fields, part))
    name, *deeper = fields
    return dataclasses.replace(node, **{name: _with_part(getattr(node, name), deeper, part)})


def _is_trained(node: Any) -> bool:
    return isinstance(node, Trained)


def _without_optimisers(part: Any) -> Any:
    return jax.tree.map(parameters_of, part, is_leaf=_is_trained)


def _with_optimisers(part: Any, parameters: Any) -> Any:
    """`part` with other parameters, built like `_without_optimisers(part)`."""

    def replaced(node: Any, x: Any) -> Any:
        return node.replace(parameters=x) if _is_trained(node) else x

    return jax.tree.map(replaced, part, parameters, is_leaf=_is_trained)
