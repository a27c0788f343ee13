"""The trained policies of a run."""
