"""Layers that repeat: memories, and torsos that think in several steps."""
