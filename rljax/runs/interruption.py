"""What is attended to while a run's loop goes on: the time that compiling takes, and requests to stop."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax

from rljax.runs import console


class Clock:
    """Counts the seconds that JAX spends tracing and compiling, and tells the view when it begins to."""

    def __init__(self, view: console.View) -> None:
        self.view, self.compile_seconds = view, 0.0
        self._spans: list[tuple[float, float]] = []  # begin and end, apart, in order

    def _began(self, event: str, **kwargs: str | int) -> None:
        if event.startswith("/jax/compilation_cache/compile_requests"):
            self.view.status("compiling")

    def _took(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        end = time.perf_counter()
        begin = end - duration_secs
        while self._spans and self._spans[-1][1] > begin:  # a function is traced within another's tracing
            inner = self._spans.pop()
            begin = min(begin, inner[0])
            self.compile_seconds -= inner[1] - inner[0]
        self._spans.append((begin, end))
        self.compile_seconds += end - begin

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Count what compiles inside."""
        jax.monitoring.register_event_listener(self._began)
        jax.monitoring.register_event_duration_secs_listener(self._took)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_listener(self._began)
            jax.monitoring.unregister_event_duration_listener(self._took)


class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a request; a second one stops at once."""

    def __init__(self, view: console.View) -> None:
        self.requested, self.view = False, view

    def __enter__(self) -> Interrupt:
        self.before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # not in the main thread: leave signals alone
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: Any) -> None:
        del frame
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.view.say(f"{signal.Signals(number).name}: finishing this chunk and saving. Again to stop at once.")

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
