"""`rljax train` hands its options to the run."""

from __future__ import annotations

import pytest

from rljax import cli


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], [0]), (["--seeds", "3"], [0, 1, 2]), (["--seed", "7"], [7]), (["--seed", "3", "--seeds", "2"], [3, 4])],
)
def test_seeds_count_from_the_first(flags: list[str], expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    monkeypatch.setattr("rljax.runs.run.train", lambda **what: trained.extend(what["seeds"]))
    cli.main(["train", "sac", "--env", "rljax/Pendulum", *flags])
    assert trained == expected
