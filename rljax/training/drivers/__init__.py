"""The drivers: each moves learners through one kind of experience."""
