"""The training loop."""

from rljax.training.loop.divergence import NoLearnerLeft
from rljax.training.loop.training import Training, prefer_devices

__all__ = ["NoLearnerLeft", "Training", "prefer_devices"]
