"""Variants of Gymnasium's robots."""
