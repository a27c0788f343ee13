"""The plan of a training."""

from rljax.learning.plan.experiment import Experiment, OnlineExperience, prepared
from rljax.learning.plan.refusals import require_same_spaces
from rljax.learning.plan.stages import Stage, TrainingPlan, plan, round_up

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
