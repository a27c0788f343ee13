"""Runs of agents with more than networks in their state go on as if they had not been stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.learning import registry
from tests.helpers import small_runs
from tests.runs import parts

NARROW: dict[str, Any] = {"hidden": (8, 8), "critic_hidden": (8, 8), "encoder_hidden": (8, 8)}
RATES: dict[str, Any] = {"rate_updates": 500.0}  # by default they fall over a run's own length
# Settings of each, and what is then in the checkpoint.
AGENTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "xqc": (RATES, ("batch_stats", "returns")),
    "crossq": ({}, ("batch_stats",)),
    "flashsac": (RATES, ("batch_stats", "returns")),
    "simbav2": (RATES, ("statistics", "returns")),
    "bro": ({"reset_at": (100, 230), "num_updates": 1}, ("optimist",)),
    "td7": (
        {"hidden": (8, 8, 8), "target_every": 50, "checkpoints": True},
        ("assessment", "index"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_a_resumed_run_is_the_same_bit_for_bit(agent: str, tmp_path: Path) -> None:
    """Batch statistics, scales of rewards, held noise, resets, priorities, kept policies."""
    changes, kept = AGENTS[agent]
    fields = registry.load_agent(agent).Config.__dataclass_fields__
    small = {name: value for name, value in NARROW.items() if name in fields}
    train = partial(small_runs.train, agent, "rljax/Pendulum", config=small | changes, seeds=2)
    whole, _ = parts.resumed(train, 300, 400, tmp_path)
    places = small_runs.arrays(whole)
    for name in kept:
        found = [x for place, x in places.items() if name in place]
        assert any(np.any(x) for x in found), f"{name} is in none of {sorted(places)}"
