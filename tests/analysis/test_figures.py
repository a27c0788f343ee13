"""Figures with one panel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from rljax.analysis import figures
from rljax.analysis.comparison import Estimate


def estimate(value, low, high):
    return Estimate(value, low, high, (3, 3), 1)


def line(panel, label):
    return next(line for line in panel.get_lines() if line.get_label() == label)


def test_a_figure_of_curves(tmp_path):
    steps = np.array([0.0, 100.0])
    lines = {
        "a": figures.Line("a (3 learners)", steps, steps, steps - 1, steps + 1, [(steps, steps)])
    }
    references = {"a": ("a by them", [0, 100], [0, 90], [1, 2])}
    figure = figures.curves(
        "Hopper-v5", lines, figures.line_styles("a"), references, ("steps", "score")
    )
    (panel,) = figure.axes
    assert (panel.get_title(), panel.get_xlabel(), panel.get_ylabel()) == (
        "Hopper-v5",
        "steps",
        "score",
    )
    (drawn,) = figure.legends
    assert [text.get_text() for text in drawn.get_texts()] == [
        "a (3 learners)",
        "a by them, published (mean ± standard deviation)",
    ]
    assert panel.get_legend() is None
    assert len(panel.get_lines()) == 3


def test_a_figure_of_intervals():
    estimates = {"a": estimate(0.6, 0.5, 0.7), "b": estimate(0.4, np.nan, np.nan)}
    figure = figures.intervals(estimates, figures.line_styles(estimates), "P", "Improvement", 0.5)
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.get_yticklabels()] == ["a", "b"]
    bar, dot = panel.get_lines()[1:3]
    np.testing.assert_array_equal(bar.get_xdata(), [0.5, 0.7])
    assert list(dot.get_xdata()) == [0.6]
    assert panel.yaxis_inverted()


def test_a_figure_of_profiles():
    thresholds = np.linspace(0, 1, 5)
    profile = estimate(1 - thresholds, 0.9 - thresholds, 1.1 - thresholds)
    figure = figures.profiles(
        thresholds, {"a": profile}, figures.line_styles("a"), "score", "Profiles"
    )
    (panel,) = figure.axes
    np.testing.assert_array_equal(line(panel, "a").get_ydata(), profile.value)


def test_importing_the_module_does_not_import_matplotlib():
    code = "import sys, rljax.analysis.figures; assert 'matplotlib' not in sys.modules"
    root = Path(figures.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
