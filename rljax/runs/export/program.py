"""A trained policy as one pure function of an environment's own observations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import __version__
from rljax.agent import choose, unseen
from rljax.envs.timed import share_of_time
from rljax.learning import agent_state
from rljax.runs.export import draws, translation
from rljax.runs.export.translation import BATCH, NamedArray
from rljax.runs.policies.policy import Policies, require_learner


class Program:
    """The policy of one learner, without exploration.

    Attributes:
        inputs: observations, then a mask, the steps since the reset, memories and noise, where the
            policy needs them. All have a leading axis of N observations, but noise, which may have
            it elsewhere.
        outputs: actions, then the next memories.
        closed: the program of `inputs`, behind the learnt arrays.
        learnt: these arrays, by their names.
    """

    def __init__(self, policies: Policies, learner: int) -> None:
        """Raises `ValueError` if there is no such learner, and for a policy that depends on the
        number of observations, or that draws random numbers in a loop.
        """
        require_learner(policies.settings, learner)
        self._policies, self.learner = policies, learner
        self.spec, self.spaces = policies.spec, policies.spaces
        learnt = jax.tree.map(lambda x: x[learner], (policies.state, policies.config))
        self._learnt = learnt
        memory = policies.first_memory() if policies.remembers else None
        memories, self._structure = jax.tree.flatten(jax.tree.map(jnp.asarray, memory))
        without = unseen(learnt[1])
        self._observations = translation.observations(self.spec, self.spaces, without)
        inputs, masked = [*self._observations], self.spaces is not None and self.spaces.masked
        if masked:
            inputs.append(NamedArray("mask", (BATCH, self.spec.action_size), "int8", "bool"))
        self._timed = self.spaces is not None and policies.observes_time
        if self._timed:
            inputs.append(NamedArray("step", (BATCH,), "int64", "float32"))
        before = [
            NamedArray(f"memory_{i}", (BATCH, *x.shape), str(x.dtype), str(x.dtype))
            for i, x in enumerate(memories)
        ]
        first = [NamedArray("first", (BATCH,), "bool", "bool")] if before else []
        after = [dataclasses.replace(x, name=f"next_{x.name}") for x in before]
        self._given = inputs + before + first
        (self._size,) = jax.export.symbolic_shape(BATCH)
        try:
            self._traced = self._trace(self._size)
            drawn = draws.draws(self._traced)
        except Exception as error:
            if "symbolic" not in str(error) and "_DimExpr" not in str(error):
                raise
            raise ValueError(
                f"agent '{policies.settings.agent}' does not act for any number of observations at "
                f"once, as an exported policy must: {error}"
            ) from error
        self.noise = [
            NamedArray(
                f"noise_{i}",
                tuple(map(_axis, x.shape)),
                x.dtype,
                x.dtype,
                distribution=x.distribution,
            )
            for i, x in enumerate(drawn)
        ]
        self.inputs: Sequence[NamedArray] = [*self._given, *self.noise]
        self.outputs: Sequence[NamedArray] = [*translation.actions(self.spec, self.spaces), *after]
        self.remembers = bool(before)

    def call(self, *inputs: Any) -> list[Any]:
        """The outputs, of traced inputs with N observations, where N is the symbol of `shapes`."""
        return self._evaluated(jax.tree.leaves(self._learnt), inputs)

    @functools.cached_property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The inputs' shapes and dtypes, for tracing."""
        return [self._shaped(value, self._size) for value in self.inputs]

    @functools.cached_property
    def closed(self) -> Any:
        """The program of the learnt arrays, then the inputs; without random numbers."""
        arrays = jax.tree.leaves(self._learnt)
        return draws.traced(self._evaluated, arrays, self.shapes)

    @functools.cached_property
    def learnt(self) -> dict[str, Any]:
        """The arrays of the State and of the Config by names, as `closed` takes them."""
        places = jax.tree_util.tree_leaves_with_path(self._learnt)
        names = [_name(path) for path, _ in places]
        numbered = [f"{name}-{i}" if name in names[:i] else name for i, name in enumerate(names)]
        return dict(zip(numbered, (leaf for _, leaf in places), strict=True))

    def drawn(self, key: jax.Array, number: int) -> list[np.ndarray]:
        """The noise with which the agent acts with `key` for `number` observations."""
        closed = self._trace(number)
        drawn: list[Any] = []

        def draw(equation: Any, inputs: Sequence[Any]) -> Any:
            (value,) = draws.bound(equation, inputs)
            drawn.append(value)
            return value

        def collect(*inputs: Any) -> list[Any]:
            drawn.clear()
            draws.evaluate(closed, inputs, draw)
            return list(drawn)

        given = [self._shaped(value, number) for value in self._given]
        zeros = [jnp.zeros(x.shape, x.dtype) for x in given]
        arrays = [*jax.tree.leaves(self._learnt), *zeros, key]
        return [np.asarray(x) for x in jax.jit(collect)(*arrays)]

    def description(self, inner: bool = False) -> dict[str, Any]:
        """What the exported policy is, ready for JSON; with `inner`, by the program's dtypes."""
        settings = self._policies.settings

        def each(values: Sequence[NamedArray]) -> list[dict[str, Any]]:
            return [described(value, value.inner if inner else value.dtype) for value in values]

        return {
            "agent": settings.agent,
            "environment": settings.env,
            "training_step": self._policies.step,
            "learner": self.learner,
            "seed": settings.seeds[self.learner],
            "rljax": __version__,
            "inputs": each(self.inputs),
            "outputs": each(self.outputs),
        }

    def _trace(self, number: Any) -> Any:
        given = [self._shaped(value, number) for value in self._given]
        key = jax.eval_shape(lambda: jax.random.key(0))
        return draws.traced(self._act, self._learnt, given, key)

    def _shaped(self, value: NamedArray, number: Any) -> jax.ShapeDtypeStruct:
        def size(axis: Any) -> Any:
            if not isinstance(axis, str):
                return axis
            factor = axis.removesuffix(BATCH).removesuffix("*")
            return int(factor or 1) * number

        return jax.ShapeDtypeStruct(tuple(map(size, value.shape)), value.inner)

    def _evaluated(self, learnt: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        given, noise = inputs[: len(self._given)], iter(inputs[len(self._given) :])
        key = jax.random.key(0)  # unused
        arguments = [*learnt, *given, key]
        return draws.evaluate(self._traced, arguments, lambda *_: next(noise))

    def _act(self, learnt: Any, given: Sequence[Any], key: jax.Array) -> list[Any]:
        policies, (state, config) = self._policies, learnt
        named = dict(zip((value.name for value in self._given), given, strict=True))
        observation, number = self._observed(named), given[0].shape[0]
        memory = None
        if "first" in named:
            before = [named[f"memory_{i}"] for i in range(self._structure.num_leaves)]
            memory = self._structure.unflatten(before)
            fresh = policies.first_memory(number)
            memory = choose(named["first"], fresh, memory)
        action, _, after = agent_state.act(
            policies.module, state, observation, key, config, False, memory
        )
        after = after if "first" in named else None
        return [*translation.acted(self.spaces, action), *jax.tree.leaves(after)]

    def _observed(self, named: Mapping[str, Any]) -> Any:
        values = self._observations
        arrays = {value.path: named[value.name] for value in values}
        if self.spaces is None:
            if not self.spec.parts:
                return arrays[()]
            parts = {path[0]: x for path, x in arrays.items()}
            number = next(iter(parts.values())).shape[0]
            return self.spec.example(number) | parts
        observation = translation.observed(self.spaces, arrays, named.get("mask"))
        if not self._timed:
            return observation
        time = share_of_time(named["step"], self.spec)
        return jnp.concatenate([observation, time[:, None]], axis=-1)


def described(value: NamedArray, dtype: str) -> dict[str, Any]:
    """An input or output, ready for JSON."""
    known = {"name": value.name, "shape": list(value.shape), "dtype": dtype}
    return known | ({} if value.distribution is None else {"distribution": value.distribution})


def _axis(size: Any) -> Any:
    return size if isinstance(size, int) else str(size)


def _name(path: Sequence[Any]) -> str:
    """The name of an array by its place in the State and the Config."""
    words = [str(getattr(entry, "name", getattr(entry, "key", ""))) for entry in path[1:]]
    words = [word for word in words if word not in ("", "state", "parameters", "params")]
    return "/".join(words) or "array"
