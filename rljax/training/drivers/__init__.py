"""The drivers: each one trains learners on one kind of experience."""
