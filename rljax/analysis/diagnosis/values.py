"""Values: what rewards allow, and what episodes have shown."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rljax.analysis.diagnosis.finding import RunFinding, of_learners
from rljax.analysis.diagnosis.history import History, failing, quiet
from rljax.analysis.formatting import plain

VALUES = ("critic/q", "critic/value", "value/v")  # the first that a run has counts
TARGET, LOSS = "critic/target", "critic/loss"
CLIPPED_REWARD = 10.0  # the largest normalised reward
BEYOND = 2.0  # times what rewards allow
UNSEEN = 3.0  # times the rewards of the longest episode
GROWTH = 1.3  # from one quarter of the run to the next
EXPLOSION = 10.0
LONG = 10.0  # times the longest episode: a discount's horizon that few runs learn
LAG = 0.5  # of the target, by which values stay away from it


def beyond_rewards(history: History) -> Iterator[RunFinding]:
    """Values that no sum of rewards can have."""
    name = _name(history)
    largest = _largest_rewards(history)
    if name is None or largest is None:
        return
    column = np.abs(history.metrics[name])
    discounts = _discounts(history)
    bound = quiet(np.divide, largest + _entropy_bonus(history), 1.0 - discounts)
    highest = quiet(np.nanmax, column, axis=0)
    flags = quiet(lambda: np.isfinite(bound) & (highest > BEYOND * bound))

    def evidence(learner: int) -> str:
        at = int(np.argmax(np.nan_to_num(column[:, learner])))
        return (
            f"|{name}| reached {plain(highest[learner])} at step {history.steps[at]:,}; "
            f"rewards of at most {plain(largest[learner])} with a discount of "
            f"{discounts[learner]:g} allow {plain(bound[learner])}"
        )

    yield from of_learners(
        history,
        flags,
        evidence,
        "values-beyond-rewards",
        "Values are beyond what rewards allow: the critic overestimates or diverges.",
        "Lower the critic's learning rate, move targets more slowly, or scale rewards down. "
        "See that `terminated` is set where the task ends, and `truncated` at a time limit.",
    )


def growing(history: History) -> Iterator[RunFinding]:
    """Values that grow on and on, while returns are bad, or beyond all that episodes have shown."""
    name = _name(history)
    if name is None or len(history.metrics[name]) < 8:
        return
    column = np.abs(history.metrics[name])
    quarters = [quiet(np.nanmedian, part, axis=0) for part in np.array_split(column, 4)]
    _, second, third, fourth = quarters
    grows = quiet(lambda: (third > GROWTH * second) & (fourth > GROWTH * third))
    explodes = quiet(lambda: (third > EXPLOSION * second) & (fourth > EXPLOSION * third))
    largest = _largest_rewards(history)
    unseen = np.zeros(history.learners, bool)
    if largest is not None:
        longest = history.longest_episode or np.inf
        unseen = quiet(np.greater, fourth, UNSEEN * largest * longest)
        explodes &= quiet(np.greater, fourth, largest)
        grows &= quiet(np.greater, fourth, largest)
    # Values that are on their way to what a sound horizon allows grow too, in a run that is short.
    horizon = quiet(np.divide, 1.0, 1.0 - _discounts(history))
    far = horizon > LONG * (history.longest_episode or np.inf)
    flags = explodes | (grows & (unseen | (far & failing(history))))
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"the median of |{name}| was {plain(second[k])}, {plain(third[k])} and "
            f"{plain(fourth[k])} in the last three quarters of the run"
        ),
        "values-growing",
        "Values grow on and on.",
        "Lower the discount (its horizon 1 / (1 - gamma) may be longer than any episode), "
        "scale rewards down, lower the critic's learning rate, or move targets more slowly.",
    )


def lagging(history: History) -> Iterator[RunFinding]:
    """Values that do not come near their targets."""
    if "critic/q" not in history.metrics or TARGET not in history.metrics:
        return
    value, target = history.level("critic/q"), history.level(TARGET)
    distance = np.abs(value - target)
    flags = quiet(lambda: distance > LAG * np.maximum(np.abs(target), np.abs(value)))
    loss = history.level(LOSS)
    flags &= quiet(lambda: loss > np.square(LAG * target))
    largest = _largest_rewards(history)
    if largest is not None:
        flags &= quiet(np.greater, np.abs(target), largest)
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"'critic/q' is {plain(value[k])} and '{TARGET}' {plain(target[k])} at the end, with "
            f"a '{LOSS}' of {plain(loss[k])}"
        ),
        "values-behind-targets",
        "The critic does not come near its targets.",
        "The targets are too large for it: scale rewards down (--config.reward-scale), lower "
        "the discount, or raise the critic's learning rate.",
    )


def _discounts(history: History) -> np.ndarray:
    numbers = [history.setting("discount", learner) or 1.0 for learner in range(history.learners)]
    return np.array(numbers)


def _name(history: History) -> str | None:
    return next((name for name in VALUES if name in history.metrics), None)


def _largest_rewards(history: History) -> np.ndarray | None:
    """The largest absolute reward as each critic learns from it, [P]; None where it is unknown.

    Evaluations have shown the environment's own. Data sets may have others.
    """
    seen = history.numbers("largest_reward")
    if history.from_data or not np.isfinite(seen).any():
        return None
    largest = float(np.nanmax(seen))
    if largest == 0:
        return None
    rewards = np.full(history.learners, largest)
    for learner in range(history.learners):
        if history.setting("clip_rewards", learner):
            rewards[learner] = min(rewards[learner], 1.0)
        rewards[learner] *= history.setting("reward_scale", learner) or 1.0
        rewards[learner] += abs(history.setting("reward_shift", learner) or 0.0)
        if history.setting("normalise_rewards", learner):
            # Streams do not clip: their rewards have no bound.
            rewards[learner] = CLIPPED_REWARD if history.config["storage"] == "rollout" else np.inf
    return rewards


def _entropy_bonus(history: History) -> np.ndarray:
    """What an entropy bonus adds to a step's reward, at most, [P]."""
    names = ("temperature/value", "actor/entropy")
    if not all(name in history.metrics for name in names):
        return np.zeros(history.learners)
    bonus = np.abs(history.metrics[names[0]] * history.metrics[names[1]])
    return np.nan_to_num(quiet(np.nanmax, bonus, axis=0))
