"""Updates of our agents beside those of their authors' code."""
