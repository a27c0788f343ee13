"""The trained policies of a run: loaded, evaluated, filmed, attacked,
and data collected with them.
"""
