"""Published data sets: one module per publisher, one catalogue, and downloads.

Each `load` takes a name of `names`, and `read` files.
"""
