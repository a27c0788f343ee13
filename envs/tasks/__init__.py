"""Compiled environments of this suite, `rljax/...`."""
