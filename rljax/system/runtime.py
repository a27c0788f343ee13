"""JAX's threads, cache of compiled programs, and time of compilation."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def persist_compilations() -> None:
    """Keep compiled programs in JAX_COMPILATION_CACHE_DIR or the user's cache folder,
    unless JAX_ENABLE_COMPILATION_CACHE=false.
    """
    from jax import config as jax_settings

    if jax_settings.values["jax_compilation_cache_dir"] is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rljax", "xla")
        jax_settings.update("jax_compilation_cache_dir", str(cache))
        jax_settings.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def prefer_one_thread() -> None:
    """Let JAX, if it has not begun, use one thread, unless the user has set their number.

    This is faster for small products.
    """
    os.environ.setdefault("NPROC", "1")


class CompileClock:
    """Counts JAX's seconds of tracing and compiling, and calls `on_compile` when they begin."""

    def __init__(self, on_compile: Callable[[], None]) -> None:
        self.on_compile, self.seconds = on_compile, 0.0
        self._spans: list[tuple[float, float]] = []  # begin and end, apart, in order

    def _began(self, event: str, **kwargs: str | int) -> None:
        if event.startswith("/jax/compilation_cache/compile_requests"):
            self.on_compile()

    def _took(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        end = time.perf_counter()
        begin = end - duration_secs
        # One function's tracing contains another's.
        while self._spans and self._spans[-1][1] > begin:
            inner = self._spans.pop()
            begin = min(begin, inner[0])
            self.seconds -= inner[1] - inner[0]
        self._spans.append((begin, end))
        self.seconds += end - begin

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what compiles inside."""
        import jax

        jax.monitoring.register_event_listener(self._began)
        jax.monitoring.register_event_duration_secs_listener(self._took)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_listener(self._began)
            jax.monitoring.unregister_event_duration_listener(self._took)
