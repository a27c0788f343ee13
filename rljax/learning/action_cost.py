"""The cost of an action."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from rljax.agent import Agent, EnvSpec, first_memory
from rljax.learning import agent_state

# Counted together: they share computations on parameters alone.
BATCH = 256


def of_action(agent: Agent, state: Any, spec: EnvSpec, config: Any) -> dict[str, int | None]:
    """Count `parameters` and `flops_per_action` for one learner that acts without exploration.

    Only shapes of `state` and `config`, of P learners, matter. `parameters` are the numbers in
    networks that the action depends on. `flops_per_action` is XLA's count for a batch, per action,
    or None.
    """

    def action_of(state: Any, observation: Any, key: Any, config: Any) -> Any:
        memory = first_memory(agent, spec, config, BATCH, base=state.base)
        return agent_state.act(
            agent, state, observation, key, config, explore=False, memory=memory
        )[0]

    state, config = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (state, config)
    )
    arguments = (state, spec.shaped(BATCH), jax.eval_shape(lambda: jax.random.key(0)), config)
    program = jax.make_jaxpr(action_of)(*arguments)
    leaves = jax.tree_util.tree_leaves_with_path(arguments)
    read = {id(variable) for equation in program.jaxpr.eqns for variable in equation.invars}
    parameters = sum(
        math.prod(leaf.shape)
        for (path, leaf), variable in zip(leaves, program.jaxpr.invars, strict=True)
        if jax.tree_util.GetAttrKey("params") in path and id(variable) in read
    )
    operations = flops(program)
    return {
        "parameters": parameters,
        "flops_per_action": None if operations is None else round(operations / BATCH),
    }


def flops(program: ClosedJaxpr) -> float | None:
    """Floating-point operations of a program by XLA's cost analysis; None where XLA gives no count.

    Unlike XLA, this counts a loop's body once for each run, where their number is known.
    """
    avals = [variable.aval for variable in program.jaxpr.invars]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    analysis = jax.jit(jaxpr_as_fun(program)).lower(*shapes).cost_analysis() or {}
    if "flops" not in analysis:
        return None
    return analysis["flops"] + sum(
        times * (flops(body) or 0.0) for body, times in _repeated(program.jaxpr)
    )


def _repeated(jaxpr: Jaxpr) -> Iterator[tuple[ClosedJaxpr, int]]:
    """The body of each loop, and how many of its runs XLA does not count."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            length, unroll = equation.params["length"], max(equation.params["unroll"], 1)
            counted = length if length <= unroll else unroll + length % unroll
            if length > counted:
                yield equation.params["jaxpr"], length - counted
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr):
                    yield from _repeated(inner.jaxpr)
                elif isinstance(inner, Jaxpr):
                    yield from _repeated(inner)
