"""Published data sets, with a module per publisher."""
