"""Ctrl-C: the first one asks, the second one stops at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rljax.system.interruption import Interrupt

# Python cannot handle signals while this function works.
STUCK = """
import hashlib, os, signal, sys, threading, time
from rljax.system import interruption
interruption.PATIENCE = 0.2
def signals():
    for _ in range(2):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
with interruption.Interrupt(lambda text: print(text, file=sys.stderr)):
    threading.Thread(target=signals, daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def test_the_first_asks_and_the_second_stops() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(said.append) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == ["SIGINT: finishing this chunk and saving. Again to stop at once."]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.slow
def test_code_that_does_not_return_is_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 130
    assert "stopped at once; the last checkpoint is safe." in done.stderr
