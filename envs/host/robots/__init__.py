"""Variants of Gymnasium's robots: limits on their velocity, other dynamics,
and NeoRL-2's SafetyHalfCheetah.
"""
