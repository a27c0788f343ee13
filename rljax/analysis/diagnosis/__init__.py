"""What looks wrong in a run, from its records alone."""

from __future__ import annotations

from pathlib import Path

from rljax.analysis.diagnosis import beginnings, outcomes, policies, values
from rljax.analysis.diagnosis.finding import RunFinding
from rljax.analysis.diagnosis.history import History
from rljax.analysis.formatting import count
from rljax.trust import printable

# In the order in which they are told: causes before their effects.
CHECKS = (
    beginnings.warm_up,
    beginnings.diverged,
    beginnings.endless_episodes,
    beginnings.no_reward,
    values.beyond_rewards,
    values.growing,
    values.lagging,
    policies.standstill,
    policies.rules,
    policies.saturation,
    policies.entropy,
    policies.drift,
    beginnings.one_behind,
    outcomes.by_chance,
    outcomes.falling,
    outcomes.costly,
    beginnings.time,
)


def findings(folder: Path) -> list[RunFinding]:
    """What looks wrong in the run in `folder`.

    Raises `ValueError` for a folder that is no run, damaged records, and a run that has recorded
    nothing yet.
    """
    return of_history(History.read(folder))


def of_history(history: History) -> list[RunFinding]:
    """What looks wrong in the records of a run."""
    return [finding for check in CHECKS for finding in check(history)]


def text(folder: Path) -> str:
    """The findings for the terminal; one line where nothing looks wrong."""
    history = History.read(folder)
    facts = [
        f"step {history.steps[-1]:,} of {history.budget:,}",
        count(history.learners, "learner"),
        count(len(history.evaluation_steps), "evaluation"),
    ]
    about = f"{printable(folder)} ({', '.join(facts)})"
    wrong = of_history(history)
    if not wrong:
        return f"{about}: nothing looks wrong."
    lines = [f"{about}: {count(len(wrong), 'thing')} {'look' if len(wrong) > 1 else 'looks'} wrong"]
    for place, finding in enumerate(wrong, 1):
        lines += [
            "",
            f"{place}. {finding.title} [{finding.name}]",
            f"   evidence: {printable(finding.evidence)}",
            f"   try: {finding.remedy}",
        ]
    return "\n".join(lines)


__all__ = ["RunFinding", "findings", "of_history", "text"]
