"""Programs whose random numbers are inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core as extended_core
from jax.interpreters import partial_eval

DISTRIBUTIONS = {"_normal": "normal", "_uniform": "uniform"}  # JAX's functions that draw


@dataclasses.dataclass(frozen=True)
class RandomInput:
    """One array of random numbers."""

    distribution: str  # "normal", "uniform LOW HIGH", or "bits": whole numbers of 32 bits
    shape: tuple[Any, ...]
    dtype: str


def traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """The program of a function, without what its outputs do not need."""
    closed = jax.make_jaxpr(function)(*arguments)
    needed = [True] * len(closed.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, needed, instantiate=True)
    return extended_core.ClosedJaxpr(jaxpr, closed.consts)


def draws(closed: Any) -> list[RandomInput]:
    """All random numbers of a program, in the order of `evaluate`.

    Raises `ValueError` for those inside a loop.
    """
    return [_draw(equation) for equation in _equations(closed.jaxpr)]


def evaluate(closed: Any, inputs: Sequence[Any], draw: Callable[[Any, Any], Any]) -> list[Any]:
    """The outputs of a program, whose random numbers are those of `draw(equation, inputs)`.

    Of branches that draw, all are evaluated, and one is selected.
    """
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[variable]

    for equation in closed.jaxpr.eqns:
        arguments = [read(variable) for variable in equation.invars]
        body = body_of(equation)
        if _distribution(equation) is not None:
            outputs = [draw(equation, arguments)]
        elif body is not None:
            outputs = evaluate(body, arguments, draw)
        elif branches := _drawing_branches(equation):
            index, *others = arguments
            each = [evaluate(branch, others, draw) for branch in branches]
            which = index.astype(bool) if len(branches) == 2 else index
            outputs = [jax.lax.select_n(which, *cases) for cases in zip(*each, strict=True)]
        else:
            outputs = bound(equation, arguments)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in closed.jaxpr.outvars]


def bound(equation: Any, arguments: Sequence[Any]) -> Sequence[Any]:
    """The outputs of one equation without a `body_of`."""
    outputs = equation.primitive.bind(*arguments, **equation.params)
    return outputs if equation.primitive.multiple_results else [outputs]


def body_of(equation: Any) -> Any:
    """The program that an equation calls once with its inputs, or None."""
    if equation.primitive.name in ("scan", "while", "cond"):
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        body = equation.params.get(name)
        if body is not None:
            return body if hasattr(body, "consts") else extended_core.ClosedJaxpr(body, ())
    return None


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations that draw."""
    for equation in jaxpr.eqns:
        body = body_of(equation)
        if _distribution(equation) is not None:
            yield equation
        elif body is not None:
            yield from _equations(body.jaxpr)
        elif branches := _drawing_branches(equation):
            for branch in branches:
                yield from _equations(branch.jaxpr)
        elif any(map(_draws, _inner(equation))):
            raise ValueError(
                "this policy draws random numbers inside a loop, which no file can hold. Draw them "
                "all before the loop."
            )


def _drawing_branches(equation: Any) -> Sequence[Any]:
    """The programs of which an equation runs one, if any of them draws."""
    if equation.primitive.name != "cond":
        return ()
    branches = equation.params["branches"]
    return branches if any(_draws(branch.jaxpr) for branch in branches) else ()


def _inner(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


def _draws(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "random_bits" or any(map(_draws, _inner(equation)))
        for equation in jaxpr.eqns
    )


def _distribution(equation: Any) -> str | None:
    """The distribution of what an equation draws, or None."""
    if equation.primitive.name == "random_bits":
        return "bits"
    name, inputs = DISTRIBUTIONS.get(equation.params.get("name", "")), equation.invars
    if name is None or not jax.numpy.issubdtype(inputs[0].aval.dtype, jax.dtypes.prng_key):
        return None
    if not all(hasattr(variable, "val") for variable in inputs[1:]):
        return None
    return " ".join([name, *(repr(float(variable.val)) for variable in inputs[1:])])


def _draw(equation: Any) -> RandomInput:
    (variable,) = equation.outvars
    distribution = _distribution(equation)
    assert distribution is not None, "of an equation that draws"
    return RandomInput(distribution, variable.aval.shape, str(variable.aval.dtype))
