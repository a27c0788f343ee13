"""Warnings about episodes without end."""

from __future__ import annotations

from rljax.learning.evaluation import LIMIT, Episodes


def endless(env: str, limit: int | None, steps: int) -> str:
    """No episode has ended in `steps` steps of each `env`, with the time limit `limit` or None."""
    return (
        f"no episode of training has ended in {steps:,} steps of each environment: metrics "
        f"have no returns. {_limitless(env, limit)}"
    )


def cut(env: str, limit: int | None, episodes: Episodes) -> str:
    """Some evaluated episodes of `env`, with the time limit `limit` or None, were cut."""
    return (
        f"{episodes.cut.sum()} of {episodes.cut.size} evaluated episodes were cut at "
        f"{limit or LIMIT:,} steps, before their end, and so are their returns ('cut' in "
        f"evaluations.jsonl). {_limitless(env, limit)}"
    )


def _limitless(env: str, limit: int | None) -> str:
    if limit is not None:
        return f"'{env}' goes on beyond the time limit that it is registered with."
    return (
        f"'{env}' has no time limit. To give it one: gymnasium.register(..., max_episode_steps=N), "
        "or max_episode_steps in the class of an environment in a file."
    )
