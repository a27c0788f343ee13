"""Runs in several parts, and what they compile."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.runs import active, run
from tests.helpers import small_runs


def resumed(
    train: Callable[[int, Path], Path], first: int, last: int, folder: Path
) -> tuple[Path, Path]:
    """A run of `last` steps, and its equal that was stopped after the `first` ones and resumed."""
    whole, half = train(last, folder / "whole"), train(first, folder / "half")
    run.resume(half, last)
    small_runs.assert_same(whole, half)
    return whole, half


@contextlib.contextmanager
def compilations(note: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
    def heard(event: str, seconds: float, **details: Any) -> None:
        del seconds
        if event.endswith("backend_compile_duration"):
            note(details)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


@contextlib.contextmanager
def stopped(when: Callable[[active.ActiveRun], bool], most: int) -> Iterator[list[Path]]:
    """Interrupt runs, as Ctrl-C does, once each, after saving where `when` is true;
    their folders.
    """
    save, folders = active.ActiveRun._save_now, []

    def save_and_stop(self: active.ActiveRun) -> Path:
        path = save(self)
        if when(self) and self.folder not in folders and len(folders) < most:
            folders.append(self.folder)
            signal.raise_signal(signal.SIGINT)
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active.ActiveRun, "_save_now", save_and_stop)
        yield folders
