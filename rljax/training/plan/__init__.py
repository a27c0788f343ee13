"""The plan of a training."""

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
