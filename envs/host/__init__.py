"""Environments that run on the host, beside the compiled program."""
