"""Updates of methods that learn to reach goals in an environment, beside those of their authors."""
