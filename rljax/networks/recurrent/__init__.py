"""Layers that repeat: memories from one observation to the next,
and torsos that think about one in several steps.
"""
