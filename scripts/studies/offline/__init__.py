"""Studies of agents that learn from data, and of what follows in the environment."""
