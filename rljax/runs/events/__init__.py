"""What happens in a run, and who is told of it: loops, callbacks and loggers."""

from rljax.runs.events.types import (
    BeginEvent,
    BestEvent,
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    MetricsEvent,
)

__all__ = [
    "BeginEvent",
    "BestEvent",
    "CheckpointEvent",
    "EndEvent",
    "EvaluationEvent",
    "Event",
    "MetricsEvent",
]
