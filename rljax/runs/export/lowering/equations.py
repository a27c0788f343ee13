"""From JAX's programs to the operations of `graph`, equation by equation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rljax.runs.export import draws
from rljax.runs.export.graph import Graph, Tensor, constant, is_static
from rljax.runs.export.lowering import elements, indices, products
from rljax.runs.export.lowering.elements import ELEMENTS, TRUTH, choose_case
from rljax.runs.export.lowering.operands import (
    Complex,
    UnsupportedOperation,
    expand,
    known_array,
    of_array,
    shrunk,
)
from rljax.runs.export.lowering.products import REDUCTIONS, reduce

SAME = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision", "pvary")
_REARRANGING = ("reshape", "transpose", "broadcast_in_dim", "squeeze", "copy", "expand_dims")
# Complex arrays' parts go through these side by side.
_LINEAR = (
    *("add", "sub", "neg", "reduce_sum", "slice", "gather", "scatter", "scatter-add"),
    *("concatenate", "stack", "select_n", "reshape", "transpose", "broadcast_in_dim", "squeeze"),
    *("expand_dims", "dynamic_slice", "copy", "stop_gradient", "pad"),
)
# Functions of a graph, an equation and its inputs, which return its outputs.
RULES = elements.RULES | products.RULES | indices.RULES


def lowered(closed: Any, learnt: Mapping[str, Any], inputs: Sequence[str]) -> Graph:
    """The graph of a program, whose first inputs are `learnt`, and the others called `inputs`.

    What depends on no input is computed here. Raises `UnsupportedOperation`.
    """
    graph = Graph()
    arrays: list[Any] = [of_array(x, name) for name, x in learnt.items()]
    for variable, name in zip(closed.jaxpr.invars[len(arrays) :], inputs, strict=True):
        tensor = Tensor(variable.aval.shape, np.dtype(variable.aval.dtype), name=name)
        graph.inputs.append(tensor)
        arrays.append(tensor)
    outputs = _Lowering(graph).run(closed, arrays)
    for variable, x in zip(closed.jaxpr.outvars, outputs, strict=True):
        whole = expand(graph, x, variable.aval.shape)
        graph.outputs.append(whole)
    return graph.finished()


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, closed: Any, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of a program."""
        values: dict[Any, Any] = dict(zip(closed.jaxpr.invars, arrays, strict=True))
        for variable, x in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            values[variable] = of_array(x)

        def read(variable: Any) -> Any:
            return of_array(variable.val) if hasattr(variable, "val") else values[variable]

        for equation in closed.jaxpr.eqns:
            outputs = self.equation(equation, [read(variable) for variable in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(variable) for variable in closed.jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> Sequence[Any]:
        """The outputs of one equation."""
        name, body = equation.primitive.name, draws.body_of(equation)
        if body is not None:
            return self.run(body, inputs)
        if name in ("scan", "cond"):
            return getattr(self, f"_{name}")(equation, inputs)
        outputs = self._computed(equation, inputs)
        if outputs is not None:
            return outputs
        inputs = [shrunk(x) for x in inputs]
        if any(isinstance(x, Complex) for x in inputs) or name == "complex":
            return [self._of_complex(equation, inputs)]
        output = self._apply(equation, name, inputs)
        return output if isinstance(output, list) else [output]

    def _computed(self, equation: Any, inputs: list[Any]) -> list[Any] | None:
        """The outputs, where they depend on no input."""
        arrays = [known_array(x) for x in inputs]
        shapes = [variable.aval.shape for variable in equation.outvars]
        known = all(x is not None for x in arrays)
        if not known or not all(map(is_static, shapes)):
            return None
        if not all(is_static(variable.aval.shape) for variable in equation.invars):
            return None
        whole = []
        for variable, x in zip(equation.invars, arrays, strict=True):
            is_key = jax.numpy.issubdtype(variable.aval.dtype, jax.dtypes.prng_key)
            same = x if is_key else np.broadcast_to(x, variable.aval.shape)
            whole.append(same if is_key else jax.numpy.asarray(same, variable.aval.dtype))
        names = [x.name for x in inputs if isinstance(x, Tensor) and x.name]
        name = f"{names[0]}/{equation.primitive.name}" if names else ""
        name = names[0] if names and equation.primitive.name in _REARRANGING else name
        return [of_array(x, name) for x in draws.bound(equation, whole)]

    def _apply(self, equation: Any, name: str, inputs: list[Any]) -> Any:
        if name in _REARRANGING and inputs[0].array is not None and inputs[0].shape == ():
            return inputs[0]
        if name in SAME:
            return list(inputs) if len(equation.outvars) > 1 else inputs[0]
        if name == "div" and inputs[0].dtype.kind != "f":
            raise UnsupportedOperation("exported policies cannot divide whole numbers.")
        if name in ELEMENTS:
            return self.graph.elements(ELEMENTS[name], *inputs)
        if name in TRUTH:
            if any(x.dtype != bool for x in inputs):
                raise UnsupportedOperation(f"exported policies cannot combine bits ('{name}').")
            return self.graph.elements(TRUTH[name], *inputs)
        if name in REDUCTIONS:
            return reduce(self.graph, REDUCTIONS[name], equation, inputs[0])
        if name not in RULES:
            raise UnsupportedOperation(
                f"the policy uses JAX's operation '{name}', which exported files do not have. "
                "StableHLO has all of them: --to stablehlo"
            )
        return RULES[name](self.graph, equation, *inputs)

    def _cond(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """All branches, and the outputs of the right one."""
        which, *others = inputs
        branches = equation.params["branches"]
        if known_array(which) is not None:
            return self.run(branches[int(known_array(which))], others)
        outputs = [self.run(branch, others) for branch in branches]
        return [choose_case(self.graph, which, cases) for cases in zip(*outputs, strict=True)]

    def _scan(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """All rounds, one after another."""
        parameters = equation.params
        consts, carried = _sizes_of_scan(parameters)
        constants, carry = inputs[:consts], inputs[consts : consts + carried]
        rows = [shrunk(x) for x in inputs[consts + carried :]]
        avals = [variable.aval for variable in equation.invars[consts + carried :]]
        body, length = parameters["jaxpr"], parameters["length"]
        order = range(length)[:: -1 if parameters["reverse"] else 1]
        stacked: dict[int, list[Any]] = {}
        for i in order:
            row = [self._row(x, aval, i) for x, aval in zip(rows, avals, strict=True)]
            outputs = self.run(body, [*constants, *carry, *row])
            carry, stacked[i] = outputs[:carried], outputs[carried:]
        shapes = [variable.aval.shape for variable in equation.outvars[carried:]]
        results = []
        for k, shape in enumerate(shapes):
            parts = [expand(self.graph, stacked[i][k], shape[1:]) for i in range(length)]
            expanded = [self.graph.reshape(x, (1, *shape[1:])) for x in parts]
            results.append(self.graph.concatenate(expanded, 0))
        return [*carry, *results]

    def _row(self, x: Any, aval: Any, index: int) -> Any:
        if isinstance(x, Complex):
            return Complex(*(self._row(part, aval, index) for part in x))
        if x.array is not None and x.shape == ():
            return x
        whole = expand(self.graph, x, aval.shape)
        if whole.array is not None:
            return constant(whole.array[index], whole.name)
        starts, ends = [0] * len(whole.shape), list(whole.shape)
        starts[0], ends[0] = index, index + 1
        return self.graph.reshape(self.graph.slice(whole, starts, ends), tuple(aval.shape[1:]))

    def _of_complex(self, equation: Any, inputs: list[Any]) -> Any:
        name, graph = equation.primitive.name, self.graph
        if name == "complex":
            return Complex(*inputs)
        if name in ("real", "imag"):
            return inputs[0][name == "imag"]
        if name == "mul":
            (a, b), (c, d) = (x if isinstance(x, Complex) else (x, None) for x in inputs)

            def times(x: Any, y: Any) -> Any:
                return None if x is None or y is None else graph.elements("multiply", x, y)

            real, imaginary = times(a, c), times(b, d)
            both = [part for part in (times(a, d), times(b, c)) if part is not None]
            real = real if imaginary is None else graph.elements("subtract", real, imaginary)
            return Complex(real, both[0] if len(both) == 1 else graph.elements("add", *both))
        if name not in _LINEAR:
            raise UnsupportedOperation(f"exported policies have no '{name}' of complex numbers.")
        parts = []
        for side in (0, 1):
            each = [x[side] if isinstance(x, Complex) else x for x in inputs]
            parts.append(self._apply(equation, name, each))
        return Complex(*parts)


def _sizes_of_scan(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of a scan's constants and of its carried arrays."""
    if "num_consts" in parameters:  # before JAX 0.12
        return parameters["num_consts"], parameters["num_carry"]
    constants, carry, _ = parameters["ft_in"].unpack()
    return len(constants.vals), len(carry.vals)
