"""Updates of methods that learn from data sets, beside those of their authors."""
