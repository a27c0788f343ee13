"""The arrays of a replay: the ring, successors that are no row's, and sum trees."""
