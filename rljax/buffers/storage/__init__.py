"""The arrays of a replay: the ring, successors of its rows that no row holds,
and sum trees of priorities.
"""
