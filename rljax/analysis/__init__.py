"""What runs came to: comparisons, tables, figures, reports."""
