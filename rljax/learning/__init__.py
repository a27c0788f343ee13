"""How learners move through time."""
