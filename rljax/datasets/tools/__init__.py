"""Tools for data sets: checks, summaries, preprocessing, corruption,
and correction of other dynamics.
"""
