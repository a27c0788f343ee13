"""Environments that run on the host, outside the compiled program."""
