"""How parameters move."""
