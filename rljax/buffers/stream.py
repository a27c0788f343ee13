"""Streams: one transition at a time, and none is stored."""

from __future__ import annotations

from typing import Any, ClassVar

from rljax.agent import Array, Transition, config
from rljax.buffers.experience import Experience, Parallelism, T, declaration
from rljax.networks.inputs import OfStream, Raw

TRANSITION = "stream/transition"  # metric: 1 where the transition is finite


@declaration
class Stream(Experience):
    """Each learner learns from each transition [O...] of one environment before it acts again."""

    kind: ClassVar[str] = "stream"
    metrics: ClassVar[tuple[str, ...]] = (TRANSITION,)

    @property
    def inputs(self) -> Raw:
        """By exact moments of the one stream."""
        return OfStream(self.time_feature) if self.normalise_observations else Raw()

    def check(self) -> None:
        for name in ("num_envs", "num_steps", "num_updates"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f"--config.{name.replace('_', '-')} is {getattr(self, name)}, it must be 1: a "
                    "stream learns from one transition of one environment at a time. For N streams "
                    "side by side: --seeds N"
                )

    def parallelism(self, num_learners: int, in_program: bool) -> Parallelism:
        return "one thread"  # a transition's products are too small to share

    def host_driver(self, within: T, beside: T, one_cpu: bool) -> T:
        return within  # it learns before it acts

    def idle(self, steps: int, iteration: int, on_host: bool, flag: str) -> str | None:
        return None  # each step is an update

    def batches(self, storage: Any, data: Any, keys: Array, example: Transition) -> Transition:
        return example

    def iterate(self, loop: Any, *arguments: Any) -> Any:
        return loop.learn_from_each(*arguments)


@config
class StreamSettings:
    """Settings of every agent that learns from a stream: the base of its Config."""

    num_envs: int = 1  # a stream is one environment: for N streams, --seeds N
    num_steps: int = 1  # transitions between updates; a stream has one
    num_updates: int = 1  # updates per transition; a stream has one
    normalise_observations: bool = True  # by mean and std of all so far; arXiv:2410.14606
    time_feature: bool = True  # observe the passed share of the time limit; arXiv:2410.14606
