"""The training loop."""

from rljax.learning.loop.divergence import NoLearnerLeft
from rljax.learning.loop.training import Training, prefer_devices

__all__ = ["NoLearnerLeft", "Training", "prefer_devices"]
