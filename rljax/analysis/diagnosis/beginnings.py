"""Whether a run learns at all: updates, episodes, rewards and learners."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rljax.analysis.diagnosis.finding import RunFinding, of_learners
from rljax.analysis.diagnosis.history import CLEAR, History, quiet
from rljax.analysis.formatting import plain

MOST_WARM_UP = 0.5  # of a run
FEWEST_LEARNERS = 3  # of which one can be far below the others
FAR_BELOW = 0.3  # of the others' way up from the random policy


def warm_up(history: History) -> Iterator[RunFinding]:
    """A warm-up that is the run, or most of it."""
    steps, updates = history.steps, history.updates
    first = history.config.get("first_update") or 0
    idle = steps[quiet(np.less_equal, updates, 0)]
    waited = max(first, int(idle[-1]) if len(idle) else 0)
    remedy = (
        "Train for more steps, or begin to learn earlier: a shorter warm-up "
        "(--config.warmup-steps), or shorter rollouts (--config.num-steps, --config.num-envs)."
    )
    if updates[-1] == 0:
        text = f"the last line of metrics is of step {steps[-1]:,} and of 'update' 0"
        text += f"; the first update comes after {first:,} steps" if first else ""
        yield RunFinding("warm-up", "Nothing has been learnt: there was no update.", text, remedy)
    elif waited > MOST_WARM_UP * max(history.budget, steps[-1]):
        text = (
            f"{waited:,} of {max(history.budget, steps[-1]):,} steps came before the first update; "
            f"there were {np.nan_to_num(updates[-1]):,.0f} updates by step {steps[-1]:,}"
        )
        title = "Most of the run is warm-up, in which nothing is learnt."
        yield RunFinding("warm-up", title, text, remedy)


def endless_episodes(history: History) -> Iterator[RunFinding]:
    """Episodes without an end."""
    cut = quiet(np.nansum, history.numbers("cut")[-1:])
    remedy = (
        "Give the environment a time limit: gymnasium.register(..., max_episode_steps=N), or "
        "max_episode_steps in the class of an environment in a file. If it has one, let each "
        "environment take more steps than that: a longer run, or fewer environments."
    )
    limit = history.spec.max_episode_steps
    ended = history.metrics.get("episode/length")
    if ended is not None and not history.from_data and not np.isfinite(ended).any():
        each = int(history.steps[-1]) // (history.config.get("num_envs") or 1)
        limited = "no time limit" if limit is None else f"a time limit of {limit:,} steps"
        text = (
            f"'episode/return' has no value in {len(ended):,} lines of metrics; each environment "
            f"took {each:,} steps, and has {limited}"
        )
        text += f"; {int(cut):,} evaluated episodes were cut" if cut else ""
        yield RunFinding("endless-episodes", "No episode of training has ended.", text, remedy)
    elif cut:
        text = (
            f"{int(cut):,} episodes of the last evaluation were cut after "
            f"{history.longest_episode:,} steps, so returns are of parts of episodes"
        )
        title = "Evaluated episodes do not end by themselves."
        yield RunFinding("endless-episodes", title, text, remedy)


def no_reward(history: History) -> Iterator[RunFinding]:
    """Rewards that were all 0."""
    largest = history.numbers("largest_reward")
    if np.isfinite(largest).any() and not (largest > 0).any() and not np.any(history.random):
        yield RunFinding(
            "no-reward",
            "No evaluated episode has had a reward other than 0.",
            f"the largest reward of {formatted(history)} is 0",
            "The policy never meets the reward: make it denser, begin nearer to the goal, explore "
            "longer, or use goals in hindsight.",
        )


def formatted(history: History) -> str:
    """How many evaluations there were."""
    number_of = len(history.evaluation_steps)
    return f"{number_of:,} evaluation{'s' if number_of != 1 else ''}"


def diverged(history: History) -> Iterator[RunFinding]:
    """Learners that met a number that is not finite, and are frozen."""
    entries = {
        entry["learner"]: entry
        for entry in history.summary.get("diverged", [])
        if 0 <= entry["learner"] < history.learners
    }
    if history.evaluations:
        for learner, record in history.evaluations[-1].items():
            if record.get("diverged"):
                entries.setdefault(learner, {})
    if not entries:
        return
    causes = [
        str(entry.get("cause") or f"{history.name(learner)}, by its last evaluation")
        for learner, entry in sorted(entries.items())
    ]
    more = f"; and {len(causes) - 3} more" if len(causes) > 3 else ""
    whose = "The learner has"
    if history.learners > 1:
        whose = f"{len(entries)} of {history.learners} learners have"
    yield RunFinding(
        "diverged",
        f"{whose} diverged: a number was not finite, and nothing is learnt since.",
        "; ".join(causes[:3]) + more,
        "Lower the learning rates, scale rewards down, or limit gradients. If an observation or a "
        "reward was not finite, mend the environment.",
    )


def one_behind(history: History) -> Iterator[RunFinding]:
    """A learner far below the others."""
    if history.learners < FEWEST_LEARNERS or not len(history.returns):
        return
    last = history.returns[-1]
    low = history.random.mean() if len(history.random) else np.nanmin(history.returns[0])
    flags = np.zeros(history.learners, bool)
    for learner in range(history.learners):
        others = np.delete(last, learner)
        level, spread = np.median(others), others.max() - others.min()
        noise = CLEAR * np.hypot(history.errors[-1, learner], np.median(history.errors[-1]))
        gap = level - last[learner]
        rise = level - low
        flags[learner] = rise > 0 and gap > max((1 - FAR_BELOW) * rise, spread, noise)
    yield from of_learners(
        history,
        flags,
        lambda k: (
            f"return {plain(last[k])} at step {history.evaluation_steps[-1]:,}, the median of the "
            f"others is {plain(float(np.median(np.delete(last, k))))}"
        ),
        "learner-behind",
        "One learner is far below the others.",
        "Seeds differ this much where learning is fragile: train more seeds before comparing "
        "anything, then lower the learning rates, or explore more at the beginning.",
    )


def time(history: History) -> Iterator[RunFinding]:
    """Time that is spent elsewhere than in learning."""
    seconds, summary = history.summary.get("seconds") or {}, history.summary
    wall, compiling = summary.get("wall_seconds") or 0, summary.get("compile_seconds") or 0
    training, stepping = seconds.get("training") or 0, seconds.get("stepping") or 0
    evaluating = seconds.get("evaluating") or 0
    rate = summary.get("steps_per_second") or 0
    each = stepping / max(rate * training, 1)  # seconds of one step
    if stepping > SLOW_SHARE * training > 0 and each > SLOW_STEP and stepping > SHORT:
        yield RunFinding(
            "slow-environment",
            "Most of the time passes in the steps of the environment.",
            f"{stepping:,.0f} s of {training:,.0f} s in the training loop "
            f"({min(stepping / training, 1):.0%}), {1000 * each:,.2g} ms for each step",
            "Step several environments at once in processes (--env async/NAME with "
            "--config.num-envs), use a faster simulator or one inside the program, or do more "
            "updates per step (--config.num-updates).",
        )
    rest = {"compiling": compiling, "evaluating": evaluating}
    remedies = {
        "compiling": "Nothing is wrong where a run is short. Compiled programs are kept for the "
        "next run with the same shapes: see that the cache can be written (rljax doctor). Several "
        "learners in one run compile once (--seeds K).",
        "evaluating": "Evaluate more rarely (--eval-every) or play fewer episodes "
        "(--eval-episodes).",
    }
    for part, taken in rest.items():
        if taken > MOST_TIME * wall and taken > LONG:
            yield RunFinding(
                f"slow-{part}",
                f"Most of the time passes in {part}.",
                f"{taken:,.0f} s of {wall:,.0f} s ({taken / wall:.0%})",
                remedies[part],
            )


SLOW_SHARE = 0.6  # of the loop's time, in the environment
SLOW_STEP = 1e-3  # seconds of one step of one environment
SHORT = 2.0  # seconds in the environment that nobody minds
MOST_TIME = 0.5
LONG = 120.0  # seconds of compiling or evaluating that nobody minds
