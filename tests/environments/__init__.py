"""Environments for tests, and data sets that are recorded in them."""
