"""Comparisons whose outcome is known: with another revision, with other people's files,
under attacks and kills.
"""
