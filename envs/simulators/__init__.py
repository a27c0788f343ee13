"""Adapters for packages whose environments run inside the compiled program."""
