"""Trained policies for where JAX is not installed, and runs as one file."""
