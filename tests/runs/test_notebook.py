"""Runs in a notebook: the display, and a real kernel."""

from __future__ import annotations

import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.learning.settings import Settings
from rljax.runs import resumption
from rljax.runs.display import console, notebook


class Handle:
    """What a cell shows in one place, over time."""

    def __init__(self, first: Any) -> None:
        self.shown = [first]

    def update(self, content: Any) -> None:
        self.shown.append(content)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """The places below the cell of a kernel."""
    places: list[Handle] = []

    def display(content: Any, display_id: bool) -> Handle:
        assert display_id
        places.append(Handle(content))
        return places[-1]

    fake = types.SimpleNamespace(
        display=display, HTML=lambda text: text, Image=lambda data, format: data
    )
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(display=fake, get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(notebook, "SECONDS", 0.0)
    return places


def test_a_bar_and_a_curve_are_redrawn_in_place(handles: list[Handle], tmp_path: Path) -> None:
    assert not isinstance(console.create(True), notebook.Notebook)
    view = console.create(None)
    view.start(tmp_path, 200, Settings("ppo", "<b>$x^$"), 0)
    view.update(50, 10.0, float("nan"))
    view.evaluated(100, np.array([1.0, 3.0]), {"cost": np.array([5.0])}, np.array([0.25]), 0.5)
    view.update(150, 10.0, 2.0)
    view.evaluated(200, np.array([2.0, 4.0]), {})
    bar, curve = handles
    assert len(curve.shown) == 2
    assert all(picture.startswith(b"\x89PNG") for picture in curve.shown)
    assert curve.shown[0] != curve.shown[1]
    assert "return        2.0 (learners 1.0 to 3.0), success 25%, cost 5.0" in bar.shown[2]
    assert "200/200" in bar.shown[-1]
    assert "<b>" not in bar.shown[0]


def test_without_a_notebook_python_shows_no_progress() -> None:
    assert type(console.create(None)) is console.View


OWN = {"name": "mine.Farther", "settings": None}
READY = {"name": "StopAfter", "settings": {"seconds": 1.0}}


@pytest.mark.parametrize(
    ("env", "in_python", "callbacks", "text"),
    [
        ("Hopper-v5", False, [READY], "rljax resume runs/a"),
        ("Hopper-v5", True, [READY], "rljax.resume('runs/a')"),
        ("Hopper-v5", False, [READY, OWN], "rljax.resume('runs/a', callbacks=[...])"),
        ("python/Room", False, [OWN], "rljax.resume('runs/a', env=..., callbacks=[...])"),
    ],
)
def test_how_to_go_on(
    env: str, in_python: bool, callbacks: list[dict[str, Any]], text: str
) -> None:
    settings, parts = Settings("ppo", env), {"callbacks": callbacks, "loggers": []}
    assert resumption.call(Path("runs/a"), settings, in_python, parts) == text


TRAIN = """
import os, signal
import jax
import rljax

small = {"num_envs": 2, "num_steps": 64, "batch_size": 64, "actor_hidden": (4,),
         "critic_hidden": (4,)}
every = {"config": small, "log_every": 128, "eval_every": 256, "eval_episodes": 1}
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: programs.append(1) if "backend_compile" in event else None)
rljax.train("ppo", "rljax/Pendulum", 512, out="first", **every)
"""
AGAIN = """
programs.clear()
rljax.train("ppo", "rljax/Pendulum", 512, out="again", **every)
print("programs:", len(programs))
"""
INTERRUPTED = """
def interrupt(event):
    if isinstance(event, rljax.events.MetricsEvent):
        os.kill(os.getpid(), signal.SIGINT)

out = rljax.train("ppo", "rljax/Pendulum", 10**6, out="half", callbacks=[interrupt], **every)
print("the cell goes on")
"""


@pytest.mark.slow
def test_a_kernel(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(source) for source in (TRAIN, AGAIN, INTERRUPTED)]
    kernel = nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=cells), resources={"metadata": {"path": str(tmp_path)}}
    )
    kernel.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    outputs = [cell.outputs for cell in cells]
    data = [x.data for x in outputs[0] if x.output_type == "display_data"]
    assert ["image/png" in each for each in data] == [False, True]
    assert "512/512 ended" in data[0]["text/html"]
    printed = ["".join(x.text for x in each if x.output_type == "stream") for each in outputs]
    assert re.search(r"final return -?[\d,.]+ at 512 steps", printed[0])
    assert "programs: 0" in printed[1]
    assert "rljax.resume('half', callbacks=[...])\nthe cell goes on" in printed[2]
    assert (tmp_path / "half" / "checkpoints").is_dir()
