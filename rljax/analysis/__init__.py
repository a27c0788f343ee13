"""Results of finished and running runs."""
