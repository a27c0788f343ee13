"""The drivers: how learners move through time."""
