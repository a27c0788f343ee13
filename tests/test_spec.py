"""`rljax.spec`: names that are near."""

from __future__ import annotations

import pytest

from rljax import spec


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Hoper-v5", " Nearest: 'Hopper-v5', 'Hopper-v4'."),
        ("hopper-v4", " Nearest: 'Hopper-v4', 'Hopper-v5'."),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_nearest(name: str, expected: str) -> None:
    assert spec.nearest(name, ["Ant-v5", "Hopper-v4", "Hopper-v5"]) == expected
