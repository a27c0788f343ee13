"""Requests to stop: Ctrl-C and SIGTERM during a run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 3.0  # seconds for the run to end by itself after the second signal
EXIT_INTERRUPT = 130


class Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a request to stop. A second one raises
    `KeyboardInterrupt`.

    Where code outside Python does not return after that, a thread ends the process after
    `PATIENCE`.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested, self._announced, self._say = False, False, say

    def __enter__(self) -> Interrupt:
        self.before: dict[int, Any] = {}
        self._writing: int | None = None
        with contextlib.suppress(ValueError):  # not in the main thread: leave signals alone
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._request)
            self._watch()
        return self

    def _watch(self) -> None:
        """Start the thread, unless others read signals from a pipe."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        other = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if other != -1:
            signal.set_wakeup_fd(other)
            os.close(reading)
            os.close(writing)
            return
        self._writing, self._over = writing, threading.Event()
        threading.Thread(
            target=self._count, args=(reading,), name="interruption", daemon=True
        ).start()

    def _count(self, reading: int) -> None:
        number = 0
        while number < 2 and (arrived := os.read(reading, 1)):
            if arrived[0] in (signal.SIGINT, signal.SIGTERM):
                number += 1
                if number == 1 and not self._over.wait(1.0):
                    self._announce(arrived[0])
        if number == 2 and not self._over.wait(PATIENCE):
            print("error: stopped at once; the last checkpoint is safe.", file=sys.stderr)
            leave_at_once(EXIT_INTERRUPT)
        os.close(reading)

    def _request(self, number: int, frame: Any) -> None:
        del frame
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._announce(number)

    def _announce(self, number: int) -> None:
        if not self._announced:
            self._announced = True
            self._say(
                f"{signal.Signals(number).name}: finishing this chunk and saving. Again to stop "
                "at once."
            )

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self._writing is not None:
            self._over.set()
            signal.set_wakeup_fd(-1)
            os.close(self._writing)


def leave_at_once(code: int) -> None:
    """End this process and its children, without waiting for hanging code."""
    for process in multiprocessing.active_children():
        process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
