"""Environments of this suite, `rljax/...`, inside the compiled program."""
