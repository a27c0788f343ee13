"""Numbers of a hand-over by hand, and where runs hand over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rljax.analysis import handover
from tests.helpers.run_folders import write


def curve(*values: float) -> handover.Handover:
    """Evaluations every 10 steps."""
    return handover.Handover(10 * np.arange(len(values)), np.array(values))


def test_numbers_by_hand() -> None:
    fallen = curve(50, 20, 40, 60, 80)
    assert (fallen.before, fallen.dip, fallen.recovery, fallen.final) == (50, 30, 30, 80)
    assert fallen.average == pytest.approx((35 + 30 + 50 + 70) / 4)
    assert handover.regret(fallen) == pytest.approx(1 - 0.5)
    rising = curve(50, 60)
    assert (rising.dip, rising.recovery) == (0, 0), "it is never below"
    lost = curve(50, 10, 20)
    assert lost.recovery is None
    assert curve(5).average == 5


def test_runs_hand_over_after_their_updates_or_at_their_beginning(tmp_path: Path) -> None:
    scores = {"evaluation": {"scores": [10.0, 30.0]}, "steps": (0, 10, 20), "budget": 20}
    from_run = write(tmp_path / "from", from_run="runs/other", **scores)
    (first, *_) = handover.handovers(from_run)
    assert first.steps.tolist() == [0, 10, 20]
    assert first.values.tolist() == pytest.approx([0, 500, 1000])
    assert handover.handovers(from_run, scores=True)[0].values.tolist() == [20.0] * 3
    then_online = write(tmp_path / "online", steps=(10, 20, 30), budget=20, then_online=10)
    (first, *_) = handover.handovers(then_online)
    assert first.steps.tolist() == [0, 10]
    with pytest.raises(ValueError, match=r"has no normalised scores"):
        handover.handovers(then_online, scores=True)
    with pytest.raises(ValueError, match=r"has not come to its hand-over at step 40"):
        handover.handovers(write(tmp_path / "early", steps=(10, 20), budget=40, then_online=10))
