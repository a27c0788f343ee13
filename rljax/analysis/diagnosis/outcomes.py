"""Returns and costs of evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rljax.analysis.diagnosis.finding import RunFinding, of_learners
from rljax.analysis.diagnosis.history import CLEAR, History, mean_and_error, quiet
from rljax.analysis.formatting import plain

FALL = 0.3  # of the way from the random policy to the best evaluation
NOISE = 3.0  # standard errors
LATEST = 3  # evaluations that must all be below the best one
COST = "cost"  # the signal that `cost_limit` limits
MARGIN = 0.05  # of a limit


def by_chance(history: History) -> Iterator[RunFinding]:
    """A return that random actions have, too."""
    if not len(history.random) or not len(history.returns):
        return
    level, noise = mean_and_error(history.random)
    last, error = _over_learners(history, -1)
    if math.isnan(last) or last - level > CLEAR * math.hypot(error, noise):
        return
    yield RunFinding(
        "no-better-than-random",
        "The return is no better than a random policy's.",
        f"the last evaluation (step {history.evaluation_steps[-1]:,}) returned {plain(last)} "
        f"+- {plain(error)}, uniform actions {plain(level)} +- {plain(noise)}",
        "If the run is short, train for longer. If not: look at the other findings, try the "
        "preset or the settings of a similar task, and watch the policy (rljax play RUN).",
    )


def falling(history: History) -> Iterator[RunFinding]:
    """A return that has fallen after its best."""
    number_of = len(history.returns)
    if number_of <= LATEST:
        return
    means = [_over_learners(history, row)[0] for row in range(number_of)]
    if not np.isfinite(means).all():
        return
    best = int(np.argmax(means))
    if best >= number_of - LATEST:
        return
    after = max(means[-LATEST:])  # the best of the latest
    latest = float(np.mean(means[-LATEST:]))
    low = min(min(means), history.random.mean() if len(history.random) else math.inf)
    error = math.hypot(_over_learners(history, best)[1], _over_learners(history, -1)[1])
    needed = max(FALL * (means[best] - low), NOISE * error)
    if means[best] - latest > needed and means[best] - after > 0.5 * needed:
        yield RunFinding(
            "falling-return",
            "The return has fallen after its best.",
            f"{plain(means[best])} at step {history.evaluation_steps[best]:,}, "
            f"{plain(latest)} on average over the last {LATEST} evaluations (to step "
            f"{history.evaluation_steps[-1]:,})",
            "Use the best policy (--best of rljax eval and play; rljax.load(..., best=True)). "
            "Lower the learning rates, or let them fall over the run; for a replay, keep more "
            "transitions; see whether values or the entropy changed at that step.",
        )


def costly(history: History) -> Iterator[RunFinding]:
    """A cost above its limit."""
    mean, error = history.signal(COST)
    limits = np.array(
        [
            np.nan if (limit := history.setting("cost_limit", learner)) is None else limit
            for learner in range(history.learners)
        ]
    )
    margin = np.maximum(CLEAR * error, MARGIN * np.abs(limits))
    flags = quiet(np.greater, mean - limits, margin)
    multiplier = history.level("cost/multiplier")
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"{plain(mean[k])} +- {plain(error[k])} per episode in the last evaluation, the limit "
            f"is {plain(limits[k])}"
            + ("" if np.isnan(multiplier[k]) else f"; 'cost/multiplier' is {plain(multiplier[k])}")
        ),
        "cost-above-limit",
        "The cost is above its limit.",
        "Train for longer while the multiplier rises; raise its rate; or raise the limit, which "
        "no policy may keep: see whether any policy has a cost below it.",
    )


def _over_learners(history: History, row: int) -> tuple[float, float]:
    """The mean return of an evaluation, and its standard error over episodes."""
    means, errors = history.returns[row], history.errors[row]
    known = np.isfinite(means)
    if not known.any():
        return math.nan, math.nan
    error = math.sqrt(float(np.square(errors[known]).sum())) / int(known.sum())
    return float(means[known].mean()), error
