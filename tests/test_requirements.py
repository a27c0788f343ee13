"""Types that say a setting's range, and the messages of what lies outside."""

from __future__ import annotations

from typing import Any

import pytest

from rljax import agent
from rljax.requirements import (
    Backtrack,
    Count,
    Decay,
    LogStd,
    NonNegative,
    Positive,
    Real,
    Share,
    Whole,
    Widths,
    check_types,
)


@agent.config
class Settings:
    share: Share = 0.5
    rate: NonNegative = 0.0
    positive: Positive | None = None
    real: Real | None = None
    log_std: LogStd = 0.0
    decay: Decay = 0.0
    backtrack: Backtrack = 0.5
    count: Count = 1
    whole: Whole = 0
    widths: Widths = (4, 4)
    free: float = -7.0


def test_defaults_lie_in_their_ranges() -> None:
    check_types(Settings())


def test_types_are_floats_to_jax() -> None:
    assert agent.float_fields(Settings) == (
        "share",
        "rate",
        "positive",
        "real",
        "log_std",
        "decay",
        "backtrack",
        "free",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 1.5}, r"^--config\.share is 1\.5, it must be finite and in \[0, 1\]\.$"),
        ({"share": (0.5, -0.1)}, r"^--config\.share is -0\.1, it must be finite and in \[0, 1\]"),
        ({"rate": -1.0}, r"^--config\.rate is -1, it must be finite and at least 0\.$"),
        ({"rate": float("nan")}, r"^--config\.rate is nan, it must be finite and at least 0\.$"),
        ({"positive": 0.0}, r"^--config\.positive is 0, it must be finite and above 0\.$"),
        ({"decay": -0.1}, r"^--config\.decay is -0\.1, it must be finite and at least 0\.$"),
        ({"decay": 1.0}, r"^--config\.decay is 1, it must be below 1\.$"),
        ({"decay": 1.0 - 1e-9}, r"^--config\.decay is 0\.999999999, it must be below 1\.$"),
        ({"backtrack": (0.5, 0.0)}, r"^--config\.backtrack is 0, it must be finite and above 0\.$"),
        ({"real": float("inf")}, r"^--config\.real is inf, it must be finite\.$"),
        ({"real": 1e39}, r"^--config\.real is 1e\+39, it must be finite\.$"),
        ({"log_std": 31.0}, r"^--config\.log-std is 31, it must be finite and in \[-30, 30\]\.$"),
        ({"count": 0}, r"^--config\.count is 0, it must be at least 1\.$"),
        ({"whole": -1}, r"^--config\.whole is -1, it must be at least 0\.$"),
        ({"widths": (4, 0)}, r"^--config\.widths is \(4, 0\): each layer has at least 1 unit\.$"),
    ],
)
def test_refuses_what_lies_outside(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_types(Settings(**changes))
