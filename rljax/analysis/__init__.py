"""Results of finished and running runs: comparisons, tables, figures, reports,
published results.
"""
