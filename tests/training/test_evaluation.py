"""What evaluation says about episodes that nothing ends."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.training import evaluation


def test_episodes_that_nothing_ends_are_said_to_be_cut() -> None:
    lengths = np.array([[evaluation.LIMIT, 12, evaluation.LIMIT]])
    spec = EnvSpec("Maze-v0", (1,), 1)
    with pytest.warns(
        UserWarning, match=r"'Maze-v0' has no time limit, and nothing ended 2 of 3 .* after 10,000 steps"
    ):
        evaluation._warn_of_cuts(spec, lengths)


@pytest.mark.parametrize(("limit", "length"), [(None, 12), (20_000, 10_000), (10_000, 10_000)])
def test_other_episodes_are_not(limit: int | None, length: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluation._warn_of_cuts(EnvSpec("Maze-v0", (1,), 1, max_episode_steps=limit), np.array([[length]]))
