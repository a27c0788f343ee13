"""How learners move through time: the plan of a training, its drivers, evaluation, schedules."""
