"""The plan of a training: what it needs to begin, its stages, what it refuses,
and whether it fits into memory.
"""

from rljax.training.plan.experiment import Experiment, OnlineExperience, prepared
from rljax.training.plan.refusals import require_same_spaces
from rljax.training.plan.stages import Stage, TrainingPlan, plan, round_up

__all__ = [
    "Experiment",
    "OnlineExperience",
    "Stage",
    "TrainingPlan",
    "plan",
    "prepared",
    "require_same_spaces",
    "round_up",
]
