"""Stream: the agent learns from each transition at once and does not store it."""

from __future__ import annotations

from typing import ClassVar

from rljax.buffers.experience import Experience, declaration


@declaration
class Stream(Experience):
    """Each learner has one environment, and learns from each transition [O...] before it chooses the next action."""

    kind: ClassVar[str] = "stream"

    @property
    def streams(self) -> bool:
        """True: a stream learns from each transition at once."""
        return True

    def check(self) -> None:
        """Raise `ValueError` for more than one environment, step or update at a time."""
        for name in ("num_envs", "num_steps", "num_updates"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f"--config.{name.replace('_', '-')} is {getattr(self, name)}, it must be 1: a stream learns from "
                    "one transition of one environment at a time. For N streams side by side: --seeds N"
                )
