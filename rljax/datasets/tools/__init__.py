"""Tools for data sets: checks, summaries, preprocessing, corruption, correction of dynamics."""
