"""Tools for data sets."""
