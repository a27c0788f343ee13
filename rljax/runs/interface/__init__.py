"""Runs, policies, data sets and environments as objects, for scripts and notebooks."""
