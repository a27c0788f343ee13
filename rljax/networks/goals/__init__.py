"""Networks and losses of agents that are given goals."""
