"""Published data sets: one module per publisher, their names in one catalogue, and downloads.

Each publisher's `load` reads a data set by its name, `read` reads its files, and `names` lists what
it has published.
"""
