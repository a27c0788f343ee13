"""Each driver trains learners on one kind of experience."""
