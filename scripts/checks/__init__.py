"""Comparisons with another revision, and with other people's files."""
