"""Compiled programs that call functions on the host, and their persistent cache."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback


def called_from_within(function: Callable[..., Any], result: Any) -> Callable[..., Any]:
    """Make a function on the host callable from a compiled program.

    The function returns a tree of arrays like `result`, a tree of `jax.ShapeDtypeStruct`. On the
    CPU its arguments are the program's own memory.
    """
    if jax.default_backend() != "cpu":
        return lambda *arguments: io_callback(
            lambda *arrays: function(*map(np.asarray, arrays)), result, *arguments, ordered=True
        )

    def in_place(context: Any, out: Any, *arguments: Any) -> None:
        del context
        returned = jax.tree.leaves(function(*map(np.asarray, arguments)))
        for memory, array in zip(jax.tree.leaves(out), returned, strict=True):
            np.asarray(memory)[...] = array

    return buffer_callback(in_place, result, has_side_effect=True)


def purely_called(function: Callable[..., Any], result: Any) -> Callable[..., Any]:
    """Make a pure function on the host callable from a compiled program, also under `vmap`.

    It returns one array like `result`, a `jax.ShapeDtypeStruct`. Mapped axes come before all
    others, of arguments and result. Where learners are on several devices of a CPU, each calls it.
    """
    if jax.default_backend() != "cpu":
        return lambda *arguments: jax.pure_callback(
            lambda *arrays: function(*map(np.asarray, arrays)),
            result,
            *arguments,
            vmap_method="broadcast_all",
        )

    # As `jax.pure_callback`, in a tenth of its time.
    def in_place(context: Any, out: Any, *arguments: Any) -> None:
        del context
        np.asarray(out)[...] = function(*map(np.asarray, arguments))

    return buffer_callback(in_place, result, vmap_method="broadcast_all")


@contextlib.contextmanager
def cached_with_callbacks() -> Iterator[None]:
    """Within this context, and on the CPU only, the compile cache also keeps programs that call the
    host.

    JAX 0.10 does not cache them: callbacks may be memory addresses. Those of `called_from_within`
    are numbers.
    """
    compiler = _compiler_of_jax()
    if compiler is None or jax.default_backend() != "cpu":
        yield
        return
    original = compiler.compile_or_get_cached

    def compile_or_get_cached(backend: Any, *arguments: Any, **more: Any) -> Any:
        program, devices, options, callbacks, *rest = arguments
        client = _ClientWithCallbacks(backend, callbacks) if callbacks else backend
        return original(client, program, devices, options, [], *rest, **more)

    compiler.compile_or_get_cached = compile_or_get_cached
    try:
        yield
    finally:
        compiler.compile_or_get_cached = original


def _compiler_of_jax() -> Any:
    """JAX's module of compilation; None where it caches such programs or has changed."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compiler  # pyright: ignore[reportPrivateUsage]

        names = list(inspect.signature(compiler.compile_or_get_cached).parameters)
        refuses = "host_callbacks" in inspect.signature(compiler._cache_write).parameters
        if refuses and names[:1] == ["backend"] and names[4:5] == ["host_callbacks"]:
            return compiler
    return None


class _ClientWithCallbacks:
    """XLA's client, with the same host functions for all programs."""

    def __init__(self, client: Any, host_callbacks: Sequence[Any]) -> None:
        self._client, self._host_callbacks = client, host_callbacks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def compile_and_load(self, *arguments: Any, **more: Any) -> Any:
        return self._client.compile_and_load(
            *arguments, **more, host_callbacks=self._host_callbacks
        )

    def deserialize_executable(self, *arguments: Any) -> Any:
        return self._client.deserialize_executable(*arguments, host_callbacks=self._host_callbacks)
