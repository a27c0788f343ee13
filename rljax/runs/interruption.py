"""Requests to stop: Ctrl-C and SIGTERM during a run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any


class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a request to stop. A second one stops at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested, self._say = False, say

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
        self._say(f"{signal.Signals(number).name}: finishing this chunk and saving. Again to stop at once.")

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
