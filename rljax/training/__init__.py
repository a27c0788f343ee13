"""How learners move through time: plan, drivers, evaluation and schedules of a training."""
