"""Policies and their networks: actions, entropy, steps and gradients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from rljax.analysis.diagnosis.finding import RunFinding, of_learners
from rljax.analysis.diagnosis.history import History, failing, quiet
from rljax.analysis.formatting import plain

SATURATED = 0.9  # share of the numbers of actions at their bounds
COLLAPSED = 0.05  # of the entropy of uniform choices
NARROW = -4.0  # nats per dimension: a standard deviation of 0.004
FAR = 2.0  # standard deviations; a counter has about 3, observations that settle 1 or less
MOST_DRIFT = 5.0  # standard deviations in the second half of a run
FEWEST_LINES = 8  # of metrics in it, to see a drift

STILL = 1e-6  # of the divergence between policies before and after an update

ENTROPY, DRIFT, KL = "actor/entropy", "observations/drift", "actor/kl"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A metric whose level at the end of the run is wrong."""

    metric: str
    above: float = math.inf
    below: float = -math.inf
    title: str = ""
    remedy: str = ""
    only_failing: bool = False  # learners whose returns are fine may have it

    def found(self, history: History) -> Iterator[RunFinding]:
        """The finding, if any learner breaks the rule."""
        level = history.level(self.metric)
        flags = quiet(lambda: (level > self.above) | (level < self.below))
        if self.only_failing:
            flags &= failing(history)
        limit = self.below if math.isinf(self.above) else self.above
        side = "below" if math.isinf(self.above) else "above"
        yield from of_learners(
            history,
            flags,
            lambda k: f"'{self.metric}' is {plain(level[k])} at the end, {side} {plain(limit)}",
            self.metric.replace("/", "-").replace("_", "-"),
            self.title,
            self.remedy,
        )


RULES = (
    Rule(
        KL,
        above=0.1,
        title="The policy moves too far in each update.",
        remedy="Lower the learning rate or the number of epochs. Healthy are 0.002 to 0.03.",
    ),
    Rule(
        "actor/clipped",
        above=0.5,
        title="Most ratios of new and old probabilities are clipped.",
        remedy="Lower the learning rate or the number of epochs. Healthy are 0.05 to 0.3.",
    ),
    Rule(
        "actor/step",
        below=0.05,
        title="The line search refuses almost all steps, so the policy stays as it is.",
        remedy="Use larger rollouts, a larger damping, or a smaller limit of the step.",
        only_failing=True,
    ),
    Rule(
        "actor/weight",
        below=1e-3,
        title="The weights of the data's actions are near 0, so hardly anything is imitated.",
        remedy="Lower the inverse temperature, or scale rewards.",
        only_failing=True,
    ),
    Rule(
        "critic/clipped",
        above=0.25,
        title="Many targets lie beyond the ends of the critic's support.",
        remedy="Set --config.v-min and --config.v-max to the smallest and the largest discounted "
        "return of the task.",
    ),
    Rule(
        "critic/explained_variance",
        below=0.0,
        title="The critic predicts returns worse than their mean does.",
        remedy="Give the critic more updates or a higher learning rate, normalise observations "
        "and rewards, and look whether 'critic/loss' grows.",
        only_failing=True,
    ),
    Rule(
        "cost/recovers",
        above=0.9,
        title="Almost all updates only try to lower the cost.",
        remedy="The limit may be out of reach: raise it, or begin with a policy that keeps it.",
    ),
)


def standstill(history: History) -> Iterator[RunFinding]:
    """A policy that no update moves."""
    if KL not in history.metrics:
        return
    largest = quiet(np.nanmax, np.abs(history.metrics[KL]), axis=0)
    flags = quiet(np.less, largest, STILL)
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"the largest '{KL}' of {len(history.steps):,} lines of metrics is {largest[k]:.2g}"
        ),
        "policy-still",
        "No update moves the policy: its gradients are always clipped to nothing, or its "
        "learning rate is too small.",
        "Raise the limit of the gradient's norm (--config.max-grad-norm; 0 is no limit) or the "
        "learning rate. Healthy are 0.002 to 0.03.",
    )


def rules(history: History) -> Iterator[RunFinding]:
    """Metrics whose level is wrong whatever the others say."""
    for rule in RULES:
        yield from rule.found(history)


def saturation(history: History) -> Iterator[RunFinding]:
    """Actions at their bounds. Some tasks are solved so: only where returns are bad."""
    share_at_bounds = history.numbers("at_bounds")
    if not len(share_at_bounds):
        return
    last = share_at_bounds[-1]
    flags = quiet(np.greater, last, SATURATED) & failing(history)
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"{last[k]:.0%} of the actions of the last evaluation lie at a bound "
            f"(step {history.evaluation_steps[-1]:,})"
        ),
        "saturated-actions",
        "Actions are saturated at their bounds, and returns are bad.",
        "Lower the actor's learning rate, scale rewards down, normalise observations, and see "
        "that the environment's action bounds are those that it needs.",
    )


def entropy(history: History) -> Iterator[RunFinding]:
    """A policy that has become deterministic before it was good."""
    level = history.level(ENTROPY, share=0.5)
    spec, first = history.spec, history.metrics.get(ENTROPY)
    if first is None:
        return
    if spec.discrete:
        most = sum(math.log(max(n, 1)) for n in spec.choices or (spec.action_size,))
        limit = COLLAPSED * most
        words = f"; {plain(most)} nats would be uniform"
    else:
        limit = NARROW * max(spec.numbers, 1)
        words = f", for {spec.numbers} numbers of an action"
    flags = quiet(np.less, level, limit) & failing(history)

    def evidence(learner: int) -> str:
        below = np.flatnonzero(quiet(np.less, first[:, learner], limit))  # not empty: see `flags`
        return (
            f"the median of '{ENTROPY}' in the second half is {plain(level[learner])} nats, below "
            f"{plain(limit)} since step {history.steps[below[0]]:,}{words}"
        )

    yield from of_learners(
        history,
        flags,
        evidence,
        "entropy-collapse",
        "The entropy has collapsed: the policy explores no more, and returns are bad.",
        "Raise the weight of the entropy (--config.entropy-cost) or its target, or lower the "
        "learning rate, so that the policy explores for longer.",
    )


def drift(history: History) -> Iterator[RunFinding]:
    """Statistics of observations that do not settle.

    A line's observations lie apart from all before by about its drift times steps / its steps.
    """
    column = history.metrics.get(DRIFT)
    half = 0 if column is None else len(column) // 2
    if column is None or len(column) - half < FEWEST_LINES:
        return
    parts = np.diff(history.steps, prepend=0) / history.steps
    apart = column[half:] / parts[half:, None]
    often = quiet(np.nanquantile, apart, 0.25, axis=0)
    moved = quiet(np.nansum, column[half:], axis=0)
    flags = quiet(lambda: (often > FAR) | (moved > MOST_DRIFT))
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"after step {history.steps[half - 1]:,}, mean and std of an observation moved by "
            f"{plain(moved[k])} standard deviations; in three of four lines of metrics new "
            f"observations lie over {plain(often[k])} apart from all before"
        ),
        "unsteady-normaliser",
        "The statistics that normalise observations do not settle.",
        "An observation grows without bound, or changes its range: a counter, a time, a "
        "position far away, a sensor that jumps. Leave it out, bound it, or give its change.",
    )
