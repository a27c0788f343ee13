"""Faults on purpose: kills, damage, hostile environments, random command lines."""
