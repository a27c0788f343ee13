"""Published data sets: one module per publisher, their names in one catalogue, and downloads.

Each publisher's `load` takes a name, `read` its files, and `names` lists the ids that `load` takes.
"""
