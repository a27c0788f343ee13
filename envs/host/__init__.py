"""Environments on the host, outside the compiled program."""
