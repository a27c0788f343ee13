"""The machine and the process on which a run lives."""
