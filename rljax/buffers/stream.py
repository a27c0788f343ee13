"""Stream: each transition is learnt from at once and forgotten."""

from __future__ import annotations

from typing import ClassVar

from rljax.buffers.experience import Experience, declaration


@declaration
class Stream(Experience):
    """One transition [O...] at a time, before the next action is chosen, from one environment of each learner."""

    kind: ClassVar[str] = "stream"

    @property
    def streams(self) -> bool:
        """Yes."""
        return True

    def check(self) -> None:
        """Raise `ValueError` for more than one environment, step or update at a time."""
        for name in ("num_envs", "num_steps", "num_updates"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f"--config.{name.replace('_', '-')} is {getattr(self, name)}, it must be 1: a stream learns from "
                    "one transition of one environment at a time. For N streams side by side: --seeds N"
                )
