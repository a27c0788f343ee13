"""The settings of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rljax.learning.settings import MOST_LEARNERS, Settings, check_settings, seeds_of


def test_whole_numbers_of_any_type_become_int() -> None:
    made = Settings(
        "sac", "Hopper-v5", steps=1e6, eval_every=np.int64(10), seeds=(np.uint32(3), 4.0)
    )  # type: ignore[arg-type]
    assert (made.steps, made.eval_every, made.seeds) == (1_000_000, 10, (3, 4))
    assert {type(x) for x in (made.steps, made.eval_every, *made.seeds)} == {int}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"steps": 1.5}, TypeError, r"^--steps is 1\.5, it must be int: a whole number"),
        ({"steps": "1000"}, TypeError, r"^--steps is '1000', it must be int"),
        ({"eval_episodes": True}, TypeError, r"^--eval-episodes is True, it must be int"),
        ({"log_every": 1e30}, ValueError, r"^--log-every is 1e\+30, it must be at most 1"),
        (
            {"then_online": 10**22},
            ValueError,
            r"^--then-online is 10,000,000,000,000,000,000,000, it must be at most 1",
        ),
        ({"seeds": (0.5,)}, TypeError, r"^a seed is 0\.5, it must be int"),
    ],
)
def test_other_numbers_are_refused(
    values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Settings("sac", "Hopper-v5", **values)


@pytest.mark.parametrize("seeds", [3, 3.0, np.int32(3), range(3), [0, 1, 2]])
def test_seeds_of_a_number_of_learners(seeds: Any) -> None:
    assert seeds_of(seeds) == (0, 1, 2)


@pytest.mark.parametrize(
    ("seeds", "number"),
    [(MOST_LEARNERS + 1, "1,000,001"), (range(5, 10**17 + 5), "100,000,000,000,000,000")],
)
def test_too_many_learners_are_refused_at_once(seeds: Any, number: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^--seeds asks for {number} learners, .*at most 1,000,000\.$"
    ):
        seeds_of(seeds)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"weights": "best"},
            r"^--weights is 'best', it must be one of uniform, return, advantage, top\.$",
        ),
        (
            {"weights": "return", "data": None},
            r"^--weights return is of the rows of a data set: give --data",
        ),
        ({"weights": "return", "weights_alpha": 0.0}, r"^--weights-alpha is 0, it must be above 0"),
        (
            {"weights": "advantage", "weights_alpha": float("nan")},
            r"^--weights-alpha is nan, it must be above 0",
        ),
        (
            {"weights": "top", "weights_share": 1.5},
            r"^--weights-share is 1\.5, it must lie in \(0, 1\]",
        ),
        (
            {"weights_alpha": 0.2},
            r"^--weights-alpha is for --weights return or --weights advantage\.$",
        ),
        ({"weights": "return", "weights_share": 0.2}, r"^--weights-share is for --weights top\.$"),
    ],
)
def test_weights_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_settings(Settings(**({"agent": "iql", "env": "none", "data": "some.npz"} | values)))


@pytest.mark.parametrize(
    "share", [1.0, -0.1, "half", "0.5", "0.5:0", "2:0:100", "0.5:0:0", "0.5:x:100", float("nan")]
)
def test_shares_of_a_data_set_are_checked(share: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"^--offline-share is .*, it must lie in \[0, 1\), be 'pooled', or change from",
    ):
        check_settings(Settings("sac", "Hopper-v5", offline_share=share))


def test_parts_are_named_beside_the_run_that_has_them() -> None:
    with pytest.raises(
        ValueError, match=r"^--from-parts names what learners take from the run of --from RUN"
    ):
        check_settings(Settings("sac", "Hopper-v5", from_parts=("actor",)))
