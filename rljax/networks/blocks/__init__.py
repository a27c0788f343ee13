"""Blocks of layers that papers on large critics use."""
