"""The agents: one file per algorithm."""
