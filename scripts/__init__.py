"""Scripts that measure, study, table and check rljax.

They are run from the repository's root; see README.md.
"""
