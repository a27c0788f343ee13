"""Learners that diverge, and are frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rljax.buffers.stream import TRANSITION
from rljax.learning import population
from rljax.learning.drivers.driver import ChunkReport
from rljax.learning.population import Frozen, Member


class NoLearnerLeft(Exception):
    """All learners have diverged; with the cause and a remedy."""


def freeze_diverged(
    frozen: Frozen,
    members: Sequence[Member],
    report: ChunkReport,
    step: int,
    warn: Callable[[str], None],
) -> None:
    """Freeze the learners with a metric that is not finite in the chunk that ends at `step`.

    `warn` takes a warning for each. Raises `NoLearnerLeft` where all are frozen.
    """
    for learner in map(int, np.flatnonzero(~frozen.mask)):
        bad = [
            (int(first[learner]), name)
            for name, first in report.first_bad.items()
            if first[learner] >= 0
        ]
        if bad:
            update, name = min(bad)
            cause, remedy = _explain(learner, members[learner], name, update, step)
            frozen.records[learner] = {"learner": learner, "step": step, "cause": cause}
            if frozen.mask.all():
                raise NoLearnerLeft(cause, remedy)
            warn(f"{cause}: it is kept as it was before, the others go on. {remedy}")


def _explain(learner: int, member: Member, name: str, update: int, step: int) -> tuple[str, str]:
    """The cause (which value is not finite) and a remedy."""
    of = f"of learner {learner} (seed {member.seed}"
    of += f", {population.label(member.settings)})" if member.settings else ")"
    if name == TRANSITION:
        cause = f"an observation or reward {of} is not finite in its step {update + 1}"
        return cause, "Mend the environment, or choose another."
    cause = f"metric '{name}' {of} is not finite from update {update} on, before step {step}"
    return cause, "If it happens again, lower the learning rates or scale the rewards."
