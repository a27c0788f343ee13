"""`rljax train` hands its options to the run."""

from __future__ import annotations

from typing import Any

import pytest

from rljax import cli


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], [0]),
        (["--seeds", "3"], [0, 1, 2]),
        (["--seed", "7"], [7]),
        (["--seed", "3", "--seeds", "2"], [3, 4]),
    ],
)
def test_seeds_count_from_the_first(
    flags: list[str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    monkeypatch.setattr("rljax.runs.run.train", lambda **what: trained.extend(what["seeds"]))
    cli.main(["train", "sac", "--env", "rljax/Pendulum", *flags])
    assert trained == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], None),
        (["--online", "config.actor-lr=1e-4"], {"actor_lr": 1e-4}),
        (
            ["--online", "config.tau=0.1", "--online=config.batch-size=1e2"],
            {"target_rate": 0.1, "batch_size": 100},
        ),
    ],
)
def test_changes_online_are_settings_by_name(
    flags: list[str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: Any = {}
    monkeypatch.setattr("rljax.runs.run.train", lambda **what: handed.update(what))
    words = "train td3_bc --data d4rl/hopper-medium-v2 --then-online 1e3 --base runs/before"
    cli.main([*words.split(), *flags])
    assert (handed["online"], handed["base"]) == (expected, "runs/before")
