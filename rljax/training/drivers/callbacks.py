"""Functions of the host as parts of compiled programs, and such programs in the persistent compile cache."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from rljax.agent import Array


def called_from_within(function: Callable[..., np.ndarray], result: jax.ShapeDtypeStruct) -> Callable[..., Array]:
    """A function of the host as a part of a compiled program, which waits for it.

    On the CPU it is handed the program's own memory: 2 microseconds, where a callback of JAX arrays takes 70.
    """
    if jax.default_backend() != "cpu":
        return lambda *arguments: io_callback(
            lambda *arrays: function(*map(np.asarray, arrays)), result, *arguments, ordered=True
        )

    def in_place(context: Any, out: Any, *arguments: Any) -> None:
        del context
        np.asarray(out)[...] = function(*map(np.asarray, arguments))

    return buffer_callback(in_place, result, has_side_effect=True)


@contextlib.contextmanager
def cached_with_callbacks() -> Iterator[None]:
    """Programs compiled meanwhile are kept in the compile cache although they call the host (on the CPU alone).

    JAX 0.10 keeps none of them, since some callbacks are addresses in a program. Those of `called_from_within` are
    numbers: the functions that they stand for are handed over whenever a program is loaded. JAX 0.11 does so itself.
    Where a JAX is built otherwise still, nothing is changed, and such programs are compiled anew in each process.
    """
    compiler = _compiler_of_jax()
    if compiler is None or jax.default_backend() != "cpu":
        yield
        return
    original = compiler.compile_or_get_cached

    def compile_or_get_cached(
        backend: Any, program: Any, devices: Any, options: Any, host_callbacks: Any, *rest: Any, **more: Any
    ) -> Any:
        client = _ClientWithCallbacks(backend, host_callbacks) if host_callbacks else backend
        return original(client, program, devices, options, [], *rest, **more)

    compiler.compile_or_get_cached = compile_or_get_cached
    try:
        yield
    finally:
        compiler.compile_or_get_cached = original


def _compiler_of_jax() -> Any:
    """The part of JAX that compiles or takes from the cache; None if it keeps these programs, or is not as it was."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compiler  # pyright: ignore[reportPrivateUsage]

        names = list(inspect.signature(compiler.compile_or_get_cached).parameters)
        refuses = "host_callbacks" in inspect.signature(compiler._cache_write).parameters
        if refuses and names[:1] == ["backend"] and names[4:5] == ["host_callbacks"]:
            return compiler
    return None


class _ClientWithCallbacks:
    """XLA's client, which gives each program that it makes or loads the same functions of the host."""

    def __init__(self, client: Any, host_callbacks: Sequence[Any]) -> None:
        self._client, self._host_callbacks = client, host_callbacks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def compile_and_load(self, *arguments: Any, **more: Any) -> Any:
        return self._client.compile_and_load(*arguments, **more, host_callbacks=self._host_callbacks)

    def deserialize_executable(self, *arguments: Any) -> Any:
        return self._client.deserialize_executable(*arguments, host_callbacks=self._host_callbacks)
